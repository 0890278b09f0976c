"""Alignments of `AttentionCell`, beside their recurrences: monotonic ones, losses, hidden keys."""

import keras
import numpy as np
import pytest

from keras_attention import (
    Attention,
    AttentionCell,
    AttentionRNN,
    alignments,
    patterns,
    regularizers,
)
from keras_attention.alignments import monotonic
from tests.arrays import close, numpy, random
from tests.definition import softmax
from tests.gradients import gradients
from tests.layers.test_attention_cell import MASK, MEMORY, STATE, B, H, S, T, X, made

ops = keras.ops


def decoder(alignment, **options):
    cell = AttentionCell(
        keras.layers.GRUCell(H),
        Attention(score="additive", **options),
        mode="luong",
        return_attention_scores=True,
        alignment=alignment,
    )
    return made(cell)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_the_scan_is_the_recurrence(size):
    rng = np.random.default_rng(size)
    logits = np.concatenate([rng.normal(size=(1, 1, 3, size)) * scale for scale in (1.0, 60.0)])
    mask = rng.random((2, 1, 1, size)) < 0.8
    before = rng.random((2, 1, 3, size))
    before /= before.sum(-1, keepdims=True)
    stop, expected, reached = np.where(mask, 1 / (1 + np.exp(-logits)), 0.0), [], 0.0
    for s in range(size):
        reached = reached + before[..., s]
        expected.append(stop[..., s] * reached)
        reached = reached * (1 - stop[..., s])
    given = (x.astype("float32") for x in (logits, before))
    found = monotonic.expected(*map(ops.convert_to_tensor, given), ops.convert_to_tensor(mask))
    np.testing.assert_allclose(numpy(found), np.stack(expected, -1), rtol=1e-4, atol=1e-6)


def test_inference_stops_at_the_first_key_that_is_not_before_the_last():
    logits = np.array([[1, -1, 2, 3, -1, 4], [1, -1, -1, 3, 1, 4], [-1.0] * 6], "float32")
    before = np.eye(6, dtype="float32")[[1, 3, 0]]
    mask = np.array([[1, 1, 0, 1, 1, 1], [1] * 6, [1] * 6], "bool")
    found = monotonic.hard(*map(ops.convert_to_tensor, (logits, before, mask)))
    np.testing.assert_array_equal(numpy(found), [np.eye(6)[3], np.eye(6)[3], np.zeros(6)])
    # After a step that stopped nowhere, no step stops.
    again = monotonic.hard(ops.convert_to_tensor(-logits), found, ops.convert_to_tensor(mask))
    assert numpy(again)[2].sum() == 0


@pytest.mark.parametrize("size", [1, 2, 4])
def test_chunks_end_where_it_stops(size):
    stops, energies = random(2, 1, 6) ** 2, 3 * random(2, 1, 6, seed=1)
    expected = np.zeros((2, 1, 6))
    for b, k in np.ndindex(2, 6):
        chunk = slice(max(0, k - size + 1), k + 1)
        expected[b, 0, chunk] += stops[b, 0, k] * softmax(energies[b, 0, chunk].astype("float64"))
    found = monotonic.chunkwise(*map(ops.convert_to_tensor, (stops, energies)), size)
    close(found, expected)


@pytest.mark.parametrize("name", ["monotonic", "mocha"])
def test_training_has_expectations_and_noise_of_each_step(name):
    rnn, repeated = decoder(name), np.repeat(X[:, :1], T, axis=1)

    def twice(noise):
        rnn.cell.alignment.noise = noise
        given = {"initial_state": STATE, "training": True}
        return [numpy(rnn(repeated, MEMORY, **given)[1]) for _ in range(2)]

    one, other = twice(2.0)
    assert np.abs(one - other).max() > 1e-3
    found, other = twice(0.0)
    np.testing.assert_array_equal(found, other)
    assert (found >= 0).all() and ((found > 0) & (found < 1)).any()
    assert (found.sum(-1) <= 1 + 1e-5).all()
    (slope,) = gradients(lambda x: ops.square(rnn(x, MEMORY, training=True)[0]), [X])
    assert np.isfinite(slope).all() and np.abs(slope[:, 0]).max() > 0


def test_noise_is_normal():
    uniform = np.random.default_rng(0).random(100_000).astype("float32")
    found = numpy(monotonic.normal(ops.convert_to_tensor(uniform)))
    np.testing.assert_allclose([found.mean(), found.std()], [0, 1], atol=0.01)


@pytest.mark.parametrize("name", ["coverage", "guided", "doubly_stochastic"])
def test_a_recurrent_layer_adds_the_loss_of_its_weights(name):
    cell = AttentionCell(
        keras.layers.GRUCell(H), Attention(score="additive", scores_regularizer=name)
    )
    kept = np.array([[True] * T, [False, True, True, True], [True, True, False, False]])
    given = {"mask": kept, "memory_mask": MASK}
    layers = [AttentionRNN(cell, return_sequences=sequences) for sequences in (False, True)]
    last, outputs = (numpy(layer(X, MEMORY, **given)) for layer in layers)
    cell.return_attention_scores = True
    expected, weights = AttentionRNN(cell, return_sequences=True)(X, MEMORY, **given)
    close(outputs, expected)
    close(last, outputs[:, -1])
    mask = kept[:, None, :, None] & MASK[:, None, None]
    pairs = numpy(weights) * kept[:, None, :, None], mask
    expected = regularizers.get(name)(*map(ops.convert_to_tensor, pairs))
    for layer in layers:
        (loss,) = layer.losses
        close(loss, expected)


def test_the_loss_reads_positions_of_real_steps_backwards_too():
    given = {"pattern": patterns.SlidingWindow(1, 1), "scores_regularizer": "doubly_stochastic"}
    cell = AttentionCell(keras.layers.GRUCell(7), Attention(score="dot", **given))
    rnn, again = AttentionRNN(cell, go_backwards=True), AttentionRNN(cell)
    rnn(X, MEMORY, mask=np.array([[False, True, True, True]] * B))
    again(X[:, :0:-1], MEMORY)
    close(rnn.losses[0], again.losses[0])


@pytest.mark.parametrize("name", alignments.BUILTIN)
def test_keys_that_a_pattern_hides_have_no_weight(name):
    chosen = alignments.MoChA(4) if name == "mocha" else name
    rnn = decoder(chosen, pattern=patterns.SlidingWindow(1, 1))
    hidden = np.abs(np.arange(T)[:, None] - np.arange(S)) > 1
    for training in (False, True):
        weights = numpy(rnn(X, MEMORY, training=training)[1])
        assert weights.max() > 0.01
        np.testing.assert_array_equal(weights[:, :, hidden], 0.0)


def test_a_location_does_not_depend_on_the_format_of_images():
    rnn = decoder("location_sensitive")
    expected = numpy(rnn(X, MEMORY)[1])
    keras.config.set_image_data_format("channels_first")
    try:
        found = numpy(rnn(X, MEMORY)[1])
    finally:
        keras.config.set_image_data_format("channels_last")
    np.testing.assert_array_equal(found, expected)
