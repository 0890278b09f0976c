"""Every `raise` of the package: a call that reaches it, the exception's type, and its message.

The last test parses the package, and fails when a `raise` has no row here that reaches it.
"""

import ast
import re
import sys
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import (
    convert,
    generation,
    normalizations,
    ops,
    patterns,
    positions,
    regularizers,
    scores,
    shapes,
    visualization,
)
from keras_attention.layers import kv_cache
from keras_attention.layers.position_embedding import PositionEmbedding
from keras_attention.visualization import labels

PACKAGE = Path(ka.__file__).parent

B, T, S, D = 2, 3, 5, 4


def zeros(*shape, dtype="float32"):
    return keras.ops.zeros(shape, dtype)


def heads(*shapes):
    return [zeros(*shape) for shape in shapes or ((B, T, 2, D), (B, S, 2, D), (B, S, 2, D))]


X = np.zeros((B, T, D), "float32")
Y = np.zeros((B, S, D), "float32")
ADDITIVE = np.where(np.eye(T, S) > 0, 0.0, -1e9).astype("float32")


class Unbegun(scores.Score):
    def __init__(self, sharpness):
        self.sharpness = sharpness


RELATIVE_BIAS = positions.RelativeBias(8)


def cell(**kwargs):
    return ka.AttentionCell(keras.layers.GRUCell(D), "dot", **kwargs)


def built_attention(query=X, value=None, key=None):
    """A call of a layer that was built for a value of 6 features and a key of 4."""
    layer = ka.MultiHeadAttention(2, 4)
    layer.build((B, T, D), (B, S, 6), (B, S, D))
    value = np.zeros((B, S, 6), "float32") if value is None else value
    return layer(query, value, Y if key is None else key)


def built_cell():
    """A cell, and the `RNN` that has built it."""
    built = cell()
    rnn = keras.layers.RNN(built)
    rnn(X, initial_state=built.initial_state(Y))
    return built, rnn


def multi_head(**kwargs):
    layer = ka.MultiHeadAttention(2, 4, **kwargs)
    layer.build(X.shape, Y.shape)
    return layer


def memory():
    return multi_head().cache_context(Y)


def decoder(causal=True):
    block = ka.TransformerBlock(8, 2, causal=causal, cross_attention=True)
    block.build(X.shape, Y.shape)
    return block


class Nearness(patterns.Pattern):
    def attends(self, i, j):
        return i - j


class Both(patterns.Pattern):
    def attends(self, i, j):
        return i - j == 2 and j > 0


class Forgetful(patterns.Pattern):
    def __init__(self, distance):
        self.reach = distance

    def attends(self, i, j):
        return i - j == self.reach


class Named(scores.Score):
    """Calls its method something else."""

    def score(self, query, key):
        return query


def silent(name):
    """A score whose method `name` forgets to return something."""
    nothing = (lambda self, x: None) if name == "prepare_key" else (lambda self, query, key: None)
    return type("Silent", (scores.Score,), {name: nothing})()


class Misshapen(scores.Score):
    """Forgets where the heads belong."""

    def call(self, query, key):
        return keras.ops.einsum("bthk,bshk->btsh", query, key)


def built_feed_forward():
    layer = ka.FeedForward(8, name="plain")
    layer.build(X.shape)
    return layer


def plot_without_matplotlib():
    with mock.patch.dict(sys.modules, {"matplotlib.figure": None}):
        visualization.plot_attention(np.ones((2, 2)))


def step_giving(logits, cache=()):
    """A step of generation that returns the same each time."""
    return lambda tokens, _: (logits, cache)


def greedy(step=None, tokens=(0, 0), cache=(), memory=None, **options):
    options = {"max_tokens": 2, **options}
    step = step_giving(zeros(B, 4)) if step is None else step
    return generation.greedy(step, np.array(tokens), cache, memory, **options)


def sample(**options):
    return generation.sample(step_giving(zeros(B, 4)), [0, 0], (), max_tokens=2, **options)


def beam_search(**options):
    options = {"num_beams": 2, "max_tokens": 2, **options}
    return generation.beam_search(step_giving(zeros(2 * B, 4)), [0, 0], (), **options)


SHARED, SHARED_SCORE = positions.Shaw(2), scores.General()


# A call, the type of its exception, and a pattern in the message: what was expected and what came.
def nested(pattern, times):
    for _ in range(times):
        pattern = ~pattern
    return pattern


