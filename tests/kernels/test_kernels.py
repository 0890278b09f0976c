"""Kernels and `ops.attend`, against the definition of tests/definition.py."""

import inspect

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import kernels, ops, patterns, scores
from keras_attention.spec import PositionBias
from tests import definition
from tests.compiled import compiled
from tests.gradients import gradients
from tests.problems import attend

B, T, S, H, K, V = 2, 3, 5, 2, 4, 6
POSITIONS = np.arange(T)[:, None], np.arange(S)[None]

# The rounding of results, relative and absolute. Scores and weights are float32 in all but float64.
ROUNDING = {
    "float64": {"rtol": 1e-12, "atol": 1e-12},
    "float32": {"rtol": 1e-5, "atol": 1e-6},
    "bfloat16": {"rtol": 2**-8, "atol": 1e-5},
    "float16": {"rtol": 2**-10, "atol": 1e-5},
}
LARGEST = {"float32": 1e30, "bfloat16": 1e30, "float16": 6e4}
NARROW = ("float32", "bfloat16", "float16")


def allowed_with_empty_rows():
    """No key for a query of one sequence, none for a head's query, none for a whole sequence."""
    mask = np.random.default_rng(7).random((B, H, T, S)) < 0.6
    mask[..., 0] = True
    mask[0, :, 1] = False
    mask[0, 1, 2] = False
    mask[1] = False
    return mask


def some(*shape, seed):
    """A random mask in which every query has a key."""
    mask = np.random.default_rng(seed).random(shape) < 0.5
    mask[..., 0] = True
    return mask


PADDING = (np.arange(S) < np.array([[S], [2]]))[:, None, None]
CAUSAL = POSITIONS[1] <= POSITIONS[0]
EXPLICIT = some(B, T, S, seed=2)
WINDOW = patterns.SlidingWindow(1, 1)
# Name: what `attend` is given, and the mask (B, H, T, S) that this means.
MASKS = {
    "none": ({}, True),
    "padding": ({"mask": PADDING}, PADDING),
    "(T, S)": ({"mask": some(T, S, seed=1)}, some(T, S, seed=1)),
    "(B, T, S)": ({"mask": EXPLICIT}, EXPLICIT[:, None]),
    "(B, H, T, S)": ({"mask": some(B, H, T, S, seed=3)}, some(B, H, T, S, seed=3)),
    "causal": ({"pattern": "causal"}, CAUSAL),
    "causal and explicit": (
        {"pattern": "causal", "mask": EXPLICIT},
        CAUSAL & EXPLICIT[:, None],
    ),
    "window and padding": (
        {"pattern": WINDOW, "mask": PADDING},
        (abs(POSITIONS[0] - POSITIONS[1]) <= 1) & PADDING,
    ),
    "rows with no key": ({"mask": allowed_with_empty_rows()}, allowed_with_empty_rows()),
}


def random(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape)


def arrays():
    """Query, key and value, large enough that softmax is far from uniform."""
    return 2 * random(B, T, H, K, seed=10), random(B, S, H, K, seed=11), random(B, S, H, V, seed=12)


def tensors(*arrays, dtype="float32"):
    return [keras.ops.cast(keras.ops.convert_to_tensor(array), dtype) for array in arrays]


def numpy(tensor, dtype="float64"):
    """NumPy has no bfloat16, so that goes by way of float32, which holds it exactly."""
    if keras.backend.standardize_dtype(tensor.dtype) == "bfloat16":
        tensor = keras.ops.cast(tensor, "float32")
    return np.asarray(keras.ops.convert_to_numpy(tensor)).astype(dtype)


def rounded(*arrays, dtype):
    """The arrays as `dtype` holds them."""
    return [numpy(tensor) for tensor in tensors(*arrays, dtype=dtype)]


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


def float64_or_skip(dtype):
    if dtype == "float64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has float64 only after its x64 mode was switched on for the process.")


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


# Gradients


