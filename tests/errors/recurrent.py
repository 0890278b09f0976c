"""What is raised by recurrent layers, their alignments, and losses."""

import keras

import keras_attention as ka
from keras_attention import alignments
from tests.errors.calls import B, D, GRUCell, S, T, X, Y, symbol, true, zeros


class PairsOnly(ka.scores.Score):
    def call(self, query, key):
        return keras.ops.einsum("bthk,bshk->bhts", query, key)


def cell(attention="dot", **options):
    return ka.AttentionCell(GRUCell(D), attention, **options)


def run(cell, x=X, memory=Y, states=None, state=None, **options):
    """An `RNN` over a cell, from the states of a memory or from others; a second cell's too."""
    if state is None:
        state = cell.initial_state(memory, states)
    return keras.layers.RNN(cell, **options)(x, initial_state=state)


def used():
    """A cell that has run."""
    found = cell()
    run(found)
    return found


def coverage(attention, **options):
    return cell(attention, alignment="coverage", **options)


def smoothed(target, prediction, weights=None):
    return ka.losses.SmoothedCrossentropy()(zeros(*target), zeros(*prediction), weights)


ROWS = {
    "output_context=True, attention_dim=3": lambda: cell(attention_dim=3, output_context=True),
    "Received: input_feeding=False": lambda: cell(input_feeding=False),
    "AttentionCell.*<GRUCell.*type GRUCell": (TypeError, lambda: ka.AttentionRNN(GRUCell(4))),
    "stateful=True": lambda: ka.AttentionRNN(cell(), stateful=True),
    "sequences.shape=.*no memory": lambda: keras.layers.Bidirectional(ka.AttentionRNN(cell()))(X),
    "take this layer: (it sums over tokens|its global tokens)": (
        lambda: cell(ka.LinearAttention(2, 4)),
        lambda: cell(ka.LongformerAttention(2, 4, 1)),
    ),
    "cell=<AttentionCell": (TypeError, lambda: ka.AttentionCell(cell(), "dot")),
    r"attention=3 \(of type int\)": (TypeError, lambda: cell(3)),
    "normalization=Hard": lambda: cell(ka.Attention(normalization="hard")),
    "`split_outputs` .*False": lambda: cell().split_outputs(X),
    # Memories
    r"cell\.initial_state\(memory\)`.*Received: none": lambda: keras.layers.RNN(cell())(X),
    "Received: no initial state": lambda: cell().get_initial_state(B),
    "an initial state that does not begin": lambda: run(used(), state=[zeros(B, D)]),
    "Received: states without one": lambda: used()(X[:, 0], [zeros(B, D)]),
    r"memory\.shape=\(None, None, 4\)": lambda: run(
        cell(return_attention_scores=True), symbol(T, D), symbol(None, D)
    ),
    r"`memory` .*\(2, 4\)": lambda: cell().initial_state(X[:, 0]),
    r"`memory` .*\(None, 5, None\)": lambda: cell().initial_state(symbol(S, None)),
    "before=4, now=7": lambda: used().initial_state(zeros(B, S, 7)),
    "memory=5, mask=3": lambda: cell().initial_state(Y, mask=true(B, T)),
    "`states` must be the 1 .* or the 3 .*: 2": lambda: cell().initial_state(Y, [zeros(B, D)] * 2),
    "cell=4, states=7": lambda: run(used(), states=[zeros(B, 7), zeros(B, D), zeros(B, 1)]),
    "memory=2, states=3": lambda: cell().initial_state(Y, zeros(3, D)),
    "sequences=2, memory=3": lambda: run(used(), memory=zeros(3, S, D)),
    # Alignments
    "inside the tanh of a score.*<Dot": lambda: coverage("dot"),
    "num_key_value_heads=2, num_heads=4": lambda: coverage(
        ka.Attention(4, 8, score="additive", num_key_value_heads=2)
    ),
    "no position that encodes keys": lambda: coverage(
        ka.Attention(2, 4, score="additive", position=ka.positions.CoPE(3))
    ),
    "of type Differential": lambda: cell(ka.DifferentialAttention(2, 4), alignment="monotonic"),
    "=Sparsemax": lambda: cell(ka.Attention(normalization="sparsemax"), alignment="monotonic"),
    "`chunk_score` .*PairsOnly": lambda: alignments.MoChA(chunk_score=PairsOnly()),
    "`keras.layers.RNN` cannot add the loss.*CoverageLoss": lambda: run(
        cell(ka.Attention(score="additive", scores_regularizer="coverage"))
    ),
    "Alignment must implement": (TypeError, lambda: alignments.Alignment().attend(*[None] * 6)),
    # Losses
    "`ignore_class`.*`ignore`.*ignore_class=1, ignore=2": (
        TypeError,
        lambda: ka.losses.SmoothedCrossentropy(ignore_class=1, ignore=2),
    ),
    r"\(2, 3\), y_pred\.shape=\(2, 5, 4\)": lambda: smoothed((B, T), (B, S, D)),
    r"`sample_weight` .*\(3,\)": lambda: smoothed((B, T), (B, T, D), zeros(T)),
}
