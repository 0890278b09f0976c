"""`AttentionCell`: the recurrences of the two papers, in `keras.layers.RNN` and in models."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, AttentionCell, patterns, scores
from tests.arrays import numpy, random
from tests.compiled import JIT_MODES
from tests.gradients import gradients
from tests.layers.small_cells import (
    CELLS,
    MASK,
    MEMORY,
    STATE,
    B,
    D,
    H,
    M,
    S,
    T,
    X,
    by_the_papers,
    gru,
    lstm,
    made,
    simple,
    stacked,
)

layers, ops = keras.layers, keras.ops


ADDITIVE = scores.Additive(9)
WAYS = [
    (gru, ADDITIVE, {}),
    (gru, "general", {"output_context": True}),
    (gru, "general", {"attention_dim": 6}),
    (lstm, "general", {"mode": "luong", "attention_dim": 6}),
    (gru, ADDITIVE, {"mode": "luong"}),
    (gru, "general", {"mode": "luong", "attention_dim": 6, "input_feeding": False}),
    (lstm, "additive", {}),
    (simple, "general", {}),
    (stacked, "general", {}),
    (stacked, "general", {"mode": "luong", "attention_dim": 6}),
]


@pytest.mark.parametrize(
    ("step", "score", "arguments", "window"),
    [*((*way, None) for way in WAYS), (*WAYS[1], 1), (*WAYS[3], 1)],
    ids=lambda v: getattr(v, "__name__", None) or getattr(v, "name", None) or str(v),
)
def test_is_what_the_papers_say(step, score, arguments, window):
    pattern = None if window is None else patterns.SlidingWindow(window, window)
    if isinstance(score, scores.Score):
        score = type(score).from_config(score.get_config())
    attention = Attention(score=score, pattern=pattern)
    cell = AttentionCell(CELLS[step](), attention, return_attention_scores=True, **arguments)
    rnn = made(cell, return_state=True)
    sizes = keras.tree.flatten(cell.cell.state_size)
    states = [0.5 * random(B, size, seed=10 + i) for i, size in enumerate(sizes)]
    outputs, after = rnn(X, initial_state=cell.initial_state(MEMORY, states, MASK))
    outputs, alignments = cell.split_outputs(outputs)
    expected, weights = by_the_papers(cell, step, X, MEMORY, states, MASK, window)
    np.testing.assert_allclose(numpy(outputs), expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(numpy(alignments)[:, 0], weights, rtol=2e-5, atol=2e-5)
    has_keys = (weights > 0).any(-1)
    np.testing.assert_allclose(numpy(alignments).sum(-1)[:, 0], has_keys, atol=1e-5)
    assert (numpy(alignments)[:, 0][weights == 0] == 0).all()
    assert numpy(after[-1]).tolist() == [[T]] * B


def test_location_refuses_a_longer_memory_in_a_program():
    cell = AttentionCell(layers.GRUCell(H), Attention(2, 3, score=scores.Location(S)))
    rnn = made(cell)
    x, memory = keras.Input(X.shape[1:]), keras.Input((None, MEMORY.shape[-1]))
    model = keras.Model([x, memory], rnn(x, initial_state=cell.initial_state(memory)))
    assert np.isfinite(model.predict([X, MEMORY], verbose=0)).all()
    longer = np.repeat(MEMORY, 2, axis=1)
    try:
        found = model.predict([X, longer], verbose=0)
    except Exception as error:
        assert "at most max_length" in str(error) or "Location" in str(error)
    else:
        assert np.isnan(found).any()


@pytest.mark.parametrize("attention_dim", [None, 3])
def test_continued_with_a_memory_of_another_length(attention_dim):
    def outputs(**arguments):
        cell = AttentionCell(
            layers.GRUCell(H), "general", mode="luong", attention_dim=attention_dim, **arguments
        )
        rnn = made(cell, return_state=True)
        _, states = rnn(X, initial_state=cell.initial_state(MEMORY))
        start = cell.initial_state(random(B, S + 3, M, seed=4), states)
        return cell, rnn(X, initial_state=start)[0]

    cell, found = outputs(return_attention_scores=True)
    features, alignments = cell.split_outputs(found)
    assert alignments.shape == (B, 1, T, S + 3)
    np.testing.assert_allclose(numpy(alignments).sum(-1), 1, rtol=1e-5)
    _, expected = outputs()
    np.testing.assert_allclose(numpy(features), numpy(expected), rtol=1e-5, atol=1e-6)


def test_states_that_are_given_have_gradients():
    cell = AttentionCell(layers.LSTMCell(H), "general")
    rnn = made(cell)
    found = gradients(lambda *h: rnn(X, initial_state=cell.initial_state(MEMORY, h)), [STATE] * 2)
    assert all(np.abs(gradient).max() > 1e-4 for gradient in found)


def test_keys_are_projected_once(monkeypatch):
    score = scores.Additive(4)
    cell = AttentionCell(layers.GRUCell(H), Attention(score=score))
    rnn = made(cell, unroll=True)
    prepared = []
    for name in ("prepare_key", "prepare_query"):
        method = getattr(score, name)
        monkeypatch.setattr(score, name, lambda x, f=method, n=name: prepared.append(n) or f(x))
    rnn(X, initial_state=cell.initial_state(MEMORY))
    assert sorted(prepared) == ["prepare_key"] + ["prepare_query"] * T


# In models


@pytest.mark.ci
def test_a_sink_can_be_trained_in_a_compiled_loop():
    """XLA cannot compile the gradient of a broadcast in TensorFlow's loops."""
    memory, x = keras.Input((None, M)), keras.Input((None, D))
    cell = AttentionCell(layers.GRUCell(H), Attention(2, 3, use_sink=True))
    outputs = layers.RNN(cell, return_sequences=True)(x, initial_state=cell.initial_state(memory))
    model = keras.Model([memory, x], outputs)
    model.compile(keras.optimizers.Adam(0.05), "mse", jit_compile=JIT_MODES[-1])
    before = numpy(cell.attention.sink)
    assert np.isfinite(model.train_on_batch([MEMORY, X], random(B, T, H)))
    assert np.abs(numpy(cell.attention.sink) - before).max() > 0


