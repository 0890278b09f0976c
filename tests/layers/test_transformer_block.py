"""`TransformerBlock`: its norms by hand, scores, steps, dropout; blocks of sets.

Its equations are in `tests/fuzz/test_layers.py`, and its options in files of releases.
"""

import keras
import numpy as np
import pytest

from keras_attention import Encoder, InducedSetAttentionBlock, RMSNorm, TransformerBlock
from tests.arrays import built, close, numpy, random

B, T, S, D, WIDTH, HIDDEN, H = 3, 5, 7, 8, 6, 16, 2
X, CONTEXT = random(B, T, D), random(B, S, WIDTH, seed=7)
MASK = np.arange(T) < np.array([[5], [3], [4]])
DECODER = {"causal": True, "cross_attention": True}


def made(intermediate_dim=HIDDEN, **kwargs):
    """A block with random weights, biases and norms included."""
    block = TransformerBlock(intermediate_dim, H, **kwargs)
    return built(block, X.shape, CONTEXT.shape if block.cross_attention else None)


# Options that make other architectures


def branches(block):
    """The branches of a block as functions of arrays, in order, and the names of their norms."""
    attend = block.cross_attention_layer
    yield "attention", "attention", lambda x: block.attention(x, query_mask=MASK)
    yield "cross_attention", "context_attention", lambda x: attend(x, CONTEXT, query_mask=MASK)
    yield "feed_forward", "feed_forward", block.feed_forward


def start():
    """The input as the first branch reads it."""
    return keras.ops.convert_to_tensor(X * MASK[..., None])


def assert_is(block, expected):
    output = numpy(block(*(X, CONTEXT)[: 1 + block.cross_attention], mask=MASK))
    np.testing.assert_allclose(output[MASK], numpy(expected)[MASK], atol=1e-5)
    assert (output[~MASK] == 0).all()


NORMS = {
    "sandwich": {"residual": "sandwich"},
    "pre, one of two": {"residual": "pre", "norm": {"attention": None, "feed_forward": "rms"}},
    "after alone": {"residual": "sandwich", "norm": {"attention": None, "feed_forward": None}},
}


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_sums_beyond_float16(norm):
    """They are those of float32, for the blocks after, the last norm and their dropouts."""

    def stack(dtype):
        options = {"residual": "pre", "norm": norm, "dtype": dtype, "wide_residual": True}
        blocks = [TransformerBlock(HIDDEN, H, dropout=1e-9, **options) for _ in range(2)]
        return built(Encoder(blocks, final_norm=RMSNorm(dtype=dtype), dtype=dtype), X.shape)

    exact, rounded = stack("float32"), stack("float16")
    for block in exact.blocks:
        block.feed_forward.output_dense.kernel.assign(random(HIDDEN, D) * 1e6)
    rounded.set_weights(exact.get_weights())
    inside = rounded.blocks[0](X)
    assert np.abs(numpy(inside)).max() > 1e5
    assert rounded.blocks[0](keras.Input((T, D))).dtype == "float32"
    found = rounded(X, training=True)
    assert keras.backend.standardize_dtype(found.dtype) == "float16"
    np.testing.assert_allclose(numpy(found), numpy(exact(X)), atol=0.02)
    assert keras.backend.standardize_dtype(stack("bfloat16").blocks[1](X).dtype) == "bfloat16"


@pytest.mark.parametrize("name", NORMS)
def test_norms_before_and_after_branches(name):
    given = NORMS[name]
    block = made(cross_attention=True, **given)
    x, kinds = start(), given.get("norm", {})
    for part, path, branch in branches(block):
        before = getattr(block, f"{path}_norm")
        assert (before is None) == (kinds.get(part, "layer") is None)
        assert isinstance(before, RMSNorm) == (kinds.get(part) == "rms")
        found = branch(x if before is None else before(x))
        after = given["residual"] == "sandwich"
        x = x + (getattr(block, f"{path}_output_norm")(found) if after else found)
    assert_is(block, x)


def test_parallel_branches_read_the_same_input():
    block, x = made(residual="parallel"), start()
    assert block.feed_forward_norm is not block.attention_norm
    attended = block.attention(block.attention_norm(x), query_mask=MASK)
    assert_is(block, (x + attended) + block.feed_forward(block.feed_forward_norm(x)))


def test_a_norm_is_copied_for_each_branch():
    norm = keras.layers.LayerNormalization(epsilon=0.1, center=False)
    block = made(norm=norm)
    assert block.attention_norm is not norm
    assert block.attention_norm.epsilon == block.feed_forward_norm.epsilon == 0.1
    names = [weight.path.split("/", 1)[1] for weight in block.weights]
    assert {"attention_norm/gamma", "feed_forward_norm/gamma"} <= set(names)


