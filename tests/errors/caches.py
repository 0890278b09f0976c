"""What is raised for caches and memories."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import patterns, scores
from tests.errors.calls import B, D, S, T, X, Y, decoder, multi_head, zeros

ROWS = {
    # Caches
    r"`cache` must be what `make_cache` or a call gave.*Received: \w*Tensor|\w*Array": lambda: (
        multi_head()(X, cache=X)
    ),
    r"`cache\['key'\]` must be of shape \(2, 2, 3, 4\), None.*Received: \(3, 2, 3, 4\)": lambda: (
        multi_head()(X, cache=multi_head().make_cache(B + 1, T))
    ),
    r"`cache\['index'\]` must be of a dtype int32\. Received: float32": (
        TypeError,
        lambda: multi_head()(X, cache={**multi_head().make_cache(B, T), "index": zeros(B)}),
    ),
    r"The cache has 2 entries, too few.*Received tokens up to 3 in a row": lambda: multi_head()(
        X, cache=multi_head().make_cache(B, T - 1)
    ),
    r"argument `length`.* Received: length=0": lambda: multi_head().make_cache(B, 0),
    r"argument `batch_size`.* at least 0. Received: batch_size=-1": lambda: multi_head().make_cache(
        -1, T
    ),
    r"A call with a cache takes the query.*Received also: value\b": (
        ValueError,
        lambda: multi_head()(X, X, cache=multi_head().make_cache(B, T)),
        lambda: multi_head()([X, X], cache=multi_head().make_cache(B, T)),
    ),
    r"Received also: attention_bias, positions\b": lambda: multi_head()(
        X, attention_bias=zeros(T, T), positions=np.arange(T), cache=multi_head().make_cache(B, T)
    ),
    r"Scores are unsupported with a sliding-window cache.*cache of 2 tokens for a "
    r"window of 2": lambda: multi_head(sliding_window=2)(
        X, cache=multi_head(sliding_window=2).make_cache(B, T), return_attention_scores=True
    ),
    r"MultiHeadAttention has no weights yet: call it once, or .*before `cache_context`": lambda: (
        ka.MultiHeadAttention(2, 4).cache_context(Y)
    ),
    r"takes arrays, and no symbolic tensors.*<KerasTensor shape=\(None, 5, 4\)": (
        TypeError,
        lambda: decoder().cache_context(keras.Input((S, D))),
    ),
    r"cannot have a cache: attention_axes=\(1, 2\) is not the one axis of positions": lambda: (
        ka.MultiHeadAttention(2, 4, attention_axes=(1, 2)).make_cache(B, T)
    ),
    r"This Attention cannot have a cache: it has no projections": lambda: ka.Attention().make_cache(
        B, T
    ),
    r"This Attention cannot have a cache: the score Location depends on the number of "
    r"keys": lambda: ka.Attention(2, 4, score=scores.Location(5)).make_cache(B, T),
    r"This LocalAttention cannot have a cache: mode='predictive' depends on the "
    r"number of keys": lambda: ka.LocalAttention(
        2, "predictive", num_heads=2, key_dim=4
    ).make_cache(B, T),
    r"This SelfAttention cannot have a cache: a token would see tokens after it": lambda: (
        ka.SelfAttention(2, 4, pattern=patterns.SlidingWindow(1, 1)).make_cache(B, T)
    ),
    r"`x` must be \(batch, positions, features\) with a known number of features\. "
    r"Received: x\.shape=\(2, 4\)": lambda: ka.AttentionPooling()(zeros(B, D)),
}
