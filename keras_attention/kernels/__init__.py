"""Kernels: an `AttentionSpec` and heads in, an `AttentionResult` out; no weights, no layers.

`KERNELS` is the list, in the order in which they are tried. Each is a module with
`unsupported_reason(spec, query, key, value)`, the reason it cannot compute a problem or None, and
`run(spec, query, key, value)`. `reference` is the definition, and can compute all problems. To add
a kernel, add a file, and a line to the list.
"""

import typing

from keras_attention import sequence_parallel, shapes
from keras_attention.kernels import (
    banded,
    blockwise,
    fused,
    merge,
    reference,
    ring,
    semantics,
    sequence,
    single_query,
)

__all__ = ["KERNELS", "Kernel", "choose", "explain", "merge", "names", "ring", "run", "semantics"]


class Kernel(typing.NamedTuple):
    """A kernel with its public name, and the reason for choosing it."""

    name: str
    module: object
    why: str


KERNELS = [
    Kernel("banded", banded, "the pattern lets a query see few keys, and only those are computed"),
    Kernel("fused", fused, "the backend has this one, and the same answer"),
    Kernel("single_query", single_query, "there is one query, and the keys are read once"),
    Kernel("blockwise", blockwise, "no more than a block of scores is held at once"),
    Kernel("reference", reference, "{blockwise}"),
]
# Tried first under a `distribution.SequenceParallel`.
RING = Kernel("ring", sequence, "devices share the sequence, and keys go from one to the next")
# Names of earlier versions.
ALIASES = {"one_query": "single_query"}


def names():
    """The names that `kernel` may be."""
    return ("auto", *(kernel.name for kernel in _candidates()))


def _candidates():
    return KERNELS if sequence_parallel.current() is None else [RING, *KERNELS]


def run(spec, query, key, value, kernel="auto"):
    """The `AttentionResult` of query (B, T, H, K), key (B, S, G, K) and value (B, S, G, V)."""
    chosen, _ = choose(spec, query, key, value, kernel)
    by = sequence_parallel.current()
    if by is None or not by.exchanges_heads(query, key):
        return chosen.module.run(spec, query, key, value)
    query, key, value = (by.exchanged(array, 1, 2) for array in (query, key, value))
    result = chosen.module.run(spec, query, key, value)
    return result.replace(output=by.exchanged(result.output, 2, 1))


def explain(spec, query, key, value, kernel="auto"):
    """The name of the kernel that would run, and why: a pair of strings."""
    chosen, reasons = choose(spec, query, key, value, kernel)
    if kernel != "auto":
        return chosen.name, "it was asked for by name"
    why = chosen.why.format(**reasons)
    if chosen.module is blockwise:
        why = "; ".join([why, *(f"not {name!r}: {reason}" for name, reason in reasons.items())])
    return chosen.name, why


def choose(spec, query, key, value, kernel="auto"):
    """The `Kernel` that computes a problem, and by name why the ones before it cannot."""
    shapes.check_heads(query, key, value)
    for name, arrays in (("mask", spec.masks), ("bias", spec.biases)):
        for array in arrays:
            shapes.check_pairs(name, array, query, key)
    kernel = ALIASES.get(kernel, kernel)
    if kernel not in names():
        raise ValueError(f"`kernel` must be one of {names()}. Received: kernel={kernel!r}")
    reasons = {}
    for candidate in _candidates():
        if kernel not in ("auto", candidate.name):
            continue
        reason = candidate.module.unsupported_reason(spec, query, key, value)
        if reason is None:
            return candidate, reasons
        reasons[candidate.name] = reason
    raise ValueError(
        f"The kernel {kernel!r} cannot do this: {reasons[kernel]}. Pass kernel='auto'. "
        f"Received: kernel={kernel!r}"
    )
