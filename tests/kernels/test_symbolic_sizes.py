"""Programs of JAX for all sizes: `jax.export` with symbolic dimensions, run for several sizes."""

import warnings

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import normalizations, patterns, positions, scores
from tests.compiled import compiled
from tests.layers.test_conformance import OwnLayer

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.skipif(keras.config.backend() != "jax", reason="JAX's dimensions")

CASES = {
    "causal, grouped": ka.MultiHeadAttention(4, 4, num_key_value_heads=2, pattern="causal"),
    "window": ka.MultiHeadAttention(2, 4, pattern=patterns.SlidingWindow(2, 1)),
    "shaw": ka.RelativePositionAttention(2, 4, 2),
    "disentangled": ka.MultiHeadAttention(2, 4, position=positions.Disentangled(8, 6)),
    "relative bias": ka.MultiHeadAttention(2, 4, position="relative_bias"),
    "additive": ka.Attention(2, 4, score="additive"),
    "location": ka.Attention(2, 4, score=scores.Location(7)),
    "top-k": ka.MultiHeadAttention(2, 4, normalization=normalizations.TopK(3)),
    "experts": ka.MixtureOfExperts(5, 2, 6),
}


def program(layer, shapes):
    """`layer` of arrays, exported for shapes such as "b, t, 8"."""
    scope = jax.export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), "float32")
        for shape in shapes
    ]
    return jax.export.export(jax.jit(lambda *arrays: layer(*arrays)))(*specs).call


def check(layer, shapes, all_sizes):
    """The program is the layer, for all sizes."""
    layer(*(keras.Input((None, 8)) for _ in shapes))
    rng, run = np.random.default_rng(0), program(layer, shapes)
    for sizes in all_sizes:
        given = [
            rng.normal(size=[sizes.get(n) or int(n) for n in shape.split(", ")]).astype("float32")
            for shape in shapes
        ]
        np.testing.assert_allclose(run(*given), compiled(layer, *given), atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_lengths_and_batches_that_differ(name):
    shapes = ["b, t, 8"] if name == "experts" else ["b, t, 8", "b, s, 8"]
    check(CASES[name], shapes, [{"b": 2, "t": 3, "s": 6}, {"b": 3, "t": 5, "s": 2}])


def test_a_batch_of_long_sequences():
    """Of a known length, cut into tiles of one sequence each: 12 heads of 196 patches."""
    check(ka.SelfAttention(12, 2, causal=True), ["b, 196, 8"], [{"b": 2}, {"b": 3}])


@pytest.mark.ci
def test_an_exported_model(tmp_path):
    """By `model.export`, which makes TensorFlow's program of JAX's, with a layer around ours."""
    tf = pytest.importorskip("tensorflow")
    tokens = keras.Input((None,), dtype="int32")
    x = ka.ScaledEmbedding(20, 8, mask_zero=True)(tokens)
    own = OwnLayer(ka.TransformerBlock(16, 2, causal=True))
    own.supports_masking = True
    x = own(x)
    model = keras.Model(tokens, ka.AttentionPooling()(ka.LocalSelfAttention(2, 4, neighbors=1)(x)))
    texts = np.array([[5, 7, 2, 0], [9, 4, 3, 8]], "int32")
    expected = model.predict(texts, verbose=0)
    with warnings.catch_warnings():
        # Of Keras and of the conversion.
        warnings.simplefilter("ignore")
        model.export(tmp_path, format="tf_saved_model", verbose=False)
        loaded = tf.saved_model.load(tmp_path)
    np.testing.assert_allclose(loaded.serve(texts), expected, atol=1e-5)
    np.testing.assert_allclose(
        loaded.serve(texts[1:, :3]), model.predict(texts[1:, :3], verbose=0), atol=1e-5
    )


def test_a_location_beyond_the_last_is_not_a_number():
    layer = ka.Attention(2, 4, score=scores.Location(3))
    layer.build((2, 2, 8), (2, 2, 8))
    run = program(layer, ["b, t, 8"])
    assert np.isfinite(run(np.ones((2, 3, 8), "float32"))).all()
    assert np.isnan(run(np.ones((2, 4, 8), "float32"))).all()
