"""Layers against their equations in float64 NumPy, with random weights.

Padding, pieces, gradients and dtypes of the same layers are in `tests/contract`. What has slots is
in `tests/fuzz`.
"""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.feature_maps import RandomFeatures, ReluFeatures
from tests.arrays import built, close, random, wide
from tests.compiled import call
from tests.definition import sigmoid, softmax

B, T, D, H, K, V = 2, 9, 8, 2, 4, 3
X, MEMORY = random(B, T, D), random(B, 5, 6, seed=1)
CAUSAL = np.tri(T, dtype=bool)


# Parts of equations. `w` has a layer's weights in float64, by their paths within it.


def named(layer):
    return {weight.path.split("/", 1)[1]: wide(weight) for weight in layer.weights}


def dense(w, name, x):
    return np.tensordot(x, w[f"{name}/kernel"], 1) + w.get(f"{name}/bias", 0.0)


def heads(w, x):
    """Query, key and value, (B, T, H, ·)."""
    return [dense(w, name, x) for name in ("query", "key", "value")]


def products(query, key):
    return np.einsum("bthk,bshk->bhts", query, key) / np.sqrt(query.shape[-1])


def weighted(weights, value):
    return np.einsum("bhts,bshv->bthv", weights, value)


def joined(w, combined):
    """The output of heads (B, T, H, V)."""
    bias = w.get("attention_output/bias", 0.0)
    return np.tensordot(combined, w["attention_output/kernel"], 2) + bias


def rms(x, scale, epsilon=1e-6):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon) * scale


def silu(x):
    return x * sigmoid(x)


# Linear time


def linear(layer, w, x):
    """Katharopoulos et al. 2020, equation 4; with features of relu, Choromanski et al. 2021."""
    query, key, value = heads(w, x)
    if (features := layer.feature_map).name.startswith("relu"):
        vectors = wide(features.vectors)
        root, small = np.sqrt(vectors.shape[1]), features.epsilon
        query, key = (np.maximum(y @ vectors, 0) / root + small for y in (query, key))
    else:
        query, key = (np.where(y > 0, y + 1, np.exp(y)) for y in (query, key))
    weights = np.einsum("bthk,bshk->bhts", query, key) * (CAUSAL if layer.causal else 1)
    weights = weights / weights.sum(-1, keepdims=True)
    return joined(w, weighted(weights, value)), weights


def favor(layer, w, x, seen=CAUSAL):
    """Choromanski et al. 2021: the logarithm of each pair's sum over features."""
    query, key, value = heads(w, x)
    vectors = wide(layer.feature_map.vectors)
    query, key = (
        y @ vectors - np.square(y).sum(-1, keepdims=True) / 2
        for y in (head * head.shape[-1] ** -0.25 for head in (query, key))
    )
    logits = np.logaddexp.reduce(query[:, :, None] + key[:, None], axis=-1)
    weights = softmax(np.where(seen, logits.transpose(0, 3, 1, 2), -np.inf))
    return joined(w, weighted(weights, value)), weights


def gated(layer, w, x, combined):
    normalized, gate = rms(combined, w["head_norm/scale"]), dense(w, "gate", x)
    return joined(w, normalized * (silu if layer.gate_activation == "silu" else sigmoid)(gate))


def retention(layer, w, x):
    """Sun et al. 2023, equations 5 to 8."""
    query, key, value = heads(w, x)
    ages = np.subtract.outer(np.arange(T), np.arange(T))
    decays = np.reshape(layer.decays, (H, 1, 1)) ** np.abs(ages) * CAUSAL
    return gated(layer, w, x, weighted(products(query, key) * decays, value))


def convolved(w, x):
    """Heads, each token's the sum of itself and those before it by kernels, where there are any."""
    for name, y in zip(("query", "key", "value"), heads(w, x), strict=True):
        kernel = w.get(f"{name}_conv_kernel", np.ones((1, 1, 1)))
        before = np.pad(y, [(0, 0), (len(kernel) - 1, 0), (0, 0), (0, 0)])
        yield sum(of * before[:, n : n + T] for n, of in enumerate(kernel))


def recurrence(query, key, value, decay, rate=None):
    """The outputs of a state (B, H, K, V), of which the delta rule removes what it has of a key.

    It decays first, which is another order where features have decays of their own.
    """
    state, outputs = np.zeros((B, H, K, V)), []
    for t in range(T):
        k, v = key[:, t, ..., None], value[:, t, :, None]
        state = decay[:, t, ..., None] * state
        if rate is not None:
            beta = rate[:, t, ..., None]
            state, v = state - beta * k @ (k.swapaxes(-1, -2) @ state), beta * v
        state = state + k * v
        outputs.append(np.einsum("bhk,bhkv->bhv", query[:, t], state) / np.sqrt(K))
    return np.stack(outputs, 1)


