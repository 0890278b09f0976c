"""The options of `TransformerBlock` that make it other architectures, by hand from its parts."""

import keras
import numpy as np
import pytest

from keras_attention import FeedForward, LayerScale, MultiHeadAttention, RMSNorm, TransformerBlock
from tests.arrays import numpy

B, T, D, HIDDEN, H = 2, 5, 8, 16, 2
X = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")
CONTEXT = np.random.default_rng(1).normal(size=(B, 7, 6)).astype("float32")
MASK = np.arange(T) < np.array([[5], [3]])


def made(intermediate_dim=HIDDEN, context=None, **kwargs):
    block = TransformerBlock(intermediate_dim, H, **kwargs)
    block.build(X.shape, None if context is None else context.shape)
    rng = np.random.default_rng(2)
    for weight in block.trainable_weights:
        weight.assign(rng.normal(size=weight.shape) / 2)
    return block


def start():
    """The input as the first branch reads it."""
    return keras.ops.convert_to_tensor(X * MASK[..., None])


def branches(block, context=None):
    """The branches of a block as functions of arrays, in order."""
    found = {"attention": lambda x: block.attention(x, query_mask=MASK)}
    if context is not None:
        found["cross_attention"] = lambda x: block.cross_attention_layer(
            x, context, query_mask=MASK
        )
    return {**found, "feed_forward": block.feed_forward}


def assert_is(block, expected, context=None):
    given = (X,) if context is None else (X, context)
    output = numpy(block(*given, mask=MASK))
    np.testing.assert_allclose(output[MASK], numpy(expected)[MASK], atol=1e-5)
    assert (output[~MASK] == 0).all()


NORMS = {
    "sandwich": {"residual": "sandwich"},
    "pre, one of two": {"residual": "pre", "norm": {"attention": None, "feed_forward": "rms"}},
    "after alone": {"residual": "sandwich", "norm": {"attention": None, "feed_forward": None}},
}


