"""Multi-head latent attention: its equation and its cache."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import positions
from tests.arrays import built, close, random, wide
from tests.compiled import call

H, K, R, C, V, Q = 3, 4, 2, 6, 5, 7
B, T, D = 2, 5, 8
X = random(B, T, D)
KEPT = np.array([[True] * 5, [False, True, True, True, False]])


def layer(**options):
    return built(ka.MultiHeadLatentAttention(H, K, R, C, V, use_bias=True, **options), X.shape)


def weights(layer):
    """The weights in float64, by the ends of their paths."""
    return {"/".join(w.path.split("/")[-2:]): wide(w) for w in layer.weights}


def rms(x, scale):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale


def rotated(x):
    """Pairs of neighboring features (B, T, …, R) rotated by their positions."""
    angles = np.arange(T)[:, None] * 10000.0 ** (-np.arange(0, R, 2) / R)
    angles = angles.reshape(1, T, *[1] * (x.ndim - 3), R // 2)
    even, odd = x[..., ::2], x[..., 1::2]
    pairs = [
        even * np.cos(angles) - odd * np.sin(angles),
        even * np.sin(angles) + odd * np.cos(angles),
    ]
    return np.stack(pairs, axis=-1).reshape(x.shape)


def definition(w, x, kept, latent_queries):
    """The output in float64 NumPy, one head at a time, causal."""
    x = np.where(kept[..., None], x, 0).astype("float64")
    queries = x
    if latent_queries:
        queries = rms(
            x @ w["query_latent/kernel"] + w["query_latent/bias"], w["query_latent_norm/scale"]
        )
    queries = np.einsum("btd,dhk->bthk", queries, w["query/kernel"])
    down = x @ w["latent/kernel"] + w["latent/bias"]
    shared, latent = rotated(down[..., :R]), rms(down[..., R:], w["latent_norm/scale"])
    allowed = np.tril(np.ones((T, T), "bool")) & kept[:, None]
    output = np.zeros((B, T, D))
    for head in range(H):
        key, value = (latent @ w[f"{name}/kernel"][:, head] for name in ("key", "value"))
        query = queries[:, :, head]
        scores = np.einsum("btr,bsr->bts", rotated(query[..., :R]), shared)
        scores = (scores + query[..., R:] @ key.transpose(0, 2, 1)) / np.sqrt(K + R)
        powers = np.exp(scores) * allowed
        of_head = powers / np.maximum(powers.sum(axis=-1, keepdims=True), 1e-300) @ value
        output += of_head @ w["attention_output/kernel"][head]
    return (output + w["attention_output/bias"]) * kept[..., None]


@pytest.mark.parametrize("latent_queries", [None, Q])
def test_it_is_the_equation(latent_queries):
    found = layer(query_latent_dim=latent_queries)
    output = call(found, X, query_mask=KEPT, value_mask=KEPT, use_causal_mask=True)
    close(wide(output), definition(weights(found), X, KEPT, latent_queries))


@pytest.mark.any_backend
@pytest.mark.parametrize("dtype, size", [("float32", 4), ("bfloat16", 2)])
def test_a_token_of_the_cache_is_a_latent_and_a_rotated_key(dtype, size):
    cache = layer().make_cache(B, T, dtype=dtype)
    assert cache.pop("index").shape == (B,)
    count = sum(int(np.prod(array.shape)) for array in cache.values())
    assert count * size == B * T * (C + R) * size
    assert {keras.backend.standardize_dtype(array.dtype) for array in cache.values()} == {dtype}


@pytest.mark.ci
@pytest.mark.parametrize(
    "options",
    [
        {"position": "alibi", "sliding_window": 3},
        {"position": None, "use_gate": True, "use_sink": True},
        {"position": positions.Rotary(dim=R, scaling="dynamic", original_max_length=3, factor=2.0)},
    ],
    ids=["ring", "gate and sink", "dynamic"],
)
def test_a_cache_in_pieces_with_options(options):
    found, cache, pieces = layer(**options), layer(**options).make_cache(B, T), []
    for first, last in ((0, 3), (3, 4), (4, 5)):
        piece, cache = call(found, X[:, first:last], cache=cache)
        if first:
            whole = call(found, X[:, :last], use_causal_mask=True)
            close(wide(piece), wide(whole)[:, first:])
        pieces.append(piece)
    assert wide(cache["index"]).tolist() == [5, 5]


@pytest.mark.ci
def test_a_quantized_up_projection_is_absorbed():
    found = layer()
    found.key_dense.quantize("int8")
    expected = call(found, X, use_causal_mask=True)
    output, _ = call(found, X, cache=found.make_cache(B, T))
    # Rows are rounded to eight bits in one form, and not in the other.
    assert np.abs(wide(output) - wide(expected)).max() < 0.1 * np.abs(wide(expected)).max()
