"""Smoothed cross-entropy against its first definition, a sum over the vocabulary in float64."""

import keras
import numpy as np
import pytest

from keras_attention.losses import SmoothedCrossentropy
from keras_attention.sequences import masks
from tests.arrays import close, numpy
from tests.compiled import compiled
from tests.gradients import gradients

B, T, V = 3, 5, 11
LOGITS = 3 * np.random.default_rng(0).normal(size=(B, T, V)).astype("float32")
TARGETS = np.array([[4, 1, 10, 0, 0], [2, 0, 3, 3, 9], [0, 0, 0, 0, 0]])
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2.0, size=(B, T)).astype("float32")
# Leaves out a token of the first row, and padding of the third.
MASK = np.array([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], bool)


def distributions(logits, targets, smoothing):
    """p and q of each token, in float64."""
    powers = np.exp(logits.astype("float64") - logits.max(-1, keepdims=True))
    size = logits.shape[-1]
    wanted = (1 - smoothing) * np.eye(size)[targets] + smoothing / size
    return powers / powers.sum(-1, keepdims=True), wanted


def token_losses(logits, targets, smoothing):
    """−Σ_k q_k log p_k."""
    p, q = distributions(logits, targets, smoothing)
    return -(q * np.log(p)).sum(-1)


def definition(smoothing=0.1, ignore=0, weights=1.0, mask=True, by="count"):
    """Sum over real tokens, by their number, by their weights, or by nothing."""
    real = (ignore != TARGETS) & mask
    total = (real * weights * token_losses(LOGITS, TARGETS, smoothing)).sum()
    return total / {"count": real.sum(), "weights": (real * weights).sum(), "nothing": 1}[by]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("ignore", [0, 3, -1, None])
def test_the_mean_over_real_tokens_is_the_definition(smoothing, ignore):
    found = compiled(SmoothedCrossentropy(smoothing, ignore), TARGETS, LOGITS)
    np.testing.assert_allclose(numpy(found), definition(smoothing, ignore), rtol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("reduction", "by"),
    [
        ("sum_over_batch_size", "count"),
        ("mean", "count"),
        ("sum", "nothing"),
        ("mean_with_sample_weight", "weights"),
        (None, "nothing"),
    ],
)
def test_masks_weights_and_reductions_count_each_token_once(masked, weighted, reduction, by):
    logits, weights = keras.ops.convert_to_tensor(LOGITS), None
    if masked:
        masks.carry(logits, keras.ops.convert_to_tensor(MASK))
    if weighted:
        weights = keras.ops.convert_to_tensor(WEIGHTS)
    found = numpy(SmoothedCrossentropy(reduction=reduction)(TARGETS, logits, weights))
    real = (TARGETS != 0) & (MASK if masked else True)
    assert reduction is not None or ((found != 0) == real).all()
    given = {"weights": WEIGHTS} if weighted else {}
    expected = definition(**given, mask=MASK if masked else True, by=by)
    np.testing.assert_allclose(found.sum(), expected, rtol=1e-6)
    # Keras multiplies in place on PyTorch.
    assert weights is None or (numpy(weights) == WEIGHTS).all()


def test_a_weight_a_row_is_that_of_its_tokens():
    # As many rows as tokens in a row, where Keras would weigh columns.
    targets, logits = TARGETS[:, :B], LOGITS[:, :B]
    loss = SmoothedCrossentropy()
    rows = WEIGHTS[:, 0]
    expected = loss(targets, logits, np.repeat(rows[:, None], B, axis=1))
    for weights in (rows, rows[:, None]):
        close(loss(targets, logits, keras.ops.convert_to_tensor(weights)), expected, 1e-6)


def test_other_axes_of_targets():
    loss = SmoothedCrossentropy(ignore_class=None)
    expected = numpy(loss(TARGETS, LOGITS))
    flat = numpy(loss(TARGETS.reshape(-1), LOGITS.reshape(-1, V)))
    deep = numpy(loss(TARGETS[:, None], LOGITS[:, None]))
    np.testing.assert_allclose([flat, deep], expected, rtol=1e-6)


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


def test_no_real_token_no_loss():
    loss, targets = SmoothedCrossentropy(), np.zeros((2, 4), "int32")
    assert float(loss(targets, LOGITS[:2, :4])) == 0.0
    np.testing.assert_array_equal(gradients(lambda x: loss(targets, x), [LOGITS[:2, :4]])[0], 0)


GARBAGE = np.resize(np.array([np.nan, np.inf, -np.inf, 3e38], "float32"), (B, T, V))


@pytest.mark.parametrize("ignore", ["carried", "both", 0])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", None])
def test_what_padding_holds_reaches_neither_loss_nor_gradient(reduction, ignore):
    """Neither logits nor targets: of a mask that logits carry, of targets that say it, of both."""
    carried = ignore != 0
    loss = SmoothedCrossentropy(
        0.1, ignore_class=None if ignore == "carried" else 0, reduction=reduction
    )
    real = MASK if ignore == "carried" else TARGETS != 0
    real = real & MASK if carried else real
    dirty = np.where(real[..., None], LOGITS, GARBAGE)
    # Without a mask, targets alone say what is no token.
    strange = np.where(MASK, TARGETS, -100) if carried else TARGETS

    def of(targets, x):
        x = masks.carry(x + 0, keras.ops.convert_to_tensor(MASK)) if carried else x
        return loss(targets, x)

    clean, *others = (
        (numpy(of(y, keras.ops.convert_to_tensor(x))), gradients(lambda x: of(y, x), [x])[0])  # noqa: B023
        for y, x in ((TARGETS, LOGITS), (strange, dirty), (strange, LOGITS))
    )
    for found, gradient in others:
        np.testing.assert_array_equal(found, clean[0])
        np.testing.assert_allclose(gradient, clean[1], rtol=1e-6)
        assert (gradient[~real] == 0).all() and (gradient[real] != 0).all()


def test_a_real_token_with_nan_still_shows():
    dirty = LOGITS.copy()
    dirty[0, 0, 0] = np.nan
    assert np.isnan(float(SmoothedCrossentropy()(TARGETS, keras.ops.convert_to_tensor(dirty))))
    assert np.isnan(gradients(lambda x: SmoothedCrossentropy()(TARGETS, x), [dirty])[0][0, 0]).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("offset", [-1e5, 1e4, 1e5])
def test_large_logits_cost_no_digits(smoothing, offset):
    # Exact in float32 with the offset, too.
    logits = np.array([[1.0, 2.0, 3.0, 4.0]], "float32")
    loss = SmoothedCrossentropy(smoothing, ignore_class=None)
    found = float(loss(np.array([2]), logits + np.float32(offset)))
    assert abs(found - token_losses(logits, [2], smoothing)[0]) < 1e-6


def test_a_target_outside_the_vocabulary_is_loud():
    for target in (-1, V, V + 1000):
        targets = TARGETS.copy()
        targets[1, 2] = target
        assert np.isnan(numpy(SmoothedCrossentropy()(targets, LOGITS))), target


def test_the_gradient_is_the_difference_of_the_distributions():
    found = gradients(lambda x: SmoothedCrossentropy(0.1)(TARGETS, x), [LOGITS])[0]
    p, q = distributions(LOGITS, TARGETS, 0.1)
    real = (TARGETS != 0)[..., None]
    np.testing.assert_allclose(found, real * (p - q) / real.sum(), atol=1e-6)


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
