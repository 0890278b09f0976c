"""`from_torch`: the attention modules of `torch.nn`, with any backend of Keras."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np

from keras_attention.convert import utils
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.layers.transformer_block import TransformerBlock

# Keras's names, which PyTorch's functions share, and the classes of PyTorch's modules.
ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "tanh": "Tanh", "sigmoid": "Sigmoid"}


def from_torch(module: Any, causal: bool = False) -> keras.Layer:
    r"""A layer of this package that computes what a module of `torch.nn` does.

    | `torch.nn.` | becomes |
    | --- | --- |
    | `MultiheadAttention` | `MultiHeadAttention` |
    | `TransformerEncoderLayer` | `TransformerBlock` |
    | `TransformerDecoderLayer` | `TransformerBlock(cross_attention=True)` |

    Weights are read as NumPy arrays, from any device; Keras may run on TensorFlow or
    JAX. The data of the new layer is (batch, positions, features): for a module of
    `batch_first=False`, swap the first two axes of its inputs. Boolean masks of PyTorch are
    True where a key is *not* visible: pass `~key_padding_mask` as `value_mask` (`mask` of a
    block) and `~attn_mask` as `attention_mask`; a float `attn_mask` is an `attention_bias`.

    Args:
        module: a module of one of these classes. For a stack, convert each of its `layers`, and
            its last `norm` by hand.
        causal: whether the block is causal, as `is_causal` or a mask makes PyTorch's in each
            call. Required for decoding with a cache.

    Returns:
        A built layer, with equal outputs at inference for every query with a key; for a query
        without one, PyTorch gives NaN, and this layer 0. In training, PyTorch's blocks drop hidden
        features of the feed-forward network too. A block of `bias=False` gets biases of 0,
        which training may change.

    Raises:
        ValueError: the module is of another class; it or a part of it has hooks or another
            `forward`; a part was replaced by one of another class or size, or norms differ in
            `eps`; it has `add_bias_kv` or `add_zero_attn`, or an activation that is not PyTorch's
            own relu, gelu, silu, tanh or sigmoid; its parameters have no values; or `causal` is
            given for a module that is no block.

    Example:

    >>> import torch                                                           # doctest: +SKIP
    >>> module = torch.nn.MultiheadAttention(16, 2, batch_first=True)          # doctest: +SKIP
    >>> layer = keras_attention.convert.from_torch(module)                     # doctest: +SKIP
    >>> layer(x, memory).shape                                                 # doctest: +SKIP
    (2, 5, 16)
    """
    return utils.converter(module, "torch.nn", CONVERTERS)(module, causal)


def _multi_head(module, causal):
    if causal:
        utils.refuse(
            module, "causal=True is for blocks", "Pass `use_causal_mask=True` to the new layer."
        )
    _check_attention(module)
    weights = _weights(module)
    ours = MultiHeadAttention(
        module.num_heads,
        module.head_dim,
        dropout=module.dropout,
        use_bias=not {"in_proj_bias", "out_proj.bias"}.isdisjoint(weights),
    )
    size = module.embed_dim
    ours.build(*((None, None, features) for features in (size, module.vdim, module.kdim)))
    _assign_heads(ours, weights)
    return ours


def _encoder(module, causal):
    return _block(module, causal, cross_attention=False)


def _decoder(module, causal):
    return _block(module, causal, cross_attention=True)


def _block(module, causal, cross_attention):
    context_size = _check_parts(module, cross_attention)
    size = module.self_attn.embed_dim
    ours = TransformerBlock(
        module.linear1.out_features,
        module.self_attn.num_heads,
        dropout=getattr(module.dropout, "p", 0.0),
        activation=_activation(module),
        layer_norm_epsilon=module.norm1.eps,
        normalize_first=module.norm_first,
        causal=causal,
        cross_attention=cross_attention,
    )
    ours.build((None, None, size), (None, None, context_size) if cross_attention else None)
    weights = _weights(module)
    _assign_heads(ours.attention, weights, "self_attn.")
    norms = [ours.attention_norm, ours.feed_forward_norm]
    if cross_attention:
        _assign_heads(ours.cross_attention_layer, weights, "multihead_attn.")
        norms.insert(1, ours.cross_attention_norm)
    for number, norm in enumerate(norms, start=1):
        for variable, name in ((norm.gamma, "weight"), (norm.beta, "bias")):
            if f"norm{number}.{name}" in weights:
                utils.assign(variable, weights[f"norm{number}.{name}"])
    network = ours.feed_forward
    for name, dense in (
        ("linear1", network._intermediate_dense),
        ("linear2", network._output_dense),
    ):
        utils.assign_dense(dense, weights[f"{name}.weight"].T, weights.get(f"{name}.bias"))
    return ours


def _check_parts(module, cross_attention):
    """Rejects a block with incompatible parts; returns the features of the context."""

    def check(name, classes, **expected):
        return utils.check_part(module, name, classes, **expected)

    context_size = size = check("linear1", ("Linear",)).in_features
    eps = check("norm1", ("LayerNorm",)).eps
    attention = check("self_attn", ("MultiheadAttention",), embed_dim=size, kdim=size, vdim=size)
    _check_attention(attention, module, "self_attn")
    numbers: tuple[int, ...] = (1, 2)
    if cross_attention:
        sizes = {"embed_dim": size, "num_heads": attention.num_heads}
        attention = check("multihead_attn", ("MultiheadAttention",), **sizes)
        context_size = attention.kdim
        check("multihead_attn", ("MultiheadAttention",), vdim=context_size)
        _check_attention(attention, module, "multihead_attn")
        numbers = (1, 2, 3)
    check("linear2", ("Linear",), in_features=module.linear1.out_features, out_features=size)
    for number in numbers:
        check(f"norm{number}", ("LayerNorm",), eps=eps, normalized_shape=(size,))
        check(f"dropout{number}", ("Dropout", "Identity"))
    check("dropout", ("Dropout", "Identity"))
    return context_size


def _activation(module):
    """The name of Keras's activation for a function or a module of PyTorch itself."""
    torch = sys.modules["torch"]

    given = module.activation
    for name, cls in ACTIVATIONS.items():
        functions = (getattr(owner, name, None) for owner in (torch.nn.functional, torch))
        is_module = type(given) is getattr(torch.nn, cls)
        if is_module and getattr(given, "approximate", "none") == "none":
            utils.check_call(module, given, "activation")
            return name
        if any(given is function for function in (*functions, getattr(torch.Tensor, name, None))):
            return name
    utils.refuse(
        module,
        f"expected an activation of PyTorch's own {tuple(ACTIVATIONS)}, without options, and found "
        f"{given!r}",
        "Make a `TransformerBlock(activation=…)` yourself, and convert `self_attn` for it.",
    )


