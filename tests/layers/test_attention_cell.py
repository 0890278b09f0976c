"""`AttentionCell`: the recurrences of the two papers, inside `keras.layers.RNN` and by hand."""

import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_attention import (
    Attention,
    AttentionCell,
    LocalAttention,
    MultiHeadAttention,
    RelativePositionAttention,
    masks,
    patterns,
    scores,
)
from tests import conformance
from tests.compiled import JIT_MODES, SLOW_JIT_MODES
from tests.gradients import gradients, weight_gradients

layers, ops = keras.layers, keras.ops

# Batch, steps, memory places, features of the input, the memory and the states, all different.
B, T, S, D, M, H = 3, 4, 6, 5, 7, 8


def numpy(tensor):
    return np.asarray(ops.convert_to_numpy(tensor))


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X, MEMORY, STATE = random(B, T, D), random(B, S, M, seed=1), 0.5 * random(B, H, seed=2)
MASK = np.arange(S) < np.array([[6], [4], [1]])


def weights_drawn(layer, seed=3):
    """Sets every weight, biases too, to something that no zero hides."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign(rng.normal(size=weight.shape) / np.sqrt(weight.shape[0]))


def made(cell, *inputs, **kwargs):
    """An `RNN` round `cell`, with drawn weights."""
    rnn = layers.RNN(cell, return_sequences=True, **kwargs)
    cell.initial_state(MEMORY)
    rnn.build(X.shape)
    weights_drawn(rnn)
    return rnn


# The papers, in float64


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(cell, x, states):
    """Keras's GRU with `reset_after=True`."""
    kernel, recurrent, bias = (numpy(w).astype("float64") for w in cell.weights)
    (h,) = states
    xz, xr, xh = np.split(x @ kernel + bias[0], 3, -1)
    hz, hr, hh = np.split(h @ recurrent + bias[1], 3, -1)
    z, r = sigmoid(xz + hz), sigmoid(xr + hr)
    h = z * h + (1 - z) * np.tanh(xh + r * hh)
    return h, [h]


def lstm(cell, x, states):
    kernel, recurrent, bias = (numpy(w).astype("float64") for w in cell.weights)
    h, c = states
    i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return h, [h, c]


def simple(cell, x, states):
    kernel, recurrent, bias = (numpy(w).astype("float64") for w in cell.weights)
    h = np.tanh(x @ kernel + states[0] @ recurrent + bias)
    return h, [h]


def stacked(cell, x, states):
    """A stack of GRUs."""
    after = []
    for part, state in zip(cell.cells, states, strict=True):
        x, (h,) = gru(part, x, [state])
        after.append(h)
    return x, after


CELLS = {
    gru: lambda: layers.GRUCell(H),
    lstm: lambda: layers.LSTMCell(H),
    simple: lambda: layers.SimpleRNNCell(H),
    stacked: lambda: layers.StackedRNNCells([layers.GRUCell(3), layers.GRUCell(H)]),
}


def score_of(layer, query, key):
    """One number."""
    if isinstance(layer, scores.Dot):
        return query @ key
    named = {w.name: numpy(w).astype("float64")[0] for w in layer.weights}
    if isinstance(layer, scores.General):
        return query @ named["kernel"] @ key
    hidden = query @ named["query_kernel"] + key @ named["key_kernel"] + named["bias"]
    return named["v"] @ np.tanh(hidden)


def context_of(layer, query, memory, mask, t, window):
    """c_t and the weights of one row."""
    allowed = [
        s for s in range(len(memory)) if mask[s] and (window is None or abs(s - t) <= window)
    ]
    weights = np.zeros(len(memory))
    if allowed:
        powers = np.exp([score_of(layer, query, memory[s]) for s in allowed])
        weights[allowed] = powers / powers.sum()
    return weights @ memory, weights


