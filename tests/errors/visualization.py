"""What is raised by `check_masks` and by visualization."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import visualization
from keras_attention.visualization import labels
from tests.errors.calls import X, built_feed_forward, plot_without_matplotlib

ROWS = {
    # mask_flow
    r"`model` must be a Keras model\. Received: Dense": (
        TypeError,
        lambda: ka.check_masks(keras.layers.Dense(2)),
    ),
    "must be functional, or sequential with a known input shape.* Sequential 'plain'": lambda: (
        ka.check_masks(keras.Sequential([keras.layers.Dense(2)], name="plain"))
    ),
    # visualization
    r"`scores` must be an array of numbers\. Received: list, which is none: could not convert": (
        TypeError,
        lambda: visualization.attention_html([["a", "b"]], None),
    ),
    "decoder/attention": (KeyError, lambda: labels.Scores()["decoder/attention"]),
    r"`model` must be a Keras model or layer\. Received: function": (
        TypeError,
        lambda: visualization.collect_attention(lambda x: x, X),
    ),
    r"has no weights yet: call it once .* Received: SelfAttention 'a', not built": lambda: (
        visualization.collect_attention(ka.SelfAttention(2, 4, name="a"), X)
    ),
    "No attention layer with weights of pairs was called.* Received: FeedForward 'plain'": lambda: (
        visualization.collect_attention(built_feed_forward(), X)
    ),
    r"`scores` must have a layer at least\. Received: \{\}": lambda: visualization.attention_html(
        {}, None
    ),
    r"`scores` of 'first' must be \(queries, keys\).* Received: shape \(3,\)": lambda: (
        visualization.attention_html({"first": np.ones(3)}, None)
    ),
    r"one row of a batch.* Received: `scores` of shape \(2, 1, 3, 3\)": lambda: (
        visualization.attention_html(np.ones((2, 1, 3, 3)), None)
    ),
    r"finite and not negative\. .* Received: numbers from -1\.0 to -1\.0": lambda: (
        visualization.attention_html(-np.ones((3, 3)), None)
    ),
    r"must name each layer of `scores`\. Received no 'a'": lambda: visualization.attention_html(
        {"a": np.ones((1, 1))}, {"b": ["x"]}
    ),
    r"`query_tokens` must be a list of words\. Received: 'abc'": (
        TypeError,
        lambda: visualization.attention_html(np.ones((3, 3)), "abc"),
    ),
    r"`key_tokens` must have a word for each of 3 positions.* Received: 1 words of 2": lambda: (
        visualization.attention_html(np.ones((2, 3)), ["a", "b"], ["c", None])
    ),
    r"`pip install matplotlib`": (ImportError, plot_without_matplotlib),
}
