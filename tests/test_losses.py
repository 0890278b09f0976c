"""Smoothed cross-entropy against its first definition, a sum over the vocabulary in float64."""

import keras
import numpy as np
import pytest

from keras_attention.losses import SmoothedCrossentropy
from keras_attention.sequences import masks
from tests.arrays import numpy
from tests.compiled import compiled
from tests.gradients import gradients

B, T, V = 3, 5, 11
LOGITS = 3 * np.random.default_rng(0).normal(size=(B, T, V)).astype("float32")
TARGETS = np.array([[4, 1, 10, 0, 0], [2, 0, 3, 3, 9], [0, 0, 0, 0, 0]])
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2.0, size=(B, T)).astype("float32")
# Leaves out a token of the first row, and padding of the third.
MASK = np.array([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], bool)


def token_loss(logits, target, smoothing):
    """−Σ_k q_k log p_k, term by term."""
    powers = np.exp(logits.astype("float64") - logits.max())
    logs = np.log(powers / powers.sum())
    total = 0.0
    for k in range(len(logits)):
        wanted = (1 - smoothing) * (k == target) + smoothing / len(logits)
        total -= wanted * logs[k]
    return total


def definition(smoothing=0.1, ignore=0, weights=None, mask=None, by="count"):
    """Sum over real tokens, by their number, by their weights, or by nothing."""
    total, count, weighed = 0.0, 0, 0.0
    for b, t in np.ndindex(B, T):
        if TARGETS[b, t] == ignore or (mask is not None and not mask[b, t]):
            continue
        weight = 1.0 if weights is None else weights[b, t]
        total += weight * token_loss(LOGITS[b, t], TARGETS[b, t], smoothing)
        count, weighed = count + 1, weighed + weight
    return total / {"count": count, "weights": weighed, "nothing": 1}[by]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("ignore", [0, 3, -1, None])
def test_the_mean_over_real_tokens_is_the_definition(smoothing, ignore):
    found = compiled(SmoothedCrossentropy(smoothing, ignore), TARGETS, LOGITS)
    np.testing.assert_allclose(numpy(found), definition(smoothing, ignore), rtol=1e-6)


def test_smoothing_is_the_one_of_keras():
    # The vocabulary of Keras's loss is one-hot, and its mean counts padding too.
    ours = SmoothedCrossentropy(0.2, ignore_class=None)(TARGETS, LOGITS)
    theirs = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2)
    expected = theirs(np.eye(V, dtype="float32")[TARGETS], LOGITS)
    np.testing.assert_allclose(numpy(ours), numpy(expected), rtol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("reduction", "by"),
    [
        ("sum_over_batch_size", "count"),
        ("mean", "count"),
        ("sum", "nothing"),
        ("mean_with_sample_weight", "weights"),
    ],
)
def test_masks_weights_and_reductions_count_each_token_once(masked, weighted, reduction, by):
    logits = keras.ops.convert_to_tensor(LOGITS)
    if masked:
        masks.carry(logits, keras.ops.convert_to_tensor(MASK))
    weights = WEIGHTS if weighted else None
    found = SmoothedCrossentropy(reduction=reduction)(TARGETS, logits, weights)
    expected = definition(weights=weights, mask=MASK if masked else None, by=by)
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-6)


def test_a_weight_a_row_is_that_of_its_tokens():
    # As many rows as tokens in a row, where Keras would weigh columns.
    targets, logits = TARGETS[:, :B], LOGITS[:, :B]
    loss = SmoothedCrossentropy()
    rows = WEIGHTS[:, 0]
    expected = loss(targets, logits, np.repeat(rows[:, None], B, axis=1))
    for weights in (rows, rows[:, None]):
        np.testing.assert_allclose(
            numpy(loss(targets, logits, keras.ops.convert_to_tensor(weights))),
            numpy(expected),
            rtol=1e-6,
        )


def test_weights_stay_as_they_are():
    weights = keras.ops.convert_to_tensor(WEIGHTS)
    SmoothedCrossentropy()(TARGETS, LOGITS, weights)
    np.testing.assert_array_equal(numpy(weights), WEIGHTS)


def test_without_reduction_every_token_has_its_loss():
    found = numpy(SmoothedCrossentropy(0.3, reduction=None)(TARGETS, LOGITS))
    for b, t in np.ndindex(B, T):
        expected = token_loss(LOGITS[b, t], TARGETS[b, t], 0.3) if TARGETS[b, t] else 0.0
        np.testing.assert_allclose(found[b, t], expected, rtol=1e-5)


def test_other_axes_of_targets():
    loss = SmoothedCrossentropy(ignore_class=None)
    expected = numpy(loss(TARGETS, LOGITS))
    flat = numpy(loss(TARGETS.reshape(-1), LOGITS.reshape(-1, V)))
    deep = numpy(loss(TARGETS[:, None], LOGITS[:, None]))
    np.testing.assert_allclose([flat, deep], expected, rtol=1e-6)


