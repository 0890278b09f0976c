"""Decoding with a cache: in any pieces, it is one causal pass."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns, positions
from keras_attention.layers import kv_cache
from keras_attention.sequences import masks
from tests.arrays import random
from tests.compiled import program, quick
from tests.gradients import weight_gradients
from tests.layers.small_caches import (
    PATTERNS,
    B,
    D,
    H,
    T,
    X,
    agree,
    decoded,
    heads,
    made,
    numpy,
    pieces,
)


def test_log_probabilities_stand_before_the_cache():
    layer = made(ka.HardAttention(2, 4, gradient="reinforce"))
    output, chosen, cache = layer(X, cache=layer.make_cache(B, T))
    expected = layer(X, use_causal_mask=True)
    agree(output, expected[0])
    agree(chosen, expected[1])
    np.testing.assert_array_equal(numpy(cache["index"]), T)


def test_a_cache_keeps_its_own_dtype():
    layer = heads(position="rotary")
    expected = quick(lambda x: layer(x, use_causal_mask=True))(X)
    output, cache = decoded(layer, X, [3, 1, 5], layer.make_cache(B, T, dtype="float16"))
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    assert keras.backend.standardize_dtype(cache["value"].dtype) == "float16"
    agree(output, expected, 2e-2)
    exact = heads(dtype="mixed_bfloat16")
    cache = exact(X, cache=exact.make_cache(B, T, dtype="float32"))[1]
    assert keras.backend.standardize_dtype(cache["key"].dtype) == "float32"


@pytest.mark.parametrize("pattern", ["none", "window"])
def test_dynamic_scaling_is_of_the_tokens_so_far(pattern):
    # It depends on the last position, so that each token changes what was rotated before.
    rotary = positions.Rotary(scaling="dynamic", factor=3.0, original_max_length=3)
    layer = heads(position=rotary, pattern=PATTERNS[pattern]())
    step = quick(lambda x, cache: layer(x, cache=cache))
    whole = quick(lambda x: layer(x, use_causal_mask=True))
    cache, at = layer.make_cache(B, 2 * T), 0
    for size in (2, 1, 1, 3):
        output, cache = step(X[:, at : at + size], cache)
        at += size
        expected = whole(X[:, :at])
        agree(output, expected[:, -size:])


# What a cache is


def test_what_make_cache_gives():
    layer = ka.MultiHeadAttention(H, 8, value_dim=6, num_key_value_heads=2)
    cache = layer.make_cache(5, 7)
    assert {name: tuple(array.shape) for name, array in cache.items()} == {
        "key": (5, 2, 7, 8),
        "value": (5, 2, 7, 6),
        "index": (5,),
    }
    assert keras.backend.standardize_dtype(cache["index"].dtype) == "int32"
    window = ka.MultiHeadAttention(H, 8, sliding_window=4)
    assert window.make_cache(5, 7)["key"].shape[2] == 4
    assert window.make_cache(5, 3)["key"].shape[2] == 3


def test_a_call_leaves_the_cache_that_it_was_given():
    layer = heads()
    step = quick(lambda x, cache: layer(x, cache=cache))
    cache = step(X[:, :3], layer.make_cache(B, T))[1]
    before = {name: numpy(array).copy() for name, array in cache.items()}
    first = step(X[:, 3:4], cache)[0]
    for name, array in cache.items():
        np.testing.assert_array_equal(numpy(array), before[name])
    agree(step(X[:, 3:4], cache)[0], first, 0)


def test_a_window_goes_on_beyond_the_length():
    layer = heads(pattern=patterns.SlidingWindow(2, 0), position="rotary")
    x = random(B, 40, D)
    output, cache = decoded(layer, x, [1] * 8 + [30, 2], layer.make_cache(B, 5))
    assert cache["key"].shape[2] == 3
    agree(output, quick(lambda x: layer(x, use_causal_mask=True))(x))


def test_slots_hold_what_they_say():
    np.testing.assert_array_equal(
        numpy(kv_cache.stored_positions(keras.ops.convert_to_tensor([0, 2, 4, 9]), 4)),
        [[-4, -3, -2, -1], [0, 1, -2, -1], [0, 1, 2, 3], [8, 5, 6, 7]],
    )


# Its end


@pytest.mark.parametrize("sizes", [[T + 1], [T, 1], [T - 1, 2]])
def test_more_tokens_than_slots_are_an_error(sizes):
    layer = heads()
    cache = layer.make_cache(B, T)
    x = random(B, T + 1, D)
    *first, last = pieces(x, sizes)
    for piece in first:
        _, cache = layer(piece, cache=cache)
    with pytest.raises(ValueError, match=f"has {T} entries.*tokens up to {T + 1} in a row"):
        layer(last, cache=cache)
    # What is padding needs no slot.
    layer(last, query_mask=np.zeros(last.shape[:2], bool), cache=cache)


@pytest.mark.parametrize("pattern", [None, patterns.SlidingWindow(T + 2, 0)])
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch runs eagerly")
def test_rows_that_overflow_are_nan_where_nothing_can_be_raised(pattern):
    layer = heads(pattern=pattern, use_bias=False)
    cache = layer(X, query_mask=np.arange(T) < [[T], [T - 1], [2]], cache=layer.make_cache(B, T))[1]

    def two(x, cache):
        first, cache = layer(x[:, :1], cache=cache)
        second, cache = layer(x[:, 1:], cache=cache)
        return first, second

    first, second = map(numpy, program(two, jit_compile=True)(X[:, :2], cache))
    np.testing.assert_array_equal(np.isnan(first).all((1, 2)), [True, False, False])
    np.testing.assert_array_equal(np.isnan(second).all((1, 2)), [True, True, False])
    assert not np.isnan(first[1:]).any() and not np.isnan(second[2:]).any()


@pytest.mark.parametrize("pattern", ["none", "window"])
def test_a_batch_and_a_length_that_are_not_known(pattern):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("only TensorFlow has shapes that are not known")
    import tensorflow as tf

    layer = heads(pattern=PATTERNS[pattern](), position="rotary")

    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec((None, None, D)), tf.TensorSpec((None, None))],
    )
    def run(x, first):
        cache = layer.make_cache(tf.shape(x)[0], T)
        _, cache = layer(x, query_mask=first > 0, cache=cache)
        return layer(x, query_mask=first < 1, cache=cache)[0]

    expected = layer(X, use_causal_mask=True)
    for rows, size in ((B, 4), (1, 8)):
        first = np.broadcast_to(np.arange(T) < size, (rows, T)).astype("float32")
        agree(run(X[:rows], first)[:, size:], expected[:rows, size:])


@pytest.mark.parametrize("slots", [T, 4])
def test_a_window_and_slots_that_are_not_known(slots):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("only TensorFlow has shapes that are not known")
    import tensorflow as tf

    # As a cache of its own makes it, and one that is shorter than the window.
    layer = heads(pattern=patterns.SlidingWindow(T - 1, 0), position="rotary")
    cache = layer.make_cache(B, slots)
    sizes = {"key": (None, H, None, 8), "value": (None, H, None, 6), "index": (None,)}
    spec = {name: tf.TensorSpec(shape, cache[name].dtype) for name, shape in sizes.items()}

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None, None, D)), spec])
    def run(x, cache):
        return layer(x, cache=cache)

    expected = layer(X, use_causal_mask=True)
    output, cache = run(X[:, :3], cache)
    agree(output, expected[:, :3])
    output, cache = run(X[:, 3:4], cache)
    agree(output, expected[:, 3:4])
    output, _ = run(X[:, 4:6], cache)
    if slots == T:
        agree(output, expected[:, 4:6])
    else:
        assert np.isnan(numpy(output)).all()


def test_gradients_pass_through_a_cache():
    layer = heads(pattern=patterns.SlidingWindow(3, 0), position="rotary")

    def in_pieces(x):
        cache, outputs = layer.make_cache(B, T), []
        for piece in pieces(x, [2, 1, 6]):
            output, cache = layer(piece, cache=cache)
            outputs.append(output)
        return keras.ops.square(keras.ops.concatenate(outputs, axis=1))

    found, of_x = weight_gradients(layer, in_pieces, [X])
    expected, of_x_at_once = weight_gradients(
        layer, lambda x: keras.ops.square(layer(x, use_causal_mask=True)), [X]
    )
    for gradient, other in zip([*found, *of_x], [*expected, *of_x_at_once], strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-3, atol=1e-4)


# The context of cross-attention

CONTEXT = random(B, 7, 6, seed=1)
THERE = np.arange(7) < np.array([[7], [3], [0]])


def across(**kwargs):
    layer = ka.MultiHeadAttention(H, 8, value_dim=6, **kwargs)
    return made(layer, X.shape, CONTEXT.shape)


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