def by_the_papers(cell, step, x, memory, states, mask, window=None):
    """The outputs (B, T, …) and alignments (B, T, S) of an `AttentionCell`, by loops."""
    x, memory = x.astype("float64"), memory.astype("float64")
    states, fed, outputs, alignments = list(states), None, [], []

    def attend(query, t):
        rows = zip(query, memory, mask, strict=True)
        found = [context_of(cell.attention.score, *row, t, window) for row in rows]
        return (np.stack(column) for column in zip(*found, strict=True))

    def attentional(context, h):
        both = np.concatenate([context, h], -1)
        if cell.attention_dim is None:
            return both
        return np.tanh(both @ numpy(cell._attention_dense.kernel).astype("float64"))

    for t in range(x.shape[1]):
        if cell.mode == "bahdanau":
            query = states[-1] if step is stacked else states[0]
            context, weights = attend(query, t)
            h, states = step(cell.cell, np.concatenate([x[:, t], context], -1), states)
            wide = cell.attention_dim is not None or cell.output_context
            outputs.append(attentional(context, h) if wide else h)
        else:
            if fed is None:
                fed = np.zeros((len(x), cell.attention_dim or memory.shape[-1] + H))
            inputs = np.concatenate([x[:, t], fed], -1) if cell.input_feeding else x[:, t]
            h, states = step(cell.cell, inputs, states)
            context, weights = attend(h, t)
            fed = attentional(context, h)
            outputs.append(fed)
        alignments.append(weights)
    return np.stack(outputs, 1), np.stack(alignments, 1)


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
    reached = (weights > 0).any(-1)
    np.testing.assert_allclose(numpy(alignments).sum(-1)[:, 0], reached, atol=1e-5)
    assert (numpy(alignments)[:, 0][weights == 0] == 0).all()
    assert numpy(after[-1]).tolist() == [[T]] * B


@pytest.mark.parametrize(("step", "arguments"), [(stacked, {}), (lstm, {"mode": "luong"})])
def test_by_hand_it_is_the_same_loop(step, arguments):
    attention = Attention(score=scores.Additive(4), pattern=patterns.SlidingWindow(2, 2))
    cell = AttentionCell(CELLS[step](), attention, return_attention_scores=True, **arguments)
    rnn = made(cell)
    expected = rnn(X, initial_state=cell.initial_state(MEMORY, mask=MASK))
    outputs, states = [], cell.start_states(MEMORY, mask=MASK)
    assert all(state.shape[0] == B for state in keras.tree.flatten(states))
    for t in range(T):
        output, states = cell(X[:, t], states)
        outputs.append(numpy(output))
    np.testing.assert_allclose(np.stack(outputs, 1), numpy(expected), rtol=1e-5, atol=1e-5)


def test_dot_compares_states_with_a_memory_of_their_size():
    cell = AttentionCell(layers.GRUCell(M), "dot", mode="luong", attention_dim=4)
    rnn = layers.RNN(cell)
    start = cell.initial_state(MEMORY, MEMORY[:, -1])
    last = rnn(X, initial_state=start)
    expected, _ = by_the_papers(cell, gru, X, MEMORY, [MEMORY[:, -1]], MASK | True)
    np.testing.assert_allclose(numpy(last), expected[:, -1], rtol=1e-5, atol=1e-5)


def attentions():
    return {
        "heads": Attention(2, 3, use_bias=True),
        "grouped": Attention(4, 3, num_key_value_heads=2, qk_norm="rms"),
        "positions": Attention(2, 4, position="rotary", pattern="causal"),
        "bias": Attention(2, 3, position="alibi", normalization="sigmoid"),
        "multi": MultiHeadAttention(2, 3),
        "location": Attention(score=scores.Location(S)),
        "local-p": LocalAttention(2, mode="predictive"),
        "shaw": RelativePositionAttention(2, 3, max_distance=3),
        "cosine": Attention(2, 3, score=scores.Cosine(scale=4.0)),
    }


