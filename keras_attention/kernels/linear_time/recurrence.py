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

import math

from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels.linear_time.chunks import Chunks, largest_so_far, states
from keras_attention.sequences import shapes
from keras_attention.spec import padded

# Tokens of a chunk; the second if each feature has a decay.
CHUNK, FEATURE_CHUNK = 64, 32
# Tokens of a chunk of exponentials, and how many of their features have one largest exponent.
EXPONENTS_CHUNK, GROUP = 32, 16
# Half a chunk of it is exp(80), within float32.
SMALLEST = -5.0
# Exponents: of what is not there, and the least one of a pair, whose inverse has a finite gradient.
NOTHING, SMALLEST_PAIR = -1e30, -75.0


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
    found = ops.einsum("btgrk,bgkv->btgrv", grouped, state)
    return ops.reshape(found, (batch, length, heads, width))


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
        weights = pairs(chunks, query, key, decay)
        from_state, into_state = query * ops.exp(decay)[:, :, :, None], key * ops.exp(last - decay)
        after = ops.exp(ops.swapaxes(last, -1, -2))
    output = chunks.combine(weights, value)
    updates = backend.matmul(into_state, value, transpose_first=True)
    if state is None and chunks.alone:
        return chunks.together(output), updates[0]
    state = ops.zeros_like(updates[0]) if state is None else ops.cast(state, wide)
    before, state = states(after, updates, state)
    return chunks.together(output + chunks.combine(from_state, before)), state


