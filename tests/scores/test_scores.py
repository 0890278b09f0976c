"""Scores: the built-in ones against their equations, and a user's own in every layer."""

import json

import keras
import numpy as np
import pytest

from keras_attention import (
    Attention,
    MultiHeadAttention,
    TransformerBlock,
    kernels,
    ops,
    scores,
)
from keras_attention.spec import AttentionSpec, Positions
from tests import definition
from tests.gradients import weight_gradients

B, T, S, H, K, D = 3, 5, 7, 2, 4, 8


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def by_definition(query, key, score, scale=None, matrix=None, weights=None):
    """Scores (B, H, T, S), pair by pair."""
    query, key = query.astype("float64"), key.astype("float64")
    table = np.zeros((len(query), query.shape[2], query.shape[1], key.shape[1]))
    for b, h, t, s in np.ndindex(table.shape):
        table[b, h, t, s] = definition.pair_score(
            query[b, t, h],
            key[b, s, h],
            score,
            scale,
            None if matrix is None else matrix[h],
            definition.of_head(weights, h),
            s,
        )
    return table


# What a score is made with where its name alone does not make one.
ARGUMENTS = {"reduced_rank": {"rank": 3}, "location": {"max_length": S + 2}}


def make(name, **kwargs):
    return scores.BUILTIN[name](**{**ARGUMENTS.get(name, {}), **kwargs})


