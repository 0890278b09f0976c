"""Decoding with a cache: padding in any piece changes no row."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention import masks
from tests.arrays import random
from tests.layers.small_caches import PATTERNS, POSITIONS, D, heads, numpy, ready


def scattered(tokens, kept, seed=0):
    """Rows of `kept` shape with the tokens of each row where it is True, and garbage elsewhere."""
    rows = 9 * random(*kept.shape, tokens.shape[-1], seed=seed)
    for row, flags in enumerate(kept):
        rows[row, flags] = tokens[row, : flags.sum()]
    return rows


def check_padded(layer, pieces_kept, length, tolerance=2e-5, carried=False):
    """Pieces with real tokens where their masks say, against each row on its own."""
    counts = np.sum([kept.sum(1) for kept in pieces_kept], axis=0)
    tokens = random(len(counts), max(1, counts.max()), D, seed=5)
    there = np.arange(tokens.shape[1]) < counts[:, None]

    step = ready(lambda x, flags, cache: layer(x, query_mask=flags, cache=cache))
    whole = ready(lambda x, there: layer(x, query_mask=there, use_causal_mask=True))
    expected = numpy(whole(tokens, there))
    cache, done = layer.make_cache(len(counts), length), np.zeros_like(counts)
    for kept in pieces_kept:
        ahead = np.stack([np.roll(row, -n, axis=0) for row, n in zip(tokens, done, strict=True)])
        x = keras.ops.convert_to_tensor(scattered(ahead, kept))
        flags = keras.ops.convert_to_tensor(kept)
        if carried:
            output, cache = layer(masks.carry(x, flags), cache=cache)
            assert masks.implicit(output) is not None
        else:
            output, cache = step(x, flags, cache)
        output = numpy(output)
        for row, flags in enumerate(kept):
            new = expected[row, done[row] : done[row] + flags.sum()]
            np.testing.assert_allclose(output[row, flags], new, rtol=tolerance, atol=tolerance)
        assert (output[~kept] == 0).all()
        done = done + kept.sum(1)
        np.testing.assert_array_equal(numpy(cache["index"]), done)


@pytest.mark.parametrize(
    "pattern, position",
    [
        ("window", "rotary"),
        ("none", "none"),
        ("none", "shaw"),
        ("block", "relative bias"),
        ("prefix", "own"),
    ],
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_prompts_of_unequal_length(side, pattern, position):
    lengths = np.array([5, 2, 0])[:, None]
    prompt = np.arange(5) < lengths
    prompt = prompt[:, ::-1] if side == "left" else prompt
    layer = heads(pattern=PATTERNS[pattern](), position=POSITIONS[position]())
    every = np.ones((3, 1), bool)
    check_padded(layer, [prompt, every, every, np.array([[True], [False], [True]])], 8)


# JAX takes a second to compile each piece.
@settings(max_examples=4 if keras.backend.backend() == "jax" else 15, deadline=None)
@given(st.data())
def test_any_pieces_with_any_padding(data):
    pattern = data.draw(st.sampled_from(sorted(PATTERNS)))
    position = data.draw(st.sampled_from(sorted(set(POSITIONS) - {"yarn"})))
    rows = data.draw(st.integers(1, 3))
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    share = data.draw(st.sampled_from([0.3, 0.7, 1.0]))
    kept = [rng.random((rows, size)) < share for size in sizes]
    longest = int(max(np.sum([flags.sum(1) for flags in kept], axis=0).max(), 1))
    layer = heads(
        pattern=PATTERNS[pattern](),
        position=POSITIONS[position](),
        num_key_value_heads=data.draw(st.sampled_from([1, 2, 4])),
        use_sink=data.draw(st.booleans()),
        qk_norm=data.draw(st.sampled_from([False, "rms"])),
    )
    check_padded(
        layer, kept, longest + data.draw(st.integers(0, 2)), carried=data.draw(st.booleans())
    )
