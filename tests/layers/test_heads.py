"""Heads beside `tests/fuzz` and their equations: groups, norms, sinks, biases, those of presets."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import Attention, distribution, inspection, ops, positions
from keras_attention.kernels.tiles import strategies
from tests.arrays import built, close, random, run
from tests.arrays import wide as numpy
from tests.compiled import call
from tests.gradients import gradients, weight_gradients

B, T, S, H, K, D = 2, 3, 5, 4, 4, 8
QUERY, VALUE = random(B, T, D), random(B, S, D, seed=1)


def made(layer):
    return built(layer, QUERY.shape, VALUE.shape)


# Norms


def test_qk_norm_of_raw_inputs_ignores_their_size():
    layer = Attention(qk_norm="rms", score="dot")
    layer.build(QUERY.shape, VALUE.shape)
    call = {"return_attention_scores": True}

    def both(query, value):
        return layer(query, value, **call)[1], layer(100 * query, 100 * value, **call)[1]

    # RMSNorm adds an epsilon to the squares.
    close(*run(both, QUERY, VALUE), 1e-4)
    assert len(layer.trainable_variables) == 2


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_qk_norm_has_finite_gradients_at_zero_and_of_huge_heads(kind):
    layer = made(Attention(H, K, qk_norm=kind))
    query = QUERY * np.reshape([0, 1e15], (B, 1, 1)).astype("float32")
    found, of_inputs = weight_gradients(
        layer, lambda *x: keras.ops.square(layer(*x)), [query, VALUE]
    )
    assert all(np.isfinite(gradient).all() for gradient in found + of_inputs)


@pytest.mark.parametrize("policy, large", [("mixed_bfloat16", 1e4), ("mixed_float16", 300)])
def test_qk_norm_is_right_in_mixed_precision(policy, large):
    wide, layer = made(Attention(H, K, qk_norm="rms")), Attention(H, K, qk_norm="rms", dtype=policy)
    layer.build(QUERY.shape, VALUE.shape)
    layer.set_weights(wide.get_weights())
    # The squares of the heads are beyond float16.
    close(numpy(layer(large * QUERY, large * VALUE)) / large, numpy(wide(QUERY, VALUE)), 0.05)


# Sinks and biases


@pytest.mark.parametrize("height", [1e30, -3e38, 3e38])
def test_a_sink_of_any_height_is_finite(height):
    heads = [random(B, n, H, K, seed=n) for n in (T, S, S)]
    sink = np.full((H,), height, "float32")

    def attend(query, key, value, sink):
        return ops.attend(query, key, value, sink=sink, return_attention_scores=True)

    output, weights = run(attend, *heads, sink)
    close(weights.sum(axis=-1), np.full((B, H, T), float(height < 0)))
    assert np.isfinite(output).all()
    found = gradients(lambda *x: keras.ops.square(attend(*x)[0]), [*heads, sink])
    assert all(np.isfinite(gradient).all() for gradient in found)


def test_a_bias_is_not_rounded_in_mixed_precision():
    layer = Attention(dtype="mixed_bfloat16")
    # In bfloat16 these are one number.
    bias = np.broadcast_to(1024 + 0.5 * np.arange(T), (T, T)).astype("float32")
    x = np.zeros((1, T, D), "float32")
    _, weights = layer(x, attention_bias=bias, return_attention_scores=True)
    powers = np.exp(0.5 * np.arange(T))
    close(numpy(weights)[0, 0, 0], powers / powers.sum(), 0.01)


@pytest.mark.parametrize("shape", [(5, 1), (2, 1, 1, 1), (1, 5, 1, 1), (2, 5, 1, 1), (2, 1, 5)])
def test_a_bias_of_any_shape_is_its_broadcast(shape):
    """Keras's `add` on TensorFlow takes one long axis for the features, whichever it is."""
    x, bias = random(2, 5, 5, 3), random(*shape, seed=4)
    full = bias if bias.ndim == 4 else bias[:, None] if bias.ndim == 3 else bias[None, None]
    wide = np.broadcast_to(full, (2, 5, 5, 5)).copy()
    given = {"normalization": "sigmoid"}
    found, expected = (numpy(ops.attend(x, x, x, bias=b, **given)) for b in (full, wide))
    close(found, expected)
    layer = Attention(5, 3, **given)
    close(*(numpy(layer(x[:, :, 0], attention_bias=b)) for b in (bias, wide)))


# Attention along chosen axes does not mix the others

OTHER_ROWS = {
    "batch and free axis": (2, (2, 3, 4, 8), (3, 2, 5, 8)),
    "two free axes": (3, (2, 3, 4, 5, 8), (2, 4, 3, 6, 8)),
    "a free axis to broadcast": (2, (2, 3, 4, 8), (2, 1, 5, 8)),
}


@pytest.mark.parametrize("name", OTHER_ROWS)
def test_rows_of_other_examples_are_not_attended_to(name):
    axes, query_shape, value_shape = OTHER_ROWS[name]
    layer = ka.MultiHeadAttention(2, 3, attention_axes=axes)
    message = r"(Batch sizes|Sizes of axis \d, which is not attended over,) must be equal"
    with pytest.raises(ValueError, match=message):
        layer(keras.KerasTensor(query_shape), keras.KerasTensor(value_shape))
    layer.build(query_shape, query_shape)
    with pytest.raises(ValueError, match=message):
        layer(random(*query_shape), random(*value_shape))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_rows_of_other_examples_are_not_attended_to_where_sizes_are_unknown(jit_compile):
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("nothing to compile")
    query, value = (keras.Input((None, None, None, 8)) for _ in range(2))
    model = keras.Model([query, value], ka.MultiHeadAttention(2, 3, attention_axes=3)(query, value))
    model.compile(jit_compile=jit_compile)
    arrays = [random(2, 3, 4, 5, 8), random(2, 3, 4, 6, 8)]
    close(model.predict(arrays, verbose=0), model(arrays))
    # As many rows, of other axes. Where lengths are unknown, the error is the backend's.
    with pytest.raises(Exception, match=r"must be equal|[Rr]eshape"):
        model.predict([arrays[0], random(2, 4, 3, 6, 8)], verbose=0)


