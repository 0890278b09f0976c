"""What the converters refuse, because the new layer would not give what the old one gave."""

import re

import keras
import pytest

from keras_attention import convert
from tests.convert.both import D, X, built, keras_hub, torch_block


class Subclass(keras.layers.MultiHeadAttention):
    pass


class Hard(keras.layers.Softmax):
    pass


class Double(keras.layers.EinsumDense):
    def call(self, x):
        return 2 * super().call(x)


def heads(*args, **kwargs):
    return built(keras.layers.MultiHeadAttention(*args, **kwargs), X)


def of_shape(layer, *shape):
    layer.build(shape or X.shape)
    return layer


def quantized():
    layer = heads(2, 4)
    layer.query_dense.quantize("int8")
    return layer


def rotary():
    return keras_hub.layers.RotaryEmbedding(rope_type="dynamic", scaling_factor=2.0)


def encoder(num_heads):
    return of_shape(keras_hub.layers.TransformerEncoder(12, num_heads), None, None, D)


REFUSED = {
    "Cannot convert a keras Dense named 'd': expected one of keras: AdditiveAttention, Att": (
        lambda: convert.from_keras(keras.layers.Dense(2, name="d"))
    ),
    "Cannot convert a tests Subclass.*A subclass may compute something else": lambda: (
        convert.from_keras(Subclass(2, 4))
    ),
    "Cannot convert a builtins int: expected one of": lambda: convert.from_keras(3),
    "it has no weights yet. Call or build it first": lambda: convert.from_keras(
        keras.layers.MultiHeadAttention(2, 4)
    ),
    "its weights are quantized. Convert the layer as it was before": lambda: convert.from_keras(
        quantized()
    ),
    "Cannot convert a keras Attention.*expected one of keras_hub: PositionEmbedding": lambda: (
        convert.from_keras_hub(keras.layers.Attention())
    ),
    "its num_heads=3 does not divide its 8 features. Put a `MultiHeadAttention": lambda: (
        convert.from_keras_hub(encoder(3))
    ),
    "rope_type='dynamic' with denominator_dim=None gives frequencies that": lambda: (
        convert.from_keras_hub(rotary())
    ),
    "Cannot convert a keras Attention.*expected one of torch.nn: MultiheadAttention": lambda: (
        convert.from_torch(keras.layers.Attention())
    ),
}


@pytest.mark.parametrize(("message", "call"), REFUSED.items())
def test_what_is_refused(message, call):
    with pytest.raises(ValueError, match=message):
        call()


# Parts of Keras's attention, and of KerasHub's encoder, that were replaced.
KERAS_PARTS = {
    r"`_softmax` was replaced: expected a Softmax, .* a Hard": ("_softmax", Hard),
    r"`_key_dense` was replaced: .* a Double": (
        "_key_dense",
        lambda: of_shape(Double("abc,cde->abde", (None, 2, 4), bias_axes="de")),
    ),
    "the call may change what its class computes": ("call", lambda: lambda *args: 0),
}
HUB_PARTS = {
    "num_heads=4": ("_self_attention_layer", lambda: heads(4, 2)),
    "key_dim=6": ("_self_attention_layer", lambda: heads(2, 6)),
    "use_gate=T": ("_self_attention_layer", lambda: heads(2, 4, use_gate=True)),
    "_query_d": ("_self_attention_layer", lambda: heads(2, 4, use_bias=False)),
    "a Subclass": ("_self_attention_layer", lambda: built(Subclass(2, 4), X)),
    "epsilon=0.5": (
        "_feedforward_layer_norm",
        lambda: of_shape(keras.layers.LayerNormalization(epsilon=0.5)),
    ),
    "axis=": (
        "_feedforward_layer_norm",
        lambda: of_shape(keras.layers.LayerNormalization(axis=1, epsilon=1e-5)),
    ),
    "found activation=<function tanh": (
        "_feedforward_intermediate_dense",
        lambda: of_shape(keras.layers.Dense(12, activation="tanh")),
    ),
    r"expected a kernel \(8, 12\) and use_bias=True, and found \(8, 13\)": (
        "_feedforward_intermediate_dense",
        lambda: of_shape(keras.layers.Dense(13, activation="relu")),
    ),
    "the call of its part": ("_feedforward_output_dense.call", lambda: lambda x: x),
}


def with_part(layer, path, part):
    layer._tracker.unlock()
    *owner, name = path.split(".")
    setattr(getattr(layer, owner[0]) if owner else layer, name, part)
    return layer


@pytest.mark.parametrize(("message", "change"), [*KERAS_PARTS.items(), *HUB_PARTS.items()])
def test_replaced_parts_of_keras_are_refused(message, change):
    path, make = change
    if message in KERAS_PARTS:
        layer, converted = heads(2, 4), convert.from_keras
    else:
        layer, converted = encoder(2), convert.from_keras_hub
    converted(layer)
    with pytest.raises(ValueError, match=f"(?s)Cannot convert a keras.*{message}"):
        converted(with_part(layer, path, make()))


