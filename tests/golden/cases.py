"""One small model for each layer and option, which every release writes to a file.

A case stays as it is for ever, since it also makes the models that weights of old files are loaded
into. What is new has a new case, `since` the release that it will come with.
"""

import dataclasses
import warnings

import keras
import numpy as np

import keras_attention as ka
from keras_attention import (
    generation,
    losses,
    normalizations,
    patterns,
    positions,
    regularizers,
    schedules,
    scores,
)

ops = keras.ops

B, T, S, WIDTH, VOCABULARY = 2, 4, 5, 8, 11


# What a user might have written and registered.


@keras.saving.register_keras_serializable(package="golden")
class Distance(scores.Score):
    """Minus the squared distance of query and key, times a learned number."""

    def __init__(self, start=0.5, **kwargs):
        super().__init__(**kwargs)
        self.start = start

    def build(self, query_shape, key_shape):
        start = keras.initializers.Constant(self.start)
        self.factor_of_heads = self.add_weight(
            name="factor", shape=(query_shape[2],), initializer=start
        )

    def call(self, query, key):
        squares = ops.sum(ops.square(query[:, :, None] - key[:, None]), axis=-1)
        return -ops.transpose(squares * self.factor_of_heads, (0, 3, 1, 2))


@keras.saving.register_keras_serializable(package="golden")
class SmoothReLU(normalizations.Normalization):
    def normalize(self, scores, mask):
        weights = ops.softplus(scores)
        return weights / (1e-3 + ops.sum(weights, axis=-1, keepdims=True))


@keras.saving.register_keras_serializable(package="golden")
class Near(patterns.Pattern):
    def __init__(self, distance):
        self.distance = distance

    def attends(self, i, j):
        return ops.abs(i - j) <= self.distance


@keras.saving.register_keras_serializable(package="golden")
class Nearer(positions.Position):
    def __init__(self, slope=0.3, **kwargs):
        super().__init__(**kwargs)
        self.slope = slope

    def bias(self, i, j, num_heads):
        return -self.slope * ops.cast(ops.abs(i - j), "float32")


@keras.saving.register_keras_serializable(package="golden")
class Peaked(regularizers.Regularizer):
    def __call__(self, weights, mask):
        return -0.01 * ops.mean(ops.max(weights, axis=-1))


# Cases


def outputs(model, inputs):
    """What the model gives, and its losses where it has some."""
    # A `Sequential` has no `input`, and takes one.
    inputs = inputs if isinstance(getattr(model, "input", None), list) else inputs[0]
    found = keras.tree.flatten(model(inputs))
    return found + ([sum(model.losses)] if model.losses else [])


@dataclasses.dataclass(frozen=True)
class Case:
    # Makes the model, and what it is called with.
    make: object
    inputs: tuple
    # What is stored beside the model, and compared when it is loaded.
    run: object = outputs
    # Changes the model once it has its weights, as LoRA and quantization do.
    change: object = None
    # Beside the largest output, where that of the dtype is too strict.
    tolerance: float | None = None
    since: str = "0.1.0"


CASES = {}


def vectors(*features, lengths=(T, S, S)):
    """Random sequences of these features. All but the first row end in zeros, to be masked."""
    rng = np.random.default_rng(len(features))
    arrays = []
    for size, length in zip(features, lengths, strict=False):
        array = rng.normal(size=(B, length, size)).astype("float32")
        array[1:, length - 2 :] = 0
        arrays.append(array)
    return tuple(arrays)


def symbols(*features):
    return [keras.Input((None, size)) for size in features]


def of_layer(name, make, *features, listed=False, since="0.1.0", **call):
    """A case of one layer, made by `make()`, over sequences of these features."""
    features = features or (WIDTH,)

    def model():
        inputs = symbols(*features)
        masked = [keras.layers.Masking()(x) for x in inputs]
        return keras.Model(inputs, make()(*([masked] if listed else masked), **call))

    CASES[name] = Case(model, vectors(*features), since=since)