def compare_gradients(given, defined, names=("query", "key", "value", "bias")):
    """Gradients of one random sum of outputs and scores, here and by differences."""
    inputs = rounded(*arrays(), random(B, H, T, S, seed=18), dtype="float32")
    of_output, of_weights = random(B, T, H, V, seed=19), random(B, H, T, S, seed=20)
    cotangents = tensors(of_output, of_weights)

    def ours(query, key, value, bias):
        answers = ops.attend(query, key, value, bias=bias, return_attention_scores=True, **given)
        return [a * cotangent for a, cotangent in zip(answers, cotangents, strict=True)]

    def theirs(query, key, value, bias):
        output, weights = definition.attend(query, key, value, bias=bias, **defined)
        return (output * of_output).sum() + (weights * of_weights).sum()

    found = gradients(ours, [array.astype("float32") for array in inputs])
    expected = definition.gradients(theirs, inputs)
    for name, gradient, correct in zip(names, found, expected, strict=True):
        assert np.abs(correct).max() > 0.01
        np.testing.assert_allclose(gradient, correct, rtol=2e-4, atol=2e-5, err_msg=name)
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize("kind", ["none", "padding", "(B, H, T, S)", "causal and explicit"])
def test_gradients_are_those_of_the_definition_under_every_mask(kind):
    given, mask = MASKS[kind]
    compare_gradients(given, {"mask": mask})


@pytest.mark.parametrize("score, normalization", [("dot", "sigmoid"), ("cosine", "softmax")])
def test_gradients_are_those_of_the_definition_for_every_score(score, normalization):
    slots = {"score": score, "normalization": normalization}
    compare_gradients({"mask": EXPLICIT, **slots}, {"mask": EXPLICIT[:, None], **slots})


