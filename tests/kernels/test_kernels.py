"""Kernels and `ops.attend`, against the definition of tests/definition.py."""

import inspect

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import ops, patterns, scores
from keras_attention.spec import PositionBias
from tests import definition
from tests.compiled import compiled
from tests.kernels.small_problem import (
    CAUSAL,
    EXPLICIT,
    MASKS,
    PADDING,
    POSITIONS,
    ROUNDING,
    B,
    H,
    K,
    S,
    T,
    V,
    arrays,
    float64_or_skip,
    numpy,
    random,
    rounded,
    tensors,
)
from tests.problems import attend


@pytest.mark.parametrize("queries", [1, T])
@pytest.mark.parametrize("kernel", ["reference", "blockwise", "auto"])
def test_the_scale_is_as_precise_as_float64(kernel, queries):
    float64_or_skip("float64")
    # One over the root of 3 is no number of float32.
    query, key = (random(2, n, 1, 3, seed=n).astype("float64") for n in (queries, S))
    tensors = [keras.ops.convert_to_tensor(x) for x in (query, key, key)]
    found = ops.attend(*tensors, logit_soft_cap=1.1, kernel=kernel)
    expected, _ = definition.attend(query, key, key, soft_cap=1.1)
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-12, atol=1e-12)


# Values


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("kind", MASKS)
def test_attend_is_the_definition_under_every_mask(kind, dtype):
    float64_or_skip(dtype)
    given, mask = MASKS[kind]
    bias = random(B, H, T, S, seed=13)
    output, weights = ops.attend(
        *tensors(*arrays(), dtype=dtype),
        bias=tensors(bias, dtype=dtype)[0],
        return_attention_scores=True,
        **given,
    )
    *inputs, bias = rounded(*arrays(), bias, dtype=dtype)
    expected, expected_weights = definition.attend(*inputs, bias=bias, mask=mask)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    assert keras.backend.standardize_dtype(weights.dtype) == dtype
    np.testing.assert_allclose(numpy(output), expected, **ROUNDING[dtype])
    np.testing.assert_allclose(numpy(weights), expected_weights, **ROUNDING[dtype])
    # Exact, in every dtype: what is masked has no weight.
    np.testing.assert_array_equal(numpy(weights)[~np.broadcast_to(mask, weights.shape)], 0.0)


