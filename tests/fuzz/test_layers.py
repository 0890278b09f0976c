"""Layers in any configuration: outputs, weights and gradients against float64 NumPy."""

import dataclasses
import math

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies as st

import keras_attention as ka
from keras_attention import normalizations, patterns, positions
from tests import definition
from tests.fuzz import campaign, configurations
from tests.fuzz.configurations import choice, drawn
from tests.gradients import weight_gradients

POSITIONS = {
    "none": lambda: None,
    "rotary": positions.Rotary,
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
    "of itself alone": (ka.AtrousSelfAttention, {"rate": 40}, patterns.SlidingWindow(0, 0)),
    "of all neighbors": (ka.LocalSelfAttention, {"neighbors": 50}, None),
    "of every key": (ka.SparseSelfAttention, {"rate": 1}, None),
    "SparseSelfAttention": (
        ka.SparseSelfAttention,
        {"rate": 2, "causal": True},
        patterns.Strided(2) & patterns.Causal(),
    ),
    "raw": (ka.Attention, {"num_heads": 1, "key_dim": None, "value_dim": None}, None),
    "near": (ka.LocalAttention, {"window": 1}, patterns.SlidingWindow(1, 1)),
    "predictive": (ka.LocalAttention, {"window": 1, "mode": "predictive"}, None),
    "TransformerBlock": (ka.TransformerBlock, {}, None),
    "causal block": (
        ka.TransformerBlock,
        {"causal": True, "normalize_first": True, "norm": "rms", "gated": True},
        patterns.Causal(),
    ),
    "decoder": (
        ka.TransformerBlock,
        {"causal": True, "cross_attention": True, "normalize_first": True},
        patterns.Causal(),
    ),
    "set": (ka.TransformerBlock, {"cross_attention": True, "self_attention": False}, None),
}
FEATURES = 8


@dataclasses.dataclass(frozen=True, repr=False)
class Call(configurations.Configuration):
    """A layer and a call of it.

    `keys=None` attends to the queries themselves; in a block with a context, to 4 keys of that.
    """

    # A predicted window has edges, and a set's block no pattern and no position.
    layer: str = choice(*(name for name in LAYERS if name not in ("predictive", "set")))
    batch: int = choice(2, 2, 1)
    queries: int = choice(5, 9, 2, 1)
    keys: int | None = choice(None, None, 9, 5, 1)
    heads: tuple = choice(
        (2, 2), *(heads for heads in configurations.HEADS if FEATURES % heads[0] == 0)
    )
    key_dim: int = choice(4, 2)
    value_dim: int = choice(4, 3)
    score: str = choice(*["scaled_dot"] * 6, *configurations.SCORES)
    normalization: str = choice(*["softmax"] * 5, "sigmoid", "sparsemax")
    pattern: object = drawn(None, configurations.maybe(configurations.PATTERNS))
    position: str = choice(*POSITIONS)
    qk_norm: object = choice(False, False, "rms", "layer")
    clip: float | None = choice(None, None, None, 0.7)
    soft_cap: float | None = choice(None, None, 2.0)
    sink: bool = choice(False, True)
    query_mask: bool = choice(False, True)
    key_mask: bool = choice(False, True)
    attention_mask: str | None = choice(None, None, "TS", "BTS", "BHTS")
    causal: bool = choice(False, True)
    bias: str | None = choice(None, None, "TS", "BTS", "BHTS", "B11S")
    moved: bool = choice(False, True)
    segments: bool = choice(False, True)
    with_scores: bool = choice(False, True)
    garbage: float | None = choice(None, None, np.nan, np.inf, 1e38)
    dtype: str = choice(*["float32"] * 5, "mixed_bfloat16")
    seed: int = drawn(0, st.integers(0, 2**16))


CALLS = Call.by_chance()


