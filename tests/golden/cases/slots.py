"""Cases of scores, normalizations, patterns, positions and options of heads."""

import dataclasses

import keras

import keras_attention as ka
from keras_attention import normalizations, patterns, positions, regularizers, scores
from tests.golden.cases.case import BIAS, CASES, KERNEL, SCORES, TABLE, of_layer

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

for name in ("softmax", "sigmoid", "sparsemax", "hard"):
    of_layer(
        f"normalization-{name}", lambda name=name: ka.Attention(2, 4, normalization=name), 8, 6
    )
for name, make in {
    "entmax": lambda: "entmax15",
    "entmax-alpha": lambda: normalizations.Entmax(1.25),
    "adaptive_entmax": lambda: "adaptive_entmax",
    "adaptive_entmax-alpha": lambda: normalizations.AdaptiveEntmax(1.75),
    "top_k": lambda: normalizations.TopK(2),
}.items():
    of_layer(
        f"normalization-{name}",
        lambda make=make: ka.Attention(2, 4, normalization=make()),
        since="0.2.0",
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

for name, pattern in {
    "grid_window": patterns.GridWindow((2, 3), 2),
    "grid_window-options": patterns.GridWindow((2, 3), 2, 1, prefix=1),
    "neighborhood": patterns.Neighborhood((3, 3), 1),
    "neighborhood-options": patterns.Neighborhood((1, 3), (1, 3), prefix=1),
    "axial": patterns.Axial((2, 3)),
    "axial-options": patterns.Axial((2, 3), axis=0, prefix=1),
}.items():
    of_layer(
        f"pattern-{name}",
        lambda pattern=pattern: ka.MultiHeadAttention(2, 4, pattern=pattern),
        since="0.2.0",
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

# 0.1.0 counted the padding of a row in its length, on which these angles depend.
CASES["position-rotary-dynamic"] = dataclasses.replace(
    CASES["position-rotary-dynamic"], tolerance=1e-3
)

for name, make in {
    "axial_rotary": lambda: positions.AxialRotary((2, 3)),
    "axial_rotary-options": lambda: positions.AxialRotary(
        (2, 3), 1, max_wavelength=100, dim=4, layout="interleaved", **YARN, beta_fast=8.0,
        beta_slow=2.0, attention_factor=1.5, truncate=False,
    ),
    "mixed_rotary": lambda: positions.MixedRotary((2, 3)),
    "mixed_rotary-options": lambda: positions.MixedRotary(
        (2, 3), 1, max_wavelength=100, dim=4, layout="interleaved"
    ),
    "grid_relative_bias": lambda: positions.GridRelativeBias((2, 3)),
    "grid_relative_bias-options": lambda: positions.GridRelativeBias((2, 3), 2, 1, **TABLE),
}.items():  # fmt: skip
    of_layer(
        f"position-{name}",
        lambda make=make: ka.MultiHeadAttention(2, 4, position=make()),
        since="0.2.0",
    )

of_layer(
    "pattern-global",
    lambda: ka.MultiHeadAttention(2, 4, pattern=patterns.SlidingWindow(1, 0) | patterns.Global(1)),
    since="0.2.0",
)
for name, pattern in {
    "random_blocks": patterns.RandomBlocks(6, 2, 1),
    "bigbird": patterns.SlidingWindow(1, 0)
    | patterns.Global(1)
    | patterns.RandomBlocks(7, 1, 2, seed=3),
}.items():
    of_layer(
        f"pattern-{name}",
        lambda pattern=pattern: ka.MultiHeadAttention(2, 4, pattern=pattern),
        since="0.2.0",
    )
of_layer(
    "position-disentangled",
    lambda: ka.MultiHeadAttention(2, 4, position=positions.Disentangled(8, 6)),
    since="0.2.0",
)
of_layer(
    "position-disentangled-defaults",
    lambda: ka.MultiHeadAttention(2, 4, position=positions.Disentangled()),
    since="0.2.0",
)
of_layer(
    "position-disentangled-options",
    lambda: ka.SelfAttention(
        2,
        4,
        position=positions.Disentangled(
            8, None, norm=keras.layers.LayerNormalization(name="norm"), **TABLE
        ),
    ),
    since="0.2.0",
)

for name, make in {
    "kerple": lambda: "kerple",
    "kerple-options": lambda: positions.Kerple("power"),
    "fire": lambda: "fire",
    "fire-options": lambda: positions.FIRE(8, threshold=3.0, scale=0.5),
    "xpos": lambda: "xpos",
    "xpos-options": lambda: positions.XPos(
        *(8.0, 0.3),
        max_wavelength=100,
        dim=2,
        layout="interleaved",
        **YARN,
        beta_fast=8.0,
        beta_slow=2.0,
        attention_factor=1.5,
        truncate=False,
    ),
    "xpos-longrope": lambda: positions.XPos(
        scaling="longrope", original_max_length=3, short_factors=(1.0, 1.5), long_factors=(2.0, 3.0)
    ),
    "transformer_xl": lambda: "transformer_xl",
    "transformer_xl-options": lambda: positions.TransformerXL(6, 50.0, "he_normal", "ones"),
    "cope": lambda: "cope",
    "cope-options": lambda: positions.CoPE(4, **TABLE),
}.items():
    of_layer(
        f"position-{name}",
        lambda make=make: ka.MultiHeadAttention(2, 4, position=make()),
        since="0.2.0",
    )

for name, regularizer in {
    "coverage": "coverage",
    "coverage-options": regularizers.CoverageLoss(0.1),
    "guided": "guided",
    "guided-options": regularizers.Guided(0.1, width=0.3),
}.items():
    of_layer(
        f"regularizer-{name}",
        lambda given=regularizer: ka.Attention(2, 4, scores_regularizer=given),
        8,
        6,
        since="0.2.0",
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
for cls, (*sizes, options) in {
    ka.Attention: (2, 4, {}),
    ka.MultiHeadAttention: (2, 4, {}),
    ka.SelfAttention: (2, 4, {}),
    ka.LocalSelfAttention: (2, 4, {"neighbors": 1}),
    ka.AtrousSelfAttention: (2, 4, {"rate": 2}),
    ka.SparseSelfAttention: (2, 4, {"rate": 2}),
    ka.LocalAttention: (2, "predictive", 2, 4, {}),
    ka.RelativePositionAttention: (2, 4, 2, {}),
    ka.HardAttention: (2, 4, {}),
    ka.TransformerBlock: (16, 2, {}),
}.items():
    for clip in (None, 0.5):
        of_layer(
            f"clip_qkv-{cls.__name__}-{clip}",
            lambda cls=cls, sizes=sizes, options={**options, "clip_qkv": clip}: cls(
                *sizes, **options
            ),
            since="0.2.0",
        )
