"""`ScaledEmbedding`: rows of its table at the scale √dim, and logits from the same table."""

import keras
import numpy as np
import pytest

from keras_attention import ScaledEmbedding
from keras_attention.sequences import masks
from tests.arrays import numpy, random
from tests.gradients import weight_gradients

SIZE, D = 10, 6
IDS = np.array([[3, 5, 0, 9], [1, 0, 0, 3]], "int32")


def made(**kwargs):
    layer = ScaledEmbedding(SIZE, D, embeddings_initializer="zeros", **kwargs)
    layer.build(IDS.shape)
    layer.set_weights([random(SIZE, D, seed=1)])
    return layer


def test_vectors_are_rows_times_the_root_of_their_size():
    layer = made()
    np.testing.assert_allclose(
        numpy(layer(IDS)), numpy(layer.embeddings)[IDS] * np.sqrt(D), rtol=1e-6
    )
    assert layer(IDS[0]).shape == (4, D)


def test_vectors_have_unit_variance_at_the_start():
    layer = ScaledEmbedding(500, 64)
    vectors = numpy(layer(np.arange(500)))
    assert abs(vectors.std() - 1) < 0.02 and abs(vectors.mean()) < 0.02


def test_reverse_gives_logits_of_the_same_table_without_the_scale():
    layer, x = made(), random(2, 4, D, seed=2)
    assert len(layer.weights) == 1
    logits = layer(x, reverse=True)
    np.testing.assert_allclose(numpy(logits), x @ numpy(layer.embeddings).T, rtol=1e-5, atol=1e-6)
    # The token whose vector comes in has the largest logit, if vectors are of one length.
    table = numpy(layer.embeddings)
    layer.set_weights([table / np.linalg.norm(table, axis=-1, keepdims=True)])
    np.testing.assert_array_equal(numpy(layer(layer(IDS), reverse=True)).argmax(axis=-1), IDS)


def test_the_table_learns_from_both_ends():
    layer, other = made(), random(2, 4, SIZE, seed=3)
    cotangent = keras.ops.convert_to_tensor(other)

    def loss():
        return keras.ops.sum(layer(layer(IDS), reverse=True) * cotangent)

    (found,), _ = weight_gradients(layer, loss)
    table = numpy(layer.embeddings).astype("float64")
    vectors, scale = table[IDS], np.sqrt(D)
    expected = scale * np.einsum("btn,btd->nd", other, vectors)  # from the logits
    np.add.at(expected, IDS, scale * np.einsum("btn,nd->btd", other, table))  # from the vectors
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(D,), (3, D), (2, 3, 4, D), (2, 0, D)], ids=str)
def test_logits_of_any_axes(shape):
    layer, x = made(), random(*shape)
    logits = layer(x, reverse=True)
    np.testing.assert_allclose(numpy(logits), x @ numpy(layer.embeddings).T, rtol=1e-5, atol=1e-5)


def test_token_zero_is_masked_if_asked():
    vectors = made(mask_zero=True)(IDS)
    np.testing.assert_array_equal(numpy(masks.implicit(vectors)), IDS != 0)
    assert masks.implicit(made()(IDS)) is None


def test_logits_carry_the_mask_of_what_they_are_made_from():
    for mask_zero in (False, True):
        layer = made(mask_zero=mask_zero)
        mask = keras.ops.convert_to_tensor(np.array([[True, True, False, False]] * 2))
        x = masks.carry(keras.ops.convert_to_tensor(random(2, 4, D)), mask)
        np.testing.assert_array_equal(numpy(masks.implicit(layer(x, reverse=True))), numpy(mask))
        assert masks.implicit(layer(random(2, 4, D), reverse=True)) is None


@pytest.mark.parametrize("mask_zero", [True, False])
def test_tied_ends_in_a_functional_model(mask_zero):
    layer = made(mask_zero=mask_zero)
    ids = keras.Input((None,), dtype="int32")
    vectors = layer(ids)
    logits = layer(keras.layers.Dense(D, use_bias=False)(vectors), reverse=True)
    model = keras.Model(ids, logits)
    assert tuple(logits.shape) == (None, None, SIZE)
    assert len(model.trainable_weights) == 2
    table, kernel = (numpy(weight) for weight in model.trainable_weights)
    expected = table[IDS] * np.sqrt(D) @ kernel @ table.T
    np.testing.assert_allclose(numpy(model(IDS)), expected, rtol=1e-4, atol=1e-4)
    found = masks.implicit(model(IDS))
    assert (found is not None) == mask_zero
    if mask_zero:
        np.testing.assert_array_equal(numpy(found), IDS != 0)
