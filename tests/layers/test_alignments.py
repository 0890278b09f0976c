"""Alignments of `AttentionCell`: their recurrences in float64, masks, stepping, saving."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import (
    Attention,
    AttentionCell,
    AttentionRNN,
    alignments,
    patterns,
    regularizers,
    scores,
)
from keras_attention.alignments import monotonic
from tests.arrays import close, numpy, random, wide
from tests.definition import softmax
from tests.gradients import gradients
from tests.layers.small_cells import MASK, MEMORY, STATE, B, H, S, T, X, gru, weights_drawn
from tests.problems import on_tensorflow

layers, ops = keras.layers, keras.ops


def made(alignment, mode="bahdanau", score=None, **options):
    """A layer with an alignment, and drawn weights."""
    attention = Attention(score=score or scores.Additive(5), **options)
    cell = AttentionCell(
        layers.GRUCell(H),
        attention,
        mode=mode,
        output_context=mode == "bahdanau",
        return_attention_scores=True,
        alignment=alignment,
    )
    rnn = AttentionRNN(cell, return_sequences=True)
    rnn.build(X.shape, MEMORY.shape)
    weights_drawn(rnn)
    return rnn


def hidden_units(score, query, memory):
    """W q + W' k + b for each position of one row."""
    named = {w.name: wide(w)[0] for w in score.weights}
    return query @ named["query_kernel"] + memory @ named["key_kernel"] + named["bias"], named["v"]


def location_sensitive(layer, query, memory, states, units, v):
    """One step of one row: weights, and the weights of all steps before with this one."""
    history = {"previous": states[-1:], "cumulative": [sum(states)]}
    history["both"] = history["previous"] + history["cumulative"]
    filters, kernel = wide(layer.convolution), wide(layer.kernel)[0]
    channels = np.stack(history[layer.history], -1)
    left = (len(filters) - 1) // 2
    for s in range(len(memory)):
        for i, taps in enumerate(filters):
            if 0 <= s + i - left < len(memory):
                units[s] += channels[s + i - left] @ taps @ kernel
    return softmax(np.tanh(units) @ v)


def coverage(layer, query, memory, states, units, v):
    return softmax(np.tanh(units + np.outer(sum(states), wide(layer.kernel)[0])) @ v)


def by_the_papers(rnn, step, memory, mask):
    """Outputs [c_t; h_t] and weights of a Bahdanau decoder of GRUs, by loops over real tokens."""
    cell, outputs = rnn.cell, np.zeros((B, T, MEMORY.shape[-1] + H))
    alignment = np.zeros((B, T, S))
    for b in range(B):
        real, h = memory[b, mask[b]].astype("float64"), STATE[b : b + 1].astype("float64")
        states = [np.zeros(len(real))]
        for t in range(T):
            units, v = hidden_units(cell.attention.score, h[0], real)
            weights = step(cell.alignment, h[0], real, states, units, v)
            states.append(weights)
            context = weights @ real
            h, _ = gru(cell.cell, np.concatenate([X[b : b + 1, t], context[None]], -1), [h])
            outputs[b, t], alignment[b, t, mask[b]] = np.concatenate([context, h[0]]), weights
    return outputs, alignment


WAYS = {
    "previous": (lambda: alignments.LocationSensitive(3, 3), location_sensitive),
    "cumulative": (
        lambda: alignments.LocationSensitive(3, 4, history="cumulative"),
        location_sensitive,
    ),
    "both": (lambda: alignments.LocationSensitive(2, 3, history="both"), location_sensitive),
    "coverage": (alignments.Coverage, coverage),
}
NAMES = list(alignments.BUILTIN)


