"""Pointers over a memory, and copying from a source, against their equations in float64."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.sequences import masks
from keras_attention.visualization import collect_attention
from tests.arrays import numpy, wide
from tests.definition import softmax
from tests.gradients import gradients

B, T, S, D, E = 2, 3, 5, 8, 6
RNG = np.random.default_rng(0)
QUERY = RNG.normal(size=(B, T, D)).astype("float32")
MEMORY = RNG.normal(size=(B, S, E)).astype("float32")
KEPT = np.array([[True] * S, [False, True, True, True, False]])
V, EXTRA = 7, 2
LOGITS = RNG.normal(size=(B, T, V)).astype("float32")
WEIGHTS = RNG.dirichlet(np.ones(S), (B, T)).astype("float32")
# The same token twice, tokens that are not in the vocabulary, and one that is never copied.
IDS = np.array([[3, 7, 3, 8, 0], [-1, 6, 8, 8, 1]], "int32")


def test_a_pointer_carries_the_mask_of_its_query():
    layer, real = ka.PointerHead(), np.array([[True] * T, [True, False, False]])
    output = layer(QUERY, MEMORY, query_mask=real)
    np.testing.assert_array_equal(numpy(masks.implicit(output)), real)
    np.testing.assert_allclose(numpy(output)[real], numpy(layer(QUERY, MEMORY))[real], rtol=1e-5)


def test_logits_are_not_collected_as_weights():
    query, memory = keras.Input((T, D)), keras.Input((S, E))
    attended = ka.Attention(2, 4, name="attention")(query, memory)
    model = keras.Model([query, memory], ka.PointerHead(name="pointer")(attended, memory))
    assert list(collect_attention(model, [QUERY, MEMORY])) == ["attention"]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_logits_are_of_float32_in_half_precision(policy):
    full, half = (ka.PointerHead(dtype=dtype) for dtype in ("float32", policy))
    expected = numpy(full(QUERY, MEMORY))
    half(QUERY, MEMORY)
    half.set_weights(full.get_weights())
    found = half(QUERY, MEMORY, memory_mask=KEPT)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    kept = np.broadcast_to(KEPT[:, None], found.shape)
    np.testing.assert_allclose(numpy(found)[kept], expected[kept], atol=0.05)
    layer = ka.PointerGenerator(V, EXTRA, dtype=policy)
    found = layer(QUERY, LOGITS, WEIGHTS, IDS)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    # Logits that float16 does not have, and weights that are 0 there.
    full = ka.PointerGenerator(V, EXTRA)
    given = (QUERY, 1e5 * LOGITS, 1e-8 * WEIGHTS, IDS)
    expected = numpy(full(*given))
    layer.set_weights(full.get_weights())
    np.testing.assert_allclose(numpy(layer(*given)), expected, rtol=1e-2, atol=0.05)


def copying(layer, weights, kept=None):
    """Equation 9, in float64, of weights that sum to one over the tokens that may be copied."""
    dense = layer._dense
    weights = np.where((IDS >= 0)[:, None] if kept is None else kept[:, None], weights, 0.0)
    weights = weights / weights.sum(-1, keepdims=True)
    gate = 1 / (1 + np.exp(-(QUERY @ wide(dense.kernel) + wide(dense.bias))))
    found = np.concatenate([gate * softmax(LOGITS.astype("float64")), np.zeros((B, T, EXTRA))], -1)
    for b, s in np.ndindex(B, S):
        if IDS[b, s] >= 0:
            found[b, :, IDS[b, s]] += (1 - gate[b, :, 0]) * weights[b, :, s]
    return found


def test_copying_is_equation_nine():
    layer = ka.PointerGenerator(V, EXTRA, bias_initializer="ones")
    found = np.exp(numpy(layer(QUERY, LOGITS, WEIGHTS, IDS)))
    np.testing.assert_allclose(found, copying(layer, WEIGHTS), rtol=1e-4, atol=1e-30)
    found = np.exp(numpy(layer(QUERY, LOGITS, WEIGHTS, IDS, source_mask=KEPT)))
    np.testing.assert_allclose(found, copying(layer, WEIGHTS, KEPT), rtol=1e-4, atol=1e-30)
    heads = np.stack([WEIGHTS, 0 * WEIGHTS, 3 * WEIGHTS], 1)
    found = np.exp(numpy(layer(QUERY, LOGITS, heads, IDS)))
    np.testing.assert_allclose(found, copying(layer, WEIGHTS), rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("heads", [False, True])
def test_probabilities_sum_to_one_of_any_weights(heads):
    layer, none = ka.PointerGenerator(V, EXTRA), np.array([[True] * S, [False] * S])
    copied = np.abs(IDS)
    garbage = np.where(KEPT[:, None], WEIGHTS, np.nan)
    for weights, ids, mask in (
        (WEIGHTS, copied, KEPT),
        (garbage, copied, KEPT),
        (7 * WEIGHTS, copied, None),
        (1e-20 * WEIGHTS, IDS, None),
        (0 * WEIGHTS, copied, None),
        (WEIGHTS, copied, none),
    ):
        weights = np.stack([weights, 2 * weights], 1) if heads else weights
        found = np.exp(wide(layer(QUERY, LOGITS, weights, ids, source_mask=mask)))
        np.testing.assert_allclose(found.sum(-1), 1.0, rtol=1e-5)
    # Without tokens to copy, the vocabulary's distribution.
    np.testing.assert_allclose(found[1, :, :V], softmax(wide(LOGITS[1])), rtol=1e-5)


def test_logarithms_are_finite_where_probabilities_are_not():
    layer = ka.PointerGenerator(V, EXTRA)
    huge = np.where(np.arange(V) == 2, 1e4, -1e4).astype("float32") * np.ones((B, T, 1), "float32")
    one = np.eye(S, dtype="float32")[None, :T] * np.ones((B, 1, 1), "float32")
    target = np.array([[8, 5, 0], [8, 7, 1]])
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(x, logits, weights):
        return cross_entropy(target, layer(x, logits, weights, IDS))

    assert np.isfinite(numpy(layer(QUERY, huge, one, IDS))).all()
    for gradient in gradients(loss, [QUERY, huge, one]):
        assert np.isfinite(gradient).all()
    found = layer(masks.carry(keras.ops.convert_to_tensor(QUERY), KEPT[:, :T]), huge, one, IDS)
    assert masks.implicit(found) is not None
