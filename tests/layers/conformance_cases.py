"""The cases of test_conformance.py: every public layer, with a value for every argument."""

import keras

import keras_attention as ka
from keras_attention import normalizations, patterns, positions, regularizers, scores
from tests.conformance import Case


@keras.saving.register_keras_serializable(package="conformance")
class Nearer(positions.Position):
    def bias(self, i, j, num_heads):
        return -0.3 * keras.ops.cast(keras.ops.abs(i - j), "float32")


@keras.saving.register_keras_serializable(package="conformance")
class Squares(scores.Score):
    def features(self, size):
        return size

    def prepare_query(self, query):
        return keras.ops.square(query)

    prepare_key = prepare_query


PROJECTIONS = {
    "kernel_initializer": "he_normal",
    "bias_initializer": "ones",
    "kernel_regularizer": keras.regularizers.L2(0.01),
    "bias_regularizer": keras.regularizers.L1(0.01),
    "activity_regularizer": keras.regularizers.L2(0.02),
    "kernel_constraint": keras.constraints.NonNeg(),
    "bias_constraint": keras.constraints.MaxNorm(3),
}
SLOTS = {
    "score": scores.General(),
    "normalization": normalizations.Sigmoid(),
    "pattern": patterns.Causal() & patterns.SlidingWindow(2, 0),
    "position": Nearer(),
    "scores_regularizer": regularizers.Entropy(0.1),
}
HEAD_OPTIONS = {
    "num_key_value_heads": 1,
    "qk_norm": "rms",
    "logit_soft_cap": 5.0,
    "use_sink": True,
    "clip_qkv": 1.5,
}
POSITION_TABLE = {
    "embeddings_initializer": "ones",
    "embeddings_regularizer": keras.regularizers.L2(0.01),
    "embeddings_constraint": keras.constraints.NonNeg(),
}
HEADS = {"value_dim": 3, "dropout": 0.4, "seed": 3, **PROJECTIONS}
# T ≠ S and unequal numbers of features: (positions, features) of query, value and key.
CROSS = ((5, 8), (7, 6), (7, 4))

ATTENTION = {"use_bias": True, **HEADS, **SLOTS, **HEAD_OPTIONS}
MULTI_HEAD = {
    "use_bias": False,
    "output_shape": (2, 5),
    "attention_axes": (1,),
    "sliding_window": 2,
    "flash_attention": False,
    "use_gate": True,
    **HEADS,
    **SLOTS,
    **HEAD_OPTIONS,
}


def without(arguments, *names):
    return {name: value for name, value in arguments.items() if name not in names}


BLOCK = {
    "dropout": 0.3,
    "activation": "gelu",
    "layer_norm_epsilon": 1e-3,
    "normalize_first": True,
    "causal": True,
    "cross_attention": True,
    "gated": True,
    "norm": "rms",
    "kernel_initializer": "he_normal",
    "bias_initializer": "ones",
    "seed": 3,
    "key_dim": 3,
    "residual": "pre",
    "use_bias": "qkv",
    "attention": ka.MultiHeadAttention(2, 4),
    "feed_forward": ka.FeedForward(6),
    "self_attention": False,
    **SLOTS,
    **HEAD_OPTIONS,
}


# What layers take that have no weights of pairs.
STATE = {
    "value_dim": 3,
    "use_bias": "qkv",
    "output_shape": (2, 5),
    "attention_axes": (1,),
    "seed": 3,
    "num_key_value_heads": 1,
    **PROJECTIONS,
}

