"""Sampling: the distribution by definition, and by laws."""

import functools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention import generation
from keras_attention.generation import random as numbers
from keras_attention.generation import sampling
from tests.generation import toy


def kept(logits, temperature=1.0, top_k=None, top_p=None, min_p=None, typical_p=None):
    """The distribution that is drawn from, by its definition."""
    logits = logits.astype("float64") / temperature
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    order = np.argsort(-chances, kind="stable")
    if top_k is not None:
        chances[order[top_k:]] = 0
        chances /= chances.sum()
    if top_p is not None:
        chances = fewest(chances, order, top_p)
    if min_p is not None:
        chances[chances < min_p * chances.max()] = 0
        chances /= chances.sum()
    if typical_p is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            information = -np.log(chances)
            far = np.abs(information - np.nansum(chances * information))
        chances = fewest(chances, np.argsort(far, kind="stable"), typical_p)
    return chances


def fewest(chances, order, share):
    """The first in an order that have a share of all."""
    count = 1
    while chances[order[:count]].sum() < share and count < len(order):
        count += 1
    found = np.zeros_like(chances)
    found[order[:count]] = chances[order[:count]]
    return found / found.sum()


def assert_drawn_from(tokens, chances):
    """Chi-square, at five standard deviations; and nothing that cannot be."""
    counts = np.bincount(tokens, minlength=len(chances))
    expected = chances * len(tokens)
    assert counts[chances == 0].sum() == 0
    rare = expected < 5  # Chi-square wants some of each: these count as one.
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    assert statistic <= freedom + 5 * np.sqrt(2 * freedom) + 5, (counts, expected)


LOGITS = np.random.default_rng(8).normal(size=11).astype("float32") * 1.5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 4},
        {"top_k": 100},
        {"top_p": 0.01},
        {"top_p": 0.8},
        {"top_p": 1.0},
        {"min_p": 0.2},
        {"min_p": 1.0},
        {"top_k": 6, "top_p": 0.7, "temperature": 2.0},
        {"typical_p": 0.3},
        {"typical_p": 0.9, "min_p": 0.02},
        {"top_k": 8, "top_p": 0.95, "min_p": 0.3, "temperature": 4.0, "typical_p": 0.8},
    ],
    ids=str,
)
def test_samples_have_the_distribution_by_definition(options):
    rows = 4000
    found = generation.sample(
        toy.of_table([LOGITS] * len(LOGITS)), [0] * rows, (), max_tokens=2, seed=1, **options
    )
    tokens = toy.numpy(found.tokens)
    chances = kept(LOGITS, **options)
    assert_drawn_from(tokens[:, 0], chances)
    # Two draws of a row have nothing to do with each other.
    pairs = np.outer(chances, chances).ravel()
    assert_drawn_from(tokens[:, 0] * len(LOGITS) + tokens[:, 1], pairs)
    # Reported is the model's own distribution.
    own = np.log(kept(LOGITS))
    np.testing.assert_allclose(
        toy.numpy(found.log_probabilities), own[tokens], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(toy.numpy(found.scores), own[tokens].sum(1), rtol=1e-4, atol=1e-5)


def fewest_of(logits, share):
    return sampling._fewest(logits, toy.ops.exp(logits), toy.ops.reshape(share, (-1, 1)))


@functools.cache
def program_of_fewest():
    layer = keras.layers.Dense(1)
    layer.build((1, 1))
    return generation.compiled(fewest_of, layer)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    scale=st.floats(0.01, 20),
    top_p=st.floats(0.01, 0.999),
    rounded=st.booleans(),
)
def test_the_nucleus_is_the_one_of_sorting(seed, scale, top_p, rounded):
    logits = scale * np.random.default_rng(seed).normal(size=(3, 200))
    logits = np.round(logits, 1) if rounded else logits  # with ties
    logits = (logits - logits.max(axis=-1, keepdims=True)).astype("float32")
    shares = np.array([top_p, 1 - top_p, top_p], "float32")  # one for each row
    masses = toy.numpy(program_of_fewest()(logits, shares))
    for row, share in enumerate(shares):
        chances = np.exp(logits[row].astype("float64"))
        sums = np.sort(chances)[::-1].cumsum() / chances.sum()
        if np.abs(sums - share).min() > 1e-5:  # else rounding decides
            np.testing.assert_array_equal(masses[row] > 0, kept(logits[row], top_p=share) > 0)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.45, 0.55, 0.95])
def test_of_equals_the_nucleus_has_the_first_and_no_more(share):
    masses = toy.numpy(fewest_of(toy.ops.zeros((1, 10)), toy.ops.convert_to_tensor([share])))
    assert np.flatnonzero(masses).tolist() == list(range(round(10 * share + 0.5)))