SCORES = {"return_attention_scores": True}
PROJECTIONS = {
    "kernel_initializer": "he_normal",
    "bias_initializer": "ones",
    "kernel_regularizer": keras.regularizers.L2(0.01),
    "bias_regularizer": keras.regularizers.L1(0.01),
    "activity_regularizer": keras.regularizers.L2(0.02),
    "kernel_constraint": keras.constraints.NonNeg(),
    "bias_constraint": keras.constraints.MaxNorm(3),
}
TABLE = {
    "embeddings_initializer": "ones",
    "embeddings_regularizer": keras.regularizers.L2(0.01),
    "embeddings_constraint": keras.constraints.NonNeg(),
}
KERNEL = {
    "kernel_initializer": "he_normal",
    "kernel_regularizer": keras.regularizers.L2(0.01),
    "kernel_constraint": keras.constraints.NonNeg(),
}
BIAS = {
    "bias_initializer": "ones",
    "bias_regularizer": keras.regularizers.L1(0.01),
    "bias_constraint": keras.constraints.MaxNorm(3),
}
HEADS = {
    "num_key_value_heads": 1,
    "qk_norm": "rms",
    "logit_soft_cap": 5.0,
    "use_sink": True,
    "scores_regularizer": "entropy",
}
# Every argument of `Attention` but the slots.
ALL = {"use_bias": True, "value_dim": 3, "dropout": 0.4, "seed": 3, **PROJECTIONS, **HEADS}


# Scores

of_layer("attention", ka.Attention, 8, 8, listed=True, **SCORES)
of_layer("attention-key", ka.Attention, 8, 6, 8, listed=True, **SCORES)
for name, cls in scores.BUILTIN.items():
    needed = {"reduced_rank": (3,), "location": (9,)}.get(name, ())
    of_layer(
        f"score-{name}-projected",
        lambda cls=cls, needed=needed: ka.Attention(2, 4, score=cls(*needed)),
        8,
        6,
        **SCORES,
    )
for name, make, features in (
    ("scaled_dot", lambda: scores.ScaledDot(scale=0.3), (8, 8)),
    ("cosine", lambda: scores.Cosine(scale=3.0), (8, 8)),
    ("dot", lambda: "dot", (8, 8)),
    ("general", lambda: scores.General(**KERNEL), (8, 6)),
    ("reduced_rank", lambda: scores.ReducedRank(3, **KERNEL), (8, 6)),
    ("additive", lambda: scores.Additive(3, normalize=True, **KERNEL, **BIAS), (8, 6)),
    ("additive-no-bias", lambda: scores.Additive(use_bias=False), (8, 6)),
    ("concat", lambda: scores.Concat(3, **KERNEL), (8, 6)),
    ("location", lambda: scores.Location(9, **KERNEL), (8, 6)),
    ("key_only", lambda: scores.KeyOnly(3, "relu", use_bias=False, **KERNEL, **BIAS), (8, 6)),
    ("key_only-bias", lambda: scores.KeyOnly(3, **BIAS), (8, 6)),
):  # fmt: skip
    of_layer(f"score-{name}", lambda make=make: ka.Attention(score=make()), *features, **SCORES)

# Normalizations

for name in normalizations.BUILTIN:
    of_layer(
        f"normalization-{name}", lambda name=name: ka.Attention(2, 4, normalization=name), 8, 6
    )

of_layer(
    "normalization-hard-temperature",
    lambda: ka.Attention(normalization=normalizations.Hard(temperature=0.5)),
)

# Patterns

for name, pattern in {
    "causal": "causal",
    "sliding_window": patterns.SlidingWindow(1, 0),
    "dilated": patterns.Dilated(2),
    "strided": patterns.Strided(2),
    "prefix": patterns.Prefix(2),
    "block": patterns.Block(2),
    "and": patterns.Causal() & patterns.SlidingWindow(2, 0) & patterns.Block(3),
    "or": patterns.Causal() | patterns.Prefix(2),
    "not": ~patterns.SlidingWindow(0, 1),
    "combined": (patterns.Causal() & ~patterns.Dilated(2)) | patterns.Prefix(1),
}.items():
    of_layer(
        f"pattern-{name}", lambda pattern=pattern: ka.MultiHeadAttention(2, 4, pattern=pattern)
    )

