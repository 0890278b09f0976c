"""Layers in any configuration: outputs, weights and gradients against float64 NumPy."""

import dataclasses

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies as st

import keras_attention as ka
from keras_attention import patterns, positions
from tests import definition
from tests.fuzz import campaign, configurations
from tests.gradients import weight_gradients

POSITIONS = {
    "none": lambda: None,
    "rotary": positions.Rotary,
    "part": lambda: positions.Rotary(dim=2, layout="interleaved", max_wavelength=50.0),
    "alibi": positions.ALiBi,
    "relative_bias": lambda: positions.RelativeBias(4, 6),
    "shaw": lambda: positions.Shaw(2),
    "shaw of heads": lambda: positions.Shaw(3, per_head=True, use_values=False),
}
# What each preset adds to the pattern.
LAYERS = {
    "Attention": (ka.Attention, {}, None),
    "MultiHeadAttention": (ka.MultiHeadAttention, {}, None),
    "gated": (ka.MultiHeadAttention, {"use_gate": True, "output_shape": 5}, None),
    "windowed": (
        ka.MultiHeadAttention,
        {"sliding_window": 3, "use_bias": False},
        patterns.SlidingWindow(2, 2),
    ),
    "SelfAttention": (ka.SelfAttention, {"causal": True}, patterns.Causal()),
    "LocalSelfAttention": (
        ka.LocalSelfAttention,
        {"neighbors": 1, "rate": 2},
        patterns.SlidingWindow(2, 2) & patterns.Dilated(2),
    ),
    "AtrousSelfAttention": (ka.AtrousSelfAttention, {"rate": 2}, patterns.Dilated(2)),
    "SparseSelfAttention": (
        ka.SparseSelfAttention,
        {"rate": 2, "causal": True},
        patterns.Strided(2) & patterns.Causal(),
    ),
    "TransformerBlock": (ka.TransformerBlock, {}, None),
    "causal block": (
        ka.TransformerBlock,
        {"causal": True, "normalize_first": True, "norm": "rms", "gated": True},
        patterns.Causal(),
    ),
}
FEATURES = 8


@dataclasses.dataclass(frozen=True, repr=False)
class Call(configurations.Short):
    """A layer and a call of it. `keys=None` attends to the queries themselves."""

    layer: str = "Attention"
    batch: int = 2
    queries: int = 5
    keys: int | None = None
    heads: tuple = (2, 2)
    key_dim: int = 4
    value_dim: int = 4
    score: str = "scaled_dot"
    normalization: str = "softmax"
    pattern: object = None
    position: str = "none"
    qk_norm: object = False
    soft_cap: float | None = None
    sink: bool = False
    query_mask: bool = False
    key_mask: bool = False
    attention_mask: str | None = None
    causal: bool = False
    bias: str | None = None
    moved: bool = False
    segments: bool = False
    with_scores: bool = False
    garbage: float | None = None
    dtype: str = "float32"
    seed: int = 0


CALLS = st.builds(
    Call,
    layer=st.sampled_from(list(LAYERS)),
    batch=st.sampled_from([2, 2, 1]),
    queries=st.sampled_from([5, 9, 2, 1]),
    keys=st.sampled_from([None, None, 9, 5, 1]),
    heads=st.sampled_from([heads for heads in configurations.HEADS if FEATURES % heads[0] == 0]),
    key_dim=st.sampled_from([4, 2]),
    value_dim=st.sampled_from([4, 3]),
    score=st.sampled_from(["scaled_dot"] * 6 + list(configurations.SCORES)),
    normalization=st.sampled_from(["softmax"] * 5 + ["sigmoid", "sparsemax"]),
    pattern=configurations.maybe(configurations.PATTERNS),
    position=st.sampled_from(list(POSITIONS)),
    qk_norm=st.sampled_from([False, False, "rms", "layer"]),
    soft_cap=st.sampled_from([None, None, 2.0]),
    sink=st.booleans(),
    query_mask=st.booleans(),
    key_mask=st.booleans(),
    attention_mask=st.sampled_from([None, None, "TS", "BTS", "BHTS"]),
    causal=st.booleans(),
    bias=st.sampled_from([None, None, "TS", "BTS", "BHTS", "B11S"]),
    moved=st.booleans(),
    segments=st.booleans(),
    with_scores=st.booleans(),
    garbage=st.sampled_from([None, None, np.nan, np.inf, 1e38]),
    dtype=st.sampled_from(["float32"] * 5 + ["mixed_bfloat16"]),
    seed=st.integers(0, 2**16),
)


