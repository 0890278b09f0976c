"""keras-multi-head 0.29.0: multi_head_attention.py, multi_head.py."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import random
from tests.docs.migration.pages import (
    KEY,
    MEMORY,
    MEMORY_PADDING,
    PADDING,
    B,
    D,
    E,
    T,
    X,
    close,
    join,
    multiplicative_emission,
    page,
    scaled_dot_product_attention,
    seq_self_attention,
    split,
    weights,
)

ops = keras.ops


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
