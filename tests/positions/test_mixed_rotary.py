"""`MixedRotary`: the equation in float64, shifts of the grid, groups of heads, training, caches."""

import json

import keras
import numpy as np
import pytest

from keras_attention import MultiHeadAttention, positions
from tests.arrays import numpy, random

GRID, PREFIX, H, G, K = (3, 4), 2, 4, 2, 8
TOKENS = 12


def built(grid=GRID, prefix=0, heads=H, groups=H, **kwargs):
    position = positions.MixedRotary(grid, prefix, **kwargs)
    position.build((1, None, heads, K), (1, None, groups, K))
    return position


@pytest.mark.parametrize(
    "layout, dim, prefix, groups",
    [("half_split", None, 0, H), ("interleaved", 4, PREFIX, G), ("half_split", 4, 1, 1)],
)
def test_rotation_is_that_of_the_equation(layout, dim, prefix, groups):
    position = built(prefix=prefix, groups=groups, layout=layout, dim=dim)
    length, size = TOKENS + prefix, dim or K
    query, key = random(2, length, H, K), random(2, length, groups, K, seed=1)
    theta = numpy(position.frequencies).astype("float64")
    assert theta.shape == (groups, 2, size // 2)
    lengths = 10.0 ** (-2 * np.arange(size // 2) / size)
    np.testing.assert_allclose(
        np.linalg.norm(theta, axis=1), np.tile(lengths, (groups, 1)), rtol=1e-5
    )
    at = np.zeros((length, 2))
    at[prefix:] = np.stack(np.unravel_index(np.arange(TOKENS), GRID), axis=1)
    found = position.encode(query, key, np.arange(length), np.arange(length))
    for x, turned, heads in ((query, found[0], H), (key, found[1], groups)):
        angles = np.einsum("ta,han->thn", at, np.repeat(theta, heads // groups, axis=0))
        x, half = numpy(x).astype("float64"), size // 2
        first = np.arange(half) if layout == "half_split" else np.arange(0, size, 2)
        second = first + (half if layout == "half_split" else 1)
        turn = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)
        expected = x.copy()
        expected[..., first], expected[..., second] = turn.real, turn.imag
        np.testing.assert_allclose(numpy(turned), expected, atol=1e-5)


@pytest.mark.parametrize("shift", [(1, 0), (0, 3), (4, 2)])
def test_shifting_both_changes_no_score(shift):
    """Of any two cells: the score depends on their offset, and another offset has another."""
    position = built((8, 9))
    query, key = (random(1, TOKENS, H, K, seed=n) for n in range(2))
    rows, columns = np.unravel_index(np.arange(TOKENS), GRID)

    def scores(by):
        at = [np.ravel_multi_index((rows + r, columns + c), (8, 9)) for r, c in by]
        return numpy(keras.ops.einsum("bthk,bshk->bhts", *position.encode(query, key, *at)))

    np.testing.assert_allclose(scores([shift, shift]), scores([(0, 0)] * 2), atol=2e-5)
    assert np.abs(scores([shift, (0, 0)]) - scores([(0, 0)] * 2)).max() > 0.1


def test_a_cache_gives_the_outputs_of_the_whole():
    layer = MultiHeadAttention(H, K, num_key_value_heads=G, position=positions.MixedRotary(GRID))
    x = random(2, TOKENS, 6)
    whole = layer(x, use_causal_mask=True)
    cache, found = layer.make_cache(2, TOKENS), []
    for n in range(0, TOKENS, 4):
        one, cache = layer(x[:, n : n + 4], cache=cache, use_causal_mask=True)
        found.append(numpy(one))
    np.testing.assert_allclose(np.concatenate(found, axis=1), numpy(whole), atol=1e-5)


def test_padding_changes_nothing():
    layer = MultiHeadAttention(H, K, position=positions.MixedRotary(GRID, 1))
    x, real = random(2, 13, 6), np.arange(13) < 9
    found = numpy(layer(x, query_mask=np.tile(real, (2, 1))))
    np.testing.assert_allclose(found[:, :9], numpy(layer(x[:, :9])), atol=1e-5)


def test_half_precision_rotates_in_float32():
    position, at = built(), np.arange(TOKENS)
    x = random(1, TOKENS, H, K)
    whole = numpy(position.encode(x, x, at, at)[0])
    for dtype, tolerance in (("bfloat16", 2e-2), ("float16", 2e-3)):
        half = keras.ops.cast(x, dtype)
        found, _ = position.encode(half, half, at, at)
        assert keras.backend.standardize_dtype(found.dtype) == dtype
        found = numpy(keras.ops.cast(found, "float32"))
        np.testing.assert_allclose(found, whole, atol=tolerance * np.abs(whole).max())


def test_it_trains_and_a_model_is_saved(tmp_path):
    options = {"prefix": 1, "max_wavelength": 50.0, "dim": 4, "layout": "interleaved"}
    position = positions.MixedRotary((4, 4), **options)
    config = json.loads(json.dumps(position.get_config()))
    again = positions.MixedRotary.from_config(config)
    assert json.dumps(again.get_config()) == json.dumps(position.get_config())
    assert {name: config[name] for name in options} == options
    inputs = keras.Input((None, 6))
    model = keras.Model(inputs, MultiHeadAttention(2, 4, position=position)(inputs))
    before = numpy(position.frequencies).copy()
    x = random(2, 17, 6)
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    model.fit(x, 100 * x, verbose=0)
    assert np.abs(numpy(position.frequencies) - before).max(axis=(1, 2)).min() > 0
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numpy(loaded(x)), numpy(model(x)), atol=1e-6)
