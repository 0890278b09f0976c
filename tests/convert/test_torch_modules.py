"""Modules of PyTorch converted: the new layer gives what the old module gives."""

import numpy as np
import pytest

from keras_attention import convert
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
    torch_random,
)

TORCH_HEADS = {
    "plain": {},
    "no bias": {"bias": False},
    "sizes": {"kdim": D, "vdim": E},
    "time first": {"batch_first": False},
    "double": {"dtype": "float64"},
}


@pytest.mark.parametrize("kwargs", TORCH_HEADS.values(), ids=TORCH_HEADS)
def test_multi_head_attention_of_torch(kwargs, torch):
    kwargs = {"batch_first": True, **kwargs}
    dtype = kwargs.pop("dtype", "float32")
    kwargs["dtype"] = getattr(torch, dtype)
    theirs = torch_random(
        torch.nn.MultiheadAttention(D, 2, dropout=0.1, device="cpu", **kwargs), torch
    )
    ours = convert.from_torch(theirs)
    value = MEMORY if "vdim" in kwargs else random(B, S, D, seed=6)
    float_mask = random(T, S, seed=7)
    for masks, our_masks in (
        ({}, {}),
        ({"key_padding_mask": ~MEMORY_PADDING}, {"value_mask": MEMORY_PADDING}),
        ({"attn_mask": ~PAIRS[0]}, {"attention_mask": PAIRS[0]}),
        ({"attn_mask": float_mask.astype(dtype)}, {"attention_bias": float_mask}),
    ):
        arrays = [x.astype(dtype) for x in (X, KEY, value)]
        if not kwargs["batch_first"]:
            arrays = [np.swapaxes(x, 0, 1) for x in arrays]
        expected, weights = in_torch(torch, theirs, *arrays, average_attn_weights=False, **masks)
        if not kwargs["batch_first"]:
            expected = np.swapaxes(expected, 0, 1)
        output, scores = ours(X, value, KEY, return_attention_scores=True, **our_masks)
        close(output, expected)
        close(scores, weights)
    assert (ours.dropout, ours.use_bias) == (0.1, kwargs.get("bias", True))


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("bias", [True, False])
def test_transformer_encoder_layer(norm_first, bias, torch, tmp_path):
    theirs = torch.nn.TransformerEncoderLayer(
        D,
        2,
        12,
        activation="gelu",
        layer_norm_eps=1e-3,
        norm_first=norm_first,
        bias=bias,
        batch_first=True,
        device="cpu",
    )
    torch_random(theirs, torch)
    ours = convert.from_torch(theirs)
    close(ours(X), in_torch(torch, theirs, X))
    pairs = np.tril(np.ones((T, T), bool))
    expected = in_torch(torch, theirs, X, src_mask=~pairs, src_key_padding_mask=~PADDING)
    # PyTorch may leave padded positions zero, and those here have no attention.
    close(numpy(ours(X, mask=PADDING, attention_mask=pairs))[PADDING], expected[PADDING])
    causal = convert.from_torch(theirs, causal=True)
    close(numpy(causal(X, mask=PADDING))[PADDING], expected[PADDING])
    close(reloaded(ours, tmp_path, X.shape)(X), in_torch(torch, theirs, X))


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_transformer_decoder_layer(norm_first, torch):
    theirs = torch.nn.TransformerDecoderLayer(
        D, 2, 12, activation=torch.nn.SiLU(), norm_first=norm_first, batch_first=True, device="cpu"
    )
    torch_random(theirs, torch)
    pairs = np.tril(np.ones((T, T), bool))
    expected = in_torch(
        torch, theirs, X, KEY, tgt_mask=~pairs, memory_key_padding_mask=~MEMORY_PADDING
    )
    ours = convert.from_torch(theirs, causal=True)
    close(ours(X, KEY, context_mask=MEMORY_PADDING), expected)
    ours = convert.from_torch(theirs)
    close(ours(X, KEY, context_mask=MEMORY_PADDING, attention_mask=pairs), expected)
