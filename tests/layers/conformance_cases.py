"""A `Case` of every public layer, and of some in other forms."""

import keras

import keras_attention as ka
from keras_attention import positions, scores
from tests.conformance import Case
from tests.contract import registry

# A cell is no layer of sequences, a recurrent layer has a memory, a loss takes rewards, and patches
# are of images: test_attention_cell, test_attention_rnn, test_hard_attention and
# test_patch_embedding check them.
OTHERS = {ka.AttentionCell, ka.AttentionRNN, ka.PatchEmbedding, ka.ReinforceLoss}
# Outputs are of float32 in every policy, and one takes four inputs: test_pointers.
OTHERS |= {ka.PointerGenerator, ka.PointerHead}
# Of tokens; see tests/models.
OTHERS |= {ka.Decoder, ka.Embeddings, ka.Encoder, ka.EncoderDecoder, ka.Logits}
# T ≠ S and unequal numbers of features: (positions, features) of query, value and key.
CROSS = {"inputs": ((5, 8), (7, 6), (7, 4))}
GIVEN = {
    ka.Attention: {**CROSS, "listed": True},
    ka.MultiHeadAttention: CROSS,
    ka.MultiHeadLatentAttention: {"inputs": ((5, 8), (7, 6))},
    ka.DifferentialAttention: CROSS,
    ka.LongformerAttention: CROSS,
    ka.LocalAttention: CROSS,
    ka.RelativePositionAttention: CROSS,
    ka.LinearAttention: CROSS,
    ka.LinformerAttention: CROSS,
    ka.NystromAttention: CROSS,
    ka.HardAttention: CROSS,
    ka.PatchMerging: {
        "arguments": {"grid": (6,), "size": 2},
        "inputs": ((6, 8),),
        "any_length": False,
    },
    ka.SinCosGridEmbedding: {"arguments": {"grid": (2, 2)}, "any_length": False},
    ka.LearnedGridEmbedding: {"arguments": {"grid": (3, 2), "size": (2, 2)}, "any_length": False},
    ka.ScaledEmbedding: {"inputs": ((5, None),)},
}
HEADS = {
    "num_heads": 4,
    "num_key_value_heads": 1,
    "qk_norm": "rms",
    "logit_soft_cap": 5.0,
    "clip_qkv": 1.5,
    "use_sink": True,
}
# Layer, form, arguments and further fields of other cases.
FORMS = [
    (
        ka.Attention,
        "without-projections",
        {"score": "general", "num_heads": 1, "key_dim": None},
        {"inputs": ((5, 8), (7, 6)), "listed": True},
    ),
    (ka.MultiHeadAttention, "grouped", {"position": positions.Rotary(), **HEADS}, CROSS),
    (
        ka.MultiHeadAttention,
        "additive",
        {
            "score": scores.Additive(3),
            "normalization": "sparsemax",
            "position": positions.RelativeBias(8, 16),
            "qk_norm": "layer",
        },
        CROSS,
    ),
    (
        ka.MultiHeadAttention,
        "disentangled",
        {
            "num_heads": 4,
            "num_key_value_heads": 2,
            "position": positions.Disentangled(8, 6, keras.layers.LayerNormalization()),
        },
        {"inputs": ((5, 8), (7, 8))},
    ),
    (
        ka.MultiHeadAttention,
        "self-gated",
        {"use_gate": True, "output_shape": (2, 3), "sliding_window": 3},
        {},
    ),
    (ka.LocalAttention, "predictive", {"window": 3, "mode": "predictive"}, CROSS),
    (
        ka.TransformerBlock,
        "decoder-of-today",
        {
            "causal": True,
            "cross_attention": True,
            "normalize_first": True,
            "norm": "rms",
            "gated": True,
            "position": "rotary",
            "score": scores.Dot(),
            **HEADS,
        },
        {"inputs": ((5, 8), (7, 6))},
    ),
]
CASES = [
    *(
        Case(cls, **GIVEN.get(cls, {}))
        for cls in registry.public(ka, keras.layers.Layer)
        if cls not in OTHERS
    ),
    *(Case(cls, given, form=form, **fields) for cls, form, given, fields in FORMS),
]
