"""What the converters refuse, because the new layer would not give what the old one gave."""

import keras
import pytest

from keras_attention import convert
from tests.convert.both import MEMORY, D, E, X, built, close, in_torch, keras_hub, torch_random


class Subclass(keras.layers.MultiHeadAttention):
    pass


def quantized():
    layer = keras.layers.MultiHeadAttention(2, 4)
    layer(X, X)
    layer.query_dense.quantize("int8")
    return layer


def hub_encoder(**kwargs):
    layer = keras_hub.layers.TransformerEncoder(12, **kwargs)
    layer.build((None, None, D))
    return layer


REFUSED = {
    "a class of Keras": (
        lambda: convert.from_keras(keras.layers.Dense(2, name="d")),
        "Cannot convert a keras Dense named 'd': expected one of keras: AdditiveAttention, Att",
    ),
    "a subclass": (
        lambda: convert.from_keras(Subclass(2, 4)),
        "Cannot convert a tests Subclass.*A subclass may compute something else",
    ),
    "no layer": (lambda: convert.from_keras(3), "Cannot convert a builtins int: expected one of"),
    "not built": (
        lambda: convert.from_keras(keras.layers.MultiHeadAttention(2, 4)),
        "it has no weights yet. Call or build it first",
    ),
    "quantized": (
        lambda: convert.from_keras(quantized()),
        "its weights are quantized. Convert the layer as it was before",
    ),
    "a layer of Keras given to KerasHub's": (
        lambda: convert.from_keras_hub(keras.layers.Attention()),
        "Cannot convert a keras Attention.*expected one of keras_hub: PositionEmbedding",
    ),
    "a KerasHub layer not built": (
        lambda: convert.from_keras_hub(keras_hub.layers.TransformerEncoder(12, 2)),
        "it has no weights yet",
    ),
    "heads that do not divide": (
        lambda: convert.from_keras_hub(hub_encoder(num_heads=3)),
        "its num_heads=3 does not divide its 8 features. Put a `MultiHeadAttention",
    ),
    "a rotary scaling": (
        lambda: convert.from_keras_hub(
            keras_hub.layers.RotaryEmbedding(rope_type="dynamic", scaling_factor=2.0)
        ),
        "rope_type='dynamic' with denominator_dim=None gives frequencies that",
    ),
    "a module of Keras": (
        lambda: convert.from_torch(keras.layers.Attention()),
        "Cannot convert a keras Attention.*expected one of torch.nn: MultiheadAttention",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


TORCH_REFUSED = {
    "bias of keys": (
        "MultiheadAttention",
        (D, 2),
        {"add_bias_kv": True},
        "it has add_bias_kv=True",
    ),
    "zero": ("MultiheadAttention", (D, 2), {"add_zero_attn": True}, "it has add_zero_attn=True"),
    "stack": ("Transformer", (D, 2, 1, 1), {}, "of a model or a stack, convert the layers"),
}


@pytest.mark.parametrize(("name", "args", "kwargs", "message"), TORCH_REFUSED.values())
def test_what_is_refused_of_torch(name, args, kwargs, message, torch):
    module = getattr(torch.nn, name)(*args, batch_first=True, **kwargs)
    with pytest.raises(ValueError, match=message):
        convert.from_torch(module)


def torch_block(torch, name="Encoder", **kwargs):
    cls = getattr(torch.nn, f"Transformer{name}Layer")
    return cls(D, 2, 12, batch_first=True, device="cpu", **kwargs).eval()


def test_activations_of_torch_that_are_refused(torch):
    def relu(x):
        return torch.relu(x) + 1

    class ReLU(torch.nn.ReLU):
        def forward(self, x):
            return super().forward(x) + 1

    given = (torch.nn.GELU("tanh"), torch.nn.LeakyReLU(), lambda x: x, relu, ReLU())
    for activation in given:
        with pytest.raises(ValueError, match="expected an activation of PyTorch's own"):
            convert.from_torch(torch_block(torch, activation=activation))


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "tanh", "sigmoid"])
def test_activations_of_torch(name, torch):
    modules = {"relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "tanh": "Tanh", "sigmoid": "Sigmoid"}
    given = [getattr(torch.nn, modules[name])(), getattr(torch.nn.functional, name)]
    if hasattr(torch, name):
        given += [getattr(torch, name), getattr(torch.Tensor, name)]
    for activation in given:
        theirs = torch_random(torch_block(torch, activation=activation), torch)
        ours = convert.from_torch(theirs)
        assert ours.activation is keras.activations.get(name)
    # Apart from PyTorch's fast path, which reads another attribute than the activation.
    x = torch.tensor(X, requires_grad=True)
    close(ours(X), theirs(x).detach().numpy())


def replace(name, make):
    def change(module, torch):
        setattr(module, name, make(torch.nn))

    return change


def set_of(path, **values):
    def change(module, torch):
        for attribute, value in values.items():
            setattr(module.get_submodule(path), attribute, value)

    return change


def call_of(path, method, *args):
    return lambda module, torch: getattr(module.get_submodule(path), method)(*args)


def on_meta(module, torch):
    module.to("meta")


TORCH_PARTS = {
    "eps": (set_of("norm2", eps=0.5), r"`norm2` was replaced: expected eps=1e-05, .*eps=0\.5"),
    "eps of the last": (set_of("norm3", eps=0.5), "`norm3` was replaced: expected eps=1e-05"),
    "another norm": (replace("norm1", lambda nn: nn.RMSNorm(D)), "`norm1`.*found a RMSNorm"),
    "a smaller norm": (
        replace("norm2", lambda nn: nn.LayerNorm(4)),
        r"`norm2` was replaced: expected normalized_shape=\(8,\), .*\(4,\)",
    ),
    "bias_kv": (
        replace("self_attn", lambda nn: nn.MultiheadAttention(D, 2, add_bias_kv=True)),
        "its part `self_attn` has add_bias_kv=True",
    ),
    "zero_attn": (
        replace("multihead_attn", lambda nn: nn.MultiheadAttention(D, 2, add_zero_attn=True)),
        "its part `multihead_attn` has add_zero_attn=True",
    ),
    "heads": (
        replace("multihead_attn", lambda nn: nn.MultiheadAttention(D, 4)),
        "`multihead_attn` was replaced: expected num_heads=2, and found num_heads=4",
    ),
    "features": (
        replace("self_attn", lambda nn: nn.MultiheadAttention(4, 2)),
        "`self_attn` was replaced: expected embed_dim=8, and found embed_dim=4",
    ),
    "keys": (
        replace("multihead_attn", lambda nn: nn.MultiheadAttention(D, 2, kdim=4, vdim=6)),
        "`multihead_attn` was replaced: expected vdim=4, and found vdim=6",
    ),
    "hidden": (
        replace("linear2", lambda nn: nn.Linear(16, D)),
        "`linear2` was replaced: expected in_features=12, and found in_features=16",
    ),
    "another network": (
        replace("linear1", lambda nn: nn.Sequential(nn.Linear(D, 12), nn.Tanh())),
        "`linear1` was replaced: expected a Linear, and found a Sequential",
    ),
    "out_proj": (
        lambda module, torch: setattr(module.self_attn, "out_proj", torch.nn.Linear(D, 4)),
        "`out_proj` was replaced: expected out_features=8",
    ),
    "dropout": (replace("dropout2", lambda nn: nn.Softmax()), "`dropout2`.*found a Softmax"),
    "forward": (set_of("linear1", forward=lambda x: x), "the forward of its part `linear1` may"),
    "own forward": (set_of("", forward=lambda x, y: x), "the forward may change"),
    "hook": (
        call_of("norm1", "register_forward_hook", lambda module, x, y: 2 * y),
        "the forward_hooks of its part `norm1` may change what its class computes",
    ),
    "hook before": (
        call_of("", "register_forward_pre_hook", lambda module, x: None),
        "the forward_pre_hooks may change what its class computes",
    ),
    "meta": (on_meta, "its parameters are on the device `meta`, without values"),
}


@pytest.mark.parametrize(("change", "message"), TORCH_PARTS.values(), ids=TORCH_PARTS)
def test_replaced_parts_of_torch_are_refused(change, message, torch):
    module = torch_block(torch, "Decoder")
    convert.from_torch(module)
    change(module, torch)
    with pytest.raises(ValueError, match=f"Cannot convert a torch .*{message}"):
        convert.from_torch(module)


def test_weights_of_a_parametrization_are_refused(torch):
    module = torch_block(torch)
    torch.nn.utils.parametrizations.weight_norm(module.linear1)
    with pytest.raises(ValueError, match="`linear1` was replaced: expected a Linear, and found"):
        convert.from_torch(module)


def test_replaced_parts_of_torch_that_are_converted(torch):
    """A memory of other features, and no dropout at all."""
    theirs = torch_block(torch, "Decoder")
    theirs.multihead_attn = torch.nn.MultiheadAttention(D, 2, kdim=E, vdim=E, batch_first=True)
    theirs.norm2 = torch.nn.LayerNorm(D, elementwise_affine=False)
    for name in ("dropout", "dropout1", "dropout2", "dropout3"):
        setattr(theirs, name, torch.nn.Identity())
    ours = convert.from_torch(torch_random(theirs, torch))
    close(ours(X, MEMORY), in_torch(torch, theirs, X, MEMORY))
    assert ours.dropout == 0


def a_hub_block(cross=False):
    cls = keras_hub.layers.TransformerDecoder if cross else keras_hub.layers.TransformerEncoder
    layer = cls(12, 2, name="block")
    layer(X, *([MEMORY] if cross else []))
    return layer


def heads_of_keras(*args, value=X, **kwargs):
    layer = keras.layers.MultiHeadAttention(*args, **kwargs)
    layer(X, value)
    return layer


def dense_of_keras(units, size=D, **kwargs):
    layer = keras.layers.Dense(units, **kwargs)
    layer.build((None, size))
    return layer


def norm_of_keras(**kwargs):
    layer = keras.layers.LayerNormalization(**kwargs)
    layer.build(X.shape)
    return layer


def another_call(layer):
    layer._feedforward_output_dense.call = lambda x: x
    return layer._feedforward_output_dense


HUB_PARTS = {
    "heads": ("_self_attention_layer", lambda _: heads_of_keras(4, 2), "num_heads=4"),
    "sizes": ("_self_attention_layer", lambda _: heads_of_keras(2, 6), "key_dim=6"),
    "gate": ("_self_attention_layer", lambda _: heads_of_keras(2, 4, use_gate=True), "use_gate=T"),
    "bias": ("_self_attention_layer", lambda _: heads_of_keras(2, 4, use_bias=False), "_query_d"),
    "a subclass": ("_self_attention_layer", lambda _: built(Subclass(2, 4), X), "a Subclass"),
    "epsilon": ("_feedforward_layer_norm", lambda _: norm_of_keras(epsilon=0.5), "epsilon=0.5"),
    "axis": ("_feedforward_layer_norm", lambda _: norm_of_keras(axis=1, epsilon=1e-5), "axis="),
    "activation": (
        "_feedforward_intermediate_dense",
        lambda _: dense_of_keras(12, activation="tanh"),
        "found activation=<function tanh",
    ),
    "size": (
        "_feedforward_intermediate_dense",
        lambda _: dense_of_keras(13, activation="relu"),
        r"expected a kernel \(8, 12\) and use_bias=True, and found \(8, 13\)",
    ),
    "call": ("_feedforward_output_dense", another_call, "the call of its part"),
}


@pytest.mark.parametrize(("name", "make", "message"), HUB_PARTS.values(), ids=HUB_PARTS)
def test_replaced_parts_of_keras_hub_are_refused(name, make, message):
    layer = a_hub_block()
    convert.from_keras_hub(layer)
    layer._tracker.unlock()
    setattr(layer, name, make(layer))
    with pytest.raises(ValueError, match=f"(?s)Cannot convert a keras.*{message}"):
        convert.from_keras_hub(layer)


def test_replaced_parts_of_keras_are_refused():
    def heads_with(name, part):
        layer = heads_of_keras(2, 4)
        layer._tracker.unlock()
        setattr(layer, name, part)
        return layer

    class Hard(keras.layers.Softmax):
        pass

    class Dense(keras.layers.EinsumDense):
        def call(self, x):
            return 2 * super().call(x)

    with pytest.raises(ValueError, match=r"`_softmax` was replaced: expected a Softmax, .* a Hard"):
        convert.from_keras(heads_with("_softmax", Hard()))
    dense = Dense("abc,cde->abde", (None, 2, 4), bias_axes="de")
    dense.build(X.shape)
    with pytest.raises(ValueError, match=r"`_key_dense` was replaced: .* a Dense"):
        convert.from_keras(heads_with("_key_dense", dense))
    layer = heads_of_keras(2, 4)
    layer.call = lambda *args, **kwargs: 0
    with pytest.raises(ValueError, match="the call may change what its class computes"):
        convert.from_keras(layer)


def test_causal_is_for_blocks(torch):
    with pytest.raises(ValueError, match="causal=True is for blocks"):
        convert.from_torch(torch.nn.MultiheadAttention(D, 2), causal=True)
