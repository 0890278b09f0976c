"""tfa 0.23.0: seq2seq/attention_wrapper.py, layers/multihead_attention.py."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import scores
from tests.arrays import random
from tests.docs.migration.pages import KEY, MEMORY, B, D, E, S, T, X, close, page, softmax, weights


def attention_wrapper(x, h, memory, lengths, cell, score, attention_layer=None):
    """Attentions, states and alignments of `AttentionWrapper` round a `SimpleRNNCell`."""
    kernel, recurrent, bias = cell
    real = np.arange(memory.shape[1]) < lengths[:, None]
    values = memory * real[..., None]
    size = memory.shape[-1] if attention_layer is None else attention_layer.shape[-1]
    attention = np.zeros((len(x), size), "float32")
    attentions, states, alignments = [], [], []
    for t in range(x.shape[1]):
        inputs = np.concatenate([x[:, t], attention], axis=-1)
        h = np.tanh(inputs @ kernel + bias + h @ recurrent)
        alignment = softmax(np.where(real, score(h, values), -np.inf))
        attention = np.einsum("bs,bsd->bd", alignment, values)
        if attention_layer is not None:
            attention = np.concatenate([h, attention], axis=-1) @ attention_layer
        for kept, value in zip(
            (attentions, states, alignments), (attention, h, alignment), strict=True
        ):
            kept.append(value)
    return [np.stack(kept, axis=1) for kept in (attentions, states, alignments)]


UNITS, LENGTHS = 6, np.array([S, 3])


def luong(memory_kernel, g=1.0):
    return lambda h, values: g * np.einsum("bu,bsu->bs", h, values @ memory_kernel)


def bahdanau(query_kernel, memory_kernel, v, g=None, b=None):
    def score(h, values):
        hidden = (h @ query_kernel)[:, None] + values @ memory_kernel
        if g is None:
            return np.tanh(hidden) @ v
        return np.tanh(hidden + b) @ (g * v / np.sqrt(np.sum(v**2)))

    return score


def decoder(score, **kwargs):
    """A cell and a function of nothing that runs it over X and MEMORY, from the state H0."""
    cell = ka.AttentionCell(
        keras.layers.SimpleRNNCell(UNITS),
        score,
        mode="luong",
        return_attention_scores=True,
        **kwargs,
    )
    rnn = keras.layers.RNN(cell, return_sequences=True)

    def run():
        real = np.arange(S) < LENGTHS[:, None]
        state = cell.initial_state(MEMORY, states=[H0], mask=real)
        return cell.split_outputs(rnn(X, initial_state=state))

    run()
    return cell, run


H0 = random(B, UNITS, seed=7)
W1, W2, V, ATTENTION_LAYER = weights((UNITS, 4), (D, 4), (4,), (UNITS + D, 5))
MEMORY_KERNEL, G, BIAS = weights((D, UNITS), (1,), (4,))


@pytest.mark.parametrize("kind", ["luong", "luong, scaled", "bahdanau", "bahdanau, normalized"])
def test_attention_wrapper(kind):
    names = page("tfa")
    inner = weights((D + 5, UNITS), (UNITS, UNITS), (UNITS,))
    options = {"attention_dim": 5, "attention_activation": None}
    if kind.startswith("luong"):
        g = G[0] if "scaled" in kind else 1.0
        cell, run = decoder("general", **options)
        names["load_luong"](cell, MEMORY_KERNEL, ATTENTION_LAYER, g)
        score = luong(MEMORY_KERNEL, g)
    elif "normalized" in kind:
        cell, run = decoder(scores.Additive(4, normalize=True), **options)
        names["load_bahdanau"](cell, W1, W2, V, ATTENTION_LAYER, UNITS, G[0], BIAS)
        score = bahdanau(W1, W2, V, G[0], BIAS)
    else:
        cell, run = decoder(scores.Additive(4, use_bias=False), **options)
        names["load_bahdanau"](cell, W1, W2, V, ATTENTION_LAYER, UNITS)
        score = bahdanau(W1, W2, V)
    cell.cell.set_weights(inner)
    outputs, alignments = run()
    expected, _, weight = attention_wrapper(X, H0, MEMORY, LENGTHS, inner, score, ATTENTION_LAYER)
    close(outputs, expected, 1e-4)
    close(alignments[:, 0], weight, 1e-4)


def test_attention_wrapper_without_an_attention_layer():
    names = page("tfa")
    inner = weights((D + D, UNITS), (UNITS, UNITS), (UNITS,))
    cell, run = decoder("general")
    cell.attention.score.kernel.assign(MEMORY_KERNEL.T[None])
    names["load_cell"](cell, *inner)
    outputs, _ = run()
    contexts, states, _ = attention_wrapper(X, H0, MEMORY, LENGTHS, inner, luong(MEMORY_KERNEL))
    close(outputs[..., :D], contexts, 1e-4)
    close(outputs[..., D:], states, 1e-4)


def test_multi_head_attention_of_tfa():
    query = random(B, T, E, seed=5)
    theirs = weights((2, E, 4), (2, D, 4), (2, D, 4), (2, 4, D), (D,))
    mask = np.random.default_rng(3).random((B, T, S)) < 0.5
    mask[..., 0] = True
    q, k, v = (
        np.einsum("btd,hdk->bhtk", x, kernel)
        for x, kernel in zip((query, KEY, MEMORY), theirs, strict=False)
    )
    logits = (q / 2) @ np.swapaxes(k, -1, -2) - 1e10 * ~mask[:, None]
    expected = np.einsum("bhtk,hko->bto", softmax(logits) @ v, theirs[3]) + theirs[4]
    layer = ka.MultiHeadAttention(2, 4, output_shape=D)
    layer.build(query.shape, MEMORY.shape, KEY.shape)
    page("tfa")["load_heads"](layer, *theirs)
    close(layer(query, MEMORY, KEY, attention_mask=mask), expected)