@pytest.mark.parametrize("name", attentions())
def test_any_attention_attends_as_in_a_call_of_its_own(name):
    attention = attentions()[name]
    cell = AttentionCell(
        layers.GRUCell(H), attention, output_context=True, return_attention_scores=True
    )
    rnn = made(cell)
    start = cell.initial_state(MEMORY, STATE, MASK)
    outputs, alignments = cell.split_outputs(rnn(X, initial_state=start))
    context, h = numpy(outputs)[..., :-H], numpy(outputs)[..., -H:]
    queries = np.concatenate([STATE[:, None], h[:, :-1]], 1)
    expected, weights = attention(
        ops.convert_to_tensor(queries),
        ops.convert_to_tensor(MEMORY),
        value_mask=MASK,
        return_attention_scores=True,
    )
    np.testing.assert_allclose(context, numpy(expected), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(numpy(alignments), numpy(weights), rtol=1e-4, atol=1e-5)


# Masks


def test_masks_of_the_memory_count_together_and_padding_changes_nothing():
    cell = AttentionCell(layers.GRUCell(H), "general")
    rnn = made(cell)
    expected = numpy(rnn(X[1:2], initial_state=cell.initial_state(MEMORY[1:2, :3])))
    garbage = np.where(MASK[..., None], MEMORY, 50.0).astype("float32")
    carried = ops.convert_to_tensor(MASK)
    memory = masks.carry(ops.convert_to_tensor(garbage), carried)
    explicit = np.arange(S) < 3
    outputs = rnn(X, initial_state=cell.initial_state(memory, mask=np.stack([explicit] * B)))
    np.testing.assert_allclose(numpy(outputs)[1:2], expected, rtol=1e-5, atol=1e-5)
    assert masks.implicit(memory) is carried


def test_no_memory_at_all_is_a_context_of_zeros():
    cell = AttentionCell(
        layers.GRUCell(H), "general", output_context=True, return_attention_scores=True
    )
    rnn = made(cell)
    start = cell.initial_state(MEMORY, mask=np.zeros((B, S), bool))
    outputs, alignments = cell.split_outputs(rnn(X, initial_state=start))
    assert (numpy(outputs)[..., :M] == 0).all() and (numpy(alignments) == 0).all()


@pytest.mark.parametrize("unroll", [False, True])
def test_masked_steps_hold_output_and_states(unroll):
    cell = AttentionCell(layers.GRUCell(H), "general", mode="luong", attention_dim=3)
    rnn = made(cell, unroll=unroll, return_state=True)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 1]], bool)
    start = cell.initial_state(MEMORY, STATE)
    outputs, states = rnn(X, initial_state=start, mask=ops.convert_to_tensor(mask))
    outputs = numpy(outputs)
    for row, kept in enumerate(mask):
        x = X[row : row + 1, kept]
        memory, state = MEMORY[row : row + 1], STATE[row : row + 1]
        expected, after = rnn(x, initial_state=cell.initial_state(memory, state))
        np.testing.assert_allclose(outputs[row, kept], numpy(expected)[0], rtol=1e-5, atol=1e-5)
        for found, state in zip(states, after, strict=True):
            np.testing.assert_allclose(numpy(found)[row], numpy(state)[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(outputs[1, 2], outputs[1, 1])


def test_unrolled_and_continued_are_the_same_loop():
    cell = AttentionCell(
        layers.LSTMCell(H), Attention(score="general", pattern="causal"), mode="luong"
    )
    rnn = made(cell, return_state=True)
    unrolled = layers.RNN(cell, return_sequences=True, unroll=True)
    whole, last = rnn(X, initial_state=cell.initial_state(MEMORY))
    np.testing.assert_allclose(
        numpy(unrolled(X, initial_state=cell.initial_state(MEMORY))), numpy(whole), atol=1e-6
    )
    first, states = rnn(X[:, :2], initial_state=cell.initial_state(MEMORY))
    second, states = rnn(X[:, 2:], initial_state=cell.initial_state(MEMORY, states))
    both = np.concatenate([numpy(first), numpy(second)], 1)
    np.testing.assert_allclose(both, numpy(whole), rtol=1e-5, atol=1e-6)
    for found, expected in zip(states, last, strict=True):
        np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-5, atol=1e-6)


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


# Gradients


@pytest.mark.parametrize("mode", ["bahdanau", "luong"])
def test_gradients_reach_everything_but_the_padding(mode):
    cell = AttentionCell(
        layers.GRUCell(H), scores.Additive(4), mode=mode, attention_dim=3, attention_activation=None
    )
    rnn = made(cell)

    def total(x, memory, state):
        start = cell.initial_state(memory, state, mask=ops.convert_to_tensor(MASK))
        return ops.sum(ops.square(rnn(x, initial_state=start)))

    of_weights, (of_x, of_memory, of_state) = weight_gradients(rnn, total, [X, MEMORY, STATE])
    assert len(of_weights) == 8
    for gradient in [*of_weights, of_x, of_state, of_memory[MASK]]:
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 1e-4
    np.testing.assert_array_equal(of_memory[~MASK], 0.0)

    # Against differences, along one direction.
    step = 1e-2 * np.where(MASK[..., None], random(B, S, M, seed=9), 0).astype("float32")
    ends = [float(numpy(total(X, MEMORY + s * step, STATE))) for s in (1, -1)]
    np.testing.assert_allclose((ends[0] - ends[1]) / 2, (of_memory * step).sum(), rtol=2e-2)


@pytest.mark.parametrize(("mode", "step"), [("bahdanau", stacked), ("luong", gru)])
def test_gradients_are_those_of_the_papers(mode, step):
    """Of the compiled loop too: a step of SGD moves each weight by its gradient."""
    x, memory = keras.Input((None, D)), keras.Input((None, M))
    cell = AttentionCell(CELLS[step](), scores.Additive(4), mode=mode, attention_dim=3)
    rnn = layers.RNN(cell, return_sequences=True)
    model = keras.Model([x, memory], rnn(x, initial_state=cell.initial_state(memory)))
    weights_drawn(rnn)
    upstream = random(B, T, 3, seed=20)
    states = [np.zeros((B, size)) for size in keras.tree.flatten(cell.cell.state_size)]

    def total():
        whole = np.ones((B, S), bool)
        return (by_the_papers(cell, step, X, MEMORY, states, whole)[0] * upstream).sum()

    # Along one direction of each weight, by float64 differences of what float32 holds.
    expected, ways = [], []
    for index, weight in enumerate(rnn.trainable_weights):
        at, ends, totals = numpy(weight), [], []
        way = 1e-3 * random(*at.shape, seed=30 + index)
        for sign in (1, -1):
            weight.assign(at + sign * way)
            ends.append(numpy(weight).astype("float64"))
            totals.append(total())
        weight.assign(at)
        ways.append(ends[0] - ends[1])
        expected.append(totals[0] - totals[1])

    def check(found):
        found = [(gradient * way).sum() for gradient, way in zip(found, ways, strict=True)]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3 * scale)

    def product(*inputs):
        return ops.multiply(model(inputs), upstream)

    check(weight_gradients(model, product, [X, MEMORY])[0])
    start = model.get_weights()
    for jit_compile in JIT_MODES:
        model.set_weights(start)
        model.compile(
            keras.optimizers.SGD(1.0),
            lambda wanted, output: ops.sum(wanted * output, axis=(1, 2)),
            jit_compile=jit_compile,
        )
        model.train_on_batch([X, MEMORY], upstream)
        moved = zip(start, model.get_weights(), strict=True)
        # Keras takes the mean over the rows.
        check([B * (before.astype("float64") - after) for before, after in moved])


