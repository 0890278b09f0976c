"""Which kernel computes a problem, how, and why the others do not: what `ops.explain` says."""

import re

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import ops
from keras_attention.backend import backend
from keras_attention.kernels.tiles import strategies
from keras_attention.patterns import (
    Block,
    Causal,
    Dilated,
    Global,
    Prefix,
    RandomBlocks,
    SlidingWindow,
    Strided,
)
from keras_attention.sequences import arguments
from keras_attention.spec import AttentionSpec
from tests.arrays import numpy, random
from tests.compiled import program
from tests.contract import registry
from tests.problems import at_once, attend, blocks_of, explain, given, on_tensorflow, rows_of

BACKEND = keras.config.backend()


def heads(length=40, size=4, batch=2, keys=None):
    shapes = [(batch, n, 4, size) for n in (length, keys or length, keys or length)]
    return [keras.ops.convert_to_tensor(random(*shape, seed=n)) for n, shape in enumerate(shapes)]


def test_explain_names_the_kernel_its_cost_and_why_no_other_runs():
    inputs = heads(size=3)
    assert ops.explain(*inputs, kernel="reference").startswith("reference: it was requested")
    found = ops.explain(*inputs, normalization="hard").split("; ")
    assert found[:2] == ["reference: the normalization is not softmax", "time and memory O(T · S)"]
    assert "not 'single_query': there is more than one query" in found
    layer = keras_attention.MultiHeadAttention(2, 3, normalization="hard")
    said = layer.explain(random(1, 5, 4), use_causal_mask=True).split("; ")
    assert said[:3] == [*found[:2], "mask: pattern Causal()"]


def test_explain_says_what_the_mask_combines():
    inputs = heads(5, keys=7)
    assert "; no mask" in ops.explain(*inputs)
    given = {
        "mask": keras.ops.ones((2, 1, 1, 7), "bool"),
        "pattern": Causal() & SlidingWindow(2, 0),
        "segment_ids": [np.zeros((2, n), "int32") for n in (5, 7)],
    }
    expected = (
        "mask: keys (2, 1, 1, 7) and pattern (Causal() & SlidingWindow(left=2, right=0)) "
        "and segments"
    )
    for kernel in ("auto", "reference"):
        assert expected in ops.explain(*inputs, **given, kernel=kernel)
    for shape, axis in (((2, 1, 5, 1), "queries"), ((1, 1, 5, 7), "pairs")):
        mask = keras.ops.ones(shape, "bool")
        assert f"mask: {axis} {shape}" in ops.explain(*inputs, mask=mask)


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
    ({"pattern": SlidingWindow(16, 16) | Global(8)}, "global: the pattern has a few global tokens"),
    ({"pattern": Global(8)}, ".*not 'global': the pattern has no global tokens beside"),
    ({"pattern": Dilated(2) & Causal()}, ".*not 'global': .*no global tokens beside"),
    ({"pattern": SlidingWindow(16, 16) | Global(200)}, ".*not 'global': the global tokens are man"),
    ({"pattern": Causal() | Prefix(8)}, ".*not 'global': the pattern has no window and no rate"),
    ({"pattern": SlidingWindow(16, 16) | Global(8), "offset": 3}, ".*not 'global': .*consecutive"),
]


@pytest.mark.parametrize("given, expected", CHOICES)
def test_the_choice(monkeypatch, given, expected):
    monkeypatch.setattr(backend, "FUSED_READS", ())
    given = dict(given)
    if "query_positions" in given:
        given["query_positions"] = given["query_positions"].astype("int32")
    length = given.pop("length", 600)
    query, key = (keras.ops.zeros((1, n, 2, 4)) for n in (length, given.pop("keys", length)))
    found = ops.explain(query, key, key, **given)
    assert re.match(expected, found), found


def test_the_choice_for_embeddings_of_distances():
    def chosen(length):
        query = keras.ops.zeros((1, length, 2, 4))
        return explain(query, query, query, relative_keys=keras.ops.zeros((1, 9, 4)))

    assert chosen(1100)[0] == "banded" and chosen(900)[0] == "blockwise"


