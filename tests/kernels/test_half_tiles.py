"""Tiles of an accelerator, which multiply half precision as it is, against the definition."""

import itertools

import keras
import numpy as np
import pytest

from keras_attention import normalizations, patterns
from keras_attention.backend import backend
from keras_attention.kernels.tiles import strategies
from keras_attention.spec import AttentionSpec
from tests import problems
from tests.arrays import random
from tests.gradients import gradients
from tests.kernels.small_blocks import SHAW, K, tensor

B, N, H = 2, 40, 4
LENGTHS = (np.arange(N) < np.array([[N], [23]]))[:, None, None]
NO_KEYS = (np.arange(N) < np.array([[23], [0]]))[:, None, None]
SPARSEMAX, ENTMAX = (
    x.into_spec(AttentionSpec()).normalization
    for x in (normalizations.Sparsemax(), normalizations.Entmax())
)
GIVEN = {
    "causal, padding": (2, {"pattern": patterns.Causal(), "mask": LENGTHS}),
    "dropout": (4, {"dropout": 0.3, "seed": 3}),
    "a bias, a cap, a sink": (
        2,
        {"bias": random(1, H, N, N), "logit_soft_cap": 2.0, "sink": random(H)},
    ),
    "embeddings": (
        4,
        {"relative_keys": SHAW["relative_keys"], "relative_values": random(1, 7, K, seed=5)},
    ),
    "a window": (2, {"pattern": patterns.SlidingWindow(3, 2), "mask": LENGTHS}),
    "sparsemax": (2, {"normalization": SPARSEMAX, "mask": LENGTHS}),
    "a scale below 0": (2, {"scale": -1.0, "mask": NO_KEYS, "normalization": ENTMAX}),
    "a large scale": (2, {"scale": 4.0, "mask": NO_KEYS, "normalization": ENTMAX}),
}


def answers(kernel, arrays, given, differentiate=gradients):
    """Gradients of query, key and value, and that of the output's weights, the output itself."""

    def total(query, key, value, weights):
        options = {"kernel": kernel, "scale": 0.3, **given}
        attended = problems.attend(query, key, value, **options).output
        return keras.ops.sum(keras.ops.cast(attended, "float32") * weights)

    weights = tensor(random(*arrays[0].shape, seed=6))
    found = differentiate(total, [*map(tensor, arrays), weights])
    return [array.astype("float32") for array in found]


def multiply_widely(monkeypatch):
    """Gives `torch.bmm` the dtype of a result, which it has on GPUs only."""
    import torch

    product = torch.bmm

    def wide(first, second, out_dtype):
        assert first.dtype == second.dtype in (torch.bfloat16, torch.float16)
        return product(first.to(out_dtype), second.to(out_dtype))

    monkeypatch.setattr(torch, "bmm", wide)


@pytest.mark.parametrize(
    "name, dtype, elements",
    zip(
        GIVEN,
        ["bfloat16", "float16", "float16", "bfloat16", "bfloat16", *["bfloat16"] * 3],
        itertools.cycle([2**20, 2**10, 2**10]),
        strict=False,
    ),
)
def test_tiles_of_half_precision_are_the_definition(name, dtype, elements, monkeypatch):
    groups, given = GIVEN[name]
    kernel = "banded" if name == "a window" else "blockwise"
    arrays = [
        keras.ops.cast(random(B, N, heads, K, seed=n), dtype)
        for n, heads in enumerate((H, groups, groups))
    ]
    # The definition of the same numbers, in float32.
    exact = [keras.ops.cast(array, "float32") for array in arrays]
    with strategies.using(window=4), problems.at_once(elements):
        # Dropout draws by tiles.
        wide = answers(kernel if "dropout" in given else "reference", exact, given)
        monkeypatch.setattr(backend, "has_wide_products", lambda _: True)
        if keras.config.backend() == "torch":
            multiply_widely(monkeypatch)
        found = answers(kernel, arrays, given, problems.by_xla)
    # As of rounding queries, keys, values and weights once.
    rounding = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]
    for one, expected in zip(found, wide, strict=True):
        assert np.isfinite(one).all()
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(one, expected, rtol=0, atol=4 * rounding * scale)


@pytest.mark.parametrize("normalization", [SPARSEMAX, ENTMAX], ids=["sparsemax", "entmax"])
def test_the_mean_of_gradients_that_are_alike_is_not_rounded(normalization, monkeypatch):
    """Values around 3: of the gradients of weights only what differs is one of scores."""
    arrays = [random(1, 512, 1, K, seed=seed) for seed in range(3)]
    arrays[2] = 3 + 0.3 * arrays[2]
    arrays = [keras.ops.cast(array, "bfloat16") for array in arrays]
    given = {"normalization": normalization}
    wide = answers("reference", [keras.ops.cast(x, "float32") for x in arrays], given)
    monkeypatch.setattr(backend, "has_fast_bfloat16", lambda: True)
    with problems.at_once(2**10):
        found = answers("blockwise", arrays, given, problems.by_xla)
    for one, expected in zip(found[:2], wide, strict=False):
        error = np.linalg.norm(one - expected) / np.linalg.norm(expected)
        assert error < 0.02