@pytest.mark.parametrize("normalization", ["softmax", "sigmoid"])
def test_a_query_without_keys_has_zeros_and_gradients_of_zero(normalization):
    mask = allowed_with_empty_rows()
    slots = {"mask": mask, "normalization": normalization}
    output, weights = ops.attend(*tensors(*arrays()), return_attention_scores=True, **slots)
    empty = ~mask.any(axis=-1)
    np.testing.assert_array_equal(numpy(weights)[empty], 0.0)
    np.testing.assert_array_equal(numpy(output)[empty.transpose(0, 2, 1)], 0.0)
    found = compare_gradients(slots, slots)
    np.testing.assert_array_equal(found["query"][empty.transpose(0, 2, 1)], 0.0)
    np.testing.assert_array_equal(found["bias"][~mask], 0.0)
    for name in ("key", "value"):
        np.testing.assert_array_equal(found[name][1], 0.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_sequence_without_keys_has_zeros_in_every_dtype(dtype):
    mask = allowed_with_empty_rows()

    def total(*inputs):
        output = ops.attend(*inputs, mask=mask)
        return keras.ops.square(keras.ops.cast(output, "float32"))

    output = ops.attend(*tensors(*arrays(), dtype=dtype), mask=mask)
    np.testing.assert_array_equal(numpy(output)[1], 0.0)
    assert np.abs(numpy(output)[0]).min(axis=-1).max() > 0
    for gradient in gradients(total, tensors(*arrays(), dtype=dtype)):
        np.testing.assert_array_equal(gradient[1], 0.0)
        assert np.abs(gradient[0]).max() > 0


def test_cosine_of_a_vector_of_zeros_is_zero_with_a_finite_gradient():
    query, key, value = arrays()
    query[0, 1] = 0.0
    _, weights = ops.attend(
        *tensors(query, key, value), score="cosine", return_attention_scores=True
    )
    np.testing.assert_allclose(numpy(weights)[0, :, 1], 1 / S, rtol=1e-6)
    found = gradients(
        lambda *x: keras.ops.square(ops.attend(*x, score="cosine")), tensors(query, key, value)
    )
    assert all(np.isfinite(gradient).all() for gradient in found)


# Huge numbers


def huge(dtype):
    """Query, key and value of ± the largest of what the tests try."""
    return [
        np.where(random(*shape, seed=seed) < 0, -1.0, 1.0) * LARGEST[dtype]
        for seed, shape in ((21, (B, T, H, K)), (22, (B, S, H, K)), (23, (B, S, H, V)))
    ]


@pytest.mark.parametrize("kind", ["none", "causal and explicit", "rows with no key"])
@pytest.mark.parametrize("score", ["dot", "scaled_dot", "cosine"])
@pytest.mark.parametrize("dtype", NARROW)
def test_huge_inputs_give_finite_outputs(dtype, score, kind):
    given, mask = MASKS[kind]
    output, weights = ops.attend(
        *tensors(*huge(dtype), dtype=dtype), score=score, return_attention_scores=True, **given
    )
    assert np.isfinite(numpy(output)).all()
    reached = np.broadcast_to(mask, weights.shape).any(axis=-1)
    np.testing.assert_allclose(numpy(weights).sum(axis=-1), reached, rtol=0.02)
    assert np.abs(numpy(output)).max() > 0.1 * LARGEST[dtype]


@pytest.mark.parametrize("dtype", NARROW)
def test_huge_inputs_give_finite_outputs_with_sigmoid(dtype):
    query, key, _ = huge(dtype)
    output, weights = ops.attend(
        *tensors(query, key, arrays()[2], dtype=dtype),
        normalization="sigmoid",
        return_attention_scores=True,
    )
    assert np.isfinite(numpy(output)).all() and np.isfinite(numpy(weights)).all()
    assert numpy(weights).min() == 0 and numpy(weights).max() == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_huge_queries_and_keys_give_gradients_that_are_numbers(dtype):
    query, key, _ = huge(dtype)
    found = gradients(
        lambda *x: keras.ops.square(ops.attend(*x, mask=EXPLICIT)),
        tensors(query, key, arrays()[2], dtype=dtype),
    )
    # Where scores tie, the gradient is as large as the inputs, and may be inf in float16.
    assert not any(np.isnan(gradient).any() for gradient in found)
    assert np.abs(found[2]).max() > 0


def test_the_largest_score_wins_among_huge_ones():
    query, key, value = arrays()
    query[..., 0], key[..., 0] = 1e15, np.array([1.0, 3.0, 2.0, 4.0, 0.0])[None, :, None] * 1e14
    _, weights = ops.attend(*tensors(query, key, value), return_attention_scores=True)
    expected = np.broadcast_to(np.arange(S) == 3, weights.shape)
    np.testing.assert_allclose(numpy(weights), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "score, dtype", [*(("scaled_dot", dtype) for dtype in NARROW), ("cosine", "float32")]
)
def test_what_masked_keys_hold_changes_nothing(score, dtype):
    kept = np.array([[True, True, False, True, False], [True, False, False, False, True]])
    # One batch holds the same two sequences three times, with other garbage in each.
    parts = [arrays() for _ in range(3)]
    for (_, key, value), garbage in zip(parts, (0.5, LARGEST[dtype], -LARGEST[dtype]), strict=True):
        key[~kept], value[~kept] = garbage, garbage
    inputs = tensors(*(np.concatenate(part) for part in zip(*parts, strict=True)), dtype=dtype)
    kept = np.concatenate([kept] * 3)
    given = {"mask": kept[:, None, None], "score": score}

    output, weights = ops.attend(*inputs, return_attention_scores=True, **given)
    np.testing.assert_array_equal(numpy(weights).transpose(0, 3, 1, 2)[~kept], 0.0)
    found = gradients(lambda *x: keras.ops.square(ops.attend(*x, **given)), inputs)
    for gradient in found[1:]:
        np.testing.assert_array_equal(gradient[~kept], 0.0)
    for answer in (numpy(output), numpy(weights), *found):
        assert np.abs(answer).max() > 0.01
        for part in (answer[B : 2 * B], answer[2 * B :]):
            # A matrix product may round one sequence of a batch otherwise than the next.
            np.testing.assert_allclose(part, answer[:B], **ROUNDING[dtype])


@pytest.mark.parametrize("number", [-3.4e38, 2e38])
def test_a_huge_bias_lifts_no_mask_and_makes_no_nan(number):
    # Keras's own additive masks go down to the lowest number that there is.
    bias = np.zeros((B, H, T, S), "float32")
    mask = allowed_with_empty_rows()
    bias[0, ..., 2:] = number
    bias[1] = number

    def attend(query, key, value):
        return ops.attend(query, key, value, bias=bias, mask=mask, return_attention_scores=True)

    output, weights = attend(*tensors(*arrays()))
    expected, expected_weights = definition.attend(*arrays(), bias=bias, mask=mask)
    close = {"rtol": 1e-5, "atol": 1e-5}
    if number < 0:  # Above zero the scores drown in the bias, and their order with them.
        np.testing.assert_allclose(numpy(output), expected, **close)
        np.testing.assert_allclose(numpy(weights), expected_weights, **close)
    np.testing.assert_array_equal(numpy(weights)[~mask], 0.0)
    np.testing.assert_allclose(numpy(weights).sum(axis=-1), mask.any(axis=-1), **close)
    for gradient in gradients(lambda *x: keras.ops.square(attend(*x)[0]), arrays_float32()):
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[1], 0.0)