def test_a_stack_may_attend_below():
    cell = AttentionCell(layers.GRUCell(H), "general")
    rnn = layers.RNN([cell, layers.GRUCell(2)], return_sequences=True)
    start = [cell.initial_state(MEMORY, STATE), np.zeros((B, 2), "float32")]
    outputs = rnn(X, initial_state=start)
    below = layers.RNN(cell, return_sequences=True)
    expected = layers.RNN(rnn.cell.cells[1], return_sequences=True)(
        below(X, initial_state=cell.initial_state(MEMORY, STATE))
    )
    np.testing.assert_allclose(numpy(outputs), numpy(expected), rtol=1e-5, atol=1e-6)


def test_dropout_draws_once_a_call_in_training_alone():
    inner = layers.GRUCell(H, dropout=0.3, recurrent_dropout=0.3, seed=1)
    stack = layers.StackedRNNCells([inner, layers.LSTMCell(H, dropout=0.3, seed=2)])
    cell = AttentionCell(stack, Attention(score="general", dropout=0.5, seed=3))
    rnn = made(cell)
    start = cell.initial_state(MEMORY)
    at_rest = [numpy(rnn(X, initial_state=start)) for _ in range(2)]
    np.testing.assert_array_equal(*at_rest)
    drawn = [numpy(rnn(X, initial_state=start, training=True)) for _ in range(2)]
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-3
    assert np.abs(drawn[0] - at_rest[0]).max() > 1e-3
    assert inner._dropout_mask is None and not cell._loop.memory


