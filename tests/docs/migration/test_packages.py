"""Layers of old packages beside ours with their weights, as docs/migration shows it.

The old packages no longer run, so each is read here: its equations in NumPy, written from the
version that the page names. What the pages define is taken from the pages.
"""

import ast
import functools

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns, scores
from tests.arrays import close, random
from tests.definition import sigmoid, softmax
from tests.doctests import BLOCK, ROOT

ops = keras.ops
FOLDER = ROOT / "docs/migration"

B, T, S, D, E = 2, 5, 7, 8, 6


@functools.cache
def page(name):
    """The functions and classes that a page defines, without the rest of the page."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    program = ast.parse("\n".join(BLOCK.findall(text)))
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    program.body = [node for node in program.body if isinstance(node, kept)]
    names = {"__name__": f"migration_{name}"}
    exec(compile(program, name, "exec"), names)
    return names


def weights(*shapes):
    return [random(*shape, seed=10 + seed) for seed, shape in enumerate(shapes)]


X, MEMORY, KEY = random(B, T, D), random(B, S, D, seed=1), random(B, S, D, seed=2)
PADDING = np.array([[True] * 5, [True] * 3 + [False] * 2])
MEMORY_PADDING = np.arange(S) < np.array([[S], [3]])


# Equations that several packages share


def seq_self_attention(x, e, width=None, history_only=False, mask=None):
    """Output and weights of `SeqSelfAttention.call`, from what its emission gives."""
    length = x.shape[1]
    if history_only or width:
        width = width or length
        before = distances(length) + (0 if history_only else width - 1 - width // 2)
        e = e - 10000.0 * ~((before >= 0) & (before < width))
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


def multi_head(q, k, v, heads=1, allowed=True):
    """Attention of projections, whose heads are parts of their features; `allowed` is (…, T, S)."""
    q, k, v = (x.reshape(*x.shape[:2], heads, -1) for x in (q, k, v))
    e = np.einsum("bthk,bshk->bhts", q, k) / np.sqrt(q.shape[-1])
    # The packages add numbers from -1e4 to -1e12, which is all the same.
    o = np.einsum("bhts,bshk->bthk", softmax(np.where(allowed, e, -1e10)), v)
    return o.reshape(*o.shape[:2], -1)


def projected(inputs, kernels, biases=(0.0, 0.0, 0.0)):
    return [x @ W + b for x, W, b in zip(inputs, kernels, biases, strict=True)]


def distances(length):
    return np.arange(length)[:, None] - np.arange(length)


# attention 5.0.0 (philipperemy/keras-attention): attention/attention.py


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
        e = np.einsum("bd,btd->bt", h_t, X @ w1)
    else:
        names["load_bahdanau"](model, w1, w2, v, w_c)
        e = (np.tanh((h_t @ w1)[:, None] + X @ w2) @ v)[..., 0]
    context = np.einsum("bt,btd->bd", softmax(e), X)
    close(model(X), np.tanh(np.concatenate([context, h_t], axis=-1) @ w_c))


# bojone/attention, attention_keras.py: of 2018 (the post), and at commit 9021815


OF_HEADS = weights((D, 6), (D, 6), (D, 6))


def load_bojone(layer, *inputs):
    layer.build(*(x.shape for x in inputs))
    page("bojone")["load_heads"](layer, *OF_HEADS)
    return layer


def test_attention_of_bojone():
    layer = load_bojone(ka.Attention(2, 3), X, MEMORY, KEY)
    given = projected((X, KEY, MEMORY), OF_HEADS)
    close(layer([X, MEMORY, KEY]), multi_head(*given, 2))
    output = layer([X, MEMORY, KEY], query_mask=PADDING, value_mask=MEMORY_PADDING)
    expected = multi_head(*given, 2, MEMORY_PADDING[:, None, None])
    close(output, expected * PADDING[..., None])


def test_position_embedding_of_bojone():
    def theirs(size):
        frequencies = 1.0 / 10000.0 ** (2 * np.arange(size // 2) / size)
        angles = np.arange(T)[:, None] * frequencies
        return np.stack([np.concatenate([np.cos(angles), np.sin(angles)], axis=1)] * B)

    position_embedding = page("bojone")["position_embedding"]
    close(position_embedding(X), theirs(D))
    close(position_embedding(X, 4), theirs(4))


def test_local_self_attention_of_bojone_away_from_the_ends():
    neighbors, rate, length = 1, 2, 9
    x, reach = random(B, length, D, seed=8), neighbors * rate
    layer = load_bojone(ka.LocalSelfAttention(2, 3, neighbors=neighbors, rate=rate), x)
    # At the ends theirs sees vectors of zeros too.
    padded = np.pad(x, [(0, 0), (reach, reach), (0, 0)])
    apart = distances(length + 2 * reach)
    allowed = (abs(apart) <= reach) & (apart % rate == 0)
    expected = multi_head(*projected([padded] * 3, OF_HEADS), 2, allowed)[:, reach:-reach]
    output = ops.convert_to_numpy(layer(x))
    close(output[:, reach:-reach], expected[:, reach:-reach])
    assert np.abs(output[:, 0] - expected[:, 0]).max() > 1e-2


def test_atrous_self_attention_of_bojone():
    layer = load_bojone(ka.AtrousSelfAttention(2, 3, rate=2), X)
    close(layer(X), multi_head(*projected([X] * 3, OF_HEADS), 2, distances(T) % 2 == 0))


# keras-multi-head 0.29.0: multi_head_attention.py, multi_head.py

QUERY = random(B, T, E, seed=5)


def loaded(name, theirs):
    """A layer of two heads with the weights of a package, loaded as its page does."""
    layer = ka.MultiHeadAttention(2, 4, output_shape=D)
    layer.build(QUERY.shape, MEMORY.shape, KEY.shape)
    page(name)["load_heads"](layer, *theirs)
    return layer


@pytest.mark.parametrize("history_only", [False, True])
def test_multi_head_attention_of_keras_multi_head(history_only):
    theirs = weights((E, D), (D,), (D, D), (D,), (D, D), (D,), (D, D), (D,))
    layer = loaded("keras_multi_head", theirs)
    output = layer(QUERY, MEMORY, KEY, key_mask=MEMORY_PADDING, use_causal_mask=history_only)
    given = projected((QUERY, KEY, MEMORY), theirs[:6:2], theirs[1:6:2])
    earlier = np.arange(S) <= np.arange(T)[:, None]
    allowed = MEMORY_PADDING[:, None, None] & (earlier | (not history_only))
    close(output, multi_head(*given, 2, allowed) @ theirs[6] + theirs[7])


@pytest.mark.parametrize("causal", [False, True])
def test_the_activation_of_keras_multi_head(causal):
    theirs = weights(*[(D, D), (D,)] * 4)
    layer = page("keras_multi_head")["ActivatedMultiHeadAttention"](2, D // 2)
    layer(X)
    page("keras_multi_head")["load_heads"](layer, *theirs)
    given = [np.maximum(x, 0) for x in projected([X] * 3, theirs[:6:2], theirs[1:6:2])]
    allowed = PADDING[:, None, None] & ((distances(T) >= 0) | (not causal))
    expected = np.maximum(multi_head(*given, 2, allowed) @ theirs[6] + theirs[7], 0)
    output = layer(X, query_mask=PADDING, use_causal_mask=causal)
    close(ops.convert_to_numpy(output)[PADDING], expected[PADDING])


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


def additive(score=None, **options):
    """A layer with the weights of `ADDITIVE`."""
    layer = ka.Attention(score=score or scores.Additive(6), **options)
    layer.build(X.shape)
    page("keras_self_attention")["load_additive"](layer.score, *ADDITIVE)
    return layer


@pytest.mark.parametrize(("options", "pattern"), WINDOWS.values(), ids=WINDOWS)
def test_seq_self_attention(options, pattern):
    output, weight = additive(pattern=pattern)(X, return_attention_scores=True)
    expected, expected_weight = seq_self_attention(X, additive_emission(X, *ADDITIVE), **options)
    close(output, expected)
    close(weight[:, 0], expected_weight)

    layer = ka.Attention(score="general", pattern=pattern)
    layer.build(X.shape)
    multiplicative = weights((D, D), (1,))
    page("keras_self_attention")["load_multiplicative"](layer.score, *multiplicative)
    emission = multiplicative_emission(X, *multiplicative)
    close(layer(X), seq_self_attention(X, emission, **options)[0])


def test_seq_self_attention_gives_padding_weight_and_ours_does_not():
    layer = additive()
    theirs, weight = seq_self_attention(X, additive_emission(X, *ADDITIVE), mask=PADDING)
    assert weight[1, :3, 3:].min() > 0
    # Without a mask: what theirs computes for real tokens.
    close(layer(X)[1, :3], theirs[1, :3])
    # With it: what theirs computes for the text without padding.
    alone = X[1:, :3]
    expected, _ = seq_self_attention(alone, additive_emission(alone, *ADDITIVE))
    close(layer(X, query_mask=PADDING)[1:, :3], expected)


def test_activation_of_scores():
    layer = additive(page("keras_self_attention")["SigmoidAdditive"](6))
    layer.score.score_bias.assign(ADDITIVE[-1][0])
    emission = sigmoid(additive_emission(X, *ADDITIVE))
    close(layer(X), seq_self_attention(X, emission)[0])


def test_the_regularizer_of_seq_self_attention():
    layer = additive(scores_regularizer=page("keras_self_attention")["Diverse"](0.5))
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


# tfa 0.23.0: seq2seq/attention_wrapper.py, layers/multihead_attention.py


UNITS = 6
H0 = random(B, UNITS, seed=7)
W1, W2, V, ATTENTION_LAYER = weights((UNITS, 4), (D, 4), (4,), (UNITS + D, 5))
MEMORY_KERNEL, G, BIAS = weights((D, UNITS), (1,), (4,))


def attention_wrapper(cell, score, attention_layer=None):
    """Outputs and alignments of `AttentionWrapper` round a `SimpleRNNCell`, over X and MEMORY."""
    kernel, recurrent, bias = cell
    values, h, outputs, alignments = MEMORY * MEMORY_PADDING[..., None], H0, [], []
    attention = np.zeros((B, len(kernel) - D))
    for t in range(T):
        inputs = np.concatenate([X[:, t], attention], axis=-1)
        h = np.tanh(inputs @ kernel + bias + h @ recurrent)
        alignment = softmax(np.where(MEMORY_PADDING, score(h, values), -np.inf))
        attention = np.einsum("bs,bsd->bd", alignment, values)
        if attention_layer is not None:
            attention = np.concatenate([h, attention], axis=-1) @ attention_layer
        outputs.append(np.concatenate([attention, h], axis=-1))
        alignments.append(alignment)
    return np.stack(outputs, axis=1), np.stack(alignments, axis=1)


def luong(memory_kernel, g=1.0):
    return lambda h, values: g * np.einsum("bu,bsu->bs", h, values @ memory_kernel)


def bahdanau(query_kernel, memory_kernel, v, g=None, b=0.0):
    v = v if g is None else g * v / np.sqrt(np.sum(v**2))
    return lambda h, values: np.tanh((h @ query_kernel)[:, None] + values @ memory_kernel + b) @ v


def run(cell):
    """What a cell gives over X and MEMORY."""
    state = cell.initial_state(MEMORY, states=[H0], mask=MEMORY_PADDING)
    rnn = keras.layers.RNN(cell, return_sequences=True)
    return cell.split_outputs(rnn(X, initial_state=state))


def decoder(score, **kwargs):
    """A cell that has run."""
    inner = keras.layers.SimpleRNNCell(UNITS)
    cell = ka.AttentionCell(inner, score, mode="luong", return_attention_scores=True, **kwargs)
    run(cell)
    return cell


# The score of ours, what the page's function loads besides the cell, and the score of theirs.
WRAPPERS = {
    "luong": ("general", (1.0,), luong(MEMORY_KERNEL)),
    "luong, scaled": ("general", (G[0],), luong(MEMORY_KERNEL, G[0])),
    "bahdanau": (scores.Additive(4, use_bias=False), (UNITS,), bahdanau(W1, W2, V)),
    "bahdanau, normalized": (
        scores.Additive(4, normalize=True),
        (UNITS, G[0], BIAS),
        bahdanau(W1, W2, V, G[0], BIAS),
    ),
}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_attention_wrapper(kind):
    ours, options, score = WRAPPERS[kind]
    inner = weights((D + 5, UNITS), (UNITS, UNITS), (UNITS,))
    cell = decoder(ours, attention_dim=5, attention_activation=None)
    if ours == "general":
        page("tfa")["load_luong"](cell, MEMORY_KERNEL, ATTENTION_LAYER, *options)
    else:
        page("tfa")["load_bahdanau"](cell, W1, W2, V, ATTENTION_LAYER, *options)
    cell.cell.set_weights(inner)
    outputs, alignments = run(cell)
    expected, weight = attention_wrapper(inner, score, ATTENTION_LAYER)
    close(outputs, expected[..., :5], 1e-4)
    close(alignments[:, 0], weight, 1e-4)


def test_attention_wrapper_without_an_attention_layer():
    inner = weights((D + D, UNITS), (UNITS, UNITS), (UNITS,))
    cell = decoder("general")
    cell.attention.score.kernel.assign(MEMORY_KERNEL.T[None])
    page("tfa")["load_cell"](cell, *inner)
    close(run(cell)[0], attention_wrapper(inner, luong(MEMORY_KERNEL))[0], 1e-4)


def test_multi_head_attention_of_tfa():
    theirs = weights((2, E, 4), (2, D, 4), (2, D, 4), (2, 4, D), (D,))
    mask = np.random.default_rng(3).random((B, T, S)) < 0.5
    mask[..., 0] = True
    # Their kernels have a matrix for each head.
    kernels = [kernel.transpose(1, 0, 2).reshape(-1, 8) for kernel in theirs[:3]]
    o = multi_head(*projected((QUERY, KEY, MEMORY), kernels), 2, mask[:, None])
    output = loaded("tfa", theirs)(QUERY, MEMORY, KEY, attention_mask=mask)
    close(output, o @ theirs[3].reshape(8, D) + theirs[4])


# The pages that have no old package in NumPy, and their index


@pytest.mark.skipif(keras.config.backend() != "torch", reason="on the backend that has the modules")
def test_the_page_of_torch_runs_with_torch():
    text = (FOLDER / "torch.md").read_text(encoding="utf-8")
    exec("\n".join(BLOCK.findall(text.replace("```python no-run", "```python"))), {})


def test_every_page_is_in_the_index():
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    for path in FOLDER.glob("*.md"):
        assert path.name == "index.md" or f"]({path.name})" in index
