"""Cases of recurrent attention."""

import keras

import keras_attention as ka
from keras_attention import alignments, patterns, scores
from tests.golden.cases.case import CASES, Case, S, T, symbols, vectors


def of_cell(name, cell, attention, return_state=False, **arguments):
    def model():
        x, memory = symbols(8, 6)
        attends = ka.AttentionCell(cell(), attention(), **arguments)
        rnn = keras.layers.RNN(attends, return_sequences=True, return_state=return_state)
        if arguments.get("return_attention_scores"):
            # The alignments come after the output, so that the length must be known.
            memory = keras.Input((S, 6))
        seen = keras.layers.Masking()(memory)
        return keras.Model([x, memory], rnn(x, initial_state=attends.initial_state(seen)))

    CASES[name] = Case(model, vectors(8, 6))


of_cell("cell", lambda: keras.layers.GRUCell(8), lambda: "additive")
of_cell(
    "cell-bahdanau-all",
    lambda: keras.layers.LSTMCell(8),
    lambda: ka.Attention(score=scores.Additive(3)),
    return_state=True,
    attention_dim=5,
    attention_activation="relu",
    return_attention_scores=True,
)
of_cell(
    "cell-luong", lambda: keras.layers.GRUCell(8), lambda: "general", mode="luong", attention_dim=6
)
of_cell(
    "cell-luong-options",
    lambda: keras.layers.StackedRNNCells([keras.layers.GRUCell(4), keras.layers.LSTMCell(6)]),
    lambda: ka.Attention(2, 4, pattern=patterns.SlidingWindow(1, 1), position="rotary"),
    mode="luong",
    input_feeding=False,
    output_context=False,
)
of_cell(
    "cell-output_context",
    lambda: keras.layers.SimpleRNNCell(8),
    lambda: "concat",
    output_context=True,
)


def of_rnn(name, cell, score="general", **arguments):
    def model():
        x, memory = symbols(8, 6)
        if cell.get("return_attention_scores"):
            memory = keras.Input((S, 6))
        if arguments.get("unroll"):
            x = keras.Input((T, 8))
        attends = ka.AttentionCell(keras.layers.GRUCell(8), score, **cell)
        rnn = ka.AttentionRNN(attends, **arguments)
        seen = keras.layers.Masking()(memory)
        return keras.Model([x, memory], keras.tree.flatten(rnn(keras.layers.Masking()(x), seen)))

    CASES[name] = Case(model, vectors(8, 6), since="0.2.0")


of_rnn("rnn", {"mode": "luong", "attention_dim": 6})
of_rnn(
    "rnn-options",
    {"output_context": True, "return_attention_scores": True},
    return_sequences=True,
    return_state=True,
    go_backwards=True,
    unroll=True,
    zero_output_for_mask=True,
)

for name, given in {
    "coverage": "coverage",
    "coverage-options": alignments.Coverage("zeros"),
    "location_sensitive": "location_sensitive",
    "location_sensitive-options": alignments.LocationSensitive(2, 3, "both", "he_normal"),
    "mocha": "mocha",
    "mocha-options": alignments.MoChA(3, "general", 0.5, 1.0, 7),
    "monotonic": "monotonic",
    "monotonic-options": alignments.Monotonic(0.5, 1.0, 7),
}.items():
    of_rnn(f"rnn-{name}", {"alignment": given, "attention_dim": 6}, "additive")


def unrolled():
    """Two steps by hand, of the first two vectors of a sequence."""
    x, memory = symbols(8, 6)
    attends = ka.AttentionCell(keras.layers.GRUCell(8), "general", mode="luong", attention_dim=6)
    states, found = attends.start_states(keras.layers.Masking()(memory)), []
    for step in range(2):
        output, states = attends(x[:, step], states)
        found.append(output)
    return keras.Model([x, memory], found)


CASES["cell-start-states"] = Case(unrolled, vectors(8, 6), since="0.2.0")
