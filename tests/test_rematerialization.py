"""Layers under `keras.RematScope` train as they do without it."""

import contextlib
import functools

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests.pairwise import pairwise


class Around:
    """What a user writes around a layer."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def call(self, x, training=None):
        return self.inner(x, training=training)


class OwnLayer(Around, keras.layers.Layer):
    def build(self, shape):
        self.inner.build(shape)


class OwnModel(Around, keras.Model):
    pass


def network(**kwargs):
    # Parts of Keras's and of ours, and a seed.
    return ka.FeedForward(8, "tanh", dropout=0.4, seed=1, **kwargs)


def blocks(count, position, reuse=None):
    return [
        ka.TransformerBlock(
            8, 2, causal=True, position=position, dropout=0.3, seed=n, reuse=reuse if n else None
        )
        for n in range(count)
    ]


def functional(*layers):
    x = y = keras.Input((4, 8))
    for layer in layers:
        y = layer(y)
    return keras.Model(x, y)


# What a user makes within a scope.
MODELS = {
    "dropout": lambda: functional(ka.MultiHeadAttention(2, 4, dropout=0.5, seed=1)),
    "choices": lambda: functional(ka.SelfAttention(2, 4, normalization="hard", seed=1)),
    "losses": lambda: functional(ka.MultiHeadAttention(2, 4, scores_regularizer="entropy")),
    # The model and its blocks, which share a table.
    "stack": lambda: ka.Decoder(
        blocks(2, ka.positions.RelativeBias(4), "value_residual"), sources=[None, 0]
    ),
    "functional": lambda: functional(network(name="listed"), network()),
    "sequential": lambda: keras.Sequential([keras.Input((4, 8)), network(name="listed")]),
    "in a layer": lambda: functional(OwnLayer(network(), name="listed")),
    "in a model": lambda: OwnModel(network(name="listed")),
    "nested": lambda: functional(functional(network()), network(name="listed")),
}
MODES = {
    "full": {},
    "larger_than": {"output_size_threshold": 16},
    "list_of_layers": {"layer_names": ["listed"]},
    "activations": {},
}
X = np.random.default_rng(0).normal(size=(2, 4, 8)).astype("float32")


def losses_of(name, scope):
    keras.utils.set_random_seed(0)
    with scope:
        model = MODELS[name]()
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        return [float(model.train_on_batch(X, 0 * X)) for _ in range(2)]


@functools.cache
def expected_losses_of(name):
    return losses_of(name, contextlib.nullcontext())


@pytest.mark.ci
@pytest.mark.parametrize("name, mode", pairwise(list(MODELS), list(MODES)))
def test_models_made_within_a_scope_train_as_without_it(name, mode):
    found = losses_of(name, keras.RematScope(mode=mode, **MODES[mode]))
    np.testing.assert_allclose(found, expected_losses_of(name), rtol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX says what a gradient keeps")
def test_a_scope_keeps_the_inputs_of_blocks_and_not_what_they_compute():
    import jax

    def kept(scope, blocks):
        """The bytes that wait for the gradient."""
        x = y = keras.Input((256, 64))
        with scope():
            for _ in range(blocks):
                y = ka.TransformerBlock(256, 4, dropout=0.1)(y)
        model = keras.Model(x, y)
        state = [v.value for v in model.non_trainable_variables]

        def gradient(weights, x):
            def loss(weights, x):
                return keras.ops.sum(model.stateless_call(weights, state, x, training=True)[0])

            return jax.vjp(loss, weights, x)[1]

        weights = [v.value for v in model.trainable_variables]
        x = jax.ShapeDtypeStruct((16, 256, 64), "float32")
        found = jax.tree.leaves(jax.eval_shape(gradient, weights, x))
        return sum(array.size * array.dtype.itemsize for array in found)

    def of_a_block(scope):
        return kept(scope, 3) - kept(scope, 2)

    output = 16 * 256 * 64 * 4
    weights = 4 * (12 * 64**2)
    assert of_a_block(lambda: keras.RematScope(mode="full")) < 1.1 * (output + weights)
    assert of_a_block(contextlib.nullcontext) > 10 * output