# Positions

YARN = {"scaling": "yarn", "factor": 4.0, "original_max_length": 3}
for name, make in {
    "rotary": lambda: "rotary",
    "rotary-interleaved": lambda: positions.Rotary(100, dim=2, layout="interleaved"),
    "rotary-linear": lambda: positions.Rotary(scaling="linear", factor=2.0),
    "rotary-dynamic": lambda: positions.Rotary(scaling="dynamic", original_max_length=3),
    "rotary-yarn": lambda: positions.Rotary(**YARN),
    "rotary-yarn-all": lambda: positions.Rotary(
        **YARN, beta_fast=8.0, beta_slow=2.0, attention_factor=1.5, truncate=False
    ),
    "alibi": lambda: "alibi",
    "alibi-options": lambda: positions.ALiBi(max_bias=4.0),
    "relative_bias": lambda: "relative_bias",
    "relative_bias-options": lambda: positions.RelativeBias(6, 9, bidirectional=False, **TABLE),
    "shaw": lambda: positions.Shaw(2),
    "shaw-options": lambda: positions.Shaw(2, use_values=False, per_head=True, **TABLE),
}.items():
    of_layer(
        f"position-{name}", lambda make=make: ka.MultiHeadAttention(2, 4, position=make()), 8, 6
    )

# Heads

for name, arguments in {
    "grouped": {"num_heads": 4, "num_key_value_heads": 2},
    "one_key_head": {"num_heads": 4, "num_key_value_heads": 1},
    "rms_norm": {"qk_norm": "rms"},
    "layer_norm": {"qk_norm": "layer"},
    "soft_cap": {"logit_soft_cap": 2.0},
    "sink": {"use_sink": True},
    "bias": {"use_bias": True},
    "value_dim": {"value_dim": 3},
    "doubly_stochastic": {"scores_regularizer": "doubly_stochastic"},
    "doubly_stochastic-options": {
        "scores_regularizer": regularizers.DoublyStochastic(0.5, target=None)
    },
    "entropy": {"scores_regularizer": regularizers.Entropy(-0.1)},
}.items():
    of_layer(
        f"heads-{name}",
        lambda arguments=arguments: ka.Attention(**{"num_heads": 2, "key_dim": 4, **arguments}),
        8,
        6,
        **SCORES,
    )

# Layers

# Slots of presets. Without `key_dim` there are no projections.
SLOTS = {"normalization": "sigmoid", "pattern": patterns.Prefix(3), "position": "alibi"}
for name, make in {
    "self": ka.SelfAttention,
    "local_self": lambda **slots: ka.LocalSelfAttention(neighbors=1, **slots),
    "atrous_self": lambda **slots: ka.AtrousSelfAttention(rate=2, **slots),
    "sparse_self": lambda **slots: ka.SparseSelfAttention(rate=2, **slots),
    "local": lambda **slots: ka.LocalAttention(2, **slots),
    "hard": lambda normalization, **slots: ka.HardAttention(**slots),
    "relative": lambda position, **slots: ka.RelativePositionAttention(3, 2, 2, **slots),
    "multi_head": lambda **slots: ka.MultiHeadAttention(3, 2, score="additive", **slots),
}.items():
    of_layer(f"{name}-slots", lambda make=make: make(**SLOTS))

