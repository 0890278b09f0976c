"""`AttentionCell` in models: compiled, with dropout, in half precision, saved and loaded."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, AttentionCell, scores
from tests.arrays import numpy, random
from tests.compiled import JIT_MODES
from tests.layers.small_cells import MEMORY, STATE, B, D, H, M, S, T, X, made

layers, ops = keras.layers, keras.ops


# In models


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


@pytest.mark.ci
def test_a_sink_can_be_trained_in_a_compiled_loop():
    """XLA cannot compile the gradient of a broadcast in TensorFlow's loops."""
    memory, x = keras.Input((None, M)), keras.Input((None, D))
    cell = AttentionCell(layers.GRUCell(H), Attention(2, 3, use_sink=True))
    outputs = layers.RNN(cell, return_sequences=True)(x, initial_state=cell.initial_state(memory))
    model = compiled(keras.Model([memory, x], outputs), JIT_MODES[-1])
    before = numpy(cell.attention.sink)
    assert np.isfinite(model.train_on_batch([MEMORY, X], words(B, T) % H))
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


# Configuration and files


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
