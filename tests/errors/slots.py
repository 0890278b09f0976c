"""What is raised by patterns, scores, normalizations, kernels, heads and regularizers."""

import keras_attention as ka
from keras_attention import normalizations, ops, patterns, positions, regularizers, scores
from tests.errors.calls import (
    B,
    Both,
    Forgetful,
    Named,
    Nearness,
    S,
    Speechless,
    T,
    X,
    Y,
    heads,
    silent,
    zeros,
)

ADAPTIVE = normalizations.AdaptiveEntmax()

ROWS = {
    # patterns
    r"Pattern must implement `attends\(self, i, j\)`\.": (
        TypeError,
        lambda: patterns.Pattern()(3, 4),
    ),
    r"must return booleans, .* Received: int32 from Nearness\(\)": (
        TypeError,
        lambda: ka.SelfAttention(2, 4, pattern=Nearness())(X),
        lambda: ka.SelfAttention(2, 4, pattern=Nearness())(X, use_causal_mask=True),
        lambda: (patterns.Prefix(3) | ~Nearness())([0], [0]),
        lambda: (Nearness() & patterns.Causal())([0], [0]),
    ),
    r"of Both is given arrays of positions\. Combine comparisons of them with `&`, `\|` and "
    r"`~`, each in parentheses, not with `and`.*Received: \w+: ": (
        TypeError,
        lambda: ka.SelfAttention(2, 4, pattern=Both())(X),
    ),
    r"of Both is given arrays of positions": (
        TypeError,
        lambda: ka.SelfAttention(2, 4, pattern=Both() & patterns.Causal())(X),
    ),
    r"`alpha` must be at least 1\.01 and at most 2: 1 is 'softmax', and 2 is 'sparsemax'\. "
    r"Received: alpha=1\.0": lambda: normalizations.Entmax(1.0),
    r"`alpha` must be above 1\.01 and below 2: .* Received: alpha=2\.0": lambda: (
        normalizations.AdaptiveEntmax(2.0)
    ),
    r"Heads of layers that share an AdaptiveEntmax must be equal\. "
    r"Received: built=2, received=3": lambda: [
        ka.SelfAttention(n, 4, normalization=ADAPTIVE)(X) for n in (2, 3)
    ],
    r"`normalization` has weights, which a function cannot own: use a layer, or build "
    r"it first": lambda: ka.ops.attend(*[zeros(B, T, 2, 4)] * 3, normalization="adaptive_entmax"),
    r"`normalize\(self, scores, mask\)` of a normalization must return.*Received: None": (
        TypeError,
        lambda: ka.Attention(normalization=Speechless())(X),
    ),
    r"Forgetful must store its constructor argument `distance` in an attribute of that name, "
    r"`self\.distance`, to be saved and compared\. Received: none": (
        TypeError,
        lambda: Forgetful(2).get_config(),
    ),
    r"`grid` must be the sizes of a grid's axes, such as \(height, width\)\. "
    r"Received: grid=16": lambda: patterns.Axial(16),
    r"`size` must be an integer, or one for each of the 2 axes of the grid\. "
    r"Received: size=\(3, 3, 3\)": lambda: patterns.Neighborhood((8, 8), (3, 3, 3)),
    r"`shift` must be less than `size`, and `size` at most the grid's along each axis\. "
    r"Received: grid=\(8, 8\), size=\(4, 4\), shift=\(4, 4\)": lambda: patterns.GridWindow(
        (8, 8), 4, 4
    ),
    r"must be odd, and at most the grid's along each axis\. "
    r"Received: grid=\(8, 8\), size=\(4, 4\)": lambda: patterns.Neighborhood((8, 8), 4),
    r"`axis` must be one of the 2 axes of the grid, or None\. Received: axis=2": lambda: (
        patterns.Axial((8, 8), 2)
    ),
    r"`patterns` of And must be a list of patterns\. Received: 'causal'": (
        TypeError,
        lambda: patterns.And("causal"),
    ),
    r"`use_bias` must be 'qkv', True or False\. Received: use_bias='no'": (
        TypeError,
        lambda: ka.MultiHeadAttention(2, 4, use_bias="no"),
    ),
    r"`seed` must be an integer or None\. Received: seed='a'": (
        TypeError,
        lambda: ka.Attention(seed="a"),
    ),
    r"Combine patterns with `&`, `\|` and `~`, not with `and`.* Received: Causal\(\)": (
        TypeError,
        lambda: patterns.Causal() and patterns.SlidingWindow(2, 2),
    ),
    r"Expected patterns\. Received: 'causal'": (
        TypeError,
        lambda: patterns.And([patterns.Causal(), "causal"]),
    ),
    r"Or needs at least one pattern\. Received: none": lambda: patterns.Or([]),
    r"Expected a pattern\. Received: 'causal'": (TypeError, lambda: patterns.Not("causal")),
    # normalizations, scores, positions
    r"Normalization must implement `normalize\(self, scores, mask\)`\.": (
        TypeError,
        lambda: ops.attend(*heads(), normalization=normalizations.Normalization()),
    ),
    r"`scale` must be a finite number or None\. Received: scale='1'": lambda: scores.ScaledDot(
        scale="1"
    ),
    # Scores
    r"Named must implement `call\(self, query, key\)`, or `prepare_query.*Received: a score "
    "with none of them": (TypeError, Named),
    r"A score must return scores \(B, H, T, S\), here \(2, 1, 3, 5\)\. Received: None": (
        ValueError,
        lambda: ka.Attention(score=silent("call"))(X, Y),
        lambda: ka.Attention(score=silent("compare"))(X, Y),
    ),
    r"Silent must return what it makes of query and key\. Received: None, from `prepare_key`": (
        TypeError,
        lambda: ka.Attention(score=silent("prepare_key"))(X, Y),
    ),
    r"The score 'reduced_rank' needs a `rank`, which a string cannot give\. Pass an object: "
    r"scores\.ReducedRank\(rank\)\. Received: score='reduced_rank'": lambda: ka.Attention(
        score="reduced_rank"
    ),
    r"`count` must be at most the number of other blocks, 2\. "
    r"Received: count=3, length=12": lambda: patterns.RandomBlocks(12, 4, 3),
    r"Location can score at most max_length=4 keys\. Received: 5": lambda: ka.Attention(
        score=scores.Location(4)
    )(X, Y),
    r"scores of positions below max_length=5\. Received: positions of keys up to 5": lambda: (
        ka.SelfAttention(2, 4, score=scores.Location(5))(X, positions=[[0, 1, 5]])
    ),
    r"Position has no bias\.": (
        TypeError,
        lambda: positions.Position().bias(zeros(1), zeros(1), 2),
    ),
    r"Position has no bias of queries\.": (
        TypeError,
        lambda: positions.Position().query_bias(zeros(1), zeros(1), zeros(1), zeros(1)),
    ),
    # kernels and ops
    r"`kernel` must be one of \('auto', .*Received: kernel='quantum'": lambda: ops.attend(
        *heads(), kernel="quantum"
    ),
    "`return_lse` is the logarithm.*Received: normalization=Sigmoid": lambda: ops.attend(
        *heads(), normalization="sigmoid", return_lse=True
    ),
    r"`results` must be pairs.*: \[\]": lambda: ops.merge([]),
    r"'banded' cannot do this: the pattern has no window.*Received: kernel='banded'": lambda: (
        ops.attend(*heads(), kernel="banded")
    ),
    r"`score` has weights, which a function cannot own.*Received: score=<General": lambda: (
        ops.attend(*heads(), score="general")
    ),
    r"`position` has weights, which a function cannot own.*"
    r"Received: position=<RelativeBias": lambda: ops.attend(*heads(), position="relative_bias"),
    r"`mask` must be \(T, S\), \(B, T, S\) or \(B, H, T, S\)\. "
    r"Received: mask\.shape=\(5,\)": lambda: ops.attend(*heads(), mask=zeros(S, dtype="bool")),
    r"`offset` must be an integer, or integers \(B,\)\. "
    r"Received dtype float32 and shape \(\)": lambda: ops.attend(*heads(), offset=0.5),
    r"`logit_soft_cap` must be a finite number above 0 or None\. "
    "Received: logit_soft_cap=0": lambda: ops.attend(*heads(), logit_soft_cap=0),
    # Heads, hard attention, regularizers
    r"`num_key_value_heads` must divide `num_heads`\. Received: num_key_value_heads=3, "
    r"num_heads=4": lambda: ka.MultiHeadAttention(4, 8, num_key_value_heads=3),
    r"`qk_norm` must be one of \(False, 'rms', 'layer'\), or a Keras layer\. "
    r"Received: qk_norm=True": lambda: ka.TransformerBlock(8, 2, qk_norm=True),
    r"`use_sink=True` needs normalization='softmax'\. "
    r"Received: normalization=Sigmoid\(\)": lambda: ka.Attention(
        normalization="sigmoid", use_sink=True
    ),
    r"HardAttention\(gradient='reinforce'\)`\. "
    r"Received it as `normalization` of Attention": lambda: ka.Attention(
        normalization=normalizations.Hard("reinforce")
    ),
    r"`gradient` must be one of \('straight_through', 'reinforce'\)\. "
    r"Received: gradient='reparam'": lambda: ka.HardAttention(gradient="reparam"),
    r"`reward` must be one number a row, \(B,\) or \(B, 1\)\. "
    r"Received: reward\.shape=\(2, 2\)": lambda: ka.ReinforceLoss()(zeros(B, 2, T), zeros(B, 2)),
    r"Batch sizes must be equal\. Received: log_probability=2, reward=3": lambda: (
        ka.ReinforceLoss()(zeros(B, 2, T), zeros(B + 1))
    ),
    r"Regularizer must implement `__call__\(self, weights, mask\)`\.": (
        TypeError,
        lambda: regularizers.Regularizer()(zeros(B, 2, T, S), None),
    ),
    r"Unknown scores_regularizer 'l2'\. Expected one of \['coverage', 'doubly_stoch": lambda: (
        ka.Attention(scores_regularizer="l2")
    ),
}