def test_one_query_is_chosen_for_it_alone():
    # Of unequal sizes, which no backend has a kernel for.
    query, key, value = random(2, 1, 4, 8), random(2, 9, 2, 8), random(2, 9, 2, 6)
    assert explain(query, key, value)[0] == "single_query"
    assert explain(query, key, value, dropout=0.1)[0] == "blockwise"
    assert explain(key, key, value)[0] == "blockwise"
    with pytest.raises(ValueError, match="there is more than one query"):
        explain(key, key, value, kernel="single_query")
    if BACKEND == "tensorflow":
        import tensorflow as tf

        attended = tf.function(
            lambda x: ops.attend(x, key, value, kernel="single_query"), autograph=False
        )
        with pytest.raises(ValueError, match="number of queries is not known where the graph"):
            attended.get_concrete_function(tf.TensorSpec((2, None, 4, 8)))


def test_few_scores_are_chosen_outside_of_programs():
    def chosen(x, queries=None, **given):
        with strategies.using(few=2**16):
            # With a soft cap, which fused kernels do not have.
            return explain(x[:, :queries], x, x, **{"logit_soft_cap": 9.0, **given})[0]

    x = keras.random.normal((2, 16, 4, 8), seed=0)
    assert chosen(x) == chosen(x, 1) == chosen(x, pattern=Causal(), return_lse=True) == "few_scores"
    assert chosen(x, pattern=SlidingWindow(1, 1)) == "few_scores"
    assert chosen(x, dropout=0.5, seed=keras.random.SeedGenerator(0)) != "few_scores"
    assert chosen(keras.ops.repeat(x, 16, axis=1)) != "few_scores"
    assert chosen(x, logit_soft_cap=None) == ("fused" if BACKEND == "torch" else "few_scores")
    if BACKEND == "torch":
        assert chosen(x, kernel="few_scores") == "few_scores"
        with pytest.raises(ValueError, match="the backend's fused kernel is one operation"):
            chosen(x, kernel="few_scores", logit_soft_cap=None)
    else:
        found = []
        program(lambda x: found.append(chosen(x)) or x)(x)
        assert found == ["blockwise"]


def test_a_seed_is_the_same_choice_for_ever():
    firsts = RandomBlocks(12, 2, 2, seed=1).groups().keys[:, ::2]
    assert firsts.tolist() == [[6, 4], [0, 6], [6, 8], [8, 0], [6, 0], [2, 4]]


# How


def words(*arrays, kernel="blockwise", **rest):
    return explain(*arrays, kernel=kernel, **rest)[1].split("; ")[3]


def test_explain_says_how_a_problem_is_cut():
    arrays = heads()
    with at_once(2**20):
        expected = "one tile, by blocks of keys, whose weights are stored for the gradient"
        assert words(*arrays) == expected
    for way, expected in (
        (blocks_of(16, 16), "16 tiles of 2 sequences, 4 heads, 10 queries, 10 keys, by blocks of"),
        (rows_of(700), "32 tiles of 1 sequences, 1 heads, 10 queries, 43 keys, by whole rows of"),
    ):
        with way:
            assert words(*arrays) == f"{expected} keys, whose weights the gradient computes again"

    def of(pattern, length=1024, kernel="banded"):
        return words(*heads(length, batch=1), kernel=kernel, pattern=pattern)

    window = "8 blocks of 128 queries and the 160 keys in their reach"
    assert of(SlidingWindow(32, 0)) == window
    assert of(Dilated(4)) == "4 sequences of positions 4 apart"
    both = "8 blocks of 128 queries and the 142 keys in their reach and 8 sequences of positions 8"
    assert of(Strided(8)).startswith(both)
    found = of(SlidingWindow(16, 16) | Global(8), 2048, "global")
    assert "16 blocks of 128 queries" in found
    assert "all queries over 8 keys, 8 queries over all keys" in found
    assert "queries over all keys" not in of(SlidingWindow(16, 16) | Prefix(8), 2048, "global")
    random_blocks = SlidingWindow(64, 64) | Global(8) | RandomBlocks(4096, 64, 3)
    for length, blocks in ((4096, 64), (3000, 47)):
        found = of(random_blocks, length, "global")
        assert f"{blocks} groups of 64 queries and the 192 keys that they may see" in found