# Heads of presets

X = random(B, 5, D)


def latent(**options):
    return built(ka.MultiHeadLatentAttention(3, 4, 2, 6, 5, use_bias=True, **options), X.shape)


@pytest.mark.any_backend
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_of_a_cache_is_a_latent_and_a_rotated_key_or_two_keys_and_a_value(dtype):
    cache = latent().make_cache(B, 7, dtype=dtype)
    assert cache.pop("index").shape == (B,)
    assert sum(int(np.prod(array.shape)) for array in cache.values()) == B * 7 * (6 + 2)
    assert {keras.backend.standardize_dtype(array.dtype) for array in cache.values()} == {dtype}
    cache = ka.DifferentialAttention(4, 3, num_key_value_heads=2).make_cache(B, 7)
    assert (cache["key"].shape, cache["value"].shape) == ((B, 4, 7, 3), (B, 4, 7, 3))


@pytest.mark.ci
@pytest.mark.parametrize(
    "options",
    [
        {"position": "alibi", "sliding_window": 3},
        {"position": None, "use_gate": True, "use_sink": True},
        {"position": positions.Rotary(dim=2, scaling="dynamic", original_max_length=3, factor=2.0)},
    ],
    ids=["ring", "gate and sink", "dynamic"],
)
def test_a_cache_of_latents_in_pieces_with_options(options):
    layer = latent(**options)
    cache = layer.make_cache(B, 5)
    for first, last in ((0, 3), (3, 4), (4, 5)):
        piece, cache = call(layer, X[:, first:last], cache=cache)
        whole = call(layer, X[:, :last], use_causal_mask=True)
        close(piece, numpy(whole)[:, first:])
    assert numpy(cache["index"]).tolist() == [5, 5]


@pytest.mark.ci
def test_a_quantized_up_projection_is_absorbed():
    layer = latent()
    layer.key_dense.quantize("int8")
    expected = numpy(call(layer, X, use_causal_mask=True))
    output, _ = call(layer, X, cache=layer.make_cache(B, 5))
    # Rows are rounded to eight bits in one form, and not in the other.
    assert np.abs(numpy(output) - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.any_backend
def test_a_seed_draws_two_vectors_of_differential_attention():
    """Equal ones would have equal gradients, and stay equal."""
    layer = ka.DifferentialAttention(2, 4, seed=1)
    layer.build((None, 3, 8))
    assert np.abs(numpy(layer.lambda_query) - numpy(layer.lambda_key)).min() > 1e-4


def test_a_mask_and_a_bias_per_head_are_of_both_differential_attentions():
    layer = built(ka.DifferentialAttention(4, 3, num_key_value_heads=2), X.shape)
    mask = np.random.default_rng(1).random((B, 4, 5, 5)) < 0.6
    scores = numpy(call(layer, X, attention_mask=mask, return_attention_scores=True)[1])
    assert (scores[~mask] == 0).all() and (scores[mask] != 0).mean() > 0.9
    bias = np.where(mask, 0, -1e9).astype("float32")
    rows = mask.any(axis=-1)
    other = numpy(call(layer, X, attention_bias=bias, return_attention_scores=True)[1])
    close(other[rows], scores[rows])


@pytest.mark.parametrize("length", [1, 2, 3, 512])
def test_longformers_of_few_and_of_many_tokens(length):
    """The tiles of windows and global tokens give what all scores do, as many as there are."""
    layer, x = ka.LongformerAttention(2, 4, 16, num_global=2), random(1, length, D)
    expected, weights = call(built(layer, x.shape), x, return_attention_scores=True)
    assert weights.shape == (1, 2, length, length)
    close(numpy(weights).sum(-1), np.ones((1, 2, length)))
    with strategies.using(few=0):
        close(call(layer, x), expected)


def test_global_tokens_that_are_chosen_are_as_the_first():
    """After padding too, with more places than tokens or fewer, and in the caller's order."""
    layer = built(ka.LongformerAttention(2, 4, 1, num_global=2), X.shape)
    expected = call(layer, X, return_attention_scores=True)
    more = built(ka.LongformerAttention(2, 4, 1, num_global=9), X.shape)
    for before, of in ((0, layer), (2, layer), (0, more), (2, more)):
        x = np.pad(X, ((0, 0), (before, 0), (0, 0)), constant_values=np.nan)
        at = np.arange(-before, X.shape[1])[None]
        chosen = (at == 0) | (at == 1) | ((at == 3) & (of is layer))
        given = {"query_mask": at >= 0, "global_mask": chosen}
        output, scores = call(of, x, return_attention_scores=True, positions="tokens", **given)
        close(output[:, before:], expected[0])
        close(scores[:, :, before:, before:], expected[1])


def test_heads_of_longformers_can_be_pruned_and_split_over_devices():
    x = keras.Input((None, D))
    layer = ka.LongformerAttention(4, 3, 1, num_key_value_heads=2, name="layer")
    model = keras.Model(x, layer(x))
    pruned = inspection.prune_heads(model, {"layer": [0, 3]})
    close(pruned(X), inspection.ablate_heads(model, {"layer": [0, 3]})(X))
    mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], ["cpu:0"])
    layouts = distribution.layout_map(mesh, model)
    split = [name for name in layouts if layouts[name].axes[1:2] == ("model",)]
    assert len([name for name in split if name.endswith("/kernel")]) == 6