def _check_attention(attention, block=None, name=None):
    """Rejects a `MultiheadAttention`, of a block or alone, that adds keys to its inputs."""
    peer, part = (attention, "it") if block is None else (block, f"its part `{name}`")
    for option, found in (
        ("add_bias_kv", attention.bias_k is not None),
        ("add_zero_attn", attention.add_zero_attn),
    ):
        if found:
            utils.refuse(
                peer,
                f"{part} has {option}=True, one more key for every query",
                "Append that key and value to the ones that you give the layer.",
            )
    size, heads = attention.embed_dim, attention.num_heads
    if heads * attention.head_dim != size:
        utils.refuse(
            peer,
            f"{part} has num_heads={heads} and head_dim={attention.head_dim}, whose product is not "
            f"embed_dim={size}",
            "Make a module of as many heads, and load the weights into it.",
        )
    utils.check_part(
        attention,
        "out_proj",
        ("NonDynamicallyQuantizableLinear", "Linear"),
        in_features=attention.embed_dim,
        out_features=attention.embed_dim,
    )


def _weights(module):
    """The parameters of a module as NumPy arrays, by their names."""
    if any(parameter.is_meta for parameter in module.parameters()):
        utils.refuse(
            module, "its parameters are on the device `meta`, without values", "Load them first."
        )
    return {
        name: np.asarray(value.detach().cpu().double())
        for name, value in module.state_dict().items()
    }


def _assign_heads(ours, weights, prefix=""):
    """The projections of a `MultiheadAttention`, whose matrices are (features out, features in)."""
    if f"{prefix}in_proj_weight" in weights:
        kernels = np.split(weights[f"{prefix}in_proj_weight"], 3)
    else:
        kernels = [weights[f"{prefix}{role}_proj_weight"] for role in "qkv"]
    biases: list[Any] = [None] * 3
    if f"{prefix}in_proj_bias" in weights:
        biases = np.split(weights[f"{prefix}in_proj_bias"], 3)
    denses = (ours.query_dense, ours.key_dense, ours.value_dense)
    for dense, kernel, bias in zip(denses, kernels, biases, strict=True):
        utils.assign_dense(dense, kernel.T, bias)
    utils.assign_dense(
        ours.output_dense,
        weights[f"{prefix}out_proj.weight"].T,
        weights.get(f"{prefix}out_proj.bias"),
    )


CONVERTERS = {
    "MultiheadAttention": _multi_head,
    "TransformerEncoderLayer": _encoder,
    "TransformerDecoderLayer": _decoder,
}