@pytest.mark.skipif(BACKEND == "torch", reason="sizes are known")
def test_explain_says_how_where_sizes_are_unknown():
    found = []
    if BACKEND == "jax":
        import jax

        program = jax.jit(lambda x: found.append(words(x, x, x)) or x)
        length = jax.export.symbolic_shape("t")[0]
        jax.export.export(program)(jax.ShapeDtypeStruct((1, length, 4, 4), "float32"))
        assert found[0].startswith("one tile, by blocks of keys")
        return
    import tensorflow as tf

    program = tf.function(lambda x: found.append(words(x, x, x)) or x, autograph=False)
    program.get_concrete_function(tf.TensorSpec((None, None, 4, 4)))
    assert found[0].startswith("tiles of some sequences, 4 heads, some queries, some keys, by ")


def test_a_strategy_is_chosen_but_for_what_is_given_and_changes_no_result():
    def chosen(query, key, value, **rest):
        spec, *arrays = given(query, key, value, **rest)
        return strategies.choose(spec, *arrays, strategies.Sizes.of(query, key))

    arrays, long = heads(), [keras.ops.zeros((1, 8192, 1, 1))] * 3
    found = chosen(*arrays)
    assert found.dtype == found.gradient_dtype == "float32"
    with strategies.using(whole_rows=False):
        assert chosen(*arrays).scores in (2**21, 2**23, 2**26)
    with strategies.using(whole_rows=True):
        assert chosen(*arrays).scores == strategies.STORED_SCORES
        fewest, most = strategies.ROW_SCORES
        assert chosen(*long).scores == most // 2
        assert chosen(*long, pattern=Causal()).scores == max(fewest, most // 8)
        # Given scores are those of each tile, whatever the problem.
        with strategies.using(scores=99):
            assert chosen(*long).scores == 99
    before = strategies.requested()
    with pytest.raises(RuntimeError), strategies.using(few=1, scores=7):
        with strategies.using(scores=None, keys=3):
            assert strategies.requested() == strategies.Strategy(few=1, keys=3)
        raise RuntimeError
    assert strategies.requested() == before
    expected = numpy(attend(*arrays, kernel="reference").output)
    for strategy in (blocks_of(7, 9), at_once(300)):
        with strategy:
            found = numpy(ops.attend(*arrays, kernel="blockwise", score="dot"))
        assert abs(found - expected).max() < 1e-5


@on_tensorflow
def test_sizes_whose_product_is_beyond_32_bits():
    import tensorflow as tf

    sizes = [tf.TensorSpec((), "int32")] * 3

    @tf.function(autograph=False, input_signature=sizes)
    def sequences(batch, queries, keys):
        blocks = strategies.Strategy(whole_rows=False, scores=2**21, of_few_heads=2**19)
        return strategies.plan(
            blocks, AttentionSpec(), strategies.Sizes(batch, 4, 4, queries, keys)
        ).batch

    # 32 · 4 · 4200² is more than 2³¹.
    assert int(sequences(32, 4200, 4200)) == 1
    assert int(sequences(2, 70000, 70000)) == 1
    assert int(sequences(32, 100, 100)) == 32
    assert int(sequences(32, 0, 0)) == 32


NAMED = [
    {"score": "cosine", "position": "rotary"},
    {"position": "alibi", "pattern": "causal"},
    {"normalization": "hard"},
]


@pytest.mark.parametrize("names", NAMED, ids=str)
def test_what_names_give_is_made_once_and_outlives_a_program(names):
    def attended(x):
        return ops.attend(x, x, x, **names)

    x = keras.ops.convert_to_tensor(random(1, 5, 2, 4))
    arguments._named.cache_clear()
    found = program(attended)(x)
    misses = arguments._named.cache_info().misses
    np.testing.assert_allclose(numpy(attended(x)), numpy(found), rtol=1e-5, atol=1e-6)
    assert arguments._named.cache_info().misses == misses
    # Other heads have others of it.
    y = keras.ops.convert_to_tensor(random(1, 5, 4, 8))
    made = {name: registry.SLOTS[name][0].get(named) for name, named in names.items()}
    expected = ops.attend(y, y, y, **made)
    np.testing.assert_allclose(numpy(attended(y)), numpy(expected), rtol=1e-6)
