"""Layers that attend to few vectors made of all tokens, against their equations in float64."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import numpy
from tests.compiled import call
from tests.definition import softmax
from tests.layers.projected import heads, output

B, T, D, H, K, V = 2, 9, 8, 2, 4, 3
X = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")

LAYERS = {
    "linformer": lambda **kwargs: ka.LinformerAttention(H, K, 16, 4, V, **kwargs),
    "linformer-heads": lambda **kwargs: ka.LinformerAttention(
        H, K, 16, 4, V, sharing="heads", **kwargs
    ),
    "linformer-key_value": lambda **kwargs: ka.LinformerAttention(
        H, K, 16, 4, V, sharing="key_value", **kwargs
    ),
    "nystrom": lambda **kwargs: ka.NystromAttention(H, K, 4, V, **kwargs),
    "nystrom-conv": lambda **kwargs: ka.NystromAttention(H, K, 16, V, conv_kernel_size=3, **kwargs),
}


def weights_of(query, key):
    return softmax(np.einsum("bthk,bshk->bhts", query, key) / np.sqrt(K))


@pytest.mark.parametrize("name", [name for name in LAYERS if "linformer" in name])
def test_linformer_is_equation_seven(name):
    layer = LAYERS[name]()
    found = numpy(call(layer, X))
    query, key, value = heads(layer, X)
    kernel = numpy(layer.sequence_kernel).astype("float64")[..., :T]
    of_keys, of_values = (np.broadcast_to(kernel[n], (H, 4, T)) for n in (0, -1))
    key, value = (
        np.einsum("hrs,bshk->brhk", e, x) for e, x in ((of_keys, key), (of_values, value))
    )
    combined = np.einsum("bhtr,brhv->bthv", weights_of(query, key), value)
    np.testing.assert_allclose(found, output(layer, combined), rtol=1e-4, atol=1e-5)


def inverse_by_steps(matrix, steps):
    norms = np.abs(matrix).sum(-2).max(-1) * np.abs(matrix).sum(-1).max(-1)
    found, unit = np.swapaxes(matrix, -1, -2) / norms[..., None, None], np.eye(matrix.shape[-1])
    for _ in range(steps):
        product = matrix @ found
        found = found @ (13 * unit - product @ (15 * unit - product @ (7 * unit - product))) / 4
    return found


def test_nystrom_is_equations_thirteen_to_fifteen():
    layer = LAYERS["nystrom"](use_bias=True)
    found = numpy(call(layer, X))
    query, key, value = heads(layer, X)
    segments = [np.arange(T) * 4 // T == n for n in range(4)]
    few_queries, few_keys = (
        np.stack([x[:, of].mean(1) for of in segments], 1) for x in (query, key)
    )
    inverse = inverse_by_steps(weights_of(few_queries, few_keys), 6)
    weights = weights_of(query, few_keys) @ inverse @ weights_of(few_queries, key)
    expected = output(layer, np.einsum("bhts,bshv->bthv", weights, value))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("score", ["scaled_dot", "general", "additive"])
def test_nystrom_of_all_tokens_is_softmax(score):
    options = {} if score == "scaled_dot" else {"score": score, "num_key_value_heads": 1}
    softmax = ka.MultiHeadAttention(H, K, V, **options)
    expected = numpy(call(softmax, X))
    layer = ka.NystromAttention(H, K, T, V, num_iterations=16, **options)
    layer.build(X.shape)
    layer.set_weights(softmax.get_weights())
    np.testing.assert_allclose(numpy(call(layer, X)), expected, rtol=1e-3, atol=1e-3)


def test_the_convolution_is_added():
    layer = LAYERS["nystrom-conv"]()
    found = numpy(call(layer, X))
    kernel = numpy(layer.conv_kernel)
    value = np.pad(heads(layer, X)[2], [(0, 0), (1, 1), (0, 0), (0, 0)])
    added = sum(kernel[n, :, None] * value[:, n : n + T] for n in range(3))
    layer.conv_kernel.assign(0 * kernel)
    plain = numpy(call(layer, X))
    expected = plain + output(layer, added) - numpy(layer.output_dense.bias)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "given",
    [
        {"use_causal_mask": True},
        {"attention_mask": np.ones((T, T), bool)},
        {"positions": np.arange(T)},
        {"return_attention_scores": True},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_needs_pairs_is_an_error(given):
    with pytest.raises(ValueError, match=f"is not causal. Received: {next(iter(given))}"):
        LAYERS["linformer"]()(X, **given)


def test_it_is_built_of_the_lengths_that_keras_makes_up():
    """As PyTorch's files have them: 83 positions, more than there are columns."""
    layer = ka.LinformerAttention(2, 4, max_length=32, rank=4)
    layer.build_from_config({"input_shape": (83, 83, 16)})
    assert layer(np.zeros((1, 32, 16), "float32")).shape == (1, 32, 16)


def test_flags_that_are_no_booleans():
    """0 is False, for arrays as for symbols."""
    for x in (np.zeros((1, 5, 8), "float32"), keras.Input((5, 8))):
        for layer in (ka.Retention(2, 4), ka.NystromAttention(2, 4)):
            assert layer(x, return_attention_scores=0).shape[1:] == (5, 8)
            with pytest.raises(ValueError, match="Received: return_attention_scores"):
                layer(x, return_attention_scores=1)


def test_symbols_have_as_many_keys_as_arrays():
    """Those of all attended axes, and of no others."""
    layer = ka.LinformerAttention(2, 4, max_length=10, rank=4, attention_axes=(2,))
    assert layer(keras.Input((20, 10, 8))).shape == (None, 20, 10, 8)
    assert layer(np.zeros((1, 20, 10, 8), "float32")).shape == (1, 20, 10, 8)
    for x in (np.zeros((1, 20, 10, 8), "float32"), keras.Input((20, 10, 8))):
        with pytest.raises(ValueError, match=r"max_length=50 keys\. Received: 200"):
            ka.LinformerAttention(2, 4, max_length=50, rank=4)(x)
    unknown = ka.LinformerAttention(2, 4, max_length=50, rank=4)(keras.Input((None, 10, 8)))
    assert unknown.shape == (None, None, 10, 8)
