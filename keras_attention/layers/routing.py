"""Which experts of a mixture each position uses, and with what weights."""

import keras

ops = keras.ops


def route(layer, numbers):
    """The experts (N, top_k) of the router's numbers (N, E), and their weights.

    `layer` is a `MixtureOfExperts`.
    """
    plain = layer.scoring == "softmax" and layer.num_groups == 1 and not layer.use_correction_bias
    if plain:
        best, chosen = ops.top_k(numbers, layer.top_k)
        if layer.normalize_weights and layer.top_k > 1:
            return chosen, ops.softmax(best, axis=-1)
        over = best if layer.normalize_weights else numbers
        return chosen, ops.exp(best - ops.logsumexp(over, axis=-1, keepdims=True))
    scores = ops.sigmoid(numbers) if layer.scoring == "sigmoid" else ops.softmax(numbers, axis=-1)
    preferred = scores
    if layer.use_correction_bias:
        preferred = preferred + ops.cast(layer.correction_bias, scores.dtype)
    if layer.num_groups > 1:
        preferred = _within_groups(layer, preferred)
    chosen = ops.top_k(preferred, layer.top_k)[1]
    weights = ops.take_along_axis(scores, chosen, axis=-1)
    if layer.normalize_weights:
        weights = weights / (ops.sum(weights, axis=-1, keepdims=True) + 1e-20)
    return chosen, weights


def _within_groups(layer, preferred):
    """The numbers with −∞ outside the groups whose two best experts have the largest sums."""
    groups = ops.reshape(preferred, (-1, layer.num_groups, layer.num_experts // layer.num_groups))
    best = ops.top_k(ops.sum(ops.top_k(groups, 2)[0], axis=-1), layer.top_groups)[1]
    allowed = ops.any(ops.one_hot(best, layer.num_groups, dtype="bool"), axis=-2)
    lowest = ops.cast(float("-inf"), groups.dtype)
    return ops.reshape(ops.where(allowed[..., None], groups, lowest), (-1, layer.num_experts))