def made(call):
    """The layer of a call, or an unsatisfied assumption where what is drawn is refused."""
    cls, arguments, _ = LAYERS[call.layer]
    heads, groups = call.heads
    options = {
        "score": configurations.SCORES[call.score](),
        "normalization": call.normalization,
        "pattern": call.pattern,
        "position": POSITIONS[call.position](),
        "num_key_value_heads": groups,
        "qk_norm": call.qk_norm,
        "logit_soft_cap": call.soft_cap,
        "use_sink": call.sink and call.normalization == "softmax",
        "dtype": call.dtype,
        **arguments,
    }
    try:
        if cls is ka.TransformerBlock:
            return cls(6, heads, **options)
        return cls(heads, call.key_dim, call.value_dim, **options)
    except ValueError as error:
        # A position and a score that do not go together.
        hypothesis.assume("supports only these scores" not in str(error))
        raise


def arrays_of(layer):
    """The weights of a layer in float64, by their paths within it."""
    return {
        variable.path.split("/", 1)[-1]: np.asarray(keras.ops.convert_to_numpy(variable), "float64")
        for variable in layer.trainable_variables
    }


def check(call):
    c, random = call, configurations.Random(call.seed)
    layer = made(c)
    block = isinstance(layer, ka.TransformerBlock)
    alone = c.keys is None or block or isinstance(layer, ka.SelfAttention)
    keys = c.queries if alone else c.keys
    heads, _ = c.heads
    sizes = {"B": c.batch, "H": heads, "T": c.queries, "S": keys, "1": 1}
    inputs = [random.normal(c.batch, c.queries, FEATURES)]
    if not alone:
        inputs.append(random.normal(c.batch, keys, FEATURES))
    layer.build(*(x.shape for x in inputs))
    configurations.fill(layer, random)

    given, allowed = {}, np.ones((c.batch, heads, c.queries, keys), bool)
    kept = np.ones((c.batch, c.queries), bool)
    if c.query_mask:
        kept = random.some(0.7, c.batch, c.queries)
        given["mask" if block else "query_mask"] = kept
        if alone:
            allowed &= kept[:, None, None]
    if c.key_mask and not block:
        given["value_mask"] = random.some(0.7, c.batch, keys)
        allowed &= given["value_mask"][:, None, None]
    held = inputs
    if c.garbage is not None:
        # What padding holds reaches nothing.
        held = [x.copy() for x in inputs]
        held[0][~kept] = c.garbage
        if not alone and c.key_mask:
            held[1][~given["value_mask"]] = c.garbage
    if c.attention_mask:
        mask = random.some(0.7, *(sizes[axis] for axis in c.attention_mask))
        given["attention_mask"] = mask
        allowed &= mask[:, None] if c.attention_mask == "BTS" else mask
    bias = 0.0
    if c.bias:
        bias = random.normal(*(sizes[axis] for axis in c.bias))
        given["attention_bias"] = bias
        bias = bias[:, None] if c.bias == "BTS" else bias
    i, j = (np.broadcast_to(np.arange(n), (c.batch, n)) for n in (c.queries, keys))
    if c.moved:
        i = random.integers(0, 12, c.batch, c.queries)
        j = i if alone else random.integers(0, 12, c.batch, keys)
        given["positions"] = i if alone else (i, j)
    if c.segments:
        of = [random.integers(0, 2, c.batch, n) for n in (c.queries, keys)]
        of[1] = of[0] if alone else of[1]
        given["segment_ids"] = of[0] if alone else tuple(of)
        allowed &= (of[0][:, :, None] == of[1][:, None])[:, None]
    whole = [c.pattern, LAYERS[c.layer][2]]
    if c.causal and not block:
        given["use_causal_mask"] = True
        whole.append(patterns.Causal())
    for pattern in whole:
        allowed &= configurations.defined_pattern(pattern, i, j)
    allowed &= kept[:, None, :, None]

    names = list(arrays_of(layer))
    hypothesis.assume(c.score != "location" or keys <= configurations.LONGEST)
    # Of two features LayerNorm gives the sign of their difference, which half precision may lose.
    signs = [x for name, x in arrays_of(layer).items() if "query_norm/gamma" in name and x.size < 3]
    hypothesis.assume(c.dtype == "float32" or not signs)

    def defined(weights, query, value):
        if not block:
            return attention(c, layer, weights, query, value, allowed, bias, i, j)
        output, scores = whole_block(c, layer, weights, query, allowed, bias, i, j)
        return output * kept[..., None], scores

    weights = arrays_of(layer)
    wide = [np.asarray(x, "float64") for x in inputs]
    output, expected_scores = defined(weights, wide[0], wide[-1])
    upstream = random.normal(*output.shape)
    upstream_of_scores = random.normal(*expected_scores.shape)

    def ours(*tensors):
        *tensors, times, times_scores = tensors
        found = layer(*tensors, **given, return_attention_scores=c.with_scores)
        found, scores = found if c.with_scores else (found, None)
        parts = [keras.ops.cast(found, "float32") * times]
        if c.with_scores:
            parts.append(keras.ops.cast(scores, "float32") * times_scores)
        return parts

    of_weights, of_arrays = weight_gradients(layer, ours, [*held, upstream, upstream_of_scores])
    tolerance = {"float32": 1e-4, "mixed_bfloat16": 0.1}[c.dtype]
    configurations.close(of_arrays[-2], output, tolerance, "output")
    if c.with_scores:
        configurations.close(of_arrays[-1], expected_scores, tolerance, "scores")
    if c.dtype != "float32":
        return

    def loss(*values):
        *weights, query = values[: len(names) + 1]
        output, scores = defined(dict(zip(names, weights, strict=True)), query, values[-1])
        return (output * upstream).sum() + (
            (scores * upstream_of_scores).sum() if c.with_scores else 0.0
        )

    values = [*weights.values(), *wide]
    directions = [np.asarray(random.normal(*x.shape), "float64") for x in values]
    expected = definition.slope(loss, values, directions)
    found = [*of_weights, *of_arrays[: len(inputs)]]
    parts = [np.asarray(g, "float64") * d for g, d in zip(found, directions, strict=True)]
    size = 1.0 + sum(np.abs(part).sum() for part in parts)
    error = abs(sum(part.sum() for part in parts) - expected)
    assert error <= tolerance * size, f"gradients: {error} of {size}"