def test_a_state_of_the_right_structure_has_a_gradient():
    cell = AttentionCell(layers.LSTMCell(H), "general")
    rnn = made(cell)

    def total(h, c):
        return rnn(X, initial_state=cell.initial_state(MEMORY, [h, c]))

    for gradient in gradients(total, [STATE, STATE]):
        assert np.abs(gradient).max() > 1e-4


# In models


def translator(places=None, **arguments):
    """Two embeddings, an encoder, and a decoder that attends; lengths unknown."""
    source, target = layers.Input((places,), dtype="int32"), layers.Input((None,), dtype="int32")
    memory = layers.Embedding(9, M, mask_zero=True)(source)
    state = layers.Dense(H)(layers.GlobalAveragePooling1D()(memory))
    words = layers.Embedding(9, D, mask_zero=True)
    cell = AttentionCell(
        layers.GRUCell(H, dropout=0.2, recurrent_dropout=0.1),
        Attention(2, 4, dropout=0.2, seed=1),
        **arguments,
    )
    outputs = layers.RNN(cell, return_sequences=True)(
        words(target),
        initial_state=cell.initial_state(memory, state),
        mask=words.compute_mask(target),
    )
    if cell.return_attention_scores:
        outputs, alignments = cell.split_outputs(outputs)
        assert alignments.shape == (None, 2, None, places)
    return keras.Model([source, target], layers.Dense(9)(outputs))


