r"""The gated delta rule: a state that replaces what it has of a key, in time linear in the length.

    S_t = (I − β_t k_t k_tᵀ) a_t S_{t−1} + β_t k_t v_tᵀ,    o_t = S_tᵀ q_t

Yang et al. 2025, equation 10; with a = 1 the delta rule (Schlag et al. 2021; Yang et al. 2024), and
with a diagonal a_t, a decay of each feature, Kimi's delta attention (Kimi Team 2025, equation 1).
Inside a chunk of sums c of log a, from the state S before it, what is written in place of v is

    ṽ = (I + A)^{−1} (β v − β exp(c) k S),   A_ts = β_t Σ_k exp(c_tk − c_sk) k_tk k_sk for s < t

so the next state is an affine function of S, and with ṽ outputs are those of `recurrence`.
"""

from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels.linear_time import recurrence
from keras_attention.kernels.linear_time.chunks import Chunks, states
from keras_attention.sequences import shapes

# The least decay of a feature, below which nothing is left, and for how many tokens of it exp is
# within float32, half of them on either side of their middle.
SMALLEST, TOGETHER = -40.0, 4


def run(query, key, value, rate, log_decay=None, state=None, chunk=None):
    """The output (B, T, H, V) and the state after the last token, (B, G, K, V).

    Args:
        query, key, value, state, chunk: as in `recurrence.run`; keys should have length 1 at most.
        rate: β, (B, T, G, 1), 0 for a token that writes nothing.
        log_decay: log a, at most 0, (B, T, G, 1), or (B, T, G, K) and at least `SMALLEST`; None for
            0.
    """
    wide = shapes.accumulation_dtype(query, key, value)
    of_features = log_decay is not None and log_decay.shape[-1] != 1
    size = recurrence.FEATURE_CHUNK if of_features else recurrence.CHUNK
    chunks = Chunks(query, key, chunk or size, halved=of_features)
    query, key, value, rate = (ops.cast(x, wide) for x in (query, key, value, rate))
    query, key = chunks.of_queries(query), chunks.of_keys(key)
    value, rate = chunks.of_keys(value), chunks.of_keys(rate)
    decay = ops.zeros_like(rate) if log_decay is None else chunks.sums(ops.cast(log_decay, wide))
    last = decay[..., -1:, :]
    into_state = key * ops.exp(last - decay)

    # (I + A)^{−1} β v, (N, B, G, C, V), and (I + A)^{−1} β exp(c) k, (N, B, G, C, K).
    weights = ops.concatenate([query, key[:, :, :, None]], axis=3)
    weights = recurrence.pairs(chunks, weights, key, decay, TOGETHER)
    weights, products = weights[:, :, :, :-1], weights[:, :, :, -1] * rate
    both = ops.concatenate([rate * value, rate * ops.exp(decay) * key], axis=-1)
    (both,) = backend.custom_vjp(_make_solve, [products, both])
    written, read = both[..., : value.shape[-1]], both[..., value.shape[-1] :]
    updates = backend.matmul(into_state, written, transpose_first=True)
    if state is None and chunks.alone:
        return chunks.together(chunks.combine(weights, written)), updates[0]
    state = ops.zeros_like(updates[0]) if state is None else ops.cast(state, wide)
    erased = backend.matmul(into_state, read, transpose_first=True)
    factors = ops.exp(last) * ops.eye(key.shape[-1], dtype=wide) - erased
    before, state = states(factors, updates, state)
    written = written - backend.matmul(read, before)
    output = chunks.combine(weights, written)
    output = output + chunks.combine(query * ops.exp(decay)[:, :, :, None], before)
    return chunks.together(output), state


def _make_solve(constants):
    def forward(products, right):
        inverse = _inverse(products)
        return (backend.matmul(inverse, right),), (inverse,)

    def backward(arrays, outputs, saved, upstream):
        of_right = backend.matmul(saved[0], upstream[0], transpose_first=True)
        # Elements of `products` that are not below the diagonal are not read.
        of_products = ops.tril(backend.matmul(of_right, outputs[0], transpose_second=True), -1)
        return -of_products, of_right

    return forward, backward


def _inverse(products):
    """The inverse (N, ..., C, C) of I and what `products` has below the diagonal.

    By halves: of [[P, 0], [R, Q]] it is [[P^{−1}, 0], [−Q^{−1} R P^{−1}, Q^{−1}]]. Triangular
    solvers take one row after another, and exported programs lack them.
    """
    size = products.shape[-1]
    if size <= 2:
        return ops.eye(size, dtype=products.dtype) - ops.tril(products, -1)
    half = size // 2
    if size % 2:
        # The identity in another row and column.
        shape = [(0, 0)] * (len(products.shape) - 2) + [(0, 1), (0, 1)]
        return _inverse(ops.pad(products, shape))[..., :size, :size]
    corners = [products[..., :half, :half], products[..., half:, half:]]
    first, second = ops.split(_inverse(ops.concatenate(corners)), 2)
    below = backend.matmul(second, backend.matmul(products[..., half:, :half], first))
    rows = [[first, ops.zeros_like(first)], [-below, second]]
    return ops.concatenate([ops.concatenate(row, axis=-1) for row in rows], axis=-2)
