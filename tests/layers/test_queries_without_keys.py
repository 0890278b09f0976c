"""Slots that add masks, multipliers or biases, with patterns: queries without keys get exactly 0.

Weights and outputs of all queries are compared with the definition in float64.
"""

import itertools

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import normalizations, patterns
from tests import definition
from tests.arrays import numpy, random

B, T, H, K = 2, 5, 2, 4
X = random(B, T, 8, seed=1)
REAL = np.arange(T) < np.array([[3], [0]])
BIAS = random(B, H, T, T, seed=2)
EARLIER = patterns.SlidingWindow(2, 0) & ~patterns.SlidingWindow(0, 0)
PATTERNS = [
    None,
    patterns.SlidingWindow(1, 1),
    patterns.Strided(2),
    patterns.Block(4),
    patterns.Prefix(2),
    ~patterns.Causal(),
    EARLIER,
    patterns.Block(3) & ~patterns.Dilated(2),
    patterns.Prefix(1) | EARLIER,
]
# Arguments of a layer, and of the definition.
SLOTS = {
    "nothing": ({}, {}),
    "alibi": (
        {"position": "alibi"},
        {
            "bias": -np.array(definition.slopes(H))[:, None, None]
            * abs(np.subtract.outer(*[range(T)] * 2))
        },
    ),
    "a bias": ({"attention_bias": BIAS}, {"bias": BIAS}),
    "a sink": ({"use_sink": True}, {"sink": np.zeros(H)}),
    "a soft cap": ({"logit_soft_cap": 2.0}, {"soft_cap": 2.0}),
    "top_k": ({"normalization": normalizations.TopK(2)}, {"normalization": "top_k"}),
    **{
        name: ({"normalization": name}, {"normalization": name})
        for name in ("sigmoid", "sparsemax", "entmax", "hard")
    },
}


def heads(layer):
    dense = layer.query_dense, layer.key_dense, layer.value_dense
    return [(X @ numpy(d.kernel)).reshape(B, T, H, -1).astype("float64") for d in dense]


def near_center(layer, query, real):
    """The window (B, H, T, S) and the Gaussian of Luong et al. 2015, equations 9 and 10."""
    kernel, vector = numpy(layer.centre_kernel), numpy(layer.centre_vector)
    hidden = np.tanh(np.einsum("bthk,hku->bhtu", query, kernel))
    share = 1 / (1 + np.exp(-np.einsum("bhtu,huo->bhto", hidden, vector)))
    distance = np.arange(real.shape[1]) - share * real.sum(-1)[:, None, None, None]
    return abs(distance) <= layer.window, np.exp(-2 * (distance / layer.window) ** 2)


def check(layer, pattern, causal, padded, in_call, expected):
    if not layer.built:
        layer.build(X.shape)
    real = REAL if padded else np.ones_like(REAL)
    query, key, value = heads(layer)
    mask = real[:, None, None] & real[:, None, :, None]
    pairs = itertools.product(range(T), range(T))
    allowed = [pattern is None or definition.attends(pattern, i, j) for i, j in pairs]
    mask = mask & np.reshape(allowed, (T, T)) & (np.tri(T, dtype=bool) if causal else True)
    multiplier = 1.0
    if getattr(layer, "mode", None) == "predictive":
        near, multiplier = near_center(layer, query, real)
        mask = mask & near
    _, weights = definition.attend(query, key, value, mask=mask, **expected)
    weights = weights * multiplier
    output = np.einsum("bhts,bshv->bthv", weights, value).reshape(B, T, -1)
    given = {"query_mask": REAL} if padded else {}
    found = layer(X, use_causal_mask=causal, return_attention_scores=True, **given, **in_call)
    for ours, right in zip(found, (output, weights), strict=True):
        np.testing.assert_allclose(numpy(ours), right, atol=1e-5)
    lacks = np.broadcast_to(~mask.any(-1), (B, H, T))
    assert not numpy(found[1])[lacks].any() and not numpy(found[0])[lacks.all(1)].any()
    # Without weights another kernel may run.
    alone = layer(X, use_causal_mask=causal, **given, **in_call)
    np.testing.assert_allclose(numpy(alone), output, atol=1e-5)
    assert not numpy(alone)[lacks.all(1)].any()
    return lacks.any()


