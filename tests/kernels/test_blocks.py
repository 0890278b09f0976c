"""Tiles and bands against the reference: outputs and all gradients."""

import dataclasses

import pytest

from keras_attention import patterns
from keras_attention.kernels import banded, merge, plans, relative
from tests.kernels.small_blocks import CASES, SHAW, B, H, K, V, check, distance, random, some


@pytest.mark.parametrize("name", CASES)
def test_many_blocks_are_the_reference(monkeypatch, name):
    whole = plans.of_blocks

    def several(*args, **kwargs):
        """Blocks of one sequence, few queries and few keys, which divide no length."""
        made = whole(*args, **kwargs)
        return dataclasses.replace(
            made, batch=1, batches=B, queries=7, query_blocks=4, keys=9, key_blocks=4
        )

    monkeypatch.setattr(plans, "of_blocks", several)
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


@pytest.mark.parametrize("rows", [1, H])
def test_embeddings_of_near_distances_alone(monkeypatch, rows):
    """Where only near keys count, tables are laid along the band and not along all distances."""
    learned = {"relative_keys": random(rows, 7, K, seed=4), "relative_values": random(1, 7, V)}
    used = []
    into = relative._into_band
    monkeypatch.setattr(relative, "_into_band", lambda *x: used.append(1) or into(*x))
    monkeypatch.setattr(banded, "SMALLEST", 5)
    monkeypatch.setattr(merge, "_long", lambda *_: True)
    mask = {"mask": PADDING, "pattern": patterns.Causal()}
    for given in ({}, mask):
        check("banded", 4, learned, given, (50, 50))
    assert used
