"""What is raised by patterns, scores, normalizations, regularizers, and functions of arrays."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import normalizations, ops, patterns, positions, regularizers, scores
from tests.errors.calls import B, D, S, T, X, Y, attend, ints, over, true, zeros

ADAPTIVE = normalizations.AdaptiveEntmax()


class Nearness(patterns.Pattern):
    def attends(self, i, j):
        return i - j


class Both(patterns.Pattern):
    def attends(self, i, j):
        return i - j == 2 and j > 0


class Forgetful(patterns.Pattern):
    def __init__(self, distance):
        self.reach = distance


class Named(scores.Score):
    """Calls its method something else."""

    def score(self, query, key):
        return query


class Unbegun(scores.Score):
    def __init__(self, sharpness):
        self.sharpness = sharpness


class Speechless(normalizations.Normalization):
    """Forgets to return its weights."""

    def normalize(self, scores, mask):
        keras.ops.exp(scores)


def scored(name, method):
    """A call with a score that has this method."""
    return ka.Attention(score=type("Odd", (scores.Score,), {name: method})())(X, Y)


ROWS = {
    # Patterns
    r"Pattern must implement `attends\(self, i": (TypeError, lambda: patterns.Pattern()(3, 4)),
    r"int32 from Nearness\(\)": (
        TypeError,
        lambda: over(slots={"pattern": Nearness()}),
        lambda: over(slots={"pattern": Nearness()}, use_causal_mask=True),
        lambda: (patterns.Prefix(3) | ~Nearness())([0], [0]),
        lambda: (Nearness() & patterns.Causal())([0], [0]),
    ),
    r"of Both is given arrays of positions.*Received: \w+: ": (
        TypeError,
        lambda: over(slots={"pattern": Both()}),
        lambda: over(slots={"pattern": Both() & patterns.Causal()}),
    ),
    "Forgetful must store.* `distance`": (TypeError, lambda: Forgetful(2).get_config()),
    "`grid` .*grid=16": lambda: patterns.Axial(16),
    r"`size` .*size=\(3, 3, 3\)": lambda: patterns.Neighborhood((8, 8), (3, 3, 3)),
    r"size=\(4, 4\), shift=\(4, 4\)": lambda: patterns.GridWindow((8, 8), 4, 4),
    r"size=\(3, 3\), dilation=\(2, 3\)": lambda: patterns.Neighborhood((8, 8), 3, 0, (2, 3)),
    "`axis` .*axis=2": lambda: patterns.Axial((8, 8), 2),
    "`patterns` of And .*'causal'": (TypeError, lambda: patterns.And("causal")),
    r"Received: Causal\(\)": (TypeError, lambda: patterns.Causal() and patterns.Causal()),
    "Expected patterns.*'causal'": (TypeError, lambda: patterns.And([patterns.Causal(), "causal"])),
    "Or needs at least one": lambda: patterns.Or([]),
    "Expected a pattern.*'causal'": (TypeError, lambda: patterns.Not("causal")),
    "at most 1073741823.*left=1": lambda: patterns.SlidingWindow(2**40, 0),
    "count=3, length=12": lambda: patterns.RandomBlocks(12, 4, 3),
    "count=1, length=12, .*distance=2, ends=1": lambda: patterns.BigBird(12, 4, 1),
    # Scores
    "Named must implement.*with none of them": (TypeError, Named),
    r"scores \(B, H, T, S\).*Received: (None|\(2, 1, 5, 3\))": (
        lambda: scored("call", lambda self, query, key: None),
        lambda: scored("compare", lambda self, query, key: None),
        lambda: scored("call", lambda *_: zeros(B, 1, S, T)),
    ),
    "None, from `prepare_key`": (TypeError, lambda: scored("prepare_key", lambda self, key: None)),
    "`Unbegun.__init__` must begin": (TypeError, lambda: ka.Attention(score=Unbegun(2))),
    "score='reduced_rank'": lambda: ka.Attention(score="reduced_rank"),
    "Unknown score 'dots'. Expected .*'additive'": lambda: ka.Attention(score="dots"),
    "'luong', which is score=\"general\" here": lambda: ka.Attention(score="luong"),
    "'RoPE', which is position=\"rotary\" here": lambda: ka.Attention(position="RoPE"),
    "max_length=4.*Received: 5": lambda: ka.Attention(score=scores.Location(4))(X, Y),
    "keys up to 5": lambda: over(slots={"score": scores.Location(5)}, positions=[[0, 1, 5]]),
    # Normalizations and regularizers
    "alpha=[12]": (lambda: normalizations.Entmax(1.0), lambda: normalizations.AdaptiveEntmax(2.0)),
    "received=3": lambda: [over(num_heads=n, slots={"normalization": ADAPTIVE}) for n in (2, 3)],
    r"Normalization must implement `normalize": (
        TypeError,
        lambda: attend(normalization=normalizations.Normalization()),
    ),
    r"normalize\(.* return.*None": (TypeError, lambda: over(slots={"normalization": Speechless()})),
    "it as `normalization`": lambda: ka.Attention(normalization=normalizations.Hard("reinforce")),
    "Regularizer must implement `__call__": (TypeError, lambda: regularizers.Regularizer()(0, 0)),
    # Functions of arrays
    r"`query` .*\(B, T, H, K\).*query\.shape=\(2, 3, 4\)": lambda: attend(query=(B, T, D)),
    r"`key` .*key\.shape=\(5, 2, 4\)": lambda: attend(key=(S, 2, D)),
    r"`value` .*value\.shape=\(2, 5, 2, 4, 1\)": lambda: attend(value=(B, S, 2, D, 1)),
    "query=3, key=2, value=2": lambda: attend(query=(3, T, 2, D)),
    "key=5, value=4": lambda: attend(value=(B, 4, 2, D)),
    "key=1, value=2": lambda: attend(key=(B, S, 1, D)),
    "divide them.*query=3, key=2": lambda: attend(query=(B, T, 3, D)),
    "ScaledDot compares.*query=3, key=4": lambda: attend(query=(B, T, 2, 3)),
    "`query_positions` .*1099511627776": lambda: attend(query_positions=np.array([0, 1, 2**40])),
    "`dropout` .*dropout='0.1'": lambda: attend(dropout="0.1"),
    "`kernel` .*kernel='quantum'": lambda: attend(kernel="quantum"),
    "'banded' cannot do this: the pattern has no window": lambda: attend(kernel="banded"),
    "`return_lse` .*Sigmoid": lambda: attend(normalization="sigmoid", return_lse=True),
    r"`results` must be pairs.*: \[\]": lambda: ops.merge([]),
    "`score` has weights.*<General": lambda: attend(score="general"),
    "`normalization` has weights.*": lambda: attend(normalization="adaptive_entmax"),
    r"`mask` .*mask\.shape=\(5,\)": lambda: attend(mask=true(S)),
    r"`offset` .*float32 and shape \(\)": lambda: attend(offset=0.5),
    "query=2, offset=3": lambda: attend(offset=ints(3)),
    "`offset` and `query_positions` .*offset=2": lambda: attend(offset=2, query_positions=range(T)),
    "`logit_soft_cap` .*logit_soft_cap=0": lambda: attend(logit_soft_cap=0),
    "`bias` must be numbers.*Pass a mask as": (TypeError, lambda: attend(bias=true(T, S))),
    r"`bias\[None\]`.*shape=\(2, 3, 5\)": lambda: attend(bias=zeros(2, T, S)),
    "`sink` needs .*Sigmoid": lambda: attend(normalization="sigmoid", sink=zeros(2)),
    r"`sink` must .*sink\.shape=\(3,\)": lambda: attend(sink=zeros(3)),
    r"no bias$|bias\.": (TypeError, lambda: positions.Position().bias(zeros(1), zeros(1), 2)),
    "no bias of queries": (TypeError, lambda: positions.Position().query_bias(*[zeros(1)] * 4)),
}
