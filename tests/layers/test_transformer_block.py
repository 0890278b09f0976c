"""`TransformerBlock`: its equations, by hand from its weights, and what it must not see."""

import h5py
import keras
import numpy as np
import pytest

from keras_attention import TransformerBlock
from tests.arrays import numpy, random
from tests.pairwise import pairwise

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


def norm(x, layer, epsilon):
    """Layer normalization (Ba et al. 2016), or RMSNorm (Zhang & Sennrich 2019), in NumPy."""
    gamma, *beta = (numpy(weight) for weight in layer.trainable_weights)
    if not beta:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gamma
    (beta,) = beta
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def feed_forward(x, layer, gated):
    """ReLU(x W_1 + b_1) W_2 + b_2, or gated, in NumPy."""
    weights = [numpy(weight) for weight in layer.trainable_weights]
    pairs = [(weights[i], weights[i + 1]) for i in range(0, len(weights), 2)]
    outputs = [x @ kernel + bias for kernel, bias in pairs[:-1]]
    hidden = np.maximum(outputs[0], 0) * (outputs[1] if gated else 1)
    return hidden @ pairs[-1][0] + pairs[-1][1]


def by_hand(block, x, context=None, context_mask=None, **attention):
    """The block as its docstring writes it, with the attention layers' own answers."""

    def attend(x):
        return numpy(block.attention(x.astype("float32"), **attention)).astype("float64")

    def feed(x):
        return feed_forward(x, block.feed_forward, block.gated)

    def first(x):
        return norm(x, block.attention_norm, block.layer_norm_epsilon)

    def second(x):
        return norm(x, block.feed_forward_norm, block.layer_norm_epsilon)

    def attend_to_context(x):
        x = x.astype("float32")
        mask = attention.get("query_mask")
        attended = block.cross_attention_layer(x, context, query_mask=mask, value_mask=context_mask)
        return numpy(attended).astype("float64")

    def between(x):
        return norm(x, block.cross_attention_norm, block.layer_norm_epsilon)

    if block.normalize_first:
        x = x + attend(first(x))
        if context is not None:
            x = x + attend_to_context(between(x))
        return x + feed(second(x))
    x = first(x + attend(x))
    if context is not None:
        x = between(x + attend_to_context(x))
    return second(x + feed(x))


# Equations


@pytest.mark.parametrize("normalize_first, gated, causal", pairwise(*[[False, True]] * 3))
def test_block_is_its_equations(normalize_first, gated, causal):
    block = made(
        normalize_first=normalize_first, gated=gated, causal=causal, layer_norm_epsilon=0.1
    )
    expected = by_hand(block, X, use_causal_mask=causal)
    np.testing.assert_allclose(numpy(block(X)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "norm, causal, normalize_first", pairwise(["layer", "rms"], *[[False, True]] * 2)
)
def test_decoder_is_its_equations(norm, causal, normalize_first):
    block = made(
        normalize_first=normalize_first, causal=causal, cross_attention=True, norm=norm, gated=True
    )
    mask = np.arange(T) < np.array([[5], [4], [3]])
    there = np.arange(S) < np.array([[7], [2], [4]])
    output = numpy(block(X, CONTEXT, mask=mask, context_mask=there))
    expected = by_hand(
        block, X, CONTEXT, context_mask=there, query_mask=mask, use_causal_mask=causal
    )
    np.testing.assert_allclose(output[mask], expected[mask], rtol=1e-4, atol=1e-4)


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