def arrays_float32():
    return [array.astype("float32") for array in arrays()]


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


# The choice of a kernel


def test_an_unknown_kernel_is_refused_by_name():
    with pytest.raises(ValueError, match=r"`kernel` must be one of .*'reference'.*quantum"):
        ops.attend(*tensors(*arrays()), kernel="quantum")


def test_explain_names_the_kernel_and_says_why():
    inputs = tensors(*arrays())
    assert ops.explain(*inputs).startswith("blockwise: ")
    assert ops.explain(*inputs, kernel="reference") == "reference: it was asked for by name"
    assert ops.explain(*inputs, normalization="sigmoid").startswith("reference: the normaliz")
    with pytest.raises(ValueError, match="`kernel` must be one of"):
        ops.explain(*inputs, kernel="quantum")


def test_a_kernel_that_cannot_says_why():
    with pytest.raises(ValueError, match=r"'blockwise' cannot do this: the normalization is not"):
        ops.attend(*tensors(*arrays()), normalization="sigmoid", kernel="blockwise")
    with pytest.raises(ValueError, match=r"'banded' cannot do this: the pattern has no window"):
        ops.attend(*tensors(*arrays()), kernel="banded")


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
        places = keras.ops.clip(j - i, -3, 3) + 3
        return keras.ops.transpose(keras.ops.take(table, places, axis=0), (2, 0, 1))

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


# What padding holds


GARBAGE = {"float32": np.nan, "bfloat16": np.inf, "float16": -np.inf}


@pytest.mark.parametrize("kernel", kernels.names())
@pytest.mark.parametrize("role", ["query", "key"])
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(
    "options",
    [{}, {"pattern": WINDOW}, {"score": "cosine"}, {"normalization": "sparsemax"}],
    ids=["plain", "window", "cosine", "sparsemax"],
)
def test_padding_may_hold_anything(kernel, role, dtype, options):
    length = 300 if kernel == "banded" else S
    count = 1 if kernel == "one_query" else length
    clean = [random(1, n, 2, K, seed=n + i) for i, n in enumerate((count, length, length))]
    real = np.arange(count if role == "query" else length) % 3 != (0 if count == 1 else 2)
    dirty = [array.copy() for array in clean]
    for array in dirty[:1] if role == "query" else dirty[1:]:
        array[:, ~real] = GARBAGE[dtype]
    mask = real[None, None, :, None] if role == "query" else real[None, None, None]

    def attend(*inputs):
        inputs = [keras.ops.cast(x, dtype) for x in inputs]
        return ops.attend(*inputs, mask=mask, kernel=kernel, **options)

    try:
        expected = numpy(keras.ops.cast(attend(*tensors(*clean)), "float32"))
    except ValueError as error:
        assert "cannot do this" in str(error)
        return
    found = numpy(keras.ops.cast(attend(*tensors(*dirty)), "float32"))
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(found, expected)

    def loss(*inputs):
        return keras.ops.square(attend(*inputs))

    for one, other in zip(gradients(loss, clean), gradients(loss, dirty), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)


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