def test_no_real_token_no_loss():
    loss = SmoothedCrossentropy()
    assert float(loss(np.zeros((2, 4), "int32"), LOGITS[:2, :4])) == 0.0
    found = gradients(lambda x: loss(np.zeros((2, 4), "int32"), x), [LOGITS[:2, :4]])
    np.testing.assert_array_equal(found[0], 0.0)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0,)])
def test_no_token_at_all_no_loss(shape, reduction):
    loss = SmoothedCrossentropy(reduction=reduction)
    targets = np.zeros(shape, "int32")
    logits = np.zeros((*shape, V), "float32")
    for weights in (None, np.ones(shape, "float32")):
        found = loss(targets, keras.ops.convert_to_tensor(logits), weights)
        assert found.shape == () and float(found) == 0.0
    assert SmoothedCrossentropy(reduction=None)(targets, logits).shape == shape


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("carried", [False, True])
def test_logits_of_padding_reach_neither_loss_nor_gradient(carried, garbage):
    real = MASK if carried else TARGETS != 0

    def loss(x):
        x = masks.carry(x + 0, keras.ops.convert_to_tensor(MASK)) if carried else x
        return SmoothedCrossentropy(0.1, ignore_class=None if carried else 0)(TARGETS, x)

    dirty = np.where(real[..., None], LOGITS, np.float32(garbage))
    values = [float(loss(keras.ops.convert_to_tensor(x))) for x in (dirty, LOGITS)]
    assert values[0] == values[1]
    found, expected = (gradients(loss, [x])[0] for x in (dirty, LOGITS))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (found[~real] == 0).all() and (found[real] != 0).all()


def test_a_real_token_with_nan_still_shows():
    dirty = LOGITS.copy()
    dirty[0, 0, 0] = np.nan
    assert np.isnan(float(SmoothedCrossentropy()(TARGETS, keras.ops.convert_to_tensor(dirty))))
    assert np.isnan(gradients(lambda x: SmoothedCrossentropy()(TARGETS, x), [dirty])[0][0, 0]).all()


@pytest.mark.parametrize("ignore", [None, 0])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", None])
def test_what_stands_at_masked_positions_does_not_matter(ignore, reduction):
    loss = SmoothedCrossentropy(ignore_class=ignore, reduction=reduction)

    def of(targets, x):
        logits = masks.carry(
            keras.ops.convert_to_tensor(x) * 1.0, keras.ops.convert_to_tensor(MASK)
        )
        return loss(targets, logits)

    strange = np.where(MASK, TARGETS, -100)
    np.testing.assert_array_equal(numpy(of(strange, LOGITS)), numpy(of(TARGETS, LOGITS)))
    for targets in (TARGETS, strange):
        found = gradients(lambda x: keras.ops.sum(of(targets, x)), [LOGITS])[0]  # noqa: B023
        assert np.isfinite(found).all() and (found[~MASK] == 0).all() and found[MASK].any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("offset", [-1e5, 1e4, 1e5])
def test_large_logits_cost_no_digits(smoothing, offset):
    # Exact in float32 with the offset, too.
    logits = np.array([[1.0, 2.0, 3.0, 4.0]], "float32")
    loss = SmoothedCrossentropy(smoothing, ignore_class=None)
    found = float(loss(np.array([2]), logits + np.float32(offset)))
    assert abs(found - token_loss(logits[0], 2, smoothing)) < 1e-6


def test_a_target_outside_the_vocabulary_is_loud():
    for target in (-1, V, V + 1000):
        targets = TARGETS.copy()
        targets[1, 2] = target
        assert np.isnan(numpy(SmoothedCrossentropy()(targets, LOGITS))), target


def test_the_gradient_is_the_difference_of_the_distributions():
    smoothing = 0.1
    found = gradients(lambda x: SmoothedCrossentropy(smoothing)(TARGETS, x), [LOGITS])[0]
    powers = np.exp(LOGITS.astype("float64"))
    wanted = (1 - smoothing) * np.eye(V)[TARGETS] + smoothing / V
    real = (TARGETS != 0)[..., None]
    expected = real * (powers / powers.sum(-1, keepdims=True) - wanted) / real.sum()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_it_computes_in_float32():
    logits = keras.ops.cast(LOGITS + 300.0, "bfloat16")
    # A vocabulary that bfloat16 cannot count.
    targets = np.array([[257]])
    wide = keras.ops.cast(np.random.default_rng(2).normal(size=(1, 1, 300)), "bfloat16")
    for y, z in ((TARGETS, logits), (targets, wide)):
        found = SmoothedCrossentropy()(y, z)
        assert keras.backend.standardize_dtype(found.dtype) == "float32"
        exact = SmoothedCrossentropy()(y, keras.ops.cast(z, "float32"))
        np.testing.assert_array_equal(numpy(found), numpy(exact))