def test_draws_among_many_and_never_what_has_no_mass():
    random = np.random.default_rng(9)
    masses = random.gamma(0.5, size=1000) * (random.random(1000) < 0.3)
    masses = masses.astype("float32")
    for draws in np.split(random.random((2, 20000, 2)).astype("float32"), 2):
        rows = toy.ops.convert_to_tensor(np.broadcast_to(masses, (20000, 1000)).copy())
        tokens = toy.numpy(sampling._drawn(rows, toy.ops.convert_to_tensor(draws[0])))
        assert_drawn_from(tokens, masses / masses.sum())


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-24])
@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_the_ends_of_a_draw_are_within_what_has_mass(size, number):
    for index in range(size):
        masses = np.zeros((1, size), "float32")
        masses[0, index] = 1e-30
        numbers = np.full((1, 2), number, "float32")
        drawn = sampling._drawn(
            toy.ops.convert_to_tensor(masses), toy.ops.convert_to_tensor(numbers)
        )
        assert int(drawn[0]) == index


def test_seeds():
    def run(seed):
        found = generation.sample(
            toy.of_table(np.zeros((50, 50))), [0] * 8, (), max_tokens=4, seed=seed
        )
        return toy.numpy(found.tokens)

    np.testing.assert_array_equal(run(3), run(3))
    generator = keras.random.SeedGenerator(3)
    first, second, other = run(generator), run(generator), run(None)
    assert (first != second).any()
    assert (first != other).any()
    assert (second != other).any()


def test_a_nucleus_of_nearly_all_is_not_rounded():
    """999 tokens of a millionth together, of which a tenth may be left out."""
    logits = np.log(np.array([[1.0] + [1e-9] * 999])).astype("float32")
    for share, count in ((0.9999999, 900), (0.99999, 1)):
        masses = toy.numpy(program_of_fewest()(logits, np.array([share], "float32")))
        np.testing.assert_allclose((masses > 0).sum(), count, atol=20)


# The numbers of others for two words of a key and of a counter (Random123, "kat_vectors").
VECTORS = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


def test_random_bits_are_those_of_threefry():
    key, counter, expected = np.array(VECTORS, "uint32").view("int32").transpose(1, 2, 0)
    words = ([*map(toy.ops.convert_to_tensor, x)] for x in (key, counter))
    found = toy.numpy(numbers._threefry(*words))
    np.testing.assert_array_equal(found, expected)


def test_texts_of_a_seed_depend_on_nothing_beside_them():
    """Neither on other rows, nor on the room for more; and each step has numbers of its own."""
    table = 0.1 * toy.random_table(50, seed=1)
    long, short = (
        toy.toy("sample", table, [1] * n, seed=7, max_tokens=m).tokens for n, m in ((4, 9), (2, 5))
    )
    np.testing.assert_array_equal(long[:2, :5], short)
    assert len({tuple(row) for row in long}) == 4 and len(set(long[0])) > 4
    by_row = toy.toy("sample", table, [1] * 3, rows=[0] * 3, seed=[7, 8, 7], max_tokens=9).tokens
    np.testing.assert_array_equal(by_row[[0, 2]], long[[0, 0]])
    assert (by_row[1] != by_row[0]).any()


def test_one_step_of_sampling():
    logits, options = np.tile(LOGITS, (4000, 1)), {"top_k": 7, "typical_p": 0.9}
    tokens = toy.numpy(generation.draw(logits, seed=5, **options))
    assert_drawn_from(tokens, kept(LOGITS, **options))
    generator = keras.random.SeedGenerator(1)
    first, second = (toy.numpy(generation.draw(logits, seed=generator)) for _ in range(2))
    assert (first != second).any()
    one = generation.sample(toy.of_table(logits[:11]), [0] * 3, (), max_tokens=1, seed=5, **options)
    assert toy.numpy(one.tokens)[:, 0].tolist() == tokens[:3].tolist()


def test_a_stream_of_a_step_ends_where_all_rows_have():
    step = toy.of_table(np.roll(np.eye(5), 1, axis=1))
    dense = keras.layers.Dense(1)
    dense.build((None, 1))
    for layer in (None, dense):
        given = {"max_tokens": [9, 2], "stop_tokens": (4,), "layer": layer, "pad_token": 7}
        items = list(generation.stream(step, [0, 0], (), chunk=3, **given))
        assert [tokens.tolist() for tokens, _ in items] == [[1, 1], [2, 2], [3, 7], [4, 7]]
        assert [ended.tolist() for _, ended in items] == [
            [False, False],
            [False, True],
            [False, True],
            [True, True],
        ]
        broken = generation.stream(
            lambda tokens, cache: (toy.ops.full((1, 3), np.nan), cache),
            [0],
            (),
            max_tokens=2,
            layer=layer,
        )
        with pytest.raises(ValueError, match="without NaN"):
            next(broken)
