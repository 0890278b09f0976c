"""What is raised by alignments of `AttentionCell`."""

import keras

from keras_attention import (
    Attention,
    AttentionCell,
    DifferentialAttention,
    alignments,
    positions,
    scores,
)
from tests.errors.calls import X, Y


class PairsOnly(scores.Score):
    def call(self, query, key):
        return keras.ops.einsum("bthk,bshk->bhts", query, key)


def attend(attention, alignment):
    return AttentionCell(keras.layers.GRUCell(8), attention, alignment=alignment)


def in_rnn(cell):
    return keras.layers.RNN(cell)(X, initial_state=cell.initial_state(Y))


# A call, the type of its exception, and a pattern in the message: what was expected and what came.
ROWS = {
    "an unknown alignment": (
        lambda: alignments.get("nowhere"),
        ValueError,
        r"Unknown alignment 'nowhere'\. Expected one of",
    ),
    "an alignment of another score": (
        lambda: attend("dot", "coverage"),
        ValueError,
        r"inside the tanh of a score, which must be `Additive` or `Concat`.*Received: score=<D",
    ),
    "an alignment of grouped heads": (
        lambda: attend(Attention(4, 8, score="additive", num_key_value_heads=2), "coverage"),
        ValueError,
        r"one attention for each head, with a key head.*num_key_value_heads=2, num_heads=4",
    ),
    "an alignment whose position compares keys": (
        lambda: attend(
            Attention(2, 4, score=scores.Additive(4), position=positions.CoPE(3)), "coverage"
        ),
        ValueError,
        "no position that encodes keys or compares them with queries",
    ),
    "an alignment of two attentions a head": (
        lambda: attend(DifferentialAttention(2, 4), "monotonic"),
        ValueError,
        r"one attention for each head.*Received: attention of type DifferentialAttention",
    ),
    "a monotonic alignment of another normalization": (
        lambda: attend(Attention(normalization="sparsemax"), "monotonic"),
        ValueError,
        r"Monotonic replaces the normalization, which must be 'softmax'.*Sparsemax",
    ),
    "a score of chunks that sees pairs": (
        lambda: alignments.MoChA(chunk_score=PairsOnly()),
        ValueError,
        r"`chunk_score` must prepare queries and keys apart.*PairsOnly",
    ),
    "an unknown history": (
        lambda: alignments.LocationSensitive(history="none"),
        ValueError,
        r"`history` must be one of .*Received: history='none'",
    ),
    "a loss of weights in Keras's layer": (
        lambda: in_rnn(attend(Attention(score="additive", scores_regularizer="coverage"), None)),
        ValueError,
        r"`keras.layers.RNN` cannot add the loss of a `scores_regularizer`.*CoverageLoss",
    ),
    "an alignment without a step": (
        lambda: alignments.Alignment().attend(None, None, None, [], [], False),
        TypeError,
        r"Alignment must implement `attend`",
    ),
    "an alignment without a term": (
        lambda: alignments.base.OfAdditive().term([X]),
        TypeError,
        r"must implement `term",
    ),
}