ROWS = {
    "patterns nested too deep": (
        lambda: nested(patterns.Causal(), 101),
        ValueError,
        r"nested 100 deep\. Received: Not",
    ),
    "a weight of too many elements": (
        lambda: ka.MultiHeadAttention(10**9, 10**9).build((B, T, D)),
        ValueError,
        r"`query` would have more than 1099511627776 elements.*shape \(4, 1000000000, 1000000000\)",
    ),
    "distances without number": (
        lambda: positions.RelativeBias(32, 2**20 + 1),
        ValueError,
        r"`max_distance` must be at most 1048576.*Received: max_distance=1048577",
    ),
    # convert: all of what it refuses is in test_convert.py
    "a layer that is not converted": (
        lambda: convert.from_keras(keras.layers.Dense(2)),
        ValueError,
        r"Cannot convert a keras Dense named 'dense.*': expected one of keras: AdditiveAttention",
    ),
    # shapes
    "rank of query": (
        lambda: ops.attend(*heads((B, T, D), (B, S, 2, D), (B, S, 2, D))),
        ValueError,
        r"`query` must have 4 axes, \(B, T, H, K\)\. Received: query\.shape=\(2, 3, 4\)",
    ),
    "rank of key": (
        lambda: ops.attend(*heads((B, T, 2, D), (S, 2, D), (B, S, 2, D))),
        ValueError,
        r"`key` must have 4 axes, \(B, S, G, K\)\. Received: key\.shape=\(5, 2, 4\)",
    ),
    "rank of value": (
        lambda: ops.attend(*heads((B, T, 2, D), (B, S, 2, D), (B, S, 2, D, 1))),
        ValueError,
        r"`value` must have 4 axes, \(B, S, G, V\)\. Received: value\.shape=\(2, 5, 2, 4, 1\)",
    ),
    "batch sizes": (
        lambda: ops.attend(*heads((3, T, 2, D), (B, S, 2, D), (B, S, 2, D))),
        ValueError,
        r"Batch sizes must be equal\. Received: query=3, key=2, value=2",
    ),
    "lengths of key and value": (
        lambda: ops.attend(*heads((B, T, 2, D), (B, S, 2, D), (B, 4, 2, D))),
        ValueError,
        r"Lengths of key and value must be equal\. Received: key=5, value=4",
    ),
    "numbers of heads": (
        lambda: ops.attend(*heads((B, T, 2, D), (B, S, 1, D), (B, S, 2, D))),
        ValueError,
        r"Numbers of heads must be equal\. Received: key=1, value=2",
    ),
    "numbers of heads that do not divide": (
        lambda: ops.attend(*heads((B, T, 3, D), (B, S, 2, D), (B, S, 2, D))),
        ValueError,
        r"Heads of `key` must be as many as those of `query`, or divide them.*query=3, key=2",
    ),
    "numbers of features": (
        lambda: ops.attend(*heads((B, T, 2, 3), (B, S, 2, D), (B, S, 2, D))),
        ValueError,
        r"features that ScaledDot compares must be equal\. Received: query=3, key=4",
    ),
    "a count of zero": (
        lambda: ka.Attention(num_heads=0, key_dim=4),
        ValueError,
        r"argument `num_heads`, expected an integer of at least 1\. Received: num_heads=0",
    ),
    "a count that is a float": (
        lambda: ka.FeedForward(2.0),
        ValueError,
        r"argument `intermediate_dim`.* Received: intermediate_dim=2\.0",
    ),
    "a count that is a bool": (
        lambda: ka.ScaledEmbedding(10, True),
        ValueError,
        r"argument `dim`.* Received: dim=True",
    ),
    "vectors of another size than the table's": (
        lambda: ka.ScaledEmbedding(10, 6)(X, reverse=True),
        ValueError,
        r"`inputs` must be vectors \(\.\.\., 6\) with `reverse=True`\..*"
        r"Received: inputs\.shape=\(2, \d, 4\)",
    ),
    "a rate of one": (
        lambda: ka.TransformerBlock(8, 2, dropout=1),
        ValueError,
        r"`dropout` must be a number in \[0, 1\)\. Received: dropout=1",
    ),
    "a rate that is text": (
        lambda: ops.attend(*heads(), dropout="0.1"),
        ValueError,
        r"`dropout` must be a number in \[0, 1\)\. Received: dropout='0\.1'",
    ),
    "lengths of a layer's key and value": (
        lambda: ka.Attention()(X, Y, X),
        ValueError,
        r"All dimensions of `value` and `key`, except the last.*"
        r"value_shape=\(2, 5, 4\) and key_shape=\(2, 3, 4\)",
    ),
    "a padding mask of another length": (
        lambda: ka.Attention()(X, Y, query_mask=np.ones((B, T + 1), bool)),
        ValueError,
        r"Lengths of `query` and its mask must be equal\. Received: query=3, query_mask=4",
    ),
    "a padding mask with another number of axes": (
        lambda: ka.Attention()(X, Y, value_mask=np.ones((S,), bool)),
        ValueError,
        r"`value_mask` must have 2 axes, \(batch, positions\)\.",
    ),
    "a mask by the name of another library": (
        lambda: ka.MultiHeadAttention(2, 4)(X, X, key_padding_mask=np.ones((B, T), bool)),
        TypeError,
        r"MultiHeadAttention takes no `key_padding_mask`\. Its masks are `query_mask` \(B, T\) and "
        r"`value_mask` \(B, S\) for padding, .*True = attend\. Received: key_padding_mask of type",
    ),
    "a mask of a block by another name": (
        lambda: ka.TransformerBlock(8, 2)(X, padding_mask=np.ones((B, T), bool)),
        TypeError,
        r"TransformerBlock takes no `padding_mask`\. Its masks are `mask` \(B, T\) and ",
    ),
    "one mask for two sequences": (
        lambda: ka.Attention()(X, Y, mask=np.ones((B, S), bool)),
        ValueError,
        r"`mask` must be the padding \(B, T\) of one sequence .*Received: a `value` beside it",
    ),
    "one mask for a list": (
        lambda: ka.Attention()([X, Y], mask=np.ones((B, S), bool)),
        ValueError,
        r"`mask` must be .*a list of masks for a list.*Received: a list and a mask of type",
    ),
    "a mask of pairs as padding": (
        lambda: ka.SelfAttention(2, 4)(X, mask=np.ones((B, T, T), bool)),
        ValueError,
        r"`mask` must be .*of pairs, .*as `attention_mask`\. Received: mask\.shape=\(2, 3, 3\)",
    ),
    "one symbolic mask for two sequences": (
        lambda: ka.Attention()(
            keras.Input((T, D)), keras.Input((S, D)), mask=keras.Input((S,), dtype="bool")
        ),
        ValueError,
        r"`mask` must be the padding \(B, T\) of one sequence .*Received: a `value` beside it",
    ),
    "an attention mask of another length": (
        lambda: ka.MultiHeadAttention(2, 4)(X, Y, attention_mask=np.ones((T, S + 1), bool)),
        ValueError,
        r"Lengths of the mask and of `key` must be equal\. Received: mask=6, key=5",
    ),
    "padding as an attention mask": (
        lambda: ka.MultiHeadAttention(2, 4)(X, Y, attention_mask=np.ones((B, S), bool)),
        ValueError,
        r"An `attention_mask` of two axes is \(T, S\), here 3 queries, and the same for all rows\. "
        r"Pass padding, \(B, S\) or \(B, T\), as `value_mask` or `query_mask`\. "
        r"Received: attention_mask\.shape=\(2, 5\)",
    ),
    "other features than the layer was built for": (
        lambda: built_attention(query=X[..., :2]),
        ValueError,
        r"`query` must have 4 features, as when the layer was built\. "
        r"Received: query\.shape=\(2, 3, 2\)",
    ),
    "key and value in each other's place": (
        lambda: built_attention(value=Y, key=np.zeros((B, S, 6), "float32")),
        ValueError,
        r"`key` must have 4 features, .*the order of inputs is query, value, key",
    ),
    # saving: the slots
    "an unknown score": (
        lambda: ka.Attention(score="dots"),
        ValueError,
        r"Unknown score 'dots'\. Expected one of \['additive', .*\].* subclass of Score",
    ),
    "an unknown normalization": (
        lambda: ka.AttentionPooling(normalization="softmin"),
        ValueError,
        r"Unknown normalization 'softmin'\. Expected one of \['hard', 'sigmoid', 'softmax', ",
    ),
    "an unknown pattern": (
        lambda: ka.TransformerBlock(8, 2, pattern="casual"),
        ValueError,
        r"Unknown pattern 'casual'\. Expected one of \['causal'\]",
    ),
    "an unknown position": (
        lambda: ka.Attention(position="sideways"),
        ValueError,
        r"Unknown position 'sideways'\.",
    ),
    "a score that does not begin as a layer": (
        lambda: ka.Attention(score=Unbegun(2)),
        TypeError,
        r"The score is a Keras layer: `Unbegun.__init__` must begin with "
        r"`super\(\)\.__init__\(\*\*kwargs\)`",
    ),
    "a slot of another kind": (
        lambda: ka.Attention(score=patterns.Causal()),
        TypeError,
        r"`score` must be a string, an instance of Score or its saved config\. "
        r"Received: Causal\(\) \(of type Causal\)",
    ),
    "a saved config of another kind": (
        lambda: patterns.get(keras.saving.serialize_keras_object(normalizations.Softmax())),
        TypeError,
        r"`pattern` must be .* Received: Softmax\(\) \(of type Softmax\)",
    ),
    # masks
    "a symbolic float mask": (
        lambda: ka.Attention()(
            keras.Input((T, D)), keras.Input((S, D)), attention_mask=keras.Input((T, S))
        ),
        TypeError,
        r"`attention_mask` must be boolean, True = attend\. Received dtype float32.*dtype='bool'",
    ),
    "an additive mask": (
        lambda: ops.attend(*heads(), mask=ADDITIVE),
        ValueError,
        r"`mask` must be boolean, .*Received dtype float32 with the value -1000000000\.0.*bias",
    ),
    "an additive mask of a layer": (
        lambda: ka.Attention()(X, Y, attention_mask=ADDITIVE),
        ValueError,
        r"`attention_mask` must be boolean, .*with the value -1000000000\.0",
    ),
    "a mask of counts": (
        lambda: ka.Attention()(X, Y, value_mask=np.array([[3, 1, 0, 0, 0]] * B, "int32")),
        ValueError,
        r"`value_mask` must be boolean, .*Received dtype int32 with the value 3",
    ),
    "an additive mask of a block": (
        lambda: ka.TransformerBlock(8, 2, kernel_initializer="zeros")(
            X, mask=np.array([[0.0, 0.0, -1e9]] * B)
        ),
        ValueError,
        r"`mask` must be boolean, .*with the value -1000000000\.0",
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
    "a pattern of numbers turned round": (
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
    "a pattern that does not keep its argument": (
        lambda: Forgetful(2).get_config(),
        TypeError,
        r"Forgetful must store its constructor argument `distance` in an attribute of that name, "
        r"`self\.distance`, to be saved and compared\. Received: none",
    ),
    "a list of patterns that is none": (
        lambda: patterns.And("causal"),
        TypeError,
        r"`patterns` of And must be a list of patterns\. Received: 'causal'",
    ),
    "a flag that is a word": (
        lambda: ka.MultiHeadAttention(2, 4, use_bias="no"),
        TypeError,
        r"`use_bias` must be True or False\. Received: use_bias='no'",
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
    "more keys than columns": (
        lambda: ka.Attention(score=scores.Location(4))(X, Y),
        ValueError,
        r"Location can score at most max_length=4 keys\. Received: 5",
    ),
    "the bias of a position without one": (
        lambda: positions.Position().bias(zeros(1), zeros(1), 2),
        TypeError,
        r"Position has no bias\.",
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
        r"`qk_norm` must be one of \(False, 'rms', 'layer'\)\. Received: qk_norm=True",
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
        r"Unknown scores_regularizer 'l2'\. Expected one of \['doubly_stochastic', 'entropy'\]",
    ),
    # Ranges, positions and segments
    "a mode of another name": (
        lambda: ka.LocalAttention(2, "local-p"),
        ValueError,
        r"`mode` must be one of \('monotonic', 'predictive'\)\. Received: mode='local-p'",
    ),
    "a window of nothing": (
        lambda: ka.LocalAttention(0),
        ValueError,
        r"argument `window`, expected an integer of at least 1\. Received: window=0",
    ),
    "positions that do not go with the score": (
        lambda: ka.Attention(2, 4, score="cosine", position=positions.Shaw(2)),
        ValueError,
        r"Shaw supports only these scores: Dot or ScaledDot\. Received: score=Cosine",
    ),
    "a Shaw shared by layers of other sizes": (
        lambda: [ka.SelfAttention(2, k, position=SHARED)(X) for k in (4, 3)],
        ValueError,
        r"Layers sharing a Shaw need equal sizes\. It was built for value_dim=4\. "
        r"Received: value_dim=3",
    ),
    "one array for two sequences": (
        lambda: ka.Attention()(X, Y, positions=np.arange(T)),
        ValueError,
        r"`positions` must be a pair, for query and key, when the two are not one sequence",
    ),
    "segments of the keys alone": (
        lambda: ka.Attention()(X, Y, segment_ids=(None, np.ones((B, S), "int32"))),
        ValueError,
        r"`segment_ids` must number both queries and keys\. Received: segment_ids=\(None, ",
    ),
    "positions that are floats": (
        lambda: ka.SelfAttention(2, 4)(X, positions=np.arange(T) / 2),
        TypeError,
        r"`positions` must be integers\. Received dtype float",
    ),
    "segments of one row": (
        lambda: ka.SelfAttention(2, 4)(X, segment_ids=np.arange(T)),
        ValueError,
        r"`segment_ids` must be \(B, T\) for each sequence\. Received shape \(3,\) for `query`",
    ),
    "positions of another length": (
        lambda: ka.SelfAttention(2, 4)(X, positions=np.arange(T + 1)),
        ValueError,
        r"Lengths of `query` and its positions must be equal\. Received: query=3, positions=4",
    ),
    "segments of another batch": (
        lambda: ka.SelfAttention(2, 4)(X, segment_ids=np.ones((B + 1, T), "int32")),
        ValueError,
        r"Batch sizes of `query` and its segment_ids must be equal\. Received: query=2, "
        r"segment_ids=3",
    ),
    "a bias of another batch": (
        lambda: ka.SelfAttention(2, 4)(X[:1], attention_bias=zeros(3, T, T)),
        ValueError,
        r"Batch sizes of the bias and of `query` must be equal\. Received: bias=3, query=1",
    ),
    "a bias of too few axes, of a functional model": (
        lambda: ka.SelfAttention(2, 4)(keras.Input((T, D)), attention_bias=zeros(T)),
        ValueError,
        r"`attention_bias` must be \(T, S\), .*Received: attention_bias\.shape=\(3,\)",
    ),
    "a mask as the bias of a function": (
        lambda: ops.attend(*heads(), bias=zeros(T, S, dtype="bool")),
        TypeError,
        r"`bias` must be numbers to add .*Received: dtype bool\. Pass a mask as `mask`\.",
    ),
    "a bias of three axes": (
        lambda: ops.attend(*heads(), bias=zeros(2, T, S)),
        ValueError,
        r"`bias` must be \(T, S\), or have four axes.*`bias\[None\]`.*shape=\(2, 3, 5\)",
    ),
    "a bias of five axes": (
        lambda: ops.attend(*heads(), bias=zeros(1, B, 2, T, S)),
        ValueError,
        r"`bias` must be \(T, S\), or have four axes.*Received: bias\.shape=\(1, 2, 2, 3, 5\)",
    ),
    "offsets of another batch": (
        lambda: ops.attend(*heads(), offset=zeros(3, dtype="int32")),
        ValueError,
        r"Batch sizes of `query` and `offset` must be equal\. Received: query=2, offset=3",
    ),
    "a bias that is a mask": (
        lambda: ka.SelfAttention(2, 4)(X, attention_bias=zeros(T, T, dtype="bool")),
        TypeError,
        r"`attention_bias` must be numbers to add to the scores\. Received: dtype bool\.",
    ),
    "a sink of a sigmoid, as a function": (
        lambda: ops.attend(*heads(), normalization="sigmoid", sink=zeros(2)),
        ValueError,
        r"`sink` needs normalization='softmax'\. Received: normalization=Sigmoid\(\)",
    ),
    "sinks of other heads": (
        lambda: ops.attend(*heads(), sink=zeros(3)),
        ValueError,
        r"`sink` must be one number for each head of `query`, \(H,\)\. Received: "
        r"sink\.shape=\(3,\)",
    ),
    "two ways to say where queries stand": (
        lambda: ops.attend(*heads(), offset=2, query_positions=np.arange(T)),
        ValueError,
        r"`offset` and `query_positions` both say where queries stand.*Received: offset=2",
    ),
    "segments round a predicted centre": (
        lambda: ka.LocalAttention(2, "predictive")(
            X, Y, segment_ids=(zeros(B, T, dtype="int32"), zeros(B, S, dtype="int32"))
        ),
        ValueError,
        r"mode='predictive' takes no `segment_ids`",
    ),
    "a score with its axes in another order": (
        lambda: ops.attend(*heads((B, T, 4, D), (B, S, 4, D), (B, S, 4, D)), score=Misshapen()),
        ValueError,
        r"A score must return scores \(B, H, T, S\), here \(2, 4, 3, 5\)\. "
        r"Received: \(2, 3, 5, 4\)",
    ),
    "a recurrent layer for its cell": (
        lambda: ka.AttentionCell(keras.layers.GRU(4), "dot"),
        TypeError,
        r"`cell` must be a cell for `keras\.layers\.RNN`, such as `keras\.layers\.GRUCell",
    ),
    "an argument that a preset fixes": (
        lambda: ka.RelativePositionAttention(2, 4, 3, position="alibi"),
        TypeError,
        r"RelativePositionAttention does not accept `position`\. Received: position='alibi'",
    ),
    "a class for an object": (
        lambda: ka.Attention(pattern=patterns.Causal),
        TypeError,
        r"`pattern` must be .*\(of type type\)\. Pass an instance, Causal\(…\)",
    ),
    "a score shared by layers of other sizes": (
        lambda: [ka.Attention(h, 4, score=SHARED_SCORE)(X) for h in (1, 2)],
        ValueError,
        r"Layers sharing a General need equal sizes.*\(\(1, 4\), \(1, 4\)\)\. "
        r"Received: \(\(2, 4\), \(2, 4\)\)",
    ),
    "segments of an image": (
        lambda: ka.MultiHeadAttention(2, 4)(
            zeros(B, T, T, D), segment_ids=np.ones((B, T * T), "int32")
        ),
        ValueError,
        r"`segment_ids` needs inputs \(batch, positions, features\).*query\.shape=\(2, 3, 3, 4\)",
    ),
    "a class token of unknown features": (
        lambda: ka.ClassToken()(keras.Input((T, None))),
        ValueError,
        r"`x` must be \(batch, positions, features\).*Received: x\.shape=\(None, 3, None\)",
    ),
    # Attention
    "heads without projections": (
        lambda: ka.Attention(num_heads=2),
        ValueError,
        r"Without `key_dim` there are no projections.* pass .* `key_dim`\. "
        r"Received: num_heads=2, value_dim=None, "
        r"use_bias=False",
    ),
    "no score": (
        lambda: ka.Attention(score=None),
        TypeError,
        r"`score` must be a string, an instance of Score.* Received: None",
    ),
    "no normalization": (
        lambda: ka.TransformerBlock(8, 2, normalization=None),
        TypeError,
        r"`normalization` must be a string, an instance of Normalization.* Received: None",
    ),
    "rank of a layer's query": (
        lambda: ka.Attention()(zeros(B, D), Y),
        ValueError,
        r"`query` must have 3 axes, \(batch, positions, features\)\. Received: "
        r"query\.shape=\(2, 4\)",
    ),
    "rank of a layer's mask": (
        lambda: ka.Attention()(X, Y, attention_mask=zeros(S, dtype="bool")),
        ValueError,
        r"`attention_mask` must be \(T, S\).*Received: attention_mask\.shape=\(5,\)",
    ),
    "a list and a tensor": (
        lambda: ka.Attention()([X, Y], Y),
        ValueError,
        r"either as one list or as three arguments\. Received: a list, and `value` or `key`",
    ),
    "a list of one": (
        lambda: ka.Attention()([X]),
        ValueError,
        r"must be \[query, value\] or \[query, value, key\]\. Received a list of length 1",
    ),
    "a list of four": (
        lambda: ka.Attention()([X, Y, Y, Y]),
        ValueError,
        r"must be \[query, value\] or \[query, value, key\]\. Received a list of length 4",
    ),
    "two sequences for one": (
        lambda: ka.SelfAttention()(X, Y),
        ValueError,
        r"SelfAttention takes one sequence\. Received: query\.shape=\(2, 3, 4\), "
        r"value\.shape=\(2, 5, 4\)",
    ),
    # MultiHeadAttention
    "flash_attention of another type": (
        lambda: ka.MultiHeadAttention(2, 4, flash_attention="yes"),
        TypeError,
        r"`flash_attention` must be None, True or False\. Received: flash_attention='yes'",
    ),
    "ranks of query and value": (
        lambda: ka.MultiHeadAttention(2, 4)(zeros(B, T, 2, D), Y),
        ValueError,
        r"`query` and `value` must have the same number of axes, at least 3.*"
        r"query\.shape=\(2, 3, 2, 4\), value\.shape=\(2, 5, 4\)",
    ),
    "an output shape of floats": (
        lambda: ka.MultiHeadAttention(2, 4, output_shape=(2, 3.0)),
        ValueError,
        r"Invalid `output_shape`: expected an integer of at least 1, or a tuple or list of them\. "
        r"Received: output_shape=\(2, 3\.0\)",
    ),
    "an axis that is not there": (
        lambda: ka.MultiHeadAttention(2, 4, attention_axes=2)(X, Y),
        ValueError,
        r"`attention_axes` must lie between the batch axis and the features of inputs with 3 axes"
        r".*Received: attention_axes=\(2,\)",
    ),
    "attention_axes that name an axis twice": (
        lambda: ka.MultiHeadAttention(2, 4, attention_axes=(1, -3))(zeros(B, T, 5, D)),
        ValueError,
        r"`attention_axes` must name an axis of inputs with 4 axes only once\. "
        r"Received: attention_axes=\(1, -3\)",
    ),
    "padding of other rows, along axes": (
        lambda: ka.MultiHeadAttention(2, 4, attention_axes=2)(
            zeros(B, T, 5, D), query_mask=zeros(3, T, 5, dtype="bool")
        ),
        ValueError,
        r"Batch sizes of `query` and its mask must be equal\. Received: query=2, query_mask=3",
    ),
    "attention_mask of another length, along axes": (
        lambda: ka.MultiHeadAttention(2, 4, attention_axes=2)(
            zeros(B, T, 5, D), attention_mask=zeros(5, 6, dtype="bool")
        ),
        ValueError,
        r"`attention_mask` must broadcast to \(2, 3, 1, 5, 5\), with the axes that are attended "
        r"over\. Received: attention_mask\.shape=\(1, 1, 1, 5, 6\)",
    ),
    "rank of a mask over two axes": (
        lambda: ka.MultiHeadAttention(2, 4, kernel_initializer="zeros")(
            zeros(B, T, 2, D), zeros(B, S, 2, D), attention_mask=zeros(T, S, dtype="bool")
        ),
        ValueError,
        r"`attention_mask` must have 4 to 6 axes, the last 4 being positions of query and key\. "
        r"Received: attention_mask\.shape=\(3, 5\)",
    ),
    # TransformerBlock and AttentionPooling
    "heads that do not divide the features": (
        lambda: ka.TransformerBlock(8, 3)(X),
        ValueError,
        r"with features that `num_heads` divides\. Received: x\.shape=\(2, 3, 4\), num_heads=3",
    ),
    "a context without cross-attention": (
        lambda: ka.TransformerBlock(8, 2)(X, Y),
        ValueError,
        r"only if, it was made with cross_attention=True\. "
        r"Received: cross_attention=False, and a `context`",
    ),
    "cross-attention without a context": (
        lambda: ka.TransformerBlock(8, 2, cross_attention=True)(X),
        ValueError,
        r"Received: cross_attention=True, and no `context`",
    ),
    "an unknown norm of a block": (
        lambda: ka.TransformerBlock(8, 2, norm="batch"),
        ValueError,
        r"`norm` must be one of \('layer', 'rms'\)\. Received: norm='batch'",
    ),
    "a context that another block made, for a block without weights": (
        lambda: ka.TransformerBlock(8, 2, cross_attention=True)(X, memory()),
        ValueError,
        r"The block has no weights yet, so that `context` cannot be what its",
    ),
    "a mask beside the memory of a context": (
        lambda: decoder()(X, decoder().cache_context(Y), context_mask=np.ones((B, S), bool)),
        ValueError,
        r"from `cache_context` contains its mask: omit `context_mask`",
    ),
    "the tokens of a cache in place of a context": (
        lambda: decoder()(X, decoder().make_cache(B, S)),
        ValueError,
        r"or what `cache_context` gave\. Received a dict of \['index', 'key', 'value'\]",
    ),
    "the memory of a context in place of a cache": (
        lambda: decoder()(X, Y, cache=decoder().cache_context(Y)),
        ValueError,
        r"what `make_cache` or a call gave\. Received what `cache_context` gave, which is passed",
    ),
    "the memory of a block without weights": (
        lambda: ka.TransformerBlock(8, 2, cross_attention=True).cache_context(Y),
        ValueError,
        r"has no weights yet: call it once.*before `cache_context`",
    ),
    "a cache for a block that is not causal": (
        lambda: decoder(causal=False).make_cache(B, T),
        ValueError,
        r"not causal cannot have a cache.*Received: causal=False, pattern=None",
    ),
    # Caches
    "a cache that is none": (
        lambda: multi_head()(X, cache=X),
        ValueError,
        r"`cache` must be what `make_cache` or a call gave.*Received: \w*Tensor|\w*Array",
    ),
    "a cache without a part": (
        lambda: multi_head()(X, cache={"key": zeros(B, T, 2, 4), "index": zeros(B)}),
        ValueError,
        r"`cache` must be what.*Received: \['index', 'key'\]",
    ),
    "a cache of another number of rows": (
        lambda: multi_head()(X, cache=multi_head().make_cache(B + 1, T)),
        ValueError,
        r"`cache\['key'\]` must be of shape \(2, 2, 3, 4\), None.*Received: \(3, 2, 3, 4\)",
    ),
    "a cache of another layer": (
        lambda: multi_head(value_dim=3)(X, cache=multi_head().make_cache(B, T)),
        ValueError,
        r"`cache\['value'\]` must be of shape \(2, 2, 3, 3\).*Received: \(2, 2, 3, 4\)",
    ),
    "an index that is no integer": (
        lambda: multi_head()(X, cache={**multi_head().make_cache(B, T), "index": zeros(B)}),
        TypeError,
        r"`cache\['index'\]` must be of a dtype int32\. Received: float32",
    ),
    "a full cache": (
        lambda: multi_head()(X, cache=multi_head().make_cache(B, T - 1)),
        ValueError,
        r"The cache has 2 slots, and cannot hold more.*Received tokens up to 3 in a row",
    ),
    "a cache without length": (
        lambda: multi_head().make_cache(B, 0),
        ValueError,
        r"argument `length`.* Received: length=0",
    ),
    "a cache without rows": (
        lambda: multi_head().make_cache(0, T),
        ValueError,
        r"argument `batch_size`.* Received: batch_size=0",
    ),
    "values beside a cache": (
        lambda: multi_head()(X, X, cache=multi_head().make_cache(B, T)),
        ValueError,
        r"A call with a cache takes the query.*Received also: value\b",
    ),
    "a list beside a cache": (
        lambda: multi_head()([X, X], cache=multi_head().make_cache(B, T)),
        ValueError,
        r"A call with a cache takes the query.*Received also: value\b",
    ),
    "a bias and positions beside a cache": (
        lambda: multi_head()(
            X,
            attention_bias=zeros(T, T),
            positions=np.arange(T),
            cache=multi_head().make_cache(B, T),
        ),
        ValueError,
        r"Received also: attention_bias, positions\b",
    ),
    "scores of a cache of a window": (
        lambda: multi_head(sliding_window=2)(
            X,
            cache=multi_head(sliding_window=2).make_cache(B, T),
            return_attention_scores=True,
        ),
        ValueError,
        r"Scores are unsupported with a sliding-window cache.*cache of 2 tokens for a window of 2",
    ),
    "memory of a layer without weights": (
        lambda: ka.MultiHeadAttention(2, 4).cache_context(Y),
        ValueError,
        r"MultiHeadAttention has no weights yet: call it once, or .*before `cache_context`",
    ),
    "memory of a symbolic tensor": (
        lambda: decoder().cache_context(keras.Input((S, D))),
        TypeError,
        r"takes arrays, and no symbolic tensors.*<KerasTensor shape=\(None, 5, 4\)",
    ),
    "a cache of several axes": (
        lambda: ka.MultiHeadAttention(2, 4, attention_axes=(1, 2)).make_cache(B, T),
        ValueError,
        r"cannot have a cache: attention_axes=\(1, 2\) is not the one axis of positions",
    ),
    "a cache without projections": (
        lambda: ka.Attention().make_cache(B, T),
        ValueError,
        r"This Attention cannot have a cache: it has no projections",
    ),
    "a cache of places": (
        lambda: ka.Attention(2, 4, score=scores.Location(5)).make_cache(B, T),
        ValueError,
        r"This Attention cannot have a cache: the score Location asks for the number of keys",
    ),
    "a cache of a predicted centre": (
        lambda: ka.LocalAttention(2, "predictive", num_heads=2, key_dim=4).make_cache(B, T),
        ValueError,
        r"This LocalAttention cannot have a cache: mode='predictive' asks for the number of keys",
    ),
    "a cache of a layer that sees what comes": (
        lambda: ka.SelfAttention(2, 4, pattern=patterns.SlidingWindow(1, 1)).make_cache(B, T),
        ValueError,
        r"This SelfAttention cannot have a cache: a token would see tokens after it",
    ),
    "rank of what is pooled": (
        lambda: ka.AttentionPooling()(zeros(B, D)),
        ValueError,
        r"`x` must be \(batch, positions, features\) with a known number of features\. "
        r"Received: x\.shape=\(2, 4\)",
    ),
    # Position embeddings
    "an unknown merge mode": (
        lambda: ka.SinCosPositionEmbedding(merge_mode="sum"),
        ValueError,
        r"`merge_mode` must be one of \('add', 'concat', 'none'\)\. Received: merge_mode='sum'",
    ),
    "a position embedding without a rule": (
        lambda: PositionEmbedding()(X),
        TypeError,
        r"PositionEmbedding must implement `embed\(self, positions, size\)`\.",
    ),
    "rank of what positions are added to": (
        lambda: ka.SinCosPositionEmbedding()(zeros(B, D)),
        ValueError,
        r"`x` must be \(batch, positions, features\) with a known number of features\. "
        r"Received: x\.shape=\(2, 4\)",
    ),
    "features that cannot be added": (
        lambda: ka.LearnedPositionEmbedding(9, dim=6)(X),
        ValueError,
        r"With merge_mode='add', `dim` must be None or the number of features of `x`\. "
        r"Received: dim=6, x\.shape=\(2, 3, 4\)",
    ),
    "a wavelength of zero": (
        lambda: ka.SinCosPositionEmbedding(max_wavelength=0),
        ValueError,
        r"`max_wavelength` must be a finite number above 0\. Received: max_wavelength=0",
    ),
    "positions past the table": (
        lambda: ka.LearnedPositionEmbedding(4)(X, start_index=2),
        ValueError,
        r"Positions must lie in \[0, max_length=4\)\. Received positions from 2 to 4",
    ),
    "positions that are not integers": (
        lambda: ka.SinCosPositionEmbedding()(X, positions=zeros(T)),
        TypeError,
        r"`positions` must be integers, \(positions,\) or \(batch, positions\) of `x`\. "
        r"Received: positions of dtype float32",
    ),
    "starts of another batch": (
        lambda: ka.LearnedPositionEmbedding(9)(X, start_index=np.zeros(B + 1, int)),
        ValueError,
        r"`start_index` must be an integer, or one for each row of `x`, \(batch,\)\. "
        r"Received: start_index\.shape=\(3,\), x\.shape=\(2, 3, 4\)",
    ),
    # Positions
    "a wavelength that is text": (
        lambda: positions.Rotary("a"),
        ValueError,
        r"`max_wavelength` must be a finite number above 1\. Received: max_wavelength='a'",
    ),
    "a factor that shortens": (
        lambda: positions.Rotary(scaling="linear", factor=0.5),
        ValueError,
        r"`factor` must be a finite number of at least 1\. Received: factor=0\.5",
    ),
    "a ramp that ends before it begins": (
        lambda: positions.Rotary(beta_fast=1, beta_slow=2),
        ValueError,
        r"`beta_fast` must be a finite number above 2\. Received: beta_fast=1",
    ),
    "a bias of infinity": (
        lambda: positions.ALiBi(float("inf")),
        ValueError,
        r"`max_bias` must be a finite number above 0\. Received: max_bias=inf",
    ),
    "an unknown layout": (
        lambda: positions.Rotary(layout="halves"),
        ValueError,
        r"`layout` must be one of \('half_split', 'interleaved'\)\. Received: layout='halves'",
    ),
    "an unknown scaling": (
        lambda: positions.Rotary(scaling="ntk"),
        ValueError,
        r"`scaling` must be one of \(None, 'linear', 'dynamic', 'yarn'\)\. "
        r"Received: scaling='ntk'",
    ),
    "a factor without a scaling": (
        lambda: positions.Rotary(factor=2.0),
        ValueError,
        r"`factor` requires `scaling`, which must be one of \('linear', 'dynamic', 'yarn'\)\. "
        r"Received: scaling=None, factor=2\.0",
    ),
    "a scaling without a length": (
        lambda: positions.Rotary(scaling="yarn", factor=2.0),
        ValueError,
        r"argument `original_max_length`, expected an integer of at least 1\. "
        r"Received: original_max_length=None",
    ),
    "an odd number of features to turn": (
        lambda: positions.Rotary(dim=3),
        ValueError,
        r"Rotary rotates features in pairs, so their number must be even\. Received: 3",
    ),
    "heads of an odd number of features": (
        lambda: ka.SelfAttention(2, 5, position="rotary")(X),
        ValueError,
        r"Rotary rotates features in pairs, so their number must be even\. Received: 5",
    ),
    "more features to turn than there are": (
        lambda: ka.SelfAttention(2, 4, position=positions.Rotary(dim=6))(X),
        ValueError,
        r"`dim` must be at most the number of features of a head\. Received: dim=6, features=4",
    ),
    "heads of unequal features to turn": (
        lambda: positions.Rotary().encode(zeros(B, T, 1, 4), zeros(B, S, 1, 6), None, None),
        ValueError,
        r"Numbers of features that Rotary rotates must be equal\. Received: query=4, key=6",
    ),
    "an odd number of buckets for two directions": (
        lambda: positions.RelativeBias(9),
        ValueError,
        r"With two directions, `num_buckets` must be even\. Received: num_buckets=9",
    ),
    "a distance that leaves no room for logarithms": (
        lambda: positions.RelativeBias(32, 8),
        ValueError,
        r"argument `max_distance`, expected an integer of at least 9\. Received: max_distance=8",
    ),
    "a bias for another number of heads": (
        lambda: [ka.SelfAttention(heads, 4, position=RELATIVE_BIAS)(X) for heads in (2, 3)],
        ValueError,
        r"Layers sharing a RelativeBias need one number of heads\. It was built for 2\. "
        r"Received: num_heads=3",
    ),
    # AttentionCell
    "an unknown mode of a cell": (
        lambda: cell(mode="dzmitry"),
        ValueError,
        r"`mode` must be one of \('bahdanau', 'luong'\)\. Received: mode='dzmitry'",
    ),
    "a context beside a_t": (
        lambda: cell(attention_dim=3, output_context=True),
        ValueError,
        r"with `attention_dim` the output is a_t\. Received: output_context=True, attention_dim=3",
    ),
    "bahdanau without input feeding": (
        lambda: cell(input_feeding=False),
        ValueError,
        r"`input_feeding=False` is for mode='luong'.*Received: input_feeding=False",
    ),
    "a layout of a cache without an update": (
        lambda: kv_cache.Layout().update({}, None, None, None, "float32"),
        TypeError,
        r"Layout must implement `update`\.",
    ),
    "a recurrent layer of another cell": (
        lambda: ka.AttentionRNN(keras.layers.GRUCell(4)),
        TypeError,
        r"`cell` must be an AttentionCell\. Received: cell=<GRUCell.*\(of type GRUCell\)",
    ),
    "a recurrent layer that keeps states": (
        lambda: ka.AttentionRNN(cell(), stateful=True),
        ValueError,
        r"keeps no states between calls: .*Received: stateful=True",
    ),
    "a layer for a cell": (
        lambda: ka.AttentionCell(keras.layers.Dense(3), "dot"),
        TypeError,
        r"`cell` must be a cell for `keras.layers.RNN`.*Received: cell=<Dense",
    ),
    "a cell that attends itself": (
        lambda: ka.AttentionCell(cell(), "dot"),
        TypeError,
        r"that does not attend itself\. Received: cell=<AttentionCell",
    ),
    "an attention of a cell that is none": (
        lambda: ka.AttentionCell(keras.layers.GRUCell(D), 3),
        TypeError,
        r"`attention` must be an Attention layer, a score.*Received: attention=3 \(of type int\)",
    ),
    "a cell whose attention draws": (
        lambda: ka.AttentionCell(keras.layers.GRUCell(D), ka.Attention(normalization="hard")),
        ValueError,
        r"no normalization that draws random numbers.*Received: normalization=Hard",
    ),
    "a cell without a memory": (
        lambda: keras.layers.RNN(cell())(X),
        ValueError,
        r"attends to a memory.*pass `initial_state=cell\.initial_state\(memory\)`.*Received: none",
    ),
    "a cell whose states are kept": (
        lambda: keras.layers.RNN(kept := cell(), stateful=True)(
            X, initial_state=kept.initial_state(Y)
        ),
        ValueError,
        r"attends to a memory.*`stateful=True` keeps none: to go on, pass `cell\.initial_state",
    ),
    "an initial state for the sake of itself": (
        lambda: cell().get_initial_state(B),
        ValueError,
        r"attends to a memory.*Received: no initial state",
    ),
    "an initial state without a memory": (
        lambda: built_cell()[1](X, initial_state=[zeros(B, D)]),
        ValueError,
        r"attends to a memory.*Received: an initial state that does not begin with one",
    ),
    "a step without a memory": (
        lambda: built_cell()[0](X[:, 0], [zeros(B, D)]),
        ValueError,
        r"attends to a memory.*Received: states without one",
    ),
    "the size of an output without a memory": (
        lambda: cell(mode="luong").output_size,
        ValueError,
        r"depends on a memory.*Received: memory\.shape=\(None, None, None\)",
    ),
    "alignments over an unknown length": (
        lambda: keras.layers.RNN(aligned := cell(return_attention_scores=True))(
            keras.Input((T, D)), initial_state=aligned.initial_state(keras.Input((None, D)))
        ),
        ValueError,
        r"positions are known, for `return_attention_scores=True`.*shape=\(None, None, 4\)",
    ),
    "rank of a memory": (
        lambda: cell().initial_state(X[:, 0]),
        ValueError,
        r"`memory` must have 3 axes, \(batch, positions, features\)\. Received.*\(2, 4\)",
    ),
    "a memory of unknown features": (
        lambda: cell().initial_state(keras.Input((S, None))),
        ValueError,
        r"`memory` must have a known number of features\..*shape=\(None, 5, None\)",
    ),
    "a second memory of another size": (
        lambda: built_cell()[0].initial_state(zeros(B, S, 7)),
        ValueError,
        r"Features of memories must be equal\. Received: before=4, now=7",
    ),
    "a mask of another length than the memory": (
        lambda: cell().initial_state(Y, mask=zeros(B, T, dtype="bool")),
        ValueError,
        r"Lengths of memory and mask must be equal\. Received: memory=5, mask=3",
    ),
    "too many states": (
        lambda: cell().initial_state(Y, [zeros(B, D)] * 2),
        ValueError,
        r"`states` must be the 1 of the wrapped cell, or the 3 that an earlier call.*Received: 2",
    ),
    "states of another cell": (
        lambda: built_cell()[1](
            X,
            initial_state=built_cell()[0].initial_state(Y, [zeros(B, 7), zeros(B, D), zeros(B, 1)]),
        ),
        ValueError,
        r"Features of the first state must be equal\. Received: cell=4, states=7",
    ),
    "states of another batch than the memory": (
        lambda: cell().initial_state(Y, zeros(3, D)),
        ValueError,
        r"Batch sizes must be equal\. Received: memory=2, states=3",
    ),
    "a memory of another batch than the sequences": (
        lambda: built_cell()[1](X, initial_state=built_cell()[0].initial_state(zeros(3, S, D))),
        ValueError,
        r"Batch sizes must be equal\. Received: sequences=2, memory=3",
    ),
    "smoothing away the target": (
        lambda: ka.losses.SmoothedCrossentropy(1.0),
        ValueError,
        r"`label_smoothing`.*Received: label_smoothing=1\.0",
    ),
    "a target to ignore that is no integer": (
        lambda: ka.losses.SmoothedCrossentropy(ignore_class="pad"),
        TypeError,
        r"`ignore_class` must be an integer or None\. Received: ignore_class='pad'",
    ),
    "an argument by its former name too": (
        lambda: ka.losses.SmoothedCrossentropy(ignore_class=1, ignore=2),
        TypeError,
        r"^SmoothedCrossentropy takes `ignore_class`, whose former name is `ignore`: "
        r"pass one of the two\. Received: ignore_class=1, ignore=2$",
    ),
    "targets that are not those of the logits": (
        lambda: ka.losses.SmoothedCrossentropy()(zeros(B, T), zeros(B, S, D)),
        ValueError,
        r"logits with the axes of the integer targets.*shape=\(2, 3\), y_pred.shape=\(2, 5, 4\)",
    ),
    "weights of another batch": (
        lambda: ka.losses.SmoothedCrossentropy()(zeros(B, T), zeros(B, T, D), zeros(T)),
        ValueError,
        r"`sample_weight` must broadcast to the leading axes.*shape=\(2, 3\).*shape=\(3,\)",
    ),
    "splitting what has no alignments": (
        lambda: built_cell()[0].split_outputs(X),
        ValueError,
        r"`split_outputs` is for cells with `return_attention_scores=True`\. Received.*False",
    ),
    # generation
    "a step that is none": (
        lambda: greedy(step="step"),
        TypeError,
        r"`step` must be a function \(tokens, cache\) -> \(logits, cache\)\. Received: 'step'",
    ),
    "no tokens at most": (
        lambda: greedy(max_tokens=0),
        ValueError,
        r"argument `max_tokens`, expected an integer of at least 1\. Received: max_tokens=0",
    ),
    "a padding that is a float": (
        lambda: greedy(pad_token=0.0),
        TypeError,
        r"`pad_token` must be integers\. Received: 0\.0",
    ),
    "a stop token by itself": (
        lambda: greedy(stop_tokens=2),
        TypeError,
        r"`stop_tokens` must be a tuple of integers\. Received: stop_tokens=2",
    ),
    "a stop token that is a bool": (
        lambda: greedy(stop_tokens=(1, True)),
        TypeError,
        r"`stop_tokens` must be integers\. Received: True",
    ),
    "a stop token beyond the vocabulary": (
        lambda: greedy(stop_tokens=(1, 4)),
        ValueError,
        r"`stop_tokens` must be tokens of the vocabulary, 0 to 3\. Received: \[4\]",
    ),
    "first tokens that are floats": (
        lambda: greedy(tokens=(0.0, 1.0)),
        TypeError,
        r"`tokens` must be integers\. Received: dtype float",
    ),
    "first tokens of a whole prompt": (
        lambda: greedy(tokens=((0, 1), (0, 1))),
        ValueError,
        r"`tokens` must be \(B,\), the last given token.* Received: tokens\.shape=\(2, 2\)",
    ),
    "a scalar in a cache": (
        lambda: greedy(cache={"index": zeros()}),
        ValueError,
        r"Every tensor of `cache` must have rows on axis 0\. Received a scalar",
    ),
    "a memory of other rows": (
        lambda: greedy(memory=[zeros(3, 4)]),
        ValueError,
        r"Rows of `tokens` and of every tensor of `memory` must be equal\. "
        r"Received: tokens=2, memory=3",
    ),
    "a step that returns logits alone": (
        lambda: greedy(step=lambda tokens, cache: zeros(B, 4)),
        ValueError,
        # JAX adds lines of its own.
        r"`step` must return \(logits, cache\)\. Received: \w+(\n|$)",
    ),
    "a step that returns a sequence": (
        lambda: greedy(step=step_giving(zeros(B, 1, 4))),
        ValueError,
        r"`step` must return logits \(R, V\).*here \(2, V\)\. Received: shape=\(2, 1, 4\)",
    ),
    "a step that returns tokens": (
        lambda: greedy(step=step_giving(zeros(B, 4, dtype="int32"))),
        ValueError,
        r"`step` must return logits \(R, V\), floats.* dtype=int32",
    ),
    "a step that returns another cache": (
        lambda: greedy(step=step_giving(zeros(B, 4), {"b": zeros(B)}), cache={"a": zeros(B)}),
        ValueError,
        r"`step` must return a cache of the structure that it was given\. Received another: ",
    ),
    "a step that returns a longer cache": (
        lambda: greedy(step=step_giving(zeros(B, 4), zeros(B, 2)), cache=zeros(B, 1)),
        ValueError,
        r"`step` must return a cache of the shapes and dtypes.*"
        r"\(\(2, 1\), 'float32'\)\. Received: \(\(2, 2\), 'float32'\)",
    ),
    "a temperature of sampling that is zero": (
        lambda: sample(temperature=0),
        ValueError,
        r"`temperature` must be a finite number above 0\. Received: temperature=0",
    ),
    "a repetition penalty of zero": (
        lambda: sample(repetition_penalty=0.0),
        ValueError,
        r"`repetition_penalty` must be a finite number above 0\. ",
    ),
    "a nucleus of more than all": (
        lambda: sample(top_p=1.1),
        ValueError,
        r"`top_p` must be None or a number in \(0, 1\]\. Received: top_p=1\.1",
    ),
    "logits that are no numbers": (
        lambda: greedy(step=step_giving(zeros(B, 4) + np.nan, zeros(B, 1)), cache=zeros(B, 1)),
        ValueError,
        r"`step` must return logits without NaN and \+inf\. Received such logits: a cache",
    ),
    "more hypotheses than beams": (
        lambda: beam_search(num_return=3),
        ValueError,
        r"`num_return` must be at most `num_beams`\. Received: num_return=3, num_beams=2",
    ),
    "a negative length penalty": (
        lambda: beam_search(length_penalty=-0.5),
        ValueError,
        r"`length_penalty` must be a finite number of at least 0\. Received: length_penalty=-0\.5",
    ),
    "a length penalty beyond float32": (
        lambda: beam_search(length_penalty=1e6),
        ValueError,
        r"`length_penalty` must be a number whose .* Received: length_penalty=1000000\.0, max_tok",
    ),
    "a compiled function that is none": (
        lambda: generation.compiled(None, keras.layers.Dense(1)),
        TypeError,
        r"`function` must be a function of arrays\. Received: None",
    ),
    "a compiled function of no layer": (
        lambda: generation.compiled(print, "dense"),
        TypeError,
        r"`layer` must be a Keras layer or model\. Received: 'dense'",
    ),
    "a compiled function of a layer that is not built": (
        lambda: generation.compiled(print, keras.layers.Dense(1)),
        ValueError,
        r"`layer` must be built, so that its variables exist\. .*, not built",
    ),
    # mask_flow
    "checking the masks of a layer": (
        lambda: ka.check_masks(keras.layers.Dense(2)),
        TypeError,
        r"`model` must be a Keras model\. Received: Dense",
    ),
    "checking masks of unknown inputs": (
        lambda: ka.check_masks(keras.Sequential([keras.layers.Dense(2)], name="plain")),
        ValueError,
        "must be functional, or sequential with a known input shape.* Sequential 'plain'",
    ),
    # visualization
    "scores that are no numbers": (
        lambda: visualization.attention_html([["a", "b"]], None),
        TypeError,
        r"`scores` must be an array of numbers\. Received: list, which is none: could not convert",
    ),
    "a layer that was not collected": (
        lambda: labels.Scores()["decoder/attention"],
        KeyError,
        "decoder/attention",
    ),
    "a function in place of a model": (
        lambda: visualization.collect_attention(lambda x: x, X),
        TypeError,
        r"`model` must be a Keras model or layer\. Received: function",
    ),
    "collecting before there are weights": (
        lambda: visualization.collect_attention(ka.SelfAttention(2, 4, name="a"), X),
        ValueError,
        r"has no weights yet: call it once .* Received: SelfAttention 'a', not built",
    ),
    "a model without attention": (
        lambda: visualization.collect_attention(built_feed_forward(), X),
        ValueError,
        "No attention layer was called.* Received: FeedForward 'plain'",
    ),
    "no layers to draw": (
        lambda: visualization.attention_html({}, None),
        ValueError,
        r"`scores` must have a layer at least\. Received: \{\}",
    ),
    "weights of too few axes": (
        lambda: visualization.attention_html({"first": np.ones(3)}, None),
        ValueError,
        r"`scores` of 'first' must be \(queries, keys\).* Received: shape \(3,\)",
    ),
    "a picture of a batch": (
        lambda: visualization.attention_html(np.ones((2, 1, 3, 3)), None),
        ValueError,
        r"one row of a batch.* Received: `scores` of shape \(2, 1, 3, 3\)",
    ),
    "negative weights": (
        lambda: visualization.attention_html(-np.ones((3, 3)), None),
        ValueError,
        r"finite and not negative\. Received: numbers from -1\.0 to -1\.0",
    ),
    "words of some layers": (
        lambda: visualization.attention_html({"a": np.ones((1, 1))}, {"b": ["x"]}),
        ValueError,
        r"must name each layer of `scores`\. Received no 'a'",
    ),
    "a text in place of words": (
        lambda: visualization.attention_html(np.ones((3, 3)), "abc"),
        TypeError,
        r"`query_tokens` must be a list of words\. Received: 'abc'",
    ),
    "too few words": (
        lambda: visualization.attention_html(np.ones((2, 3)), ["a", "b"], ["c", None]),
        ValueError,
        r"`key_tokens` must have a word for each of 3 positions.* Received: 1 words of 2",
    ),
    "no matplotlib": (
        plot_without_matplotlib,
        ImportError,
        r"`pip install matplotlib`",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_message_says_what_was_expected_and_what_came(row):
    call, exception, message = ROWS[row]
    with pytest.raises(exception, match=re.compile(message, re.DOTALL)):
        call()


def raises():
    """Path and lines of every `raise` statement of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise):
                yield str(path), node.lineno, node.end_lineno


def lines_run_by(calls):
    """The lines of the package that the calls execute, as (path, line)."""
    lines = set()

    def enter(frame, event, argument):
        return line if frame.f_code.co_filename.startswith(str(PACKAGE)) else None

    def line(frame, event, argument):
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        for call, exception, _ in calls:
            try:
                call()
            except exception:
                continue
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.any_backend
def test_every_raise_has_a_row():
    statements = list(raises())
    assert len(statements) > 30
    lines = lines_run_by(ROWS.values())
    unreached = [
        f"{Path(path).relative_to(PACKAGE)}:{first}"
        for path, first, last in statements
        if not any((path, number) in lines for number in range(first, last + 1))
    ]
    assert not unreached, f"add a row for each of these: {unreached}"


def test_a_raise_without_a_row_is_seen():
    few = [ROWS["an unknown kernel"]]
    lines = lines_run_by(few)
    reached = [path for path, first, last in raises() if (path, first) in lines]
    assert [Path(path).name for path in reached] == ["__init__.py"]


def test_counts_name_the_argument_that_is_wrong():
    layers = {
        "num_heads": lambda n: ka.TransformerBlock(8, n),
        "key_dim": lambda n: ka.Attention(2, n),
        "value_dim": lambda n: ka.Attention(2, 4, n),
        "intermediate_dim": lambda n: ka.TransformerBlock(n, 2),
        "output_dim": lambda n: ka.FeedForward(8, output_dim=n),
        "num_queries": lambda n: ka.AttentionPooling(n),
        "vocabulary_size": lambda n: ka.ScaledEmbedding(n, 4),
        "dim": lambda n: ka.SinCosPositionEmbedding(n),
        "max_length": lambda n: ka.LearnedPositionEmbedding(n),
        "sliding_window": lambda n: ka.MultiHeadAttention(2, 4, sliding_window=n),
        "rate": patterns.Dilated,
        "length": patterns.Prefix,
        "size": patterns.Block,
        "max_tokens": lambda n: greedy(max_tokens=n),
        "num_beams": lambda n: beam_search(num_beams=n),
        "num_return": lambda n: beam_search(num_return=n),
        "top_k": lambda n: sample(top_k=n),
        "right": lambda n: patterns.SlidingWindow(0, n),
    }
    for name, make in layers.items():
        with pytest.raises(ValueError, match=f"argument `{name}`.*Received: {name}=-1"):
            make(-1)
    with pytest.raises(ValueError, match="Received: rate=0"):
        patterns.Strided(0)


def test_sizes_that_are_not_known_agree_with_any():
    shapes.check_same("Lengths", query=None, key=3, value=3)
    with pytest.raises(ValueError, match=r"Lengths must be equal\. Received: key=3, value=4"):
        shapes.check_same("Lengths", query=None, key=3, value=4)
