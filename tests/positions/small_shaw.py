"""Embeddings of clipped distances in float64, by the equations of Shaw et al. (2018)."""

import keras
import numpy as np

from tests import definition, problems
from tests.compiled import compiled

B, T, S, H, K, V, D = 2, 4, 6, 2, 4, 5, 8

ON_JAX = keras.backend.backend() == "jax"
# JAX has float64 only after its x64 mode was switched on for the process.
WIDEST, CLOSE = ("float32", 1e-5) if ON_JAX else ("float64", 1e-11)


def random(*shape, seed=0, dtype=WIDEST):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")), "float64")


def widest(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor), "float64")


def close(found, expected, tolerance=CLOSE):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def defined(query, key, value, of_keys, of_values=None, i=None, j=None, mask=True):
    """Output (B, T, H, V) and weights (B, H, T, S), a pair at a time."""
    query, key, value, of_keys = (np.asarray(x, "float64") for x in (query, key, value, of_keys))
    batch, queries, heads, size = query.shape
    keys, k = key.shape[1], of_keys.shape[1] // 2
    i = np.broadcast_to(np.arange(queries) if i is None else i, (batch, queries))
    j = np.broadcast_to(np.arange(keys) if j is None else j, (batch, keys))
    mask = np.broadcast_to(mask, (batch, heads, queries, keys))
    output = np.zeros((batch, queries, heads, value.shape[-1]))
    weights = np.zeros(mask.shape)
    for b, h, t in np.ndindex(batch, heads, queries):
        allowed = np.flatnonzero(mask[b, h, t])
        if allowed.size == 0:
            continue
        row = {s: min(max(int(j[b, s] - i[b, t]), -k), k) + k for s in allowed}
        # Where there is one table, it is that of all heads.
        a_k = of_keys[h % len(of_keys)]
        scores = [query[b, t, h] @ (key[b, s, h] + a_k[row[s]]) / np.sqrt(size) for s in allowed]
        for s, weight in zip(allowed, definition.normalize(scores), strict=True):
            weights[b, h, t, s] = weight
            a_v = 0 if of_values is None else of_values[h % len(of_values)][row[s]]
            output[b, t, h] += weight * (value[b, s, h] + a_v)
    return output, weights


def heads(queries=T, keys=S, batch=B):
    """Query, key and value."""
    return (
        random(batch, queries, H, K, seed=1),
        random(batch, keys, H, K, seed=2),
        random(batch, keys, H, V, seed=3),
    )


def tables(k, per_head=False):
    count = H if per_head else 1
    return 2 * random(count, 2 * k + 1, K, seed=4), random(count, 2 * k + 1, V, seed=5)


def run(function, *arrays):
    """What `function` returns."""
    return [widest(found) for found in compiled(function, *arrays)]


def attend(query, key, value, of_keys, of_values=None, **given):
    """Output and weights of the kernel."""

    def call(*arrays):
        attended = problems.attend(
            *arrays[:3],
            scale=query.shape[-1] ** -0.5,
            relative_keys=arrays[3],
            relative_values=None if of_values is None else arrays[4],
            return_weights=True,
            **given,
        )
        return attended.output, attended.weights

    return run(call, query, key, value, of_keys, *([] if of_values is None else [of_values]))


def integers(array):
    return keras.ops.convert_to_tensor(np.asarray(array, "int32"))


def allowed():
    """Any keys of the first sequence but none for one of its queries; none of the second's."""
    mask = np.random.default_rng(7).random((B, H, T, S)) < 0.6
    mask[0, 0, 1] = mask[1] = False
    return mask
