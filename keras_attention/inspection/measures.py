"""What weights say: how wide and how far heads attend, how much they matter, what they lead to."""

import functools
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np

from keras_attention.sequences import shapes
from keras_attention.visualization import labels

# Weights (B, H, T, S) by the names of layers, or in their order.
Weights: TypeAlias = Mapping[str, np.ndarray] | Iterable[np.ndarray]


class Gradients(dict):
    """Arrays by the names of layers, as `attention_gradients` returns them."""

    def __init__(self, arrays, normed):
        super().__init__(arrays)
        # The layers that normalize heads after attention, which removes a factor of their weights.
        self.normed = normed


def _read(scores, weights=True):
    """Arrays (B, H, T, S) in float64 by the names of their layers, checked to be weights or not."""
    if not isinstance(scores, (Mapping, list, tuple)):
        raise TypeError(
            "`scores` must be a dict or a list of arrays (B, H, T, S), such as the result of "
            f"`collect_attention`. Received: {type(scores).__name__}"
        )
    found = {}
    for name, given in scores.items() if isinstance(scores, Mapping) else enumerate(scores):
        array = labels.array(given, f" of {name!r}").astype("float64")
        if array.ndim != 4 or 0 in array.shape:
            raise ValueError(
                f"`scores` of {name!r} must be (B, H, T, S), none of them 0. "
                f"Received: shape {array.shape}"
            )
        if weights and (not np.isfinite(array).all() or array.min() < 0):
            raise ValueError(
                f"`scores` of {name!r} must be weights, finite and not negative, which "
                "those of `DifferentialAttention` are not: leave such layers out. "
                f"Received: numbers from {array.min()} to {array.max()}"
            )
        found[name] = array
    if not found:
        raise ValueError(f"`scores` must have a layer at least. Received: {scores!r}")
    return found


