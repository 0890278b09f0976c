"""Embeddings of tokens, positions and grids: equations, tables, other sizes, masks, dtypes."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import ClassToken, LearnedPositionEmbedding, ScaledEmbedding
from keras_attention import SinCosPositionEmbedding as SinCos
from keras_attention.sequences import masks
from keras_attention.sequences.grid import resizing
from tests.arrays import close, numpy, random, wide
from tests.compiled import call
from tests.gradients import gradients, weight_gradients

B, T, D, ROWS, COLUMNS = 3, 5, 8, 3, 4
X, CELLS = random(B, T, D), random(2, ROWS * COLUMNS, D)
UNITS = {"bfloat16": 2**-8, "float16": 2**-11}


def with_table(layer, shape, seed=1):
    """A layer, built, whose table is not small."""
    layer.build(shape)
    layer.set_weights([random(*layer.embeddings.shape, seed=seed)])
    return layer


# Tokens

SIZE, IDS = 10, np.array([[3, 5, 0, 9], [1, 0, 0, 3]], "int32")


def tokens(**options):
    return with_table(ScaledEmbedding(SIZE, 6, **options), IDS.shape)


def test_vectors_are_rows_times_the_root_of_their_size_of_unit_variance_at_the_start():
    layer = tokens()
    close(layer(IDS), numpy(layer.embeddings)[IDS] * np.sqrt(6))
    assert layer(IDS[0]).shape == (4, 6)
    vectors = numpy(ScaledEmbedding(500, 64)(np.arange(500)))
    assert abs(vectors.std() - 1) < 0.02 and abs(vectors.mean()) < 0.02


def test_reverse_gives_logits_of_the_same_table_without_the_scale():
    layer = tokens()
    assert len(layer.weights) == 1
    for shape in ((2, 4, 6), (6,), (3, 6), (2, 3, 4, 6), (2, 0, 6)):
        x = random(*shape, seed=2)
        close(layer(x, reverse=True), x @ numpy(layer.embeddings).T)
    # It learns from both ends.
    upstream = random(2, 4, SIZE, seed=3)

    def loss(table, upstream):
        vectors = keras.ops.take(table, IDS, axis=0) * 6**0.5
        return vectors @ keras.ops.transpose(table) * upstream

    (found,), _ = weight_gradients(layer, lambda x: layer(layer(IDS), reverse=True) * x, [upstream])
    close(found, gradients(loss, [numpy(layer.embeddings), upstream])[0], 1e-4)


@pytest.mark.parametrize("mask_zero", [False, True])
def test_masks_of_tokens_and_of_logits(mask_zero):
    """In a functional model, and of what logits are made from."""
    layer, ids = tokens(mask_zero=mask_zero), keras.Input((None,), dtype="int32")
    vectors = layer(ids)
    logits = layer(keras.layers.Dense(6, use_bias=False)(vectors), reverse=True)
    model = keras.Model(ids, [vectors, logits])
    assert logits.shape == (None, None, SIZE)
    table, kernel = map(numpy, model.trainable_weights)
    vectors, logits = model(IDS)
    close(logits, table[IDS] * np.sqrt(6) @ kernel @ table.T)
    for found in (vectors, logits):
        mask = masks.implicit(found)
        assert (mask is not None) == mask_zero
        assert not mask_zero or (numpy(mask) == (IDS != 0)).all()
    mask = np.array([[True, True, False, False]] * 2)
    x = masks.carry(*map(keras.ops.convert_to_tensor, (random(2, 4, 6), mask)))
    np.testing.assert_array_equal(numpy(masks.implicit(layer(x, reverse=True))), mask)
    assert masks.implicit(layer(random(2, 4, 6), reverse=True)) is None


@pytest.mark.parametrize("count", [1, 3])
def test_a_class_token_stands_first_and_is_never_masked(count):
    layer, x = ClassToken(num_tokens=count), random(3, 4, D)
    output, tokens = numpy(layer(x)), numpy(layer.token)
    assert tokens.shape == (1, count, D) and len(np.unique(tokens)) == count * D
    np.testing.assert_array_equal(output[:, :count], np.repeat(tokens, 3, axis=0))
    np.testing.assert_array_equal(output[:, count:], x)
    assert masks.implicit(layer(x)) is None
    kept = np.array([[True] * 4, [False, False, True, True], [False] * 4])
    carried = masks.carry(*map(keras.ops.convert_to_tensor, (x, kept)))
    expected = np.concatenate([np.ones((3, count), bool), kept], axis=1)
    for output in (layer(carried), layer(x, mask=kept)):
        np.testing.assert_array_equal(numpy(masks.implicit(output)), expected)


# Positions


def table(positions, size, max_wavelength=10000):
    """PE[p, 2i] = sin(p / w^(2i / d)) and PE[p, 2i + 1] = cos(p / w^(2i / d))."""
    feature = np.arange(size)
    angles = np.asarray(positions)[..., None] / max_wavelength ** (2 * (feature // 2) / size)
    return np.where(feature % 2, np.cos(angles), np.sin(angles))


def learned(**options):
    return with_table(LearnedPositionEmbedding(10, **options), X.shape)


def rows_of(layer, positions):
    """What the layer should add for positions, by its own table or the equation."""
    if isinstance(layer, LearnedPositionEmbedding):
        return numpy(layer.embeddings)[np.asarray(positions)]
    return table(positions, layer.dim or D)


both_layers = pytest.mark.parametrize("make", [SinCos, learned])


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("max_wavelength", [10000, 7.5])
def test_sincos_is_the_equation(size, max_wavelength):
    options = {"merge_mode": "none", "max_wavelength": max_wavelength}
    found = numpy(SinCos(size, **options)(X))
    close(found, [table(np.arange(T), size, max_wavelength)] * B, 1e-6)
    shifted = SinCos(size, shift=2, **options)(X, start_index=3)
    close(shifted, [table(np.arange(5, 5 + T), size, max_wavelength)] * B, 1e-6)
    # The features of the other layout, in another order.
    other = SinCos(size, layout="half_split", **options)
    order = [*range(0, size, 2), *range(1, size, 2)]
    np.testing.assert_array_equal(numpy(other(X)), found[..., order])


@pytest.mark.parametrize("start, size", [(10**5, 7), (2**20, 64), (2**24 - T, 7)])
def test_sincos_is_as_good_far_out_as_near(size, start):
    output = SinCos(size, "none")(X, start_index=start)
    assert np.abs(numpy(output)[0] - table(start + np.arange(T), size)).max() < 1e-6


@both_layers
def test_positions_and_starts_are_rows_lists_or_data(make):
    layer = make(merge_mode="concat")
    x, start = keras.Input((None, D)), keras.Input(batch_shape=(None,), dtype="int32")
    model = keras.Model([x, start], layer(x, start_index=start))
    assert tuple(model.output.shape) == (None, None, 2 * D)
    starts = np.array([0, 5, 2], "int32")
    expected = numpy(layer(X, start_index=starts))
    close(expected[..., D:], rows_of(layer, starts[:, None] + np.arange(T)))
    for length in (T, 3):
        close(model([X[:, :length], starts]), expected[:, :length], 1e-6)
    np.testing.assert_array_equal(numpy(layer(X, start_index=[0, 5, 2])), expected)
    expected = numpy(layer(X, positions=np.array([4, 0, 1, 1, 9])))
    for given in ([4, 0, 1, 1, 9], np.array([[4, 0, 1, 1, 9]])):
        np.testing.assert_array_equal(numpy(layer(X, positions=given)), expected)
    for shape in ((None,), (5,), (None, None), (1, 5), (3, None)):
        positions = keras.Input(batch_shape=shape, dtype="int32")
        assert layer(x, positions=positions).shape == (None, None, 2 * D)


REFUSED = {
    "0 to 10": [
        (np.zeros((B, 11, D), "float32"), {}),
        (keras.KerasTensor((None, 11, D)), {}),
        (X, {"positions": np.array([0, 1, 2, 3, 10])}),
    ],
    "6 to 10": [(x, {"start_index": 6}) for x in (X, keras.KerasTensor((None, T, D)))],
    "-1 to 3": [(X, {"start_index": -1})],
    "0 to 11": [(X, {"start_index": np.array([0, 7, 2])})],
    "-2 to 9": [(X, {"start_index": keras.ops.array([5, -2, 0])})],
    "-1 to 4": [(X, {"positions": keras.ops.array([[-1, 1, 2, 3, 4]] * B)})],
}


@pytest.mark.parametrize("received", REFUSED)
def test_positions_outside_the_table_are_refused(received):
    message = rf"Positions must lie in \[0, max_length=10\).*from {received}"
    for x, given in REFUSED[received]:
        with pytest.raises(ValueError, match=message):
            LearnedPositionEmbedding(10)(x, **given)


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


# Grids


def sines(position, size):
    """Sines and then cosines, one by one, in float64."""
    angles = position / 10000.0 ** (2 * np.arange(size // 2) / size)
    return np.concatenate([np.sin(angles), np.cos(angles)])


def test_sines_are_of_the_column_and_of_the_row():
    found = numpy(ka.SinCosGridEmbedding((ROWS, COLUMNS))(CELLS)) - CELLS
    expected = [
        np.concatenate([sines(column, D // 2), sines(row, D // 2)])
        for row, column in np.ndindex(ROWS, COLUMNS)
    ]
    close(found, [expected] * 2)
    grid = ka.SinCosGridEmbedding(merge_mode="none", dim=D)
    close(numpy(grid(CELLS.reshape(2, ROWS, COLUMNS, D))).reshape(found.shape), found)
    # Of one axis it is the sequence's.
    series = ka.SinCosGridEmbedding((12,), merge_mode="none", dim=D)
    close(series(CELLS), SinCos(D, "none", layout="half_split")(CELLS), 1e-6)


def test_three_axes_share_the_features():
    movie = random(1, 2, ROWS, COLUMNS, 10)
    found = numpy(ka.SinCosGridEmbedding(merge_mode="none")(movie))[0]
    for t, row, column in ((1, 2, 3), (0, 1, 0)):
        close(found[t, row, column, [0, 1, 2, 3]], sines(column, 4), 1e-6)
        close(found[t, row, column, [4, 7]], [np.sin(row), np.sin(t)], 1e-6)


def test_learned_vectors_are_those_of_the_cells():
    x = random(2, 2 + ROWS * COLUMNS, D)
    layer = with_table(ka.LearnedGridEmbedding((ROWS, COLUMNS), prefix=2), x.shape)
    cells = numpy(layer.embeddings)
    close(layer(x), x + cells)
    # Some patches of each image, of any grid.
    part = np.array([[0, 3, 13], [1, 2, 7]])
    close(layer(x[:, :3], positions=part), x[:, :3] + cells[part])


@pytest.mark.parametrize("interpolation", ["cubic", "linear"])
@pytest.mark.parametrize("target", [3, 5, 12])
def test_interpolation_is_the_definition(interpolation, target):
    """Of a function of the distance to each cell, in float64, and exact for straight lines."""

    def kernel(x):
        x, a = np.abs(x), -0.75
        if interpolation == "linear":
            return np.maximum(1 - x, 0)
        near = (a + 2) * x**3 - (a + 3) * x**2 + 1
        far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    at = (np.arange(target) + 0.5) * 5 / target - 0.5
    # The values at the edges go on for ever.
    weights = kernel(at[:, None] - np.arange(-5, 10))
    weights[:, 5] += weights[:, :5].sum(axis=1)
    weights[:, 9] += weights[:, 10:].sum(axis=1)
    found = numpy(resizing(5, target, interpolation))
    close(found, weights[:, 5:10])
    close(found.sum(axis=1), np.ones(target))
    if target == 5:
        close(found, np.eye(5), 1e-6)


def test_a_table_of_another_size_of_sequences_and_grids():
    large = np.zeros((2, 1 + 6 * 5, D), "float32")
    grid = (ROWS, COLUMNS)
    layer = with_table(ka.LearnedGridEmbedding(grid, prefix=1, size=(6, 5)), large.shape)
    found, (cells,) = numpy(layer(large)), layer.get_weights()
    assert cells.shape == (1 + ROWS * COLUMNS, D)
    np.testing.assert_array_equal(found[:, 0], np.stack([cells[0]] * 2))
    image = large[:, 1:].reshape(2, 6, 5, D)
    layer = with_table(ka.LearnedGridEmbedding(grid), image.shape)
    layer.set_weights([cells[1:]])
    close(numpy(layer(image)).reshape(2, 30, D), found[:, 1:], 1e-6)


def test_in_an_encoder_of_images():
    """As the embeddings of a model, whose table is trained by all cells of another size."""
    patches = keras.Sequential([ka.PatchEmbedding(2, D), ka.ClassToken()])
    positions = ka.LearnedGridEmbedding((2, 2), prefix=1, size=(3, 2))
    encoder = ka.Encoder([ka.TransformerBlock(8, 2)], ka.Embeddings(patches, positions))
    images = random(2, 6, 4, 1)
    encoder.build(images.shape)
    # A masked patch leaves the others where they are.
    kept = np.array([[1, 1, 0, 1, 0, 1, 1], [1] * 7], bool)
    vectors = numpy(call(positions, numpy(call(patches, images))))[:1, kept[0]]
    alone = numpy(call(ka.Encoder(encoder.blocks), vectors))
    close(numpy(call(encoder, images, mask=kept))[:1, kept[0]], alone, 1e-4)
    found, _ = weight_gradients(encoder, lambda x: keras.ops.square(encoder(x)), [images])
    of = [v is positions.embeddings for v in encoder.trainable_variables].index(True)
    assert (np.abs(found[of]).max(axis=1) > 0).all()


# Half precision

GRIDS = random(2, 6, 5, D)
HALF = {
    "sines": (SinCos, X),
    "sines alone": (lambda dtype: SinCos(merge_mode="none", dtype=dtype), X),
    "table": (learned, X),
    "table alone": (lambda dtype: learned(merge_mode="none", dtype=dtype), X),
    "sines of a grid": (ka.SinCosGridEmbedding, GRIDS),
    "table of a grid": (
        lambda dtype: with_table(ka.LearnedGridEmbedding((3, 4), dtype=dtype), GRIDS.shape), GRIDS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("name", HALF)
def test_the_only_error_in_half_precision_is_the_rounding_of_the_result(name, dtype):
    make, x = HALF[name]
    layer, x = make(dtype=f"mixed_{dtype}"), keras.ops.cast(10 * x, dtype)
    given = {} if "grid" in name else {"start_index": 5}
    output = layer(x, **given)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    vectors = (
        numpy(layer.vectors((6, 5), D)) if "grid" in name else rows_of(layer, 5 + np.arange(T))
    )
    exact = vectors + ("alone" not in name) * wide(numpy(x))
    assert (np.abs(wide(numpy(output)) - exact) <= UNITS[dtype] * np.abs(exact) + 1e-4).all()
