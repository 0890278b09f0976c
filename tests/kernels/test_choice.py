"""Which kernel computes a problem, and why the others do not."""

import re

import keras
import numpy as np
import pytest

from keras_attention import normalizations, ops, patterns, positions, scores
from keras_attention.backend import backend
from keras_attention.patterns import Block, Causal, Dilated, SlidingWindow, Strided
from keras_attention.sequences import arguments
from tests.arrays import numpy, random
from tests.compiled import program
from tests.kernels.small_problem import arrays, tensors
from tests.problems import explain


def test_explain_names_the_kernel_and_says_why():
    inputs = tensors(*arrays())
    assert ops.explain(*inputs).startswith("blockwise: ")
    assert ops.explain(*inputs, kernel="reference").startswith("reference: it was requested")
    assert ops.explain(*inputs, normalization="hard").startswith("reference: the normaliz")
    with pytest.raises(ValueError, match="`kernel` must be one of"):
        ops.explain(*inputs, kernel="quantum")


def test_explain_says_what_the_mask_combines():
    inputs = tensors(*arrays())
    batch, queries, keys = inputs[0].shape[0], inputs[0].shape[1], inputs[1].shape[1]
    assert "; no mask" in ops.explain(*inputs)
    given = {
        "mask": keras.ops.ones((batch, 1, 1, keys), "bool"),
        "pattern": Causal() & SlidingWindow(2, 0),
        "segment_ids": [np.zeros((batch, n), "int32") for n in (queries, keys)],
    }
    expected = (
        f"mask: keys ({batch}, 1, 1, {keys}) and pattern (Causal() & "
        "SlidingWindow(left=2, right=0)) and segments"
    )
    for kernel in ("auto", "reference"):
        assert expected in ops.explain(*inputs, **given, kernel=kernel)
    for shape, axis in (((batch, 1, queries, 1), "queries"), ((1, 1, queries, keys), "pairs")):
        mask = keras.ops.ones(shape, "bool")
        assert f"mask: {axis} {shape}" in ops.explain(*inputs, mask=mask)


def test_explain_gives_the_cost_and_why_no_other_kernel_runs():
    inputs = tensors(*arrays())
    parts = ops.explain(*inputs, normalization="hard").split("; ")
    assert parts[:2] == ["reference: the normalization is not softmax", "time and memory O(T · S)"]
    assert "not 'single_query': there is more than one query" in parts


def chosen(length=600, keys=None, size=4, **given):
    query = keras.ops.zeros((1, length, 2, size))
    key = keras.ops.zeros((1, keys or length, 2, size))
    return ops.explain(query, key, key, **given)


FULL = np.ones((600, 600), bool)
CHOICES = [
    ({}, "blockwise: no more than a tile .*no window and no rate"),
    ({"pattern": "causal"}, "blockwise: .*no window and no rate"),
    ({"pattern": ~SlidingWindow(2, 2)}, "blockwise: .*no window and no rate"),
    ({"pattern": SlidingWindow(16, 0)}, "banded: the pattern lets a query see few keys"),
    ({"pattern": SlidingWindow(16, 0), "offset": 5}, "banded"),
    ({"pattern": Causal() & SlidingWindow(16, 99)}, "banded"),
    ({"pattern": Block(32)}, "banded"),
    ({"pattern": SlidingWindow(16, 0), "mask": np.ones((1, 1, 1, 600), bool)}, "banded"),
    ({"pattern": SlidingWindow(300, 0)}, "blockwise: .*as wide as the sequence"),
    ({"pattern": SlidingWindow(16, 0), "length": 200}, "blockwise: .*as wide as the sequence"),
    ({"pattern": SlidingWindow(16, 0), "mask": FULL}, "blockwise: .*has all pairs"),
    ({"pattern": SlidingWindow(16, 0), "bias": np.zeros((1, 1, 600, 600), "float32")}, "blockwise"),
    ({"pattern": SlidingWindow(9, 0), "query_positions": np.arange(600)}, "blockwise: .*consec"),
    ({"pattern": SlidingWindow(9, 0), "offset": np.array([3])}, "blockwise: .*consecutive"),
    ({"pattern": Dilated(4)}, "banded"),
    ({"pattern": Dilated(4) & Causal()}, "banded"),
    ({"pattern": Dilated(4), "keys": 500}, "blockwise: .*not one sequence"),
    ({"pattern": Dilated(4), "offset": 1}, "blockwise: .*not one sequence"),
    ({"pattern": Dilated(4) & Block(100)}, "blockwise: .*more than the distance"),
    ({"pattern": Dilated(200)}, "blockwise: .*hardly longer than the rate"),
    ({"pattern": Strided(8)}, "banded"),
    ({"pattern": Strided(8) & Causal()}, "banded"),
    (
        {"pattern": SlidingWindow(16, 0), "return_attention_scores": True},
        "reference: `return_attention_scores`",
    ),
    ({"pattern": SlidingWindow(16, 0), "normalization": "hard"}, "reference: the normaliz"),
    ({"pattern": SlidingWindow(16, 0), "score": "cosine"}, "(banded|reference)"),
]


@pytest.mark.parametrize("given, expected", CHOICES)
def test_the_choice(monkeypatch, given, expected):
    monkeypatch.setattr(backend, "FUSED_READS", ())
    given = dict(given)
    if "query_positions" in given:
        given["query_positions"] = given["query_positions"].astype("int32")
    found = chosen(**given)
    assert re.match(expected, found), found


def test_the_choice_for_embeddings_of_distances():
    def chosen(length):
        query = keras.ops.zeros((1, length, 2, 4))
        return explain(query, query, query, relative_keys=keras.ops.zeros((1, 9, 4)))

    assert chosen(1100)[0] == "banded" and chosen(900)[0] == "blockwise"


@pytest.mark.parametrize(
    "names",
    [
        {"score": "cosine", "position": "rotary"},
        {"position": "alibi", "pattern": "causal"},
        {"normalization": "hard"},
    ],
    ids=str,
)
def test_what_names_give_is_made_once_and_outlives_a_program(names):
    def attended(x):
        return ops.attend(x, x, x, **names)

    x = keras.ops.convert_to_tensor(random(1, 5, 2, 4))
    arguments._named.cache_clear()
    found = program(attended)(x)
    made = arguments._named.cache_info().misses
    np.testing.assert_allclose(numpy(attended(x)), numpy(found), rtol=1e-5, atol=1e-6)
    assert arguments._named.cache_info().misses == made
    # Other heads have others of it.
    y = keras.ops.convert_to_tensor(random(1, 5, 4, 8))
    given = {name: GET[name](named) for name, named in names.items()}
    expected = ops.attend(y, y, y, **given)
    np.testing.assert_allclose(numpy(attended(y)), numpy(expected), rtol=1e-6)


GET = {
    "score": scores.get,
    "normalization": normalizations.get,
    "position": positions.get,
    "pattern": patterns.get,
}
