"""Cases of each layer: by default, with all arguments, and called with more than sequences."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import patterns, positions
from tests.golden.cases.case import (
    ALL,
    CASES,
    HEADS,
    PROJECTIONS,
    SCORES,
    TABLE,
    WIDTH,
    B,
    Case,
    T,
    of_layer,
    vectors,
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
STATE = {
    "value_dim": 3,
    "use_bias": "qkv",
    "output_shape": 5,
    "attention_axes": 1,
    "seed": 3,
    "num_key_value_heads": 1,
    **PROJECTIONS,
}
of_layer("linear", lambda: ka.LinearAttention(2, 4), 8, 6, since="0.2.0", **SCORES)
of_layer(
    "linear-all",
    lambda: ka.LinearAttention(
        2, 4, feature_map="elu", causal=True, use_gate=True, qk_norm="rms", clip_qkv=1.5, **STATE
    ),
    since="0.2.0",
)
of_layer("retention", lambda: ka.Retention(2, 4), since="0.2.0")
of_layer(
    "retention-all",
    lambda: ka.Retention(
        2, 4, decays=(0.5,), position=None, use_gate=False, head_norm="layer", **STATE
    ),
    since="0.2.0",
)
of_layer("gated_linear", lambda: ka.GatedLinearAttention(2, 4), since="0.2.0")
of_layer(
    "gated_linear-all",
    lambda: ka.GatedLinearAttention(
        2, 4, decay_rank=None, decay_temperature=2.0, use_gate=False, head_norm=False, **STATE
    ),
    since="0.2.0",
)
of_layer(
    "gated_linear-convolved",
    lambda: ka.GatedLinearAttention(2, 4, conv_kernel_size=3, num_key_value_heads=1),
    since="0.3.0",
)
of_layer("gated_delta", lambda: ka.GatedDeltaNet(2, 4), since="0.2.0")
of_layer(
    "gated_delta-all",
    lambda: ka.GatedDeltaNet(2, 4, use_decay=False, use_gate=False, head_norm="layer", **STATE),
    since="0.2.0",
)
of_layer("gated_delta-convolved", lambda: ka.GatedDeltaNet(2, 4, conv_kernel_size=4), since="0.3.0")
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


# Calls with more than sequences


def called():
    """Masks, a bias, positions and segments as inputs of the model."""
    x = keras.Input((None, WIDTH))
    mask = keras.Input((None, None), dtype="bool")
    bias = keras.Input((None, None))
    indices = keras.Input((None,), dtype="int32")
    segments = keras.Input((None,), dtype="int32")
    layer = ka.MultiHeadAttention(2, 4, position="rotary")
    found = [
        layer(x, attention_mask=mask, attention_bias=bias),
        layer(x, positions=indices, segment_ids=segments),
    ]
    return keras.Model([x, mask, bias, indices, segments], found)


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
