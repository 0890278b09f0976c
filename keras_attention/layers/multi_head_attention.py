"""`MultiHeadAttention`: attention in multiple heads, with an output projection."""

from collections.abc import Sequence
from typing import get_args

from keras_attention import patterns, scores
from keras_attention.core.hints import Constraint, Initializer, Regularizer, Unpack
from keras_attention.layers.attention import Attention
from keras_attention.layers.base import OutputProjection, Reuse, UseBias, ValueNorm
from keras_attention.layers.options import SlotOptions
from keras_attention.sequences import shapes


class MultiHeadAttention(OutputProjection, Attention):
    r"""Multi-head attention, a drop-in replacement for `keras.layers.MultiHeadAttention`.

    `Concat(head_1 … head_h) W^O` with
    `head_i = softmax(Q W_i^Q (K W_i^K)^T / √key_dim) V W_i^V` (Vaswani et al. 2017, section
    3.2.2). Constructor, call, and the names, shapes and order of the weights are those of
    `keras.layers.MultiHeadAttention`: the weights of one load into the other, with equal outputs.
    `docs/heads.md#widths` compares it with `Attention` and `SelfAttention`.

    It differs where Keras's layer is wrong: it never clears the masks of its inputs; explicit
    masks apply; a query with no key to attend to has output 0 on every path; returning scores,
    dropout at inference and the backend never change the output; a float mask other than 0 and 1
    is an error.

    Args:
        num_heads: number of heads.
        key_dim: features of each query and key head.
        value_dim: features of each value head; defaults to `key_dim`.
        dropout: rate at which weights are dropped in training.
        use_bias: whether the projections have biases: True, False, "qkv" for those of query, key
            and value alone (Qwen 2), or "qvo" for all but that of the key (Swin v2).
        output_shape: features of the output, an integer or a tuple; defaults to the query's.
        attention_axes: the axes attended over, for inputs with more than three axes; None for all
            between batch and features.
        sliding_window: None, or w to see only keys at a distance below w.
        flash_attention: None, True or False; accepted for compatibility with Keras and ignored: the
            kernel is chosen automatically (see `ops.explain`), and never changes the result.
        use_gate: whether heads are multiplied by a sigmoid gate of the query before the output
            projection.
        reuse: what it takes of the `key_value` of another layer: None; "key_value", both, with no
            projections of them nor a cache (Brandon et al. 2024); "value" (SVFormer: Zhou et al.
            2024); or "value_residual", `λ₁ V + λ₂ V'` of its own values and the other layer's, by
            `value_scales`, two weights that start at 0.5 (ResFormer: Zhou et al. 2024).
        value_norm: False, or "rms" to divide each value head by the root of its mean square, plus
            1e-6 under the root, without weights (Gemma 3n, Gemma 4).
        **kwargs: all other arguments of `Attention`.

    Call arguments are those of `Attention`. `value=None` is self-attention.

    Returns:
        (B, T, D), or (B, T, *output_shape), carrying the query's mask; with
        `return_attention_scores=True` also the weights before dropout, (B, H, T, S).

    Raises:
        ValueError, TypeError: a size, a rate, a slot or a mask is not as described.

    >>> import keras, keras_attention
    >>> ids = keras.ops.convert_to_tensor([[3, 5, 2, 0, 0], [7, 1, 4, 4, 2]])
    >>> x = keras.layers.Embedding(10, 32, mask_zero=True)(ids)
    >>> layer = keras_attention.MultiHeadAttention(num_heads=4, key_dim=8)
    >>> output, scores = layer(x, return_attention_scores=True)
    >>> output.shape, scores.shape
    ((2, 5, 32), (2, 4, 5, 5))
    >>> float(keras.ops.max(scores[0, :, :, 3:]))        # padding gets exactly nothing
    0.0
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: UseBias = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        activity_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None,
        use_gate: bool = False,
        seed: int | None = None,
        *,
        score: scores.ScoreLike = "scaled_dot",
        reuse: Reuse = None,
        value_norm: ValueNorm = False,
        **kwargs: Unpack[SlotOptions],
    ):
        super().__init__(
            *(num_heads, key_dim, value_dim),
            score=score,
            dropout=dropout,
            use_bias=use_bias,
            output_shape=output_shape,
            attention_axes=attention_axes,
            use_gate=use_gate,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            seed=seed,
            **kwargs,
        )
        self.sliding_window = shapes.check_optional_count("sliding_window", sliding_window)
        self.reuse = shapes.check_choice("reuse", reuse, get_args(Reuse))
        self.value_norm = shapes.check_choice("value_norm", value_norm, get_args(ValueNorm))
        self.flash_attention = shapes.check_flag("flash_attention", flash_attention, optional=True)
        if self.sliding_window is not None:
            reach = self.sliding_window - 1
            self.preset_pattern = patterns.SlidingWindow(reach, reach)