def words(*shape, seed=0):
    """Token ids with padding at the end of all rows but the first."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, 9, shape)
    for row in range(1, shape[0]):
        ids[row, rng.integers(1, shape[1]) :] = 0
    return ids.astype("int32")


def compiled(model, jit_compile):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss, jit_compile=jit_compile)
    return model


def test_functional_model_of_unknown_lengths_learns():
    model = compiled(translator(mode="luong", attention_dim=6), "auto")
    source, target = words(16, S), words(16, T, seed=1)
    losses = model.fit([source, target], target, epochs=10, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0]
    # Padding of a batch changes no row.
    wider = [np.pad(ids, ((0, 0), (0, 3))) for ids in (source, target)]
    outputs, expected = numpy(model(wider))[:, :T], numpy(model([source, target]))
    np.testing.assert_allclose(outputs, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("jit_compile", SLOW_JIT_MODES)
def test_compiled_is_eager(jit_compile):
    model = compiled(translator(), jit_compile)
    batch = [words(4, S), words(4, T, seed=1)]
    expected = numpy(model(batch))
    np.testing.assert_allclose(model.predict_on_batch(batch), expected, rtol=1e-3, atol=1e-4)
    before = [numpy(weight) for weight in model.trainable_weights]
    assert np.isfinite(model.train_on_batch(batch, batch[1]))
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.abs(numpy(weight) - old).max() > 0, weight.path


def test_a_sink_can_be_trained_in_a_compiled_loop():
    """XLA cannot compile the gradient of a broadcast in TensorFlow's loops."""
    memory, x = keras.Input((None, M)), keras.Input((None, D))
    cell = AttentionCell(layers.GRUCell(H), Attention(2, 3, use_sink=True))
    outputs = layers.RNN(cell, return_sequences=True)(x, initial_state=cell.initial_state(memory))
    model = compiled(keras.Model([memory, x], outputs), JIT_MODES[-1])
    before = numpy(cell.attention.sink)
    assert np.isfinite(model.train_on_batch([MEMORY, X], words(B, T) % H))
    assert np.abs(numpy(cell.attention.sink) - before).max() > 0


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    full = AttentionCell(layers.LSTMCell(H), "general", mode="luong", attention_dim=6)
    expected = numpy(made(full)(X, initial_state=full.initial_state(MEMORY, mask=MASK)))
    cell = AttentionCell(
        layers.LSTMCell(H, dtype=policy), "general", mode="luong", attention_dim=6, dtype=policy
    )
    rnn = made(cell, dtype=policy)
    outputs = rnn(X, initial_state=cell.initial_state(MEMORY, mask=MASK))
    assert keras.backend.standardize_dtype(outputs.dtype) == policy.removeprefix("mixed_")
    outputs = numpy(ops.cast(outputs, "float32"))
    np.testing.assert_allclose(outputs, expected, atol=0.01 if policy == "mixed_float16" else 0.06)
    for parameter in rnn.weights:
        assert keras.backend.standardize_dtype(parameter.dtype) == "float32"


def test_symbolic_structure_is_the_eager_one():
    for arguments in ({"output_context": True}, {"mode": "luong", "attention_dim": 3}):
        cell = AttentionCell(
            layers.StackedRNNCells([layers.LSTMCell(size) for size in (2, 3)]),
            "general",
            **arguments,
        )
        rnn = layers.RNN(cell, return_state=True)
        symbols = rnn(layers.Input((T, D)), initial_state=cell.initial_state(layers.Input((S, M))))
        arrays = rnn(X, initial_state=cell.initial_state(MEMORY))
        keras.tree.assert_same_structure(symbols, arrays)
        for symbol, array in zip(
            keras.tree.flatten(symbols), keras.tree.flatten(arrays), strict=True
        ):
            assert len(symbol.shape) == len(array.shape)
            assert symbol.shape[-1] in (None, array.shape[-1])


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


# Dropout


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
    assert inner._dropout_mask is None and cell._scratch.memory is None


def test_dropout_of_the_attention_drops_places_for_a_whole_sequence():
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