# The definition of a layer, from its weights by name.


def dense(weights, name, x, prefix=""):
    kernel = weights[f"{prefix}{name}/kernel"]
    bias = weights.get(f"{prefix}{name}/bias", 0.0)
    return np.tensordot(x, kernel, 1) + bias


def norm(x, scale, centered, epsilon, offset=0.0):
    if centered:
        x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * scale + offset


def split(x, size):
    return x.reshape(*x.shape[:2], -1, size)


def attention(c, layer, weights, query, value, allowed, bias, i, j, prefix=""):
    """The output (B, T, …) and the weights (B, H, T, S)."""
    heads, groups = c.heads
    key_dim, value_dim = layer.key_dim, layer.value_dim
    q = split(dense(weights, "query", query, prefix).reshape(*query.shape[:2], -1), key_dim)
    k = split(dense(weights, "key", value, prefix).reshape(*value.shape[:2], -1), key_dim)
    v = split(dense(weights, "value", value, prefix).reshape(*value.shape[:2], -1), value_dim)
    if c.qk_norm:
        epsilon = {"rms": layer._query_norm.epsilon, "layer": layer._query_norm.epsilon}[c.qk_norm]
        scale = {"rms": "scale", "layer": "gamma"}[c.qk_norm]
        q, k = (
            norm(x, weights[f"{prefix}{side}_norm/{scale}"], c.qk_norm == "layer", epsilon)
            for x, side in ((q, "query"), (k, "key"))
        )
    k, v = (np.repeat(x, heads // groups, axis=2) for x in (k, v))
    given = {}
    distance = j[:, None] - i[:, :, None]
    if c.position == "rotary":
        q, k = definition.rotated(q, i, 0), definition.rotated(k, j, 0)
    elif c.position == "part":
        q, k = (
            definition.rotated(x, at, 0, layout="interleaved", dim=2, wavelength=50.0)
            for x, at in ((q, i), (k, j))
        )
    elif c.position == "alibi":
        slopes = np.reshape(definition.slopes(heads), (1, heads, 1, 1))
        bias = bias - slopes * np.abs(distance)[:, None]
    elif c.position == "relative_bias":
        table = weights[path_of(weights, prefix, "embeddings")]
        bucket = np.vectorize(lambda d: definition.bucket(int(d), 4, 6, True), otypes=[int])
        bias = bias + table[bucket(distance)].transpose(0, 3, 1, 2)
    elif c.position != "none":
        for role, name in (
            ("key_offsets", "key_embeddings"),
            ("value_offsets", "value_embeddings"),
        ):
            path = path_of(weights, prefix, name)
            if path is not None:
                table = weights[path]
                far = table.shape[1] // 2
                given[role] = table[:, np.clip(distance, -far, far) + far].transpose(1, 0, 2, 3, 4)
    score = layer.score
    output, found = definition.attend(
        q, k, v, **score_of(score, weights, prefix, heads), bias=bias, mask=allowed,
        normalization=c.normalization, soft_cap=c.soft_cap,
        sink=weights[f"{prefix}sink"] if layer.use_sink else None, **given,
    )  # fmt: skip
    if not isinstance(layer, ka.MultiHeadAttention):
        return output.reshape(*output.shape[:2], -1), found
    if layer.use_gate:
        output = output / (1 + np.exp(-dense(weights, "gate", query, prefix)))
    kernel = weights[f"{prefix}attention_output/kernel"]
    output = np.tensordot(output, kernel, 2)
    if layer.use_bias:
        # A query without keys has output zero, not the bias.
        has_keys = allowed.any(axis=(1, 3))[..., None]
        output = output + weights[f"{prefix}attention_output/bias"] * has_keys
    return output, found


def path_of(weights, prefix, name):
    """The path of a slot's weight, whatever the name of the slot."""
    found = [p for p in weights if p.startswith(prefix) and p.endswith(f"/{name}")]
    return found[0] if found else None


def score_of(score, weights, prefix, heads):
    """What the definition is told of a score, with these weights instead of its own."""
    found = configurations.defined_score(score, heads)
    for name in found.get("weights", ["kernel"] if "matrix" in found else ()):
        path = path_of(weights, f"{prefix}{score.name}", name)
        array = np.repeat(weights[path], heads // len(weights[path]), axis=0)
        if "matrix" in found:
            found["matrix"] = array
        else:
            found["weights"][name] = array
    return found


def whole_block(c, layer, weights, x, allowed, bias, i, j):
    """A block: attention and the feed-forward network, each with its norm."""
    rms = layer.norm == "rms"

    def normed(x, name):
        scale = weights[f"{name}/{'scale' if rms else 'gamma'}"]
        offset = 0.0 if rms else weights[f"{name}/beta"]
        return norm(x, scale, not rms, layer.layer_norm_epsilon, offset)

    def attend(x):
        nonlocal found
        output, found = attention(
            c, layer.attention, weights, x, x, allowed, bias, i, j, "attention/"
        )
        return output

    def feed_forward(x):
        hidden = dense(weights, "intermediate", x, "feed_forward/")
        if layer.gated:
            hidden = hidden * np.maximum(dense(weights, "gate", x, "feed_forward/"), 0)
        else:
            hidden = np.maximum(hidden, 0)
        return dense(weights, "output", hidden, "feed_forward/")

    found = None
    for branch, name in ((attend, "attention_norm"), (feed_forward, "feed_forward_norm")):
        x = x + branch(normed(x, name)) if layer.normalize_first else normed(x + branch(x), name)
    return x, found


@campaign.few(tensorflow=25, jax=5, torch=30)
@hypothesis.given(CALLS)
@hypothesis.example(Call(position="shaw of heads", moved=True))
@hypothesis.example(Call(position="alibi", moved=True, heads=(4, 2)))
@hypothesis.example(Call(position="relative_bias", moved=True, keys=9))
@hypothesis.example(Call(position="part", moved=True, keys=9))
@hypothesis.example(Call(layer="MultiHeadAttention", position="shaw", moved=True, keys=9))
def test_layers(call):
    check(call)


@pytest.mark.slow
def test_layers_for_long():
    campaign.many(check, CALLS)


def test_slopes_beside_a_kink():
    """A block whose ReLU has a kink at 1e-5 of the point where the gradient is taken."""
    check(
        Call(
            layer="TransformerBlock",
            queries=9,
            heads=(4, 2),
            pattern=~patterns.Dilated(3),
            qk_norm="rms",
            query_mask=True,
            attention_mask="BHTS",
            moved=True,
            segments=True,
            seed=2679,
        )
    )
