"""Who is measured: layers and models of ours and of Keras's, and rows of two of them."""

import collections
import dataclasses

import keras
import numpy as np

import keras_attention
from benchmarks.backends import BACKEND, compiled, seeded, trained
from keras_attention import patterns

ops = keras.ops


@dataclasses.dataclass(frozen=True)
class Case:
    """The sizes of an attention, and what is done with it."""

    batch: int
    length: int
    features: int
    heads: int
    training: bool = True
    padding: bool | str = False  # "left": before the tokens
    causal: bool = False
    dropout: float = 0.0
    window: int | None = None  # keys seen to either side, or before
    max_distance: int | None = None
    bias: bool = False  # an input that is added to scores, (1, H, T, T)
    position: str | None = None
    key_heads: int | None = None
    tokens: int = 0  # that are decoded, one after another
    dtype: str = "float32"
    xla: bool = False

    @property
    def key_dim(self):
        return self.features // self.heads

    @property
    def policy(self):
        return self.dtype if self.dtype == "float32" else f"mixed_{self.dtype}"

    @property
    def mask(self):
        """Which tokens are no padding, of which one row has none, and another a quarter."""
        lengths = np.linspace(0.75, 1, self.batch)[:, None] * self.length
        real = np.arange(self.length) < lengths
        return ops.convert_to_tensor(real[::-1, ::-1] if self.padding == "left" else real)

    def normal(self, *shape, seed=0):
        """Numbers that are normally distributed; by default a sequence (B, T, D)."""
        shape = shape or (self.batch, self.length, self.features)
        found = np.random.default_rng(seed).standard_normal(shape, dtype="float32")
        return ops.convert_to_tensor(found, dtype=self.dtype)

    def __str__(self):
        return f"B{self.batch} T{self.length} D{self.features} H{self.heads}"


# `prepare(case)` gives a function that runs once, waits, and returns a tuple of arrays, the first
# of which two sides that compute the same agree on.
Contestant = collections.namedtuple("Contestant", "label prepare")


def layer_contestant(label, make, call):
    """A layer: `make(case)`, and `call(layer, case, x, …)` with a mask and a bias by name."""

    def prepare(case):
        layer = make(case)
        given = {"mask": case.mask} if case.padding else {}
        if case.bias:
            given["bias"] = case.normal(1, case.heads, case.length, case.length, seed=2)
        inputs = case.normal(), *given.values()

        def symbol(array):
            dtype = keras.backend.standardize_dtype(array.dtype)
            return keras.Input(array.shape[1:], array.shape[0], dtype=dtype)

        def run(x, *arrays):
            return call(layer, case, x, **dict(zip(given, arrays, strict=True)))

        run(*map(symbol, inputs))  # builds it
        return compiled(run, inputs, seeded(layer), case.training, case.xla)

    return Contestant(label, prepare)


def pattern(case):
    """The pattern of a case."""
    if case.window is None:
        return "causal" if case.causal else None
    return patterns.SlidingWindow(case.window, 0 if case.causal else case.window)


def _our_layer(case):
    options = {"pattern": pattern(case), "position": case.position, "dtype": case.policy}
    options |= {"dropout": case.dropout, "num_key_value_heads": case.key_heads}
    return keras_attention.MultiHeadAttention(case.heads, case.key_dim, **options)


def _shaw_layer(case):
    sizes = case.heads, case.key_dim, case.max_distance
    return keras_attention.RelativePositionAttention(*sizes, dtype=case.policy)


def _our_call(layer, case, x, mask=None, bias=None):
    return layer(x, key_mask=mask, attention_bias=bias, training=case.training)


class Biased(keras.layers.MultiHeadAttention):
    """Keras's layer, which takes no bias, around Keras's function, which does: set `bias`."""

    def _compute_attention(self, query, key, value, attention_mask=None, *options, **named):
        return ops.dot_product_attention(query, key, value, self.bias, attention_mask), None


def _their_layer(case):
    kind = Biased if case.bias else keras.layers.MultiHeadAttention
    window = None if case.window is None else case.window + 1
    options = {"dropout": case.dropout, "sliding_window": window, "dtype": case.policy}
    return kind(case.heads, case.key_dim, **options)


def _their_call(layer, case, x, mask=None, bias=None):
    mask = None if mask is None else mask[:, None, :]
    layer.bias = bias
    return layer(x, x, attention_mask=mask, use_causal_mask=case.causal, training=case.training)


OURS = layer_contestant("keras_attention.MultiHeadAttention", _our_layer, _our_call)
THEIRS = layer_contestant("keras.layers.MultiHeadAttention", _their_layer, _their_call)
SHAW = layer_contestant("keras_attention.RelativePositionAttention", _shaw_layer, _our_call)


def model_contestant(label, block):
    """A training step of a model of two blocks: `block(case, x)` of a symbolic x."""

    def prepare(case):
        shape, jit = (case.batch, case.length, case.features), case.xla or BACKEND == "jax"
        step = trained(lambda x: block(case, block(case, x)), shape, jit)
        return lambda: (step(),)

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


def cache_contestant(label, function):
    """A function of a new query and a cache of `case.length`, heads before entries."""

    def prepare(case):
        entries = case.batch, case.key_heads or case.heads, case.length, case.key_dim
        query = case.normal(case.batch, 1, case.heads, case.key_dim)
        arrays = query, case.normal(*entries, seed=1), case.normal(*entries, seed=2)
        return compiled(function, arrays, xla=case.xla)

    return Contestant(label, prepare)


def _decode(query, *cache):
    """The attention of one token, whose own key is the last of the cache."""
    key, value = (ops.transpose(array, (0, 2, 1, 3)) for array in cache)
    options = {"offset": key.shape[1] - 1, "pattern": "causal"}
    return keras_attention.ops.attend(query, key, value, **options)


def _read(query, *cache):
    """The largest number: all of the cache is read once, and nothing computed."""
    return ops.maximum(*map(ops.max, cache))


DECODING = cache_contestant("ops.attend", _decode)
READING = cache_contestant("the largest number in it", _read)


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: what two sides take for a case."""

    name: str
    case: Case
    ours: Contestant = OURS
    other: Contestant | None = THEIRS
    plain: Case | None = None  # the other's, if it is another
    work: str = ""  # in words
    figure: str = "time"  # or "memory"
    same: bool = True  # whether both compute the same

    @property
    def sides(self):
        ours = {"ours": (self.ours, self.case)}
        return ours | ({"other": (self.other, self.plain or self.case)} if self.other else {})
