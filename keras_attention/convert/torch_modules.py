"""`from_torch`: the attention modules of `torch.nn`, with any backend of Keras."""

import functools
import re
import sys
from typing import Any

import keras
import numpy as np

from keras_attention.convert import utils
from keras_attention.convert.huggingface import entries
from keras_attention.layers.blocks.transformer_block import TransformerBlock
from keras_attention.layers.multi_head_attention import MultiHeadAttention

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

    >>> import torch                                                           # doctest: +SKIP
    >>> module = torch.nn.MultiheadAttention(16, 2, batch_first=True)          # doctest: +SKIP
    >>> layer = keras_attention.convert.from_torch(module)                     # doctest: +SKIP
    >>> layer(x, memory).shape                                                 # doctest: +SKIP
    (2, 5, 16)
    """
    return utils.converter(module, "torch.nn", CONVERTERS)(module, causal)


# Parts by their names there, as in the tables of Hugging Face.
_HEADS: dict[str, Any] = {"in_proj": ("query_dense", "key_dense", "value_dense")}
_HEADS |= {f"{role[0]}_proj": f"{role}_dense" for role in ("query", "key", "value")}
_HEADS |= {"out_proj": "output_dense"}
_ENCODER = {
    "self_attn": entries.within("attention", _HEADS),
    "norm1": "attention_norm",
    "linear1": "feed_forward.intermediate_dense",
    "linear2": "feed_forward.output_dense",
    "norm2": "feed_forward_norm",
}
_DECODER = {
    **_ENCODER,
    "multihead_attn": entries.within("cross_attention_layer", _HEADS),
    "norm2": "cross_attention_norm",
    "norm3": "feed_forward_norm",
}


def _multi_head(module, causal):
    if causal:
        instead = "Pass `use_causal_mask=True` to the new layer."
        utils.refuse(module, "causal=True is for blocks", instead)
    _check_attention(module)
    weights = _weights(module)
    ours = MultiHeadAttention(
        module.num_heads,
        module.head_dim,
        dropout=module.dropout,
        use_bias=not {"in_proj.bias", "out_proj.bias"}.isdisjoint(weights),
    )
    sizes = module.embed_dim, module.vdim, module.kdim
    ours.build(*((None, None, size) for size in sizes))
    return _read(ours, _HEADS, weights)


def _block(module, causal, cross_attention=False):
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
    return _read(ours, _DECODER if cross_attention else _ENCODER, _weights(module))


def _read(ours, table, weights):
    """The layer with the weights of a table; those that the module lacks stay as they start."""
    for entry in entries.of(table, ours):
        if entry.name in weights:
            arrays = entry.split(weights[entry.name])
            for variable, array in zip(entry.variables, arrays, strict=True):
                utils.assign(variable, array)
    return ours


def _check_parts(module, cross_attention):
    """Rejects a block with incompatible parts; returns the features of the context."""
    check = functools.partial(utils.check_part, module)
    size, eps = check("linear1", ("Linear",)).in_features, check("norm1", ("LayerNorm",)).eps
    _check_attention(module, "self_attn", embed_dim=size, kdim=size, vdim=size)
    context_size = size
    if cross_attention:
        context_size = check("multihead_attn", ("MultiheadAttention",)).kdim
        same = {"embed_dim": size, "num_heads": module.self_attn.num_heads}
        _check_attention(module, "multihead_attn", **same, vdim=context_size)
    check("linear2", ("Linear",), in_features=module.linear1.out_features, out_features=size)
    for number in ("", 1, 2, 3) if cross_attention else ("", 1, 2):
        check(f"dropout{number}", ("Dropout", "Identity"))
        if number:
            check(f"norm{number}", ("LayerNorm",), eps=eps, normalized_shape=(size,))
    return context_size


def _activation(module):
    """The name of Keras's activation for a function or a module of PyTorch itself."""
    torch, given = sys.modules["torch"], module.activation
    for name, cls in ACTIVATIONS.items():
        owners = (torch.nn.functional, torch, torch.Tensor)
        if any(given is getattr(owner, name, None) for owner in owners):
            return name
        is_module = type(given) is getattr(torch.nn, cls)
        if is_module and getattr(given, "approximate", "none") == "none":
            utils.check_call(module, given, "activation")
            return name
    utils.refuse(
        module,
        f"expected an activation of PyTorch's own {tuple(ACTIVATIONS)}, without options, and found "
        f"{given!r}",
        "Make a `TransformerBlock(activation=…)` yourself, and convert `self_attn` for it.",
    )


def _check_attention(peer, name=None, **expected):
    """Rejects a `MultiheadAttention`, of a block or alone, that adds keys to its inputs."""
    attention, part = peer, "it"
    if name:
        attention = utils.check_part(peer, name, ("MultiheadAttention",), **expected)
        part = f"its part `{name}`"
    added = {"bias_kv": attention.bias_k is not None, "zero_attn": attention.add_zero_attn}
    for option in [option for option, found in added.items() if found]:
        utils.refuse(
            peer,
            f"{part} has add_{option}=True, one more key for every query",
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
    classes = ("NonDynamicallyQuantizableLinear", "Linear")
    utils.check_part(attention, "out_proj", classes, in_features=size, out_features=size)


def _weights(module):
    """The parameters of a module as NumPy arrays, by their names."""
    if any(parameter.is_meta for parameter in module.parameters()):
        why = "its parameters are on the device `meta`, without values"
        utils.refuse(module, why, "Load them first.")
    return {
        # `in_proj_weight` is what other parts call `in_proj.weight`.
        re.sub(r"_proj_(?=weight|bias)", "_proj.", name): np.asarray(x.detach().cpu().double())
        for name, x in module.state_dict().items()
    }


CONVERTERS = {
    "MultiheadAttention": _multi_head,
    "TransformerEncoderLayer": _block,
    "TransformerDecoderLayer": functools.partial(_block, cross_attention=True),
}
