"""Tiles and bands against the reference: outputs and all gradients."""

import pytest

from keras_attention import patterns
from keras_attention.kernels import relative, strategies
from tests.arrays import random
from tests.kernels.small_blocks import CASES, SHAW, B, H, K, V, check, distance, some


@pytest.mark.parametrize("name", CASES)
def test_many_blocks_are_the_reference(name):
    # Of one sequence and head, few queries and few keys, which divide no length.
    with strategies.using(whole_rows=False, scores=1, queries=9, keys=13):
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
def test_bands_are_the_reference(name):
    pattern, learned, given = BANDS[name]
    with strategies.using(window=5):
        check("banded", 4, learned, {"pattern": pattern, **given}, (50, 50))


@pytest.mark.parametrize("rows", [1, H])
def test_embeddings_of_near_distances_alone(monkeypatch, rows):
    """Where only near keys count, tables are laid along the band and not along all distances."""
    learned = {"relative_keys": random(rows, 7, K, seed=4), "relative_values": random(1, 7, V)}
    used = []
    into = relative._into_band
    monkeypatch.setattr(relative, "_into_band", lambda *x: used.append(1) or into(*x))
    mask = {"mask": PADDING, "pattern": patterns.Causal()}
    with strategies.using(window=5, shortest=0):
        for given in ({}, mask):
            check("banded", 4, learned, given, (50, 50))
    assert used