CASES = [
    Case(
        ka.Attention,
        {"num_heads": 2, "key_dim": 4},
        ATTENTION,
        CROSS,
        listed=True,
        returns_scores=True,
    ),
    Case(
        ka.Attention,
        {"score": "general"},
        None,
        ((5, 8), (7, 6)),
        listed=True,
        returns_scores=True,
        decodes=False,
        id="Attention-without-projections",
        ci=True,
    ),
    Case(
        ka.Attention,
        {
            "num_heads": 2,
            "key_dim": 4,
            "use_bias": True,
            "score": scores.Cosine(scale=3.0),
            "pattern": patterns.SlidingWindow(2, 3) | patterns.Prefix(1),
            "position": Nearer(),
        },
        None,
        CROSS,
        returns_scores=True,
        id="Attention-every-slot",
    ),
    Case(
        ka.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 4},
        MULTI_HEAD,
        CROSS,
        returns_scores=True,
    ),
    Case(
        ka.MultiHeadAttention,
        {"num_heads": 4, "key_dim": 4, "position": positions.Rotary(), **HEAD_OPTIONS},
        None,
        CROSS,
        returns_scores=True,
        id="MultiHeadAttention-grouped",
    ),
    Case(
        ka.MultiHeadAttention,
        {
            "num_heads": 2,
            "key_dim": 4,
            "score": scores.Additive(3),
            "normalization": "sparsemax",
            "position": positions.RelativeBias(8, 16),
            "qk_norm": "layer",
        },
        None,
        CROSS,
        returns_scores=True,
        id="MultiHeadAttention-additive",
        ci=True,
    ),
    Case(
        ka.MultiHeadAttention,
        {
            "num_heads": 4,
            "key_dim": 4,
            "num_key_value_heads": 2,
            "position": positions.Disentangled(8, 6, keras.layers.LayerNormalization()),
        },
        None,
        ((5, 8), (7, 8)),
        returns_scores=True,
        id="MultiHeadAttention-disentangled",
        ci=True,
    ),
    Case(
        ka.MultiHeadAttention,
        {
            "num_heads": 2,
            "key_dim": 4,
            "use_gate": True,
            "output_shape": (2, 3),
            "sliding_window": 3,
        },
        None,
        ((5, 8),),
        returns_scores=True,
        id="MultiHeadAttention-self-gated",
        ci=True,
    ),
    Case(
        ka.MultiHeadLatentAttention,
        {"num_heads": 2, "key_dim": 4, "rope_dim": 2, "latent_dim": 5},
        {
            "query_latent_dim": 6,
            "scale": 0.3,
            **without(MULTI_HEAD, *ka.MultiHeadLatentAttention._fixed_arguments),
            "use_bias": True,
        },
        ((5, 8), (7, 6)),
        returns_scores=True,
        ci=True,
    ),
    Case(
        ka.DifferentialAttention,
        {"num_heads": 2, "key_dim": 4},
        {"depth": 3, "norm_epsilon": 0.1, **MULTI_HEAD, "use_bias": True, "value_dim": 6},
        CROSS,
        returns_scores=True,
        ci=True,
    ),
    Case(
        ka.LongformerAttention,
        {"num_heads": 2, "key_dim": 4, "window": 1},
        {"num_global": 2, **without(MULTI_HEAD, *ka.LongformerAttention._fixed_arguments)},
        CROSS,
        returns_scores=True,
        decodes=False,
        ci=True,
    ),
    Case(
        ka.SelfAttention,
        {"num_heads": 2, "key_dim": 4},
        {"causal": True, **ATTENTION},
        returns_scores=True,
        decodes=False,
    ),
    Case(
        ka.LocalSelfAttention,
        {"num_heads": 2, "key_dim": 4, "neighbors": 1},
        {"rate": 2, "causal": True, **ATTENTION},
        returns_scores=True,
        decodes=False,
        ci=True,
    ),
    Case(
        ka.AtrousSelfAttention,
        {"num_heads": 2, "key_dim": 4, "rate": 2},
        {"causal": True, **ATTENTION},
        returns_scores=True,
        decodes=False,
        ci=True,
    ),
    Case(
        ka.SparseSelfAttention,
        {"num_heads": 2, "key_dim": 4, "rate": 2},
        {"causal": True, **ATTENTION},
        returns_scores=True,
        decodes=False,
        ci=True,
    ),
    Case(
        ka.LocalAttention,
        {"window": 2, "num_heads": 2, "key_dim": 4},
        {
            "mode": "predictive",
            "units": 3,
            "center_initializer": "ones",
            **ATTENTION,
            "score": "dot",
        },
        CROSS,
        returns_scores=True,
    ),
    Case(
        ka.LocalAttention,
        {"window": 3, "mode": "predictive", "num_heads": 2, "key_dim": 4},
        None,
        CROSS,
        returns_scores=True,
        decodes=False,
        id="LocalAttention-predictive",
        ci=True,
    ),
    Case(
        ka.RelativePositionAttention,
        {"num_heads": 2, "key_dim": 4, "max_distance": 2},
        {
            "use_values": False,
            "per_head": True,
            **POSITION_TABLE,
            **without(ATTENTION, "position"),
            "score": "dot",
        },
        CROSS,
        returns_scores=True,
    ),
    Case(
        ka.LinearAttention,
        {"num_heads": 2, "key_dim": 4},
        {
            "feature_map": Squares(),
            "causal": True,
            "use_gate": True,
            "qk_norm": "rms",
            "clip_qkv": 1.5,
            **STATE,
        },
        CROSS,
        returns_scores=True,
        ci=True,
    ),
    Case(
        ka.LinformerAttention,
        {"num_heads": 2, "key_dim": 4, "max_length": 9, "rank": 3},
        {
            "sharing": "key_value",
            **without(MULTI_HEAD, "pattern", "position", "sliding_window", "flash_attention"),
        },
        CROSS,
        decodes=False,
    ),
    Case(
        ka.NystromAttention,
        {"num_heads": 2, "key_dim": 4, "num_landmarks": 3},
        {
            "num_iterations": 4,
            "conv_kernel_size": 3,
            **STATE,
            "score": "cosine",
            "qk_norm": "rms",
            "logit_soft_cap": 5.0,
            "clip_qkv": 1.5,
            "use_gate": True,
        },
        CROSS,
        beside={"conv_kernel_size": {}},
        decodes=False,
        ci=True,
    ),
    Case(
        ka.Retention,
        {"num_heads": 2, "key_dim": 4},
        {
            "decays": (0.5,),
            "position": None,
            "use_gate": False,
            "head_norm": "layer",
            **STATE,
        },
        # Right padding changes nothing in a causal layer.
        mixes_positions=False,
        beside={"decays": {"num_key_value_heads": 1}},
        ci=True,
    ),
    Case(
        ka.GatedLinearAttention,
        {"num_heads": 2, "key_dim": 4},
        {
            "decay_rank": 3,
            "decay_temperature": 2.0,
            "use_gate": False,
            "head_norm": "layer",
            "conv_kernel_size": 2,
            **STATE,
        },
        mixes_positions=False,
        ci=True,
    ),
    Case(
        ka.GatedDeltaNet,
        {"num_heads": 2, "key_dim": 4},
        {
            "use_decay": False,
            "use_gate": False,
            "head_norm": "layer",
            "conv_kernel_size": 4,
            **STATE,
        },
        mixes_positions=False,
        ci=True,
    ),
    Case(
        ka.HardAttention,
        {"num_heads": 2, "key_dim": 4},
        {
            "gradient": "reinforce",
            "temperature": 0.5,
            **without(ATTENTION, "normalization", "use_sink"),
        },
        CROSS,
        returns_scores=True,
        ci=True,
    ),
    Case(
        ka.TransformerBlock,
        {"intermediate_dim": 16, "num_heads": 2},
        BLOCK,
        returns_scores=True,
        beside={
            "feed_forward": {"intermediate_dim": None},
            "self_attention": {"cross_attention": True},
        },
        decodes=False,
    ),
    Case(
        ka.TransformerBlock,
        {"intermediate_dim": 16, "num_heads": 2, "normalize_first": True, "gated": True},
        None,
        returns_scores=True,
        decodes=False,
        id="TransformerBlock-pre-norm",
        ci=True,
    ),
    Case(
        ka.TransformerBlock,
        {"intermediate_dim": 16, "num_heads": 2, "causal": True, "cross_attention": True},
        None,
        ((5, 8), (7, 6)),
        returns_scores=True,
        id="TransformerBlock-decoder",
    ),
    Case(
        ka.TransformerBlock,
        {
            "intermediate_dim": 16,
            "num_heads": 4,
            "causal": True,
            "cross_attention": True,
            "normalize_first": True,
            "norm": "rms",
            "gated": True,
            "position": "rotary",
            "score": scores.Dot(),
            **HEAD_OPTIONS,
        },
        None,
        ((5, 8), (7, 6)),
        returns_scores=True,
        id="TransformerBlock-decoder-of-today",
    ),
    Case(
        ka.AttentionPooling,
        {},
        None,
        returns_scores=True,
        carries_mask=False,
    ),
    Case(
        ka.AttentionPooling,
        {"num_queries": 3, "num_heads": 2, "key_dim": 4},
        {
            "value_dim": 3,
            "score": "dot",
            "normalization": "sigmoid",
            "dropout": 0.2,
            "query_initializer": "ones",
            "seed": 1,
        },
        returns_scores=True,
        carries_mask=False,
        id="AttentionPooling-queries",
        ci=True,
    ),
    Case(
        ka.FeedForwardAttention,
        {},
        {
            "units": 5,
            "activation": "gelu",
            "normalization": "sigmoid",
            "dropout": 0.2,
            "kernel_initializer": "ones",
            "seed": 1,
        },
        returns_scores=True,
        carries_mask=False,
        ci=True,
    ),
    Case(
        ka.ClassToken,
        {},
        {"initializer": "ones", "num_tokens": 3},
        mixes_positions=False,
        before=1,
    ),
    Case(
        ka.PatchMerging,
        {"grid": (6,), "size": 2},
        {"dim": 5, "layer_norm_epsilon": 1e-3, "kernel_initializer": "he_normal"},
        ((6, 8),),
        any_length=False,
        group=2,
        ci=True,
    ),
    Case(
        ka.LearnedQueries,
        {"num_queries": 3},
        {"dim": 5, "initializer": "ones"},
        mixes_positions=False,
        carries_mask=False,
        ci=True,
    ),
    Case(
        ka.InducedSetAttentionBlock,
        {"intermediate_dim": 16, "num_heads": 2, "num_inducing_points": 3},
        {
            "dropout": 0.2,
            "activation": "gelu",
            "layer_norm_epsilon": 1e-3,
            "norm": "rms",
            "key_dim": 3,
            "residual": "pre",
            "kernel_initializer": "he_normal",
            "initializer": "ones",
        },
        ci=True,
    ),
    Case(
        ka.SlotAttention,
        {"num_slots": 3, "dim": 4, "intermediate_dim": 6, "initial": "learned"},
        {
            "num_iterations": 2,
            "epsilon": 0.1,
            "activation": "gelu",
            "layer_norm_epsilon": 1e-3,
            "kernel_initializer": "he_normal",
            "seed": 3,
        },
        returns_scores=True,
        carries_mask=False,
        ci=True,
    ),
    Case(
        ka.FeedForward,
        {"intermediate_dim": 16},
        {
            "activation": "gelu",
            "gated": True,
            "dropout": 0.2,
            "output_dim": 5,
            "use_bias": False,
            "kernel_initializer": "he_normal",
            "bias_initializer": "ones",
            "seed": 2,
        },
        mixes_positions=False,
    ),
    Case(ka.RMSNorm, {}, {"epsilon": 0.1, "offset": 1.0}, mixes_positions=False),
    Case(
        ka.LayerScale,
        {},
        {"value": 0.5},
        mixes_positions=False,
        ci=True,
    ),
    Case(
        ka.MixtureOfExperts,
        {"num_experts": 5, "top_k": 2, "intermediate_dim": 6, "gated": True},
        {
            "activation": "silu",
            "use_bias": False,
            "limit": 2.0,
            "offset": 1.0,
            "kernel_initializer": "he_normal",
            "bias_initializer": "ones",
            "normalize_weights": False,
            "scoring": "sigmoid",
            "use_correction_bias": True,
            "num_groups": 2,
            "top_groups": 2,
            "scale": 2.5,
            "shared_dim": 4,
        },
        mixes_positions=False,
        beside={
            "num_groups": {"num_experts": 4},
            "top_groups": {"num_experts": 4, "num_groups": 2},
        },
        ci=True,
    ),
    Case(
        ka.SinCosPositionEmbedding,
        {},
        {"dim": 8, "merge_mode": "concat", "max_wavelength": 100, "layout": "half_split"},
        mixes_positions=False,
    ),
    Case(
        ka.SinCosPositionEmbedding,
        {"dim": 5, "merge_mode": "concat"},
        None,
        mixes_positions=False,
        id="SinCosPositionEmbedding-concat",
        ci=True,
    ),
    Case(
        ka.LearnedPositionEmbedding,
        {"max_length": 9},
        {"dim": 8, "merge_mode": "concat", **POSITION_TABLE},
        mixes_positions=False,
        ci=True,
    ),
    Case(
        ka.LearnedPositionEmbedding,
        {"max_length": 9, "dim": 5, "merge_mode": "none"},
        None,
        mixes_positions=False,
        id="LearnedPositionEmbedding-none",
        ci=True,
    ),
    Case(
        ka.SinCosGridEmbedding,
        {"grid": (2, 2), "prefix": 1},
        {"dim": 8, "merge_mode": "concat", "max_wavelength": 100},
        mixes_positions=False,
        any_length=False,
        ci=True,
    ),
    Case(
        ka.LearnedGridEmbedding,
        {"grid": (3, 2), "prefix": 1, "size": (2, 2)},
        {"interpolation": "linear", "dim": 8, "merge_mode": "concat", **POSITION_TABLE},
        mixes_positions=False,
        any_length=False,
        ci=True,
    ),
    Case(
        ka.ScaledEmbedding,
        {"vocabulary_size": 10, "dim": 6},
        {"mask_zero": True, "scale": 2.0, **POSITION_TABLE},
        ((5, None),),
        mixes_positions=False,
    ),
]