def test_an_offset_is_added_before_rounding():
    half, wide = (RMSNorm(offset=1.0, dtype=dtype) for dtype in ("mixed_bfloat16", "float32"))
    x = keras.ops.cast(np.full((1, D), 256.0), "bfloat16")
    for norm in (half, wide):
        norm.build((1, D))
        # 1 + 2^-9 would be 1 in bfloat16, and 2^-9 alone is not lost.
        norm.scale.assign(np.full(D, 2.0**-9))
    expected = keras.ops.cast(wide(x), "bfloat16")
    np.testing.assert_array_equal(numpy(half(x)), numpy(expected))


class Mean(keras.layers.Layer):
    """As attention is called, with more arguments than its shapes need."""

    def call(self, x, query_mask, training, **others):
        return keras.ops.mean(x, axis=1, keepdims=True) + keras.ops.zeros_like(x)

    def compute_output_spec(self, x):
        return x


def test_attention_of_other_classes_in_functional_models():
    symbols, block = keras.Input((5, 8)), TransformerBlock(16, 2, attention=Mean())
    model = keras.Model(symbols, block(symbols))
    np.testing.assert_allclose(numpy(model(X)), numpy(block(X)), atol=1e-6)
    with pytest.raises(ValueError, match="must be boolean"):
        block(symbols, attention_mask=np.full((5, 5), -1e9))


# Scores and steps


def test_scores_of_both_attentions_and_of_a_step():
    block, given = made(**DECODER), {"return_attention_scores": True}
    output, expected = block(X, CONTEXT, **given)
    close(output, block(X, CONTEXT))
    symbols = block(keras.Input((None, D)), keras.Input((S, WIDTH)), **given)[1]
    memory = block.cache_context(CONTEXT)
    cache = block(X[:, :4], memory, cache=block.make_cache(B, T))[1]
    _, scores, cache = block(X[:, 4:], memory, cache=cache, **given)
    assert list(expected) == list(symbols) == list(scores) == ["attention", "cross_attention"]
    assert [symbol.shape[2:] for symbol in symbols.values()] == [(None, None), (None, S)]
    for name, keys in (("attention", T), ("cross_attention", S)):
        weights = numpy(expected[name])
        assert weights.shape == (B, H, T, keys)
        close(weights.sum(-1), np.ones((B, H, T)))
        close(scores[name], weights[:, :, 4:], 1e-4)
    assert (numpy(cache["index"]) == T).all()


def test_a_learned_score_has_weights_for_each_attention():
    block = made(**DECODER, score="general")
    kernels = block.attention.score.kernel, block.cross_attention_layer.score.kernel
    assert kernels[0] is not kernels[1]
    assert block.cross_attention_layer is block.context_attention
    assert block.cross_attention_norm is block.context_attention_norm
    assert len({weight.path for weight in block.weights}) == len(block.weights)


def test_a_decoding_step_is_a_model_that_saves(tmp_path):
    block = made(**DECODER, norm="rms", position="rotary")
    given = [X, block.cache_context(CONTEXT), block.make_cache(B, T)]
    symbols = keras.tree.map_structure(
        lambda array: keras.Input(tuple(array.shape)[1:], dtype=array.dtype), given[1:]
    )
    x = keras.Input((None, D))
    outputs = block(x, symbols[0], cache=symbols[1])
    assert outputs[0].shape == (None, None, D)
    assert [x.shape for x in outputs[1].values()] == [x.shape for x in symbols[1].values()]
    model = keras.Model([x, *symbols], outputs)
    model.save(tmp_path / "step.keras")
    given[0] = keras.ops.convert_to_tensor(X)
    for step in (model, keras.saving.load_model(tmp_path / "step.keras")):
        output, cache = step(given)
        close(output, block(X, CONTEXT), 1e-4)
        assert (numpy(cache["index"]) == T).all()


# Training and files


def test_dropout_is_on_each_branch():
    # In pre-norm a branch that is dropped leaves the input as it was.
    block = made(dropout=0.9, seed=1, normalize_first=True)
    kept = numpy(block(X, training=True)) == X
    assert 0.6 < kept.mean() < 1.0


# Sets


def test_a_block_without_self_attention_has_one_kind_of_scores_and_a_memory():
    block = made(cross_attention=True, self_attention=False)
    seen = np.random.default_rng(0).random((B, S)) < 0.6
    found, scores = block(X, CONTEXT, return_attention_scores=True, context_mask=seen)
    assert {name: tuple(s.shape) for name, s in scores.items()} == {"cross_attention": (B, H, T, S)}
    close(block(X, block.cache_context(CONTEXT, seen)), found)


def test_inducing_points_attend_to_the_set_and_the_set_to_them():
    layer = built(InducedSetAttentionBlock(HIDDEN, H, num_inducing_points=3), X.shape)
    points = np.repeat(numpy(layer._points.queries).reshape(1, 3, D), B, axis=0)
    hidden = layer._to_points(points, X, context_mask=MASK)
    expected = numpy(layer._to_elements(X, hidden)) * MASK[..., None]
    close(numpy(layer(X, mask=MASK)), expected, 5e-5)