def gated_linear(layer, w, x):
    """Yang et al. 2024a."""
    found = convolved(w, x)
    query, key, value = map(silu, found) if layer.conv_kernel_size else found
    decay = sigmoid(dense(w, "decay", dense(w, "decay_in", x))) ** (1 / layer.decay_temperature)
    return gated(layer, w, x, recurrence(query, key, value, decay))


def delta(layer, w, x):
    """Yang et al. 2024b; with states that may change their signs, Grazzi et al. 2025."""
    query, key, value = map(silu, convolved(w, x))
    query, key = (
        np.repeat(y / np.sqrt(np.sum(y**2, -1, keepdims=True) + layer.epsilon), H // y.shape[2], 2)
        for y in (query, key)
    )
    decay = np.ones((B, T, H, 1))
    if layer.use_decay:
        scale, bias = (w[f"decay_{name}"].reshape(H, -1) for name in ("scale", "bias"))
        projected = dense(w, "decay", dense(w, "decay_in", x) if layer.decay_rank else x)
        decay = np.exp(-np.exp(scale) * np.log1p(np.exp(projected + bias)))
    rate = layer.max_rate * sigmoid(dense(w, "rate", x))
    found = recurrence(query, key, value, decay, rate)
    return gated(layer, w, x, found)


def linformer(layer, w, x):
    """Wang et al. 2020, equation 7."""
    query, key, value = heads(w, x)
    kernel = w["sequence_kernel"][..., :T]
    key, value = (
        np.einsum("hrs,bshk->brhk", np.broadcast_to(kernel[n], (H, 4, T)), y)
        for n, y in ((0, key), (-1, value))
    )
    return joined(w, weighted(softmax(products(query, key)), value))


def nystrom(layer, w, x):
    """Xiong et al. 2021, equations 13 to 15, and a convolution of values."""
    query, key, value = heads(w, x)
    segments = [np.arange(T) * 4 // T == n for n in range(4)]
    landmarks = (np.stack([y[:, of].mean(1) for of in segments], 1) for y in (query, key))
    few_queries, few_keys = landmarks
    matrix, unit = softmax(products(few_queries, few_keys)), np.eye(4)
    norms = np.abs(matrix).sum(-2).max(-1) * np.abs(matrix).sum(-1).max(-1)
    inverse = np.swapaxes(matrix, -1, -2) / norms[..., None, None]
    for _ in range(6):
        product = matrix @ inverse
        inverse = inverse @ (13 * unit - product @ (15 * unit - product @ (7 * unit - product))) / 4
    weights = softmax(products(query, few_keys)) @ inverse @ softmax(products(few_queries, key))
    around = np.pad(value, [(0, 0), (1, 1), (0, 0), (0, 0)])
    kernel = w.get("conv_kernel", np.zeros((3, H)))
    added = sum(kernel[n, :, None] * around[:, n : n + T] for n in range(3))
    return joined(w, weighted(weights, value) + added)


# Heads of presets


def latent(layer, w, x):
    """DeepSeek-AI 2024, with rotary positions of pairs of neighbors, causal."""
    size = layer.rope_dim
    angles = np.arange(T)[:, None, None] * 10000.0 ** (-np.arange(0, size, 2) / size)

    def rotated(x):
        even, odd = x[..., ::2], x[..., 1::2]
        pairs = (
            even * np.cos(angles) - odd * np.sin(angles),
            even * np.sin(angles) + odd * np.cos(angles),
        )
        return np.stack(pairs, axis=-1).reshape(x.shape)

    queries = x
    if layer.query_latent_dim is not None:
        queries = rms(dense(w, "query_latent", x), w["query_latent_norm/scale"])
    query, down = dense(w, "query", queries), dense(w, "latent", x)
    shared = rotated(down[:, :, None, :size])
    key, value = (
        dense(w, name, rms(down[..., size:], w["latent_norm/scale"])) for name in ("key", "value")
    )
    query = np.concatenate([rotated(query[..., :size]), query[..., size:]], axis=-1)
    key = np.concatenate([np.repeat(shared, key.shape[2], axis=2), key], axis=-1)
    weights = softmax(np.where(CAUSAL, products(query, key), -np.inf))
    return joined(w, weighted(weights, value))


def differential(layer, w, x):
    """Ye et al. 2024, causal, with two query heads for each pair of key heads."""
    query, key, value = heads(w, x)
    # Of pairs of heads, the first are all first maps of a group, and the second all second ones.
    query = query.reshape(B, T, -1, 2, 2, query.shape[-1])
    key, value = (np.repeat(y.reshape(B, T, -1, 2, y.shape[-1]), 2, axis=2) for y in (key, value))
    start = 0.8 - 0.6 * np.exp(-0.3 * (layer.depth - 1))
    first, second = np.exp(np.sum(w["lambda_query"] * w["lambda_key"], axis=-1))
    maps = [
        softmax(np.where(CAUSAL, products(query[:, :, :, n].reshape(B, T, 4, -1), key[:, :, :, n]),
                         -np.inf)) for n in range(2)
    ]  # fmt: skip
    weights = maps[0] - (first - second + start) * maps[1]
    combined = weighted(weights, value.reshape(B, T, 4, -1))
    combined = rms(combined, w["head_norm/scale"], 1e-5) * (1 - start)
    return joined(w, combined), weights


def longformer(layer, w, x):
    """Beltagy et al. 2020: a window of one token on each side, and two global tokens."""
    i, j = np.ogrid[:T, :T]
    seen = (np.abs(i - j) <= 1) | (i < 2) | (j < 2)
    of = []
    for prefix in ("", "global_"):
        query, key, value = (dense(w, f"{prefix}{n}", x) for n in ("query", "key", "value"))
        key, value = (np.repeat(y, 2, axis=2) for y in (key, value))
        weights = softmax(np.where(seen, products(query, key), -np.inf))
        of.append((weighted(weights, value), weights))
    weights = np.where(i < 2, of[1][1], of[0][1])
    return joined(w, np.where(i[..., None] < 2, of[1][0], of[0][0])), weights


# Pooling, pointers, networks


def pooling(layer, w, x):
    queries = np.repeat(w["query"].reshape(1, -1, D), B, axis=0)
    query, key, value = queries[:, :, None], x[:, :, None], x[:, :, None]
    if layer.key_dim:
        query, key, value = (
            dense(w, f"attention/{name}", y).reshape(B, y.shape[1], layer.num_heads, -1)
            for name, y in (("query", queries), ("key", x), ("value", x))
        )
    weights = softmax(products(query, key))
    combined = weighted(weights, value).reshape(B, queries.shape[1], -1)
    return combined if layer.num_queries else combined[:, 0], weights


def feed_forward_attention(layer, w, x):
    """Raffel & Ellis 2015, equations 5 to 7."""
    w = {path.rsplit("/", 1)[1]: weight[0] for path, weight in w.items()}
    hidden = x @ w["kernel"] + w["bias"]
    hidden = np.tanh(hidden) if layer.activation is keras.activations.tanh else hidden
    scores = hidden @ w["v"] if "v" in w else hidden[..., 0]
    return np.einsum("bs,bsd->bd", softmax(scores), x)


def pointer(layer, w, query, memory):
    """Vinyals et al. 2015, equation 3."""
    w = {path.rsplit("/", 1)[1]: weight[0] for path, weight in w.items()}
    hidden = (query @ w["query_kernel"])[:, :, None] + (memory @ w["key_kernel"])[:, None]
    return np.tanh(hidden + w["bias"]) @ w["v"]


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": silu,
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
}


def network(layer, w, x):
    activation = ACTIVATIONS[layer.activation.__name__]
    hidden = activation(dense(w, "gate" if layer.gated else "intermediate", x))
    hidden = hidden * dense(w, "intermediate", x) if layer.gated else hidden
    return dense(w, "output", hidden)


def norm(layer, w, x):
    return rms(x, w["scale"] + layer.offset, layer.epsilon)


def scaled(layer, w, x):
    return x * w["scale"]


def norm_of_heads(layer, w, x):
    axes = (-2, -1) if layer.together else -1
    x = x - x.mean(axes, keepdims=True) if layer.norm == "layer" else x
    return x / np.sqrt((x**2).mean(axes, keepdims=True) + layer.epsilon) * w["scale"]


def experts(layer, w, x):
    """Position by position."""
    rows = x.reshape(-1, D)
    output = np.zeros_like(rows)
    for n, numbers in enumerate(dense(w, "router", rows)):
        p = sigmoid(numbers) if layer.scoring == "sigmoid" else softmax(numbers)
        groups = (p + w.get("correction_bias", 0)).reshape(layer.num_groups, -1)
        best = np.sort(groups, axis=1)[:, -2:].sum(axis=1)
        preferred = np.where((best >= np.sort(best)[-layer.top_groups])[:, None], groups, -np.inf)
        chosen = np.argsort(-preferred.ravel())[: layer.top_k]
        over = p[chosen].sum() if layer.normalize_weights else 1.0
        for share, e in zip(layer.scale * p[chosen] / over, chosen, strict=True):
            # Those of this expert, named as those of a layer.
            own = {n.replace("_", "/"): m[e] for n, m in w.items() if n.count("_") == 1}
            hidden = dense(own, "intermediate", rows[n])
            if layer.gated:
                gate = dense(own, "gate", rows[n])
                if layer.limit is not None:
                    gate = np.minimum(gate, layer.limit)
                    hidden = np.clip(hidden, -layer.limit, layer.limit)
                hidden = silu(gate) * (hidden + layer.offset)
            else:
                hidden = np.maximum(hidden, 0)
            output[n] += share * dense(own, "output", hidden)
        if layer.shared_dim is not None:
            hidden = silu(dense(w, "shared/gate", rows[n])) * dense(
                w, "shared/intermediate", rows[n]
            )
            gate = sigmoid(rows[n] @ w["shared_gate/kernel"]) if layer.use_shared_gate else 1
            output[n] += gate * dense(w, "shared/output", hidden)
    return output.reshape(x.shape)


def native_sparse(layer, w, x):
    """Yuan et al. 2025, equations 5 to 12, query by query; with ALiBi, if with a position."""
    query, key, value = heads(w, x)
    gates, size, selected = sigmoid(dense(w, "gates", x)), layer.block_size, layer.selected_size
    count, groups = query.shape[2], key.shape[2] // 3
    slopes = 2.0 ** (-8 * np.arange(1, count + 1) / count) * (layer.position is not None)

    def attended(b, t, h, keys, values, at):
        scores = query[b, t, h] @ np.transpose(keys) / np.sqrt(query.shape[-1])
        weights = softmax(scores - slopes[h] * (t - np.array(at)))
        return weights @ values, weights

    def compressed(role, tokens, g):
        into, out = w[f"compress_{role}_in"], w[f"compress_{role}_out"]
        rows = (tokens[:, g] + w[f"compress_{role}_position"][g]).ravel()
        return silu(rows @ into.reshape(len(rows), -1)) @ out

    combined = np.zeros((*query.shape[:3], value.shape[-1]))
    for b, t, g in np.ndindex(*query.shape[:2], groups):
        of_group, own = np.arange(count).reshape(groups, -1)[g], t // selected
        blocks = [range(n, n + size) for n in range(0, t + 2 - size, layer.stride)]
        arrays = ("key", key[b]), ("value", value[b])
        short = [[compressed(role, x[at], g) for at in blocks] for role, x in arrays]
        worth = np.zeros(own + 1)
        for h in of_group if blocks else ():
            output, weights = attended(b, t, h, *short, [at[-1] for at in blocks])
            combined[b, t, h] += gates[b, t, h, 0] * output
            for at, p in zip(blocks, weights, strict=True):
                # Each stride of tokens that two blocks share counts once.
                np.add.at(worth, np.array(at) // selected, p / layer.stride)
        worth[max(0, own - layer.num_near + 1) :] = worth[0] = np.inf
        best = np.argsort(-worth, kind="stable")[: layer.num_selected]
        chosen = [s for s in range(t + 1) if s // selected in best]
        for n, at in ((1, chosen), (2, range(max(0, t + 1 - layer.window), t + 1))):
            for h in of_group:
                keys, values = (x[b, at, n * groups + g] for x in (key, value))
                output = attended(b, t, h, keys, values, at)[0]
                combined[b, t, h] += gates[b, t, h, n] * output
    return joined(w, combined)


# An equation, its layer, arguments of all its cases, and those of each.
SIZES = {"num_heads": H, "key_dim": K, "value_dim": V}
GATED = {"activation": "silu", "gated": True}
GROUPED = {"num_heads": 4, "key_dim": 3, "num_key_value_heads": 2}
LATENT = {"num_heads": 3, "key_dim": K, "rope_dim": 2, "latent_dim": 6, "value_dim": 5}
DEEPSEEK = {
    "use_bias": False, "scoring": "sigmoid", "scale": 2.5, "use_correction_bias": True,
    "num_groups": 4, "top_groups": 2, "shared_dim": 3,
}  # fmt: skip
LAYERS = [
    (linear, ka.LinearAttention, SIZES, {}, {"causal": True},
     {"causal": True, "feature_map": ReluFeatures(6, seed=1, epsilon=0.1)}),
    (favor, ka.LinearAttention, SIZES, {"causal": True, "feature_map": RandomFeatures(16, seed=1)}),
    (retention, ka.Retention, SIZES, {"decays": (0.5, 0.9), "position": None}),
    (gated_linear, ka.GatedLinearAttention, SIZES, {"decay_rank": 3},
     {"conv_kernel_size": 2, "decay_temperature": 2.0}),
    (delta, ka.GatedDeltaNet, SIZES, {}, {"use_decay": False}, {"conv_kernel_size": 4},
     {"num_key_heads": 1, "max_rate": 2.0, "epsilon": 0.1},
     {"use_decay": "features", "decay_rank": 3, "gate_activation": "sigmoid"}),
    (linformer, ka.LinformerAttention, SIZES | {"max_length": 16, "rank": 4}, {},
     {"sharing": "heads"}, {"sharing": "key_value"}),
    (nystrom, ka.NystromAttention, SIZES | {"num_landmarks": 4}, {}, {"conv_kernel_size": 3}),
    (latent, ka.MultiHeadLatentAttention, LATENT, {}, {"use_bias": True, "query_latent_dim": 7}),
    (differential, ka.DifferentialAttention, GROUPED, {"depth": 3, "use_bias": True}),
    (longformer, ka.LongformerAttention, GROUPED, {"window": 1, "num_global": 2, "value_dim": 5}),
    (native_sparse, ka.NativeSparseAttention,
     GROUPED | {"block_size": 2, "stride": 1, "selected_size": 2, "num_selected": 3, "num_near": 1,
                "window": 3, "inputs": (random(B, 19, D),)},
     {"value_dim": 5, "use_bias": False},
     {"position": "alibi", "block_size": 4, "stride": 2, "selected_size": 6, "num_near": 2,
      "num_selected": 4, "window": 1, "inputs": (random(B, 41, D),)}),
    (pooling, ka.AttentionPooling, {}, {}, {"num_queries": 3}, SIZES | {"num_queries": 3}),
    (feed_forward_attention, ka.FeedForwardAttention, {}, {}, {"units": 6},
     {"units": 6, "activation": "linear"}),
    (pointer, ka.PointerHead, {}, {"inputs": (X, MEMORY)}),
    (network, ka.FeedForward, {"intermediate_dim": 16}, {"use_bias": False},
     GATED | {"inputs": (X[:, 0],)},
     {"activation": "gelu_tanh", "gated": True, "use_bias": False, "inputs": (X[None],)},
     {"activation": "quick_gelu", "output_dim": 3},
     {"activation": "relu_squared", "gated": True, "output_dim": 3}),
    (norm, ka.RMSNorm, {}, {"epsilon": 0.01, "offset": 1.0}),
    (scaled, ka.LayerScale, {}, {"value": 0.5}),
    (norm_of_heads, ka.HeadNorm, {}, {"epsilon": 0.01, "norm": "layer"}, {"together": True}),
    # Of one position, the weights of its experts are read; of ten, all experts are computed.
    *((experts, ka.MixtureOfExperts,
       {"num_experts": 8, "top_k": 3, "intermediate_dim": 5, "inputs": (x,)},
       {}, GATED | {"use_bias": False}, GATED | {"limit": 0.5, "offset": 1.0},
       {"normalize_weights": False}, GATED | DEEPSEEK, GATED | DEEPSEEK | {"use_shared_gate": True},
       {"num_groups": 2, "use_correction_bias": True})
      for x in (X[:1, :1], X[0, :3], X[:, :5])),
]  # fmt: skip
CASES = [
    pytest.param(define, cls, always | options, id=f"{define.__name__}-{number}")
    for define, cls, always, *each in LAYERS
    for number, options in enumerate(each)
]


@pytest.mark.parametrize(("define", "cls", "options"), CASES)
def test_it_is_its_equation(define, cls, options):
    inputs = options.get("inputs", (X,))
    layer = built(cls(**{n: x for n, x in options.items() if n != "inputs"}), *shapes(inputs))
    given = {"use_causal_mask": True} if define in (latent, differential) else {}
    expected = define(layer, named(layer), *(x.astype("float64") for x in inputs))
    if isinstance(expected, tuple):
        found = call(layer, *inputs, return_attention_scores=True, **given)
        for one, other in zip(found, expected, strict=True):
            close(wide(one), other, 2e-5)
        expected = expected[0]
    # Without weights of pairs another kernel runs.
    close(wide(call(layer, *inputs, **given)), expected, 2e-5)
    symbols = map(keras.KerasTensor, shapes(inputs))
    assert layer(*symbols, **given).shape == expected.shape


def shapes(arrays):
    return [array.shape for array in arrays]
