"""What is raised for the shapes, sizes, types and masks of inputs, and for files."""

import tempfile
import types

import h5py
import keras
import numpy as np

import keras_attention as ka
from keras_attention import convert, patterns
from tests.errors.calls import B, D, S, T, X, Y, attend, block, built, over, symbol, true, zeros

ADDITIVE = np.where(np.eye(T, S) > 0, 0.0, -1e9).astype("float32")


class Careless(keras.Model):
    """A model whose `build` does not build what is in it."""

    def __init__(self):
        super().__init__()
        self.inner = ka.SelfAttention(2, 4, name="inner")

    def build(self, shape):
        self.built = True

    def call(self, x):
        return self.inner(x)


def load_unbuilt():
    """The weights of a model loaded into another that has none yet."""
    saved, other = Careless(), built(Careless())
    saved(X)
    with tempfile.TemporaryDirectory() as folder:
        saved.save_weights(f"{folder}/model.weights.h5")
        other.load_weights(f"{folder}/model.weights.h5")


def load_unbuilt_layer():
    """The same without Keras, which passes on the message alone."""
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        file["layer/vars/0"] = X
        store = types.SimpleNamespace(h5_file=file, _h5_entry_path="layer")
        ka.SelfAttention(2, 4, name="inner").load_own_variables(store)


def of_others(query=(B, T, D), value=(B, S, 6), key=(B, S, D)):
    """A call of a layer that was built for a value of 6 features and a key of 4."""
    layer = built(ka.MultiHeadAttention(2, 4), (B, T, D), (B, S, 6), (B, S, D))
    return layer(zeros(*query), zeros(*value), zeros(*key))


def nested(pattern, times):
    for _ in range(times):
        pattern = ~pattern
    return pattern


ROWS = {
    "nested 100 deep. Received: Not": lambda: nested(patterns.Causal(), 101),
    r"1099511627776 elements.*\(4, 10+, 10+": lambda: built(ka.MultiHeadAttention(10**9, 10**9)),
    # All of what is refused is in convert/test_refused.py.
    "Cannot convert a keras Dense": lambda: convert.from_keras(keras.layers.Dense(2)),
    r"inputs\.shape=\(2, \d, 4\)": lambda: ka.ScaledEmbedding(10, 6)(X, reverse=True),
    r"`value` and `key`, except .*\(2, 5, 4\).*\(2, 3, 4\)": lambda: ka.Attention()(X, Y, X),
    "TransformerBlock takes dense tensors.*a dict": (TypeError, lambda: block()({"x": X})),
    "no `query_dense` yet": (AttributeError, lambda: ka.MultiHeadAttention(2, 4).query_dense),
    "int8_from_float32": lambda: setattr(ka.FeedForward(8), "dtype_policy", "int8_from_float32"),
    r"`query` .*query\.shape=\(2, 3, 2\)": lambda: of_others(query=(B, T, 2)),
    "3 axes, as when .*2, 3, 1, 4": lambda: of_others((B, T, 1, D), (B, S, 1, 6), (B, S, 1, D)),
    "`key` .*order of inputs is query, value": lambda: of_others((B, T, D), (B, S, D), (B, S, 6)),
    "weights of 'inner'.*an unbuilt SelfAttention": (
        load_unbuilt,
        load_unbuilt_layer,
    ),
    # Masks
    "query=3, query_mask=4": lambda: ka.Attention()(X, Y, query_mask=true(B, T + 1)),
    "`value_mask` must have 2 axes": lambda: ka.Attention()(X, Y, value_mask=true(S)),
    r"takes no `key_padding_mask`.* `query_mask` \(B, T\) and": (
        TypeError,
        lambda: ka.MultiHeadAttention(2, 4)(X, X, key_padding_mask=true(B, T)),
    ),
    "a `value` beside it": (
        lambda: ka.Attention()(X, Y, mask=true(B, S)),
        lambda: ka.Attention()(symbol(T, D), symbol(S, D), mask=symbol(S, dtype="bool")),
    ),
    "a list and a mask of type": lambda: ka.Attention()([X, Y], mask=true(B, S)),
    r"as `attention_mask`.*mask\.shape=\(2, 3, 3\)": lambda: over(mask=true(B, T, T)),
    "here 3 queries": lambda: ka.MultiHeadAttention(2, 4)(X, Y, attention_mask=true(B, S)),
    "dtype float32.*dtype='bool'": (
        TypeError,
        lambda: ka.Attention()(symbol(T, D), symbol(S, D), attention_mask=symbol(T, S)),
    ),
    "`mask` .*float32 with the value -1000000000.0.*bias": lambda: attend(mask=ADDITIVE),
    "`attention_mask` .*value -1000000000.0": lambda: ka.Attention()(X, Y, attention_mask=ADDITIVE),
    "`mask` .*value -1.0": lambda: block()(X, mask=-np.ones((B, T), "float32")),
    "int32 with the value 3": lambda: ka.Attention()(X, Y, value_mask=np.full((B, S), 3, "int32")),
}
