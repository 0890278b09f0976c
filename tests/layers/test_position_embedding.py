"""Position embeddings: sines and cosines against their equation, learned ones against a table."""

import math

import keras
import numpy as np
import pytest

from keras_attention import LearnedPositionEmbedding, SinCosPositionEmbedding
from tests.arrays import numpy, random

B, T, D = 3, 5, 8


def wide(tensor):
    return numpy(keras.ops.cast(tensor, "float32")).astype("float64")


def sincos(position, size, max_wavelength=10000):
    """PE[p, 2i] = sin(p / w^(2i / d)) and PE[p, 2i + 1] = cos(p / w^(2i / d)), one by one."""
    vector = np.zeros(size)
    for feature in range(size):
        angle = position / max_wavelength ** (2 * (feature // 2) / size)
        vector[feature] = math.sin(angle) if feature % 2 == 0 else math.cos(angle)
    return vector


def table(positions, size, **kwargs):
    positions = np.asarray(positions)
    vectors = np.zeros((*positions.shape, size))
    for index in np.ndindex(positions.shape):
        vectors[index] = sincos(int(positions[index]), size, **kwargs)
    return vectors


X = random(B, T, D)


def learned(**kwargs):
    """A layer of ten positions, with a table that is not small."""
    layer = LearnedPositionEmbedding(10, embeddings_initializer="zeros", **kwargs)
    layer.build(X.shape)
    layer.set_weights([random(*layer.embeddings.shape, seed=1)])
    return layer


# Sines and cosines


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("max_wavelength", [10000, 7.5])
def test_sincos_is_the_equation(size, max_wavelength):
    layer = SinCosPositionEmbedding(size, "none", max_wavelength=max_wavelength)
    expected = table(np.arange(T), size, max_wavelength=max_wavelength)
    output = layer(X)
    assert output.shape == (B, T, size)
    np.testing.assert_allclose(numpy(output), np.stack([expected] * B), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_sines_before_cosines(size):
    """The features of the other layout, in another order."""
    found = numpy(SinCosPositionEmbedding(size, "none", layout="half_split")(X))
    expected = numpy(SinCosPositionEmbedding(size, "none")(X))
    order = [*range(0, size, 2), *range(1, size, 2)]
    np.testing.assert_array_equal(found, expected[..., order])


@pytest.mark.parametrize("dtype, unit", [("bfloat16", 2**-8), ("float16", 2**-11)])
@pytest.mark.parametrize("mode", ["add", "none"])
def test_the_only_error_in_half_precision_is_the_rounding_of_the_result(mode, dtype, unit):
    x = keras.ops.cast(random(B, T, D), dtype)
    layer = SinCosPositionEmbedding(merge_mode=mode, dtype=f"mixed_{dtype}")
    output = layer(x, start_index=500)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    exact = table(500 + np.arange(T), D) + (wide(x) if mode == "add" else np.zeros((B, 1, 1)))
    assert (np.abs(wide(output) - exact) <= unit * np.abs(exact) + 1e-4).all()


@pytest.mark.parametrize("dtype, unit", [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_learned_positions_are_added_before_rounding(dtype, unit):
    x = keras.ops.cast(10 * random(B, T, D), dtype)
    layer = LearnedPositionEmbedding(T, embeddings_initializer="zeros", dtype=f"mixed_{dtype}")
    layer.build(x.shape)
    rows = random(T, D, seed=1)
    layer.set_weights([rows])
    exact = wide(x) + rows
    assert (np.abs(wide(layer(x)) - exact) <= unit * np.abs(exact) + 1e-6).all()


@pytest.mark.parametrize("start", [10**5, 2**20, 2**24 - T])
@pytest.mark.parametrize("size", [7, 64])
def test_sincos_is_as_good_far_out_as_near(size, start):
    output = SinCosPositionEmbedding(size, "none")(X, start_index=start)
    expected = table(start + np.arange(T), size)
    assert np.abs(numpy(output)[0] - expected).max() < 1e-6


# Learned


@pytest.mark.parametrize(
    "call, received",
    [
        (lambda layer: layer(np.zeros((B, 11, D), "float32")), "0 to 10"),
        (lambda layer: layer(keras.Input((11, D))), "0 to 10"),
        (lambda layer: layer(X, start_index=6), "6 to 10"),
        (lambda layer: layer(keras.Input((T, D)), start_index=6), "6 to 10"),
        (lambda layer: layer(X, start_index=-1), "-1 to 3"),
        (lambda layer: layer(X, start_index=np.array([0, 7, 2])), "0 to 11"),
        (lambda layer: layer(X, start_index=keras.ops.array([5, -2, 0])), "-2 to 9"),
        (lambda layer: layer(X, positions=np.array([0, 1, 2, 3, 10])), "0 to 10"),
        (lambda layer: layer(X, positions=keras.ops.array([[-1, 1, 2, 3, 4]] * B)), "-1 to 4"),
    ],
    ids=[
        "too long",
        "symbolic and too long",
        "start",
        "symbolic, start",
        "negative start",
        "start of a row",
        "negative start of a row",
        "position",
        "negative position",
    ],
)
def test_positions_outside_the_table_are_refused(call, received):
    layer = LearnedPositionEmbedding(10)
    message = rf"Positions must lie in \[0, max_length=10\).*from {received}"
    with pytest.raises(ValueError, match=message):
        call(layer)


def test_the_last_positions_of_the_table_are_inside():
    layer = learned()
    rows = numpy(layer.embeddings)
    np.testing.assert_allclose(numpy(layer(X, start_index=5)), X + rows[5:], rtol=1e-6)


def test_positions_outside_the_table_that_come_as_data_have_zeros():
    layer = learned(merge_mode="none")
    x = keras.Input((T, D))
    positions = keras.Input((T,), dtype="int32")
    model = keras.Model([x, positions], layer(x, positions=positions))
    model.compile()
    given = np.array([[0, 9, 10, -1, 3], [1, 2, 3, 4, 5], [5, 99, 0, 0, 9]], "int32")
    if keras.config.backend() == "torch":  # Nothing is compiled: the values can be seen.
        with pytest.raises(ValueError, match="Received positions from -1 to 99"):
            model.predict([X, given], verbose=0)
        return
    rows = np.vstack([numpy(layer.embeddings), np.zeros((1, D))])
    expected = rows[np.where((given >= 0) & (given < 10), given, 10)]
    np.testing.assert_allclose(model.predict([X, given], verbose=0), expected, rtol=1e-6)


# Where the positions come from, and how they are merged


def sincos_layer(**kwargs):
    return SinCosPositionEmbedding(**kwargs)


def rows_of(layer, positions):
    """What the layer should add for positions, by its own table or the equation."""
    if isinstance(layer, LearnedPositionEmbedding):
        return numpy(layer.embeddings)[np.asarray(positions)]
    return table(positions, layer.dim or D)


both_layers = pytest.mark.parametrize("make", [sincos_layer, learned], ids=["sincos", "learned"])


@both_layers
@pytest.mark.parametrize("dim", [None, 5])
def test_merge_modes(make, dim):
    rows = rows_of(make(dim=dim, merge_mode="concat"), np.arange(T))
    rows = np.stack([rows] * B)
    joined = numpy(make(dim=dim, merge_mode="concat")(X))
    np.testing.assert_array_equal(joined[..., :D], X)
    np.testing.assert_allclose(joined[..., D:], rows, rtol=1e-5, atol=1e-6)
    alone = numpy(make(dim=dim, merge_mode="none")(X))
    np.testing.assert_allclose(alone, rows, rtol=1e-5, atol=1e-6)
    if dim is None:
        np.testing.assert_allclose(numpy(make()(X)), X + rows, rtol=1e-5, atol=1e-6)


@both_layers
@pytest.mark.parametrize("mode", ["add", "concat"])
def test_lengths_and_starts_may_be_unknown(make, mode):
    layer = make(merge_mode=mode)
    x, start = keras.Input((None, D)), keras.Input(batch_shape=(None,), dtype="int32")
    model = keras.Model([x, start], layer(x, start_index=start))
    assert tuple(model.output.shape) == (None, None, 2 * D if mode == "concat" else D)
    starts = np.array([0, 5, 2], "int32")
    expected = numpy(layer(X, start_index=starts))
    for length in (T, 3):
        output = model([X[:, :length], starts])
        np.testing.assert_allclose(numpy(output), expected[:, :length], rtol=1e-6, atol=1e-6)


# Rows that are padded or packed


@both_layers
def test_one_row_of_positions_serves_all_rows(make):
    layer = make()
    output = layer(X, positions=np.array([[4, 0, 1, 1, 9]]))
    expected = layer(X, positions=np.array([4, 0, 1, 1, 9]))
    np.testing.assert_array_equal(numpy(output), numpy(expected))


@both_layers
def test_lists_of_integers_are_positions_too(make):
    layer = make()
    for name, given in {"positions": [4, 0, 1, 1, 9], "start_index": [0, 5, 2]}.items():
        output, expected = (layer(X, **{name: x}) for x in (given, np.array(given)))
        np.testing.assert_array_equal(numpy(output), numpy(expected))


@both_layers
def test_what_is_not_known_is_not_refused(make):
    x = keras.Input((None, D))
    for shape in ((None,), (5,), (None, None), (1, 5), (3, None)):
        positions = keras.Input(batch_shape=shape, dtype="int32")
        assert make()(x, positions=positions).shape == (None, None, D)
