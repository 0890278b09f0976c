"""What all built-in positions share: configurations, training and files."""

import json

import keras
import numpy as np
import pytest

from keras_attention import MultiHeadAttention, SelfAttention, patterns, positions
from tests.arrays import close, numpy, random, wide
from tests.compiled import compiled

B, T, H, K, D = 2, 5, 2, 4, 8
ON_JAX = keras.backend.backend() == "jax"


def weights():
    """Arguments of a table's weights, the initializer first."""
    return "ones", keras.regularizers.L2(0.1), keras.constraints.NonNeg()


# Each with a value other than the default for every argument.
GIVEN = {
    "alibi": lambda: positions.ALiBi(4.5, name="given"),
    "relative_bias": lambda: positions.RelativeBias(8, 20, False, *weights(), name="given"),
    "rotary": lambda: positions.Rotary(
        500.0, 4, "interleaved", "yarn", 4, 32, 16.0, 2.0, 1.2, False, name="given", dtype="float32"
    ),
    "shaw": lambda: positions.Shaw(2, False, True, *weights(), name="given"),
    "disentangled": lambda: positions.Disentangled(
        8, 20, keras.layers.LayerNormalization(epsilon=0.2), *weights(), name="given"
    ),
    "kerple": lambda: positions.Kerple("power", name="given"),
    "fire": lambda: positions.FIRE(5, 9.5, 0.2, name="given"),
    "xpos": lambda: positions.XPos(
        64.0,
        0.5,
        max_wavelength=500.0,
        dim=4,
        layout="interleaved",
        scaling="yarn",
        factor=4.0,
        original_max_length=32,
        beta_fast=16.0,
        beta_slow=2.0,
        attention_factor=1.2,
        truncate=False,
        name="given",
    ),
    "transformer_xl": lambda: positions.TransformerXL(6, 50.0, "ones", "ones", name="given"),
    "cope": lambda: positions.CoPE(4, *weights(), name="given"),
}
# The shapes of their tables, in layers of H heads.
TABLES = {"relative_bias": (8, H), "shaw": (H, 5, K), "disentangled": (8, D), "cope": (5, K)}
# As they are used: some have arguments that a model must keep.
USED = {
    "alibi": lambda: positions.ALiBi(max_bias=3),
    "relative_bias": positions.RelativeBias,
    "rotary": lambda: positions.Rotary(
        dim=4, layout="interleaved", scaling="dynamic", original_max_length=3, factor=2.0
    ),
    "shaw": lambda: positions.Shaw(2, per_head=True),
    "disentangled": lambda: positions.Disentangled(8, 6),
    "kerple": lambda: positions.Kerple("power"),
    "fire": lambda: positions.FIRE(4, threshold=2.0),
    "xpos": lambda: positions.XPos(8.0, dim=4),
    "transformer_xl": lambda: positions.TransformerXL(6),
    "cope": lambda: positions.CoPE(2),
}


def table(position):
    """The only weight that is not of a layer within, or None."""
    own = [w for w in position.trainable_weights if w.path.endswith("embeddings")]
    return own[0] if own else None


def test_every_position_is_here():
    assert set(GIVEN) == set(USED) == set(positions.BUILTIN)


@pytest.mark.parametrize("name", GIVEN)
def test_config_holds_every_argument_through_json(name):
    position = GIVEN[name]()
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(position)))
    again, default = positions.get(config), positions.BUILTIN[name]
    assert again.get_config() == position.get_config() and again.name == "given"
    SelfAttention(H, K, position=again).build((B, T, D))
    found = table(again)
    assert (None if found is None else tuple(found.shape)) == TABLES.get(name)
    if found is not None:
        assert (numpy(found) == 1).all()
        assert isinstance(found.constraint, keras.constraints.NonNeg)
        np.testing.assert_allclose(numpy(sum(again.losses)), 0.1 * numpy(found).size, rtol=1e-6)
    if name != "shaw":  # whose distance has no default
        assert type(positions.get(name)) is default
        left = default(name="given").get_config()
        changed = {key for key, value in again.get_config().items() if left[key] != value}
        # The factors are of another scaling, which takes no number.
        others = {"name", "dtype", "trainable", "short_factors", "long_factors"}
        assert changed >= set(left) - others


@pytest.mark.parametrize("name", USED)
def test_a_model_trains_saves_and_loads(name, tmp_path):
    tokens = keras.Input((None, D))
    layer = MultiHeadAttention(H, K, position=USED[name]())
    model = keras.Model(tokens, layer(tokens, use_causal_mask=True))
    before = [numpy(weight).copy() for weight in layer.position.weights]
    model.compile("sgd", "mse", jit_compile=ON_JAX)
    x = random(B, T, D)
    model.fit(x, 100 * x, verbose=0)
    for weight, old in zip(layer.position.weights, before, strict=True):
        assert np.abs(numpy(weight) - old).max() > 0
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    outputs = [numpy(compiled(m, x)) for m in (loaded, model)]
    np.testing.assert_allclose(*outputs, rtol=1e-6, atol=1e-6)
    again = loaded.layers[1].position
    assert again.get_config() == layer.position.get_config()
    for weight, saved in zip(again.weights, layer.position.weights, strict=True):
        np.testing.assert_array_equal(numpy(weight), numpy(saved))


@pytest.mark.parametrize("name", ["alibi", "relative_bias"])
def test_moving_both_sequences_changes_no_bias(name):
    position = positions.get(name)
    position.build((B, T, H, K), (B, T, H, K))
    at = np.arange(T)
    found = [position.bias_between(H)(at + start, at + start) for start in (0, 10**6)]
    np.testing.assert_array_equal(*map(numpy, found))


RATES = [patterns.Dilated(3), patterns.Strided(3), patterns.Dilated(2) & patterns.Causal()]


@pytest.mark.parametrize("pattern", RATES, ids=["dilated", "strided", "causal"])
@pytest.mark.parametrize("name", [*USED, "grid"])
def test_a_rate_changes_no_bias(name, pattern):
    """Positions a rate apart are a sequence of their own, where a bias is one of distances."""
    make = {
        **USED,
        "grid": lambda: positions.GridRelativeBias((4, 5)),
        "fire": lambda: positions.FIRE(threshold=2.0),
    }[name]
    layer = SelfAttention(2, 4, pattern=pattern, position=make())
    x = random(2, 20, D)
    layer.build(x.shape)
    for weight in layer.position.weights:
        weight.assign(np.abs(np.random.default_rng(1).normal(size=weight.shape)))
    expected, _ = layer(x, return_attention_scores=True)
    close(wide(layer(x)), wide(expected))


@pytest.mark.parametrize("name", USED)
def test_no_tokens(name):
    layer = SelfAttention(2, 4, position=USED[name](), causal=True)
    layer.build((2, 3, D))
    assert tuple(layer(np.zeros((2, 0, D), "float32")).shape) == (2, 0, 8)
