"""The dropout inside the layers, and what they do with it."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.layers.heads.projections import Dropout
from tests.arrays import numpy, random
from tests.compiled import program

RATE = 0.3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_so_many_are_dropped_and_the_rest_makes_up_for_them(dtype):
    x = keras.ops.cast(np.full((50, 41, 33), 3.0), dtype)
    dropped = Dropout(RATE, seed=1, dtype=dtype)(x, training=True)
    assert keras.backend.standardize_dtype(dropped.dtype) == dtype
    found = numpy(keras.ops.cast(dropped, "float32"))
    # Five standard deviations of so many draws; bfloat16 rounds the factor.
    assert abs((found == 0).mean() - RATE) < 5 * (RATE * (1 - RATE) / found.size) ** 0.5 + 0.002
    np.testing.assert_allclose(found[found != 0], 3 / (1 - RATE), rtol=1e-2)


LAYERS = {
    "Attention": lambda **given: ka.Attention(2, 4, **given),
    "AttentionPooling": lambda **given: ka.AttentionPooling(5, 2, 4, **given),
    "FeedForward": lambda **given: ka.FeedForward(16, **given),
    "TransformerBlock": lambda **given: ka.TransformerBlock(16, 2, **given),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_drop_in_training_alone_and_scores_are_before_it(name):
    x = random(3, 5, 8)
    layer, again, plain = (LAYERS[name](dropout=rate, seed=1) for rate in (0.5, 0.5, 0.0))
    for each in (plain, layer, again):
        each.build(x.shape)
        for variable, own in zip(each.trainable_variables, plain.trainable_variables, strict=True):
            variable.assign(own)
    expected, drawn = numpy(plain(x, training=True)), numpy(layer(x, training=True))
    for training in (None, False):
        np.testing.assert_array_equal(numpy(layer(x, training=training)), expected)
    assert np.abs(drawn - expected).max() > 0.1
    assert np.abs(drawn - numpy(layer(x, training=True))).max() > 0.1
    if name != "FeedForward":
        scores = [f(x, training=True, return_attention_scores=True)[1] for f in (layer, plain)]
        np.testing.assert_allclose(*map(numpy, scores), rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(numpy(again(x, training=True)), drawn)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="about XLA in TensorFlow")
def test_the_same_is_dropped_under_xla():
    # What TensorFlow chooses by itself on CPUs is another generator under XLA, which
    # made the training step of a block five times as long.
    x = keras.random.normal((3, 7, 8), seed=0)
    found = []
    for jit_compile in (False, True):
        attention, dropout = ka.Attention(dropout=0.5, seed=1), Dropout(0.5, seed=2)

        def both(x, attention=attention, dropout=dropout):
            return attention(x, training=True), dropout(x, training=True)

        both(x)
        found.append(program(both, jit_compile=jit_compile)(x))
    for plain, compiled, whole in zip(*found, (attention(x), x), strict=True):
        np.testing.assert_allclose(numpy(compiled), numpy(plain), atol=1e-5)
        assert np.abs(numpy(plain) - numpy(whole)).max() > 0.1


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="about graphs of TensorFlow")
def test_lengths_that_a_graph_does_not_know():
    import tensorflow as tf

    layer = Dropout(RATE, seed=1)
    layer(np.ones((1, 1, 8), "float32"), training=True)
    signature = [tf.TensorSpec((None, None, 8))]
    dropped = tf.function(lambda x: layer(x, training=True), signature, autograph=False)
    assert dropped.get_concrete_function().output_shapes == (None, None, 8)
    for shape in ((3, 5, 8), (2, 0, 8)):
        assert dropped(tf.ones(shape)).shape == shape


# Seeds in files


def states(model):
    return [numpy(v).tolist() for v in model.variables if v.name == "seed_generator_state"]


# Without a seed Keras draws from PyTorch's own generator there.
@pytest.mark.parametrize("seed", [7] + [None] * (keras.backend.backend() == "tensorflow"))
def test_training_that_is_resumed_draws_what_is_drawn_without_a_stop(tmp_path, seed):
    x, y = random(2, 5, 8), keras.Input((5, 8))
    given = ka.MultiHeadAttention(2, 4, dropout=0.5, seed=seed)(y)
    given = ka.FeedForward(8, dropout=0.3, seed=seed)(given)
    model = keras.Model(y, ka.SelfAttention(2, 4, normalization="hard", seed=seed)(given))
    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    model.train_on_batch(x, x)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert states(loaded) == states(model)
    assert all(drawn for _, drawn in states(model))
    losses = [[float(m.train_on_batch(x, x)) for _ in range(2)] for m in (model, loaded)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_a_copy_of_a_layer_begins_with_its_seed(tmp_path):
    x = keras.Input((5, 8))
    model = keras.Model(x, ka.MultiHeadAttention(2, 4, dropout=0.5, seed=7)(x))
    model(random(2, 5, 8), training=True)
    assert states(model) == [[7, 1]]
    # As do files of weights alone, which Keras's own layer loads too.
    model.save_weights(tmp_path / "model.weights.h5")
    copy = keras.models.clone_model(model)
    assert states(copy) == [[7, 0]]
    copy.load_weights(tmp_path / "model.weights.h5")
    assert states(copy) == [[7, 0]]
