"""One attention split into several over disjoint sets of keys, and merged.

Each has its own output o and lse = ln Σ exp(score). Merged they are Σ o · exp(lse − lse'), with
lse' = ln Σ exp(lse), which equals one attention over all keys. So the union of a window and a
stride is computed as the two patterns, and embeddings of clipped distances are looked up near
the diagonal only: beyond it they are one vector for all keys.
"""

from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels.tiles import strategies
from keras_attention.patterns import every
from keras_attention.patterns.derived import Distances
from keras_attention.sequences import sizes


def merge(found):
    """The merged output (B, T, H, V) and lse (B, H, T) of such results over different keys."""
    if len(found) == 1:
        return found[0]
    largest = found[0][1]
    for _, lse in found[1:]:
        largest = backend.maximum(largest, lse)
    largest = ops.stop_gradient(largest)
    shares = [ops.exp(lse - largest) for _, lse in found]
    total = sum(shares[1:], shares[0])
    output = sum(
        output * ops.transpose(share / total, (0, 2, 1))[..., None]
        for (output, _), share in zip(found, shares, strict=True)
    )
    return output, largest + ops.log(total)


def split(spec, query, key, value):
    """The parts, (spec, query, key, value), of a problem; itself if there is only one."""
    whole = spec, query, key, value
    if spec.relative_keys is not None or spec.relative_values is not None:
        return _by_distance(*whole)
    parts = spec.pattern.parts() if spec.pattern is not None else [None]
    if len(parts) == 1 or not _long(*whole, 4 * max(part.span().rate for part in parts)):
        return [whole]
    return [(spec.share(n, pattern=part), query, key, value) for n, part in enumerate(parts)]


def _long(spec, query, key, value, length):
    """Whether both sequences have consecutive, known positions, and at least this many."""
    lengths = query.shape[1], key.shape[1]
    shortest = strategies.requested().shortest
    if shortest is not None:
        length = min(length, shortest)
    return spec.positions.counted and sizes.known(*lengths) and min(lengths) >= length


def _by_distance(spec, query, key, value):
    """Near keys, with their embeddings, and far keys on each side, with one embedding each."""
    whole = spec, query, key, value
    tables = [t for t in (spec.relative_keys, spec.relative_values) if t is not None]
    far = tables[0].shape[1] // 2
    each = all(table.shape[0] in (1, key.shape[2]) for table in tables)
    if not each or not _long(*whole, max(1024, 8 * far)):
        return [whole]
    span = spec.pattern.span() if spec.pattern is not None else None
    near = every(Distances(1 - far, far - 1), spec.pattern)
    near = spec.replace(pattern=near, relative_near=True)
    found = [(near, query, key, value)]
    if span is None or span.left is None or span.left >= far:
        found.append(_far(*whole, Distances(None, -far), 0, 1))
    if span is None or span.right is None or span.right >= far:
        found.append(_far(*whole, Distances(far, None), 2 * far, 2))
    return found


def _far(spec, query, key, value, distances, row, part):
    """A problem whose keys all have the embedding of one distance, a row of the tables."""

    def shifted(array, table):
        if table is None:
            return array
        return array + ops.cast(table[:, row], array.dtype)[None, None]

    key, value = shifted(key, spec.relative_keys), shifted(value, spec.relative_values)
    pattern = every(distances, spec.pattern)
    spec = spec.share(part, relative_keys=None, relative_values=None, pattern=pattern)
    return spec, query, key, value
