"""The non-local block of docs/images_and_time_series.md, against its equation in float64."""

import numpy as np
import pytest

from keras_attention import LayerScale, MultiHeadAttention
from tests.arrays import numpy, random

C = 6


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 2)])
def test_the_block_is_the_equation(shape):
    """Of images and of videos; it begins as the identity, and keys may be fewer."""
    axes = tuple(range(1, 1 + len(shape)))
    attention = MultiHeadAttention(1, C // 2, score="dot", attention_axes=axes)
    scale = LayerScale(0.0)
    x, near = random(2, *shape, C), random(2, *[n // 2 or 1 for n in shape], C, seed=1)
    for pooled in (x, near):
        np.testing.assert_array_equal(numpy(x) + numpy(scale(attention(x, pooled))), numpy(x))
    scale.scale.assign(np.ones(C))
    for n, variable in enumerate(attention.weights):
        variable.assign(random(*variable.shape, seed=n) / 2)
    (theta, phi, g), (b_theta, b_phi, b_g) = (
        [
            numpy(getattr(getattr(attention, f"{part}_dense"), name))
            .astype("float64")
            .reshape(-1, C // 2)
            for part in ("query", "key", "value")
        ]
        for name in ("kernel", "bias")
    )
    w = numpy(attention.output_dense.kernel).astype("float64")[0]
    b = numpy(attention.output_dense.bias).astype("float64")
    flat, keys = (numpy(a).astype("float64").reshape(2, -1, C) for a in (x, near))
    scores = (flat @ theta + b_theta) @ (keys @ phi + b_phi).swapaxes(1, 2)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    expected = flat + weights @ (keys @ g + b_g) @ w + b
    found = (numpy(x) + numpy(scale(attention(x, near)))).reshape(2, -1, C)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
