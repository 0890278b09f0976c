"""The table of kernels in docs/mixed_precision.md: what `ops.explain` says, cell by cell."""

import pathlib
import re

import keras
import numpy as np
import pytest

from keras_attention import ops, patterns
from keras_attention.backend import backend
from keras_attention.positions import Shaw
from tests.kernels.cases import as_on_a_gpu

BACKEND = keras.config.backend()
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "mixed_precision.md"
LENGTH = 1024
PADDING = np.arange(LENGTH)[None, None, None] < 900
BIAS = np.zeros((1, 8, LENGTH, LENGTH), "float32")
# What `ops.attend` is given, by the name of a row.
OPTIONS = {
    "nothing": {},
    "causal": {"pattern": "causal"},
    "grouped heads": {"pattern": "causal", "grouped": True},
    "padding": {"mask": PADDING},
    "causal, padding": {"pattern": "causal", "mask": PADDING},
    "causal window of 128": {"pattern": patterns.SlidingWindow(127, 0)},
    "window of 128, padding": {"pattern": patterns.SlidingWindow(127, 0), "mask": PADDING},
    "segments": {"segment_ids": (np.zeros((1, LENGTH), "int32"),) * 2},
    "mask of pairs": {"mask": np.tri(LENGTH, dtype=bool)},
    "`Rotary`": {"pattern": "causal", "position": "rotary"},
    "`ALiBi`": {"pattern": "causal", "position": "alibi"},
    "bias of pairs": {"bias": BIAS},
    "`Shaw`": {"position": "shaw"},
    "soft cap": {"logit_soft_cap": 50.0},
    "sink": {"sink": np.zeros(8, "float32")},
    "dropout in training": {"dropout": 0.1, "seed": 1},
    "log-sum-exp": {"return_lse": True},
    "one query": {"queries": 1},
}


# The columns of a backend, each with whether it is of a GPU.
COLUMNS = {
    "tensorflow": [("TensorFlow; JAX on CPU", False), ("TensorFlow; JAX on CPU", True)],
    "jax": [("TensorFlow; JAX on CPU", False), ("JAX on GPU", True)],
    "torch": [("PyTorch on CPU", False), ("PyTorch on GPU", True)],
}


def table():
    """Cells by option and column: a row has several options."""
    text = PAGE.read_text(encoding="utf-8").split("### Kernels in half precision\n", 1)[1]
    lines = [line for line in text.split("\n##")[0].splitlines() if line.startswith("|")]
    names, _, *rows = [[x.strip() for x in line.strip("|").split(" | ")] for line in lines]
    return {
        (option, name): cell
        for row in rows
        for option in row[0].split("; ")
        for name, cell in zip(names, row, strict=True)
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("column", "gpu"), COLUMNS[BACKEND])
def test_cells_are_the_kernels_that_run(column, gpu, dtype, monkeypatch):
    if gpu:
        monkeypatch.setattr(backend, "on_accelerator", lambda _: True)
        if BACKEND == "jax":
            as_on_a_gpu(monkeypatch)
    cells, found = table(), {}
    for name, given in OPTIONS.items():
        given = dict(given)
        groups = 2 if given.pop("grouped", False) else 8
        queries = given.pop("queries", LENGTH)
        if given.get("position") == "shaw":
            given["position"] = position = Shaw(16)
            position.build_values((1, LENGTH, 8, 64))
            position.build((1, LENGTH, 8, 64), (1, LENGTH, 8, 64))
        query = keras.ops.zeros((1, queries, 8, 64), dtype)
        key = keras.ops.zeros((1, LENGTH, groups, 64), dtype)
        found[name] = re.match(r"\w+", ops.explain(query, key, key, **given))[0]
    assert found == {name: cells[name, column].strip("`") for name in OPTIONS}


def test_every_row_is_checked():
    assert {row for row, _ in table()} == set(OPTIONS)