def made(call):
    """The layer of a call, or an unsatisfied assumption where what is drawn is refused."""
    cls, arguments, _ = LAYERS[call.layer]
    heads, groups = call.heads if "num_heads" not in arguments else (1, 1)
    of_top_k = call.normalization == "top_k"
    options = {
        "num_heads": heads,
        "key_dim": call.key_dim,
        "score": configurations.SCORES[call.score](),
        "normalization": normalizations.TopK(2) if of_top_k else call.normalization,
        "pattern": call.pattern,
        "position": POSITIONS[call.position](),
        "num_key_value_heads": groups,
        "qk_norm": call.qk_norm,
        "clip_qkv": call.clip,
        "logit_soft_cap": call.soft_cap,
        "use_sink": call.sink and call.normalization == "softmax",
        "dtype": call.dtype,
        "value_dim": call.value_dim,
        **arguments,
    }
    if cls is ka.TransformerBlock:
        del options["value_dim"]
        options |= {"intermediate_dim": 6, "key_dim": None}
    try:
        return cls(**options)
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
    """Compares a call with the definition, and returns which keys (B, H, T, S) queries see."""
    c, random = call, configurations.Random(call.seed)
    layer = made(c)
    block = isinstance(layer, ka.TransformerBlock)
    context = block and layer.cross_attention
    itself = c.keys is None or block or isinstance(layer, ka.SelfAttention)
    keys = c.queries if itself else c.keys
    heads = layer.num_heads
    sizes = {"B": c.batch, "H": heads, "T": c.queries, "S": keys, "1": 1}
    inputs = [random.normal(c.batch, c.queries, FEATURES)]
    if context or not itself:
        inputs.append(random.normal(c.batch, 4 if c.keys is None else c.keys, FEATURES))
    layer.build(*(x.shape for x in inputs))
    configurations.fill(layer, random)

    given, allowed = {}, np.ones((c.batch, heads, c.queries, keys), bool)
    kept = np.ones((c.batch, c.queries), bool)
    seen = np.ones(inputs[-1].shape[:2], bool)
    if c.query_mask:
        kept = random.some(0.7, c.batch, c.queries)
        given["mask" if block else "query_mask"] = kept
    if c.key_mask and (context or not block):
        seen = random.some(0.7, *seen.shape)
        given["context_mask" if block else "value_mask"] = seen
    of_keys = kept & seen if itself and not context else kept if itself else seen
    allowed &= of_keys[:, None, None] & kept[:, None, :, None]
    held = inputs
    if c.garbage is not None:
        # What padding holds reaches nothing.
        held = [x.copy() for x in inputs]
        held[0][~kept] = c.garbage
        if len(held) > 1:
            held[1][~seen] = c.garbage
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
        j = i if itself else random.integers(0, 12, c.batch, keys)
        given["positions"] = i if itself else (i, j)
    if c.segments:
        of = [random.integers(0, 2, c.batch, n) for n in (c.queries, keys)]
        of[1] = of[0] if itself else of[1]
        given["segment_ids"] = of[0] if itself else tuple(of)
        allowed &= (of[0][:, :, None] == of[1][:, None])[:, None]
    whole = [c.pattern, LAYERS[c.layer][2]]
    if c.causal and not block:
        given["use_causal_mask"] = True
        whole.append(patterns.Causal())
    for pattern in whole:
        allowed &= configurations.defined_pattern(pattern, i, j)

    names = list(arrays_of(layer))
    hypothesis.assume(c.score != "location" or keys <= configurations.LONGEST)
    # Of two features LayerNorm gives the sign of their difference, which half precision may lose.
    signs = [x for name, x in arrays_of(layer).items() if "query_norm/gamma" in name and x.size < 3]
    hypothesis.assume(c.dtype == "float32" or not signs)

    def defined(weights, *inputs):
        if not block:
            return attention(c, layer, weights, inputs[0], inputs[-1], allowed, bias, i, j, of_keys)
        of_context = seen[:, None, None] & kept[:, None, :, None]
        output, scores = whole_block(c, layer, weights, inputs, allowed, bias, i, j, of_context)
        return output * kept[..., None], scores

    weights = arrays_of(layer)
    wide = [np.asarray(x, "float64") for x in inputs]
    output, expected_scores = defined(weights, *wide)
    upstream = random.normal(*output.shape)
    with_scores = c.with_scores and not context
    upstream_of_scores = random.normal(*expected_scores.shape)

    def ours(*tensors):
        *tensors, times, times_scores = tensors
        found = layer(*tensors, **given, return_attention_scores=with_scores)
        found, scores = found if with_scores else (found, None)
        parts = [keras.ops.cast(found, "float32") * times]
        if with_scores:
            parts.append(keras.ops.cast(scores, "float32") * times_scores)
        return parts

    of_weights, of_arrays = weight_gradients(layer, ours, [*held, upstream, upstream_of_scores])
    tolerance = {"float32": 1e-4, "mixed_bfloat16": 0.1}[c.dtype]
    configurations.close(of_arrays[-2], output, tolerance, "output")
    if with_scores:
        configurations.close(of_arrays[-1], expected_scores, tolerance, "scores")
        assert not of_arrays[-1][~allowed.any(-1)].any()
    if not block:
        assert not of_arrays[-2][~allowed.any((1, 3))].any()
    if c.dtype != "float32" or c.normalization == "hard":
        return allowed

    def loss(*values):
        weights = dict(zip(names, values, strict=False))
        output, scores = defined(weights, *values[len(names) :])
        return (output * upstream).sum() + with_scores * (scores * upstream_of_scores).sum()

    found = [*of_weights, *of_arrays[: len(inputs)]]
    configurations.check_slope(loss, [*weights.values(), *wide], found, random, tolerance)
    return allowed


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
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:]) // size, size)


