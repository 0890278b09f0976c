"""Generation where tokens cannot come, where logits are no numbers, and where a cache ends."""

import functools

import keras
import numpy as np
import pytest

from keras_attention import SelfAttention, generation
from tests.generation import toy

# 0 and 1 follow each other freely; 2 may not come, and nothing follows it.
FORBIDDEN = [[0, -1, -np.inf], [0.5, 0, -np.inf], [-np.inf] * 3]


@pytest.mark.parametrize("num_beams", [2, 9])
def test_beams_without_a_hypothesis_spoil_no_others(num_beams):
    found = generation.beam_search(
        toy.of_table(FORBIDDEN), [0, 2], (), num_beams=num_beams, max_tokens=3, length_penalty=0.0
    )
    found = toy.numpy(tuple(found))
    np.testing.assert_allclose(found[3], [[-3 * np.log1p(np.exp(-1))], [-np.inf]], rtol=1e-5)
    assert found[0].tolist() == [[[0, 0, 0]], [[0, 0, 0]]]
    assert found[1].tolist() == [[3], [0]]


def test_a_hypothesis_that_cannot_go_on_is_none():
    """1 is likelier than 2, and a dead end."""
    table = [[-9, 5, 0], [-np.inf] * 3, [0, -np.inf, 9]]
    found = generation.beam_search(
        toy.of_table(table), [0], (), num_beams=2, num_return=2, max_tokens=2
    )
    tokens, lengths, gains, scores = toy.numpy(tuple(found))
    assert tokens.tolist() == [[[2, 2], [2, 0]]]
    assert lengths.tolist() == [[2, 2]]
    assert np.isfinite(gains).all() and np.isfinite(scores).all()


@pytest.mark.parametrize("method", ["greedy", "sample"])
def test_a_row_that_cannot_go_on_ends(method):
    table = [[-9, 5, 5], [-np.inf] * 3, [-np.inf, -np.inf, 0]]
    options = {"top_p": 0.9, "min_p": 0.1, "seed": 0} if method == "sample" else {}
    run = getattr(generation, method)
    found = run(toy.of_table(table), [0, 1, 2], (), max_tokens=3, pad_token=toy.PAD, **options)
    tokens, lengths, gains, scores = toy.numpy(tuple(found))
    assert tokens[1:].tolist() == [[toy.PAD] * 3, [2, 2, 2]]
    assert lengths[1:].tolist() == [0, 3]
    assert gains[1:].tolist() == [[-np.inf, 0, 0], [0, 0, 0]]
    assert scores[1:].tolist() == [-np.inf, 0]
    if method == "greedy":  # the first of two equals
        assert tokens[0].tolist() == [1, toy.PAD, toy.PAD]
        assert lengths[0] == 1 and scores[0] == -np.inf
        np.testing.assert_allclose(gains[0], [-np.log(2), -np.inf, 0], rtol=1e-5)