@pytest.mark.parametrize("context", [None, CONTEXT], ids=["encoder", "decoder"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_before_and_after_branches(name, context):
    given = NORMS[name]
    block = made(context=context, cross_attention=context is not None, **given)
    x, kinds = start(), given.get("norm", {})
    for part, branch in branches(block, context).items():
        path = part.replace("cross", "context")
        before = getattr(block, f"{path}_norm")
        assert (before is None) == (kinds.get(part, "layer") is None)
        assert isinstance(before, RMSNorm) == (kinds.get(part) == "rms")
        found = branch(x if before is None else before(x))
        after = given["residual"] == "sandwich"
        x = x + (getattr(block, f"{path}_output_norm")(found) if after else found)
    assert_is(block, x, context)


@pytest.mark.parametrize("norm", ["layer", {"feed_forward": "shared"}], ids=["two", "one"])
def test_parallel_branches_read_the_same_input(norm):
    block = made(residual="parallel", norm=norm)
    assert (block.feed_forward_norm is block.attention_norm) == (norm != "layer")
    x = start()
    expected = (x + block.attention(block.attention_norm(x), query_mask=MASK)) + block.feed_forward(
        block.feed_forward_norm(x)
    )
    assert_is(block, expected)


def test_a_norm_is_copied_for_each_branch():
    norm = keras.layers.LayerNormalization(epsilon=0.1, center=False)
    block = made(norm=norm)
    assert block.attention_norm is not norm
    assert block.attention_norm.epsilon == block.feed_forward_norm.epsilon == 0.1
    names = [weight.path.split("/", 1)[1] for weight in block.weights]
    assert {"attention_norm/gamma", "feed_forward_norm/gamma"} <= set(names)


def test_an_offset_of_one_is_gemma_s_norm():
    norm = RMSNorm(epsilon=0.01, offset=1.0)
    x = 3 * X
    start = numpy(norm(x))
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.01)
    np.testing.assert_allclose(start, expected, rtol=1e-5)
    norm.scale.assign(np.arange(D))
    np.testing.assert_allclose(numpy(norm(x)), expected * (1 + np.arange(D)), rtol=1e-5)


def test_an_offset_is_added_before_rounding():
    norm = RMSNorm(offset=1.0, dtype="mixed_bfloat16")
    norm.build((1, D))
    norm.scale.assign(np.full(D, 2.0**-9))
    x = keras.ops.cast(np.full((1, D), 256.0), "bfloat16")
    # 1 + 2^-9 would be 1 in bfloat16, and 2^-9 alone is not lost.
    wide = RMSNorm(offset=1.0, dtype="float32")
    wide.build((1, D))
    wide.scale.assign(np.full(D, 2.0**-9))
    expected = numpy(keras.ops.cast(keras.ops.cast(wide(x), "bfloat16"), "float32"))
    np.testing.assert_array_equal(numpy(keras.ops.cast(norm(x), "float32")), expected)


def test_a_layer_scale_is_a_factor_for_each_feature():
    layer = LayerScale(0.5)
    np.testing.assert_array_equal(numpy(layer(X)), X / 2)
    layer.scale.assign(np.arange(D))
    np.testing.assert_allclose(numpy(layer(X)), X * np.arange(D), rtol=1e-6)


def test_heads_of_another_size():
    block = TransformerBlock(HIDDEN, 3, key_dim=5)
    block.build((None, None, D))  # 3 does not divide 8
    assert tuple(block.attention.query_dense.kernel.shape) == (D, 3, 5)
    assert tuple(block.attention.output_dense.kernel.shape) == (3, 5, D)


@pytest.mark.parametrize(
    ("use_bias", "expected"),
    [
        (True, {"query", "key", "value", "attention_output", "intermediate", "output"}),
        ("qkv", {"query", "key", "value"}),
        (False, set()),
    ],
)
def test_biases(use_bias, expected):
    block = made(use_bias=use_bias, norm="rms")
    found = {w.path.split("/")[-2] for w in block.weights if w.path.endswith("bias")}
    assert found == expected
    assert numpy(block(X)).shape == X.shape


def test_parts_of_ones_own():
    attention = MultiHeadAttention(H, 3, pattern="causal", name="own")
    block = made(None, attention=attention, feed_forward=FeedForward(6, "quick_gelu"))
    assert block.attention is attention
    x = start()
    x = block.attention_norm(x + attention(x, query_mask=MASK))
    assert_is(block, block.feed_forward_norm(x + block.feed_forward(x)))
    block = TransformerBlock(None, H, causal=True, feed_forward=FeedForward(6, "relu_squared"))
    whole = numpy(block(X))
    cache = block.make_cache(B, T)
    first, cache = block(X[:, :2], cache=cache)
    rest, cache = block(X[:, 2:], cache=cache)
    found = np.concatenate([numpy(first), numpy(rest)], axis=1)
    np.testing.assert_allclose(found, whole, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("gelu_tanh", lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
        ("quick_gelu", lambda x: x / (1 + np.exp(-1.702 * x))),
        ("relu_squared", lambda x: np.maximum(x, 0) ** 2),
    ],
)
def test_activations_are_their_equations(name, function):
    layer = FeedForward(6, name, use_bias=False)
    layer.build((None, D))
    hidden = function(X @ numpy(layer.intermediate_dense.kernel))
    np.testing.assert_allclose(
        numpy(layer(X)), hidden @ numpy(layer.output_dense.kernel), atol=1e-5
    )


class Mean(keras.layers.Layer):
    """As attention is called, with more arguments than its shapes need."""

    def call(self, x, query_mask, training, **others):
        return keras.ops.mean(x, axis=1, keepdims=True) + keras.ops.zeros_like(x)

    def compute_output_spec(self, x):
        return x


def test_attention_of_other_classes_in_functional_models():
    symbols = keras.Input((5, 8))
    block = TransformerBlock(16, 2, attention=Mean())
    model = keras.Model(symbols, block(symbols))
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    np.testing.assert_allclose(numpy(model(x)), numpy(block(x)), atol=1e-6)
    with pytest.raises(ValueError, match="must be boolean"):
        block(symbols, attention_mask=np.full((5, 5), -1e9))
