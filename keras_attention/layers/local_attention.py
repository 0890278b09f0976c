"""`LocalAttention`: attention in a window that is monotonic or predicted by the query."""

from __future__ import annotations

from typing import Literal, get_args

import keras

from keras_attention import patterns, saving, scores, shapes
from keras_attention.hints import Initializer, Unpack
from keras_attention.layers.attention import Attention
from keras_attention.layers.options import ProjectionOptions

ops = keras.ops

Mode = Literal["monotonic", "predictive"]
MODES = get_args(Mode)


@saving.register
@saving.renamed(centre_initializer="center_initializer")
class LocalAttention(Attention):
    r"""Local attention of Luong et al. 2015, section 3.2: a window of 2D + 1 keys around a center.

    "monotonic" (local-m): the center of query t is t itself. "predictive" (local-p): the query
    predicts it, `p_t = S · sigmoid(v_pᵀ tanh(W_p q_t))` (equation 9), and near keys weigh more,
    `weight[t, s] = softmax(score)[t, s] · exp(−(s − p_t)² / (2σ²))` with σ = D / 2 (equation 10),
    the softmax being over the keys of the window. Weights then sum to less than one. The center
    gets its gradient from the Gaussian.

    Args:
        window: D, the number of keys on each side of the center.
        mode: "monotonic" or "predictive".
        num_heads, key_dim, value_dim, score: as in `Attention`. Each head has its own center.
        units: rows of W_p; defaults to the features of a query head.
        center_initializer: of W_p and v_p.
        **kwargs: all other arguments of `Attention`.

    Call arguments are those of `Attention`. S counts the real keys of each row, and s is the index
    of a key among them, so that padding on either side changes nothing; monotonic windows use
    `positions`. Predicted ones take no `segment_ids`.

    Returns:
        As `Attention`.

    Raises:
        ValueError, TypeError: `window` or `mode` is not as described, or as `Attention`.

    Example:

    >>> import keras, keras_attention
    >>> queries, memory = keras.random.normal((2, 3, 8)), keras.random.normal((2, 20, 8))
    >>> layer = keras_attention.LocalAttention(window=2, mode="predictive")
    >>> output, scores = layer(queries, memory, return_attention_scores=True)
    >>> output.shape, int(keras.ops.max(keras.ops.sum(scores > 0, axis=-1))) <= 5
    ((2, 3, 8), True)
    """

    def __init__(
        self,
        window: int,
        mode: Mode = "monotonic",
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        score: scores.ScoreLike = "general",
        units: int | None = None,
        center_initializer: Initializer = "glorot_uniform",
        **kwargs: Unpack[ProjectionOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, score, **kwargs)
        self.window = shapes.check_count("window", window)
        self.mode = shapes.check_choice("mode", mode, MODES)
        self.units = shapes.check_count("units", units, optional=True)
        self.center_initializer = keras.initializers.get(center_initializer)
        if self.mode == "monotonic":
            self.preset_pattern = patterns.SlidingWindow(self.window, self.window)
        else:
            self.preset_position = PredictedCenter(self)
            self.refused_arguments = ("segment_ids",)
            centers = "with mode='predictive' has centers anywhere in a row"
            self.refusal_reason = f"{centers}: give each text one of its own"


class PredictedCenter:
    """The window of Luong et al.'s local-p: a center per query, and a Gaussian around it.

    It has what `Attention` uses of a `Position`, but is no layer of its own: the weights are
    attributes of the `LocalAttention`, where saved files expect them.

    Args:
        layer: the `LocalAttention`.
    """

    no_decoding_reason = "mode='predictive' depends on the number of keys"

    def __init__(self, layer):
        self.layer = layer

    def weights(self, query_shape):
        """The weights of the center of queries (B, T, H, K), by their attributes of the layer."""
        heads, size = query_shape[2:]
        units = self.layer.units or size
        # British, as in 0.1.0: saved files find the weights by these names.
        shapes_by_name = {
            "centre_kernel": (heads, size, units),
            "centre_vector": (heads, units, 1),
        }
        # The center is computed in float32, like scores: half precision cannot count to 4096.
        return {
            name: self.layer.add_weight(
                name=name,
                shape=shape,
                initializer=saving.clone_initializer(self.layer.center_initializer),
                autocast=False,
            )
            for name, shape in shapes_by_name.items()
        }

    def into_spec(self, spec, query, key, key_mask=None):
        """The `AttentionSpec` with the window and the Gaussian around the centers."""
        window = self.layer.window
        distance = self._distance(query, key, key_mask)
        near = ops.less_equal(ops.abs(distance), float(window))
        multiplier = ops.exp(-2.0 * ops.square(distance / window))
        if spec.multiplier is not None:
            multiplier = multiplier * spec.multiplier
        return spec.replace(masks=(*spec.masks, near), multiplier=multiplier)

    def _distance(self, query, key, key_mask):
        """The offset of each key from the center: (B, H, T, S) of query heads (B, T, H, K)."""
        wide = shapes.accumulation_dtype(query)
        weights = self.layer.centre_kernel, self.layer.centre_vector
        kernel, vector = (ops.cast(weight, wide) for weight in weights)
        hidden = ops.tanh(ops.einsum("bthk,hku->bhtu", ops.cast(query, wide), kernel))
        share = ops.sigmoid(ops.einsum("bhtu,huo->bhto", hidden, vector))
        if key_mask is None:
            length = ops.shape(key)[1]
            positions = ops.cast(ops.arange(length), wide)[None, None, None]
            return positions - share * ops.cast(length, wide)
        real = ops.cast(key_mask, wide)
        # The position among the real keys. Padding shares one, but is masked.
        positions = (ops.cumsum(real, axis=-1) - 1.0)[:, None, None]
        return positions - share * ops.sum(real, axis=-1)[:, None, None, None]
