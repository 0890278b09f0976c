"""Positions: what kernels and layers ask of one, shown on custom and on all built-in ones."""

import json

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
    """A bias by distance, without weights."""

    def __init__(self, slope, **kwargs):
        super().__init__(**kwargs)
        self.slope = slope

    def bias(self, i, j, num_heads):
        return -self.slope * keras.ops.cast(keras.ops.abs(i - j), "float32")


@keras.saving.register_keras_serializable(package="test_positions")
class Table(ka.positions.Position):
    """A learned bias for each head and distance up to a limit, made in `build`."""

    def __init__(self, limit=3, **kwargs):
        super().__init__(**kwargs)
        self.limit = limit

    def build(self, query_shape, key_shape):
        self.table = self.add_weight(
            name="table", shape=(2 * self.limit + 1, query_shape[2]), initializer="random_normal"
        )

    def bias(self, i, j, num_heads):
        rows = keras.ops.clip(i - j, -self.limit, self.limit) + self.limit
        rows = rows if len(rows.shape) == 2 else rows[:, 0]
        return keras.ops.moveaxis(keras.ops.take(self.table, rows, axis=0), -1, -3)


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


def rotated(x):
    """What `Turn` with an angle of 1 makes of (B, T, H, K) from position 0 on, in NumPy."""
    x = x.astype("float64")
    out = x.copy()
    for t in range(x.shape[1]):
        out[:, t, :, 0] = x[:, t, :, 0] * np.cos(t) - x[:, t, :, 1] * np.sin(t)
        out[:, t, :, 1] = x[:, t, :, 0] * np.sin(t) + x[:, t, :, 1] * np.cos(t)
    return out


DISTANCE = abs(np.arange(T)[:, None] - np.arange(S)[None])


# What a layer computes


@pytest.mark.parametrize("kind", ["bias", "encode", "both"])
def test_a_position_enters_the_scores(kind):
    position = {"bias": lambda: Slope(0.4), "encode": Turn, "both": Both}[kind]()
    query, value = random(B, T, D, seed=1), random(B, S, D, seed=2)
    output, weights = ka.Attention(position=position)(query, value, return_attention_scores=True)
    query, key = query[:, :, None], value[:, :, None]
    if kind != "bias":
        query, key = rotated(query), rotated(key)
    bias = 0.0 if kind == "encode" else -0.4 * DISTANCE
    expected, expected_weights = definition.attend(query, key, value[:, :, None], bias=bias)
    np.testing.assert_allclose(numpy(weights), expected_weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(numpy(output), expected[:, :, 0], rtol=1e-4, atol=1e-5)


# The slot


def test_a_position_without_a_bias_gives_the_kernel_none():
    assert Turn().bias_between(2) is None and "bias" not in Turn().overrides
    assert ka.positions.Position().bias_between(2) is None
    assert "bias" in Slope(1.0).overrides & Both().overrides
    assert callable(Slope(1.0).bias_between(2))


def test_get_takes_a_position_a_config_or_none():
    assert ka.positions.get(None) is None
    position = Slope(0.3)
    assert ka.positions.get(position) is position
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(position)))
    assert ka.positions.get(config).slope == 0.3


def test_a_position_works_in_float32_under_mixed_precision():
    layer = ka.MultiHeadAttention(H, K, position=Table(), dtype="mixed_bfloat16")
    seen = []
    bias = layer.position.bias

    def watched(i, j, num_heads):
        found = bias(i, j, num_heads)
        seen.append(keras.backend.standardize_dtype(found.dtype))
        return found

    layer.position.bias = watched
    output = layer(random(B, T, D), random(B, S, D))
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    assert seen == ["float32"]
    assert layer.position.variable_dtype == layer.position.compute_dtype == "float32"


@keras.saving.register_keras_serializable(package="test_positions")
class Outside(ka.positions.Position):
    """A slot in a slot: its argument is an object of the package's own."""

    def __init__(self, pattern, **kwargs):
        super().__init__(**kwargs)
        self.pattern = pattern

    def bias(self, i, j, num_heads):
        return -keras.ops.cast(self.pattern.attends(i, j), "float32")


def test_an_object_as_an_argument_of_a_slot_is_one_again_after_loading(tmp_path):
    symbol = keras.Input((None, 8))
    layer = ka.SelfAttention(2, 4, position=Outside(ka.patterns.SlidingWindow(1, 1)))
    model = keras.Model(symbol, layer(symbol))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_layer(layer.name).position.pattern == ka.patterns.SlidingWindow(1, 1)
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    found, expected = (keras.ops.convert_to_numpy(m(x)) for m in (loaded, model))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("slot", ["position", "score"])
def test_a_slot_shared_by_layers_is_shared_after_loading(slot, tmp_path):
    shared = ka.positions.RelativeBias(8, 16) if slot == "position" else ka.scores.General()
    symbol = keras.Input((None, 8))
    hidden = symbol
    for _ in range(3):
        hidden = ka.MultiHeadAttention(2, 4, **{slot: shared})(hidden)
    model = keras.Model(symbol, hidden)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    slots = {id(getattr(layer, slot)) for layer in loaded.layers[1:]}
    assert len(slots) == 1 and len(loaded.weights) == len(model.weights)
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    found, expected = (keras.ops.convert_to_numpy(m(x)) for m in (loaded, model))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


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

    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    for position in (ka.positions.Rotary(), ka.positions.Shaw(2)):
        assert ka.SelfAttention(2, 4, score=Halved(), position=position)(x).shape == (2, 5, 8)
