"""What is raised by `keras_attention.inspection`."""

import sys
import warnings
from unittest import mock

import keras
import numpy as np

import keras_attention as ka
from keras_attention import inspection
from tests.errors.calls import X

WEIGHTS = np.ones((1, 1, 2, 2)) / 2


def flow_without_scipy():
    with mock.patch.dict(sys.modules, {"scipy.sparse": None}):
        inspection.attention_flow([WEIGHTS])


def model_of(layer):
    """A functional model with a layer called "layer"."""
    x = keras.Input((None, X.shape[-1]))
    return keras.Model(x, layer(x))


def block(**options):
    return ka.TransformerBlock(8, 4, key_dim=2, name="layer", **options)


def prune(layer, heads, name="layer"):
    return lambda: inspection.prune_heads(model_of(layer), {name: heads})


def with_adapters():
    model = model_of(ka.MultiHeadAttention(2, 4, name="layer"))
    ka.enable_lora(model, 1)
    inspection.ablate_heads(model, {"layer": [0]})


def with_another_attention():
    class Custom(keras.layers.Layer):
        def call(self, x, return_attention_scores=False):
            return (x, x[:, None]) if return_attention_scores else x

    inspection.attention_gradients(model_of(Custom(name="custom")), X)


@keras.saving.register_keras_serializable(package="errors")
class Owner(keras.layers.Layer):
    """A layer whose configuration has nothing of the attention that it makes."""

    def build(self, shape):
        self.attention = ka.MultiHeadAttention(2, 4, name="attention")
        self.attention.build(shape)

    def call(self, x):
        return self.attention(x)


def prune_a_shared_table():
    x, position = keras.Input((None, X.shape[-1])), ka.positions.Shaw(2, per_head=True)
    y = ka.MultiHeadAttention(2, 4, position=position, name="first")(x)
    y = ka.MultiHeadAttention(2, 4, position=position, name="second")(y)
    inspection.prune_heads(keras.Model(x, y), {"first": [0], "second": [1]})


def ablate_quantized():
    model = model_of(ka.MultiHeadAttention(2, 4, name="layer"))
    model.get_layer("layer").query_dense.quantize("int8")
    inspection.ablate_heads(model, {"layer": [0]})


def prune_one_of_two():
    x = keras.Input((None, X.shape[-1]))
    y = block(causal=True, cross_attention=True)(x, x)
    inspection.prune_heads(keras.Model(x, y), {"layer/attention": [0]})


def importance_of_differences():
    model = model_of(ka.DifferentialAttention(2, 4, name="layer"))
    inspection.head_importance(inspection.attention_gradients(model, X))


@keras.saving.register_keras_serializable(package="errors")
class Sized(keras.layers.Layer):
    """A layer around an attention, with a weight of its own for each head."""

    def __init__(self, attention, **kwargs):
        super().__init__(**kwargs)
        if isinstance(attention, dict):
            attention = keras.saving.deserialize_keras_object(attention)
        self.attention = attention

    def get_config(self):
        attention = keras.saving.serialize_keras_object(self.attention)
        return {**super().get_config(), "attention": attention}

    def build(self, shape):
        if not self.attention.built:
            self.attention.build(shape)
        self.of_heads = self.add_weight(name="of_heads", shape=(self.attention.num_heads,))

    def call(self, x):
        return self.attention(x)