of_layer(
    "attention-all",
    lambda: ka.Attention(
        2, 4, score="cosine", normalization="softmax", pattern="causal", position="rotary", **ALL
    ),
    8, 6, 8, **SCORES,
)  # fmt: skip
of_layer("multi_head", lambda: ka.MultiHeadAttention(2, 4), 8, 6, 8, **SCORES)
of_layer("multi_head-causal", lambda: ka.MultiHeadAttention(2, 4), use_causal_mask=True)
of_layer("multi_head-no_bias", lambda: ka.MultiHeadAttention(2, 4, use_bias=False), 8, 6)
of_layer("multi_head-value_dim", lambda: ka.MultiHeadAttention(2, 4, value_dim=3), 8, 6)
of_layer("multi_head-output_shape", lambda: ka.MultiHeadAttention(2, 4, output_shape=5), 8, 6)
of_layer("multi_head-output_axes", lambda: ka.MultiHeadAttention(2, 4, output_shape=(2, 3)), 8, 6)
of_layer("multi_head-window", lambda: ka.MultiHeadAttention(2, 4, sliding_window=2))
of_layer("multi_head-gate", lambda: ka.MultiHeadAttention(2, 4, use_gate=True), 8, 6)
of_layer("multi_head-flash", lambda: ka.MultiHeadAttention(2, 4, flash_attention=False), 8, 6)
of_layer(
    "multi_head-all",
    lambda: ka.MultiHeadAttention(
        2, 4, output_shape=(2, 5), attention_axes=(1,), sliding_window=2, flash_attention=False,
        use_gate=True, score="dot", pattern=patterns.Prefix(3), position=positions.Shaw(2),
        **{**ALL, "use_bias": False},
    ),
    8, 6, 4, **SCORES,
)  # fmt: skip
of_layer("self", lambda: ka.SelfAttention(2, 4))
of_layer("self-all", lambda: ka.SelfAttention(2, 4, causal=True, score="general", **ALL), **SCORES)
of_layer("local_self", lambda: ka.LocalSelfAttention(2, 4, neighbors=1))
of_layer(
    "local_self-all",
    lambda: ka.LocalSelfAttention(2, 4, neighbors=1, rate=2, causal=True, position="alibi", **ALL),
)
of_layer("atrous_self", lambda: ka.AtrousSelfAttention(2, 4, rate=2))
of_layer("atrous_self-all", lambda: ka.AtrousSelfAttention(2, 4, rate=2, causal=True, **ALL))
of_layer("sparse_self", lambda: ka.SparseSelfAttention(2, 4, rate=2))
of_layer("sparse_self-all", lambda: ka.SparseSelfAttention(2, 4, rate=2, causal=True, **ALL))
of_layer("local-monotonic", lambda: ka.LocalAttention(1), 8, 6, **SCORES)
of_layer("local-predictive", lambda: ka.LocalAttention(2, "predictive", 2, 4), 8, 6, **SCORES)
of_layer(
    "local-all",
    lambda: ka.LocalAttention(
        2, "predictive", 2, 4, score="dot", units=3, centre_initializer="ones", **ALL
    ),
    8,
    6,
)
of_layer("relative", lambda: ka.RelativePositionAttention(2, 4, 2), 8, 6, **SCORES)
of_layer(
    "relative-all",
    lambda: ka.RelativePositionAttention(
        2, 4, 2, use_values=False, per_head=True, score="dot", **TABLE, **ALL
    ),
    8,
    6,
)
HARD = {name: value for name, value in ALL.items() if name != "use_sink"}
of_layer("hard", lambda: ka.HardAttention(2, 4), 8, 6, **SCORES)
of_layer("hard-reinforce", lambda: ka.HardAttention(2, 4, gradient="reinforce"), 8, 6)
of_layer("hard-all", lambda: ka.HardAttention(2, 4, temperature=0.5, **HARD), 8, 6)
of_layer("pooling", ka.AttentionPooling, **SCORES)
of_layer(
    "pooling-all",
    lambda: ka.AttentionPooling(
        3, 2, 4, 3, score="dot", normalization="sigmoid", dropout=0.2,
        query_initializer="ones", seed=1,
    ),
    **SCORES,
)  # fmt: skip
of_layer("feed_forward_attention", ka.FeedForwardAttention, **SCORES)
of_layer(
    "feed_forward_attention-all",
    lambda: ka.FeedForwardAttention(
        5, "gelu", normalization="sigmoid", dropout=0.2, kernel_initializer="ones", seed=1
    ),
    **SCORES,
)
of_layer("class_token", lambda: ka.ClassToken("ones"))
of_layer("feed_forward", lambda: ka.FeedForward(16))
of_layer(
    "feed_forward-all",
    lambda: ka.FeedForward(
        16, "gelu", gated=True, dropout=0.2, output_dim=5, use_bias=False,
        kernel_initializer="he_normal", bias_initializer="ones", seed=2,
    ),
)  # fmt: skip
of_layer("mixture_of_experts", lambda: ka.MixtureOfExperts(5, 2, 6), since="0.2.0")
of_layer(
    "mixture_of_experts-all",
    lambda: ka.MixtureOfExperts(
        5, 2, 6, "silu", gated=True, use_bias=False, limit=2.0, offset=1.0,
        kernel_initializer="he_normal", bias_initializer="ones",
    ),
    since="0.2.0",
)  # fmt: skip
of_layer("sin_cos", ka.SinCosPositionEmbedding)
of_layer(
    "sin_cos-all",
    lambda: ka.SinCosPositionEmbedding(dim=5, merge_mode="concat", max_wavelength=100),
    start_index=3,
)
of_layer("sin_cos-none", lambda: ka.SinCosPositionEmbedding(dim=5, merge_mode="none"))
of_layer("learned_position", lambda: ka.LearnedPositionEmbedding(9))
of_layer(
    "learned_position-all",
    lambda: ka.LearnedPositionEmbedding(9, dim=5, merge_mode="concat", **TABLE),
)

