"""`Disentangled`: DeBERTa's scores of contents and distances, and tables that layers project."""

import math

import keras
import numpy as np
import pytest

from keras_attention import MultiHeadAttention, SelfAttention, ops, positions
from keras_attention.positions import Disentangled
from tests import definition
from tests.arrays import numpy, random
from tests.compiled import compiled

B, T, S, H, G, K, D = 2, 5, 7, 4, 2, 3, 6
RULE = (8, 6)


def row(distance, num_buckets, max_distance):
    """The row of a distance i − j, by the equations."""
    k = num_buckets // 2
    e, far = k // 2, abs(distance)
    if max_distance is not None and far > e:
        steps = (e - 1) * math.log(far / e) / math.log((max_distance - 1) / e)
        # Whole but for rounding where the distance is that of the last bucket.
        steps = round(steps) if abs(steps - round(steps)) < 1e-9 else math.ceil(steps)
        distance = int(math.copysign(e + steps, distance))
    return min(max(k + distance, 0), 2 * k - 1)


def biased(query, key, of_queries, of_keys, at, key_at, rule=RULE):
    """The last two terms (B, H, T, S) of heads and rows (N, H, K), one by one."""
    batch, queries, heads, size = query.shape
    found = np.zeros((batch, heads, queries, key.shape[1]))
    at, key_at = (np.broadcast_to(x, (batch, np.shape(x)[-1])) for x in (at, key_at))
    for b, h, t, s in np.ndindex(found.shape):
        n = row(int(at[b, t]) - int(key_at[b, s]), *rule)
        terms = query[b, t, h] @ of_keys[n, h] + key[b, s, h] @ of_queries[n, h]
        found[b, h, t, s] = terms / math.sqrt(3 * size)
    return found


def weights_of(query, key, of_queries, of_keys, at, key_at, mask=True, rule=RULE):
    """The weights (B, H, T, S) of attention, by `definition`."""
    bias = biased(query, key, of_queries, of_keys, at, key_at, rule)
    return definition.attend(query / math.sqrt(3), key, key, bias=bias, mask=mask)[1]


def projected(x, kernel, bias=0.0):
    """Heads of `x` (…, D) by a kernel (D, H, K)."""
    return np.einsum("...d,dhk->...hk", x, kernel) + bias


def randomized(layer, *shapes):
    """The layer, built, with random weights."""
    layer.build(*shapes)
    for seed, weight in enumerate(layer.trainable_weights):
        weight.assign(random(*weight.shape, seed=seed))
    return layer


# Rows


@pytest.mark.parametrize("rule", [RULE, (16, 20), (16, None), (4, 9), (512, 512), (128, 1000)])
def test_rows_are_those_of_the_equations(rule):
    found = Disentangled(*rule).rows()
    last = len(found) // 2
    # Keys come after the query where i − j is negative.
    expected = [row(-d, *rule) for d in range(-last, last + 1)]
    np.testing.assert_array_equal(found, expected)
    assert {row(-d, *rule) for d in (-10 * last, 10 * last)} == {found[0], found[-1]}
    assert (found[0], found[-1]) == ((rule[0] - 1, 0) if rule[0] > 4 else (3, 1))


# In layers

AT = np.array([[3, 1, 0, 8, 2], [2, 3, 4, 5, 6]])
CALLS = {
    "cross": {},
    "causal": {"use_causal_mask": True},
    "positions": {"positions": (AT, np.arange(S) + 2)},
    "positions of one row": {"positions": (np.arange(T) + 9, None)},
    "padding": {"value_mask": np.arange(S) < np.array([[S], [2]])},
}
MASKS = {
    "causal": np.tri(T, S, dtype=bool),
    "padding": CALLS["padding"]["value_mask"][:, None, None],
}


