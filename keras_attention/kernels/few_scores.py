"""Few scores outside of programs, where an operation costs more than its numbers do.

They are computed at once, by the definition.
"""

from keras_attention.backend import backend
from keras_attention.kernels import fused, reference
from keras_attention.kernels.tiles import strategies

run = reference.run


def unsupported_reason(spec, query, key, value):
    """The reason this kernel cannot compute a problem, or None."""
    if spec.dropout:
        return "weights are dropped by numbers drawn for each tile, in programs and outside"
    if not backend.is_eager(query):
        return "in a program, operations cost no more than their numbers"
    batch, queries, heads, _ = query.shape
    _, keys, groups, size = key.shape
    most = strategies.requested().few
    if batch * keys * max(queries * heads, groups * size) > most:
        return f"there are more than {most} scores, or elements of keys"
    if backend.FUSED_READS and fused.unsupported_reason(spec, query, key, value) is None:
        return "the backend's fused kernel is one operation"
    return None