def attention(c, layer, weights, query, value, allowed, bias, i, j, of_keys=None, prefix=""):
    """The output (B, T, …) and the weights (B, H, T, S)."""
    heads, groups = layer.num_heads, layer.num_key_value_heads

    def projected(name, x, size):
        if size is None:
            return x[:, :, None]
        return split(dense(weights, name, x, prefix), size)

    q = projected("query", query, layer.key_dim)
    k = projected("key", value, layer.key_dim)
    v = projected("value", value, layer.value_dim)
    if c.clip is not None:
        q, k, v = (np.clip(x, -c.clip, c.clip) for x in (q, k, v))
    if c.qk_norm:
        of_layer, epsilon = c.qk_norm == "layer", layer._query_norm.epsilon
        scale = "gamma" if of_layer else "scale"
        q = norm(q, weights[f"{prefix}query_norm/{scale}"], of_layer, epsilon)
        k = norm(k, weights[f"{prefix}key_norm/{scale}"], of_layer, epsilon)
    k, v = (np.repeat(x, heads // groups, axis=2) for x in (k, v))
    given = {}
    distance = j[:, None] - i[:, :, None]
    if c.position == "rotary":
        q, k = definition.rotated(q, i, 0), definition.rotated(k, j, 0)
    elif c.position == "alibi":
        slopes = np.reshape(definition.slopes(heads), (1, heads, 1, 1))
        bias = bias - slopes * np.abs(distance)[:, None]
    elif c.position == "relative_bias":
        table = weights[path_of(weights, prefix, "embeddings")]
        bucket = np.vectorize(lambda d: definition.bucket(int(d), 4, 6, True), otypes=[int])
        bias = bias + table[bucket(distance)].transpose(0, 3, 1, 2)
    elif c.position != "none":
        for side in ("key", "value"):
            path = path_of(weights, prefix, f"{side}_embeddings")
            if path is not None:
                far = weights[path].shape[1] // 2
                moved = weights[path][:, np.clip(distance, -far, far) + far]
                given[f"{side}_offsets"] = moved.transpose(1, 0, 2, 3, 4)
    times = None
    if getattr(layer, "mode", None) == "predictive":
        near, times = near_center(layer.window, weights, q, of_keys)
        allowed = allowed & near
    score = layer.score
    output, found = definition.attend(
        q, k, v, **score_of(score, weights, prefix, heads), bias=bias, mask=allowed,
        normalization=c.normalization, soft_cap=c.soft_cap,
        sink=weights[f"{prefix}sink"] if layer.use_sink else None, **given,
    )  # fmt: skip
    if times is not None:
        found = found * times
        output = np.einsum("bhts,bshv->bthv", found, v)
    if not isinstance(layer, ka.MultiHeadAttention):
        return output.reshape(*output.shape[:2], heads * output.shape[3]), found
    if layer.use_gate:
        output = output / (1 + np.exp(-dense(weights, "gate", query, prefix)))
    kernel = weights[f"{prefix}attention_output/kernel"]
    output = np.tensordot(output, kernel, 2)
    if layer.use_bias:
        # A query without keys has output zero, not the bias.
        has_keys = allowed.any(axis=(1, 3))[..., None]
        output = output + weights[f"{prefix}attention_output/bias"] * has_keys
    return output, found


def near_center(window, weights, query, of_keys):
    """The window (B, H, T, S) and the Gaussian of Luong et al. 2015, equations 9 and 10."""
    hidden = np.tanh(np.einsum("bthk,hku->bhtu", query, weights["centre_kernel"]))
    share = 1 / (1 + np.exp(-np.einsum("bhtu,huo->bhto", hidden, weights["centre_vector"])))
    # Counted among the real keys.
    at = np.cumsum(of_keys, axis=-1)[:, None, None] - 1
    distance = at - share * of_keys.sum(-1)[:, None, None, None]
    return abs(distance) <= window, np.exp(-2 * (distance / window) ** 2)


def path_of(weights, prefix, name):
    """The path of a slot's weight, whatever the name of the slot."""
    found = [p for p in weights if p.startswith(prefix) and p.endswith(f"/{name}")]
    return found[0] if found else None


def score_of(score, weights, prefix, heads):
    """What the definition is told of a score, with these weights instead of its own."""
    folder = f"{prefix}{score.name}/"
    own = {path.removeprefix(folder): x for path, x in weights.items() if path.startswith(folder)}
    return configurations.defined_score(score, heads, own)


def whole_block(c, layer, weights, inputs, allowed, bias, i, j, of_context):
    """A block: one attention or two and the feed-forward network, each with its norm."""
    rms = layer.norm == "rms"
    x, *context = inputs

    def normed(x, name):
        scale = weights[f"{name}/{'scale' if rms else 'gamma'}"]
        offset = 0.0 if rms else weights[f"{name}/beta"]
        return norm(x, scale, not rms, layer.layer_norm_epsilon, offset)

    def attend(x):
        nonlocal found
        output, found = attention(
            c, layer.attention, weights, x, x, allowed, bias, i, j, prefix="attention/"
        )
        return output

    def attend_to_context(x):
        nonlocal found
        alone = dataclasses.replace(c, position="none")
        at = np.arange(x.shape[1])[None], np.arange(context[0].shape[1])[None]
        output, of_it = attention(
            alone, layer.context_attention, weights, x, context[0], of_context, 0.0, *at,
            prefix="context_attention/",
        )  # fmt: skip
        found = of_it if found is None else found
        return output

    def feed_forward(x):
        hidden = dense(weights, "intermediate", x, "feed_forward/")
        if layer.gated:
            hidden = hidden * np.maximum(dense(weights, "gate", x, "feed_forward/"), 0)
        else:
            hidden = np.maximum(hidden, 0)
        return dense(weights, "output", hidden, "feed_forward/")

    found, branches = None, [(feed_forward, "feed_forward_norm")]
    if context:
        branches.insert(0, (attend_to_context, "context_attention_norm"))
    if layer.self_attention:
        branches.insert(0, (attend, "attention_norm"))
    for branch, name in branches:
        x = x + branch(normed(x, name)) if layer.normalize_first else normed(x + branch(x), name)
    return x, found


EARLIER = patterns.SlidingWindow(2, 0) & ~patterns.SlidingWindow(0, 0)
# What is checked in every run: forms of layers, what was found by chance, and slots and options
# beside patterns that leave queries without keys.
ROWS = {
    "raw": Call("raw", keys=9, key_mask=True),
    "raw near": Call("raw", pattern=patterns.SlidingWindow(1, 1), score="dot", moved=True),
    "itself": Call("of itself alone"),
    "neighbors": Call("of all neighbors", causal=True),
    "every key": Call("of every key", pattern=~patterns.Prefix(2)),
    "dilated": Call("SparseSelfAttention", queries=9, pattern=~patterns.Prefix(2)),
    "local": Call("LocalSelfAttention", queries=9, causal=True),
    "near": Call("near", queries=9, query_mask=True, causal=True),
    "predictive": Call("predictive", queries=9, query_mask=True, causal=True),
    "predictive, sink": Call("predictive", queries=9, pattern=EARLIER, sink=True),
    "predictive, context": Call("predictive", keys=9, key_mask=True, heads=(1, 1)),
    "decoder": Call("decoder", query_mask=True, key_mask=True, position="shaw", qk_norm="rms"),
    "decoder, groups": Call("decoder", heads=(4, 2), keys=9, score="general", causal=True),
    "set": Call("set", keys=6, key_mask=True, garbage=np.nan),
    "clipped": Call("MultiHeadAttention", clip=0.4, qk_norm="rms", heads=(4, 2), value_dim=3),
    "alibi": Call(queries=9, position="alibi", pattern=EARLIER, query_mask=True),
    "bias": Call(queries=9, bias="BHTS", pattern=~patterns.Causal(), query_mask=True),
    "nothing": Call(pattern=~patterns.Causal(), causal=True),
    "no keys": Call("MultiHeadAttention", keys=0),
    "sink": Call(queries=9, sink=True, pattern=patterns.Block(3) & ~patterns.Dilated(2),
                 query_mask=True),
    "soft cap": Call(queries=9, soft_cap=2.0, pattern=EARLIER, query_mask=True),
    "top_k": Call(queries=9, normalization="top_k", pattern=EARLIER, query_mask=True),
    "sigmoid": Call(queries=9, normalization="sigmoid", pattern=EARLIER, query_mask=True),
    "sparsemax": Call(queries=9, normalization="sparsemax", pattern=EARLIER, query_mask=True),
    "entmax": Call(queries=9, normalization="entmax", pattern=EARLIER, causal=True),
    "hard": Call(queries=9, normalization="hard", pattern=EARLIER, query_mask=True),
    "Shaw, moved": Call(position="shaw of heads", moved=True),
    "ALiBi, moved": Call(position="alibi", moved=True, heads=(4, 2)),
    "relative bias, moved": Call(position="relative_bias", moved=True, keys=9),
    "rotary, moved": Call(position="rotary", moved=True, keys=9),
    "Shaw of keys": Call("MultiHeadAttention", position="shaw", moved=True, keys=9),
    # A block whose ReLU has a kink at 1e-5 of the point where the gradient is taken.
    "kink": Call("TransformerBlock", queries=9, heads=(4, 2), pattern=~patterns.Dilated(3),
                 qk_norm="rms", query_mask=True, attention_mask="BHTS", moved=True, segments=True,
                 seed=2679),
}  # fmt: skip


NO_CHOICE = "nothing", "itself", "no keys"


@pytest.mark.parametrize("name", ROWS)
def test_rows(name):
    # Several queries have keys to choose between.
    assert (check(ROWS[name]).sum(-1) > 1).sum() > 3 or name in NO_CHOICE
    if keras.backend.backend() != "jax":
        # Without weights another kernel may run.
        check(dataclasses.replace(ROWS[name], with_scores=True))


@campaign.few(tensorflow=25, jax=5, torch=30)
@hypothesis.given(CALLS)
def test_layers(call):
    check(call)


@pytest.mark.slow
def test_layers_for_long():
    campaign.many(check, CALLS)
