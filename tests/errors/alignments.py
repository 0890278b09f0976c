"""What is raised by alignments of `AttentionCell`."""

import keras

import keras_attention as ka
from tests.errors.calls import X, Y


class PairsOnly(ka.scores.Score):
    def call(self, query, key):
        return keras.ops.einsum("bthk,bshk->bhts", query, key)


def attend(attention, alignment):
    return ka.AttentionCell(keras.layers.GRUCell(8), attention, alignment=alignment)


def in_rnn(cell):
    return keras.layers.RNN(cell)(X, initial_state=cell.initial_state(Y))


ROWS = {
    r"Unknown alignment 'nowhere'\. Expected one of": lambda: ka.alignments.get("nowhere"),
    r"inside the tanh of a score, which must be `Additive` or `Concat`.*"
    r"Received: score=<D": lambda: attend("dot", "coverage"),
    r"one attention for each head, with a key head.*num_key_value_heads=2, num_heads=4": lambda: (
        attend(ka.Attention(4, 8, score="additive", num_key_value_heads=2), "coverage")
    ),
    "no position that encodes keys or compares them with queries": lambda: attend(
        ka.Attention(2, 4, score=ka.scores.Additive(4), position=ka.positions.CoPE(3)), "coverage"
    ),
    r"one attention for each head.*Received: attention of type DifferentialAttention": lambda: (
        attend(ka.DifferentialAttention(2, 4), "monotonic")
    ),
    r"Monotonic replaces the normalization, which must be 'softmax'.*Sparsemax": lambda: attend(
        ka.Attention(normalization="sparsemax"), "monotonic"
    ),
    r"`chunk_score` must prepare queries and keys apart.*PairsOnly": lambda: ka.alignments.MoChA(
        chunk_score=PairsOnly()
    ),
    r"`keras.layers.RNN` cannot add the loss of a `scores_regularizer`.*CoverageLoss": lambda: (
        in_rnn(attend(ka.Attention(score="additive", scores_regularizer="coverage"), None))
    ),
    r"Alignment must implement `attend`": (
        TypeError,
        lambda: ka.alignments.Alignment().attend(None, None, None, [], [], False),
    ),
}
