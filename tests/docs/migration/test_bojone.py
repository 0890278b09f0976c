"""bojone/attention, attention_keras.py: of 2018 (the post), and at commit 9021815."""

import keras
import numpy as np

import keras_attention as ka
from tests.arrays import random
from tests.docs.migration.pages import (
    KEY,
    MEMORY,
    MEMORY_PADDING,
    PADDING,
    B,
    D,
    T,
    X,
    close,
    join,
    page,
    softmax,
    split,
    weights,
)

ops = keras.ops


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


def test_mask_right_of_2019_leaves_nothing_of_the_scores():
    a = X @ np.swapaxes(X, 1, 2)
    np.testing.assert_array_equal(softmax(a - np.float32(1e10)), np.full((B, T, T), 0.2, "float32"))


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
