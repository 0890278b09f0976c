"""Integers that int32 has not, or whose sums it has not: right, or an error, never another mask."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import generation, losses, ops, patterns
from keras_attention.sequences import shapes
from tests.arrays import close, numpy

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
HEADS = X.reshape(2, 5, 2, 4)
LARGEST = shapes.LARGEST
# Positions and segments whose int32 are all 0.
FAR_APART = 2**32 * np.arange(5, dtype="int64")


def step(tokens, cache):
    return tokens, cache


def attend(**given):
    return numpy(ops.attend(HEADS, HEADS, HEADS, **given))


# Those of constructors are in test_constructors.
COUNTS = {
    "offset": lambda n: attend(pattern="causal", offset=n),
    "batch_size": lambda n: ka.MultiHeadAttention(2, 4).make_cache(n, 5),
    "length": lambda n: ka.MultiHeadAttention(2, 4).make_cache(2, n),
    "num_beams": lambda n: generation.beam_search(step, [0], (), max_tokens=2, num_beams=n),
    "max_tokens": lambda n: generation.greedy(step, [0], (), max_tokens=n),
}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("count", [LARGEST + 1, 2**31 - 1, 2**31, 2**40, 10**30])
def test_counts_end_before_int32_does(name, count):
    with pytest.raises(ValueError, match=rf"`{name}`.* at most {LARGEST}.*{name}={count}"):
        COUNTS[name](count)


CAUSAL = {"pattern": "causal"}


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"pattern": patterns.SlidingWindow(LARGEST, LARGEST)}, {}),
        ({"pattern": patterns.SlidingWindow(LARGEST, 0)}, CAUSAL),
        ({"pattern": patterns.Prefix(LARGEST)}, {}),
        ({"pattern": patterns.Block(LARGEST)}, {}),
        ({"pattern": patterns.Strided(LARGEST)}, {}),
        ({"pattern": patterns.Dilated(LARGEST)}, {"pattern": patterns.SlidingWindow(0, 0)}),
        ({"offset": LARGEST, **CAUSAL}, {}),
        ({"offset": np.full((2,), LARGEST), **CAUSAL}, {}),
    ],
    ids=repr,
)
def test_the_largest_numbers_are_exact(given, same):
    np.testing.assert_allclose(attend(**given), attend(**same), atol=1e-6)


INTEGERS = {
    "query_positions": lambda x: attend(query_positions=x),
    "positions": lambda x: ka.SelfAttention(2, 4, position="alibi")(X, positions=x),
    "offset": lambda x: attend(offset=x[:2]),
    "start_index": lambda x: ka.SinCosPositionEmbedding()(X, start_index=int(x[1])),
    "seed": lambda x: ka.MultiHeadAttention(2, 4, seed=int(x[1])),
    "ignore_class": lambda x: losses.SmoothedCrossentropy(ignore_class=int(x[1])),
    "pad_token": lambda x: generation.greedy(step, [0], (), max_tokens=2, pad_token=int(x[1])),
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("scale", [1, -1])
def test_integers_outside_int32_are_errors(name, scale):
    dtype = "uint32" if name == "seed" and scale == 1 else "int32"
    with pytest.raises(ValueError, match=rf"`{name}` must be within {dtype}, from -?\d+ to"):
        INTEGERS[name](scale * FAR_APART)


@pytest.mark.parametrize("seed", [2**31, 2**32 - 5])
def test_seeds_may_have_32_bits(seed):
    """As in 0.1.0, on the backends that take them."""
    layer = ka.MultiHeadAttention(2, 4, dropout=0.5, seed=seed)
    assert layer.get_config()["seed"] == seed
    assert ka.TransformerBlock(8, 2, seed=seed).seed == seed


def test_tensors_of_int64_are_checked_where_the_backend_has_them():
    wide = keras.ops.convert_to_tensor(FAR_APART)
    if keras.backend.standardize_dtype(wide.dtype) == "int64":
        for name in ("query_positions", "positions", "offset"):
            with pytest.raises(ValueError, match=rf"`{name}` must be within int32"):
                INTEGERS[name](wide)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint32"])
def test_positions_of_any_integers_are_those_numbers(dtype):
    at = np.array([3, 1, 7, 100, 2], dtype)
    found = attend(pattern=patterns.SlidingWindow(1, 1), query_positions=at, key_positions=at)
    near = np.abs(at[:, None].astype(int) - at) <= 1
    np.testing.assert_allclose(found, attend(mask=near), atol=1e-6)


def test_segments_outside_int32_are_other_segments_or_an_error():
    """Each is alone with its key, unless the backend has no int64."""
    ids = np.tile(FAR_APART, (2, 1))
    for call in (
        lambda: attend(segment_ids=(ids, ids)),
        lambda: keras.ops.reshape(ka.Attention()(X, segment_ids=ids), HEADS.shape),
    ):
        if keras.backend.backend() == "jax":
            with pytest.raises(ValueError, match="`segment_ids` must be within int32"):
                call()
        else:
            close(call(), HEADS, 1e-6)