@pytest.mark.parametrize("name", SLOTS)
def test_of_slots(name):
    options, expected = SLOTS[name]
    in_call = {k: v for k, v in options.items() if k == "attention_bias"}
    options = {k: v for k, v in options.items() if k not in in_call}
    lacks = []
    # Of those that add none, some.
    few = {"normalization", "use_sink", "logit_soft_cap"} & options.keys()
    for pattern in PATTERNS[1::3] if few else PATTERNS:
        layer = ka.Attention(H, K, pattern=pattern, **options)
        for causal, padded in ((False, False), (True, False), (True, True)):
            lacks.append(check(layer, pattern, causal, padded, in_call, expected))
    assert 0 < sum(lacks) < len(lacks)


@pytest.mark.parametrize(
    "mode, use_sink", [("monotonic", False), ("predictive", False), ("predictive", True)]
)
def test_of_local_attention(mode, use_sink):
    """A sink takes its share before the Gaussian."""
    expected = {"sink": random(H, seed=9)} if use_sink else {}
    for pattern in PATTERNS[::3] if use_sink else PATTERNS:
        layer = ka.LocalAttention(
            1, mode, H, K, score="scaled_dot", pattern=pattern, use_sink=use_sink
        )
        layer.build(X.shape)
        if use_sink:
            layer.sink.assign(expected["sink"])
        if mode == "predictive":
            # The centers of glorot's would all lie near the middle.
            layer.centre_kernel.assign(2 * random(H, K, K, seed=3))
            layer.centre_vector.assign(2 * random(H, K, 1, seed=4))
        else:
            window = patterns.SlidingWindow(1, 1)
            pattern = window if pattern is None else window & pattern
        for causal, padded in itertools.product((False, True), (False, True)):
            check(layer, pattern, causal, padded, {}, expected)


def test_windows_without_projections():
    memory = random(B, 9, 8, seed=5)
    layer = ka.LocalAttention(2, score="dot")
    heads = [x[:, :, None] for x in (X, memory, memory)]
    for shift in (0, 3):
        at = np.arange(T) + shift
        near = np.abs(at[:, None] - np.arange(9)) <= 2
        found = layer(X, memory, positions=(at, None), return_attention_scores=True)
        output, weights = definition.attend(*heads, score="dot", mask=near)
        np.testing.assert_allclose(numpy(found[0]), output[:, :, 0], atol=1e-5)
        np.testing.assert_allclose(numpy(found[1]), weights, atol=1e-6)
    layer = ka.LocalAttention(2, "predictive", score="dot")
    _, found = layer(X, memory, return_attention_scores=True)
    near, multiplier = near_center(layer, heads[0], np.ones((B, 9), bool))
    _, weights = definition.attend(*heads, score="dot", mask=near)
    np.testing.assert_allclose(numpy(found), weights * multiplier, atol=1e-6)


def test_the_future_stays_hidden_from_a_predicted_window():
    """Also where a caller gives `ops.attend` one array of positions for queries and keys."""
    layer = ka.LocalAttention(2, "predictive")
    _, weights = layer(X, return_attention_scores=True, use_causal_mask=True)
    assert not np.triu(numpy(weights), 1).any()
    x, at = keras.ops.reshape(X, (B, T, H, 4)), keras.ops.arange(T)
    for pattern in PATTERNS[1:]:
        given = dict(query_positions=at, key_positions=at, pattern=pattern & patterns.Causal())
        output, weights = ka.ops.attend(x, x, x, return_attention_scores=True, **given)
        allowed = [[definition.attends(given["pattern"], i, j) for j in range(T)] for i in range(T)]
        assert not numpy(weights)[..., ~np.array(allowed)].any()
        assert not numpy(output)[:, ~np.any(allowed, axis=1)].any()
