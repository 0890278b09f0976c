"""Stacks of blocks on the cells of images that are padded: a cell is where it is."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns, positions
from keras_attention.layers.blocks.window_attention import WindowAttention
from keras_attention.sequences import masks
from tests.arrays import numpy, random
from tests.models.stacks import randomize

GRID, D = (2, 4), 16
# Images of 2 by 2 and 1 by 4 patches.
REAL = np.array([[1, 1, 0, 0, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]], bool)
X = random(2, 8, D)
PIXELS = np.repeat(np.repeat(REAL.reshape(2, *GRID), 2, axis=1), 2, axis=2)
IMAGES = np.where(PIXELS[..., None], 1 + random(2, 4, 8, 3) ** 2, 0).astype("float32")


def test_one_block_on_a_grid_gives_all_the_places_of_cells():
    grid = ka.TransformerBlock(24, 2, pattern=patterns.GridWindow(GRID, 2))
    near = ka.TransformerBlock(24, 2, pattern=patterns.SlidingWindow(1, 1))
    found = ka.Encoder([near, grid])(X, mask=REAL)
    expected = grid(near(X, mask=REAL), mask=REAL)
    np.testing.assert_allclose(numpy(found)[REAL], numpy(expected)[REAL], atol=1e-5)


def test_steps_of_a_decoder_count_cells_and_calls_too():
    block = ka.TransformerBlock(24, 2, causal=True, position=positions.AxialRotary(GRID))
    model = ka.Decoder(
        [block], ka.Embeddings(ka.ScaledEmbedding(9, D, mask_zero=True)), logits=ka.Logits(9)
    )
    alone, left = np.array([[3, 5, 7]]), np.array([[0, 0, 3, 5, 7]])
    model(alone)
    randomize(model)
    last, cache = model.start(left, max_tokens=1)
    stepped, _ = model.step(last, cache)
    for found in (model(left), numpy(stepped)[:, None]):
        np.testing.assert_allclose(numpy(found)[:, -1], numpy(model(alone))[:, -1], atol=1e-4)


@pytest.mark.parametrize("shift", [0, 1])
def test_windows_in_the_batch_are_those_of_the_pattern(shift):
    """Whole ones, with cells that are padding, and a window as long as a side without a shift."""
    grid, x, real = (4, 6), random(2, 24, D), np.ones((2, 24), bool)
    real[1, 15:] = False
    bias = positions.GridRelativeBias(grid, 2)
    window = patterns.GridWindow(grid, 2, shift)
    expected = ka.MultiHeadAttention(2, 8, pattern=window, position=bias)
    found = WindowAttention(2, 8, 2, shift, position=positions.GridRelativeBias((2, 2)))
    cells = x.reshape(2, *grid, D)
    for layer, given in ((expected, x), (found, cells)):
        layer.build(given.shape)
    randomize(expected)
    found.set_weights(expected.get_weights())
    for mask in (None, real):
        of_grid = None if mask is None else mask.reshape(2, *grid)
        output = numpy(found(cells, query_mask=of_grid)).reshape(x.shape)
        np.testing.assert_allclose(output, numpy(expected(x, query_mask=mask)), atol=1e-5)
    narrow, scores = found(cells[:, :2], return_attention_scores=True)
    found.shift = 0
    np.testing.assert_allclose(numpy(narrow), numpy(found(cells[:, :2])), atol=1e-5)
    assert scores.shape == (6, 2, 4, 4)
    with pytest.raises(ValueError, match="takes a grid, its mask, and no other"):
        found(cells, segment_ids=np.zeros((2, 24), "int32"))


@pytest.mark.parametrize("flatten", [True, False])
def test_positions_of_images_of_other_sizes(flatten):
    """Without interpolation cells are where they are, beside padding and without."""
    tokens = ka.PatchEmbedding(2, D, flatten=flatten, data_format="channels_last")
    if not flatten:
        tokens = keras.Sequential([tokens, keras.layers.Reshape((-1, D))])
    table = ka.LearnedGridEmbedding((3, 5), interpolation=None)
    embeddings = ka.Embeddings(tokens, table)
    embeddings.build((None, None, None, 3))
    randomize(embeddings)
    whole = numpy(embeddings(random(1, 6, 10, 3))).reshape(3, 5, D)
    part = numpy(embeddings(random(1, 6, 10, 3)[:, :4, :8]))
    np.testing.assert_allclose(part.reshape(2, 4, D), whole[:2, :4], atol=1e-5)
    with pytest.raises(ValueError, match="no more rows and columns"):
        embeddings(random(1, 6, 12, 3))


TOKENS = {
    "patches": lambda: ka.PatchEmbedding(2, D),
    "patches, normalized": lambda: keras.Sequential(
        [ka.PatchEmbedding(2, D), keras.layers.LayerNormalization()]
    ),
    "patches, in a row in a row": lambda: keras.Sequential(
        [keras.Sequential([ka.PatchEmbedding(2, D)]), keras.layers.Dense(D)]
    ),
    "merged patches": lambda: ka.PatchMerging((4, 8)),
    "a class token": lambda: ka.ClassToken(),
    "a series": lambda: ka.PatchEmbedding((2,), D),
    "features": lambda: keras.layers.Dense(D),
}


# Of every `keras.Sequential`, whatever its layers do.
@pytest.mark.filterwarnings("ignore:(.|\\n)*does not support masking")
@pytest.mark.parametrize("tokens", TOKENS)
def test_a_mask_of_inputs_becomes_one_of_vectors(tokens):
    of_image = tokens.startswith("patches")
    x = IMAGES if of_image else random(2, 32, 8)
    real = PIXELS if of_image else PIXELS.reshape(2, 32)
    embeddings = ka.Embeddings(TOKENS[tokens](), ka.SinCosPositionEmbedding())
    model = ka.Encoder([ka.TransformerBlock(24, 2, position="rotary")], embeddings)
    kept = numpy(masks.implicit(embeddings.tokens(carrying(x, real))))
    expected = numpy(model(x, mask=kept))[kept]
    # Where one is carried and one passed, both count.
    for carried, passed in ((real, None), (None, real), (np.ones_like(real), real)):
        found = model(x if carried is None else carrying(x, carried), mask=passed)
        np.testing.assert_array_equal(numpy(masks.implicit(found)), kept)
        np.testing.assert_allclose(numpy(found)[kept], expected, atol=1e-5)
    symbols = keras.Input(x.shape[1:]), keras.Input(real.shape[1:], dtype="bool")
    output = model(symbols[0], mask=symbols[1])
    assert tuple(masks.implicit(output).shape) == (None, kept.shape[1])
    found = keras.Model(symbols, output)([x, real])
    np.testing.assert_allclose(numpy(found)[kept], expected, atol=1e-5)


def test_a_mask_that_no_layer_passes_on_is_lost():
    """As Keras warns: a convolution makes none of a mask of pixels."""
    convolution = keras.Sequential([keras.layers.Conv2D(D, 2, 2), keras.layers.Reshape((-1, D))])
    encoder = ka.Encoder([ka.TransformerBlock(24, 2)], ka.Embeddings(convolution))
    with pytest.warns(UserWarning, match="mask"):
        found = encoder(carrying(IMAGES, PIXELS))
    assert masks.implicit(found) is None
    np.testing.assert_allclose(numpy(found), numpy(encoder(IMAGES)), atol=1e-5)


def carrying(x, mask):
    return masks.carry(keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(mask))
