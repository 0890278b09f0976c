"""A `Case` of every public layer, and of some in other forms."""

import keras

import keras_attention as ka
from keras_attention import positions, scores
from tests.conformance import VALUES, Case

# T ≠ S and unequal numbers of features: (positions, features) of query, value and key.
CROSS = ((5, 8), (7, 6), (7, 4))
HEAD_OPTIONS = {
    name: VALUES[name] for name in ("num_key_value_heads", "qk_norm", "logit_soft_cap", "clip_qkv")
}
HEAD_OPTIONS["use_sink"] = True

CASES = [
    Case(ka.Attention, {"num_heads": 2, "key_dim": 4}, inputs=CROSS, listed=True),
    Case(
        ka.Attention,
        {"score": "general"},
        inputs=((5, 8), (7, 6)),
        listed=True,
        id="Attention-without-projections",
        first=False,
    ),
    Case(
        ka.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 4},
        inputs=CROSS,
        other={"use_bias": "qkv"},
    ),
    Case(
        ka.MultiHeadAttention,
        {"num_heads": 4, "key_dim": 4, "position": positions.Rotary(), **HEAD_OPTIONS},
        inputs=CROSS,
        id="MultiHeadAttention-grouped",
        first=False,
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
        inputs=CROSS,
        id="MultiHeadAttention-additive",
        first=False,
    ),
    Case(
        ka.MultiHeadAttention,
        {
            "num_heads": 4,
            "key_dim": 4,
            "num_key_value_heads": 2,
            "position": positions.Disentangled(8, 6, keras.layers.LayerNormalization()),
        },
        inputs=((5, 8), (7, 8)),
        id="MultiHeadAttention-disentangled",
        first=False,
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
        inputs=((5, 8),),
        id="MultiHeadAttention-self-gated",
        first=False,
    ),
    Case(
        ka.MultiHeadLatentAttention,
        {"num_heads": 2, "key_dim": 4, "rope_dim": 2, "latent_dim": 5},
        inputs=((5, 8), (7, 6)),
    ),
    Case(
        ka.DifferentialAttention,
        {"num_heads": 2, "key_dim": 4},
        inputs=CROSS,
        other={"value_dim": 6},
    ),
    Case(
        ka.LongformerAttention,
        {"num_heads": 2, "key_dim": 4, "window": 1},
        inputs=CROSS,
    ),
    Case(ka.SelfAttention, {"num_heads": 2, "key_dim": 4}),
    Case(ka.LocalSelfAttention, {"num_heads": 2, "key_dim": 4, "neighbors": 1}),
    Case(ka.AtrousSelfAttention, {"num_heads": 2, "key_dim": 4, "rate": 2}),
    Case(ka.SparseSelfAttention, {"num_heads": 2, "key_dim": 4, "rate": 2}),
    Case(
        ka.LocalAttention,
        {"window": 2, "num_heads": 2, "key_dim": 4},
        inputs=CROSS,
        other={"score": "dot"},
    ),
    Case(
        ka.LocalAttention,
        {"window": 3, "mode": "predictive", "num_heads": 2, "key_dim": 4},
        inputs=CROSS,
        id="LocalAttention-predictive",
        first=False,
    ),
    Case(
        ka.RelativePositionAttention,
        {"num_heads": 2, "key_dim": 4, "max_distance": 2},
        inputs=CROSS,
        other={"score": "dot"},
    ),
    Case(ka.LinearAttention, {"num_heads": 2, "key_dim": 4}, inputs=CROSS),
    Case(
        ka.LinformerAttention,
        {"num_heads": 2, "key_dim": 4, "max_length": 9, "rank": 3},
        inputs=CROSS,
    ),
    Case(
        ka.NystromAttention,
        {"num_heads": 2, "key_dim": 4, "num_landmarks": 3},
        inputs=CROSS,
        beside={"conv_kernel_size": {}},
        other={"score": "cosine"},
    ),
    Case(
        ka.Retention,
        {"num_heads": 2, "key_dim": 4},
        beside={"decays": {"num_key_value_heads": 1}},
        other={"position": None},
    ),
    Case(ka.GatedLinearAttention, {"num_heads": 2, "key_dim": 4}),
    Case(ka.GatedDeltaNet, {"num_heads": 2, "key_dim": 4}),
    Case(ka.HardAttention, {"num_heads": 2, "key_dim": 4}, inputs=CROSS),
    Case(
        ka.TransformerBlock,
        {"intermediate_dim": 16, "num_heads": 2},
        beside={
            "feed_forward": {"intermediate_dim": None},
            "self_attention": {"cross_attention": True},
        },
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
        inputs=((5, 8), (7, 6)),
        id="TransformerBlock-decoder-of-today",
        first=False,
    ),
    Case(
        ka.AttentionPooling,
        {"num_queries": 3, "num_heads": 2, "key_dim": 4},
        other={"score": "dot"},
    ),
    Case(ka.FeedForwardAttention, {}, other={"kernel_initializer": "ones"}),
    Case(ka.ClassToken, {}),
    Case(ka.PatchMerging, {"grid": (6,), "size": 2}, inputs=((6, 8),), any_length=False),
    Case(ka.LearnedQueries, {"num_queries": 3}),
    Case(
        ka.InducedSetAttentionBlock,
        {"intermediate_dim": 16, "num_heads": 2, "num_inducing_points": 3},
    ),
    Case(
        ka.SlotAttention,
        {"num_slots": 3, "dim": 4, "intermediate_dim": 6, "initial": "learned"},
    ),
    Case(ka.FeedForward, {"intermediate_dim": 16}),
    Case(ka.RMSNorm, {}),
    Case(ka.LayerScale, {}),
    Case(
        ka.MixtureOfExperts,
        {"num_experts": 5, "top_k": 2, "intermediate_dim": 6, "gated": True},
        beside={
            "num_groups": {"num_experts": 4},
            "top_groups": {"num_experts": 4, "num_groups": 2},
        },
        other={"activation": "silu"},
    ),
    Case(ka.SinCosPositionEmbedding, {}),
    Case(ka.LearnedPositionEmbedding, {"max_length": 9}),
    Case(ka.SinCosGridEmbedding, {"grid": (2, 2), "prefix": 1}, any_length=False),
    Case(ka.LearnedGridEmbedding, {"grid": (3, 2), "prefix": 1, "size": (2, 2)}, any_length=False),
    Case(ka.ScaledEmbedding, {"vocabulary_size": 10, "dim": 6}, inputs=((5, None),)),
]
