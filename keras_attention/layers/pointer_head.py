"""`PointerHead`: logits over the positions of a memory."""

from __future__ import annotations

from typing import Any

import keras

from keras_attention import inputs, masks, normalizations, saving, scores, sequence, shapes
from keras_attention.hints import Tensor
from keras_attention.kernels import semantics
from keras_attention.layers.attention import Attention

ops = keras.ops


class _Scores(normalizations.Normalization):
    """The scores themselves."""

    def normalize(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores


class _Pointing(Attention):
    """Attention whose weights are logits."""

    has_weights = False


@saving.register
class PointerHead(saving.ConfigurableLayer):
    r"""Logits over the positions of a memory: pointer networks, Vinyals et al. 2015, equation 3.

    `logits[t, s] = score(query_t, memory_s)`, which the loss, or the decoder, turns into
    `softmax_s(logits[t])`. The paper's score is the default, `vᵀ tanh(W₁ memory_s + W₂ query_t)`.

    Args:
        score: how well a position matches a query, as in `Attention`.
        logit_soft_cap: None, or c to replace scores by `c · tanh(score / c)` (Bello et al. 2017,
            equation 16, have c = 10).
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        query: (B, T, D), the states of a decoder.
        memory: (B, S, D'), what it points at.
        query_mask, memory_mask: boolean (B, T) and (B, S), True = a real token; combined with the
            masks that the tensors carry.
        attention_mask: boolean (T, S) or (B, T, S), True = a position that may be chosen, for
            example one that was not chosen before.
        positions: how the score `Location` counts: "places", which is the default, or "tokens".

    Returns:
        (B, T, S) in float32 for every dtype policy (float64 in float64), carrying the query's mask.
        The logit of a masked position is −1.5e38: finite, so that no loss is NaN, and its
        probability is exactly 0. Train with `SparseCategoricalCrossentropy(from_logits=True)`.

    Raises:
        ValueError, TypeError: as `Attention`.

    Example:

    >>> import keras, keras_attention
    >>> states, memory = keras.random.normal((2, 3, 8)), keras.random.normal((2, 7, 16))
    >>> keras_attention.PointerHead()(states, memory).shape
    (2, 3, 7)
    """

    _masks = (
        "`query_mask` (B, T) and `memory_mask` (B, S) for padding, and `attention_mask`, (T, S) or "
        "(B, T, S), for pairs"
    )

    def __init__(
        self,
        score: scores.ScoreLike = "additive",
        logit_soft_cap: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.score = scores.get(score)
        self.logit_soft_cap = shapes.check_number(
            "logit_soft_cap", logit_soft_cap, above=0, optional=True
        )
        # In full precision, as its weights are the logits.
        self._attention = _Pointing(
            score=self.score,
            normalization=_Scores(),
            logit_soft_cap=logit_soft_cap,
            name="attention",
            dtype=self._output_dtype,
        )

    @property
    def _output_dtype(self):
        return shapes.full_precision(self.compute_dtype)

    def build(self, query_shape, memory_shape):
        self._attention.build(query_shape, (*memory_shape[:-1], 1), memory_shape)

    def call(
        self,
        query: Tensor,
        memory: Tensor,
        query_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        positions: str | None = None,
    ) -> Tensor:
        query_mask = masks.padding(query, query_mask, "query", "query_mask")
        memory_mask = masks.padding(memory, memory_mask, "memory", "memory_mask")
        pairs = masks.boolean("attention_mask", attention_mask)
        if pairs is not None:
            _check_pairs(pairs)
        # Of the values one feature is enough: nothing uses their sum.
        _, logits = self._attention(
            *(query, memory[..., :1], memory),
            query_mask=query_mask,
            value_mask=memory_mask,
            attention_mask=pairs,
            return_attention_scores=True,
            positions=sequence.only_word(positions),
        )
        logits = logits[:, 0]
        if memory_mask is not None:
            memory_mask = memory_mask[:, None]
        logits = semantics.masked(logits, masks.both(memory_mask, pairs))
        return masks.carry(logits, query_mask)

    def compute_mask(self, query, previous_mask=None):
        return previous_mask[0] if isinstance(previous_mask, (list, tuple)) else previous_mask

    def compute_output_shape(self, query_shape, memory_shape):
        self._attention.compute_output_shape(query_shape, (*memory_shape[:-1], 1), memory_shape)
        return (*query_shape[:2], memory_shape[1])

    def compute_output_spec(self, *args, **kwargs):
        given = inputs.arguments(self.call, *args, **kwargs)
        sequence.only_word(given.positions)
        shape = self.compute_output_shape(given.query.shape, given.memory.shape)
        pairs = masks.boolean("attention_mask", given.attention_mask)
        if pairs is not None:
            _check_pairs(pairs)
            inputs.check_fits("attention_mask", pairs, shape[0], 1, *shape[1:])
        masks.padding(given.memory, given.memory_mask, "memory", "memory_mask")
        mask = masks.padding(given.query, given.query_mask, "query", "query_mask")
        return masks.carry(keras.KerasTensor(shape, self._output_dtype), mask)


def _check_pairs(attention_mask):
    """Raises unless the mask is the same for all heads, as logits have none."""
    if len(attention_mask.shape) not in (2, 3):
        raise ValueError(
            "`attention_mask` must be (T, S) or (B, T, S). "
            f"Received: attention_mask.shape={tuple(attention_mask.shape)}"
        )
