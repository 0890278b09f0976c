"""Kernels that work in blocks against the reference: outputs and all gradients."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_attention import kernels, patterns
from keras_attention.kernels import banded, blockwise, parts, relative
from tests.gradients import gradients

B, T, S, H, K, V = 2, 23, 31, 4, 8, 6


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def tensor(array):
    return keras.ops.convert_to_tensor(array)


def some(*shape, share=0.5):
    return np.random.default_rng(9).random(shape) < share


def distance(i, j):
    return -0.1 * keras.ops.cast(keras.ops.abs(i - j), "float32")


EMPTY = some(B, H, T, S, share=0.1)
EMPTY[1] = False
SEGMENTS = tuple(np.sort(some(B, n).astype("int32")) for n in (T, S))
SHAW = {"relative_keys": random(H, 7, K, seed=4), "relative_values": random(1, 7, V, seed=5)}
# Name: key heads, what has a gradient, and what has none.
CASES = {
    "causal": (2, {}, {"pattern": patterns.Causal(), "offset": 5}),
    "padding": (1, {}, {"mask": some(B, 1, 1, S)}),
    "rows without keys": (4, {"bias": random(1, H, T, S)}, {"mask": [EMPTY, some(1, 1, T, 1)]}),
    "capped, with a sink": (2, {"bias": random(H, 1, S), "sink": random(H)}, {"soft_cap": 2.0}),
    "shaw": (4, SHAW, {"pattern": patterns.SlidingWindow(9, 4), "offset": 3}),
    "segments": (2, {}, {"segments": SEGMENTS, "bias": distance}),
}


def check(kernel, groups, learned, given, lengths=(T, S)):
    queries, keys = lengths
    given = {name: tuple(map(tensor, x)) if name == "segments" else x for name, x in given.items()}
    arrays = [
        random(B, queries, H, K, seed=1),
        random(B, keys, groups, K, seed=2),
        random(B, keys, groups, V, seed=3),
        *learned.values(),
    ]
    weights = tensor(random(B, queries, H, V, seed=6))

    def answers(name):
        def attend(query, key, value, *others):
            named = dict(zip(learned, others, strict=True))
            return kernels.attend(query, key, value, kernel=name, **named, **given).output

        output = keras.ops.convert_to_numpy(attend(*map(tensor, arrays)))
        return [output, *gradients(lambda *x: keras.ops.sum(attend(*x) * weights), arrays)]

    for found, expected in zip(answers(kernel), answers("reference"), strict=True):
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_many_blocks_are_the_reference(monkeypatch, name):
    whole = blockwise.plan

    def several(*args, **kwargs):
        """Blocks of one sequence, few queries and few keys, which divide no length."""
        made = whole(*args, **kwargs)
        return dataclasses.replace(
            made, batch=1, batches=B, queries=7, query_blocks=4, keys=9, key_blocks=4
        )

    monkeypatch.setattr(blockwise, "plan", several)
    check("blockwise", *CASES[name])


PADDING = some(B, 1, 1, 50)
WINDOW = patterns.SlidingWindow(3, 5)
BANDS = {
    "window": (WINDOW, {}, {}),
    "causal window": (WINDOW & patterns.Causal(), {"bias": random(B, H, 1, 50)}, {"mask": PADDING}),
    "blocks": (patterns.Block(7), {}, {"bias": distance}),
    "rate": (patterns.Dilated(3), {}, {"bias": distance}),
    "rate and window": (patterns.Dilated(4) & patterns.SlidingWindow(8, 4), {}, {"mask": PADDING}),
    "strided": (patterns.Strided(5), {}, {"mask": PADDING}),
    "shaw": (WINDOW, SHAW, {}),
}


@pytest.mark.parametrize("name", BANDS)
def test_bands_are_the_reference(monkeypatch, name):
    monkeypatch.setattr(banded, "SMALLEST", 5)
    pattern, learned, given = BANDS[name]
    check("banded", 4, learned, {"pattern": pattern, **given}, (50, 50))


ONE = {
    "all heads apart": (4, {}, {}),
    "one key head": (1, {}, {"mask": some(B, 1, 1, S)}),
    "cache": (
        2,
        {},
        {"pattern": patterns.SlidingWindow(9, 0), "offset": np.array([11, 20], "int32")},
    ),
    "rows without keys": (2, {"bias": random(1, H, 1, S)}, {"mask": EMPTY[:, :, :1]}),
    "capped, with a sink": (2, {"bias": random(H, 1, S), "sink": random(H)}, {"soft_cap": 2.0}),
    "shaw": (4, SHAW, {"pattern": patterns.SlidingWindow(9, 4), "offset": 3}),
    "shaw, anywhere": (4, SHAW, {"offset": np.array([3, 30], "int32")}),
    "segments": (2, {}, {"segments": (SEGMENTS[0][:, :1], SEGMENTS[1]), "bias": distance}),
}


@pytest.mark.parametrize("name", ONE)
def test_one_query_is_the_reference(name):
    groups, learned, given = ONE[name]
    given = {key: tensor(x) if isinstance(x, np.ndarray) else x for key, x in given.items()}
    check("one_query", groups, learned, given, (1, S))


@pytest.mark.parametrize("groups", [1, 4])
def test_one_query_and_huge_numbers(groups):
    """Keys are clipped for products to be finite, only where that makes a difference."""
    query, key, value = random(B, 1, 4, K), random(B, S, groups, K), random(B, S, groups, V)
    query[0, :, 1], key[1, 3] = 3e38, -3e38
    value[0, :, -1] = 3e38
    found, expected = (
        keras.ops.convert_to_numpy(kernels.attend(query, key, value, kernel=name).output)
        for name in ("one_query", "reference")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
    assert np.isfinite(found).all()


def test_one_query_is_chosen_for_it_alone():
    arrays = random(B, 1, H, K), random(B, S, 2, K), random(B, S, 2, V)
    assert kernels.explain(*arrays)[0] == "one_query"
    assert kernels.explain(*arrays, dropout=0.1)[0] == "blockwise"
    assert kernels.explain(arrays[1], *arrays[1:])[0] == "blockwise"
    many = [np.repeat(array[:, :, :1], 17, 2) for array in arrays]
    assert kernels.explain(*many)[0] == "blockwise"


@pytest.mark.parametrize("rows", [1, H])
def test_embeddings_of_near_distances_alone(monkeypatch, rows):
    """Where only near keys count, tables are laid along the band and not along all distances."""
    learned = {"relative_keys": random(rows, 7, K, seed=4), "relative_values": random(1, 7, V)}
    used = []
    into = relative._into_band
    monkeypatch.setattr(relative, "_into_band", lambda *x: used.append(1) or into(*x))
    monkeypatch.setattr(banded, "SMALLEST", 5)
    monkeypatch.setattr(parts, "_long", lambda *_: True)
    mask = {"mask": PADDING, "pattern": patterns.Causal()}
    for given in ({}, mask):
        check("banded", 4, learned, given, (50, 50))
    assert used
