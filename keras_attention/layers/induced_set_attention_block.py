"""`InducedSetAttentionBlock`: attention within a set through a few learned points."""

from __future__ import annotations

from typing import Any

import keras

from keras_attention import masks, saving, shapes
from keras_attention.hints import Activation, Initializer, Tensor
from keras_attention.layers.block_norms import Norm
from keras_attention.layers.learned_queries import LearnedQueries
from keras_attention.layers.transformer_block import Residual, TransformerBlock


@saving.register
class InducedSetAttentionBlock(saving.ConfigurableLayer):
    r"""A block of a set in time O(S · m), through m inducing points (Lee et al. 2019, equation 9).

    `ISAB(X) = MAB(X, MAB(I, X))`: learned points I attend to the set, and the set attends to
    what they found. `MAB(X, Y)`, equation 6, is a `TransformerBlock` with cross-attention alone.
    There are no positions, so that another order of the elements is another order of the outputs.

    Args:
        intermediate_dim, num_heads, dropout, activation, layer_norm_epsilon, norm, key_dim,
            residual, kernel_initializer: of both blocks, as in `TransformerBlock`.
        num_inducing_points: m.
        initializer: of the points.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (B, S, D), a set of S elements.
        mask: boolean (B, S), True = a real element; combined with the mask that `x` carries.
        training: whether to apply dropout.

    Returns:
        (B, S, D), carrying the mask, and 0 where masked.

    Raises:
        ValueError, TypeError: as `TransformerBlock` and `LearnedQueries`.

    Example:

    >>> import keras, keras_attention
    >>> block = keras_attention.InducedSetAttentionBlock(32, num_heads=2, num_inducing_points=4)
    >>> block(keras.random.normal((2, 100, 16))).shape
    (2, 100, 16)
    """

    _masks = "`mask` (B, S) for padding"

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        num_inducing_points: int,
        dropout: float = 0.0,
        activation: Activation = "relu",
        layer_norm_epsilon: float = 1e-5,
        norm: Norm = "layer",
        key_dim: int | None = None,
        residual: Residual | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_inducing_points = shapes.check_count("num_inducing_points", num_inducing_points)
        self.initializer = keras.initializers.get(initializer)
        self._points = LearnedQueries(
            num_inducing_points, initializer=initializer, dtype=self.dtype_policy, name="points"
        )
        options = {
            "dropout": dropout,
            "activation": activation,
            "layer_norm_epsilon": layer_norm_epsilon,
            "norm": norm,
            "key_dim": key_dim,
            "residual": residual,
            "kernel_initializer": kernel_initializer,
        }
        self._to_points, self._to_elements = (
            TransformerBlock(
                *(intermediate_dim, num_heads),
                cross_attention=True,
                self_attention=False,
                dtype=self.dtype_policy,
                name=name,
                **{**options, "kernel_initializer": saving.clone_initializer(kernel_initializer)},
            )
            for name in ("to_points", "to_elements")
        )
        self.intermediate_dim, self.num_heads = intermediate_dim, num_heads
        for name in options:
            setattr(self, name, getattr(self._to_points, name))

    def build(self, x_shape, mask_shape=None):
        points = self._points.compute_output_shape(x_shape)
        self._points.build(x_shape)
        self._to_points.build(points, x_shape)
        self._to_elements.build(x_shape, points)

    def call(self, x: Tensor, mask: Tensor | None = None, training: bool | None = None) -> Tensor:
        mask = masks.padding(x, mask)
        points = self._to_points(self._points(x), x, context_mask=mask, training=training)
        return self._to_elements(x, points, mask=mask, training=training)

    def compute_mask(self, x, previous_mask=None):
        return masks.padding(x, previous_mask)

    def compute_output_shape(self, x_shape, mask_shape=None):
        self._points.compute_output_shape(x_shape)
        return tuple(x_shape)
