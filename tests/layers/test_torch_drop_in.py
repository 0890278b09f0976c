"""`ops.attend` and `MultiHeadAttention` give what PyTorch's attention gives."""

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import MultiHeadAttention
from tests.arrays import random
from tests.layers.small_inputs import B, D, S, T, booleans, close, randomize

ops = keras.ops

ON_TORCH = pytest.mark.skipif(keras.backend.backend() != "torch", reason="compares with PyTorch")


# PyTorch


@ON_TORCH
@pytest.mark.parametrize("mask", [None, "boolean", "causal", "bias"])
def test_attend_is_torchs_scaled_dot_product_attention(mask):
    import torch

    query, key, value = (
        ops.convert_to_tensor(random(B, n, 2, size, seed=i))
        for i, (n, size) in enumerate([(T, 4), (T, 4), (T, 3)])
    )
    allowed, bias = booleans(B, 2, T, T), ops.convert_to_tensor(random(B, 2, T, T, seed=5))
    theirs, ours = {
        None: ({}, {}),
        "boolean": ({"attn_mask": ops.convert_to_tensor(allowed)}, {"mask": allowed}),
        "causal": ({"is_causal": True}, {"pattern": "causal"}),
        "bias": ({"attn_mask": bias}, {"bias": bias}),
    }[mask]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (query, key, value)), **theirs
    ).transpose(1, 2)
    close(keras_attention.ops.attend(query, key, value, **ours), expected)


@ON_TORCH
@pytest.mark.parametrize("sizes", [(D, D, D), (D, 4, 8)], ids=["equal sizes", "unequal sizes"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_layer_is_torchs_multihead_attention(sizes, masked):
    import torch

    heads, dim = 2, sizes[0]
    query, key, value = (
        random(B, n, size, seed=i) for i, (n, size) in enumerate(zip((T, S, S), sizes, strict=True))
    )
    theirs = torch.nn.MultiheadAttention(
        dim, heads, kdim=sizes[1], vdim=sizes[2], batch_first=True, device=ops.zeros(()).device
    )
    ours = MultiHeadAttention(heads, dim // heads)
    ours.build(query.shape, value.shape, key.shape)
    randomize(ours)
    weights = {w.path.split("/", 1)[1]: ops.convert_to_tensor(w) for w in ours.weights}
    kernels = [weights[f"{n}/kernel"].reshape(-1, dim).T for n in ("query", "key", "value")]
    names = ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
    with torch.no_grad():
        if len(set(sizes)) == 1:
            theirs.in_proj_weight.copy_(torch.cat(kernels))
        else:
            for name, kernel in zip(names, kernels, strict=True):
                getattr(theirs, name).copy_(kernel)
        theirs.in_proj_bias.copy_(
            torch.cat([weights[f"{n}/bias"].flatten() for n in ("query", "key", "value")])
        )
        theirs.out_proj.weight.copy_(weights["attention_output/kernel"].reshape(dim, dim).T)
        theirs.out_proj.bias.copy_(weights["attention_output/bias"])
    allowed, real = booleans(T, S), np.array([[True, True, False], [True, True, True]])
    arguments, call = {}, {}
    if masked:
        arguments = {
            "attn_mask": ops.convert_to_tensor(~allowed),
            "key_padding_mask": ops.convert_to_tensor(~real),
        }
        call = {"attention_mask": allowed, "value_mask": real}
    expected, expected_scores = theirs(
        *map(ops.convert_to_tensor, (query, key, value)), average_attn_weights=False, **arguments
    )
    output, scores = ours(query, value, key, return_attention_scores=True, **call)
    close(output, expected.detach())
    close(scores, expected_scores.detach())