# Blocks

for name, arguments in {
    "": {},
    "-normalize_first": {"normalize_first": True},
    "-rms": {"norm": "rms", "layer_norm_epsilon": 1e-3},
    "-gated": {"gated": True, "activation": "silu"},
    "-causal": {"causal": True},
    "-score": {"score": "general", "normalization": "sigmoid"},
    "-pattern": {"pattern": patterns.SlidingWindow(1, 1), "position": "relative_bias"},
    "-today": {
        "causal": True, "normalize_first": True, "norm": "rms", "gated": True, "position": "rotary",
        **HEADS,
    },
}.items():  # fmt: skip
    of_layer(
        f"block{name}",
        lambda arguments=arguments: ka.TransformerBlock(16, 2, **arguments),
        **SCORES,
    )
of_layer(
    "block-decoder",
    lambda: ka.TransformerBlock(16, 2, causal=True, cross_attention=True),
    8,
    6,
    **SCORES,
)
of_layer(
    "block-all",
    lambda: ka.TransformerBlock(
        16, 2, dropout=0.3, activation="gelu", layer_norm_epsilon=1e-3, normalize_first=True,
        causal=True, cross_attention=True, gated=True, norm="rms", kernel_initializer="he_normal",
        bias_initializer="ones", seed=3, score="dot", pattern=patterns.SlidingWindow(2, 0),
        position=positions.Shaw(2), **HEADS,
    ),
    8, 6,
)  # fmt: skip


# Recurrent


def of_cell(name, cell, attention, return_state=False, **arguments):
    def model():
        x, memory = symbols(8, 6)
        attends = ka.AttentionCell(cell(), attention(), **arguments)
        rnn = keras.layers.RNN(attends, return_sequences=True, return_state=return_state)
        if arguments.get("return_attention_scores"):
            # The alignments stand behind the output, so that the length must be known.
            memory = keras.Input((S, 6))
        seen = keras.layers.Masking()(memory)
        return keras.Model([x, memory], rnn(x, initial_state=attends.initial_state(seen)))

    CASES[name] = Case(model, vectors(8, 6))


of_cell("cell", lambda: keras.layers.GRUCell(8), lambda: "additive")
of_cell(
    "cell-bahdanau-all",
    lambda: keras.layers.LSTMCell(8),
    lambda: ka.Attention(score=scores.Additive(3)),
    return_state=True,
    attention_dim=5,
    attention_activation="relu",
    return_attention_scores=True,
)
of_cell(
    "cell-luong", lambda: keras.layers.GRUCell(8), lambda: "general", mode="luong", attention_dim=6
)
of_cell(
    "cell-luong-options",
    lambda: keras.layers.StackedRNNCells([keras.layers.GRUCell(4), keras.layers.LSTMCell(6)]),
    lambda: ka.Attention(2, 4, pattern=patterns.SlidingWindow(1, 1), position="rotary"),
    mode="luong",
    input_feeding=False,
    output_context=False,
)
of_cell(
    "cell-output_context",
    lambda: keras.layers.SimpleRNNCell(8),
    lambda: "concat",
    output_context=True,
)


