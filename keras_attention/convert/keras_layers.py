"""`from_keras`: the attention layers of Keras."""

from __future__ import annotations

import keras
import numpy as np

from keras_attention import scores
from keras_attention.convert import utils
from keras_attention.layers.attention import Attention
from keras_attention.layers.multi_head_attention import MultiHeadAttention


def from_keras(layer: keras.Layer) -> Attention:
    r"""A layer of this package that computes what an attention layer of Keras does.

    | `keras.layers.` | becomes |
    | --- | --- |
    | `MultiHeadAttention` | `MultiHeadAttention` |
    | `GroupQueryAttention` | `MultiHeadAttention(num_key_value_heads=…)` |
    | `Attention()` | `Attention(score="dot")` |
    | `Attention(use_scale=True)` | `Attention(score=ScaledDot(scale))`: a constant, not trained |
    | `Attention(score_mode="concat")` | `Attention(score=Additive(D))`, D features |
    | `AdditiveAttention()` | `Attention(score=Additive(D))` |

    Keras's additive scores, `Σ scale tanh(q + k)`, project neither side. Those of this package do,
    starting from identity projections, which training changes. LoRA weights are merged into the
    new kernel.

    Args:
        layer: a built layer of one of these classes. Its name, dtype policy, dropout, initializers
            and regularizers are kept.

    Returns:
        A built layer. Outputs and scores are equal, for all masks, for every query with a key;
        a query without one gets 0. Scores of `Attention` have an axis of one head, (B, 1, T, S).

    Raises:
        ValueError: the layer is of another class, not built, or quantized.

    Example:

    >>> import keras, keras_attention
    >>> x, memory = keras.random.normal((2, 5, 16)), keras.random.normal((2, 7, 16))
    >>> theirs = keras.layers.MultiHeadAttention(num_heads=2, key_dim=8)
    >>> expected = theirs(x, memory, use_causal_mask=True)
    >>> ours = keras_attention.convert.from_keras(theirs)
    >>> difference = ours(x, memory, use_causal_mask=True) - expected
    >>> bool(keras.ops.max(keras.ops.abs(difference)) < 1e-5)
    True
    """
    convert = utils.converter(layer, "keras", CONVERTERS)
    utils.check_weights(layer)
    return convert(layer)


def _with_heads(layer):
    # Those of `GroupedQueryAttention` have other names.
    names = {"num_query_heads": "num_heads", "head_dim": "key_dim"}
    config = {names.get(name, name): value for name, value in layer.get_config().items()}
    for name, kind in (("_softmax", "Softmax"), ("_dropout_layer", "Dropout")):
        if getattr(layer, name, None) is not None:
            utils.check_part(layer, name, (kind,))
    ours = MultiHeadAttention.from_config(config)
    # The rank of the inputs, too, which the weights do not determine.
    ours.build(**layer.get_build_config()["shapes_dict"])
    utils.copy(layer, ours, utils.HEADS)
    return ours


def _attention(layer):
    if layer.score_mode == "concat":
        return _additive(layer, inner=layer.scale, outer=layer.concat_score_weight)
    scale = 1.0 if layer.scale is None else float(keras.ops.convert_to_numpy(layer.scale))
    return _without_heads(layer, "dot" if layer.scale is None else scores.ScaledDot(scale))


def _additive(layer, inner=None, outer=None):
    """outer · Σ tanh(inner · (q + k)), with weights where Keras has none; None is 1."""
    size = layer.get_build_config()["input_shape"][0][-1]
    ours = _without_heads(layer, scores.Additive(size, use_bias=False))
    inner, outer = (
        np.asarray(1.0 if x is None else keras.ops.convert_to_numpy(x), "float64")
        for x in (inner, outer)
    )
    for kernel in (ours.score.query_kernel, ours.score.key_kernel):
        utils.assign(kernel, inner * np.eye(size))
    utils.assign(ours.score.v, outer * np.ones(size))
    return ours


def _without_heads(layer, score):
    # Keras's layers before 3.15 have no seed without dropout.
    seed = getattr(layer, "seed", None)
    ours = Attention(score=score, seed=seed, **utils.arguments(layer, "dropout"))
    ours.build(*layer.get_build_config()["input_shape"])
    return ours


CONVERTERS = {
    "MultiHeadAttention": _with_heads,
    "GroupedQueryAttention": _with_heads,
    "Attention": _attention,
    "AdditiveAttention": lambda layer: _additive(layer, outer=layer.scale),
}
