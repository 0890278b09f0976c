"""Scores: the built-in ones against their equations, and a user's own in every layer."""

import json

import keras
import numpy as np
import pytest

from keras_attention import Attention, MultiHeadAttention, TransformerBlock, ops, scores
from tests import definition

B, T, S, H, K, D = 3, 5, 7, 2, 4, 8


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def by_definition(query, key, score, scale=None, matrix=None):
    """Scores (B, H, T, S), pair by pair."""
    query, key = query.astype("float64"), key.astype("float64")
    table = np.zeros((len(query), query.shape[2], query.shape[1], key.shape[1]))
    for b, h, t, s in np.ndindex(table.shape):
        table[b, h, t, s] = definition.pair_score(
            query[b, t, h], key[b, s, h], score, scale, None if matrix is None else matrix[h]
        )
    return table


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


def test_cosine_does_not_depend_on_lengths():
    expected = numpy(scores.Cosine()(QUERY, KEY))
    for factor in (1e-30, 1e-3, 1e30):
        found = numpy(scores.Cosine()(QUERY * np.float32(factor), KEY / np.float32(factor)))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(expected).max() <= 1 + 1e-6


@pytest.mark.parametrize("name", scores.BUILTIN)
def test_the_kernel_is_given_what_the_score_computes(name):
    score = scores.get(name)
    logits = numpy(score(QUERY, KEY))
    value = random(B, S, H, 3, seed=4)
    _, weights = ops.attend(QUERY, KEY, value, score=score, return_attention_scores=True)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    expected = powers / powers.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(numpy(weights), expected, rtol=1e-5, atol=1e-6)


# In layers


@pytest.mark.parametrize("name", scores.BUILTIN)
def test_attention_without_projections_compares_the_inputs(name):
    layer = Attention(score=name)
    query, value = random(B, T, K, seed=1), random(B, S, K, seed=2)
    output, weights = layer(query, value, return_attention_scores=True)
    heads = query[:, :, None], value[:, :, None], value[:, :, None]
    matrix = numpy(layer.score.kernel) if name == "general" else None
    expected, expected_weights = definition.attend(*heads, score=name, matrix=matrix)
    np.testing.assert_allclose(numpy(output), expected[:, :, 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(numpy(weights), expected_weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "make, name",
    [
        *((lambda name: MultiHeadAttention(H, K, score=name), name) for name in scores.BUILTIN),
        (lambda name: TransformerBlock(16, H, score=name), "cosine"),
    ],
)
def test_layers_with_heads_compare_the_projections(make, name):
    layer, x = make(name), random(B, T, D, seed=5)
    layer.build(x.shape)
    attention = layer.attention if isinstance(layer, TransformerBlock) else layer
    heads = []
    for seed, part in enumerate(("query", "key", "value")):
        dense = getattr(attention, f"{part}_dense")
        kernel, bias = random(D, H, K, seed=seed) / 2, random(H, K, seed=10 + seed)
        dense.set_weights([kernel, bias])
        heads.append(np.einsum("btd,dhk->bthk", x, kernel) + bias)
    _, weights = layer(x, return_attention_scores=True)
    matrix = numpy(attention.score.kernel) if name == "general" else None
    _, expected = definition.attend(*heads, score=name, matrix=matrix)
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
    layer = Attention(score=name, dtype=f"mixed_{dtype}")
    # Scores near 100, which bfloat16 would round to halves.
    query, value = 8 * random(B, T, K, seed=1), 8 * random(B, S, K, seed=2)
    query, value = (keras.ops.cast(x, dtype) for x in (query, value))
    output, weights = layer(query, value, return_attention_scores=True)
    assert layer.score.compute_dtype == layer.score.variable_dtype == "float32"
    query, value = (numpy(keras.ops.cast(x, "float32"))[:, :, None] for x in (query, value))
    matrix = numpy(layer.score.kernel) if name == "general" else None
    expected, expected_weights = definition.attend(query, value, value, score=name, matrix=matrix)
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
    names = {"dot": "Dot", "scaled_dot": "ScaledDot", "cosine": "Cosine", "general": "General"}
    assert {name: type(scores.get(name)).__name__ for name in scores.BUILTIN} == names
    score = scores.Cosine(2.0)
    assert scores.get(score) is score
    assert scores.get(keras.saving.serialize_keras_object(score)).scale == 2.0
    assert scores.get("dot") is not scores.get("dot")


@pytest.mark.parametrize(
    "score",
    [
        scores.Dot(),
        scores.ScaledDot(0.25),
        scores.Cosine(3.0),
        scores.General("he_normal", keras.regularizers.L2(0.01), keras.constraints.NonNeg()),
    ],
)
def test_config_goes_through_json(score):
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(score)))
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(score)
    assert again.get_config() == score.get_config()
    if isinstance(score, scores.General):
        assert isinstance(again.kernel_initializer, keras.initializers.HeNormal)
        assert again.kernel_regularizer.l2 == pytest.approx(0.01)
        assert isinstance(again.kernel_constraint, keras.constraints.NonNeg)


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


def test_scores_train_save_and_load_in_every_layer(check_in_every_layer):
    given = Diagonal(), scores.General(), Perceptron(4, "sigmoid")
    found = check_in_every_layer("score", *given)
    for score, expected, weights in zip(found, given, (1, 1, 3), strict=True):
        assert type(score) is type(expected)
        assert score.get_config() == expected.get_config()
        assert len(score.weights) == weights


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