def of_rnn(name, cell, **arguments):
    def model():
        x, memory = symbols(8, 6)
        if cell.get("return_attention_scores"):
            memory = keras.Input((S, 6))
        if arguments.get("unroll"):
            x = keras.Input((T, 8))
        attends = ka.AttentionCell(keras.layers.GRUCell(8), "general", **cell)
        rnn = ka.AttentionRNN(attends, **arguments)
        seen = keras.layers.Masking()(memory)
        return keras.Model([x, memory], keras.tree.flatten(rnn(keras.layers.Masking()(x), seen)))

    CASES[name] = Case(model, vectors(8, 6), since="0.2.0")


of_rnn("rnn", {"mode": "luong", "attention_dim": 6})
of_rnn(
    "rnn-options",
    {"output_context": True, "return_attention_scores": True},
    return_sequences=True,
    return_state=True,
    go_backwards=True,
    unroll=True,
    zero_output_for_mask=True,
)


# Calls with more than sequences


def called():
    """Masks, a bias, positions and segments as inputs of the model."""
    x = keras.Input((None, WIDTH))
    mask = keras.Input((None, None), dtype="bool")
    bias = keras.Input((None, None))
    places = keras.Input((None,), dtype="int32")
    segments = keras.Input((None,), dtype="int32")
    layer = ka.MultiHeadAttention(2, 4, position="rotary")
    found = [
        layer(x, attention_mask=mask, attention_bias=bias),
        layer(x, positions=places, segment_ids=segments),
    ]
    return keras.Model([x, mask, bias, places, segments], found)


CASES["call-arguments"] = Case(
    called,
    (
        *vectors(WIDTH),
        np.random.default_rng(5).random((B, T, T)) < 0.7,
        np.random.default_rng(6).normal(size=(B, T, T)).astype("float32"),
        np.array([[0, 1, 0, 1], [5, 6, 7, 2]], "int32"),
        np.array([[1, 1, 2, 2], [3, 3, 3, 4]], "int32"),
    ),
)


def over_axes():
    x = keras.Input((3, None, WIDTH))
    two = ka.MultiHeadAttention(2, 4, attention_axes=(1, 2), position=positions.RelativeBias(4, 8))
    return keras.Model(x, [ka.MultiHeadAttention(2, 4, attention_axes=2)(x), two(x)])


CASES["multi_head-axes"] = Case(
    over_axes, (np.random.default_rng(7).normal(size=(B, 3, T, WIDTH)).astype("float32"),)
)

# Models

IDS = np.array([[1, 5, 3, 7], [2, 9, 0, 0]], "int32")


def classifier(dtype=None):
    ids = keras.Input((None,), dtype="int32")
    x = ka.ScaledEmbedding(VOCABULARY, WIDTH, mask_zero=True, dtype=dtype, **TABLE)(ids)
    x = ka.SinCosPositionEmbedding(dtype=dtype)(x)
    for normalize_first in (False, True):
        x = ka.TransformerBlock(16, 2, normalize_first=normalize_first, dtype=dtype)(x)
    x = ka.AttentionPooling(num_heads=2, key_dim=4, dtype=dtype)(x)
    return keras.Model(ids, keras.layers.Dense(3, dtype="float32")(x))


def embedded():
    ids = keras.Input((None,), dtype="int32")
    return keras.Model(ids, ka.ScaledEmbedding(VOCABULARY, WIDTH)(ids))


CASES["embedding"] = Case(embedded, (IDS,))
CASES["classifier"] = Case(classifier, (IDS,))
# The last layer gives float32 of what was computed in half precision.
CASES["classifier-mixed_bfloat16"] = Case(
    lambda: classifier(dtype="mixed_bfloat16"), (IDS,), tolerance=0.03
)
CASES["classifier-mixed_float16"] = Case(
    lambda: classifier(dtype="mixed_float16"), (IDS,), tolerance=4e-3
)