TORCH_REFUSED = {
    "it has add_bias_kv=True": ("MultiheadAttention", {"add_bias_kv": True}),
    "it has add_zero_attn=True": ("MultiheadAttention", {"add_zero_attn": True}),
    "of a model or a stack, convert the layers": ("Transformer", {}),
}


def test_what_is_refused_of_torch(torch):
    for message, (name, kwargs) in TORCH_REFUSED.items():
        with pytest.raises(ValueError, match=message):
            convert.from_torch(getattr(torch.nn, name)(D, 2, batch_first=True, **kwargs))
    attention = torch.nn.MultiheadAttention(D, 2)
    with pytest.raises(ValueError, match="causal=True is for blocks"):
        convert.from_torch(attention, causal=True)
    attention.num_heads = 4
    with pytest.raises(ValueError, match="num_heads=4 and head_dim=4, whose product is not embed_"):
        convert.from_torch(attention)


# Changes of a decoder block of PyTorch.
TORCH_PARTS = {
    r"`norm2` was replaced: expected eps=1e-05, .*eps=0\.5": lambda b, nn: setattr(
        b.norm2, "eps", 0.5
    ),
    "`norm3` was replaced: expected eps=1e-05": lambda b, nn: setattr(b.norm3, "eps", 0.5),
    "`norm1`.*found a RMSNorm": lambda b, nn: setattr(b, "norm1", nn.RMSNorm(D)),
    r"`norm2` was replaced: expected normalized_shape=\(8,\), .*\(4,\)": lambda b, nn: setattr(
        b, "norm2", nn.LayerNorm(4)
    ),
    "its part `self_attn` has add_bias_kv=True": lambda b, nn: setattr(
        b, "self_attn", nn.MultiheadAttention(D, 2, add_bias_kv=True)
    ),
    "its part `multihead_attn` has add_zero_attn=True": lambda b, nn: setattr(
        b, "multihead_attn", nn.MultiheadAttention(D, 2, add_zero_attn=True)
    ),
    "`multihead_attn` was replaced: expected num_heads=2, and found num_heads=4": lambda b, nn: (
        setattr(b, "multihead_attn", nn.MultiheadAttention(D, 4))
    ),
    "`self_attn` was replaced: expected embed_dim=8, and found embed_dim=4": lambda b, nn: setattr(
        b, "self_attn", nn.MultiheadAttention(4, 2)
    ),
    "`multihead_attn` was replaced: expected vdim=4, and found vdim=6": lambda b, nn: setattr(
        b, "multihead_attn", nn.MultiheadAttention(D, 2, kdim=4, vdim=6)
    ),
    "`linear2` was replaced: expected in_features=12, and found in_features=16": lambda b, nn: (
        setattr(b, "linear2", nn.Linear(16, D))
    ),
    "`linear1` was replaced: expected a Linear, and found a Sequential": lambda b, nn: setattr(
        b, "linear1", nn.Sequential(nn.Linear(D, 12), nn.Tanh())
    ),
    "`out_proj` was replaced: expected out_features=8": lambda b, nn: setattr(
        b.self_attn, "out_proj", nn.Linear(D, 4)
    ),
    "`dropout2`.*found a Softmax": lambda b, nn: setattr(b, "dropout2", nn.Softmax()),
    "the forward of its part `linear1` may": lambda b, nn: setattr(
        b.linear1, "forward", lambda x: x
    ),
    "the forward may change": lambda b, nn: setattr(b, "forward", lambda x, y: x),
    "the forward_hooks of its part `norm1` may change what its class computes": lambda b, nn: (
        b.norm1.register_forward_hook(lambda module, x, y: 2 * y)
    ),
    "the forward_pre_hooks may change what its class computes": lambda b, nn: (
        b.register_forward_pre_hook(lambda module, x: None)
    ),
    "its parameters are on the device `meta`, without values": lambda b, nn: b.to("meta"),
}


@pytest.mark.parametrize(("message", "change"), TORCH_PARTS.items())
def test_replaced_parts_of_torch_are_refused(message, change, torch):
    module = torch_block(torch, "Decoder")
    change(module, torch.nn)
    with pytest.raises(ValueError, match=f"Cannot convert a torch .*{message}"):
        convert.from_torch(module)


def test_activations_of_torch_that_are_refused(torch):
    class ReLU(torch.nn.ReLU):
        def forward(self, x):
            return super().forward(x) + 1

    given = (torch.nn.GELU("tanh"), torch.nn.LeakyReLU(), lambda x: x, ReLU())
    for activation in given:
        message = re.escape("expected an activation of PyTorch's own")
        with pytest.raises(ValueError, match=message):
            convert.from_torch(torch_block(torch, activation=activation))
