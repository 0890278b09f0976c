"""What is raised by patterns, scores, normalizations, kernels, heads and regularizers."""

import dataclasses

import keras_attention as ka
from keras_attention import normalizations, ops, patterns, positions, regularizers, scores, spec
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

# A call, the type of its exception, and a pattern in the message: what was expected and what came.
ROWS = {
    "a field of a specification without axes": (
        lambda: spec.complete(dataclasses.make_dataclass("Other", ["further", *spec.AXES])),
        TypeError,
        r"`AXES` must have the fields of Other\. Received: only one has \['further'\]",
    ),
    # patterns
    "a pattern without a rule": (
        lambda: patterns.Pattern()(3, 4),
        TypeError,
        r"Pattern must implement `attends\(self, i, j\)`\.",
    ),
    "a pattern of numbers": (
        lambda: ka.SelfAttention(2, 4, pattern=Nearness())(X),
        TypeError,
        r"must return booleans, .* Received: int32 from Nearness\(\)",
    ),
    "a pattern of numbers among others": (
        lambda: ka.SelfAttention(2, 4, pattern=Nearness())(X, use_causal_mask=True),
        TypeError,
        r"must return booleans, .* Received: int32 from Nearness\(\)",
    ),
    "a pattern of numbers in reverse order": (
        lambda: (patterns.Prefix(3) | ~Nearness())([0], [0]),
        TypeError,
        r"must return booleans, .* Received: int32 from Nearness\(\)",
    ),
    "a pattern with a Python and": (
        lambda: ka.SelfAttention(2, 4, pattern=Both())(X),
        TypeError,
        r"of Both is given arrays of positions\. Combine comparisons of them with `&`, `\|` and "
        r"`~`, each in parentheses, not with `and`.*Received: \w+: ",
    ),
    "a pattern with a Python and, among others": (
        lambda: ka.SelfAttention(2, 4, pattern=Both() & patterns.Causal())(X),
        TypeError,
        r"of Both is given arrays of positions",
    ),
    "a pattern of numbers among others, in a call": (
        lambda: (Nearness() & patterns.Causal())([0], [0]),
        TypeError,
        r"must return booleans, .* Received: int32 from Nearness\(\)",
    ),
    "an alpha of softmax": (
        lambda: normalizations.Entmax(1.0),
        ValueError,
        r"`alpha` must be at least 1\.01 and at most 2: 1 is 'softmax', and 2 is 'sparsemax'\. "
        r"Received: alpha=1\.0",
    ),
    "an alpha that is learned, at its end": (
        lambda: normalizations.AdaptiveEntmax(2.0),
        ValueError,
        r"`alpha` must be above 1\.01 and below 2: .* Received: alpha=2\.0",
    ),
    "an alpha of each of other heads": (
        lambda: [ka.SelfAttention(n, 4, normalization=ADAPTIVE)(X) for n in (2, 3)],
        ValueError,
        r"Heads of layers that share an AdaptiveEntmax must be equal\. "
        r"Received: built=2, received=3",
    ),
    "an alpha that no layer owns": (
        lambda: ka.ops.attend(*[zeros(B, T, 2, 4)] * 3, normalization="adaptive_entmax"),
        ValueError,
        r"`normalization` has weights, which a function cannot own: use a layer, or build it first",
    ),
    "a normalization that returns nothing": (
        lambda: ka.Attention(normalization=Speechless())(X),
        TypeError,
        r"`normalize\(self, scores, mask\)` of a normalization must return.*Received: None",
    ),
    "a pattern that does not keep its argument": (
        lambda: Forgetful(2).get_config(),
        TypeError,
        r"Forgetful must store its constructor argument `distance` in an attribute of that name, "
        r"`self\.distance`, to be saved and compared\. Received: none",
    ),
    "a grid without sizes": (
        lambda: patterns.Axial(16),
        ValueError,
        r"`grid` must be the sizes of a grid's axes, such as \(height, width\)\. Received: grid=16",
    ),
    "sizes of other axes than the grid's": (
        lambda: patterns.Neighborhood((8, 8), (3, 3, 3)),
        ValueError,
        r"`size` must be an integer, or one for each of the 2 axes of the grid\. "
        r"Received: size=\(3, 3, 3\)",
    ),
    "a window shifted by all of it": (
        lambda: patterns.GridWindow((8, 8), 4, 4),
        ValueError,
        r"`shift` must be less than `size`, and `size` at most the grid's along each axis\. "
        r"Received: grid=\(8, 8\), size=\(4, 4\), shift=\(4, 4\)",
    ),
    "an even neighborhood": (
        lambda: patterns.Neighborhood((8, 8), 4),
        ValueError,
        r"must be odd, and at most the grid's along each axis\. "
        r"Received: grid=\(8, 8\), size=\(4, 4\)",
    ),
    "an axis that the grid has not": (
        lambda: patterns.Axial((8, 8), 2),
        ValueError,
        r"`axis` must be one of the 2 axes of the grid, or None\. Received: axis=2",
    ),
    "a list of patterns that is none": (
        lambda: patterns.And("causal"),
        TypeError,
        r"`patterns` of And must be a list of patterns\. Received: 'causal'",
    ),
    "a flag that is a word": (
        lambda: ka.MultiHeadAttention(2, 4, use_bias="no"),
        TypeError,
        r"`use_bias` must be 'qkv', True or False\. Received: use_bias='no'",
    ),
    "a seed that is a word": (
        lambda: ka.Attention(seed="a"),
        TypeError,
        r"`seed` must be an integer or None\. Received: seed='a'",
    ),
    "a pattern as a truth value": (
        lambda: patterns.Causal() and patterns.SlidingWindow(2, 2),
        TypeError,
        r"Combine patterns with `&`, `\|` and `~`, not with `and`.* Received: Causal\(\)",
    ),
    "a combination of other things": (
        lambda: patterns.And([patterns.Causal(), "causal"]),
        TypeError,
        r"Expected patterns\. Received: 'causal'",
    ),
    "an empty combination": (
        lambda: patterns.Or([]),
        ValueError,
        r"Or needs at least one pattern\. Received: none",
    ),
    "the complement of another thing": (
        lambda: patterns.Not("causal"),
        TypeError,
        r"Expected a pattern\. Received: 'causal'",
    ),
    "a window of negative size": (
        lambda: patterns.SlidingWindow(-1, 0),
        ValueError,
        r"argument `left`, expected an integer of at least 0\. Received: left=-1",
    ),
    # normalizations, scores, positions
    "a normalization without a rule": (
        lambda: ops.attend(*heads(), normalization=normalizations.Normalization()),
        TypeError,
        r"Normalization must implement `normalize\(self, scores, mask\)`\.",
    ),
    "a scale of ScaledDot": (
        lambda: scores.ScaledDot(scale="1"),
        ValueError,
        r"`scale` must be a finite number or None\. Received: scale='1'",
    ),
    "a scale of Cosine": (
        lambda: scores.Cosine(scale=None),
        ValueError,
        r"`scale` must be a finite number\. Received: scale=None",
    ),
    # Scores
    "a score with nothing to compute": (
        Named,
        TypeError,
        r"Named must implement `call\(self, query, key\)`, or `prepare_query.*Received: a score "
        "with none of them",
    ),
    "a score that returns nothing": (
        lambda: ka.Attention(score=silent("call"))(X, Y),
        ValueError,
        r"A score must return scores \(B, H, T, S\), here \(2, 1, 3, 5\)\. Received: None",
    ),
    "a comparison that returns nothing": (
        lambda: ka.Attention(score=silent("compare"))(X, Y),
        ValueError,
        r"A score must return scores \(B, H, T, S\), here \(2, 1, 3, 5\)\. Received: None",
    ),
    "a key that is prepared to nothing": (
        lambda: ka.Attention(score=silent("prepare_key"))(X, Y),
        TypeError,
        r"Silent must return what it makes of query and key\. Received: None, from `prepare_key`",
    ),
    "a score that needs an argument": (
        lambda: ka.Attention(score="reduced_rank"),
        ValueError,
        r"The score 'reduced_rank' needs a `rank`, which a string cannot give\. Pass an object: "
        r"scores\.ReducedRank\(rank\)\. Received: score='reduced_rank'",
    ),
    "more random blocks than there are": (
        lambda: patterns.RandomBlocks(12, 4, 3),
        ValueError,
        r"`count` must be at most the number of other blocks, 2\. Received: count=3, length=12",
    ),
    "more keys than columns": (
        lambda: ka.Attention(score=scores.Location(4))(X, Y),
        ValueError,
        r"Location can score at most max_length=4 keys\. Received: 5",
    ),
    "positions beyond the columns of Location": (
        lambda: ka.SelfAttention(2, 4, score=scores.Location(5))(X, positions=[[0, 1, 5]]),
        ValueError,
        r"scores of positions below max_length=5\. Received: positions of keys up to 5",
    ),
    "the bias of a position without one": (
        lambda: positions.Position().bias(zeros(1), zeros(1), 2),
        TypeError,
        r"Position has no bias\.",
    ),
    "the bias of queries of a position without one": (
        lambda: positions.Position().query_bias(zeros(1), zeros(1), zeros(1), zeros(1)),
        TypeError,
        r"Position has no bias of queries\.",
    ),
    # kernels and ops
    "an unknown kernel": (
        lambda: ops.attend(*heads(), kernel="quantum"),
        ValueError,
        r"`kernel` must be one of \('auto', .*Received: kernel='quantum'",
    ),
    "the log-sum-exp of what is no softmax": (
        lambda: ops.attend(*heads(), normalization="sigmoid", return_lse=True),
        ValueError,
        "`return_lse` is the logarithm.*Received: normalization=Sigmoid",
    ),
    "nothing to merge": (lambda: ops.merge([]), ValueError, r"`results` must be pairs.*: \[\]"),
    "a kernel that cannot": (
        lambda: ops.attend(*heads(), kernel="banded"),
        ValueError,
        r"'banded' cannot do this: the pattern has no window.*Received: kernel='banded'",
    ),
    "a score with weights and no layer": (
        lambda: ops.attend(*heads(), score="general"),
        ValueError,
        r"`score` has weights, which a function cannot own.*Received: score=<General",
    ),
    "a position with weights and no layer": (
        lambda: ops.attend(*heads(), position="relative_bias"),
        ValueError,
        r"`position` has weights, which a function cannot own.*Received: position=<RelativeBias",
    ),
    "rank of the mask": (
        lambda: ops.attend(*heads(), mask=zeros(S, dtype="bool")),
        ValueError,
        r"`mask` must be \(T, S\), \(B, T, S\) or \(B, H, T, S\)\. Received: mask\.shape=\(5,\)",
    ),
    "an offset that is no integer": (
        lambda: ops.attend(*heads(), offset=0.5),
        ValueError,
        r"`offset` must be an integer, or integers \(B,\)\. Received dtype float32 and shape \(\)",
    ),
    "a soft cap of zero": (
        lambda: ops.attend(*heads(), logit_soft_cap=0),
        ValueError,
        r"`logit_soft_cap` must be a finite number above 0\. Received: logit_soft_cap=0",
    ),
    # Heads, hard attention, regularizers
    "groups of heads that do not divide": (
        lambda: ka.MultiHeadAttention(4, 8, num_key_value_heads=3),
        ValueError,
        r"`num_key_value_heads` must divide `num_heads`\. Received: num_key_value_heads=3, "
        r"num_heads=4",
    ),
    "a norm of another name": (
        lambda: ka.TransformerBlock(8, 2, qk_norm=True),
        ValueError,
        r"`qk_norm` must be one of \(False, 'rms', 'layer'\), or a Keras layer\. "
        r"Received: qk_norm=True",
    ),
    "a sink without softmax": (
        lambda: ka.Attention(normalization="sigmoid", use_sink=True),
        ValueError,
        r"`use_sink=True` needs normalization='softmax'\. Received: normalization=Sigmoid\(\)",
    ),
    "a choice whose probability nobody returns": (
        lambda: ka.Attention(normalization=normalizations.Hard("reinforce")),
        ValueError,
        r"HardAttention\(gradient='reinforce'\)`\. Received it as `normalization` of Attention",
    ),
    "a gradient of another name": (
        lambda: ka.HardAttention(gradient="reparam"),
        ValueError,
        r"`gradient` must be one of \('straight_through', 'reinforce'\)\. "
        r"Received: gradient='reparam'",
    ),
    "a temperature of zero": (
        lambda: normalizations.Hard(temperature=0.0),
        ValueError,
        r"`temperature` must be a finite number above 0\. Received: temperature=0\.0",
    ),
    "rewards for each choice": (
        lambda: ka.ReinforceLoss()(zeros(B, 2, T), zeros(B, 2)),
        ValueError,
        r"`reward` must be one number a row, \(B,\) or \(B, 1\)\. "
        r"Received: reward\.shape=\(2, 2\)",
    ),
    "rewards of another batch": (
        lambda: ka.ReinforceLoss()(zeros(B, 2, T), zeros(B + 1)),
        ValueError,
        r"Batch sizes must be equal\. Received: log_probability=2, reward=3",
    ),
    "a regularizer without a rule": (
        lambda: regularizers.Regularizer()(zeros(B, 2, T, S), None),
        TypeError,
        r"Regularizer must implement `__call__\(self, weights, mask\)`\.",
    ),
    "an entropy of nothing": (
        lambda: regularizers.Entropy(float("nan")),
        ValueError,
        r"`factor` must be a finite number\. Received: factor=nan",
    ),
    "an unknown regularizer": (
        lambda: ka.Attention(scores_regularizer="l2"),
        ValueError,
        r"Unknown scores_regularizer 'l2'\. Expected one of \['coverage', 'doubly_stoch",
    ),
}
