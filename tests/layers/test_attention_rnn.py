"""`AttentionRNN`: what `keras.layers.RNN` of an `AttentionCell` computes, by public means."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import close, numpy, random, wide

layers, ops = keras.layers, keras.ops

# Batch, steps, memory positions, features of the input, the memory and the states, all different.
B, T, S, D, M, H = 3, 4, 6, 5, 7, 8


X, MEMORY, STATE = random(B, T, D), random(B, S, M, seed=1), 0.5 * random(B, H, seed=2)
MASK = np.arange(T) < np.array([[4], [3], [1]])
MEMORY_MASK = np.arange(S) < np.array([[6], [4], [1]])


def stack():
    return layers.StackedRNNCells([layers.LSTMCell(H), layers.GRUCell(H)])


CELLS = {
    "bahdanau": lambda: ka.AttentionCell(layers.GRUCell(H), "additive", output_context=True),
    "luong": lambda: ka.AttentionCell(layers.GRUCell(H), "general", mode="luong", attention_dim=9),
    "luong, not fed": lambda: ka.AttentionCell(
        layers.GRUCell(H), "general", mode="luong", input_feeding=False
    ),
    "heads, a window, a stack": lambda: ka.AttentionCell(
        stack(), ka.Attention(2, 3, pattern=ka.patterns.SlidingWindow(2, 2)), attention_dim=9
    ),
    "scores": lambda: ka.AttentionCell(
        layers.GRUCell(H), ka.Attention(2, 3), mode="luong", return_attention_scores=True
    ),
}
# Keras 3.16 says so of its own `RNN`, whose outputs are compared here.
pytestmark = pytest.mark.filterwarnings("ignore:Layer 'rnn.*does not support masking:UserWarning")


def made(name, **kwargs):
    """An `AttentionRNN` with weights that no zero hides."""
    layer = ka.AttentionRNN(CELLS[name](), **{"return_sequences": True, **kwargs})
    layer.build(X.shape, MEMORY.shape)
    for number, weight in enumerate(layer.trainable_weights):
        weight.assign(random(*weight.shape, seed=number) / np.sqrt(weight.shape[0]))
    return layer


def by_rnn(layer, x=X, memory=MEMORY, states=None, **kwargs):
    """The outputs and alignments of Keras's `RNN` around the cell of a layer."""
    rnn = layers.RNN(layer.cell, return_sequences=layer.return_sequences)
    start = layer.cell.initial_state(memory, states, mask=MEMORY_MASK)
    outputs = rnn(x, initial_state=start, mask=ops.convert_to_tensor(MASK), **kwargs)
    return layer.cell.split_outputs(outputs) if layer.cell.return_attention_scores else (outputs,)


def each(returned):
    return returned if isinstance(returned, tuple) else (returned,)


