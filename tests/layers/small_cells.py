"""Small recurrent decoders, and the recurrences of the two papers in float64."""

import keras
import numpy as np

from tests import definition
from tests.arrays import random, wide
from tests.definition import sigmoid
from tests.fuzz.configurations import defined_score

layers, ops = keras.layers, keras.ops

# Batch, steps, length of the memory, features of the input, memory and states, all different.
B, T, S, D, M, H = 3, 4, 6, 5, 7, 8


X, MEMORY, STATE = random(B, T, D), random(B, S, M, seed=1), 0.5 * random(B, H, seed=2)
MASK = np.arange(S) < np.array([[6], [4], [1]])


def weights_drawn(layer, seed=3):
    """Sets every weight, biases too, to something that no zero hides."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign(rng.normal(size=weight.shape) / np.sqrt(weight.shape[0]))


def made(cell, *inputs, **kwargs):
    """An `RNN` round `cell`, with drawn weights."""
    rnn = layers.RNN(cell, return_sequences=True, **kwargs)
    cell.initial_state(MEMORY)
    rnn.build(X.shape)
    weights_drawn(rnn)
    return rnn


# The papers, in float64


def gru(cell, x, states):
    """Keras's GRU with `reset_after=True`."""
    kernel, recurrent, bias = map(wide, cell.weights)
    (h,) = states
    xz, xr, xh = np.split(x @ kernel + bias[0], 3, -1)
    hz, hr, hh = np.split(h @ recurrent + bias[1], 3, -1)
    z, r = sigmoid(xz + hz), sigmoid(xr + hr)
    h = z * h + (1 - z) * np.tanh(xh + r * hh)
    return h, [h]


def lstm(cell, x, states):
    kernel, recurrent, bias = map(wide, cell.weights)
    h, c = states
    i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return h, [h, c]


def simple(cell, x, states):
    kernel, recurrent, bias = map(wide, cell.weights)
    h = np.tanh(x @ kernel + states[0] @ recurrent + bias)
    return h, [h]


def stacked(cell, x, states):
    """A stack of GRUs."""
    after = []
    for part, state in zip(cell.cells, states, strict=True):
        x, (h,) = gru(part, x, [state])
        after.append(h)
    return x, after


CELLS = {
    gru: lambda: layers.GRUCell(H),
    lstm: lambda: layers.LSTMCell(H),
    simple: lambda: layers.SimpleRNNCell(H),
    stacked: lambda: layers.StackedRNNCells([layers.GRUCell(3), layers.GRUCell(H)]),
}


def by_the_papers(cell, step, x, memory, states, mask, window=None):
    """The outputs (B, T, …) and alignments (B, T, S) of an `AttentionCell`, by loops."""
    x, memory = x.astype("float64"), memory.astype("float64")
    states, fed, outputs, alignments = list(states), None, [], []
    score = defined_score(cell.attention.score, 1)

    def attend(query, t):
        near = window is None or np.abs(np.arange(memory.shape[1]) - t) <= window
        heads = query[:, None, None], memory[:, :, None], memory[:, :, None]
        found = definition.attend(*heads, **score, mask=(mask & near)[:, None, None])
        return found[0][:, 0, 0], found[1][:, 0, 0]

    def attentional(context, h):
        both = np.concatenate([context, h], -1)
        if cell.attention_dim is None:
            return both
        return np.tanh(both @ wide(cell._attention_dense.kernel))

    for t in range(x.shape[1]):
        if cell.mode == "bahdanau":
            query = states[-1] if step is stacked else states[0]
            context, weights = attend(query, t)
            h, states = step(cell.cell, np.concatenate([x[:, t], context], -1), states)
            both = cell.attention_dim is not None or cell.output_context
            outputs.append(attentional(context, h) if both else h)
        else:
            if fed is None:
                fed = np.zeros((len(x), cell.attention_dim or memory.shape[-1] + H))
            inputs = np.concatenate([x[:, t], fed], -1) if cell.input_feeding else x[:, t]
            h, states = step(cell.cell, inputs, states)
            context, weights = attend(h, t)
            fed = attentional(context, h)
            outputs.append(fed)
        alignments.append(weights)
    return np.stack(outputs, 1), np.stack(alignments, 1)
