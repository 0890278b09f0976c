"""Who is measured: layers and models of ours and of Keras's."""

import keras
import numpy as np

import keras_attention
from benchmarks.attention.backends import BACKEND, compiled
from benchmarks.attention.cases import Contestant

ops = keras.ops


def seeded(layer):
    """Gives a built layer or model the weights that any other of its shapes gets."""
    rng = np.random.default_rng(1)
    for weight in layer.trainable_variables:
        if len(weight.shape) > 1:  # those with one axis start equal, at 0 or 1
            weight.assign(0.05 * rng.standard_normal(weight.shape, dtype="float32"))
    return layer


def sequence(case):
    shape = (case.batch, case.length, case.features)
    return np.random.default_rng(0).standard_normal(shape, dtype="float32")


def others(case):
    """What a layer is given beside the sequence."""
    given = {}
    if case.padding:
        lengths = np.linspace(0.75, 1, case.batch)[:, None] * case.length
        given["mask"] = np.arange(case.length) < lengths
    if case.bias:
        shape = (1, case.heads, case.length, case.length)
        given["bias"] = np.random.default_rng(2).standard_normal(shape, dtype="float32")
    return given


def layer_contestant(label, make, call):
    """A layer: `make(case)`, and `call(layer, case, x, …)` with the `others` by name."""

    def prepare(case):
        layer = make(case)
        x = ops.convert_to_tensor(sequence(case), dtype=case.dtype)
        given = keras.tree.map_structure(ops.convert_to_tensor, others(case))
        inputs = (x, *given.values())

        def symbol(array):
            dtype = keras.backend.standardize_dtype(array.dtype)
            return keras.Input(array.shape[1:], array.shape[0], dtype=dtype)

        def run(x, *arrays):
            return call(layer, case, x, **dict(zip(given, arrays, strict=True)))

        run(*map(symbol, inputs))  # builds it
        return compiled(run, seeded(layer), inputs, case)

    return Contestant(label, prepare)


def _our_layer(case):
    window = case.window
    return keras_attention.MultiHeadAttention(
        case.heads,
        case.key_dim,
        dropout=case.dropout,
        pattern=None if window is None else keras_attention.patterns.SlidingWindow(window, window),
        position=case.position,
        dtype=case.policy,
    )


def _our_call(layer, case, x, mask=None, bias=None):
    causal = case.causal
    return layer(
        x, key_mask=mask, attention_bias=bias, use_causal_mask=causal, training=case.training
    )


class Biased(keras.layers.MultiHeadAttention):
    """Keras's layer, which takes no bias, around Keras's function, which does: set `bias`."""

    bias = None

    def _compute_attention(self, query, key, value, attention_mask=None, *options, **named):
        if self.bias is None:
            return super()._compute_attention(query, key, value, attention_mask, *options, **named)
        return ops.dot_product_attention(query, key, value, self.bias, attention_mask), None


def _their_layer(case):
    kind = Biased if case.bias else keras.layers.MultiHeadAttention
    return kind(
        case.heads,
        case.key_dim,
        dropout=case.dropout,
        sliding_window=None if case.window is None else case.window + 1,
        dtype=case.policy,
    )


def _their_call(layer, case, x, mask=None, bias=None):
    mask = None if mask is None else mask[:, None, :]
    layer.bias = bias
    return layer(x, x, attention_mask=mask, use_causal_mask=case.causal, training=case.training)


OURS = layer_contestant("keras_attention.MultiHeadAttention", _our_layer, _our_call)
THEIRS = layer_contestant("keras.layers.MultiHeadAttention", _their_layer, _their_call)
SHAW = layer_contestant(
    "keras_attention.RelativePositionAttention",
    lambda case: keras_attention.RelativePositionAttention(
        case.heads, case.key_dim, case.max_distance, dtype=case.policy
    ),
    _our_call,
)


def model_contestant(label, block):
    """A model of two blocks: `block(case, x)` of a symbolic x."""

    def prepare(case):
        symbol = keras.Input((case.length, case.features))
        model = seeded(keras.Model(symbol, block(case, block(case, symbol))))
        model.compile("sgd", "mse", jit_compile=case.xla or BACKEND == "jax")
        x = sequence(case)
        return lambda: (model.train_on_batch(x, x),)

    return Contestant(label, prepare)


def _our_block(case, x):
    return keras_attention.TransformerBlock(4 * case.features, case.heads)(x)


def _their_block(case, x):
    attended = keras.layers.MultiHeadAttention(case.heads, case.key_dim)(x, x)
    x = keras.layers.LayerNormalization(epsilon=1e-5)(keras.layers.add([x, attended]))
    y = keras.layers.Dense(4 * case.features, activation="relu")(x)
    y = keras.layers.Dense(case.features)(y)
    return keras.layers.LayerNormalization(epsilon=1e-5)(keras.layers.add([x, y]))


OUR_MODEL = model_contestant("model of keras_attention.TransformerBlock", _our_block)
THEIR_MODEL = model_contestant("model of keras.layers", _their_block)


class NoWeights(keras.layers.Layer):
    """A function as a layer, to be compiled as layers are."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, *arrays):
        return self.function(*arrays)


def _cache_contestant(label, groups, function):
    """A function of a query and the arrays of a cache of `case.length`."""

    def prepare(case):
        rng = np.random.default_rng(0)
        inputs = [
            ops.convert_to_tensor(
                rng.standard_normal((case.batch, *shape, case.key_dim), dtype="float32")
            )
            for shape in [(1, case.heads), (groups, case.length), (groups, case.length)]
        ]
        layer = NoWeights(function)
        return compiled(layer, layer, inputs, case)

    return Contestant(label, prepare)


def decoding_contestant(label, groups):
    """The attention of one new token over a cache of `case.length`, its own key included."""

    def attend(query, key, value):
        # As a cache stores them: heads before entries.
        transposed = (ops.transpose(array, (0, 2, 1, 3)) for array in (key, value))
        offset = key.shape[2] - 1
        return keras_attention.ops.attend(query, *transposed, offset=offset, pattern="causal")

    return _cache_contestant(label, groups, attend)


def reading_contestant(label, groups):
    """The largest of the numbers in a cache: all of it is read once, and nothing computed."""
    return _cache_contestant(
        label, groups, lambda query, *arrays: ops.maximum(*map(ops.max, arrays))
    )