@pytest.mark.parametrize("name, sequences", [*((name, True) for name in CELLS), ("scores", False)])
def test_it_is_the_rnn_of_its_cell(name, sequences):
    layer = made(name, return_sequences=sequences)
    found = each(layer(X, MEMORY, mask=MASK, memory_mask=MEMORY_MASK))
    expected = by_rnn(layer)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(numpy(one), numpy(other), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_backwards_it_reads_the_last_step_first(unroll, zeros):
    """With its mask, which outputs carry in their own order."""
    options = {"unroll": unroll, "zero_output_for_mask": zeros}
    forth, back = made("luong", **options), made("luong", go_backwards=True, **options)
    found = back(X, MEMORY, mask=MASK, memory_mask=MEMORY_MASK)
    x, mask = X[:, ::-1].copy(), MASK[:, ::-1].copy()
    expected = forth(x, MEMORY, mask=mask, memory_mask=MEMORY_MASK)
    np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(numpy(found._keras_mask), mask)
    np.testing.assert_array_equal(numpy(back.compute_mask(X, ops.convert_to_tensor(MASK))), mask)


def test_keras_s_private_hook_is_not_needed(monkeypatch):
    layer = made("heads, a window, a stack")
    with_hook = each(layer(X, MEMORY, mask=MASK, memory_mask=MEMORY_MASK))
    for hook in ("_maybe_config_dropout_masks", "_maybe_reset_dropout_masks"):
        monkeypatch.setattr(layers.RNN, hook, lambda *_: None)
    without = each(layer(X, MEMORY, mask=MASK, memory_mask=MEMORY_MASK))
    for one, other in zip(with_hook, without, strict=True):
        np.testing.assert_array_equal(numpy(one), numpy(other))


def test_dropout_without_the_hook_is_one_draw_for_a_sequence(monkeypatch):
    for hook in ("_maybe_config_dropout_masks", "_maybe_reset_dropout_masks"):
        monkeypatch.setattr(layers.RNN, hook, lambda *_: None)
    cell = ka.AttentionCell(
        layers.GRUCell(H, dropout=0.5), ka.Attention(dropout=0.5), output_context=True
    )
    # Without positions, and each step alike: what differs between steps is drawn for each.
    memory = np.ones((B, S, H), "float32")
    layer = ka.AttentionRNN(cell, return_sequences=True)
    found = numpy(layer(np.zeros((B, T, D), "float32"), memory, training=True))[..., :H]
    assert np.abs(found - found[:, :1]).max() < 1e-6
    assert len(np.unique(found.round(4))) > 1
    again = numpy(layer(np.zeros((B, T, D), "float32"), memory, training=True))[..., :H]
    assert np.abs(found - again).max() > 0.1


def test_steps_are_counted_beyond_what_bfloat16_can_count():
    first, length = 299, 303
    cell = ka.AttentionCell(
        layers.SimpleRNNCell(8, recurrent_initializer="zeros", dtype="bfloat16"),
        ka.Attention(pattern=ka.patterns.SlidingWindow(0, 0), dtype="bfloat16"),
        output_context=True,
        dtype="bfloat16",
    )
    layer = ka.AttentionRNN(cell, return_sequences=True, return_state=True, dtype="bfloat16")
    memory = np.random.default_rng(0).integers(0, 2, (1, length, 8)).astype("float32")
    x = np.zeros((1, length - first, 2), "float32")
    # The last state is the number of steps.
    *states, count = keras.tree.flatten(layer(x[:, :1], memory)[1:])
    output, *_ = layer(x, memory, initial_state=[*states, count + (first - 1)])
    np.testing.assert_array_equal(numpy(output)[..., :8], memory[:, first:])


@pytest.mark.parametrize("recurrent", ["AttentionRNN", "RNN"])
def test_an_error_in_a_step_leaves_no_memory_behind(recurrent):
    class Failing(layers.GRUCell):
        failing = True

        def call(self, inputs, states, training=False):
            if self.failing:
                raise RuntimeError("a step failed")
            return super().call(inputs, states, training=training)

    inner = Failing(H)
    cell = ka.AttentionCell(inner, "general")
    if recurrent == "RNN":
        rnn = layers.RNN(cell)

        def layer(x, memory):
            return rnn(x, initial_state=cell.initial_state(memory))

    else:
        layer = ka.AttentionRNN(cell)
    with pytest.raises(RuntimeError, match="a step failed"):
        layer(X, MEMORY)
    inner.failing = False
    found = numpy(layer(X, MEMORY[:, :2]))
    np.testing.assert_array_equal(found, numpy(layer(X, MEMORY[:, :2])))
    with pytest.raises(ValueError, match="attends to a memory"):
        layers.RNN(cell)(X, initial_state=[[STATE, STATE[:, :1]]])


ATTENTIONS = {
    "dot": lambda: ka.Attention(2, 4),
    "grouped": lambda: ka.MultiHeadAttention(4, 4, num_key_value_heads=2, position="rotary"),
    "Shaw": lambda: ka.Attention(2, 4, position=ka.positions.Shaw(2)),
    "biased": lambda: ka.Attention(2, 4, position="relative_bias", use_sink=True),
    "additive": lambda: ka.Attention(2, 4, score="additive"),
}


@pytest.mark.ci
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="its loops know no batch")
@pytest.mark.parametrize("name", ATTENTIONS)
def test_xla_compiles_its_gradient_where_the_batch_is_unknown(name):
    """A step changes the weights as it does without XLA; of every other, lengths are unknown."""
    lengths = (S, T) if list(ATTENTIONS).index(name) % 2 else (None, None)
    source, x = keras.Input((lengths[0], M)), keras.Input((lengths[1], D))
    rnn = ka.AttentionRNN(
        ka.AttentionCell(layers.GRUCell(H), ATTENTIONS[name]()), return_sequences=True
    )
    model = keras.Model([source, x], rnn(x, source))
    start, found = [wide(weight) for weight in model.weights], []
    for jit in (True, False):
        for weight, value in zip(model.weights, start, strict=True):
            weight.assign(value)
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit)
        # Without `batch_size`, TensorFlow's graph is one of any batch.
        model.fit([MEMORY, X], random(B, T, H, seed=5), verbose=0)
        found.append([wide(weight) for weight in model.weights])
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("alignment", [None, "monotonic", "mocha"])
def test_inference_draws_nothing(alignment):
    attention = ka.Attention(score="additive", dropout=0.5, seed=1)
    cell = ka.AttentionCell(layers.GRUCell(H, dropout=0.5, seed=2), attention, alignment=alignment)
    layer = ka.AttentionRNN(cell)
    expected = numpy(layer(X, MEMORY))
    before = [numpy(variable) for variable in layer.variables]
    np.testing.assert_array_equal(numpy(layer(X, MEMORY)), expected)
    for variable, value in zip(layer.variables, before, strict=True):
        np.testing.assert_array_equal(numpy(variable), value)
    assert np.abs(numpy(layer(X, MEMORY, training=True)) - expected).max() > 1e-3
    after = [numpy(variable) for variable in layer.variables]
    assert not all(map(np.array_equal, after, before))