def of_exponents(query, key, value, mask, causal, state=None):
    """What queries read of sums of keys, of features that are exponentials, and (sums, largest).

    Features may be beyond any float. So the sums (B, G, K, V) are Σ exp(key − largest) v, with the
    largest exponent so far of each feature, (B, G, K), and the output is that of queries up to a
    factor of each, which a division by the output for values of 1 removes.

    Args:
        query, key: the exponents (B, T, H, K) and (B, S, G, K).
        value: (B, S, G, V).
        mask: (B, S), True = a real token, or None.
        causal: whether a query sees keys up to its own index only; then T = S.
        state: (sums, largest) before the first token, or None.
    """
    batch, length = backend.shape(key)[:2]
    real = ops.ones((batch, length), "bool") if mask is None else mask
    real = ops.broadcast_to(ops.expand_dims(real, (2, 3)), (batch, length, key.shape[2], 1))
    if not causal:
        largest = _largest(ops.where(real, key, NOTHING), axis=1, keepdims=False)
        features = ops.where(real, ops.exp(ops.where(real, key - largest[:, None], 0.0)), 0.0)
        sums = ops.einsum("bsgk,bsgv->bgkv", features, value)
        query = query + ops.repeat(largest, query.shape[2] // key.shape[2], axis=1)[:, None]
        return read(ops.exp(query - _largest(query)), sums), (sums, largest)
    chunks = Chunks(query, key, EXPONENTS_CHUNK)
    query, key, value = chunks.of_queries(query), chunks.of_keys(key), chunks.of_keys(value)
    real = chunks.of_keys(ops.cast(real, value.dtype)) > 0
    key = ops.where(real, key, NOTHING)
    shape = (batch, key.shape[2], key.shape[4])
    sums, before = (None, ops.full(shape, NOTHING, key.dtype)) if state is None else state
    largest = _largest(key, axis=3, keepdims=False)
    before = largest_so_far(largest, before)
    after = backend.maximum(before, largest)
    features = ops.where(real, ops.exp(key - after[:, :, :, None]), 0.0)
    updates = backend.matmul(features, value, transpose_first=True)
    if sums is None:
        sums = ops.zeros_like(updates[0])
    # Within a chunk, each pair by itself.
    *sizes, repeats, tokens, features = backend.shape(query)
    pairs = logarithms(ops.reshape(query, (*sizes, repeats * tokens, features)), key)
    pairs = ops.reshape(pairs, (*sizes, repeats, tokens, tokens))
    seen = ops.swapaxes(real, -1, -2)[:, :, :, None] & chunks.causal()
    pairs = ops.where(seen, pairs, NOTHING)
    from_before = query + before[:, :, :, None, None]
    rows = backend.maximum(_largest(pairs), _largest(from_before))
    weights = ops.where(seen, ops.exp(pairs - rows), 0.0)
    of_chunks, sums = states(ops.exp(before - after)[..., None], updates, sums)
    output = chunks.combine(weights, value)
    output = output + chunks.combine(ops.exp(from_before - rows), of_chunks)
    return chunks.together(output), (sums, after[-1])


def logarithms(query, key):
    """log Σ_k exp(query_k + key_k) of exponents (…, T, K) and (…, S, K): (…, T, S).

    In groups of features, of which queries and keys are each divided by the largest. Where a
    product is below exp(`SMALLEST_PAIR`) beside that of these two, it counts as so much.
    """
    size = query.shape[-1]
    pieces = -(-size // GROUP)
    groups = []
    for array in (query, key):
        array = padded(array, -1, 0, pieces * GROUP - size, NOTHING)
        array = ops.reshape(array, (*backend.shape(array)[:-1], pieces, GROUP))
        groups.append(ops.moveaxis(array, -2, 0))
    largest, of_keys = map(_largest, groups)
    features = (ops.exp(x - y) for x, y in zip(groups, (largest, of_keys), strict=True))
    products = backend.matmul(*features, transpose_second=True)
    least = ops.cast(math.exp(SMALLEST_PAIR), products.dtype)
    found = ops.log(backend.maximum(products, least)) + largest + ops.swapaxes(of_keys, -1, -2)
    highest = _largest(found, axis=0)
    return ops.log(ops.sum(ops.exp(found - highest), axis=0)) + highest[0]


def _largest(array, axis=-1, keepdims=True):
    """The largest of an axis, without a gradient."""
    if 0 in tuple(array.shape):
        # Frameworks have no largest of nothing.
        return ops.sum(array, axis=axis, keepdims=keepdims)
    return ops.stop_gradient(ops.max(array, axis=axis, keepdims=keepdims, initial=NOTHING))


def ratios(decay, allowed):
    """exp of the differences of sums of one decay for all features, (N, B, G, C, C), else 0."""
    difference = decay - ops.swapaxes(decay, -1, -2)
    # Before the exponential, which would overflow, with its gradient.
    return backend.exp(ops.where(allowed, difference, ops.cast(-1e30, decay.dtype)))


def pairs(chunks, query, key, decay, together=FEATURE_CHUNK):
    """The weights (N, B, G, R, C, C) of the pairs in a chunk, by sums of decays.

    Of features, decays of so many tokens `together` are within float32 around their middle.
    """
    if decay.shape[-1] == 1:
        return chunks.products(query, key) * ratios(decay, chunks.causal())[:, :, :, None]
    return _pairs_of_features(chunks, query, key, decay, chunks.size, together)


def _pairs_of_features(chunks, query, key, decay, size, together):
    if size > together:
        # By halves: from the keys of the first to its end, and from there to later queries.
        half = size // 2
        first, second = (
            [x[..., cut, :] for x in (query, key, decay)]
            for cut in (slice(half), slice(half, None))
        )
        halves = (ops.concatenate(x) for x in zip(first, second, strict=True))
        upper, lower = ops.split(_pairs_of_features(chunks, *halves, half, together), 2)
        end = first[2][..., -1:, :]
        later = second[0] * ops.exp(second[2] - end)[:, :, :, None]
        across = chunks.products(later, first[1] * ops.exp(end - first[2]))
        rows = [[upper, ops.zeros_like(upper)], [across, lower]]
        return ops.concatenate([ops.concatenate(row, axis=-1) for row in rows], axis=-2)
    from_middle = decay - decay[..., size // 2, None, :]
    query = query * ops.exp(from_middle)[:, :, :, None]
    weights = chunks.products(query, key * ops.exp(-from_middle))
    return ops.where(chunks.causal(size), weights, ops.zeros_like(weights))
