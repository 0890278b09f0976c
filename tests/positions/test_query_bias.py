"""A position that sees the query, defined outside of the package: CoPE's."""

import keras
import numpy as np
import pytest

from keras_attention import MultiHeadAttention, positions
from tests import definition
from tests.arrays import numpy, random

ops = keras.ops
B, T, H, G, K, D = 2, 6, 4, 2, 4, 8
FARTHEST = 3


def in_full(key, query):
    """Keys with as many heads as queries."""
    return ops.repeat(key, query.shape[2] // key.shape[2], axis=2)


@keras.saving.register_keras_serializable(package="test_query_bias")
class Contextual(positions.Position):
    """CoPE (Golovneva et al. 2024): a position counts the tokens whose gate is open.

    p_ij = Σ_{j ≤ s ≤ i} σ(q_iᵀ k_s), and the score has q_iᵀ e[p_ij], interpolated between rows.
    """

    def build(self, query_shape, key_shape):
        self.rows = self.add_weight(
            name="rows", shape=(FARTHEST + 1, query_shape[-1]), initializer="random_normal"
        )

    def query_bias(self, query, key, i, j):
        gates = ops.sigmoid(ops.einsum("bthk,bshk->bhts", query, in_full(key, query)))
        gates = ops.where(j <= i, gates, 0.0)
        # From the last key back, whatever order a cache stores them in.
        after = ops.cast(ops.swapaxes(j, -1, -2) >= j, gates.dtype)
        counts = ops.minimum(ops.matmul(gates, after), float(FARTHEST))
        terms = ops.einsum("bthk,nk->bhtn", query, self.rows)
        below = ops.floor(counts)
        share = counts - below
        low, high = (
            ops.take_along_axis(terms, ops.cast(index, "int32"), axis=-1)
            for index in (below, ops.ceil(counts))
        )
        return (1 - share) * low + share * high


def contextual(position, query, key, at):
    """The bias of `Contextual`, pair by pair."""
    rows = numpy(position.rows)
    bias = np.zeros((*query.shape[:1], query.shape[2], query.shape[1], key.shape[1]))
    for b, h, t, s in np.ndindex(bias.shape):
        q = query[b, t, h]
        seen = [key[b, n, h] for n in range(s, at + t + 1)]
        count = min(sum(1 / (1 + np.exp(-q @ k)) for k in seen), FARTHEST)
        row, share = int(count), count - int(count)
        bias[b, h, t, s] = q @ rows[row] * (1 - share)
        if share:
            bias[b, h, t, s] += q @ rows[row + 1] * share
    return bias


def made(**arguments):
    layer = MultiHeadAttention(H, K, position=Contextual(), use_bias=False, **arguments)
    layer.build((B, T, D), (B, T, D))
    layer.set_weights([random(*w.shape, seed=n) / 2 for n, w in enumerate(layer.weights)])
    return layer


@pytest.mark.parametrize("groups", [None, G])
def test_the_bias_is_its_equation(groups):
    layer, x = made(num_key_value_heads=groups), random(B, T, D)
    _, found = layer(x, use_causal_mask=True, return_attention_scores=True)
    query, key, value = (
        numpy(h).astype("float64") for h in layer.split_all(*map(ops.array, [x] * 3))
    )
    key, value = (np.repeat(a, H // a.shape[2], axis=2) for a in (key, value))
    causal = np.tril(np.ones((T, T), bool))
    bias = contextual(layer.position, query, key, 0)
    _, expected = definition.attend(query, key, value, bias=bias, mask=causal)
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-4, atol=1e-5)


def test_a_position_may_refuse_to_decode():
    class Whole(Contextual):
        no_decoding_reason = "it counts all keys"

    layer = MultiHeadAttention(H, K, position=Whole())
    layer.build((B, T, D), (B, T, D))
    with pytest.raises(ValueError, match="cannot have a cache: it counts all keys"):
        layer.make_cache(B, T)


def test_it_is_saved(tmp_path):
    layer, x = made(), random(B, T, D)
    inputs = keras.Input((T, D))
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-6)
