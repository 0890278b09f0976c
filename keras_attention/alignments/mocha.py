"""MoChA: softmax over a chunk of keys that ends where monotonic attention stops."""

from __future__ import annotations

from typing import Any

from keras import ops

from keras_attention import saving, scores, shapes
from keras_attention.alignments.monotonic import Monotonic, shifted
from keras_attention.backend import backend
from keras_attention.hints import Tensor
from keras_attention.kernels import semantics
from keras_attention.kinds import Count, keep


@saving.register
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
        chunk_size: Count = 2,
        chunk_score: scores.ScoreLike = "additive",
        noise: float = 1.0,
        initial_bias: float = -1.0,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(noise=noise, initial_bias=initial_bias, seed=seed, **kwargs)
        keep(self, locals())
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
