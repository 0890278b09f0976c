"""Monotonic attention: no step attends to a key before that of the last step, or its chunk."""

from typing import Any

import keras
from keras import ops

from keras_attention import normalizations, scores
from keras_attention.alignments.base import Alignment
from keras_attention.backend import backend
from keras_attention.core.hints import Tensor
from keras_attention.kernels import semantics
from keras_attention.sequences import shapes
from keras_attention.sequences.sizes import known

# Passes of the scan over a memory of unknown length: enough for 2¹⁶ keys.
PASSES = 16


class Monotonic(Alignment):
    """w_ts = p_ts q_ts, q_ts = (1 − p_t,s−1) q_t,s−1 + w_t−1,s, p = sigmoid(score + r + noise).

    Raffel et al. 2017, section 2: from the key of the step before, a step goes on to the next ones,
    and stops at each with probability p. In training the weights are the probabilities of stopping,
    computed by a parallel scan of products and sums, without a quotient that could overflow. At
    inference the step attends to the first key with p > 1/2 that is not before that of the last
    step; if there is none, it and all later steps have weights of zero. So weights sum to at most
    1. The first step starts at the first key; keys that are masked are passed.

    r, (H,), is learned. The normalization of the attention must be "softmax", which this replaces.
    The paper's score is `Additive(normalize=True)`.

    Args:
        noise: standard deviation of the normal noise that training adds to scores, which makes it
            prefer p near 0 or 1.
        initial_bias: r before training; negative for a memory that is longer than the output.
        seed: of the noise.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: an argument is not as described, or the normalization is another.

    >>> import keras
    >>> from keras_attention import AttentionCell, AttentionRNN
    >>> memory, x = keras.random.normal((2, 7, 16)), keras.random.normal((2, 5, 8))
    >>> cell = AttentionCell(keras.layers.GRUCell(16), "additive", alignment="monotonic")
    >>> AttentionRNN(cell, return_sequences=True)(x, memory).shape
    (2, 5, 16)
    """

    random = True

    def __init__(
        self, noise: float = 1.0, initial_bias: float = -1.0, seed: int | None = None, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.noise = shapes.check_number("noise", noise, minimum=0)
        self.initial_bias = shapes.check_number("initial_bias", initial_bias)
        self.seed = shapes.check_seed("seed", seed)
        self.seed_generator = keras.random.SeedGenerator(self.seed)

    def check(self, attention):
        softmax = type(attention.normalization) is normalizations.Softmax
        if not softmax or attention.use_sink:
            raise ValueError(
                f"{type(self).__name__} replaces the normalization, which must be 'softmax', and "
                f"without a sink. Received: normalization={attention.normalization!r}, "
                f"use_sink={attention.use_sink}"
            )

    def build(self, query_shape, key_shape, prepared_shape):
        start = keras.initializers.Constant(self.initial_bias)
        self.bias = self.add_weight(name="bias", shape=(query_shape[2],), initializer=start)

    def first_states(self, shape):
        # The first step starts at the first key; where that is padding, it goes on to a real one.
        first = ops.cast(ops.equal(ops.arange(shape[2]), 0), self.compute_dtype)
        return [ops.broadcast_to(first, shape)]

    def attend(self, attend, query, key, states, more, training):
        uniform = more[-1]

        def normalize(scores, mask):
            logits = scores + ops.cast(self.bias, scores.dtype)[:, None, None]
            before = ops.cast(states[0], scores.dtype)[:, :, None]
            if not training:
                return hard(logits, before, mask)
            if uniform is not None and self.noise:
                noise = normal(ops.cast(uniform, scores.dtype))
                logits = logits + self.noise * noise[:, :, None]
            return expected(logits, before, mask)

        result = attend(key, normalization=normalize)
        return result, [ops.cast(result.weights[:, :, 0], states[0].dtype)]


def normal(uniform: Tensor) -> Tensor:
    """Normal numbers of uniform ones."""
    return 2**0.5 * ops.erfinv(ops.clip(2 * uniform - 1, -0.999999, 0.999999))


def hard(logits: Tensor, before: Tensor, mask: Tensor | None) -> Tensor:
    """1 at the first key with a positive logit that is not before the key of the step before."""
    eligible = (logits > 0) & (ops.cumsum(before, axis=-1) > 0.5)
    eligible = eligible if mask is None else eligible & mask
    eligible = ops.cast(eligible, logits.dtype)
    return eligible * ops.cast(ops.equal(ops.cumsum(eligible, axis=-1), 1), logits.dtype)


def expected(logits: Tensor, before: Tensor, mask: Tensor | None) -> Tensor:
    """The probability of each key to be attended to, (B, H, T, S)."""
    stop, go = ops.sigmoid(logits), ops.sigmoid(-logits)
    if mask is not None:
        stop = ops.where(mask, stop, ops.zeros_like(stop))
        go = ops.where(mask, go, ops.ones_like(go))
    # q_s = go_{s−1} q_{s−1} + before_s, composed over 1, 2, 4, … keys.
    length = backend.shape(logits)[-1]
    index, shift = ops.arange(length), 1
    factor, arrived = shifted(go, 1, index), before
    for _ in range((length - 1).bit_length() if known(length) else PASSES):
        arrived = arrived + factor * shifted(arrived, shift, index)
        factor = factor * shifted(factor, shift, index)
        shift *= 2
    return stop * arrived


def shifted(array: Tensor, by: int, index: Tensor, first: float = 0.0) -> Tensor:
    """`array` shifted along its last axis, with `first` in the places that become free."""
    return ops.where(index >= by, ops.roll(array, by, axis=-1), ops.cast(first, array.dtype))


class MoChA(Monotonic):
    """β_s = Σ_{k=s}^{s+w−1} α_k exp(u_s) / Σ_{l=k−w+1}^{k} exp(u_l), α the weights of `Monotonic`.

    Monotonic chunkwise attention, Chiu & Raffel 2018, section 2.3: a softmax over the w keys that
    end where monotonic attention stops, with scores u of their own. Keys that are masked are in no
    chunk. A step takes O(H · S · w) memory. In training the weights are expectations.

    Args:
        chunk_size: w, the number of keys of a chunk.
        chunk_score: the score u, an object or a string, which prepares queries and keys apart.
        noise, initial_bias, seed: as in `Monotonic`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: an argument is not as described, or the normalization is not "softmax".

    >>> import keras
    >>> from keras_attention import AttentionCell, AttentionRNN, alignments
    >>> memory, x = keras.random.normal((2, 7, 16)), keras.random.normal((2, 5, 8))
    >>> chunks = alignments.MoChA(chunk_size=3)
    >>> cell = AttentionCell(keras.layers.GRUCell(16), "additive", alignment=chunks)
    >>> AttentionRNN(cell, return_sequences=True)(x, memory).shape
    (2, 5, 16)
    """

    num_prepared = 1

    def __init__(
        self,
        chunk_size: int = 2,
        chunk_score: scores.ScoreLike = "additive",
        noise: float = 1.0,
        initial_bias: float = -1.0,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(noise=noise, initial_bias=initial_bias, seed=seed, **kwargs)
        self.chunk_size = shapes.check_count("chunk_size", chunk_size)
        self.chunk_score = scores.get(chunk_score)
        if not self.chunk_score.prepares_apart:
            raise ValueError(
                "`chunk_score` must prepare queries and keys apart, by `prepare_query` and "
                f"`prepare_key`. Received: chunk_score={chunk_score!r}"
            )

    def build(self, query_shape, key_shape, prepared_shape):
        super().build(query_shape, key_shape, prepared_shape)
        if not self.chunk_score.built:
            self.chunk_score.build(query_shape, key_shape)

    def prepare(self, key):
        return [self.chunk_score.prepare_key(ops.cast(key, shapes.accumulation_dtype(key)))]

    def attend(self, attend, query, key, states, more, training):
        prepared = more[2]
        _, states = super().attend(attend, query, key, states, more, training)
        query = self.chunk_score.prepare_query(ops.cast(query, prepared.dtype))
        energies = self.chunk_score.compare(query, prepared)

        # Once more, as the attention knows which keys its mask and its pattern hide.
        def normalize(scores, mask):
            seen = energies if mask is None else semantics.masked(energies, mask)
            weights = chunkwise(states[0][:, :, None], seen, self.chunk_size)
            return ops.cast(weights, scores.dtype)

        return attend(key, normalization=normalize), states


def chunkwise(stops: Tensor, energies: Tensor, size: int) -> Tensor:
    """Weights (B, H, T, S) of the probabilities to stop at a key, and the energies of keys."""
    if size == 1:
        return ops.cast(stops, energies.dtype)
    length = backend.shape(energies)[-1]
    index = ops.arange(length)
    chunks = [shifted(energies, back, index, semantics.MASKED) for back in range(size)]
    shares = ops.softmax(ops.stack(chunks, axis=-1), axis=-1)
    shares = shares * ops.cast(stops, shares.dtype)[..., None]
    total = shares[..., 0]
    for back in range(1, size):
        # A share of the chunk that ends at key k goes to key k − back.
        moved = ops.roll(shares[..., back], -back, axis=-1)
        total = total + ops.where(index < length - back, moved, ops.zeros_like(moved))
    return total