@pytest.mark.parametrize("size", [5, 50, 3000])
def test_of_equals_greedy_takes_the_first(size):
    logits = np.zeros(size, "float32")
    logits[: size // 2] = -1
    found = generation.greedy(toy.of_table([logits] * size), [0], (), max_tokens=2)
    assert toy.numpy(found.tokens).tolist() == [[size // 2] * 2]


def test_no_digits_are_lost_to_what_all_logits_share():
    logits = np.array([0.5, 0.25, 0.0], "float32")
    for method, options in (("greedy", {}), ("beam_search", {"num_beams": 1, "num_return": None})):
        near, far = (
            getattr(generation, method)(
                toy.of_table([logits + shift] * 3), [0], (), max_tokens=3, **options
            )
            for shift in (np.float32(0), np.float32(2**18))
        )
        for one, other in zip(toy.numpy(tuple(near)), toy.numpy(tuple(far)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.ci
@pytest.mark.parametrize("compiled", [False, True])
def test_a_cache_that_is_too_short_is_an_error_after_the_loop(compiled):
    layer = SelfAttention(2, 2, causal=True)
    layer.build((None, None, 4))

    def write(tokens, entries):
        def step(tokens, cache):
            x, cache = layer(toy.ops.one_hot(tokens, 4)[:, None], cache=cache)
            return x[:, 0], cache

        return generation.greedy(step, tokens, layer.make_cache(2, entries), max_tokens=6).tokens

    def run(entries):
        function = functools.partial(write, entries=entries)
        if compiled:
            function = generation.compiled(function, layer)
        return toy.numpy(function(toy.ops.convert_to_tensor(np.array([1, 2], "int32"))))

    assert run(6).shape == (2, 6)
    # Where the loop runs as Python, the cache itself says so.
    eager = not (compiled or toy.ON_JAX)
    message = "too few for all tokens" if eager else "without NaN"
    with pytest.raises(ValueError, match=message):
        run(5)


STOP = np.array([[-20.0, -20.0, 10.0]], "float32")
GO_ON = np.array([[3.0, 0.0, -9.0]], "float32")


def one_row_stops(tokens, cache):
    """Row 0 stops at once, and its logits are NaN from then on; row 1 goes on."""
    of_first = toy.ops.arange(toy.ops.shape(tokens)[0]) < toy.ops.shape(tokens)[0] // 2
    logits = toy.ops.where(of_first[:, None], STOP, GO_ON)
    broken = toy.ops.logical_and(of_first, cache[:, 0] >= 1)
    return toy.ops.where(broken[:, None], float("nan"), logits), cache + 1


def test_nan_in_spare_beams_of_a_row_that_is_done():
    found = generation.beam_search(
        one_row_stops,
        [0, 0],
        np.zeros((2, 1), "int32"),
        num_beams=2,
        max_tokens=4,
        stop_tokens=(2,),
    )
    tokens, scores = toy.numpy((found.tokens, found.scores))
    np.testing.assert_array_equal(tokens[:, 0], [[2, 0, 0, 0], [0, 0, 0, 0]])
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("method", toy.WAYS)
def test_logits_that_are_no_numbers_are_an_error(method, bad):
    table = toy.random_table()
    table[3, 1] = bad
    states = toy.next_state(np.arange(3), np.array(toy.TOKENS), 5 * np.arange(3))
    with pytest.raises(ValueError, match=r"without NaN and \+inf\. Received such"):
        generation_of(method, np.full_like(table, bad))
    # A row that has ended, or that meets no such state, is not concerned.
    assert 3 not in states
    found = generation_of(method, np.where(np.arange(6) == 2, 9, table), stop_tokens=(2,))
    assert np.isfinite(toy.numpy(found.scores)).all()


def generation_of(method, table, **options):
    return getattr(generation, method)(
        toy.toy_step(toy.ops.convert_to_tensor(table)),
        toy.TOKENS,
        *toy.toy_start(toy.TOKENS),
        max_tokens=2,
        **options,
        **toy.WAYS[method],
    )


def test_errors_of_inner_loops_do_not_leave_a_program():
    """A search within a loop of the user's own runs, though nothing can raise for it."""
    layer = keras.layers.Dense(1)
    layer.build((1, 1))

    def twice(logits):
        def search(n, sums):
            found = generation.greedy(lambda t, c: (logits + 0.0, c), [0], (), max_tokens=1)
            return sums + found.scores

        return toy.ops.fori_loop(0, 2, search, toy.ops.zeros(1))

    logits = np.zeros((1, 2), "float32")
    found = generation.compiled(twice, layer)(logits)
    np.testing.assert_allclose(toy.numpy(found), [-2 * np.log(2)], rtol=1e-5)


def test_errors_of_a_program_within_a_program_are_raised():
    layer = keras.layers.Dense(1)
    layer.build((1, 1))

    def search(logits):
        return generation.greedy(lambda t, c: (logits + 0.0, c), [0], (), max_tokens=1).tokens

    inner = generation.compiled(search, layer)
    outer = generation.compiled(lambda logits: inner(logits) + 1, layer)
    assert toy.numpy(outer(np.zeros((1, 3), "float32"))).tolist() == [[1]]
    for _ in range(2):
        with pytest.raises(ValueError, match="without NaN"):
            outer(np.full((1, 3), np.nan, "float32"))
    assert toy.numpy(outer(np.zeros((1, 3), "float32"))).tolist() == [[1]]


@pytest.mark.skipif(not toy.ON_JAX, reason="a setting of JAX")
@pytest.mark.parametrize("method", toy.WAYS)
def test_with_64_bits(method):
    import jax

    table = toy.random_table(4)
    expected = toy.numpy(tuple(generation_of(method, table)))
    with jax.enable_x64(True):
        found = toy.numpy(tuple(generation_of(method, table)))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-6)