@keras.saving.register_keras_serializable(package="errors")
class Unbuilt(keras.Model):
    """A model of several inputs without a `build`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.block = ka.TransformerBlock(16, 2, cross_attention=True, name="block")

    def call(self, x, context):
        return self.block(x, context)


def prune_what_has_no_build():
    model = Unbuilt()
    model(X, X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        inspection.prune_heads(model, {"block/attention": [0], "block/cross_attention": [0]})


ROWS = {
    r"`scores` must be a dict or a list of arrays \(B, H, T, S\).* Received: ndarray": (
        TypeError,
        lambda: inspection.attention_entropy(WEIGHTS),
    ),
    r"`scores` of 'a' must be \(B, H, T, S\).* Received: shape \(1, 2, 2\)": lambda: (
        inspection.attention_entropy({"a": WEIGHTS[0]})
    ),
    r"`scores` must have a layer at least\. Received: \{\}": lambda: inspection.attention_rollout(
        {}
    ),
    r"layers on top of each other.* Received: shape \(1, 1, 2, 3\) of 1 with B=1 and "
    r"T=2": lambda: inspection.attention_rollout([WEIGHTS, np.ones((1, 1, 2, 3))]),
    "`pip install scipy`": (ImportError, flow_without_scipy),
    r"no more patches than .* Received: grid=\(2, 2\), scores of 0 of shape \(1, 1, "
    r"2, 2\)": lambda: inspection.attention_distance([WEIGHTS], grid=(2, 2)),
    "must be of this package, or .* Received: 'custom' of class Custom": (
        TypeError,
        with_another_attention,
    ),
    r"one axis of positions\. Received: weights of 'attention'": lambda: (
        inspection.attention_gradients(model_of_pictures(), np.zeros((1, 2, 2, 4), "float32"))
    ),
    r"`heads` must be a dict from names of layers .* Received: heads=\{\}": lambda: (
        inspection.prune_heads(model_of(ka.SelfAttention(2, 4)), {})
    ),
    r"must name attention layers, \['layer/attention'\]\. Received: 'decoder'": prune(
        block(), [0], "decoder"
    ),
    "that project their inputs.* Received: 'layer' of class Attention": prune(
        ka.Attention(name="layer"), [0]
    ),
    r"must be numbers of heads, from 0 to 3\. Received: \[4\]": prune(
        block(), [4], "layer/attention"
    ),
    "Only heads that an output projection reads.* Received: 'layer' of class Attention": prune(
        ka.Attention(2, 4, name="layer"), [0]
    ),
    r"A head must be kept .* Received: \[0, 1\] of 2 heads of 'layer', in 2 groups": prune(
        ka.MultiHeadAttention(2, 4, name="layer"), [0, 1]
    ),
    r"share keys and values cannot be pruned\. "
    r"Received: 'layer' with 4 heads in 2 groups": prune(
        ka.DifferentialAttention(4, 4, num_key_value_heads=2, name="layer"), [0, 2]
    ),
    r"as many of each must be.* Received: heads=\{'layer/attention': \[0\]\}": prune_one_of_two,
    "Received: 'layer/attention', which another layer made": prune(
        Owner(name="layer"), [0], "layer/attention"
    ),
    "the weights that its configuration says.* no adapters": with_adapters,
    "a class of its own has a `build`.* and 0 by its configuration": prune_what_has_no_build,
    r"may have a size for each head\. Received: .*of_heads' of shape \(2,\)": prune(
        Sized(ka.MultiHeadAttention(2, 4, name="attention"), name="layer"), [0], "layer/attention"
    ),
    r"removes a factor of their.*Received: gradients of \['layer'\]": importance_of_differences,
    "must have values of its own for each head": lambda: inspection.ablate_heads(
        model_of(ka.Attention(2, 4, num_key_value_heads=1, name="layer")), {"layer": [0]}
    ),
    "must not depend on the number of heads": (
        ValueError,
        prune(ka.DifferentialAttention(2, 4, position="alibi", name="layer"), [0]),
        prune(block(position="alibi"), [0], "layer/attention"),
    ),
    "The `qk_norm` of a head must not depend on others.* of 'layer'": prune(
        ka.MultiHeadAttention(
            4, 4, qk_norm=keras.layers.LayerNormalization(axis=(-2, -1)), name="layer"
        ),
        [0],
    ),
    r"must lose the same heads\. Received: \['first', 'second'\], which": prune_a_shared_table,
    "cannot be taken from quantized layers.* "
    "Received: 'layer' of class MultiHeadAttention": ablate_quantized,
    r"`scores` of 'a' must be weights, finite and not negative.* from -0\.5 to -0\.5": lambda: (
        inspection.attention_entropy({"a": WEIGHTS - 1})
    ),
    "finite and not negative.* from nan to nan": lambda: inspection.attention_rollout(
        [WEIGHTS * np.nan]
    ),
}


def model_of_pictures():
    x = keras.Input((2, 2, 4))
    layer = ka.MultiHeadAttention(2, 4, attention_axes=(1, 2), name="attention")
    return keras.Model(x, layer(x, x))
