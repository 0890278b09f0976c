"""Multi-head latent attention: its equation, its cache, and `transformers`' layer."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import positions
from tests.arrays import close, random, wide
from tests.layers.small_caches import made

H, K, R, C, V, Q = 3, 4, 2, 6, 5, 7
B, T, D = 2, 5, 8
X = random(B, T, D)
KEPT = np.array([[True] * 5, [False, True, True, True, False]])


def layer(**options):
    return made(ka.MultiHeadLatentAttention(H, K, R, C, V, use_bias=True, **options), X.shape)


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
    output = found(X, query_mask=KEPT, value_mask=KEPT, use_causal_mask=True)
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
        piece, cache = found(X[:, first:last], cache=cache)
        if first:
            whole = found(X[:, :last], use_causal_mask=True)
            close(wide(piece), wide(whole)[:, first:])
        pieces.append(piece)
    assert wide(cache["index"]).tolist() == [5, 5]


@pytest.mark.ci
def test_a_quantized_up_projection_is_absorbed():
    found = layer()
    found.key_dense.quantize("int8")
    expected = found(X, use_causal_mask=True)
    output, _ = found(X, cache=found.make_cache(B, T))
    # Rows are rounded to eight bits in one form, and not in the other.
    assert np.abs(wide(output) - wide(expected)).max() < 0.1 * np.abs(wide(expected)).max()


@pytest.mark.ci
@pytest.mark.parametrize("latent_queries", [None, 12])
def test_it_is_the_attention_of_transformers(latent_queries):
    torch = pytest.importorskip("torch")
    deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = deepseek.DeepseekV3Config(
        hidden_size=16, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=latent_queries,
        kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, attention_bias=True,
        attn_implementation="eager",
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.7,
            "original_max_position_embeddings": 16,
        },
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = deepseek.DeepseekV3Attention(config, 0).eval()
    x, mscale = random(2, 7, 16), [0.1 * m * np.log(4.0) + 1 for m in (1.0, 0.7)]
    ours = ka.MultiHeadLatentAttention(
        2, 6, 4, 10, 5, latent_queries, use_bias=True, scale=mscale[1] ** 2 / np.sqrt(10),
        position=positions.Rotary(
            100.0, 4, "interleaved", "yarn", 4.0, 16, attention_factor=mscale[0] / mscale[1]
        ),
    )  # fmt: skip
    ours.build(x.shape)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    given = {name: p.detach().numpy() for name, p in theirs.named_parameters()}

    def first(rotated, x):
        """The features that are rotated, which are last in theirs, before the others."""
        return np.concatenate([x[-rotated:], x[:-rotated]])

    heads = given["q_proj.weight" if latent_queries is None else "q_b_proj.weight"]
    heads = np.stack([first(4, head) for head in heads.reshape(2, 10, -1)])
    up = given["kv_b_proj.weight"].reshape(2, 11, 10).transpose(2, 0, 1)
    values = {
        "query/kernel": heads.transpose(2, 0, 1),
        "key/kernel": up[..., :6],
        "value/kernel": up[..., 6:],
        "latent/kernel": first(4, given["kv_a_proj_with_mqa.weight"]).T,
        "latent/bias": first(4, given["kv_a_proj_with_mqa.bias"]),
        "latent_norm/scale": given["kv_a_layernorm.weight"],
        "attention_output/kernel": given["o_proj.weight"].T.reshape(2, 5, 16),
        "attention_output/bias": given["o_proj.bias"],
    }
    if latent_queries is not None:
        values["query_latent/kernel"] = given["q_a_proj.weight"].T
        values["query_latent/bias"] = given["q_a_proj.bias"]
        values["query_latent_norm/scale"] = given["q_a_layernorm.weight"]
    for weight in ours.weights:
        weight.assign(values.pop("/".join(weight.path.split("/")[-2:])))
    assert not values
    rotary = deepseek.DeepseekV3RotaryEmbedding(config)
    with torch.no_grad():
        tensor = torch.tensor(x)
        angles = rotary(tensor, torch.arange(7)[None])
        mask = torch.triu(torch.full((7, 7), -1e9), 1)[None, None]
        expected = theirs(tensor, position_embeddings=angles, attention_mask=mask)[0].numpy()
    close(wide(ours(x, use_causal_mask=True)), expected)
    close(wide(ours(x, cache=ours.make_cache(2, 7))[0]), expected)
