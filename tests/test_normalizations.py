"""Normalizations: the built-in ones against their equations, and a user's own in every layer."""

import keras
import numpy as np
import pytest

from keras_attention import normalizations, ops
from tests import definition
from tests.arrays import numpy, random

B, T, S, H, K, D = 3, 5, 7, 2, 4, 8


QUERY, KEY, VALUE = random(B, T, H, K, seed=1), random(B, S, H, K, seed=2), random(B, S, H, K)
# A padded key in one sequence, and a query that has none.
MASK = (np.arange(S) != np.array([[2], [S], [S]]))[:, None, None]
MASK = MASK & (np.arange(T) != 1)[:, None]


# Those that need no argument, of which one has weights, which a layer builds.
NAMES = {name: name for name in normalizations.BUILTIN if name != "top_k"}


@pytest.mark.parametrize("given", [*NAMES, normalizations.Entmax(2)])
def test_normalization_is_its_equation(given):
    scores = 3 * random(B, H, T, S)
    normalization = normalizations.get(given)
    if not normalization.built:
        normalization.build(QUERY.shape, KEY.shape)
    weights = numpy(normalization.normalize(keras.ops.convert_to_tensor(scores), None))
    for index in np.ndindex(B, H, T):
        name = NAMES.get(given, "sparsemax")
        expected = definition.normalize(list(scores[index].astype("float64")), name)
        np.testing.assert_allclose(weights[index], expected, rtol=1e-5, atol=1e-6)


# Normalizations of a user's own


@keras.saving.register_keras_serializable(package="test_normalizations")
class Power(normalizations.Normalization):
    """Softmax with its own base, by itself, over the keys that the mask leaves."""

    def __init__(self, base=2.0):
        self.base = base

    def normalize(self, scores, mask):
        powers = keras.ops.exp(
            np.log(self.base) * (scores - keras.ops.max(scores, axis=-1, keepdims=True))
        )
        return powers / keras.ops.sum(powers, axis=-1, keepdims=True)


@keras.saving.register_keras_serializable(package="test_normalizations")
class Uniform(normalizations.Normalization):
    """Attends to all alike, and does not look at the mask."""

    def normalize(self, scores, mask):
        return keras.ops.ones_like(scores)


def test_a_normalization_of_ones_own_is_what_it_says():
    _, weights = ops.attend(
        QUERY, KEY, VALUE, mask=MASK, normalization=Power(2.0), return_attention_scores=True
    )
    # Powers of two are a softmax of scores times log 2.
    _, expected = definition.attend(QUERY, KEY, VALUE, mask=MASK, scale=np.log(2) / np.sqrt(K))
    np.testing.assert_allclose(numpy(weights), expected, rtol=1e-5, atol=1e-7)


def test_masked_keys_get_nothing_whatever_a_normalization_gives_them():
    output, weights = ops.attend(
        QUERY, KEY, VALUE, mask=MASK, normalization=Uniform(), return_attention_scores=True
    )
    np.testing.assert_array_equal(numpy(weights), np.broadcast_to(MASK, weights.shape))
    expected = np.einsum("bhts,bshv->bthv", np.broadcast_to(MASK, weights.shape), VALUE)
    np.testing.assert_allclose(numpy(output), expected, rtol=1e-5, atol=1e-6)


def test_the_mask_is_given_to_the_normalization():
    seen = []

    class Watching(normalizations.Normalization):
        def normalize(self, scores, mask):
            seen.append(mask)
            return keras.ops.softmax(scores)

    ops.attend(QUERY, KEY, VALUE, normalization=Watching())
    ops.attend(QUERY, KEY, VALUE, mask=MASK, pattern="causal", normalization=Watching())
    assert seen[0] is None
    causal = np.arange(S)[None] <= np.arange(T)[:, None]
    np.testing.assert_array_equal(numpy(seen[1]), MASK & causal)


def test_a_normalization_of_ones_own_compares_by_value():
    assert Power(2.0) == Power(base=2.0) != Power(3.0)
    assert hash(Power(2.0)) == hash(Power(2.0))
    assert repr(Power(3.0)) == "Power(base=3.0)"
