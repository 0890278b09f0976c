"""The steps between a product and a weight, defined once for all kernels.

    scores = cap(products + relative) + clip(biases), and MASKED where a mask, the pattern or the
    segments mask a pair

Every function takes an `AttentionSpec`: of the whole problem, or of a tile of it, whose arrays
and positions are cut to the tile: a tiled kernel has the semantics of one that has no tiles.
"""

import functools
import operator

from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels import relative
from keras_attention.spec import padded

# Queries and keys are clipped to ±LARGEST, so that products and their sums stay inside float32,
# and added terms to ±HIGHEST together, so that differences do: the terms, of which there are mostly
# fewer than scores. A masked score is MASKED, so far below them that its weight is exp(−huge) = 0
# exactly. A query whose largest score is below HAS_KEYS has no visible key.
LARGEST = 1e17
HIGHEST = 1e38
MASKED = -1.5e38
HAS_KEYS = -1.25e38


def finite(array):
    """`array` clipped so that products and their sums are finite."""
    return backend.clip(array, LARGEST)


def two_features(array):
    """A single feature padded with zeros, which change no product."""
    # XLA treats a product of one feature as a multiplication, and computes it twice, for a softmax
    # and for its largest score, with different rounding: huge scores may then lack a largest one.
    # A graph of TensorFlow does not know whether it will be compiled later.
    return padded(array, -1, 0, 1) if array.shape[-1] == 1 else array


def adjustments(spec):
    """What changes the products, apart from masks, in words."""
    found = []
    if spec.relative_keys is not None:
        found.append("embeddings of distances")
    if spec.logit_soft_cap is not None:
        found.append("soft cap")
    if spec.biases or spec.position_biases:
        found.append("bias")
    return found


def adjust(spec, logits, query):
    """Scores (B, H, T, S) of products, with all added terms; `query` is (B, H, T, K), scaled."""
    dtype = logits.dtype
    # By the operator: on TensorFlow, Keras's `add` treats an array with one axis longer than 1 as a
    # bias of the features, and fails if another has length 0.
    if spec.relative_keys is not None:
        table = finite(two_features(ops.cast(spec.relative_keys, dtype)))
        keys = backend.shape(logits)[3]
        logits = logits + relative.scores(query, table, keys, spec.positions, spec.relative_near)
    if spec.logit_soft_cap is not None:
        logits = ops.tanh(logits / spec.logit_soft_cap) * spec.logit_soft_cap
    for bias in spec.biases:
        if tuple(bias.shape) == tuple(logits.shape):
            # Of all pairs: the sum is clipped, and no other array of that size is needed.
            logits = _clipped(spec, logits + ops.cast(bias, dtype))
        else:
            logits = logits + _clipped(spec, ops.cast(bias, dtype))
    for bias in spec.position_biases:
        logits = logits + _position_bias(spec, bias, dtype)
    return logits


def bias(spec, dtype):
    """The biases that `adjust` adds as one array, which broadcasts to (B, H, T, S)."""
    terms = [_clipped(spec, ops.cast(bias, dtype)) for bias in spec.biases]
    terms += [_position_bias(spec, bias, dtype) for bias in spec.position_biases]
    return functools.reduce(operator.add, terms)


def _clipped(spec, array):
    return backend.clip(array, HIGHEST / (len(spec.biases) + len(spec.position_biases)))


def _position_bias(spec, bias, dtype):
    """A `PositionBias` for all pairs, as an array that broadcasts to (B, H, T, S)."""
    positions = spec.positions

    def function(i, j):
        term = ops.cast(bias.function(i, j, *bias.arrays), dtype)
        return term if bias.bounded else _clipped(spec, term)

    # Without arrays the function is arithmetic, cheaper than few distances and many copies.
    if bias.arrays and bias.by_distance and positions.consecutive:
        queries, keys = (backend.shape(x)[-1] for x in (positions.query, positions.key))
        return relative.by_distance(function, queries, keys, positions.offset)
    return function(*positions.pairs)


def relative_values(spec, weights):
    """The term that embeddings of distances add to the output: (B, H, T, V)."""
    table = ops.cast(spec.relative_values, weights.dtype)
    return relative.values(weights, table, spec.positions, spec.relative_near)


def mask(spec):
    """Masks, pattern and segments as one array, which broadcasts to (B, H, T, S), or None."""
    if not spec.restricted:
        return None
    found = list(spec.masks)
    if spec.pattern is not None:
        allowed = spec.pattern(spec.positions.query, spec.positions.key)
        # (T, S) or (B, T, S), for all heads.
        allowed = ops.expand_dims(allowed, -3)
        found.append(allowed if len(allowed.shape) == 4 else allowed[None])
    if spec.segment_ids is not None:
        queries, keys = spec.segment_ids
        found.append(ops.equal(ops.expand_dims(queries, (1, 3)), ops.expand_dims(keys, (1, 2))))
    return functools.reduce(ops.logical_and, found)


def masked(logits, allowed):
    """Scores with MASKED where `allowed`, a mask or None, is False."""
    if allowed is None:
        return logits
    return backend.masked(logits, ops.convert_to_tensor(allowed), MASKED)


def where_keys(array, has_keys, axes):
    """`array`, with zeros for queries without keys; `axes` is "bthv" or "bhts"."""
    if has_keys is None:
        return array
    if axes == "bthv":
        has_keys = ops.transpose(has_keys, (0, 2, 1))
    return ops.where(ops.expand_dims(has_keys, -1), array, ops.cast(0, array.dtype))
