"""`AttentionPooling` and `FeedForwardAttention`: attention by learned queries, or by none."""

import math

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests import definition
from tests.arrays import numpy, random, wide
from tests.gradients import weight_gradients

B, S, D, U = 3, 5, 8, 6
X = random(B, S, D)
KEPT = np.arange(S) < np.array([[S], [2], [0]])
every_mask = pytest.mark.parametrize("masked", [False, True])


@every_mask
@pytest.mark.parametrize(
    "arguments",
    [{}, {"num_queries": 3}, {"num_queries": 3, "num_heads": 2, "key_dim": 4, "value_dim": 3}],
    ids=["one query", "queries", "queries and heads"],
)
def test_pooling_is_attention_by_its_queries(arguments, masked):
    layer = ka.AttentionPooling(**arguments)
    layer.build(X.shape)
    layer.query.assign(2 * random(*layer.query.shape, seed=1))
    queries = np.stack([numpy(layer.query).reshape(-1, D)] * B)
    mask = {"mask": KEPT} if masked else {}
    output, scores = layer(X, return_attention_scores=True, **mask)
    alike = ka.Attention(**{n: x for n, x in arguments.items() if n != "num_queries"})
    alike.build(queries.shape, X.shape)
    alike.set_weights([w for v, w in zip(layer.weights, layer.get_weights(), strict=True)
                       if v is not layer.query])  # fmt: skip
    expected = alike(queries, X, value_mask=KEPT if masked else None, return_attention_scores=True)
    found = output if "num_queries" in arguments else output[:, None]
    np.testing.assert_allclose(numpy(found), numpy(expected[0]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(numpy(scores), numpy(expected[1]), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(numpy(layer(X, **mask)), numpy(output))


def test_a_float_mask_is_refused_by_the_name_of_the_argument():
    with pytest.raises(ValueError, match="`mask` must be boolean"):
        ka.AttentionPooling()(X, mask=np.where(KEPT, 0.0, -1e9).astype("float32"))


# Feed-forward attention of Raffel & Ellis 2015


def by_definition(x, kept, weights, units, activation):
    """Equations 5 to 7, one row at a time; weights are in the order of the layer."""
    output = np.zeros((B, D))
    for row, real, found in zip(x, kept, output, strict=True):
        hidden = row[real] @ weights[0].reshape(D, units or 1) + weights[1].ravel()
        v = np.ones(1) if units is None else weights[2].ravel()
        scores = np.vectorize(activation, otypes=[float])(hidden) @ v
        if real.any():
            found += definition.normalize(list(scores)) @ row[real]
    return output


@every_mask
@pytest.mark.parametrize("units", [None, U])
@pytest.mark.parametrize("activation", ["tanh", "linear"])
def test_feed_forward_attention_is_its_equation(units, activation, masked):
    layer = ka.FeedForwardAttention(units, activation)
    layer.build(X.shape)
    layer.set_weights([random(*w.shape, seed=n) for n, w in enumerate(layer.weights)])
    kept = KEPT if masked else np.ones((B, S), bool)
    function = math.tanh if activation == "tanh" else float
    expected = by_definition(X, kept, list(map(wide, layer.weights)), units, function)
    found = layer(X, mask=KEPT) if masked else layer(X)
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-4, atol=1e-5)


def test_it_owns_no_query_and_each_of_its_weights_learns():
    layer = ka.FeedForwardAttention(U)
    layer.build(X.shape)
    assert sorted(w.name for w in layer.weights) == ["bias", "kernel", "v"]
    found, _ = weight_gradients(layer, lambda: keras.ops.square(layer(X)))
    assert all(np.abs(gradient).max() > 0 for gradient in found)
