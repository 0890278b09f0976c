"""Positions: what kernels and layers ask of one, shown on custom and on all built-in ones."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns
from tests import definition
from tests.arrays import close, numpy, random, run

B, T, S, H, K, D = 3, 5, 7, 2, 4, 8


@keras.saving.register_keras_serializable(package="test_positions")
class Slope(ka.positions.Position):
    """A bias by distance, without weights, of pairs of a pattern: a slot in a slot."""

    def __init__(self, slope, pattern=None, **kwargs):
        super().__init__(**kwargs)
        self.slope = slope
        self.pattern = pattern

    def bias(self, i, j, num_heads):
        far = keras.ops.cast(keras.ops.abs(i - j), "float32")
        if self.pattern is not None:
            far = keras.ops.where(self.pattern.attends(i, j), far, 0.0)
        return -self.slope * far


@keras.saving.register_keras_serializable(package="test_positions")
class Turn(ka.positions.Position):
    """Turns pairs of features by the position and a learned angle: rotary, written plainly."""

    def build(self, query_shape, key_shape):
        self.angle = self.add_weight(name="angle", shape=(), initializer="ones")

    def encode(self, query, key, query_positions, key_positions):
        return self.turn(query, query_positions), self.turn(key, key_positions)

    def turn(self, x, at):
        angle = keras.ops.cast(at, "float32")[..., :, None, None] * self.angle
        first, second = keras.ops.split(keras.ops.cast(x, "float32")[..., :2], 2, axis=-1)
        cos, sin = keras.ops.cos(angle), keras.ops.sin(angle)
        rotated = [first * cos - second * sin, first * sin + second * cos]
        return keras.ops.concatenate([*rotated, keras.ops.cast(x, "float32")[..., 2:]], axis=-1)


class Both(Turn):
    """Turns, and adds a bias."""

    def bias(self, i, j, num_heads):
        return -0.4 * keras.ops.cast(keras.ops.abs(i - j), "float32")


DISTANCE = abs(np.arange(T)[:, None] - np.arange(S)[None])


# What a layer computes


@pytest.mark.parametrize("kind", ["bias", "encode", "both"])
def test_a_position_enters_the_scores(kind):
    position = {"bias": lambda: Slope(0.4), "encode": Turn, "both": Both}[kind]()
    query, value = random(B, T, D, seed=1), random(B, S, D, seed=2)
    output, weights = ka.Attention(position=position)(query, value, return_attention_scores=True)
    query, key = query[:, :, None], value[:, :, None]
    if kind != "bias":
        # Of two features, one pair, with an angle of 1.
        query, key = (
            definition.rotated(x, np.arange(x.shape[1]), 0, "half_split", 2) for x in (query, key)
        )
    bias = 0.0 if kind == "encode" else -0.4 * DISTANCE
    expected, expected_weights = definition.attend(query, key, value[:, :, None], bias=bias)
    np.testing.assert_allclose(numpy(weights), expected_weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(numpy(output), expected[:, :, 0], rtol=1e-4, atol=1e-5)


# The slot


@pytest.mark.parametrize("position", ["disentangled", "shaw"])
def test_layers_that_are_not_built_yet_have_a_config(position, tmp_path):
    x = random(B, T, D)
    layer = ka.SelfAttention(
        2, 4, position=ka.positions.Shaw(2) if position == "shaw" else position
    )
    assert ka.SelfAttention.from_config(layer.get_config())(x).shape == (B, T, 8)
    assert not ka.positions.get(keras.saving.serialize_keras_object(layer.position)).built
    model = keras.Sequential([layer])
    with pytest.warns(UserWarning, match="not yet been built"):
        model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras")(x).shape == (B, T, 8)


SHARED = {
    "position": ka.positions.RelativeBias(8, 16),
    "score": ka.scores.General(),
    # An argument is an object of the package's own again.
    "own": Slope(0.3, ka.patterns.SlidingWindow(1, 1)),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_slot_shared_by_layers_is_shared_after_loading(name, tmp_path):
    symbol, slot = keras.Input((None, 8)), "score" if name == "score" else "position"
    hidden, x = symbol, random(2, 5, 8)
    for _ in range(3):
        hidden = ka.MultiHeadAttention(2, 4, **{slot: SHARED[name]})(hidden)
    model = keras.Model(symbol, hidden)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numpy(again(x)), numpy(model(x)), rtol=1e-6)
    first, *others = (getattr(layer, slot) for layer in again.layers[1:])
    assert all(other is first for other in others) and len(again.weights) == len(model.weights)
    assert getattr(first, "pattern", None) == getattr(SHARED[name], "pattern", None)


def test_a_position_may_refuse_to_decode():
    class Whole(Slope):
        no_decoding_reason = "it counts all keys"

    layer = ka.MultiHeadAttention(H, K, position=Whole(1.0))
    layer.build((B, T, D), (B, T, D))
    with pytest.raises(ValueError, match="cannot have a cache: it counts all keys"):
        layer.make_cache(B, T)


RATES = [patterns.Strided(3), patterns.Dilated(2) & patterns.Causal()]


@pytest.mark.parametrize("name", [*ka.positions.BUILTIN, "grid"])
def test_a_rate_changes_no_bias(name):
    """Positions a rate apart are a sequence of their own, where a bias is one of distances."""
    make = {
        "grid": lambda: ka.positions.GridRelativeBias((4, 5)),
        "fire": lambda: ka.positions.FIRE(threshold=2.0),
        "shaw": lambda: ka.positions.Shaw(2, per_head=True),
    }.get(name, ka.positions.BUILTIN.get(name))
    layers, x = (
        [ka.SelfAttention(H, K, pattern=p, position=make()) for p in RATES],
        random(2, 20, D),
    )
    for layer in layers:
        layer.build(x.shape)
        for weight in layer.position.weights:
            weight.assign(np.abs(np.random.default_rng(1).normal(size=weight.shape)))

    def outputs(x):
        return [y for f in layers for y in (f(x), f(x, return_attention_scores=True)[0])]

    found = run(outputs, x)
    for one, other in zip(found[::2], found[1::2], strict=True):
        close(one, other)


def test_a_score_of_ones_own_is_trusted_with_every_position():
    class Halved(ka.scores.Score):
        def factor(self, size):
            return 0.5

    for position in (ka.positions.Rotary(), ka.positions.Shaw(2)):
        layer = ka.SelfAttention(2, 4, score=Halved(), position=position)
        assert layer(random(2, 5, 8)).shape == (2, 5, 8)


# Embeddings of distances


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_tables_are_read_in_float32_in_mixed_precision(policy):
    layer = ka.RelativePositionAttention(1, 1, 3, use_values=False, dtype=policy)
    x = np.ones((1, T, 1), "float32")
    layer.build(x.shape)
    # As bfloat16 or float16 hold them, these rows are one.
    table = 1024 + 0.25 * np.arange(7.0).reshape(1, 7, 1)
    layer.set_weights(
        [table if w.shape == table.shape else np.ones(w.shape) for w in layer.weights]
    )
    _, weights = layer(x, return_attention_scores=True)
    at = np.arange(T)
    scores = 1 + table[0, np.clip(at - at[:, None], -3, 3) + 3, 0]
    expected = definition.softmax(scores)
    assert expected[0].max() > 1.5 * expected[0].min()
    close(numpy(weights)[0, 0], expected, 2**-8)


def test_a_config_of_0_1_0_that_was_not_built_is_not_built():
    position = ka.positions.Shaw(2)
    position.build_from_config({"value_size": None})
    assert not position.built


@pytest.mark.ci
@pytest.mark.parametrize("position", ["disentangled", "shaw"])
def test_lengths_unknown_in_a_graph_may_be_zero(position):
    made = ka.positions.Shaw(2) if position == "shaw" else ka.positions.Disentangled(8, 6)
    layer = ka.MultiHeadAttention(2, 4, position=made)
    for known in (None, 1):
        query, value = keras.Input((known, D)), keras.Input((None, D))
        model = keras.Model([query, value], layer(query, value, return_attention_scores=True))
        for queries, keys in ((1, 0), (1, S), (T, S), (0, S), (0, 0), (T, 0)):
            if known in (None, queries):
                given = [random(B, queries, D), random(B, keys, D)]
                found, weights = model.predict(given, verbose=0)
                assert found.shape == (B, queries, D) and np.isfinite(found).all()
                assert weights.shape == (B, 2, queries, keys)
        model = keras.Model([query, value], layer(query, value))
        assert np.isfinite(model.predict([random(B, 1, D), random(B, 0, D)], verbose=0)).all()