for dtype in ("mixed_bfloat16", "mixed_float16", "float16"):
    of_layer(
        f"dtype-{dtype}",
        lambda dtype=dtype: ka.MultiHeadAttention(2, 4, position=positions.Shaw(2), dtype=dtype),
        8,
        6,
        **SCORES,
    )


def language_model():
    """A model of the next token: tied embeddings, blocks of two kinds, cached decoding."""
    ids = keras.Input((None,), dtype="int32")
    embedding = ka.ScaledEmbedding(VOCABULARY, WIDTH, mask_zero=True, name="embedding")
    x = ka.SinCosPositionEmbedding(name="positions")(embedding(ids))
    x = ka.TransformerBlock(16, 2, causal=True, name="block_0")(x)
    x = ka.TransformerBlock(
        16, 2, causal=True, normalize_first=True, norm="rms", gated=True, num_key_value_heads=1,
        position="rotary", pattern=patterns.SlidingWindow(2, 0), name="block_1",
    )(x)  # fmt: skip
    return keras.Model(ids, embedding(x, reverse=True))


def decoded(model, inputs):
    """The logits of all tokens at once, those of pieces with a cache, and a greedy continuation."""
    embedding, places = model.get_layer("embedding"), model.get_layer("positions")
    blocks = [model.get_layer(f"block_{n}") for n in range(2)]

    def read(ids, caches):
        x, after = places(embedding(ids), start_index=caches[0]["index"]), []
        for block, cache in zip(blocks, caches, strict=True):
            x, cache = block(x, cache=cache)
            after.append(cache)
        return embedding(x, reverse=True), after

    def step(tokens, caches):
        logits, caches = read(tokens[:, None], caches)
        return logits[:, 0], caches

    ids = ops.convert_to_tensor(inputs[0])
    start = [block.make_cache(ids.shape[0], 8) for block in blocks]
    found, caches = [model(ids)], start
    for piece in (ids[:, :2], ids[:, 2:3], ids[:, 3:]):
        logits, caches = read(piece, caches)
        found.append(logits)
    _, caches = read(ids[:, :-1], start)
    answer = generation.greedy(step, ids[:, -1], caches, max_tokens=4)
    return [*found, answer.tokens, answer.log_probabilities]


CASES["language_model"] = Case(
    language_model, (np.array([[1, 5, 3, 7], [2, 9, 4, 10]], "int32"),), decoded
)


def translator():
    source, target = symbols(6, 8)
    block = ka.TransformerBlock(
        16, 2, causal=True, cross_attention=True, score="general", name="block"
    )
    return keras.Model([source, target], block(target, keras.layers.Masking(name="seen")(source)))


def translated(model, inputs):
    """The output of all places at once, and of one after the other, with a cache and a memory."""
    source, target = (ops.convert_to_tensor(array) for array in inputs)
    block = model.get_layer("block")
    memory = block.cache_context(model.get_layer("seen")(source))
    found, cache = [model([source, target])], block.make_cache(target.shape[0], target.shape[1])
    for place in range(target.shape[1]):
        output, cache = block(target[:, place : place + 1], memory, cache=cache)
        found.append(output)
    return found


CASES["translator"] = Case(translator, vectors(6, 8, lengths=(S, T)), translated)


def compiled(schedule, loss):
    """With a loss, a schedule and the state of an optimizer from this package and Keras."""
    model = language_model()
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9)
    model.compile(optimizer, loss)
    optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(8)
    for variable in optimizer.variables[2:]:
        variable.assign(rng.normal(size=variable.shape).astype("float32"))
    optimizer.iterations.assign(7)
    return model


def with_optimizer(model, inputs):
    ids, targets = inputs
    logits = model(ids)
    state = [ops.mean(ops.abs(variable)) for variable in model.optimizer.variables[2:]]
    rate = model.optimizer.learning_rate
    return [logits, model.loss(targets, logits), rate, *state]