@pytest.mark.parametrize("jit_compile", JIT_MODES)
def test_dropout_of_the_attention_in_a_compiled_loop(jit_compile):
    """The loss is what is looked at: how often a dropped place comes back, and how many drop."""
    attention = Attention(score=scores.Dot(), dropout=0.5, seed=3)
    cell = AttentionCell(layers.GRUCell(S), attention, output_context=True)
    x, memory = keras.Input((None, D)), keras.Input((None, S))
    outputs = layers.RNN(cell, return_sequences=True)(x, initial_state=cell.initial_state(memory))
    model = keras.Model([x, memory], outputs)

    def seen(_, output):
        dropped = ops.cast(ops.equal(output[..., :S], 0.0), "float32")
        powers = ops.convert_to_tensor(2.0 ** np.arange(S, dtype="float32"))
        changes = ops.sum(ops.abs(dropped - dropped[:, :1]), axis=(1, 2))
        # Which places of the first row, as one number, and 1000 for each change.
        return ops.sum(dropped[:1, 0] * powers) + 1000.0 * changes + 0.0 * ops.sum(output)

    model.compile(keras.optimizers.SGD(0.0), seen, jit_compile=jit_compile)
    batch = [X, np.stack([np.eye(S, dtype="float32")] * B)]
    drawn = []
    for _ in range(6):
        drawn.append(model.train_on_batch(batch, np.zeros((B, T, 1))))
        model.reset_metrics()  # an older Keras returns means over batches
    assert max(drawn) < 2**S and len({round(float(d)) for d in drawn}) > 1, drawn
    assert model.test_on_batch(batch, np.zeros((B, T, 1))) == 0.0


# Configuration and files


def test_every_argument_is_in_the_config():
    case = conformance.Case(
        AttentionCell,
        {"cell": layers.GRUCell(4), "attention": "dot"},
        {
            "mode": "luong",
            "attention_dim": 3,
            "attention_activation": "relu",
            "output_context": True,
            "return_attention_scores": True,
        },
    )
    given = {**case.arguments, "mode": "luong", "input_feeding": False}
    assert AttentionCell(**given).get_config()["input_feeding"] is False
    unconditional = dict(case.other_arguments, input_feeding=True)
    defaults = case.make().get_config()
    for name, value in unconditional.items():
        config = case.make(**{name: value}).get_config()
        assert (config[name] != defaults[name]) == (name != "input_feeding"), name
        again = AttentionCell.from_config(config)
        assert again.get_config() == config
    assert isinstance(again.cell, layers.GRUCell) and isinstance(again.attention, Attention)
    named = case.make(name="given", dtype="mixed_bfloat16", trainable=False)
    again = AttentionCell.from_config(named.get_config())
    assert (again.name, again.trainable) == ("given", False)
    assert again.dtype_policy.name == "mixed_bfloat16"


LOADER = """
import sys
import keras_attention
import keras, numpy as np
for path in sys.argv[1:]:
    model = keras.saving.load_model(path)
    saved = np.load(path + ".npz")
    outputs = keras.ops.convert_to_numpy(model([saved["source"], saved["target"]]))
    np.testing.assert_allclose(outputs, saved["outputs"], rtol=1e-5, atol=1e-6)
    print("loaded")
"""


def test_saved_models_load_in_a_fresh_process(tmp_path):
    paths = []
    for index, arguments in enumerate(
        [
            {"mode": "luong", "attention_dim": 6},
            {"places": S, "output_context": True, "return_attention_scores": True},
        ]
    ):
        model = translator(**arguments)
        weights_drawn(model)
        source, target = words(B, S), words(B, T, seed=1)
        paths.append(str(tmp_path / f"{index}.keras"))
        model.save(paths[-1])
        outputs = numpy(model([source, target]))
        np.savez(f"{paths[-1]}.npz", source=source, target=target, outputs=outputs)
        clone = keras.models.clone_model(model)
        clone.set_weights(model.get_weights())
        np.testing.assert_allclose(numpy(clone([source, target])), outputs, atol=1e-6)
    process = subprocess.run(
        [sys.executable, "-c", LOADER, *paths], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.split() == ["loaded"] * 2


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
