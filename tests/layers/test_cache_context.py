"""The cached context of cross-attention is the context."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import masks, patterns, scores
from tests.arrays import random
from tests.layers.small_caches import B, D, H, T, X, agree, heads, made, numpy

# The memory of cross-attention

CONTEXT = random(B, 7, 6, seed=1)
THERE = np.arange(7) < np.array([[7], [3], [0]])


def across(**kwargs):
    layer = ka.MultiHeadAttention(H, 8, value_dim=6, **kwargs)
    return made(layer, X.shape, CONTEXT.shape)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_key_value_heads": 2, "qk_norm": "rms", "use_sink": True},
        {"score": "additive", "position": "relative_bias"},
        {"score": scores.Location(9), "position": None},
        {"position": "rotary", "pattern": patterns.SlidingWindow(3, 3)},
    ],
    ids=["plain", "grouped", "additive", "location", "rotary"],
)
@pytest.mark.parametrize("masked", [False, True])
def test_memory_is_the_context(options, masked):
    layer = across(**options)
    mask = {"key_mask": keras.ops.convert_to_tensor(THERE)} if masked else {}
    expected, weights = layer(X, CONTEXT, return_attention_scores=True, **mask)
    memory = layer.cache_context(CONTEXT, **mask)
    assert sorted(memory) == ["key", "mask", "value"]
    output, found, again = layer(X, cache=memory, return_attention_scores=True)
    agree(output, expected)
    agree(found, weights)
    agree(layer(X, cache=again)[0], expected)
    here = layer(X[:, 4:], cache=memory, positions=(np.arange(4, T), None))[0]
    agree(here, expected[:, 4:])


def test_memory_of_other_keys_heeds_the_masks_that_tensors_carry():
    layer = made(ka.MultiHeadAttention(H, 8), X.shape, CONTEXT.shape, (B, 7, 4))
    keys = random(B, 7, 4, seed=2)
    carried = THERE & (np.arange(7) != 1)
    value = masks.carry(keras.ops.convert_to_tensor(CONTEXT), keras.ops.convert_to_tensor(carried))
    here = np.arange(7) != 0
    here = np.broadcast_to(here, (B, 7))
    expected = layer(X, value, keys, key_mask=here)
    memory = layer.cache_context(value, keys, key_mask=here)
    np.testing.assert_array_equal(numpy(memory["mask"]), here & carried)
    agree(layer(X, cache=memory)[0], expected)
    assert masks.implicit(value) is not None


def test_memory_without_projections():
    layer = ka.Attention()
    expected = layer(X, random(B, 7, D, seed=2))
    agree(layer(X, cache=layer.cache_context(random(B, 7, D, seed=2)))[0], expected)


def test_memory_in_half_precision():
    layer = across(dtype="mixed_bfloat16")
    carried = keras.ops.convert_to_tensor(THERE)
    context = masks.carry(keras.ops.convert_to_tensor(CONTEXT), carried)
    memory = layer.cache_context(context)
    assert keras.backend.standardize_dtype(memory["key"].dtype) == "bfloat16"
    np.testing.assert_array_equal(numpy(memory["mask"]), THERE)
    agree(layer(X, cache=memory)[0], layer(X, context), 1e-2)


def test_a_mask_of_all_rows_is_one_of_each():
    layer, there = heads(), np.arange(T)[None] < 6
    for size in (1, 2):
        cache = layer.make_cache(B, T)
        for at in range(4, 8, size):
            _, cache = layer(X[:, at : at + size], query_mask=there[:, at : at + size], cache=cache)
        np.testing.assert_array_equal(numpy(cache["index"]), [2] * B)
    memory = across().cache_context(CONTEXT, key_mask=THERE[:1])
    np.testing.assert_array_equal(numpy(memory["mask"]), np.repeat(THERE[:1], B, axis=0))


def test_a_query_mask_counts_with_memory():
    layer = across()
    flags = np.arange(T) < np.array([[T], [2], [4]])
    expected = layer(X, CONTEXT, query_mask=flags)
    output = layer(X, query_mask=flags, cache=layer.cache_context(CONTEXT))[0]
    agree(output, expected)
    assert (numpy(output)[~flags] == 0).all()