for name, schedule, loss in (
    ("", lambda: schedules.InverseSquareRoot(8, 10), losses.SmoothedCrossentropy),
    (
        "-options",
        lambda: schedules.InverseSquareRoot(8, 10, scale=2.0),
        lambda: losses.SmoothedCrossentropy(0.2, ignore=-1, reduction="sum", name="smoothed"),
    ),
):
    CASES[f"compiled{name}"] = Case(
        lambda schedule=schedule, loss=loss: compiled(schedule(), loss()),
        (IDS, np.array([[5, 3, 7, -1 if name else 0], [9, 1, 0, 0]], "int32")),
        with_optimizer,
    )


def reinforced(**arguments):
    x, reward = keras.Input((None, WIDTH)), keras.Input((1,))
    query = keras.layers.GlobalAveragePooling1D(keepdims=True)(x)
    seen, choice = ka.HardAttention(2, 4, gradient="reinforce")(query, x)
    return keras.Model([x, reward], [seen, ka.ReinforceLoss(**arguments)(choice, reward)])


for name, arguments in {
    "": {},
    "-options": {"factor": 0.5, "momentum": 0.8, "entropy_factor": 0.1},
}.items():
    CASES[f"reinforced{name}"] = Case(
        lambda arguments=arguments: reinforced(**arguments),
        (*vectors(WIDTH), np.array([[0.5], [-1.0]], "float32")),
    )


def shared():
    """One table of positions and one score in three layers."""
    inputs = x = keras.Input((None, WIDTH))
    table, score = positions.RelativeBias(8, 16), scores.General()
    for _ in range(3):
        x = ka.MultiHeadAttention(2, 4, position=table, score=score)(x)
    return keras.Model(inputs, x)


CASES["shared_slots"] = Case(shared, vectors(WIDTH))


def own_slots(**slots):
    return {
        "score": Distance(0.25),
        "normalization": SmoothReLU(),
        "pattern": Near(2) & ~Near(0),
        "position": Nearer(0.2),
        "scores_regularizer": Peaked(),
        **slots,
    }


of_layer("own_slots", lambda: ka.Attention(2, 4, **own_slots()), 8, 6, **SCORES)
of_layer("own_slots-block", lambda: ka.TransformerBlock(16, 2, **own_slots()))


def nested():
    inputs = keras.Input((None, WIDTH))
    inner = keras.Model(inputs, ka.TransformerBlock(16, 2)(inputs), name="inner")
    outer = keras.Input((None, WIDTH))
    return keras.Model(outer, ka.ClassToken()(inner(outer)))


CASES["nested"] = Case(nested, vectors(WIDTH))
CASES["sequential"] = Case(
    lambda: keras.Sequential(
        [keras.Input((None, WIDTH)), ka.SelfAttention(2, 4, causal=True), ka.AttentionPooling()]
    ),
    vectors(WIDTH),
)


# Weights that are stored in another way


def lora(model):
    for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
        dense = getattr(model.layers[-1], name)
        dense.enable_lora(2)
        rng = np.random.default_rng(9)
        for weight in (dense.lora_kernel_a, dense.lora_kernel_b):
            weight.assign(rng.normal(size=weight.shape).astype("float32"))


of_layer("lora", lambda: ka.MultiHeadAttention(2, 4), 8, 6)
CASES["lora"] = dataclasses.replace(CASES["lora"], change=lora)


def int8(model):
    with warnings.catch_warnings():
        # Keras says of each layer without weights, such as dropout, that it stays as it is.
        warnings.filterwarnings("ignore", message=".*does not have a `quantize")
        model.quantize("int8")


# A number that is rounded the other way moves the output by about one in 127.
INT8 = {"change": int8, "tolerance": 0.02}
of_layer("int8", lambda: ka.MultiHeadAttention(2, 4, value_dim=5, use_gate=True), 8, 6)
CASES["int8"] = dataclasses.replace(CASES["int8"], **INT8)
CASES["int8-classifier"] = Case(classifier, (IDS,), **INT8)