@pytest.mark.parametrize("normalization", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    "score, scale", [("dot", None), ("scaled_dot", 0.3), ("cosine", 4.0), ("general", None)]
)
def test_attend_is_the_definition_for_every_score_and_normalization(score, scale, normalization):
    matrix = random(H, K, K, seed=14)
    built = {
        "dot": scores.Dot,
        "scaled_dot": lambda: scores.ScaledDot(scale),
        "cosine": lambda: scores.Cosine(scale),
        "general": scores.General,
    }[score]()
    if score == "general":
        built.build((B, T, H, K), (B, S, H, K))
        built.set_weights([matrix])
    output, weights = ops.attend(
        *tensors(*arrays()),
        score=built,
        normalization=normalization,
        mask=EXPLICIT,
        return_attention_scores=True,
    )
    expected, expected_weights = definition.attend(
        *rounded(*arrays(), dtype="float32"),
        score=score,
        scale=scale,
        matrix=matrix,
        normalization=normalization,
        mask=EXPLICIT[:, None],
    )
    np.testing.assert_allclose(numpy(output), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(numpy(weights), expected_weights, rtol=1e-5, atol=1e-6)


def test_more_queries_than_keys():
    key, _, _ = arrays()
    query, value = random(B, S, H, K, seed=15), random(B, T, H, V, seed=16)
    output = ops.attend(*tensors(query, key, value), pattern="causal")
    mask = np.arange(T)[None] <= np.arange(S)[:, None]
    expected, _ = definition.attend(query, key, value, mask=mask)
    np.testing.assert_allclose(numpy(output), expected, **ROUNDING["float32"])


def test_asking_for_scores_changes_no_output():
    given = {"mask": EXPLICIT, "pattern": "causal"}
    output, _ = ops.attend(*tensors(*arrays()), return_attention_scores=True, **given)
    without = numpy(ops.attend(*tensors(*arrays()), **given))
    np.testing.assert_allclose(without, numpy(output), **ROUNDING["float32"])


def test_bias_broadcasts():
    for shape in ((T, S), (1, T, S), (1, H, 1, S), (B, 1, 1, S)):
        bias = random(*shape, seed=17)
        output = ops.attend(*tensors(*arrays()), bias=tensors(bias)[0])
        expected, _ = definition.attend(*arrays(), bias=bias)
        np.testing.assert_allclose(numpy(output), expected, **ROUNDING["float32"])


def test_a_mask_of_zeros_and_ones_is_a_boolean_one():
    expected = ops.attend(*tensors(*arrays()), mask=EXPLICIT)
    for dtype in ("float32", "int32"):
        output = ops.attend(*tensors(*arrays()), mask=EXPLICIT.astype(dtype))
        np.testing.assert_array_equal(numpy(output), numpy(expected))


def test_the_kernel_counts_positions_from_zero_and_calls_a_bias_with_them():
    query, key, value = tensors(*arrays())

    def slope(i, j):
        return -0.7 * keras.ops.cast(keras.ops.abs(i - j), "float32")

    attended = attend(query, key, value, bias=PositionBias(slope), pattern=patterns.Causal())
    expected, _ = definition.attend(
        *arrays(), score="dot", bias=-0.7 * abs(POSITIONS[0] - POSITIONS[1]), mask=CAUSAL
    )
    np.testing.assert_allclose(numpy(attended.output), expected, **ROUNDING["float32"])
    assert attended.weights is None
    assert numpy(attended.has_keys, "bool").all()


def test_positions_of_keys_are_the_kernels_to_be_given():
    shifted = np.array([[3, 4, 5, 6, 7], [0, 1, 2, 3, 4]], "int32")
    attended = attend(
        *tensors(*arrays()),
        pattern=patterns.Causal(),
        query_positions=keras.ops.convert_to_tensor(np.array([3, 4, 5], "int32")),
        key_positions=keras.ops.convert_to_tensor(shifted),
    )
    mask = shifted[:, None, None] <= np.array([3, 4, 5])[None, None, :, None]
    expected, _ = definition.attend(*arrays(), score="dot", mask=mask)
    np.testing.assert_allclose(numpy(attended.output), expected, **ROUNDING["float32"])


# Dropout


def test_dropout_is_reproducible_by_its_seed_and_off_at_rate_zero():
    def attend(**given):
        output, weights = ops.attend(
            *tensors(*arrays()), mask=EXPLICIT, return_attention_scores=True, **given
        )
        return numpy(output), numpy(weights)

    plain, weights = attend()
    np.testing.assert_array_equal(attend(dropout=0.0, seed=3)[0], plain)
    dropped, dropped_weights = attend(dropout=0.5, seed=3)
    np.testing.assert_array_equal(attend(dropout=0.5, seed=3)[0], dropped)
    assert np.abs(attend(dropout=0.5, seed=4)[0] - dropped).max() > 0.1
    assert np.abs(dropped - plain).max() > 0.1
    # Scores are the weights before dropout.
    np.testing.assert_array_equal(dropped_weights, weights)


def test_a_seed_generator_draws_anew_at_each_call():
    generator = keras.random.SeedGenerator(1)
    first, second = (
        numpy(ops.attend(*tensors(*arrays()), dropout=0.5, seed=generator)) for _ in range(2)
    )
    assert np.abs(first - second).max() > 0.1


def test_dropout_drops_at_its_rate_and_keeps_the_expectation():
    query, key, _ = tensors(*(0 * array for array in arrays()))
    # The values are unit vectors, so that the output shows each weight: all were 1 / S.
    (value,) = tensors(np.broadcast_to(np.eye(S)[None, :, None], (B, S, H, S)))
    weights = S * np.stack(
        [numpy(ops.attend(query, key, value, dropout=0.3, seed=seed)) for seed in range(40)]
    )
    kept = weights > 0
    assert abs(kept.mean() - 0.7) < 0.03
    np.testing.assert_allclose(weights[kept], 1 / 0.7, rtol=1e-5)
    assert abs(weights.mean() - 1) < 0.04


# Offsets


def test_offset_moves_all_queries():
    query, key, value = tensors(*arrays())
    output = ops.attend(query, key, value, pattern="causal", offset=2)
    expected, _ = definition.attend(*arrays(), mask=POSITIONS[1] <= POSITIONS[0] + 2)
    np.testing.assert_allclose(numpy(output), expected, **ROUNDING["float32"])
    # With the whole sequence at hand, the later queries alone give the later outputs.
    whole = ops.attend(key, key, value, pattern="causal")
    chunk = ops.attend(key[:, 2:], key, value, pattern="causal", offset=2)
    np.testing.assert_allclose(numpy(chunk), numpy(whole)[:, 2:], **ROUNDING["float32"])


def test_offset_of_each_row():
    offset = np.array([2, -1], "int32")
    output, weights = ops.attend(
        *tensors(*arrays()),
        pattern=patterns.Causal() & patterns.SlidingWindow(2, 0),
        offset=keras.ops.convert_to_tensor(offset),
        return_attention_scores=True,
    )
    i, j = POSITIONS[0] + offset[:, None, None, None], POSITIONS[1]
    mask = (j <= i) & (j >= i - 2)
    assert not mask[1, 0, 0].any()
    expected, expected_weights = definition.attend(*arrays(), mask=mask)
    np.testing.assert_allclose(numpy(output), expected, **ROUNDING["float32"])
    np.testing.assert_allclose(numpy(weights), expected_weights, **ROUNDING["float32"])


def test_what_attend_takes_is_documented():
    for name in inspect.signature(ops.attend).parameters:
        assert f"{name}:" in ops.attend.__doc__


def test_one_key_takes_all_the_weight_without_a_warning(recwarn):
    query, key = np.ones((2, 3, 1, 4), "float32"), np.ones((2, 1, 1, 4), "float32")
    mask = np.array([True, False])[:, None, None, None]
    _, weights = ops.attend(query, key, key, mask=mask, return_attention_scores=True)
    expected = np.broadcast_to(mask, (2, 1, 3, 1)).astype("float32")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(weights), expected)
    assert not [warning for warning in recwarn if "softmax" in str(warning.message)]


