"""What presets pass on to `Attention` as `**kwargs`, for editors and type checkers."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from keras_attention import normalizations, patterns, positions, regularizers, scores
from keras_attention.core.hints import Constraint, Initializer, Regularizer
from keras_attention.layers.base import QkNorm


class _Options(TypedDict, total=False):
    """Those that every layer with heads takes."""

    num_key_value_heads: int | None
    qk_norm: QkNorm
    clip_qkv: float | None
    name: str | None
    dtype: Any
    trainable: bool


class Projections(TypedDict, total=False):
    """Those of the projections."""

    kernel_initializer: Initializer
    bias_initializer: Initializer
    kernel_regularizer: Regularizer | None
    bias_regularizer: Regularizer | None
    activity_regularizer: Regularizer | None
    kernel_constraint: Constraint | None
    bias_constraint: Constraint | None
    seed: int | None


class SlotOptions(_Options, total=False):
    """Those that every preset takes."""

    normalization: normalizations.NormalizationLike
    pattern: patterns.PatternLike | None
    position: positions.PositionLike | None
    logit_soft_cap: float | None
    use_sink: bool
    scores_regularizer: regularizers.RegularizerLike | None


class ProjectionOptions(SlotOptions, Projections, total=False):
    """Those too that `MultiHeadAttention` takes by position, as Keras's layer does."""

    dropout: float
    use_bias: bool


class AttentionOptions(ProjectionOptions, total=False):
    """All but the sizes."""

    score: scores.ScoreLike


class StateOptions(_Options, Projections, total=False):
    """Those of layers that attend through a state, which have no weights of pairs."""

    use_bias: bool | Literal["qkv", "qvo"]
    output_shape: int | Sequence[int] | None
    attention_axes: int | Sequence[int] | None
