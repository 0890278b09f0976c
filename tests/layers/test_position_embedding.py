"""Position embeddings: sines and cosines against their equation, learned ones against a table."""

import keras
import numpy as np
import pytest

from keras_attention import LearnedPositionEmbedding, SinCosPositionEmbedding
from tests.arrays import numpy, random, wide

B, T, D = 3, 5, 8
X = random(B, T, D)


def table(positions, size, max_wavelength=10000):
    """PE[p, 2i] = sin(p / w^(2i / d)) and PE[p, 2i + 1] = cos(p / w^(2i / d))."""
    feature = np.arange(size)
    angles = np.asarray(positions)[..., None] / max_wavelength ** (2 * (feature // 2) / size)
    return np.where(feature % 2, np.cos(angles), np.sin(angles))


def learned(max_length=10, **kwargs):
    """A layer with a table that is not small."""
    layer = LearnedPositionEmbedding(max_length, embeddings_initializer="zeros", **kwargs)
    layer.build(X.shape)
    layer.set_weights([random(*layer.embeddings.shape, seed=1)])
    return layer


def rows_of(layer, positions):
    """What the layer should add for positions, by its own table or the equation."""
    if isinstance(layer, LearnedPositionEmbedding):
        return numpy(layer.embeddings)[np.asarray(positions)]
    return table(positions, layer.dim or D)


both_layers = pytest.mark.parametrize(
    "make", [lambda **kwargs: SinCosPositionEmbedding(**kwargs), learned], ids=["sincos", "learned"]
)


# Sines and cosines


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("max_wavelength", [10000, 7.5])
def test_sincos_is_the_equation(size, max_wavelength):
    layer = SinCosPositionEmbedding(size, "none", max_wavelength=max_wavelength)
    expected = table(np.arange(T), size, max_wavelength)
    found = numpy(layer(X))
    np.testing.assert_allclose(found, np.stack([expected] * B), rtol=1e-6, atol=1e-6)
    # The features of the other layout, in another order.
    other = SinCosPositionEmbedding(
        size, "none", max_wavelength=max_wavelength, layout="half_split"
    )
    order = [*range(0, size, 2), *range(1, size, 2)]
    np.testing.assert_array_equal(numpy(other(X)), found[..., order])


@pytest.mark.parametrize("start, size", [(10**5, 7), (2**20, 64), (2**24 - T, 7)])
def test_sincos_is_as_good_far_out_as_near(size, start):
    output = SinCosPositionEmbedding(size, "none")(X, start_index=start)
    assert np.abs(numpy(output)[0] - table(start + np.arange(T), size)).max() < 1e-6


@pytest.mark.parametrize("dtype, unit", [("bfloat16", 2**-8), ("float16", 2**-11)])
@both_layers
def test_the_only_error_in_half_precision_is_the_rounding_of_the_result(make, dtype, unit):
    x = keras.ops.cast(10 * X, dtype)
    for mode in ("add", "none"):
        layer = make(merge_mode=mode, dtype=f"mixed_{dtype}")
        output = layer(x, start_index=5)
        assert keras.backend.standardize_dtype(output.dtype) == dtype
        exact = rows_of(layer, 5 + np.arange(T)) + (mode == "add") * wide(numpy(x))
        assert (np.abs(wide(numpy(output)) - exact) <= unit * np.abs(exact) + 1e-4).all()


# Learned


REFUSED = {
    "0 to 10": [
        lambda layer: layer(np.zeros((B, 11, D), "float32")),
        lambda layer: layer(keras.Input((11, D))),
        lambda layer: layer(X, positions=np.array([0, 1, 2, 3, 10])),
    ],
    "6 to 10": [
        lambda layer: layer(X, start_index=6),
        lambda layer: layer(keras.Input((T, D)), start_index=6),
    ],
    "-1 to 3": [lambda layer: layer(X, start_index=-1)],
    "0 to 11": [lambda layer: layer(X, start_index=np.array([0, 7, 2]))],
    "-2 to 9": [lambda layer: layer(X, start_index=keras.ops.array([5, -2, 0]))],
    "-1 to 4": [lambda layer: layer(X, positions=keras.ops.array([[-1, 1, 2, 3, 4]] * B))],
}


@pytest.mark.parametrize("received", REFUSED)
def test_positions_outside_the_table_are_refused(received):
    message = rf"Positions must lie in \[0, max_length=10\).*from {received}"
    for call in REFUSED[received]:
        with pytest.raises(ValueError, match=message):
            call(LearnedPositionEmbedding(10))


def test_positions_outside_the_table_that_come_as_data_have_zeros():
    layer = learned(merge_mode="none")
    x, positions = keras.Input((T, D)), keras.Input((T,), dtype="int32")
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


@both_layers
@pytest.mark.parametrize("dim", [None, 5])
def test_merge_modes(make, dim):
    rows = np.stack([rows_of(make(dim=dim, merge_mode="concat"), np.arange(T))] * B)
    joined = numpy(make(dim=dim, merge_mode="concat")(X))
    np.testing.assert_array_equal(joined[..., :D], X)
    np.testing.assert_allclose(joined[..., D:], rows, rtol=1e-5, atol=1e-6)
    alone = numpy(make(dim=dim, merge_mode="none")(X))
    np.testing.assert_allclose(alone, rows, rtol=1e-5, atol=1e-6)
    if dim is None:
        np.testing.assert_allclose(numpy(make()(X)), X + rows, rtol=1e-5, atol=1e-6)


@both_layers
def test_positions_and_starts_are_rows_lists_or_data(make):
    layer = make(merge_mode="concat")
    x, start = keras.Input((None, D)), keras.Input(batch_shape=(None,), dtype="int32")
    model = keras.Model([x, start], layer(x, start_index=start))
    assert tuple(model.output.shape) == (None, None, 2 * D)
    starts = np.array([0, 5, 2], "int32")
    expected = numpy(layer(X, start_index=starts))
    rows = rows_of(layer, starts[:, None] + np.arange(T))
    np.testing.assert_allclose(expected[..., D:], rows, rtol=1e-5, atol=1e-6)
    for length in (T, 3):
        output = model([X[:, :length], starts])
        np.testing.assert_allclose(numpy(output), expected[:, :length], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(numpy(layer(X, start_index=[0, 5, 2])), expected)
    expected = numpy(layer(X, positions=np.array([4, 0, 1, 1, 9])))
    for given in ([4, 0, 1, 1, 9], np.array([[4, 0, 1, 1, 9]])):
        np.testing.assert_array_equal(numpy(layer(X, positions=given)), expected)
    for shape in ((None,), (5,), (None, None), (1, 5), (3, None)):
        positions = keras.Input(batch_shape=shape, dtype="int32")
        assert layer(x, positions=positions).shape == (None, None, 2 * D)
