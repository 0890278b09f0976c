"""Pointers: logits over the positions of a memory, and tokens that are copied from it."""

from typing import Any, ClassVar

import keras
from keras import ops

from keras_attention import feature_maps, normalizations, saving, scores
from keras_attention.backend import backend
from keras_attention.core.hints import Initializer, Tensor
from keras_attention.kernels import semantics
from keras_attention.layers.attention import Attention
from keras_attention.layers.heads import projections
from keras_attention.sequences import inputs, masks, sequence, shapes


class _Scores(normalizations.Normalization, saved=False):
    """The scores themselves."""

    def normalize(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores


class _Pointing(Attention, saved=False):
    """Attention whose weights are logits."""

    own_traits: ClassVar = {"has_weights": False}


class PointerHead(saving.ConfigurableLayer):
    r"""Logits over the positions of a memory: pointer networks, Vinyals et al. 2015, equation 3.

    `logits[t, s] = score(query_t, memory_s)`, which the loss, or the decoder, turns into
    `softmax_s(logits[t])`. The paper's score is the default, `vᵀ tanh(W₁ memory_s + W₂ query_t)`.

    Args:
        score, logit_soft_cap: as in `Attention`; Bello et al. 2017, equation 16, have a cap of 10.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        query: (B, T, D), the states of a decoder.
        memory: (B, S, D'), what it points at.
        query_mask, memory_mask: boolean (B, T) and (B, S), True = a real token; combined with the
            masks that the tensors carry.
        attention_mask: boolean (T, S) or (B, T, S), True = a position that may be chosen.
        positions: how the score `Location` counts: "places", which is the default, or "tokens".

    Returns:
        (B, T, S) in float32 for every dtype policy (float64 in float64), carrying the query's mask.
        The logit of a masked position is −1.5e38: finite, so that no loss is NaN, and its
        probability is exactly 0. Train with `SparseCategoricalCrossentropy(from_logits=True)`.

    Raises:
        ValueError, TypeError: as `Attention`.

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
        self.score = scores.get(score)
        # In full precision, as its weights are the logits.
        wide = shapes.full_precision(self.compute_dtype)
        options = {"logit_soft_cap": logit_soft_cap, "name": "attention", "dtype": wide}
        self._attention = _Pointing(score=self.score, normalization=_Scores(), **options)
        self._keep_of(self._attention, "logit_soft_cap")

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
        pairs = _pairs(attention_mask)
        given = {"query_mask": query_mask, "value_mask": memory_mask, "attention_mask": pairs}
        given |= {"positions": sequence.only_word(positions), "return_attention_scores": True}
        # Of the values one feature is enough: nothing uses their sum.
        _, logits = self._attention(query, memory[..., :1], memory, **given)
        seen = masks.both(None if memory_mask is None else memory_mask[:, None], pairs)
        return masks.carry(semantics.masked(logits[:, 0], seen), query_mask)

    def compute_output_shape(self, query_shape, memory_shape):
        self._attention.compute_output_shape(query_shape, (*memory_shape[:-1], 1), memory_shape)
        return (*query_shape[:2], memory_shape[1])

    def compute_output_spec(self, *args, **kwargs):
        given = inputs.arguments(self.call, *args, **kwargs)
        sequence.only_word(given.positions)
        shape = self.compute_output_shape(given.query.shape, given.memory.shape)
        pairs = _pairs(given.attention_mask)
        if pairs is not None:
            inputs.check_fits("attention_mask", pairs, shape[0], 1, *shape[1:])
        masks.padding(given.memory, given.memory_mask, "memory", "memory_mask")
        mask = masks.padding(given.query, given.query_mask, "query", "query_mask")
        return masks.carry(keras.KerasTensor(shape, self._attention.compute_dtype), mask)

    compute_mask = masks.of_first


def _pairs(attention_mask):
    """A mask of pairs, checked: it is the same for all heads, as logits have none."""
    attention_mask = masks.boolean("attention_mask", attention_mask)
    if attention_mask is not None and len(attention_mask.shape) not in (2, 3):
        raise ValueError(
            "`attention_mask` must be (T, S) or (B, T, S). "
            f"Received: attention_mask.shape={tuple(attention_mask.shape)}"
        )
    return attention_mask


# The least probability of copying a token, for a finite logarithm: the smallest normal float32.
LEAST = 1.2e-38


class PointerGenerator(saving.ConfigurableLayer):
    r"""Mixes a vocabulary's distribution with copying. See et al. 2017, equations 8 and 9.

    `P(w) = p · P_vocabulary(w) + (1 − p) · Σ_{s: source_s = w} a_s`, where a are attention weights
    over the source, and `p = sigmoid(wᵀ x + b)`. Tokens of the source outside the vocabulary have
    numbers from `vocabulary_size` on, per row, and can only be copied. Weights are divided by their
    sum over the tokens that are not masked, so that P sums to one; without any, p is 1.

    Args:
        vocabulary_size, num_extra_tokens: V, and the largest number of other tokens of a source.
        kernel_initializer, bias_initializer: of w and b.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (B, T, D), what p depends on: in the paper, context, state and input of the decoder.
        logits: (B, T, V), of the vocabulary.
        attention_scores: (B, T, S), or (B, H, T, S), whose mean over heads is taken; not negative.
        source_ids: integers (B, S) from 0 to V + `num_extra_tokens` − 1. Negative ones are masked;
            the probability of larger ones is not returned, and P sums to one less by it.
        source_mask: boolean (B, S), True = a token that may be copied.

    Returns:
        (B, T, V + `num_extra_tokens`), log P in float32 (float64 in float64), carrying the mask of
        `x`: logits for losses and for `generation`. Σ a is at least 1.2e-38, so all are finite.

    Raises:
        ValueError, TypeError: a size, a shape or a dtype is not as described.

    >>> import keras, keras_attention
    >>> layer = keras_attention.PointerGenerator(10, num_extra_tokens=2)
    >>> states, logits = keras.random.normal((1, 3, 8)), keras.random.normal((1, 3, 10))
    >>> weights = keras.ops.full((1, 3, 4), 0.25)
    >>> found = layer(states, logits, weights, keras.ops.array([[5, 11, 10, 5]]))
    >>> found.shape, float(keras.ops.round(keras.ops.sum(keras.ops.exp(found)), 4))
    ((1, 3, 12), 3.0)
    """

    _masks = "`source_mask` (B, S) for padding"
    _unrounded = ("logits", "attention_scores")

    def __init__(
        self,
        vocabulary_size: int,
        num_extra_tokens: int = 0,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = shapes.check_count("vocabulary_size", vocabulary_size)
        self.num_extra_tokens = shapes.check_count("num_extra_tokens", num_extra_tokens, 0)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, x_shape, *shapes):
        self._dense = projections.dense(self, "gate", 1, x_shape, use_bias=True)

    def call(
        self,
        x: Tensor,
        logits: Tensor,
        attention_scores: Tensor,
        source_ids: Tensor,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        mask = self._check(x, logits, attention_scores, source_ids, source_mask)
        # The gradient of the kernel sums over all rows.
        of_x = masks.implicit(x)
        gate = projections.apply(self, self._dense, masks.clear(x, of_x))
        given, wide = (gate, attention_scores, logits), shapes.full_precision(self.compute_dtype)
        gate, weights, logits = (ops.cast(array, wide) for array in given)
        mask = masks.both(source_ids >= 0, mask)
        if len(weights.shape) == 4:
            # The mean over the heads that have any weight.
            weights = ops.sum(_distribution(weights, mask[:, None, None]), axis=1)
        weights = _distribution(weights, mask[:, None])
        copied = self._copied(weights, source_ids)
        copied = backend.maximum(copied, ops.cast(LEAST, copied.dtype))
        copied = ops.log(copied) + ops.log_sigmoid(-gate)
        none = ops.sum(weights, axis=-1, keepdims=True) == 0
        written = ops.where(none, ops.zeros_like(gate), ops.log_sigmoid(gate))
        written = written + ops.log_softmax(logits)
        own, more = copied[..., : self.vocabulary_size], copied[..., self.vocabulary_size :]
        # log(exp(written) + exp(own)), with the gradient of both where they are equal.
        largest = ops.stop_gradient(backend.maximum(written, own))
        found = largest + ops.log(ops.exp(written - largest) + ops.exp(own - largest))
        return masks.carry(ops.concatenate([found, more], axis=-1), of_x)

    def _copied(self, weights, ids):
        """Sums (B, T, V + extra) of weights (B, T, S) over the positions of each token."""
        size = self.vocabulary_size + self.num_extra_tokens
        ids = ops.cast(ids, "int32")
        valid = ops.logical_and(ids >= 0, ids < size)
        weights = ops.where(valid[:, None], weights, ops.zeros_like(weights))
        rows, queries = ops.shape(weights)[:2]
        if backend.known_size(weights.shape[1]) == 0:
            # Keras's `scatter` takes no rows of nothing.
            return ops.zeros((rows, queries, size), weights.dtype)
        # One row of T weights for each position of the source, at (b, id).
        at = ops.where(valid, ids, 0) + size * ops.arange(rows, dtype="int32")[:, None]
        updates = ops.reshape(ops.transpose(weights, (0, 2, 1)), (-1, queries))
        sums = ops.scatter(ops.reshape(at, (-1, 1)), updates, (rows * size, queries))
        return ops.transpose(ops.reshape(sums, (rows, size, queries)), (0, 2, 1))

    def _check(self, x, logits, weights, ids, mask):
        """The mask of the source, or None."""
        shapes.check_rank("x", x, 3, "(B, T, D)")
        shapes.check_rank("logits", logits, 3, "(B, T, V)")
        shapes.check_rank("source_ids", ids, 2, "(B, S)")
        if len(weights.shape) not in (3, 4):
            raise ValueError(
                "`attention_scores` must be (B, T, S) or (B, H, T, S). "
                f"Received: attention_scores.shape={tuple(weights.shape)}"
            )
        sizes = {"vocabulary_size": self.vocabulary_size, "logits": logits.shape[-1]}
        shapes.check_same("The vocabulary and the last axis of `logits`", **sizes)
        given = {"x": x, "logits": logits, "attention_scores": weights, "source_ids": ids}
        for what, axis, names in (
            ("Lengths of the source", -1, ("attention_scores", "source_ids")),
            ("Numbers of steps T", -2, ("x", "logits", "attention_scores")),
            ("Batch sizes", 0, given),
        ):
            shapes.check_same(what, **{name: given[name].shape[axis] for name in names})
        if "int" not in keras.backend.standardize_dtype(ids.dtype):
            raise TypeError(f"`source_ids` must be integers. Received: dtype {ids.dtype}")
        masks.padding(x, None)
        return masks.padding(ids, mask, "source_ids", "source_mask", features=False)

    compute_mask = masks.of_first

    def compute_output_shape(self, x_shape, *shapes):
        return (*x_shape[:2], self.vocabulary_size + self.num_extra_tokens)

    def compute_output_spec(self, *args, **kwargs):
        given = inputs.arguments(self.call, *args, **kwargs)
        self._check(*vars(given).values())
        wide = shapes.full_precision(self.compute_dtype)
        return keras.KerasTensor(self.compute_output_shape(given.x.shape), wide)


def _distribution(weights, mask):
    """Weights that sum to one over a mask; zeros if all of these are zero."""
    weights = ops.where(mask, weights, ops.zeros_like(weights))
    return feature_maps.divided(weights, ops.sum(weights, axis=-1, keepdims=True))