def test_dropout_of_the_attention_drops_positions_for_a_whole_sequence():
    attention = Attention(score=scores.Dot(), dropout=0.5, seed=3)
    cell = AttentionCell(layers.GRUCell(S), attention, output_context=True)
    rnn = layers.RNN(cell, return_sequences=True)
    # The memory is the unit vectors, so that the context is the dropped weights themselves.
    memory = np.stack([np.eye(S, dtype="float32")] * B)
    context = numpy(rnn(X, initial_state=cell.initial_state(memory), training=True))[..., :S]
    dropped = context == 0
    assert dropped.any() and not dropped.all()
    assert (dropped == dropped[:, :1]).all() and (dropped[0] != dropped[1]).any()
    whole = numpy(rnn(X, initial_state=cell.initial_state(memory)))[..., :S]
    np.testing.assert_allclose(context[:, 0][~dropped[:, 0]], 2 * whole[:, 0][~dropped[:, 0]])


@pytest.mark.ci
@pytest.mark.parametrize("jit_compile", JIT_MODES)
def test_dropout_of_the_attention_in_a_compiled_loop(jit_compile):
    """The loss is what is looked at: how often a dropped position comes back, and how many drop."""
    attention = Attention(score=scores.Dot(), dropout=0.5, seed=3)
    cell = AttentionCell(layers.GRUCell(S), attention, output_context=True)
    x, memory = keras.Input((None, D)), keras.Input((None, S))
    outputs = layers.RNN(cell, return_sequences=True)(x, initial_state=cell.initial_state(memory))
    model = keras.Model([x, memory], outputs)

    def seen(_, output):
        dropped = ops.cast(ops.equal(output[..., :S], 0.0), "float32")
        powers = ops.convert_to_tensor(2.0 ** np.arange(S, dtype="float32"))
        changes = ops.sum(ops.abs(dropped - dropped[:, :1]), axis=(1, 2))
        # Which positions of the first row, as one number, and 1000 for each change.
        return ops.sum(dropped[:1, 0] * powers) + 1000.0 * changes + 0.0 * ops.sum(output)

    model.compile(keras.optimizers.SGD(0.0), seen, jit_compile=jit_compile)
    batch = [X, np.stack([np.eye(S, dtype="float32")] * B)]
    drawn = []
    for _ in range(6):
        drawn.append(model.train_on_batch(batch, np.zeros((B, T, 1))))
        model.reset_metrics()  # an older Keras returns means over batches
    assert max(drawn) < 2**S and len({round(float(d)) for d in drawn}) > 1, drawn
    assert model.test_on_batch(batch, np.zeros((B, T, 1))) == 0.0


def test_start_states_of_symbols(tmp_path):
    """Steps by hand in a functional model, saved with one copy of the weights."""
    cell = AttentionCell(keras.layers.GRUCell(4), "general", mode="luong", attention_dim=4)
    arrays = random(B, 4), random(B, S, 3, seed=1), random(B, 4, seed=2)

    arrays[1][0, 3:] = 0  # padding

    def unrolled(x, memory, last):
        states, outputs = cell.start_states(layers.Masking()(memory), states=[last]), []
        for _ in range(2):
            x, states = cell(x, states)
            outputs.append(x)
        return keras.ops.stack(outputs, axis=1)

    inputs = [keras.Input((4,)), keras.Input((None, 3)), keras.Input((4,))]
    model = keras.Model(inputs, unrolled(*inputs))
    assert model.output_shape == (None, 2, 4)
    assert len(model.weights) == len(cell.weights)
    expected = numpy(unrolled(*arrays))
    np.testing.assert_allclose(numpy(model(arrays)), expected, atol=1e-5)
    arrays[1][0, 3:] = 1
    assert np.abs(numpy(unrolled(*arrays))[0] - expected[0]).max() > 1e-3
    arrays[1][0, 3:] = 0
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(cell.weights)
    np.testing.assert_allclose(numpy(loaded(arrays)), expected, atol=1e-5)
