"""The backend's own fused attention, where it gives the same answer.

On PyTorch that is `scaled_dot_product_attention`, whose flash kernels hold no scores, on processor
cores too. It knows masks, a causal pattern and a scale. A mask of keys is read as it is; a mask of
all pairs is allowed as long as it is small. Queries without keys, which the backend has no answer
for, are given all keys, and then zeros.
"""

import math

import keras

from keras_attention.kernels import primitives
from keras_attention.kernels.reference import Attended, finite, gate

ops = keras.ops

# A mask may have so many elements, of 5 bytes each.
ELEMENTS = 2**24


def why_not(task):
    """Why the backend cannot do this, or None."""
    if primitives.fused is None:
        return "no fused kernel of this backend is used"
    for given, why in (
        (task.dropout, "it drops weights by numbers of its own"),
        (task.biases or task.between, "it has no gradient of a bias"),
        (task.relative_keys is not None, "it has no embeddings of distances"),
        (task.relative_values is not None, "it has no embeddings of distances"),
        (task.soft_cap is not None, "it has no soft cap"),
        (task.sink is not None, "it has no sink"),
        (task.key.shape[3] != task.value.shape[3], "keys and values have unequal sizes"),
        (_dtypes(task) > 1, "the dtypes differ"),
        (_mask_elements(task) > ELEMENTS, "its mask of all pairs would be large"),
    ):
        if given:
            return why
    return None


def attend(task):
    """`Attended`, by the backend."""
    rows, others = _by_row(task)
    causal = _causal_alone(others)
    mask = None if causal else others.whole_mask()
    # All queries see the first key of a causal pattern.
    reached = ops.ones((1, 1, 1), "bool") if causal else None
    if mask is not None:
        reached = ops.any(mask, axis=-1)
        mask = ops.logical_or(mask, ops.logical_not(reached)[..., None])
    for row in rows:
        reached = row[..., 0] if reached is None else ops.logical_and(reached, row[..., 0])
    query, key, value = map(ops.convert_to_tensor, (task.query, task.key, task.value))
    # Numbers of float16 are small enough.
    if keras.backend.standardize_dtype(query.dtype) != "float16":
        query, key = finite(query), finite(key)
    output = primitives.fused(query, key, value, mask, causal, task.scale)
    return Attended(gate(output, reached, "bthv"), None, reached)


def _by_row(task):
    """Masks of whole queries, which count afterwards, and the task without them."""
    rows = [mask for mask in task.masks if mask.shape[3] == 1 and task.key.shape[1] != 1]
    others = [mask for mask in task.masks if not any(mask is row for row in rows)]
    return rows, task.but(masks=tuple(others))


def _causal_alone(task):
    """Whether j ≤ i, counted from 0, is all that keeps queries from keys."""
    span = task.pattern.span() if hasattr(task.pattern, "span") else None
    bounds = span and (span.left, span.right, span.rate)
    if bounds != (None, 0, 1) or not getattr(span, "exact", False):
        return False
    offset = task.positions.offset
    from_0 = task.positions.consecutive and isinstance(offset, int) and offset == 0
    return from_0 and not task.masks and task.segments is None


def _mask_elements(task):
    """The size of the mask that the backend would be given."""
    _, task = _by_row(task)
    if _causal_alone(task):
        return 0
    shapes = [mask.shape for mask in task.masks]
    batch, queries, _, _ = task.query.shape
    keys, positions = task.key.shape[1], task.positions
    if task.pattern is not None:
        together = len(positions.query.shape) == 1 and len(positions.key.shape) == 1
        shapes.append((1 if together else batch, 1, queries, keys))
    if task.segments is not None:
        shapes.append((batch, 1, queries, keys))
    return math.prod(max(sizes) for sizes in zip(*shapes, strict=True)) if shapes else 0


def _dtypes(task):
    arrays = task.query, task.key, task.value
    return len({keras.backend.standardize_dtype(array.dtype) for array in arrays})
