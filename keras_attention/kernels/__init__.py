"""Kernels: an `AttentionSpec` and heads in, an `AttentionResult` out; no weights, no layers.

`KERNELS` is the list, in the order in which they are tried. Each is a module with
`unsupported_reason(spec, query, key, value)`, the reason it cannot compute a problem or None, and
`run(spec, query, key, value)`. `reference` is the definition, and can compute all problems. To add
a kernel, add a file, and a line to the list.
"""

import contextlib
import threading
import typing

import keras

from keras_attention.backend import backend
from keras_attention.core import sequence_parallel
from keras_attention.kernels import blockwise, few_scores, fused, reference, semantics, single_query
from keras_attention.kernels.devices import ring, sequence
from keras_attention.kernels.sparse import banded, global_tokens, merge
from keras_attention.sequences import shapes

__all__ = ["KERNELS", "Kernel", "choose", "explain", "merge", "ring", "run", "semantics"]


class Kernel(typing.NamedTuple):
    """A kernel with its public name, the reason for choosing it, and its cost.

    The reason may name that of a kernel before it in the list, which could not be chosen. `how` is
    None, or a function of a problem that says in words what the kernel chooses for it.
    """

    name: str
    module: object
    why: str
    cost: str
    how: typing.Callable | None = None


KERNELS = [
    Kernel(
        "few_scores",
        few_scores,
        "there are few scores, and an operation costs more than its numbers do",
        "time and memory O(T · S)",
    ),
    Kernel(
        "global",
        global_tokens,
        "the pattern has a few global tokens, and windows or rates beside them",
        "time O(T · (window + global tokens)), memory O(T)",
        global_tokens.in_words,
    ),
    Kernel(
        "banded",
        banded,
        "the pattern lets a query see few keys, and only those are computed",
        "time O(T · window), memory O(T)",
        banded.in_words,
    ),
    Kernel(
        "fused",
        fused,
        "the backend has a fused kernel, with the same result",
        "time O(T · S), memory O(T + S)",
    ),
    Kernel(
        "single_query",
        single_query,
        "there is one query, and the keys are read once",
        "time and memory O(S)",
    ),
    Kernel(
        "blockwise",
        blockwise,
        "no more than a tile of scores is stored at once",
        "time O(T · S), memory O(T + S)",
        blockwise.in_words,
    ),
    Kernel("reference", reference, "{blockwise}", "time and memory O(T · S)"),
]
# Tried first under a `distribution.SequenceParallel`.
RING = Kernel(
    "ring",
    sequence,
    "devices share the sequence, and keys go from one to the next",
    "time O(T · S / n), memory O((T + S) / n) of each of n devices",
)
# Names of earlier versions.
ALIASES = {"one_query": "single_query"}


class _State(threading.local):
    # What `explained` gathers, or None.
    found: list[str] | None = None


_state = _State()


@contextlib.contextmanager
def explained():
    """A scope that gathers, in the list that it gives, what `explain` says of each problem run."""
    outer, _state.found = _state.found, []
    try:
        yield _state.found
    finally:
        _state.found = outer


def run(spec, query, key, value, kernel="auto"):
    """The `AttentionResult` of query (B, T, H, K), key (B, S, G, K) and value (B, S, G, V)."""
    chosen, _ = choose(spec, query, key, value, kernel)
    if _state.found is not None:
        _state.found.append("{}: {}".format(*explain(spec, query, key, value, kernel)))
    if backend.records_lengths:
        backend.warn_of_recorded_length(key.shape[1])
    by = keras.distribution.distribution() and sequence_parallel.current()
    if by is None or not by.exchanges_heads(query, key):
        return chosen.module.run(spec, query, key, value)
    query, key, value = (by.exchanged(array, 1, 2) for array in (query, key, value))
    result = chosen.module.run(spec, query, key, value)
    return result.replace(output=by.exchanged(result.output, 2, 1))


def explain(spec, query, key, value, kernel="auto"):
    """The name of the kernel that would run; why, its cost, the mask, how, and why no other."""
    chosen, reasons = choose(spec, query, key, value, kernel)
    why = chosen.why.format(**reasons) if kernel == "auto" else "it was requested by name"
    how = [chosen.how(spec, query, key, value)] if chosen.how else []
    others = [f"not {name!r}: {reason}" for name, reason in reasons.items() if reason != why]
    return chosen.name, "; ".join([why, chosen.cost, _masks(spec), *how, *others])


def _masks(spec):
    """What `semantics.mask` combines, in words."""
    found = []
    for array in spec.masks:
        axis = "keys" if array.shape[2] == 1 else "queries" if array.shape[3] == 1 else "pairs"
        found.append(f"{axis} {tuple(array.shape)}")
    if spec.pattern is not None:
        found.append(f"pattern {spec.pattern!r}")
    if spec.segment_ids is not None:
        found.append("segments")
    return "mask: " + " and ".join(found) if found else "no mask"


def choose(spec, query, key, value, kernel="auto"):
    """The `Kernel` that computes a problem, and by name why the ones before it cannot."""
    shapes.check_heads(query, key, value)
    batch, queries, heads = query.shape[:3]
    for name, arrays in (("mask", spec.masks), ("bias", spec.biases)):
        for array in arrays:
            shapes.check_pairs(name, array.shape, batch, heads, queries, key.shape[1])
    by = keras.distribution.distribution() and sequence_parallel.current()
    candidates = KERNELS if by is None else [RING, *KERNELS]
    if kernel != "auto":
        named = [c for c in candidates if c.name == ALIASES.get(kernel, kernel)]
        if not named:
            names = ("auto", *(candidate.name for candidate in candidates))
            raise ValueError(f"`kernel` must be one of {names}. Received: kernel={kernel!r}")
        candidates = named
    reasons = {}
    for candidate in candidates:
        reason = candidate.module.unsupported_reason(spec, query, key, value)
        if reason is None:
            return candidate, reasons
        reasons[candidate.name] = reason
    raise ValueError(
        f"The kernel {kernel!r} cannot do this: {reason}. Pass kernel='auto'. "
        f"Received: kernel={kernel!r}"
    )