def named_weights(score, heads=1):
    """A score's weights for `definition.attend`, with an axis of `heads` in front."""
    found = {weight.name: numpy(weight).astype("float64") for weight in score.weights}
    for name, array in found.items():
        found[name] = np.repeat(array, heads // len(array), axis=0) if heads > 1 else array
    if isinstance(score, scores.General):
        return {"matrix": found["kernel"]}
    return {"weights": found} if found else {}


def fill(score, seed=20):
    """Gives a built score weights that no two of are alike, biases included."""
    score.set_weights(
        [random(*weight.shape, seed=seed + n) / 2 for n, weight in enumerate(score.weights)]
    )


QUERY, KEY = random(B, T, H, K, seed=1), random(B, S, H, K, seed=2)


# Equations


@pytest.mark.parametrize(
    "score, name, scale",
    [
        (scores.Dot(), "dot", None),
        (scores.ScaledDot(), "scaled_dot", None),
        (scores.ScaledDot(scale=0.3), "scaled_dot", 0.3),
        (scores.Cosine(), "cosine", None),
        (scores.Cosine(scale=5), "cosine", 5.0),
    ],
)
def test_score_is_its_equation(score, name, scale):
    np.testing.assert_allclose(
        numpy(score(QUERY, KEY)), by_definition(QUERY, KEY, name, scale), rtol=1e-5, atol=1e-6
    )


def test_general_is_its_equation_with_a_matrix_a_head_and_unequal_sizes():
    key = random(B, S, H, 3, seed=3)
    score, matrix = scores.General("zeros"), random(H, K, 3, seed=4)
    score.build(QUERY.shape, key.shape)
    score.set_weights([matrix])
    found = score(QUERY, key)
    np.testing.assert_allclose(
        numpy(found), by_definition(QUERY, key, "general", matrix=matrix), rtol=1e-5, atol=1e-6
    )


# Arguments, and sizes of query and key.
LEARNED = {
    "general": ("general", {}, 3),
    "reduced_rank": ("reduced_rank", {}, 3),
    "reduced_rank of one": ("reduced_rank", {"rank": 1}, K),
    "additive": ("additive", {}, 3),
    "additive of 5": ("additive", {"units": 5}, K),
    "additive without bias": ("additive", {"units": 5, "use_bias": False}, K),
    "additive, normalized": ("additive", {"units": 6, "normalize": True}, 3),
    "concat": ("concat", {}, K),
    "concat of 5": ("concat", {"units": 5}, 3),
    "location": ("location", {}, 3),
    "location of as many": ("location", {"max_length": S}, K),
    "key_only": ("key_only", {}, 3),
    "key_only of 5": ("key_only", {"units": 5}, 3),
    "key_only without bias": ("key_only", {"use_bias": False}, K),
}


# One case of each score, where the arguments make no difference to what is tested.
ONE_EACH = (
    "general",
    "reduced_rank",
    "additive, normalized",
    "concat of 5",
    "location",
    "key_only of 5",
)


def learned(case):
    """A score of `LEARNED`, built and filled, its name, and a key for it."""
    name, arguments, size = LEARNED[case]
    score, key = make(name, **arguments), random(B, S, H, size, seed=3)
    score.build(QUERY.shape, key.shape)
    fill(score)
    return score, name, key


@pytest.mark.parametrize("case", LEARNED)
def test_a_learned_score_is_its_equation(case):
    score, name, key = learned(case)
    expected = by_definition(QUERY, key, name, **named_weights(score))
    np.testing.assert_allclose(numpy(score(QUERY, key)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", LEARNED)
def test_a_learned_score_has_the_gradients_of_its_equation(case):
    if keras.backend.backend() == "jax":
        pytest.skip("JAX has float64 only after its x64 mode was switched on for the process.")
    name, arguments, size = LEARNED[case]
    score = make(name, dtype="float64", **arguments)
    query, key = random(1, 2, H, K, seed=1), random(1, 3, H, size, seed=3)
    score.build(query.shape, key.shape)
    fill(score)
    names = [weight.name for weight in score.weights]
    direction = random(1, H, 2, 3, seed=5).astype("float64")

    def expected(*arrays):
        weights = dict(zip(names, arrays, strict=False))
        given = {"matrix": weights["kernel"]} if name == "general" else {"weights": weights}
        return (by_definition(*arrays[-2:], name, **given) * direction).sum()

    arrays = [query.astype("float64"), key.astype("float64")]
    of_weights, of_arrays = weight_gradients(
        score, lambda *x: keras.ops.multiply(score(*x), direction), arrays
    )
    weights = [numpy(weight) for weight in score.weights]
    for found, gradient in zip(
        [*of_weights, *of_arrays], definition.gradients(expected, [*weights, *arrays]), strict=True
    ):
        np.testing.assert_allclose(found, gradient, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("case", ONE_EACH)
def test_heads_that_share_keys_share_the_weights_of_keys(case):
    name, arguments, size = LEARNED[case]
    score, heads = make(name, **arguments), 4
    query, key = random(B, T, heads, K, seed=1), random(B, S, 2, size, seed=2)
    score.build(query.shape, key.shape)
    fill(score)
    value = random(B, S, 2, 3, seed=4)
    repeated = [np.repeat(array, 2, axis=2) for array in (key, value)]
    if name == "general":
        # Each query head has a matrix of its own.
        assert score.kernel.shape == (heads, K, size)
    _, weights = ops.attend(query, key, value, score=score, return_attention_scores=True)
    _, expected = definition.attend(query, *repeated, score=name, **named_weights(score, heads))
    np.testing.assert_allclose(numpy(weights), expected, rtol=1e-4, atol=1e-5)


SPEC = AttentionSpec(positions=Positions.of(T, S))


@pytest.mark.parametrize("case", ONE_EACH)
def test_a_learned_score_prepares_keys_once_for_all_queries(case):
    score, _, key = learned(case)
    value = random(B, S, H, 3, seed=4)
    prepared = score.prepare_key(keras.ops.convert_to_tensor(key))
    query = keras.ops.convert_to_tensor(QUERY)
    outputs = [
        kernels.run(*score.into_spec(SPEC, query, *given), value).output
        for given in ((keras.ops.convert_to_tensor(key),), (prepared, True))
    ]
    np.testing.assert_allclose(*map(numpy, outputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ONE_EACH)
def test_huge_inputs_give_numbers_and_gradients_that_are_numbers(case):
    score, _, key = learned(case)
    value = random(B, S, H, 3, seed=4)
    huge = [np.float32(3e37) * np.clip(array, -4, 4) for array in (QUERY, key)]

    def call(query, key):
        return ops.attend(query, key, value, score=score)

    assert np.isfinite(numpy(call(*huge))).all()
    of_weights, of_arrays = weight_gradients(score, call, huge)
    for gradient in (*of_weights, *of_arrays):
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", ["location", "key_only"])
def test_what_a_score_ignores_changes_nothing(name):
    score, _, key = learned(name)
    expected = numpy(score(QUERY, key))
    other = {"location": (QUERY, 7 * key + 1), "key_only": (7 * QUERY + 1, key)}[name]
    np.testing.assert_allclose(numpy(score(*other)), expected, rtol=1e-5, atol=1e-6)


def test_normalized_additive_does_not_depend_on_the_length_of_its_vector():
    score, _, key = learned("additive, normalized")
    expected = numpy(score(QUERY, key))
    for factor in (1e-20, 1e20):
        score.v.assign(score.v * factor)
        np.testing.assert_allclose(numpy(score(QUERY, key)), expected, rtol=1e-4, atol=1e-5)
        score.v.assign(score.v / factor)
    score.v.assign(0 * score.v)
    np.testing.assert_array_equal(numpy(score(QUERY, key)), 0)


def test_normalized_additive_starts_with_a_vector_of_length_one_over_the_root_of_units():
    score = scores.Additive(16, normalize=True)
    score.build(QUERY.shape, KEY.shape)
    np.testing.assert_allclose(numpy(score.length), np.full((H, 1), 0.25))


def test_key_only_takes_any_activation():
    score, _, key = learned("key_only")
    linear = scores.KeyOnly(activation="linear")
    linear.build(QUERY.shape, key.shape)
    linear.set_weights(score.get_weights())
    np.testing.assert_allclose(
        np.tanh(numpy(linear(QUERY, key))), numpy(score(QUERY, key)), rtol=1e-4, atol=1e-5
    )


# Location


def test_location_refuses_more_keys_than_it_has_columns():
    message = r"at most max_length=6 keys\. Received: 7"
    layer = Attention(score=scores.Location(6))
    for arguments in (
        (random(B, T, D), random(B, S, D)),
        (keras.Input((T, D)), keras.Input((S, D))),
    ):
        with pytest.raises(ValueError, match=message):
            layer(*arguments)
    layer = Attention(score=scores.Location(6))
    assert layer(random(B, T, D), random(B, 6, D)).shape == (B, T, D)
    with pytest.raises(ValueError, match=message):
        layer(random(B, T, D), random(B, S, D))


@pytest.mark.parametrize("max_length", [1, 6])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_location_never_answers_where_its_length_shows_only_when_run(max_length, jit_compile):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Only TensorFlow's graphs have lengths that are not known.")
    import tensorflow as tf

    # Sigmoid, since Keras warns of a softmax over one key.
    layer = Attention(score=scores.Location(max_length), normalization="sigmoid")
    layer.build((None, None, D), (None, None, D))
    signature = [tf.TensorSpec((None, None, D)), tf.TensorSpec((None, None, D))]
    mask = tf.TensorSpec((None, None), "bool")
    call = tf.function(
        lambda query, value, mask: layer(query, value, value_mask=mask),
        [*signature, mask],
        jit_compile=jit_compile,
    )
    query = random(B, T, D)
    fits, longer = random(B, max_length, D), random(B, S, D)
    expected = numpy(layer(query, fits))
    found = call(query, fits, np.ones((B, max_length), bool))
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        call(query, longer, np.ones((B, S), bool))


def test_location_uses_as_many_columns_as_there_are_keys():
    score, _, key = learned("location")
    whole, part = numpy(score(QUERY, key)), numpy(score(QUERY, key[:, :3]))
    np.testing.assert_allclose(part, whole[..., :3], rtol=1e-6)


# Inner products


@pytest.mark.parametrize("queries, keys", [(3, 0), (0, 4), (0, 0)])
def test_cosines_of_nothing_are_nothing(queries, keys):
    query, key = random(2, queries, 1, 4), random(2, keys, 1, 4)
    output = ops.attend(query, key, key, score="cosine")
    np.testing.assert_array_equal(numpy(output), np.zeros((2, queries, 1, 4)))


def test_cosine_does_not_depend_on_lengths():
    expected = numpy(scores.Cosine()(QUERY, KEY))
    for factor in (1e-30, 1e-3, 1e30):
        found = numpy(scores.Cosine()(QUERY * np.float32(factor), KEY / np.float32(factor)))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(expected).max() <= 1 + 1e-6


@pytest.mark.parametrize("name", scores.BUILTIN)
def test_the_kernel_is_given_what_the_score_computes(name):
    score = make(name)
    logits = numpy(score(QUERY, KEY))
    value = random(B, S, H, 3, seed=4)
    _, weights = ops.attend(QUERY, KEY, value, score=score, return_attention_scores=True)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    expected = powers / powers.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(numpy(weights), expected, rtol=1e-5, atol=1e-6)


# In layers


@pytest.mark.parametrize("name", scores.BUILTIN)
def test_attention_without_projections_compares_the_inputs(name):
    layer = Attention(score=make(name))
    query, value = random(B, T, K, seed=1), random(B, S, K, seed=2)
    layer.build(query.shape, value.shape)
    fill(layer.score)
    output, weights = layer(query, value, return_attention_scores=True)
    heads = query[:, :, None], value[:, :, None], value[:, :, None]
    expected, expected_weights = definition.attend(*heads, score=name, **named_weights(layer.score))
    np.testing.assert_allclose(numpy(output), expected[:, :, 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(numpy(weights), expected_weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "make_layer, name",
    [
        *((lambda name: MultiHeadAttention(H, K, score=make(name)), n) for n in scores.BUILTIN),
        (lambda name: TransformerBlock(16, H, score=name), "cosine"),
    ],
)
def test_layers_with_heads_compare_the_projections(make_layer, name):
    layer, x = make_layer(name), random(B, T, D, seed=5)
    layer.build(x.shape)
    attention = layer.attention if isinstance(layer, TransformerBlock) else layer
    heads = []
    for seed, part in enumerate(("query", "key", "value")):
        dense = getattr(attention, f"{part}_dense")
        kernel, bias = random(D, H, K, seed=seed) / 2, random(H, K, seed=10 + seed)
        dense.set_weights([kernel, bias])
        heads.append(np.einsum("btd,dhk->bthk", x, kernel) + bias)
    fill(attention.score)
    _, weights = layer(x, return_attention_scores=True)
    _, expected = definition.attend(*heads, score=name, **named_weights(attention.score))
    np.testing.assert_allclose(numpy(weights), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["dot", "scaled_dot", "cosine"])
def test_sizes_that_cannot_be_compared_are_refused(name):
    message = rf"features that {type(scores.get(name)).__name__} compares must be equal.*8.*6"
    with pytest.raises(ValueError, match=message):
        Attention(score=name)(random(B, T, D), random(B, S, 6))
    with pytest.raises(ValueError, match=message):
        Attention(score=name)(keras.Input((T, D)), keras.Input((S, 6)))
    # With projections both have key_dim features.
    assert Attention(H, K, score=name)(random(B, T, D), random(B, S, 6)).shape == (B, T, H * K)


UNEQUAL = sorted({name for name, _, _ in LEARNED.values()})


@pytest.mark.parametrize("name", UNEQUAL)
def test_learned_scores_compare_unequal_sizes(name):
    layer = Attention(score=make(name))
    query, key, value = random(B, T, D), random(B, S, 6, seed=1), random(B, S, 4, seed=2)
    symbolic = layer(keras.Input((T, D)), keras.Input((S, 4)), keras.Input((S, 6)))
    assert symbolic.shape == (None, T, 4)
    fill(layer.score)
    heads = [array[:, :, None] for array in (query, key, value)]
    expected, _ = definition.attend(*heads, score=name, **named_weights(layer.score))
    found = numpy(layer(query, value, key))
    np.testing.assert_allclose(found, expected[:, :, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", UNEQUAL)
def test_padding_of_keys_changes_nothing(name):
    layer = Attention(score=make(name))
    query, value = random(B, T, D), random(B, S - 2, D, seed=1)
    expected = numpy(layer(query, value))
    padded = np.concatenate([value, random(B, 2, D, seed=2)], axis=1)
    mask = np.broadcast_to(np.arange(S) < S - 2, (B, S))
    output, weights = layer(query, padded, value_mask=mask, return_attention_scores=True)
    np.testing.assert_allclose(numpy(output), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(numpy(weights)[..., S - 2 :], 0)


@pytest.mark.parametrize("name", [name for name in scores.BUILTIN if name != "location"])
def test_the_order_of_keys_changes_nothing(name):
    layer = Attention(score=make(name))
    query, value = random(B, T, D), random(B, S, D, seed=1)
    order = np.random.default_rng(0).permutation(S)
    expected = numpy(layer(query, value))
    np.testing.assert_allclose(numpy(layer(query, value[:, order])), expected, rtol=1e-4, atol=1e-5)


def test_the_order_of_keys_is_what_location_goes_by():
    layer = Attention(score=make("location"))
    query, value = random(B, T, D), random(B, S, D, seed=1)
    _, weights = layer(query, value, return_attention_scores=True)
    _, reversed_weights = layer(query, value[:, ::-1], return_attention_scores=True)
    np.testing.assert_allclose(numpy(weights), numpy(reversed_weights), rtol=1e-6)


def test_general_compares_unequal_sizes():
    layer = Attention(score=scores.General("ones"))
    output = layer(random(B, T, D), random(B, S, 6), random(B, S, 4))
    assert output.shape == (B, T, 6)
    assert layer.score.kernel.shape == (1, D, 4)


def test_the_weight_of_general_counts_as_the_layers_own():
    score = scores.General(kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.5))
    layer = Attention(score=score)
    layer.build((B, T, D), (B, S, 6))
    assert [weight.path.split("/")[-1] for weight in layer.trainable_weights] == ["kernel"]
    np.testing.assert_allclose(numpy(sum(layer.losses)), 0.5 * D * 6, rtol=1e-6)


# Precision


@pytest.mark.parametrize(
    "name, dtype",
    [*((name, "bfloat16") for name in scores.BUILTIN), ("scaled_dot", "float16")],
)
def test_scores_stay_float32_in_mixed_precision(name, dtype):
    layer = Attention(score=make(name), dtype=f"mixed_{dtype}")
    # Scores near 100, which bfloat16 would round to halves.
    query, value = 8 * random(B, T, K, seed=1), 8 * random(B, S, K, seed=2)
    query, value = (keras.ops.cast(x, dtype) for x in (query, value))
    output, weights = layer(query, value, return_attention_scores=True)
    assert layer.score.compute_dtype == layer.score.variable_dtype == "float32"
    query, value = (numpy(keras.ops.cast(x, "float32"))[:, :, None] for x in (query, value))
    expected, expected_weights = definition.attend(
        query, value, value, score=name, **named_weights(layer.score)
    )
    close = {"rtol": 2**-8 if dtype == "bfloat16" else 2**-10, "atol": 1e-4}
    found = [numpy(keras.ops.cast(x, "float32")) for x in (output, weights)]
    np.testing.assert_allclose(found[0], expected[:, :, 0], **close)
    np.testing.assert_allclose(found[1], expected_weights, **close)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_score_made_under_a_global_mixed_policy_is_float32(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        score = Attention(score="general").score
        made = scores.Dot()
    finally:
        keras.config.set_dtype_policy(before)
    assert score.compute_dtype == made.compute_dtype == "float32"


# The slot


def test_get_takes_a_name_a_score_or_a_config():
    for name, cls in scores.BUILTIN.items():
        # The id is the class's name in snake_case.
        assert "".join(part.capitalize() for part in name.split("_")) == cls.__name__
        if name not in ARGUMENTS:
            assert type(scores.get(name)) is cls
    score = scores.Cosine(2.0)
    assert scores.get(score) is score
    assert scores.get(keras.saving.serialize_keras_object(score)).scale == 2.0
    assert scores.get("dot") is not scores.get("dot")


KERNEL = {
    "kernel_initializer": "he_normal",
    "kernel_regularizer": keras.regularizers.L2(0.01),
    "kernel_constraint": keras.constraints.NonNeg(),
}
BIAS = {
    "bias_initializer": "ones",
    "bias_regularizer": keras.regularizers.L1(0.02),
    "bias_constraint": keras.constraints.UnitNorm(),
}


@pytest.mark.parametrize(
    "score",
    [
        scores.Dot(),
        scores.ScaledDot(0.25),
        scores.Cosine(3.0),
        scores.General("he_normal", keras.regularizers.L2(0.01), keras.constraints.NonNeg()),
        scores.ReducedRank(3, **KERNEL),
        scores.Additive(5, use_bias=False, normalize=True, **KERNEL, **BIAS),
        scores.Additive(),
        scores.Concat(6, **KERNEL),
        scores.Location(9, **KERNEL),
        scores.KeyOnly(4, "relu", False, **KERNEL, **BIAS),
    ],
    ids=lambda score: type(score).__name__,
)
def test_config_goes_through_json(score):
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(score)))
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(score)
    assert again.get_config() == score.get_config()
    if hasattr(score, "kernel_initializer") and score.kernel_regularizer is not None:
        assert isinstance(again.kernel_initializer, keras.initializers.HeNormal)
        assert again.kernel_regularizer.l2 == pytest.approx(0.01)
        assert isinstance(again.kernel_constraint, keras.constraints.NonNeg)


@pytest.mark.parametrize("name", [name for name in UNEQUAL if name != "general"])
def test_initializers_regularizers_and_constraints_reach_the_weights(name):
    biased = name in ("additive", "key_only")
    given = {
        "kernel_initializer": keras.initializers.Constant(-0.5),
        "kernel_regularizer": keras.regularizers.L2(0.1),
        "kernel_constraint": keras.constraints.NonNeg(),
        **(BIAS if biased else {}),
    }
    layer = Attention(score=make(name, **given))
    layer.build((B, T, D), (B, S, 6))
    for weight in layer.score.weights:
        kind = "bias" if weight.name == "bias" else "kernel"
        assert weight.regularizer is given[f"{kind}_regularizer"]
        assert weight.constraint is given[f"{kind}_constraint"]
        np.testing.assert_array_equal(numpy(weight), 1.0 if kind == "bias" else -0.5)
    assert len(layer.losses) == len(layer.trainable_weights) == len(layer.score.weights)


def test_weights_of_one_shape_do_not_start_alike():
    score = scores.Additive(K)
    score.build(QUERY.shape, KEY.shape)
    assert score.query_kernel.shape == score.key_kernel.shape
    assert np.abs(numpy(score.query_kernel) - numpy(score.key_kernel)).max() > 0.01


# Scores of a user's own


@keras.saving.register_keras_serializable(package="test_scores")
class Distance(scores.Score):
    """Looks at each pair, and owns nothing."""

    def __init__(self, sharpness, **kwargs):
        super().__init__(**kwargs)
        self.sharpness = sharpness

    def call(self, query, key):
        squares = keras.ops.square(query[:, :, None] - key[:, None])
        return -self.sharpness * keras.ops.transpose(keras.ops.sum(squares, -1), (0, 3, 1, 2))


@keras.saving.register_keras_serializable(package="test_scores")
class Diagonal(scores.Score):
    """An inner product with a weight for each feature, made in `build`."""

    def build(self, query_shape, key_shape):
        self.diagonal = self.add_weight(shape=query_shape[2:], initializer="ones")

    def prepare(self, query, key):
        return query * self.diagonal, key


@keras.saving.register_keras_serializable(package="test_scores")
class Perceptron(scores.Score):
    """Looks at each pair through weights made in `build` and a sublayer; sizes may differ."""

    unequal_sizes = True

    def __init__(self, units=3, activation="tanh", **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.activation = keras.activations.get(activation)

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        self.of_query = keras.layers.Dense(self.units, use_bias=False, kernel_initializer="ones")
        self.of_query.build(query_shape)
        shape = (key_shape[-1], self.units)
        self.of_key = self.add_weight(name="of_key", shape=shape, initializer="ones")
        self.last = self.add_weight(name="last", shape=(self.units,), initializer="ones")

    def call(self, query, key):
        hidden = self.of_query(query)[:, :, None] + keras.ops.matmul(key, self.of_key)[:, None]
        return keras.ops.einsum("btshu,u->bhts", self.activation(hidden), self.last)


def test_a_score_of_ones_own_is_what_it_says():
    expected = -0.7 * np.square(QUERY[:, :, None] - KEY[:, None]).sum(-1).transpose(0, 3, 1, 2)
    value = random(B, S, H, 3, seed=4)
    _, weights = ops.attend(QUERY, KEY, value, score=Distance(0.7), return_attention_scores=True)
    powers = np.exp(expected)
    np.testing.assert_allclose(
        numpy(weights), powers / powers.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("base", [scores.Dot, scores.ScaledDot, scores.Cosine, scores.General])
def test_compare_of_a_subclass_may_change_the_scores_of_its_base(base):
    class Halved(base):
        def compare(self, query, key):
            return super().compare(query, key) / 2

    halved, whole = Halved(), base()
    for score in (halved, whole):
        score.build(QUERY.shape, KEY.shape)
        score.set_weights([random(*weight.shape, seed=5) for weight in score.weights])
    expected = numpy(whole(QUERY, KEY)) / 2
    np.testing.assert_allclose(numpy(halved(QUERY, KEY)), expected, rtol=1e-4, atol=1e-5)
    value = random(B, S, H, 3, seed=4)
    _, weights = ops.attend(QUERY, KEY, value, score=halved, return_attention_scores=True)
    powers = np.exp(expected)
    np.testing.assert_allclose(
        numpy(weights), powers / powers.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6
    )


def test_scores_train_save_and_load_in_every_layer(check_in_every_layer):
    given = Diagonal(), scores.General(), Perceptron(4, "sigmoid")
    found = check_in_every_layer("score", *given)
    for score, expected, weights in zip(found, given, (1, 1, 3), strict=True):
        assert type(score) is type(expected)
        assert score.get_config() == expected.get_config()
        assert len(score.weights) == weights


def test_learned_scores_of_pairs_train_save_and_load_in_every_layer(check_in_every_layer):
    given = scores.ReducedRank(3), scores.Additive(5, normalize=True), scores.Concat()
    found = check_in_every_layer("score", *given)
    for score, expected in zip(found, given, strict=True):
        assert type(score) is type(expected)
        assert score.get_config() == expected.get_config()
        assert len(score.weights) == len(expected.weights) > 0


# The side that the score ignores has projections without a gradient.
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_scores_of_one_side_train_save_and_load_in_every_layer(tmp_path):
    given = scores.Location(6), scores.KeyOnly(4, "relu"), scores.KeyOnly(), scores.Location(S)
    layers = [
        Attention(score=given[0]),
        Attention(2, 4, score=given[1]),
        MultiHeadAttention(2, 4, score=given[2]),
        TransformerBlock(16, 2, score=given[3]),
    ]
    x, symbol = 2 * random(B, T, D), keras.Input((None, D))
    model = keras.Model(symbol, keras.layers.add([layer(symbol) for layer in layers]))
    before = [[numpy(weight) for weight in score.weights] for score in given]
    model.compile("sgd", "mse", jit_compile=keras.config.backend() == "jax")
    model.fit(x, random(B, T, D, seed=1), verbose=0)
    for score, old in zip(given, before, strict=True):
        for weight, array in zip(score.weights, old, strict=True):
            assert np.abs(numpy(weight) - array).max() > 0, weight.path
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numpy(loaded(x)), numpy(model(x)), rtol=1e-6, atol=1e-6)
    for layer, score in zip(layers, given, strict=True):
        assert loaded.get_layer(layer.name).score.get_config() == score.get_config()


def test_a_score_of_ones_own_may_compare_unequal_sizes_without_projections():
    layer = Attention(score=Perceptron())
    assert layer(random(B, T, D), random(B, S, 6)).shape == (B, T, 6)


def test_a_score_of_ones_own_works_in_float32_under_mixed_precision():
    seen = []

    class Watching(scores.Score):
        def build(self, query_shape, key_shape):
            self.scale = self.add_weight(shape=(), initializer="ones")

        def watch(self, query, key):
            scale = keras.ops.multiply(self.scale, 1.0)
            seen.extend(keras.backend.standardize_dtype(x.dtype) for x in (query, key, scale))

    class OnPairs(Watching):
        def call(self, query, key):
            self.watch(query, key)
            return keras.ops.einsum("bthk,bshk->bhts", query, key)

    class OnEachSide(Watching):
        def prepare(self, query, key):
            self.watch(query, key)
            return query, key

    for layer in (
        Attention(score=OnPairs(), dtype="mixed_bfloat16"),
        Attention(score=OnEachSide(), dtype="mixed_bfloat16"),
        TransformerBlock(16, H, score=OnEachSide(), dtype="mixed_bfloat16"),
    ):
        output = layer(random(B, T, D))
        assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
        assert len(seen) >= 3 and set(seen) == {"float32"}
        seen.clear()
