"""`TransformerBlock`: scores, steps, names and dropout of its parts. Its equations: tests/fuzz."""

import h5py
import keras
import numpy as np

from keras_attention import TransformerBlock
from tests.arrays import numpy, random

B, T, D, HIDDEN, H = 3, 5, 8, 16, 2


S, WIDTH = 7, 6
X, CONTEXT = random(B, T, D), random(B, S, WIDTH, seed=7)
DECODER = {"causal": True, "cross_attention": True}


def made(**kwargs):
    """A block with random weights, biases and norms included."""
    block = TransformerBlock(HIDDEN, H, **kwargs)
    block.build(X.shape, CONTEXT.shape if block.cross_attention else None)
    for seed, weight in enumerate(block.trainable_weights):
        weight.assign(random(*weight.shape, seed=seed) / 2)
    return block


# The context


def test_scores_of_both_attentions():
    block = made(**DECODER)
    output, found = block(X, CONTEXT, return_attention_scores=True)
    np.testing.assert_allclose(numpy(output), numpy(block(X, CONTEXT)), rtol=1e-5, atol=1e-5)
    assert {name: tuple(scores.shape) for name, scores in found.items()} == {
        "attention": (B, H, T, T),
        "cross_attention": (B, H, T, S),
    }
    for scores in found.values():
        np.testing.assert_allclose(numpy(scores).sum(-1), 1.0, rtol=1e-5)
    symbols = block(keras.Input((None, D)), keras.Input((S, WIDTH)), return_attention_scores=True)
    assert symbols[1]["attention"].shape == (None, H, None, None)
    assert symbols[1]["cross_attention"].shape == (None, H, None, S)


def test_a_learned_score_has_weights_for_each_attention():
    block = made(**DECODER, score="general")
    kernels = block.attention.score.kernel, block.cross_attention_layer.score.kernel
    assert kernels[0] is not kernels[1]
    assert len({weight.path for weight in block.weights}) == len(block.weights)


# Decoding


def test_scores_of_both_attentions_and_of_a_step():
    block = made(**DECODER)
    given = {"return_attention_scores": True}
    _, expected = block(X, CONTEXT, **given)
    symbols = block(keras.Input((T, D)), keras.Input((S, WIDTH)), **given)[1]
    memory = block.cache_context(CONTEXT)
    cache = block(X[:, :4], memory, cache=block.make_cache(B, T))[1]
    _, scores, cache = block(X[:, 4:], memory, cache=cache, **given)
    assert list(expected) == ["attention", "cross_attention"]
    for name, weights in expected.items():
        assert symbols[name].shape == (None, *weights.shape[1:])
        np.testing.assert_allclose(
            numpy(scores[name]), numpy(weights)[:, :, 4:], rtol=1e-4, atol=1e-5
        )
    assert (numpy(cache["index"]) == T).all()


def test_a_decoding_step_is_a_model_that_saves(tmp_path):
    block = TransformerBlock(HIDDEN, H, **DECODER, norm="rms", position="rotary")
    block.build(X.shape, CONTEXT.shape)
    made_of = {"cache": block.make_cache(B, T), "memory": block.cache_context(CONTEXT)}
    symbols = keras.tree.map_structure(
        lambda array: keras.Input(tuple(array.shape)[1:], dtype=array.dtype), made_of
    )
    x = keras.Input((None, D))
    outputs = block(x, symbols["memory"], cache=symbols["cache"])
    given, found = (
        {name: tuple(x.shape) for name, x in cache.items()}
        for cache in (symbols["cache"], outputs[1])
    )
    assert found == given and tuple(outputs[0].shape) == (None, None, D)
    model = keras.Model([x, symbols["memory"], symbols["cache"]], outputs)
    model.save(tmp_path / "step.keras")
    loaded = keras.saving.load_model(tmp_path / "step.keras")
    tensor = keras.ops.convert_to_tensor(X)
    expected = numpy(block(X, CONTEXT))
    for step in (model, loaded):
        output, cache = step([tensor, made_of["memory"], made_of["cache"]])
        np.testing.assert_allclose(numpy(output), expected, rtol=1e-4, atol=1e-4)
        assert (numpy(cache["index"]) == T).all()


# Training


def test_dropout_is_on_each_branch():
    # In pre-norm a branch that is dropped leaves the input as it was.
    block = made(dropout=0.9, seed=1, normalize_first=True)
    kept = numpy(block(X, training=True)) == X
    assert 0.6 < kept.mean() < 1.0


def test_projections_start_apart():
    block = TransformerBlock(HIDDEN, H, kernel_initializer=keras.initializers.GlorotUniform())
    block.build(X.shape)
    dense = block.attention.query_dense, block.attention.key_dense, block.attention.value_dense
    kernels = [numpy(layer.kernel) for layer in dense]
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert np.abs(kernels[first] - kernels[second]).max() > 0.1


def test_parts_have_one_name_and_files_the_first_one(tmp_path):
    """What is saved has the names of 0.1.0, and what 0.1.0 saved loads."""
    block = TransformerBlock(12, 2, cross_attention=True, name="decoder")
    x, context = keras.Input((None, D)), keras.Input((None, D))
    model = keras.Model([x, context], block(x, context))
    assert block.cross_attention_layer is block.context_attention
    assert block.cross_attention_norm is block.context_attention_norm
    paths = [weight.path for weight in block.weights]
    assert "decoder/context_attention/query/kernel" in paths
    assert "decoder/context_attention_norm/gamma" in paths
    model.save_weights(tmp_path / "model.weights.h5")
    groups = []
    with h5py.File(tmp_path / "model.weights.h5") as file:
        file.visit(groups.append)
    assert any("/context_attention/query_dense/vars" in group for group in groups)
    assert not any("cross_attention" in group for group in groups)
