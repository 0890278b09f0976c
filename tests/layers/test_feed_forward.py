"""`FeedForward` and `MixtureOfExperts` beside their equations: dropout, the start, a router."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import built, numpy, random
from tests.gradients import weight_gradients

X, HIDDEN = random(3, 5, 8), 16


def test_dropout_is_before_the_second_projection():
    """With the identity for that one, the output shows what was dropped."""
    layer = ka.FeedForward(HIDDEN, dropout=0.5, output_dim=HIDDEN, seed=1)
    layer.build(X.shape)
    kernel = random(8, HIDDEN) / 2
    values = [kernel, np.ones(HIDDEN) * 9, np.eye(HIDDEN), np.zeros(HIDDEN)]
    layer.set_weights([*values, *layer.get_weights()[4:]])
    output = numpy(layer(X, training=True))
    kept = output != 0
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(output[kept], 2 * (X @ kernel + 9)[kept], rtol=1e-4)


GLOROT = keras.initializers.GlorotUniform
START = {
    "gate": lambda: ka.FeedForward(HIDDEN, gated=True, kernel_initializer=GLOROT()),
    "attention": lambda: ka.TransformerBlock(HIDDEN, 2, kernel_initializer=GLOROT()),
    "experts": lambda: ka.MixtureOfExperts(8, 3, 5),
    "experts, a seed": lambda: ka.MixtureOfExperts(8, 3, 5, kernel_initializer=GLOROT(seed=1)),
}


@pytest.mark.parametrize("name", START)
def test_kernels_start_apart(name):
    """Those of one shape; as wide as each alone."""
    layer = START[name]()
    layer.build(X.shape)
    kernels = [numpy(w) for w in layer.weights if w.path.endswith("kernel")]
    if "experts" in name:
        kernels = numpy(layer.intermediate_kernel)
    assert len(kernels) > 2 and len({kernel.tobytes() for kernel in kernels}) == len(kernels)
    if "experts" in name:
        assert 0.5 < np.abs(kernels[0]).max() / (6 / (8 + 5)) ** 0.5 <= 1


@pytest.mark.parametrize("normalize", [True, False])
def test_the_router_of_one_expert_learns_if_its_weight_is_a_probability_of_all(normalize):
    layer = built(ka.MixtureOfExperts(8, 1, 5, normalize_weights=normalize), X.shape)
    found, _ = weight_gradients(layer, lambda: keras.ops.square(layer(X)))
    (learns,) = (
        np.abs(gradient).max() > 1e-2
        for variable, gradient in zip(layer.trainable_weights, found, strict=True)
        if variable is layer.router.bias
    )
    assert learns is not normalize
    if normalize:
        with pytest.warns(UserWarning, match=r"no gradient .*normalize_weights=False.*top_k=1"):
            layer(X, training=True)
    else:
        layer(X, training=True)
