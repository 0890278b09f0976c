"""A number for each head: how wide, how far it attends, and how much it matters."""

from __future__ import annotations

import numpy as np

from keras_attention import shapes
from keras_attention.inspection import weights as reading


def attention_entropy(scores: reading.Weights) -> dict:
    r"""How widely each head attends: the mean entropy of its rows of weights, in nats.

    `−Σ_j w_j ln w_j` is 0 for a head that attends to one token, and ln n for one that
    attends to n tokens equally. Rows are divided by their sums. Queries without weights, such as
    padding, do not count.

    Args:
        scores: weights (B, H, T, S) by layer, such as the result of `collect_attention`.

    Returns:
        A dict with an array (H,) a layer, float64; NaN if no query has weights.

    Raises:
        ValueError, TypeError: `scores` is not as described.

    Example:

    >>> import numpy as np
    >>> from keras_attention.inspection import attention_entropy
    >>> weights = np.array([[[[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]]])
    >>> attention_entropy({"layer": weights})["layer"].round(3) + 0.0
    array([0.   , 0.693])
    """
    return {name: _of_rows(array, _entropy) for name, array in reading.weights(scores).items()}


def attention_distance(scores: reading.Weights, grid: tuple[int, int] | None = None) -> dict:
    r"""How far each head attends: the mean of `Σ_j w_ij |i − j|` over queries i.

    In vision models it compares to the receptive field of a convolution (Dosovitskiy et al. 2021,
    appendix D.7). Rows are divided by their sums. Queries without weights do not count.

    Args:
        scores: weights (B, H, T, S) by layer, such as the result of `collect_attention`.
        grid: the rows and columns of an image whose patches are the last positions, row by row;
            the distance is then Euclidean, in patches, and positions before them, such as a class
            token, do not count. None for a sequence.

    Returns:
        A dict with an array (H,) for each layer whose queries and keys are one sequence, T = S;
        float64, NaN if no query has weights.

    Raises:
        ValueError, TypeError: `scores` or `grid` is not as described.

    Example:

    >>> import numpy as np
    >>> from keras_attention.inspection import attention_distance
    >>> weights = np.array([[[[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]]])
    >>> attention_distance({"layer": weights})["layer"]
    array([0.5, 0.5])
    """
    found = {}
    for name, array in reading.weights(scores).items():
        if array.shape[2] != array.shape[3]:
            continue
        sizes = array.shape[-1:] if grid is None else shapes.check_sizes("grid", grid, 1)
        count = int(np.prod(sizes))
        if count > array.shape[-1]:
            raise ValueError(
                "`grid` must have no more patches than a layer has positions. "
                f"Received: grid={grid}, scores of {name!r} of shape {array.shape}"
            )
        array = array[:, :, -count:, -count:]
        places = np.stack(np.unravel_index(np.arange(count), sizes), axis=-1)
        distances = np.linalg.norm(places[:, None] - places[None], axis=-1)

        def mean(weights, distances=distances):
            return (weights * distances).sum(axis=-1)

        found[name] = _of_rows(array, mean)
    return found


def head_importance(gradients: reading.Weights) -> dict:
    r"""How much the target changes if a head does: |Σ weight · gradient|, of a mean example.

    Of a factor ξ of a head's output, at ξ = 1, it is the expectation of `|∂ target / ∂ ξ|`
    (Michel et al. 2019, equation 2). Heads of small importance are candidates for `prune_heads`.

    Args:
        gradients: arrays (B, H, T, S) by layer of `attention_gradients`, without those of
            `DifferentialAttention`: a norm follows its heads, and removes a factor of all weights.

    Returns:
        A dict with an array (H,) a layer, float64.

    Raises:
        ValueError, TypeError: `gradients` is not as described.

    Example:

    >>> import numpy as np
    >>> from keras_attention.inspection import head_importance
    >>> gradients = np.array([[[[0.5, -0.25]], [[0.0, -1.0]]]])
    >>> head_importance({"layer": gradients})["layer"]
    array([0.25, 1.  ])
    """
    named = reading.read(gradients)
    if normed := sorted(set(named) & set(getattr(gradients, "normed", ()))):
        raise ValueError(
            "A norm after the heads of `DifferentialAttention` removes a factor of their weights, "
            "which therefore does not tell their importance: leave these layers out, and compare "
            f"results of `ablate_heads`. Received: gradients of {normed}"
        )
    return {name: np.abs(array.sum(axis=(2, 3))).mean(axis=0) for name, array in named.items()}


def _of_rows(array, measure):
    """The mean (H,) over all rows with weights of a measure (B, H, T) of rows that sum to 1."""
    total = array.sum(axis=-1, keepdims=True)
    real = total[..., 0] > 0
    values = measure(np.divide(array, total, out=np.zeros_like(array), where=total > 0))
    count = real.sum(axis=(0, 2))
    sums = np.where(real, values, 0.0).sum(axis=(0, 2))
    return np.divide(sums, count, out=np.full(sums.shape, np.nan), where=count > 0)


def _entropy(weights):
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logs).sum(axis=-1)
