"""What is raised for caches and memories."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import patterns, scores
from tests.errors.calls import B, D, S, T, X, Y, decoder, multi_head, zeros

# A call, the type of its exception, and a pattern in the message: what was expected and what came.
ROWS = {
    # Caches
    "a cache that is none": (
        lambda: multi_head()(X, cache=X),
        ValueError,
        r"`cache` must be what `make_cache` or a call gave.*Received: \w*Tensor|\w*Array",
    ),
    "a cache without a part": (
        lambda: multi_head()(X, cache={"key": zeros(B, T, 2, 4), "index": zeros(B)}),
        ValueError,
        r"`cache` must be what.*Received: \['index', 'key'\]",
    ),
    "a cache of another number of rows": (
        lambda: multi_head()(X, cache=multi_head().make_cache(B + 1, T)),
        ValueError,
        r"`cache\['key'\]` must be of shape \(2, 2, 3, 4\), None.*Received: \(3, 2, 3, 4\)",
    ),
    "a cache of another layer": (
        lambda: multi_head(value_dim=3)(X, cache=multi_head().make_cache(B, T)),
        ValueError,
        r"`cache\['value'\]` must be of shape \(2, 2, 3, 3\).*Received: \(2, 2, 3, 4\)",
    ),
    "an index that is no integer": (
        lambda: multi_head()(X, cache={**multi_head().make_cache(B, T), "index": zeros(B)}),
        TypeError,
        r"`cache\['index'\]` must be of a dtype int32\. Received: float32",
    ),
    "a full cache": (
        lambda: multi_head()(X, cache=multi_head().make_cache(B, T - 1)),
        ValueError,
        r"The cache has 2 entries, too few.*Received tokens up to 3 in a row",
    ),
    "a cache without length": (
        lambda: multi_head().make_cache(B, 0),
        ValueError,
        r"argument `length`.* Received: length=0",
    ),
    "a cache without rows": (
        lambda: multi_head().make_cache(-1, T),
        ValueError,
        r"argument `batch_size`.* at least 0. Received: batch_size=-1",
    ),
    "values beside a cache": (
        lambda: multi_head()(X, X, cache=multi_head().make_cache(B, T)),
        ValueError,
        r"A call with a cache takes the query.*Received also: value\b",
    ),
    "a list beside a cache": (
        lambda: multi_head()([X, X], cache=multi_head().make_cache(B, T)),
        ValueError,
        r"A call with a cache takes the query.*Received also: value\b",
    ),
    "a bias and positions beside a cache": (
        lambda: multi_head()(
            X,
            attention_bias=zeros(T, T),
            positions=np.arange(T),
            cache=multi_head().make_cache(B, T),
        ),
        ValueError,
        r"Received also: attention_bias, positions\b",
    ),
    "scores of a cache of a window": (
        lambda: multi_head(sliding_window=2)(
            X,
            cache=multi_head(sliding_window=2).make_cache(B, T),
            return_attention_scores=True,
        ),
        ValueError,
        r"Scores are unsupported with a sliding-window cache.*cache of 2 tokens for a window of 2",
    ),
    "memory of a layer without weights": (
        lambda: ka.MultiHeadAttention(2, 4).cache_context(Y),
        ValueError,
        r"MultiHeadAttention has no weights yet: call it once, or .*before `cache_context`",
    ),
    "memory of a symbolic tensor": (
        lambda: decoder().cache_context(keras.Input((S, D))),
        TypeError,
        r"takes arrays, and no symbolic tensors.*<KerasTensor shape=\(None, 5, 4\)",
    ),
    "a cache of several axes": (
        lambda: ka.MultiHeadAttention(2, 4, attention_axes=(1, 2)).make_cache(B, T),
        ValueError,
        r"cannot have a cache: attention_axes=\(1, 2\) is not the one axis of positions",
    ),
    "a cache without projections": (
        lambda: ka.Attention().make_cache(B, T),
        ValueError,
        r"This Attention cannot have a cache: it has no projections",
    ),
    "a cache of Location": (
        lambda: ka.Attention(2, 4, score=scores.Location(5)).make_cache(B, T),
        ValueError,
        r"This Attention cannot have a cache: the score Location depends on the number of keys",
    ),
    "a cache of a predicted center": (
        lambda: ka.LocalAttention(2, "predictive", num_heads=2, key_dim=4).make_cache(B, T),
        ValueError,
        r"This LocalAttention cannot have a cache: mode='predictive' depends on the number of keys",
    ),
    "a cache of a layer that sees what comes": (
        lambda: ka.SelfAttention(2, 4, pattern=patterns.SlidingWindow(1, 1)).make_cache(B, T),
        ValueError,
        r"This SelfAttention cannot have a cache: a token would see tokens after it",
    ),
    "rank of what is pooled": (
        lambda: ka.AttentionPooling()(zeros(B, D)),
        ValueError,
        r"`x` must be \(batch, positions, features\) with a known number of features\. "
        r"Received: x\.shape=\(2, 4\)",
    ),
}
