"""Layers of old packages beside ours with their weights, as docs/migration shows it.

The old packages no longer run, so each is read here: its equations in NumPy, written from the
version that the page names. What the pages define is taken from the pages.
"""

import functools

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns, scores
from tests.arrays import random
from tests.definition import softmax
from tests.doctests import BLOCK, ROOT

ops = keras.ops
FOLDER = ROOT / "docs/migration"

B, T, S, D, E = 2, 5, 7, 8, 6


@functools.cache
def page(name):
    """The functions and classes that a page defines, without the rest of the page."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    names = {"__name__": f"migration_{name}"}
    for block in BLOCK.findall(text):
        kept, keeping = [], False
        for line in block.splitlines():
            if line and not line[0].isspace() and not line.startswith(")"):
                keeping = line.startswith(("import ", "from ", "def ", "class ", "@"))
            if keeping:
                kept.append(line)
        exec("\n".join(kept), names)
    return names


def weights(*shapes):
    return [random(*shape, seed=10 + seed) for seed, shape in enumerate(shapes)]


def close(ours, expected, tolerance=2e-5):
    np.testing.assert_allclose(ops.convert_to_numpy(ours), expected, rtol=tolerance, atol=tolerance)


X, MEMORY, KEY = random(B, T, D), random(B, S, D, seed=1), random(B, S, D, seed=2)
PADDING = np.array([[True] * 5, [True] * 3 + [False] * 2])
MEMORY_PADDING = np.arange(S) < np.array([[S], [3]])


# Equations that several packages share


def seq_self_attention(x, e, width=None, history_only=False, activation=None, mask=None):
    """Output and weights of `SeqSelfAttention.call`, from what its emission gives."""
    length = x.shape[1]
    e = e if activation is None else activation(e)
    if history_only and width is None:
        width = 10**9
    if width is not None:
        lower = np.arange(length)[:, None] - (width - 1 if history_only else width // 2)
        near = (lower <= np.arange(length)) & (np.arange(length) < lower + width)
        e = e - 10000.0 * ~near
    if mask is not None:
        padded = 1.0 - mask
        e = e - 10000.0 * padded[:, :, None] * padded[:, None, :]
    a = softmax(e)
    return a @ x, a


def additive_emission(x, Wt, Wx, bh, Wa, ba):
    h = np.tanh((x @ Wt)[:, :, None] + (x @ Wx)[:, None] + bh)
    return (h @ Wa + ba)[..., 0]


def multiplicative_emission(x, Wa, ba):
    return (x @ Wa) @ np.swapaxes(x, 1, 2) + ba[0]


def scaled_dot_product_attention(query, key, value, history_only=False, mask=None):
    e = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    if history_only:
        later = np.arange(key.shape[-2]) > np.arange(query.shape[-2])[:, None]
        e = e - 10000.0 * later
    if mask is not None:
        e = e - 10000.0 * (1.0 - mask[:, None])
    return softmax(e) @ value


def split(x, heads):
    """(B, T, F) as (B · heads, T, F / heads)."""
    batch, length, size = x.shape
    x = x.reshape(batch, length, heads, size // heads).transpose(0, 2, 1, 3)
    return x.reshape(batch * heads, length, size // heads)


def join(x, heads):
    rows, length, size = x.shape
    x = x.reshape(rows // heads, heads, length, size).transpose(0, 2, 1, 3)
    return x.reshape(rows // heads, length, heads * size)


# attention 5.0.0 (philipperemy/keras-attention): attention/attention.py


def many_to_one(h, score, w_c):
    """From the score (B, T) of all states: tanh(W_c [c; h_T])."""
    context = np.einsum("bt,btd->bd", softmax(score), h)
    return np.tanh(np.concatenate([context, h[:, -1]], axis=-1) @ w_c)


@pytest.mark.parametrize("score", ["luong", "bahdanau"])
def test_attention_of_philipperemy(score):
    names = page("attention")
    symbol = keras.Input((T, D))
    last = symbol[:, -1:]
    kind = "general" if score == "luong" else scores.Additive(use_bias=False)
    context = ka.Attention(score=kind, name="attention")(last, symbol)
    joined = keras.layers.Concatenate()([context, last])
    combine = keras.layers.Dense(4, "tanh", use_bias=False, name="combine")
    model = keras.Model(symbol, keras.layers.Flatten()(combine(joined)))
    w_c, w1, w2, v = weights((2 * D, 4), (D, D), (D, D), (D, 1))
    h_t = X[:, -1]
    if score == "luong":
        names["load_luong"](model, w1, w_c)
        expected = np.einsum("bd,btd->bt", h_t, X @ w1)
    else:
        names["load_bahdanau"](model, w1, w2, v, w_c)
        expected = (np.tanh((h_t @ w1)[:, None] + X @ w2) @ v)[..., 0]
    close(model(X), many_to_one(X, expected, w_c))


# bojone/attention, attention_keras.py: of 2018 (the post), and at commit 9021815


def attention_of_2018(q, k, v, theirs, heads, q_len=None, v_len=None):
    q, k, v = (split(x @ W, heads) for x, W in zip((q, k, v), theirs, strict=True))
    a = q @ np.swapaxes(k, 1, 2) / q.shape[-1] ** 0.5
    if v_len is not None:
        real = 1 - np.cumsum(np.eye(k.shape[1] + 1)[v_len[:, 0]][:, :-1], axis=1)
        a = a - (1 - np.repeat(real, heads, axis=0)[:, None]) * 1e12
    o = join(softmax(a) @ v, heads)
    if q_len is not None:
        real = 1 - np.cumsum(np.eye(q.shape[1] + 1)[q_len[:, 0]][:, :-1], axis=1)
        o = o * real[..., None]
    return o


def test_attention_of_bojone():
    theirs = weights((D, 6), (D, 6), (D, 6))
    layer = ka.Attention(2, 3)
    layer.build(X.shape, MEMORY.shape, KEY.shape)
    page("bojone")["load_heads"](layer, *theirs)
    close(layer([X, MEMORY, KEY]), attention_of_2018(X, KEY, MEMORY, theirs, 2))
    q_len, v_len = PADDING.sum(1, keepdims=True), MEMORY_PADDING.sum(1, keepdims=True)
    close(
        layer([X, MEMORY, KEY], query_mask=PADDING, value_mask=MEMORY_PADDING),
        attention_of_2018(X, KEY, MEMORY, theirs, 2, q_len, v_len),
    )


def test_position_embedding_of_bojone():
    def theirs(size):
        frequencies = 1.0 / 10000.0 ** (2 * np.arange(size // 2) / size)
        angles = np.arange(T)[:, None] * frequencies
        return np.broadcast_to(
            np.concatenate([np.cos(angles), np.sin(angles)], axis=1), (B, T, size)
        )

    position_embedding = page("bojone")["position_embedding"]
    close(position_embedding(X), theirs(D))
    close(position_embedding(X, 4), theirs(4))


def test_sines_of_2019_are_ours():
    reference = np.abs(np.arange(T) - 2)[:, None] / 10000.0 ** (2 / D * np.arange(D // 2))
    waves = np.stack([np.sin(reference), np.cos(reference)], axis=-1).reshape(T, D)
    ours = ka.SinCosPositionEmbedding(D)(X, positions=np.abs(np.arange(T) - 2))
    close(ours, X + waves)


def test_local_self_attention_of_bojone_away_from_the_ends():
    theirs, neighbors, rate, length = weights((D, 6), (D, 6), (D, 6)), 1, 2, 9
    x, reach = random(B, length, D, seed=8), neighbors * rate
    padded = np.pad(x, [(0, 0), (reach, reach), (0, 0)])
    windows = np.stack([padded[:, i : i + length] for i in range(0, 2 * reach + 1, rate)], axis=2)
    windows, queries = windows.reshape(-1, 3, D), x.reshape(-1, 1, D)
    expected = attention_of_2018(queries, windows, windows, theirs, 2).reshape(B, length, 6)
    layer = ka.LocalSelfAttention(2, 3, neighbors=neighbors, rate=rate)
    layer.build(x.shape)
    page("bojone")["load_heads"](layer, *theirs)
    output = ops.convert_to_numpy(layer(x))
    close(output[:, reach:-reach], expected[:, reach:-reach])
    # At the ends theirs sees vectors of zeros too.
    assert np.abs(output[:, 0] - expected[:, 0]).max() > 1e-2


def test_atrous_self_attention_of_bojone_with_a_mask():
    theirs, rate = weights((D, 6), (D, 6), (D, 6)), 2
    # It pads to the next multiple of the rate, by `rate` positions where the length is one.
    extra = rate - T % rate
    x = np.pad(X, [(0, 0), (0, extra), (0, 0)])
    rows = x.reshape(B, -1, rate, D).transpose(0, 2, 1, 3).reshape(B * rate, -1, D)
    real = np.pad(np.ones((B, T), "float32"), [(0, 0), (0, extra)])
    real = real.reshape(B, -1, rate).transpose(0, 2, 1).reshape(B * rate, -1)
    lengths = real.sum(axis=1, keepdims=True).astype(int)
    o = attention_of_2018(rows, rows, rows, theirs, 2, lengths, lengths)
    expected = o.reshape(B, rate, -1, 6).transpose(0, 2, 1, 3).reshape(B, -1, 6)[:, :T]
    layer = ka.AtrousSelfAttention(2, 3, rate=rate)
    layer.build(X.shape)
    page("bojone")["load_heads"](layer, *theirs)
    close(layer(X), expected)


# keras-multi-head 0.29.0: multi_head_attention.py, multi_head.py


def multi_head_attention(q, k, v, theirs, heads, activation=None, history_only=False, mask=None):
    Wq, bq, Wk, bk, Wv, bv, Wo, bo = theirs
    activation = activation or (lambda x: x)
    q, k, v = activation(q @ Wq + bq), activation(k @ Wk + bk), activation(v @ Wv + bv)
    mask = None if mask is None else np.repeat(mask, heads, axis=0)
    y = scaled_dot_product_attention(
        split(q, heads), split(k, heads), split(v, heads), history_only, mask
    )
    return activation(join(y, heads) @ Wo + bo)


@pytest.mark.parametrize("history_only", [False, True])
def test_multi_head_attention_of_keras_multi_head(history_only):
    query = random(B, T, E, seed=5)
    theirs = weights((E, D), (D,), (D, D), (D,), (D, D), (D,), (D, D), (D,))
    layer = ka.MultiHeadAttention(2, D // 2, output_shape=D)
    layer.build(query.shape, MEMORY.shape, KEY.shape)
    page("keras_multi_head")["load_heads"](layer, *theirs)
    output = layer(query, MEMORY, KEY, key_mask=MEMORY_PADDING, use_causal_mask=history_only)
    expected = multi_head_attention(
        query, KEY, MEMORY, theirs, 2, history_only=history_only, mask=MEMORY_PADDING
    )
    close(output, expected)


def test_the_activation_of_keras_multi_head():
    names = page("keras_multi_head")
    theirs = weights(*[(D, D), (D,)] * 4)
    for causal in (False, True):
        layer = names["ActivatedMultiHeadAttention"](2, causal=causal)
        layer(X)
        layer.set_weights(theirs)
        expected = multi_head_attention(
            X, X, X, theirs, 2, lambda x: np.maximum(x, 0), causal, PADDING
        )
        # What it gives for padding is nobody's business.
        close(ops.convert_to_numpy(layer(X, mask=PADDING))[PADDING], expected[PADDING])


def test_multi_head_of_keras_multi_head():
    W, b = weights((D, 3 * 4), (3 * 4,))
    inner = weights((4, 4), (4, 4), (4, 4))
    parts = [X @ W[:, i : i + 4] + b[i : i + 4] for i in (0, 4, 8)]
    expected = np.stack(
        [
            seq_self_attention(x, multiplicative_emission(x, Wa, [0.0]))[0]
            for x, Wa in zip(parts, inner, strict=True)
        ],
        axis=-1,
    )
    layers = [ka.Attention(score="general") for _ in inner]
    denses = [keras.layers.Dense(4) for _ in inner]
    multi_head = page("keras_multi_head")["multi_head"]
    multi_head(X, layers, denses)
    for number, (layer, dense) in enumerate(zip(layers, denses, strict=True)):
        layer.score.kernel.assign(inner[number][None])
        columns = slice(4 * number, 4 * number + 4)
        dense.set_weights([W[:, columns], b[columns]])
    close(multi_head(X, layers, denses), expected)


# keras-self-attention 0.51.0, whose layers are in pages.py

WINDOWS = {
    "all": ({}, None),
    "width 3": ({"width": 3}, patterns.SlidingWindow(1, 1)),
    "width 4": ({"width": 4}, patterns.SlidingWindow(2, 1)),
    "width 3, history": ({"width": 3, "history_only": True}, patterns.SlidingWindow(2, 0)),
    "history": ({"history_only": True}, "causal"),
}
ADDITIVE = weights((D, 6), (D, 6), (6,), (6, 1), (1,))


@pytest.mark.parametrize(("options", "pattern"), WINDOWS.values(), ids=WINDOWS)
def test_seq_self_attention(options, pattern):
    names = page("keras_self_attention")
    layer = ka.Attention(score=scores.Additive(6), pattern=pattern)
    layer.build(X.shape)
    names["load_additive"](layer.score, *ADDITIVE)
    output, weight = layer(X, return_attention_scores=True)
    expected, expected_weight = seq_self_attention(X, additive_emission(X, *ADDITIVE), **options)
    close(output, expected)
    close(weight[:, 0], expected_weight)

    layer = ka.Attention(score="general", pattern=pattern)
    layer.build(X.shape)
    multiplicative = weights((D, D), (1,))
    names["load_multiplicative"](layer.score, *multiplicative)
    emission = multiplicative_emission(X, *multiplicative)
    close(layer(X), seq_self_attention(X, emission, **options)[0])


def test_seq_self_attention_gives_padding_weight_and_ours_does_not():
    layer = ka.Attention(score=scores.Additive(6))
    layer.build(X.shape)
    page("keras_self_attention")["load_additive"](layer.score, *ADDITIVE)
    theirs, weight = seq_self_attention(X, additive_emission(X, *ADDITIVE), mask=PADDING)
    assert weight[1, :3, 3:].min() > 0
    # Without a mask: what theirs computes for real tokens.
    close(layer(X)[1, :3], theirs[1, :3])
    # With it: what theirs computes for the text without padding.
    alone = X[1:, :3]
    expected, _ = seq_self_attention(alone, additive_emission(alone, *ADDITIVE))
    close(layer(X, query_mask=PADDING)[1:, :3], expected)


def test_activation_of_scores():
    names = page("keras_self_attention")
    layer = ka.Attention(score=names["SigmoidAdditive"](6))
    layer.build(X.shape)
    names["load_additive"](layer.score, *ADDITIVE)
    layer.score.score_bias.assign(ADDITIVE[-1][0])
    emission = additive_emission(X, *ADDITIVE)
    expected, _ = seq_self_attention(X, emission, activation=lambda e: 1 / (1 + np.exp(-e)))
    close(layer(X), expected)


def test_the_regularizer_of_seq_self_attention():
    diverse = page("keras_self_attention")["Diverse"](0.5)
    layer = ka.Attention(score=scores.Additive(6), scores_regularizer=diverse)
    layer.build(X.shape)
    page("keras_self_attention")["load_additive"](layer.score, *ADDITIVE)
    layer(X)
    _, a = seq_self_attention(X, additive_emission(X, *ADDITIVE))
    expected = 0.5 * np.sum((a @ np.swapaxes(a, 1, 2) - np.eye(T)) ** 2) / B
    close(layer.losses[0], expected)


@pytest.mark.parametrize("mask", [None, PADDING], ids=["no mask", "mask"])
def test_seq_weighted_attention(mask):
    W, b = weights((D, 1), (1,))
    logits = (X @ W + b)[..., 0]
    if mask is not None:
        logits = logits - 10000.0 * (1.0 - mask)
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weight = e / (e.sum(axis=1, keepdims=True) + 1e-7)
    layer = ka.FeedForwardAttention(activation=None)
    layer.build(X.shape)
    page("keras_self_attention")["load_weighted"](layer, W, b)
    output, our_weight = layer(X, mask=mask, return_attention_scores=True)
    close(output, np.sum(X * weight[..., None], axis=1))
    close(our_weight[:, 0, 0], weight)


@pytest.mark.parametrize("history_only", [False, True])
def test_scaled_dot_product_attention(history_only):
    layer = ka.Attention(pattern="causal" if history_only else None)
    close(
        layer([X, MEMORY, KEY], key_mask=MEMORY_PADDING),
        scaled_dot_product_attention(X, KEY, MEMORY, history_only, MEMORY_PADDING),
    )


# tfa 0.23.0: seq2seq/attention_wrapper.py, layers/multihead_attention.py


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


# The pages that have no old package in NumPy, and their index


def test_the_page_of_torch_runs_with_torch():
    pytest.importorskip("torch")
    text = (FOLDER / "torch.md").read_text(encoding="utf-8")
    exec("\n".join(BLOCK.findall(text.replace("```python no-run", "```python"))), {})


def test_every_page_is_in_the_index():
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    for path in FOLDER.glob("*.md"):
        assert path.name == "index.md" or f"]({path.name})" in index