def attention_entropy(scores: Weights) -> dict:
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

    >>> import numpy as np
    >>> from keras_attention.inspection import attention_entropy
    >>> weights = np.array([[[[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]]])
    >>> attention_entropy({"layer": weights})["layer"].round(3) + 0.0
    array([0.   , 0.693])
    """

    def entropy(weights):
        logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
        return -(weights * logs).sum(axis=-1)

    return {name: _of_rows(array, entropy) for name, array in _read(scores).items()}


def attention_distance(scores: Weights, grid: tuple[int, int] | None = None) -> dict:
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

    >>> import numpy as np
    >>> from keras_attention.inspection import attention_distance
    >>> weights = np.array([[[[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]]])
    >>> attention_distance({"layer": weights})["layer"]
    array([0.5, 0.5])
    """
    found = {}
    for name, array in _read(scores).items():
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
        found[name] = _of_rows(array, lambda w, d=distances: (w * d).sum(axis=-1))
    return found


def head_importance(gradients: Weights) -> dict:
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

    >>> import numpy as np
    >>> from keras_attention.inspection import head_importance
    >>> gradients = np.array([[[[0.5, -0.25]], [[0.0, -1.0]]]])
    >>> head_importance({"layer": gradients})["layer"]
    array([0.25, 1.  ])
    """
    named = _read(gradients, weights=False)
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


# Capacities of edges are integers for SciPy: a weight of 1.
_UNIT = 2**24


def attention_rollout(scores: Weights, residual: float = 0.5) -> np.ndarray:
    r"""Attention of the last layer to the tokens that the first layer reads.

    `A_n · … · A_2 · A_1` with `A = (1 − r) · mean over heads(W) + r · I`, where r stands for the
    residual connection around each layer (Abnar & Zuidema 2020, section 3, with r = 0.5). Each row
    of an A is divided by its sum, so that padding, sinks and sigmoid weights change no total.

    Args:
        scores: weights (B, H, T, T) of self-attention layers from first to last, such as the
            result of `collect_attention`. The last may be of another shape, (B, H, Q, T), as of a
            pooling layer, which has no residual. Choose the layers of one stack: those of a
            decoder's cross-attention do not belong to it.
        residual: r, from 0 to below 1; 0 for layers without residual connections.

    Returns:
        (B, Q, T), float64; each row sums to 1. Row q has the share of each token in query q.
        A masked query, which has no weights, keeps its own token; with `residual=0` its row is 0.

    Raises:
        ValueError, TypeError: `scores` or `residual` is not as described.

    >>> import numpy as np
    >>> from keras_attention.inspection import attention_rollout
    >>> first = np.array([[[[1.0, 0.0], [1.0, 0.0]]]])   # both tokens attend to token 0
    >>> attention_rollout([first, first])[0]
    array([[1.  , 0.  ],
           [0.75, 0.25]])
    """
    return functools.reduce(lambda below, step: step @ below, _steps(scores, residual))


def attention_flow(scores: Weights, residual: float = 0.5) -> np.ndarray:
    r"""As `attention_rollout`, by the maximum flow through the layers (Abnar & Zuidema 2020).

    Each A is a layer of a network whose edges have its weights as capacities. The result at (q, j)
    is the maximum flow from query q of the last layer to token j of the first. Tokens do not share
    a total here, since each pair is a flow of its own: rows do not sum to 1. It needs SciPy.

    Time grows with Q · T flows, each through n · T² edges: for a sentence, not a document.

    Args:
        scores, residual: as in `attention_rollout`.

    Returns:
        (B, Q, T), float64, from 0 to 1, exact to n · T² / 2^24 (capacities are integers).

    Raises:
        ValueError, TypeError: as `attention_rollout`.
        ImportError: SciPy is not installed.

    >>> import numpy as np
    >>> from keras_attention.inspection import attention_flow
    >>> first = np.array([[[[1.0, 0.0], [1.0, 0.0]]]])
    >>> attention_flow([first, first])[0].round(4)
    array([[1. , 0. ],
           [1. , 0.5]])
    """
    steps = list(_steps(scores, residual))
    try:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import maximum_flow
    except ImportError as error:
        raise ImportError("`attention_flow` needs SciPy: `pip install scipy`") from error
    found = []
    for row in range(len(steps[0])):
        layers = [step[row] for step in reversed(steps)]
        # Nodes: queries of the last layer, then the keys of each layer from last to first.
        sizes = [len(layers[0]), *(layer.shape[1] for layer in layers)]
        first = np.cumsum([0, *sizes])
        capacities = np.zeros((first[-1], first[-1]), "int32")
        for n, layer in enumerate(layers):
            edges = np.round(layer * _UNIT).astype("int32")
            capacities[first[n] : first[n + 1], first[n + 1] : first[n + 2]] = edges
        graph = csr_array(capacities)
        flows = [
            [maximum_flow(graph, q, first[-2] + j).flow_value for j in range(sizes[-1])]
            for q in range(sizes[0])
        ]
        found.append(np.array(flows) / _UNIT)
    return np.stack(found)


def _steps(scores, residual):
    """The matrix A of each layer, (B, T, T), or (B, Q, T) of the last."""
    residual = shapes.check_rate("residual", residual)
    named = _read(scores)
    batch, _, _, length = next(iter(named.values())).shape
    last = list(named)[-1]
    for name, array in named.items():
        rows = array.shape[2] if name == last else length
        if array.shape != (batch, array.shape[1], rows, length):
            raise ValueError(
                "`scores` must be those of layers on top of each other, (B, H, T, T) with one B "
                f"and T; the last may be (B, H, Q, T). Received: shape {array.shape} of {name!r} "
                f"with B={batch} and T={length}"
            )
        step = array.mean(axis=1)
        if rows == length:
            step = (1 - residual) * step + residual * np.eye(length)
        total = step.sum(axis=-1, keepdims=True)
        yield np.divide(step, total, out=np.zeros_like(step), where=total > 0)