@pytest.mark.parametrize("jit", [False, True])
def test_one_feature_of_huge_values_gives_no_nan(jit):
    """XLA takes such a product for a multiplication, and may do it twice, with two roundings."""
    rng = np.random.default_rng(0)
    query, key = (rng.normal(size=(2, 5, 1, 1)).astype("float32") * 1e17 for _ in range(2))
    run = compiled if jit else (lambda function, *arrays: function(*arrays))
    output = run(lambda q, k: ops.attend(q, k, k), query, key)
    assert np.isfinite(keras.ops.convert_to_numpy(output)).all()


# Lengths that a graph does not know


def unknown_cases():
    def alibi(i, j):
        return -0.3 * keras.ops.cast(keras.ops.abs(i - j), "float32")

    def looked_up(i, j, table):
        rows = keras.ops.clip(j - i, -3, 3) + 3
        return keras.ops.transpose(keras.ops.take(table, rows, axis=0), (2, 0, 1))

    table = tensors(random(7, H, seed=30))[0]
    shaw = tensors(random(1, 7, K, seed=31), random(1, 7, V, seed=32))
    return {
        "plain": {},
        "causal": {"pattern": patterns.Causal()},
        "window": {"pattern": patterns.SlidingWindow(1, 0)},
        "strided": {"pattern": patterns.Strided(2)},
        "function": {"bias": PositionBias(alibi)},
        "table": {"bias": PositionBias(looked_up, (table,), by_distance=True)},
        "shaw": {"relative_keys": shaw[0], "relative_values": shaw[1]},
        "dropout": {"dropout": 0.0, "logit_soft_cap": 2.0},
    }


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only its graphs have None")
@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", unknown_cases())
def test_unknown_lengths_and_batch(name, jit):
    import tensorflow as tf

    given = unknown_cases()[name]

    def total(query, key, value, mask):
        output = attend(query, key, value, mask=mask, **given).output
        return keras.ops.sum(keras.ops.sin(output)), output

    def step(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs[:3])
            loss, output = total(*inputs)
        return output, *tape.gradient(loss, inputs[:3])

    signature = [tf.TensorSpec((None, None, H, size)) for size in (K, K, V)]
    mask = tf.TensorSpec((None, 1, 1, None), "bool")
    traced = tf.function(step, autograph=False, input_signature=[*signature, mask], jit_compile=jit)
    padding = tf.convert_to_tensor(PADDING)
    for queries in (T, 1):
        query, key, value = tensors(*arrays())
        inputs = query[:, :queries], key, value, padding
        for found, expected in zip(traced(*inputs), step(*inputs), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    if not jit:
        empty = tf.zeros((2, 0, H, K)), key, value, padding
        assert traced(*empty)[0].shape == (2, 0, H, V)
        assert not np.any(traced(*empty)[2])


# What users pass to `ops.attend`


def test_integers_are_computed_with_as_floats():
    query, key, _ = tensors(*arrays())
    value = np.arange(B * S * H * V, dtype="int32").reshape(B, S, H, V)
    found = ops.attend(query, key, value)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    expected = ops.attend(query, key, value.astype("float32"))
    np.testing.assert_array_equal(numpy(found), numpy(expected))
    layer = keras_attention.Attention()
    ids = value[:, :, 0]
    np.testing.assert_array_equal(numpy(layer(ids)), numpy(layer(ids.astype("float32"))))


def test_soft_caps_are_as_precise_as_float64():
    float64_or_skip("float64")
    inputs = [array.astype("float64") for array in arrays()]
    scores = np.einsum("bthk,bshk->bhts", *inputs[:2]) / np.sqrt(K)
    # A cap of 1.3 in float32 differs in the eighth digit.
    weights = np.exp(1.3 * np.tanh(scores / 1.3))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bhts,bshv->bthv", weights, inputs[2])
    for kernel in ("reference", "blockwise"):
        given = map(keras.ops.convert_to_tensor, inputs)
        found = ops.attend(*given, logit_soft_cap=1.3, kernel=kernel)
        np.testing.assert_allclose(numpy(found), expected, rtol=1e-12)


def test_the_mask_of_a_problem_is_all_that_it_is_made_of():
    query, key, value = arrays()
    padding = np.arange(S) < S - 1
    segments = np.arange(T)[None] // 2 + np.zeros((B, 1), "int32"), np.arange(S)[None] // 2
    segments = tuple(np.broadcast_to(x, (B, x.shape[1])).astype("int32") for x in segments)
    found = ops.mask(
        query,
        key,
        value,
        mask=padding[None, None, None],
        pattern=patterns.Causal(),
        offset=1,
        segment_ids=segments,
    )
    i, j = np.arange(T)[:, None] + 1, np.arange(S)
    expected = padding & (j <= i) & ((i - 1) // 2 == j // 2)
    shape = np.broadcast_shapes(tuple(found.shape), (B, 1, T, S))
    np.testing.assert_array_equal(
        np.broadcast_to(numpy(found, "bool"), shape), np.broadcast_to(expected, shape)
    )
    assert ops.mask(query, key, value) is None


def test_keys_that_are_no_numbers_do_not_matter_where_they_are_masked():
    query, key, value = (np.ones((1, n, 1, 4), "float32") for n in (2, 3, 3))
    key[0, 2] = np.nan
    mask = np.arange(3)[None, None, None] < 2
    found = attend(
        *map(keras.ops.convert_to_tensor, (query, key, value)), mask=mask, kernel="reference"
    )
    np.testing.assert_allclose(keras.ops.convert_to_numpy(found.output), 1.0, rtol=1e-6)
