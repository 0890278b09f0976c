"""How a problem is computed: what is chosen, what tests choose, and what `ops.explain` prints."""

import keras
import pytest

from keras_attention import ops, patterns
from keras_attention.kernels.tiles import plans, strategies
from tests.problems import at_once, attend, blocks_of, explain, given, random, rows_of

BACKEND = keras.config.backend()


def heads(length=40, size=4, batch=2):
    return [keras.ops.convert_to_tensor(random(batch, length, 4, size, seed=n)) for n in range(3)]


def words(*arrays, **rest):
    return explain(*arrays, kernel="blockwise", **rest)[1].split("; ")


def test_explain_says_how():
    arrays = heads()
    with at_once(2**20):
        expected = "one tile, by blocks of keys, whose weights are stored for the gradient"
        assert words(*arrays)[3] == expected
    with blocks_of(16, 16):
        assert words(*arrays)[3] == (
            "16 tiles of 2 sequences, 4 heads, 10 queries, 10 keys, by blocks of keys, whose "
            "weights the gradient computes again"
        )
    with rows_of(700):
        assert words(*arrays)[3] == (
            "32 tiles of 1 sequences, 1 heads, 10 queries, 43 keys, by whole rows of keys, whose "
            "weights the gradient computes again"
        )


def test_explain_says_how_windows_and_rates_are_cut():
    arrays = heads(1024, batch=1)

    def of(pattern):
        return explain(*arrays, kernel="banded", pattern=pattern)[1].split("; ")[3]

    window = "8 blocks of 128 queries and the 160 keys in their reach"
    assert of(patterns.SlidingWindow(32, 0)) == window
    assert of(patterns.Dilated(4)) == "4 sequences of positions 4 apart"
    both = "8 blocks of 128 queries and the 142 keys in their reach and 8 sequences of positions 8"
    assert of(patterns.Strided(8)).startswith(both)


@pytest.mark.skipif(BACKEND == "torch", reason="sizes are known")
def test_explain_says_how_where_sizes_are_unknown():
    found = []
    if BACKEND == "jax":
        import jax

        program = jax.jit(lambda x: found.append(words(x, x, x)[3]) or x)
        length = jax.export.symbolic_shape("t")[0]
        jax.export.export(program)(jax.ShapeDtypeStruct((1, length, 4, 4), "float32"))
        assert found[0].startswith("one tile, by blocks of keys")
        return
    import tensorflow as tf

    program = tf.function(lambda x: found.append(words(x, x, x)[3]) or x, autograph=False)
    program.get_concrete_function(tf.TensorSpec((None, None, 4, 4)))
    assert found[0].startswith("tiles of some sequences, 4 heads, some queries, some keys, by ")


def chosen(query, key, value, **rest):
    spec, *arrays = given(query, key, value, **rest)
    return strategies.choose(spec, *arrays, plans.Sizes.of(query, key))


def test_what_is_not_given_is_chosen():
    arrays = heads()
    found = chosen(*arrays)
    assert found.dtype == found.gradient_dtype == "float32"
    with strategies.using(whole_rows=False):
        assert chosen(*arrays).scores in (2**21, 2**23, 2**26)
    with strategies.using(whole_rows=True):
        assert chosen(*arrays).scores == strategies.STORED_SCORES
        fewest, most = strategies.ROW_SCORES
        long = [keras.ops.zeros((1, 8192, 1, 1))] * 3
        assert chosen(*long).scores == most // 2
        assert chosen(*long, pattern=patterns.Causal()).scores == max(fewest, most // 8)
        # Given scores are those of each tile, whatever the problem.
        with strategies.using(scores=99):
            assert chosen(*long).scores == 99


def test_what_is_given_ends_with_its_context():
    before = strategies.requested()
    with pytest.raises(RuntimeError), strategies.using(few=1, scores=7):
        with strategies.using(scores=None, keys=3):
            assert strategies.requested() == strategies.Strategy(few=1, keys=3)
        raise RuntimeError
    assert strategies.requested() == before


def test_a_strategy_changes_no_result():
    arrays = heads()
    expected = keras.ops.convert_to_numpy(attend(*arrays, kernel="reference").output)
    for strategy in (blocks_of(7, 9), at_once(300)):
        with strategy:
            found = keras.ops.convert_to_numpy(ops.attend(*arrays, kernel="blockwise", score="dot"))
        assert abs(found - expected).max() < 1e-5
