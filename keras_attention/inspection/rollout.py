"""What tokens a stack of layers attends to, through the layers between: rollout and flow."""

from __future__ import annotations

import functools

import numpy as np

from keras_attention import shapes
from keras_attention.inspection import weights as reading

# Capacities of edges are integers for SciPy: a weight of 1.
_UNIT = 2**24


def attention_rollout(scores: reading.Weights, residual: float = 0.5) -> np.ndarray:
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

    Example:

    >>> import numpy as np
    >>> from keras_attention.inspection import attention_rollout
    >>> first = np.array([[[[1.0, 0.0], [1.0, 0.0]]]])   # both tokens attend to token 0
    >>> attention_rollout([first, first])[0]
    array([[1.  , 0.  ],
           [0.75, 0.25]])
    """
    return functools.reduce(lambda below, step: step @ below, _steps(scores, residual))


def attention_flow(scores: reading.Weights, residual: float = 0.5) -> np.ndarray:
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

    Example:

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
    named = reading.weights(scores)
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