@pytest.mark.parametrize("groups", [None, G])
@pytest.mark.parametrize("name", CALLS)
def test_weights_are_those_of_the_equation(name, groups):
    layer = MultiHeadAttention(H, K, position=Disentangled(*RULE), num_key_value_heads=groups)
    query, value = random(B, T, D, seed=1), random(B, S, D, seed=2)
    randomized(layer, query.shape, value.shape)
    given = CALLS[name]

    def call(query, value):
        return layer(query, value, return_attention_scores=True, **given)[1]

    found = numpy(compiled(call, query, value))
    (q, q_bias), (k, k_bias) = (
        [numpy(w).astype("float64") for w in dense.weights]
        for dense in (layer.query_dense, layer.key_dense)
    )
    k, k_bias = (np.repeat(x, H // x.shape[-2], axis=-2) for x in (k, k_bias))
    table = numpy(layer.position.embeddings)
    at, key_at = given.get("positions", (None, None))
    expected = weights_of(
        projected(query, q, q_bias),
        projected(value, k, k_bias),
        projected(table, q, q_bias),
        projected(table, k, k_bias),
        np.arange(T) if at is None else at,
        np.arange(S) if key_at is None else key_at,
        MASKS.get(name, True),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@keras.saving.register_keras_serializable(package="test_disentangled")
class Projected(positions.Position):
    """A custom table (Dai et al. 2019, without their biases of keys): q_i · W_k r[i − j]."""

    def build_inputs(self, query_shape, key_shape):
        self.features = key_shape[-1]

    def build(self, query_shape, key_shape):
        self.table = self.add_weight(name="table", shape=(2 * T, self.features))

    def projected_table(self):
        return self.table

    def query_bias(self, query, key, i, j, of_queries, of_keys):
        terms = keras.ops.einsum("bthk,nhk->bhtn", query, of_keys)
        at = keras.ops.broadcast_to(i - j + T, (*keras.ops.shape(terms)[:3], key.shape[1]))
        return keras.ops.take_along_axis(terms, at, axis=-1)


def test_a_custom_position_may_have_a_table_that_layers_project():
    layer, x = SelfAttention(H, K, position=Projected()), random(B, T, D)
    randomized(layer, x.shape)
    _, found = layer(x, return_attention_scores=True)
    table = numpy(layer.position.table)
    q, k = (numpy(d.kernel).reshape(D, H, K) for d in (layer.query_dense, layer.key_dense))
    query, key, rows = projected(x, q), projected(x, k), projected(table, k)
    bias = np.zeros((B, H, T, T))
    for b, h, t, s in np.ndindex(bias.shape):
        bias[b, h, t, s] = query[b, t, h] @ rows[t - s + T, h]
    _, expected = definition.attend(query, key, key, bias=bias)
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-4, atol=1e-6)


# Models


def test_a_function_has_no_projections():
    layer, x = SelfAttention(H, K, position=Disentangled(*RULE)), random(B, T, D)
    layer.build(x.shape)
    heads = random(B, T, H, K)
    with pytest.raises(ValueError, match="use an attention layer"):
        ops.attend(heads, heads, heads, position=layer.position)
    # One that is not built would not even know the size of its table.
    with pytest.raises(ValueError, match="use an attention layer"):
        ops.attend(heads, heads, heads, position="disentangled")


@pytest.mark.parametrize("position", [lambda: Disentangled(*RULE), lambda: positions.Shaw(2)])
def test_layers_that_are_not_built_yet_have_a_config(position, tmp_path):
    x = random(B, T, D)
    layer = SelfAttention(2, 4, position=position())
    assert SelfAttention.from_config(layer.get_config())(x).shape == (B, T, 8)
    assert not positions.get(keras.saving.serialize_keras_object(layer.position)).built
    model = keras.Sequential([layer])
    with pytest.warns(UserWarning, match="not yet been built"):
        model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras")(x).shape == (B, T, 8)


@pytest.mark.ci
@pytest.mark.parametrize("position", [lambda: Disentangled(*RULE), lambda: positions.Shaw(2)])
def test_lengths_unknown_in_a_graph_may_be_zero(position):
    layer = MultiHeadAttention(2, 4, position=position())
    for known in (None, 1):
        query, value = keras.Input((known, D)), keras.Input((None, D))
        model = keras.Model([query, value], layer(query, value, return_attention_scores=True))
        for queries, keys in ((1, 0), (1, S), (T, S), (0, S), (0, 0), (T, 0)):
            if known in (None, queries):
                given = [random(B, queries, D), random(B, keys, D)]
                found, weights = model.predict(given, verbose=0)
                assert found.shape == (B, queries, D) and np.isfinite(found).all()
                assert weights.shape == (B, 2, queries, keys)
        model = keras.Model([query, value], layer(query, value))
        assert np.isfinite(model.predict([random(B, 1, D), random(B, 0, D)], verbose=0)).all()
