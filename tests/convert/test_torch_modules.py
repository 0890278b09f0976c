"""Modules of PyTorch converted: the new layer gives what the old module gives."""

import keras
import numpy as np
import pytest

from keras_attention import convert
from keras_attention.convert import torch_modules
from tests.arrays import numpy, random
from tests.convert.both import (
    KEY,
    MEMORY,
    MEMORY_PADDING,
    PADDING,
    PAIRS,
    B,
    D,
    E,
    S,
    T,
    X,
    close,
    in_torch,
    reloaded,
    torch_block,
    torch_random,
)

CAUSAL = np.tril(np.ones((T, T), bool))
TORCH_HEADS = {
    "plain": {},
    "no bias": {"bias": False},
    "sizes": {"kdim": D, "vdim": E},
    "time first": {"batch_first": False},
    "double": {"dtype": "float64"},
}


@pytest.mark.parametrize("kwargs", TORCH_HEADS.values(), ids=TORCH_HEADS)
def test_multi_head_attention_of_torch(kwargs, torch):
    kwargs = {"batch_first": True, "dropout": 0.1, "device": "cpu", **kwargs}
    dtype = kwargs.pop("dtype", "float32")
    module = torch.nn.MultiheadAttention(D, 2, dtype=getattr(torch, dtype), **kwargs)
    ours = convert.from_torch(torch_random(module, torch))
    value = MEMORY if "vdim" in kwargs else random(B, S, D, seed=6)
    float_mask = random(T, S, seed=7)

    def turned(x):
        return x if kwargs["batch_first"] else np.swapaxes(x, 0, 1)

    for masks, our_masks in (
        ({}, {}),
        ({"key_padding_mask": ~MEMORY_PADDING}, {"value_mask": MEMORY_PADDING}),
        ({"attn_mask": ~PAIRS[0]}, {"attention_mask": PAIRS[0]}),
        ({"attn_mask": float_mask.astype(dtype)}, {"attention_bias": float_mask}),
    ):
        arrays = [turned(x.astype(dtype)) for x in (X, KEY, value)]
        expected, weights = in_torch(torch, module, *arrays, average_attn_weights=False, **masks)
        output, scores = ours(X, value, KEY, return_attention_scores=True, **our_masks)
        close(output, turned(expected))
        close(scores, weights)
    assert (ours.dropout, ours.use_bias) == (0.1, kwargs.get("bias", True))


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
def test_biases_on_one_side_of_the_heads_alone(before, after, torch):
    peer = torch.nn.MultiheadAttention(D, 2, batch_first=True, bias=before)
    peer.out_proj = torch.nn.Linear(D, D, bias=after)
    ours = convert.from_torch(torch_random(peer, torch))
    close(ours(X), in_torch(torch, peer, X, X, X)[0])


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("bias", [True, False])
def test_transformer_encoder_layer(norm_first, bias, torch, tmp_path):
    options = {"activation": "gelu", "layer_norm_eps": 1e-3, "norm_first": norm_first}
    theirs = torch_random(torch_block(torch, bias=bias, **options), torch)
    ours = convert.from_torch(theirs)
    close(ours(X), in_torch(torch, theirs, X))
    expected = in_torch(torch, theirs, X, src_mask=~CAUSAL, src_key_padding_mask=~PADDING)
    # PyTorch may leave padded positions zero, and those here have no attention.
    close(numpy(ours(X, mask=PADDING, attention_mask=CAUSAL))[PADDING], expected[PADDING])
    causal = convert.from_torch(theirs, causal=True)
    close(numpy(causal(X, mask=PADDING))[PADDING], expected[PADDING])
    close(reloaded(ours, tmp_path, X.shape)(X), in_torch(torch, theirs, X))


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_transformer_decoder_layer(norm_first, torch):
    theirs = torch_block(torch, "Decoder", activation=torch.nn.SiLU(), norm_first=norm_first)
    torch_random(theirs, torch)
    masks = {"tgt_mask": ~CAUSAL, "memory_key_padding_mask": ~MEMORY_PADDING}
    expected = in_torch(torch, theirs, X, KEY, **masks)
    ours = convert.from_torch(theirs, causal=True)
    close(ours(X, KEY, context_mask=MEMORY_PADDING), expected)
    ours = convert.from_torch(theirs)
    close(ours(X, KEY, context_mask=MEMORY_PADDING, attention_mask=CAUSAL), expected)


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


def test_activations_of_torch(torch):
    assert " ".join(torch_modules.ACTIVATIONS) == "relu gelu silu tanh sigmoid"
    for name, module in torch_modules.ACTIVATIONS.items():
        given = [getattr(torch.nn, module)(), getattr(torch.nn.functional, name)]
        if hasattr(torch, name):
            given += [getattr(torch, name), getattr(torch.Tensor, name)]
        for activation in given:
            theirs = torch_random(torch_block(torch, activation=activation), torch)
            ours = convert.from_torch(theirs)
            assert ours.activation is keras.activations.get(name)
        # Apart from PyTorch's fast path, which reads another attribute than the activation.
        x = torch.tensor(X, requires_grad=True)
        close(ours(X), theirs(x).detach().numpy())