# Log-sum-exps, and attentions put together by them


def defined_lse(query, key, mask, sink=None, bias=0.0):
    """ln Σ exp(score) in float64, over the keys that the mask allows."""
    scores = np.einsum("bthk,bshk->bhts", query, key).astype("float64") / np.sqrt(K) + bias
    scores = np.where(np.broadcast_to(mask, scores.shape), scores, -np.inf)
    if sink is not None:
        sinks = np.broadcast_to(sink[:, None, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, sinks], axis=-1)
    largest = np.maximum(scores.max(-1, keepdims=True), -1e30)
    with np.errstate(divide="ignore"):
        return (largest + np.log(np.exp(scores - largest).sum(-1, keepdims=True)))[..., 0]


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("kernel", ["reference", "blockwise", "auto"])
def test_the_log_sum_exp(kernel, sink):
    query, key, value = arrays()
    mask, bias = allowed_with_empty_rows(), random(1, H, T, S, seed=50)
    given = {"sink": random(H, seed=51)} if sink else {}
    output, lse = ops.attend(
        *tensors(query, key, value, bias)[:3],
        mask=mask,
        bias=bias,
        kernel=kernel,
        return_lse=True,
        **given,
    )
    expected = defined_lse(query, key, mask, bias=bias, **given)
    found = numpy(lse)
    assert np.isfinite(found).all()
    seen = np.isfinite(expected)
    np.testing.assert_allclose(found[seen], expected[seen], rtol=1e-5, atol=1e-5)
    assert (found[~seen] < -1e38).all() and (sink or not seen.all())
    plain = ops.attend(query, key, value, mask=mask, bias=bias, kernel=kernel, **given)
    np.testing.assert_allclose(numpy(output), numpy(plain), rtol=1e-5, atol=1e-6)


def test_the_log_sum_exp_of_a_single_query():
    query, key, value = arrays()
    _, lse = ops.attend(query[:, :1], key, value, kernel="single_query", return_lse=True)
    expected = defined_lse(query[:, :1], key, np.ones((1, 1, 1, 1), bool))
    np.testing.assert_allclose(numpy(lse), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_merged_attentions_are_one_with_all_gradients(kernel):
    mask, sink = allowed_with_empty_rows(), random(H, seed=52)
    upstream = random(B, T, H, V, seed=53)

    def whole(query, key, value):
        return ops.attend(query, key, value, mask=mask, sink=sink, kernel=kernel)

    def merged(query, key, value):
        parts = []
        for start, stop in ((0, 1), (1, 4), (4, S)):
            piece = slice(start, stop)
            parts.append(
                ops.attend(
                    query,
                    key[:, piece],
                    value[:, piece],
                    mask=mask[..., piece],
                    # It takes part once.
                    sink=sink if start == 0 else None,
                    kernel=kernel,
                    return_lse=True,
                )
            )
        return ops.merge(parts)[0]

    found = [
        [
            numpy(function(*tensors(*arrays()))),
            *gradients(
                lambda *x, f=function: keras.ops.sum(keras.ops.multiply(f(*x), upstream)),
                list(arrays()),
            ),
        ]
        for function in (merged, whole)
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_merging_keeps_the_dtype_and_takes_any_number_of_parts():
    query, key, value = tensors(*arrays(), dtype="float16")
    part = ops.attend(query, key, value, return_lse=True)
    output, lse = ops.merge([part])
    assert keras.backend.standardize_dtype(output.dtype) == "float16"
    assert keras.backend.standardize_dtype(lse.dtype) == "float32"
    np.testing.assert_array_equal(numpy(output), numpy(part[0]))
    # The same keys twice count twice, and change nothing but the sum.
    twice, more = ops.merge([part, part])
    np.testing.assert_allclose(numpy(twice), numpy(output), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(numpy(more), numpy(lse) + np.log(2), rtol=1e-5, atol=1e-5)


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
