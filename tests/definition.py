"""Attention in float64, in loops over batch, heads, queries and keys, straight from the equations.

The tests compare with this. It is NumPy alone, and uses nothing of the package.
"""

import math

import numpy as np


def perceptron(inputs, v):
    """vᵀ tanh(inputs)."""
    return sum(v[u] * math.tanh(inputs[u]) for u in range(len(v)))


def pair_score(query, key, score="scaled_dot", scale=None, matrix=None, weights=None, place=None):
    """The score of one query vector and one key vector, which stands at `place`.

    `matrix` is that of "general"; `weights` are the named ones of the scores with several.
    """
    if score == "reduced_rank":
        return (query @ weights["query_kernel"]) @ (key @ weights["key_kernel"])
    if score == "additive":
        projected = query @ weights["query_kernel"] + key @ weights["key_kernel"]
        v = weights["v"]
        if "length" in weights:
            v = weights["length"] * v / math.sqrt(sum(x * x for x in v))
        return perceptron(projected + weights.get("bias", 0.0), v)
    if score == "concat":
        return perceptron(np.concatenate([query, key]) @ weights["kernel"], weights["v"])
    if score == "location":
        return query @ weights["kernel"][:, place]
    if score == "key_only":
        hidden = np.tanh(key @ weights["kernel"] + weights.get("bias", 0.0))
        return hidden @ weights["v"] if "v" in weights else hidden[0]
    if score == "general":
        return sum(
            query[a] * matrix[a, b] * key[b] for a in range(len(query)) for b in range(len(key))
        )
    product = sum(query[a] * key[a] for a in range(len(query)))
    if score == "dot":
        return product
    if score == "scaled_dot":
        return product / math.sqrt(len(query)) if scale is None else product * scale
    if score == "cosine":
        lengths = math.sqrt(sum(a * a for a in query)) * math.sqrt(sum(b * b for b in key))
        return 0.0 if lengths == 0 else product / lengths * (1.0 if scale is None else scale)
    raise ValueError(score)


def normalize(scores, normalization="softmax"):
    """The weights of a list of scores, which are those of the keys that may be attended to."""
    if normalization == "sigmoid":
        return [1 / (1 + math.exp(-score)) for score in scores]
    if normalization == "softmax":
        # Taking the largest away changes no quotient, and keeps each exponential finite.
        powers = [math.exp(score - max(scores)) for score in scores]
        return [power / sum(powers) for power in powers]
    if normalization == "hard":
        return [float(place == scores.index(max(scores))) for place in range(len(scores))]
    if normalization == "sparsemax":
        return sparsemax(scores)
    raise ValueError(normalization)


def sparsemax(scores):
    """The nearest point to `scores` among those at least 0 with sum one.

    It is max(score − threshold, 0). The sum falls as the threshold rises, from at least one at the
    largest score less 1 to zero at the largest, so halving the interval finds it.
    """
    low, high = max(scores) - 1, max(scores)
    for _ in range(80):
        threshold = (low + high) / 2
        if sum(max(score - threshold, 0) for score in scores) > 1:
            low = threshold
        else:
            high = threshold
    support = [score for score in scores if score > threshold]
    # Within rounding of the threshold; from its own support it is exact.
    threshold = (sum(support) - 1) / len(support)
    return [max(score - threshold, 0.0) for score in scores]


def attend(
    query,
    key,
    value,
    *,
    score="scaled_dot",
    scale=None,
    matrix=None,
    weights=None,
    bias=0.0,
    mask=True,
    normalization="softmax",
):
    """The output (B, T, H, V) and the weights (B, H, T, S).

    Query is (B, T, H, K), key (B, S, H, K) and value (B, S, H, V); `bias` and `mask` broadcast to
    (B, H, T, S). `matrix` is the (H, K, K) of the score "general", and `weights` are those of the
    scores with several, by name, each with an axis of H heads in front.
    """
    query, key, value = (np.asarray(array, "float64") for array in (query, key, value))
    batch, queries, heads, _ = query.shape
    keys, features = value.shape[1], value.shape[3]
    bias = np.broadcast_to(np.asarray(bias, "float64"), (batch, heads, queries, keys))
    mask = np.broadcast_to(mask, (batch, heads, queries, keys))
    output = np.zeros((batch, queries, heads, features))
    found = np.zeros((batch, heads, queries, keys))
    for b in range(batch):
        for h in range(heads):
            for t in range(queries):
                allowed = [s for s in range(keys) if mask[b, h, t, s]]
                if not allowed:
                    continue
                scores = [
                    pair_score(
                        query[b, t, h],
                        key[b, s, h],
                        score,
                        scale,
                        None if matrix is None else matrix[h],
                        of_head(weights, h),
                        s,
                    )
                    + bias[b, h, t, s]
                    for s in allowed
                ]
                for s, weight in zip(allowed, normalize(scores, normalization), strict=True):
                    found[b, h, t, s] = weight
                    output[b, t, h] += weight * value[b, s, h]
    return output, found


def of_head(weights, head):
    """The named weights of one head, or None."""
    return weights and {name: array[head] for name, array in weights.items()}


def gradients(function, arrays, step=1e-5):
    """Central differences of a scalar function of float64 arrays, with respect to each of them."""
    arrays = [np.array(array, "float64") for array in arrays]
    found = [np.zeros_like(array) for array in arrays]
    for array, gradient in zip(arrays, found, strict=True):
        for place in np.ndindex(array.shape):
            here = array[place]
            array[place] = here + step
            above = function(*arrays)
            array[place] = here - step
            gradient[place] = (above - function(*arrays)) / (2 * step)
            array[place] = here
    return found
