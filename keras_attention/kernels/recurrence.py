r"""Attention through a state that sums keys and values, in time linear in the length.

    S_t = diag(a_t) S_{t−1} + k_t v_tᵀ,    o_t = S_tᵀ q_t
        = Σ_{s ≤ t} (Σ_k q_tk k_sk Π_{s < r ≤ t} a_rk) v_s

Three forms give one result: `at_once` sums over all keys without an order; `run` computes the
second line inside chunks and the first between them (Hua et al. 2022; Sun et al. 2023, equation 7;
Yang et al. 2024, section 4); and `run` of one token with a state is the first line.

Decays are logarithms in float32. Inside a chunk only differences of their sums enter, exp of which
is at most 1; those of features cannot be taken apart from the pairs otherwise than around the
middle of a chunk, which is why they are at least `SMALLEST` and their chunks short.
"""

import keras

from keras_attention import shapes
from keras_attention.backend import backend
from keras_attention.kernels import scan
from keras_attention.kernels.chunks import Chunks

ops = keras.ops

# Tokens of a chunk; the second if each feature has a decay.
CHUNK, FEATURE_CHUNK = 64, 32
# Half a chunk of it is exp(80), within float32.
SMALLEST = -5.0


def at_once(query, key, value):
    """The output (B, T, H, V), and the state: the sum over all keys, without an order."""
    wide = shapes.accumulation_dtype(query, key, value)
    query, key, value = (ops.cast(x, wide) for x in (query, key, value))
    state = ops.einsum("bsgk,bsgv->bgkv", key, value)
    return read(query, state), state


def read(query, state):
    """What queries (B, T, H, K) read of a state (B, G, K, V): (B, T, H, V)."""
    batch, length, heads, size = backend.shape(query)
    groups, width = state.shape[1], state.shape[3]
    grouped = ops.reshape(query, (batch, length, groups, heads // groups, size))
    return ops.reshape(
        ops.einsum("btgrk,bgkv->btgrv", grouped, state), (batch, length, heads, width)
    )


def run(query, key, value, log_decay=None, state=None, chunk=None):
    """The output (B, T, H, V) and the state after the last token, (B, G, K, V).

    Args:
        query, key, value: (B, T, H, K), (B, T, G, K), (B, T, G, V).
        log_decay: log a, at most 0, (B, T, G, K), or (B, T, G, 1) for all features, or (1, 1, G, 1)
            for all tokens; None for 0.
        state: before the first token; None for zeros.
        chunk: tokens of a chunk.
    """
    wide = shapes.accumulation_dtype(query, key, value)
    of_features = log_decay is not None and log_decay.shape[-1] != 1
    chunks = Chunks(query, key, chunk or (FEATURE_CHUNK if of_features else CHUNK))
    query, key, value = (ops.cast(x, wide) for x in (query, key, value))
    query, key, value = chunks.of_queries(query), chunks.of_keys(key), chunks.of_keys(value)
    if log_decay is None:
        weights, after = chunks.products(query, key), None
        weights = ops.where(chunks.causal(), weights, ops.zeros_like(weights))
        from_state, into_state = query, key
    else:
        decay = chunks.sums(ops.cast(log_decay, wide))
        last = decay[..., -1:, :]
        weights = _weights(chunks, query, key, decay, of_features)
        from_state, into_state = query * ops.exp(decay)[:, :, :, None], key * ops.exp(last - decay)
        after = ops.exp(ops.swapaxes(last, -1, -2))
    output = chunks.combine(weights, value)
    updates = backend.matmul(into_state, value, transpose_first=True)
    if state is None and chunks.alone:
        return chunks.together(output), updates[0]
    state = ops.zeros_like(updates[0]) if state is None else ops.cast(state, wide)
    before, state = scan.states(after, updates, state)
    return chunks.together(output + chunks.combine(from_state, before)), state


def ratios(decay, allowed):
    """exp of the differences of sums of one decay for all features, (N, B, G, C, C), else 0."""
    difference = decay - ops.swapaxes(decay, -1, -2)
    # Before the exponential, which would overflow, with its gradient.
    return backend.exp(ops.where(allowed, difference, ops.cast(-1e30, decay.dtype)))


def _weights(chunks, query, key, decay, of_features):
    """The weights (N, B, G, R, C, C) of the pairs in a chunk."""
    if not of_features:
        return chunks.products(query, key) * ratios(decay, chunks.causal())[:, :, :, None]
    from_middle = decay - decay[..., chunks.size // 2, None, :]
    query = query * ops.exp(from_middle)[:, :, :, None]
    weights = chunks.products(query, key * ops.exp(-from_middle))
    return ops.where(chunks.causal(), weights, ops.zeros_like(weights))
