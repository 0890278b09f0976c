"""What all built-in positions share: configurations, and biases of distances."""

import keras
import numpy as np
import pytest

from keras_attention import SelfAttention, patterns, positions
from tests.arrays import close, random, wide

B, T, H, K, D = 2, 5, 2, 4, 8


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


def table(position):
    """The only weight that is not of a layer within, or None."""
    own = [w for w in position.trainable_weights if w.path.endswith("embeddings")]
    return own[0] if own else None


def test_every_position_is_here():
    assert set(GIVEN) == set(positions.BUILTIN)


RATES = [patterns.Dilated(3), patterns.Strided(3), patterns.Dilated(2) & patterns.Causal()]


@pytest.mark.parametrize("pattern", RATES, ids=["dilated", "strided", "causal"])
@pytest.mark.parametrize("name", [*GIVEN, "grid"])
def test_a_rate_changes_no_bias(name, pattern):
    """Positions a rate apart are a sequence of their own, where a bias is one of distances."""
    made = {
        "grid": lambda: positions.GridRelativeBias((4, 5)),
        "fire": lambda: positions.FIRE(threshold=2.0),
        "shaw": lambda: positions.Shaw(2, per_head=True),
    }.get(name, positions.BUILTIN.get(name))()
    layer = SelfAttention(2, 4, pattern=pattern, position=made)
    x = random(2, 20, D)
    layer.build(x.shape)
    for weight in layer.position.weights:
        weight.assign(np.abs(np.random.default_rng(1).normal(size=weight.shape)))
    expected, _ = layer(x, return_attention_scores=True)
    close(wide(layer(x)), wide(expected))