@pytest.mark.parametrize("way", WAYS)
def test_is_the_recurrence_of_its_paper(way):
    make, step = WAYS[way]
    rnn = made(make())
    for mask in (MASK, MASK[:, ::-1]):
        garbage = np.where(mask[..., None], MEMORY, np.nan).astype("float32")
        found = rnn(X, garbage, initial_state=STATE, memory_mask=mask)
        for one, expected in zip(found, by_the_papers(rnn, step, MEMORY, mask), strict=True):
            close(numpy(one)[:, 0] if one.shape[1] == 1 else numpy(one), expected, 2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_in_keras_layers_and_by_hand_it_is_the_same_loop(name):
    rnn = made(name, mode="luong")
    cell = rnn.cell
    expected, weights = rnn(X, MEMORY, initial_state=STATE, memory_mask=MASK)
    start = cell.initial_state(MEMORY, STATE, MASK)
    outputs = layers.RNN(cell, return_sequences=True)(X, initial_state=start)
    for one, other in zip(cell.split_outputs(outputs), (expected, weights), strict=True):
        np.testing.assert_allclose(numpy(one), numpy(other), rtol=1e-5, atol=1e-5)
    symbols = rnn(*(keras.Input((None, array.shape[-1])) for array in (X, MEMORY)))
    assert symbols[0].shape == (None, None, expected.shape[-1])
    assert symbols[1].shape == (None, 1, None, None)
    states, stepped = cell.start_states(MEMORY, STATE, MASK), []
    assert all(state.shape[0] == B for state in keras.tree.flatten(states))
    for t in range(T):
        output, states = cell(X[:, t], states)
        stepped.append(numpy(output))
    np.testing.assert_allclose(np.stack(stepped, 1), numpy(outputs), rtol=1e-5, atol=1e-5)


# Monotonic attention


def probabilities_of_stopping(stop, before):
    """The recurrence, for one step of one row."""
    weights, reached = np.zeros(len(stop)), 0.0
    for s, p in enumerate(stop):
        reached += before[s]
        weights[s] = p * reached
        reached *= 1 - p
    return weights


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_the_scan_is_the_recurrence(size, scale):
    rng = np.random.default_rng(size)
    logits = scale * rng.normal(size=(2, 1, 3, size))
    mask = rng.random((2, 1, 1, size)) < 0.8
    before = rng.random((2, 1, 3, size))
    before /= before.sum(-1, keepdims=True)
    stop = np.where(mask, 1 / (1 + np.exp(-logits)), 0.0)
    rows = zip(stop.reshape(-1, size), before.reshape(-1, size), strict=True)
    expected = [probabilities_of_stopping(*row) for row in rows]
    given = (x.astype("float32") for x in (logits, before))
    found = monotonic.expected(*map(ops.convert_to_tensor, given), ops.convert_to_tensor(mask))
    np.testing.assert_allclose(numpy(found).reshape(-1, size), expected, rtol=1e-4, atol=1e-6)


def test_inference_stops_at_the_first_key_that_is_not_before_the_last():
    logits = np.array([[1, -1, 2, 3, -1, 4], [1, -1, -1, 3, 1, 4], [-1.0] * 6], "float32")
    before = np.eye(6, dtype="float32")[[1, 3, 0]]
    mask = np.array([[1, 1, 0, 1, 1, 1], [1] * 6, [1] * 6], "bool")
    found = monotonic.hard(*map(ops.convert_to_tensor, (logits, before, mask)))
    expected = np.stack([np.eye(6)[3], np.eye(6)[3], np.zeros(6)])
    np.testing.assert_array_equal(numpy(found), expected)
    # After a step that stopped nowhere, no step stops.
    again = monotonic.hard(ops.convert_to_tensor(-logits), found, ops.convert_to_tensor(mask))
    assert numpy(again)[2].sum() == 0


@pytest.mark.parametrize("size", [1, 2, 4])
def test_chunks_end_where_it_stops(size):
    stops, energies = random(2, 1, 6) ** 2, 3 * random(2, 1, 6, seed=1)
    expected = np.zeros((2, 6))
    for b in range(2):
        for k in range(6):
            chunk = slice(max(0, k - size + 1), k + 1)
            expected[b, chunk] += stops[b, 0, k] * softmax(energies[b, 0, chunk].astype("float64"))
    found = monotonic.chunkwise(*map(ops.convert_to_tensor, (stops, energies)), size)
    np.testing.assert_allclose(numpy(found)[:, 0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["monotonic", "mocha"])
def test_training_has_expectations_and_noise_of_each_step(name):
    noisy, plain = made(name, mode="luong"), made(name, mode="luong")
    noisy.cell.alignment.noise, plain.cell.alignment.noise = 2.0, 0.0
    repeated = np.repeat(X[:, :1], T, axis=1)

    def weights(rnn):
        return numpy(rnn(repeated, MEMORY, initial_state=STATE, training=True)[1])

    np.testing.assert_array_equal(weights(plain), weights(plain))
    assert np.abs(weights(noisy) - weights(noisy)).max() > 1e-3
    found = weights(plain)
    assert (found >= 0).all() and ((found > 0) & (found < 1)).any()
    assert (found.sum(-1) <= 1 + 1e-5).all()

    def loss(x):
        return ops.square(plain(x, MEMORY, initial_state=STATE, training=True)[0])

    (slope,) = gradients(loss, [X])
    assert np.isfinite(slope).all() and np.abs(slope[:, 0]).max() > 0


def test_noise_is_normal():
    uniform = np.random.default_rng(0).random(100_000).astype("float32")
    found = numpy(monotonic.normal(ops.convert_to_tensor(uniform)))
    np.testing.assert_allclose([found.mean(), found.std()], [0, 1], atol=0.01)


# Losses of the weights


@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("name", ["coverage", "guided", "doubly_stochastic"])
def test_a_recurrent_layer_adds_the_loss_of_its_weights(name, return_sequences):
    attention = Attention(score="additive", scores_regularizer=name)
    cell = AttentionCell(layers.GRUCell(H), attention)
    rnn = AttentionRNN(cell, return_sequences=return_sequences)
    kept = np.array([[True] * T, [False, True, True, True], [True, True, False, False]])
    output = rnn(X, MEMORY, mask=kept, memory_mask=MASK)
    (loss,) = rnn.losses
    cell.return_attention_scores = True
    expected, weights = AttentionRNN(cell, return_sequences=True)(
        X, MEMORY, mask=kept, memory_mask=MASK
    )
    expected = expected if return_sequences else expected[:, -1]
    close(numpy(output), numpy(expected))
    weights = numpy(weights) * kept[:, None, :, None]
    mask = kept[:, None, :, None] & MASK[:, None, None]
    expected = regularizers.get(name)(ops.convert_to_tensor(weights), ops.convert_to_tensor(mask))
    np.testing.assert_allclose(numpy(loss), numpy(expected), rtol=1e-5)


def test_the_loss_reads_positions_of_real_steps_backwards_too():
    pattern = ka.patterns.SlidingWindow(1, 1)
    attention = Attention(score="dot", pattern=pattern, scores_regularizer="doubly_stochastic")
    rnn = AttentionRNN(AttentionCell(layers.GRUCell(7), attention), go_backwards=True)
    mask = np.array([[False, True, True, True]] * B)
    rnn(X, MEMORY, mask=mask)
    (loss,) = rnn.losses
    again = AttentionRNN(rnn.cell)
    again(X[:, :0:-1], MEMORY)
    np.testing.assert_allclose(numpy(loss), numpy(again.losses[0]), rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_keys_that_a_pattern_hides_have_no_weight(name):
    chosen = alignments.MoChA(4) if name == "mocha" else name
    rnn = made(chosen, pattern=patterns.SlidingWindow(1, 1))
    hidden = np.abs(np.arange(T)[:, None] - np.arange(S)) > 1
    for training in (False, True):
        weights = numpy(rnn(X, MEMORY, training=training)[1])
        assert weights.max() > 0.01
        np.testing.assert_array_equal(weights[:, :, hidden], 0.0)


def test_a_location_does_not_depend_on_the_format_of_images():
    rnn = made("location_sensitive")
    expected = numpy(rnn(X, MEMORY)[1])
    keras.config.set_image_data_format("channels_first")
    try:
        found = numpy(rnn(X, MEMORY)[1])
    finally:
        keras.config.set_image_data_format("channels_last")
    np.testing.assert_array_equal(found, expected)


@on_tensorflow
@pytest.mark.parametrize("name", [None, *NAMES])
def test_memories_of_a_length_that_a_graph_does_not_know(name):
    import tensorflow as tf

    rnn = made(name, mode="luong")
    sizes = [tf.TensorSpec((None, None, array.shape[-1])) for array in (X, MEMORY)]

    @tf.function(autograph=False, input_signature=sizes)
    def step(*arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            outputs = rnn(*arrays)
        return outputs, tape.gradient(outputs, arrays)

    for length in (S, S - 2):
        given = X, MEMORY[:, :length]
        outputs, slopes = step(*given)
        for found, expected in zip(outputs, rnn(*given), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-5)
        for found, array in zip(slopes, given, strict=True):
            assert found.shape == array.shape and np.isfinite(found).all()
