"""The backend's own fused attention, where it gives the same answer.

On PyTorch that is `scaled_dot_product_attention`, whose flash kernels hold no scores, on processor
cores too. It knows masks, a causal pattern and a scale. A mask of keys is read as it is; a mask of
all pairs is allowed as long as it is small.

On JAX it is cuDNN's kernel, for float16 and bfloat16 on NVIDIA's GPUs. It reads how many keys each
row has and holds no mask, so padding has to come last. Where it does not is known only as the
program runs: both kernels are compiled, and `blockwise` takes the batches that are padded
otherwise.

Queries without keys, for which neither has an answer, are given some, and then zeros.
"""

import functools
import math

import keras

from keras_attention.kernels import blockwise, primitives
from keras_attention.kernels.reference import Attended, finite, gate

ops = keras.ops

# A mask may have so many elements, of 5 bytes each.
ELEMENTS = 2**24
# Of float16.
LARGEST_HALF = 65504.0


def why_not(task):
    """Why the backend cannot do this, or None."""
    if primitives.FUSED_READS is None:
        return "no fused kernel of this backend is used"
    for given, why in (
        (keras.config.is_flash_attention_enabled() is False, "flash attention is disabled"),
        (task.dropout, "it drops weights by numbers of its own"),
        (task.biases or task.between, "it has no gradient of a bias"),
        (task.relative_keys is not None, "it has no embeddings of distances"),
        (task.relative_values is not None, "it has no embeddings of distances"),
        (task.soft_cap is not None, "it has no soft cap"),
        (task.sink is not None, "it has no sink"),
        (task.key.shape[3] != task.value.shape[3], "keys and values have unequal sizes"),
        (_dtypes(task) > 1, "the dtypes differ"),
    ):
        if given:
            return why
    _, others = _by_row(task)
    return _no_lengths(others) if primitives.FUSED_READS == "lengths" else _no_mask(others)


def attend(task):
    """`Attended`, by the backend."""
    rows, others = _by_row(task)
    by = _by_lengths if primitives.FUSED_READS == "lengths" else _by_mask
    output, reached = by(others)
    for row in rows:
        reached = row[..., 0] if reached is None else ops.logical_and(reached, row[..., 0])
    return Attended(gate(output, reached, "bthv"), None, reached)


def _by_row(task):
    """Masks of whole queries, which count afterwards, and the task without them."""
    rows = [mask for mask in task.masks if mask.shape[3] == 1 and task.key.shape[1] != 1]
    others = [mask for mask in task.masks if not any(mask is row for row in rows)]
    return rows, task.but(masks=tuple(others))


def _causal(task):
    """Whether the pattern is j ≤ i, counted from 0."""
    span = task.pattern.span() if hasattr(task.pattern, "span") else None
    bounds = span and (span.left, span.right, span.rate)
    if bounds != (None, 0, 1) or not getattr(span, "exact", False):
        return False
    offset = task.positions.offset
    return task.positions.consecutive and isinstance(offset, int) and offset == 0


def _arrays(task):
    """Query, key and value, such that scores are finite."""
    query, key, value = map(ops.convert_to_tensor, (task.query, task.key, task.value))
    if keras.backend.standardize_dtype(query.dtype) == "float16":
        # Only infinity is too large.
        query, key = (ops.clip(array, -LARGEST_HALF, LARGEST_HALF) for array in (query, key))
    else:
        query, key = finite(query), finite(key)
    return query, key, value


def _dtypes(task):
    arrays = task.query, task.key, task.value
    return len({keras.backend.standardize_dtype(array.dtype) for array in arrays})


# By a mask, if it is not causal alone.


def _no_mask(task):
    return "its mask of all pairs would be large" if _mask_elements(task) > ELEMENTS else None


def _mask_elements(task):
    """The size of the mask that the backend would be given."""
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


def _causal_alone(task):
    return _causal(task) and not task.masks and task.segments is None


def _by_mask(task):
    """The output, and which queries have keys, (B, H, T), or None if all do."""
    causal = _causal_alone(task)
    mask = None if causal else task.whole_mask()
    reached = None
    if mask is not None:
        reached = ops.any(mask, axis=-1)
        mask = ops.logical_or(mask, ops.logical_not(reached)[..., None])
    return primitives.fused(*_arrays(task), mask, causal, task.scale), reached


# By the number of keys in each row.


def _no_lengths(task):
    queries, keys = task.query.shape[1], task.key.shape[1]
    for given, why in (
        (queries == 1, "there is one query"),
        (task.segments is not None, "it has no segments"),
        (task.pattern is not None and not _causal(task), "it has no pattern but the causal one"),
        (task.pattern is not None and queries != keys, "it is causal among equal lengths only"),
        (any(mask.shape[1:] != (1, 1, keys) for mask in task.masks), "it has masks of keys only"),
    ):
        if given:
            return why
    return primitives.fused_refuses(task.query, task.key, task.value, task.pattern is not None)


def _by_lengths(task):
    """As `_by_mask`."""
    arrays, causal = _arrays(task), task.pattern is not None

    def by_blocks(query, key, value, *_):
        # The masks are in the task.
        output, _ = blockwise.attend(task.but(query=query, key=key, value=value))
        return ops.cast(output, value.dtype)

    def by_backend(query, key, value, lengths=None):
        return primitives.fused(query, key, value, lengths, causal, task.scale)

    if not task.masks:
        return primitives.where_fused(by_backend, by_blocks, arrays), None

    batch, keys = arrays[1].shape[:2]
    there = functools.reduce(ops.logical_and, [mask[:, 0, 0] for mask in task.masks])
    there = ops.cast(ops.broadcast_to(there, (batch, keys)), "int32")
    lengths = ops.sum(there, axis=-1)
    last = ops.all(ops.equal(there, ops.cast(ops.arange(keys) < lengths[:, None], "int32")))

    def by_either(query, key, value, lengths, last):
        given = query, key, value
        return primitives.cond(
            last, lambda: by_backend(*given, ops.maximum(lengths, 1)), lambda: by_blocks(*given)
        )

    output = primitives.where_fused(by_either, by_blocks, (*arrays, lengths, last))
    seen = ops.cumsum(there, axis=-1) > 0 if causal else lengths[:, None] > 0
    return output, seen[:, None]
