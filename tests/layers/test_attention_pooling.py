"""`AttentionPooling`: softmax(q · x) x by the layer's own queries, without the padding."""

import numpy as np
import pytest

from keras_attention import AttentionPooling
from tests import definition
from tests.arrays import numpy, random

B, S, D, H, K = 3, 5, 8, 2, 4


X = random(B, S, D)
MASK = np.arange(S) < np.array([[5], [3], [0]])


def made(*args, **kwargs):
    layer = AttentionPooling(*args, query_initializer="zeros", **kwargs)
    layer.build(X.shape)
    layer.query.assign(2 * random(*layer.query.shape, seed=1))
    return layer


def by_definition(layer, x, mask=True):
    """Output (B, queries, heads · values) and scores, by loops."""
    queries = np.stack([numpy(layer.query)] * len(x))
    if layer.key_dim is None:
        heads = queries[:, :, None], x[:, :, None], x[:, :, None]
    else:
        dense = [getattr(layer._attention, f"{name}_dense") for name in ("query", "key", "value")]
        heads = [
            (part @ numpy(projection.kernel)).reshape(*part.shape[:2], layer.num_heads, -1)
            for part, projection in zip((queries, x, x), dense, strict=True)
        ]
    output, scores = definition.attend(*heads, mask=mask)
    return output.reshape(*output.shape[:2], -1), scores


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_queries": 3},
        {"num_heads": H, "key_dim": K},
        {"num_queries": 3, "num_heads": H, "key_dim": K, "value_dim": 3},
    ],
    ids=["one query", "queries", "heads", "queries and heads"],
)
def test_pooling_is_its_equation(arguments, masked):
    layer = made(**arguments)
    mask = {"mask": MASK} if masked else {}
    output, scores = layer(X, return_attention_scores=True, **mask)
    expected, expected_scores = by_definition(layer, X, MASK[:, None, None] if masked else True)
    expected = expected if "num_queries" in arguments else expected[:, 0]
    np.testing.assert_allclose(numpy(output), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(numpy(scores), expected_scores, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(numpy(layer(X, **mask)), numpy(output))
    assert np.abs(expected_scores[0] - 1 / S).max() > 0.1


def test_a_float_mask_is_refused_by_the_name_of_the_argument():
    with pytest.raises(ValueError, match="`mask` must be boolean"):
        made()(X, mask=np.where(MASK, 0.0, -1e9).astype("float32"))
