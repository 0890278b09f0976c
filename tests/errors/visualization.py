"""What is raised by `check_masks` and by visualization."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import visualization
from keras_attention.visualization import labels
from tests.errors.calls import X, built_feed_forward, plot_without_matplotlib

# A call, the type of its exception, and a pattern in the message: what was expected and what came.
ROWS = {
    # mask_flow
    "checking the masks of a layer": (
        lambda: ka.check_masks(keras.layers.Dense(2)),
        TypeError,
        r"`model` must be a Keras model\. Received: Dense",
    ),
    "checking masks of unknown inputs": (
        lambda: ka.check_masks(keras.Sequential([keras.layers.Dense(2)], name="plain")),
        ValueError,
        "must be functional, or sequential with a known input shape.* Sequential 'plain'",
    ),
    # visualization
    "scores that are no numbers": (
        lambda: visualization.attention_html([["a", "b"]], None),
        TypeError,
        r"`scores` must be an array of numbers\. Received: list, which is none: could not convert",
    ),
    "a layer that was not collected": (
        lambda: labels.Scores()["decoder/attention"],
        KeyError,
        "decoder/attention",
    ),
    "a function in place of a model": (
        lambda: visualization.collect_attention(lambda x: x, X),
        TypeError,
        r"`model` must be a Keras model or layer\. Received: function",
    ),
    "collecting before there are weights": (
        lambda: visualization.collect_attention(ka.SelfAttention(2, 4, name="a"), X),
        ValueError,
        r"has no weights yet: call it once .* Received: SelfAttention 'a', not built",
    ),
    "a model without attention": (
        lambda: visualization.collect_attention(built_feed_forward(), X),
        ValueError,
        "No attention layer with weights of pairs was called.* Received: FeedForward 'plain'",
    ),
    "no layers to draw": (
        lambda: visualization.attention_html({}, None),
        ValueError,
        r"`scores` must have a layer at least\. Received: \{\}",
    ),
    "weights of too few axes": (
        lambda: visualization.attention_html({"first": np.ones(3)}, None),
        ValueError,
        r"`scores` of 'first' must be \(queries, keys\).* Received: shape \(3,\)",
    ),
    "a picture of a batch": (
        lambda: visualization.attention_html(np.ones((2, 1, 3, 3)), None),
        ValueError,
        r"one row of a batch.* Received: `scores` of shape \(2, 1, 3, 3\)",
    ),
    "negative weights": (
        lambda: visualization.attention_html(-np.ones((3, 3)), None),
        ValueError,
        r"finite and not negative\. .* Received: numbers from -1\.0 to -1\.0",
    ),
    "words of some layers": (
        lambda: visualization.attention_html({"a": np.ones((1, 1))}, {"b": ["x"]}),
        ValueError,
        r"must name each layer of `scores`\. Received no 'a'",
    ),
    "a text in place of words": (
        lambda: visualization.attention_html(np.ones((3, 3)), "abc"),
        TypeError,
        r"`query_tokens` must be a list of words\. Received: 'abc'",
    ),
    "too few words": (
        lambda: visualization.attention_html(np.ones((2, 3)), ["a", "b"], ["c", None]),
        ValueError,
        r"`key_tokens` must have a word for each of 3 positions.* Received: 1 words of 2",
    ),
    "no matplotlib": (
        plot_without_matplotlib,
        ImportError,
        r"`pip install matplotlib`",
    ),
}
