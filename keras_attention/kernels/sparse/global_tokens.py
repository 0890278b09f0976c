"""Patterns with a few global tokens beside windows, in time proportional to the visible pairs.

The first tokens are seen by all, and may see all (Longformer, BigBird). So attention is three
problems: of all queries over the first keys, of all queries over the others, which `banded`
computes, and of the first queries over all keys: merged, but for the last, which replaces rows.
"""

import typing

import keras
from keras import ops

from keras_attention import patterns
from keras_attention.kernels import blockwise
from keras_attention.kernels.sparse import banded, merge
from keras_attention.patterns import And, Global, Or, Pattern, Prefix
from keras_attention.sequences import shapes, sizes


class _Union(typing.NamedTuple):
    """`also & (near | first)`: `keys` of the first are seen by all, and `queries` see all."""

    keys: int
    queries: int
    near: Pattern
    also: Pattern | None


def _union(pattern):
    among = pattern.patterns if isinstance(pattern, And) else [pattern]
    for one in among:
        first = [p for p in getattr(one, "patterns", ()) if isinstance(p, (Global, Prefix))]
        if not isinstance(one, Or) or not first or len(first) == len(one.patterns):
            continue
        near = [p for p in one.patterns if p not in first]
        return _Union(
            max(p.length for p in first),
            max([p.length for p in first if isinstance(p, Global)], default=0),
            near[0] if len(near) == 1 else Or(near),
            patterns.every(*(p for p in among if p is not one)),
        )
    return None


def unsupported_reason(spec, query, key, value):
    """The reason this kernel cannot compute a problem, or None."""
    union = None if spec.pattern is None else _union(spec.pattern)
    if union is None:
        return "the pattern has no global tokens beside a window or a rate"
    if spec.normalization is not None:
        return "only results of softmax are merged"
    if spec.relative_keys is not None or spec.relative_values is not None:
        return "it has no embeddings of distances"
    if not sizes.known(query.shape[1], key.shape[1]):
        return "a length is not known"
    if not spec.positions.counted or spec.positions.offset != 0:
        return "positions are not consecutive from 0"
    reason = banded.unsupported_reason(_near(spec, union), query, key, value)
    if reason is None and 4 * max(union.keys, union.queries) > min(query.shape[1], key.shape[1]):
        return "the global tokens are many of all"
    return reason


def run(spec, query, key, value):
    """The `AttentionResult`, merged from its parts."""
    union, dtype = _union(spec.pattern), keras.backend.standardize_dtype(value.dtype)
    # Cast before the split, so that the sum of the parts' gradients is rounded once.
    wide = shapes.accumulation_dtype(query, key, value)
    query, key, value = (ops.cast(x, wide) for x in (query, key, value))
    near = banded.run(_near(spec, union), query, key, value)
    seen = spec.replace(pattern=union.also, sink=None)
    of_first = seen.columns(0, union.keys).share(8)
    first = blockwise.attend(of_first, query, key[:, : union.keys], value[:, : union.keys], True)
    output, lse = merge.merge([(near.output, near.lse), first])
    if union.queries:
        rows = seen.rows(0, union.queries).share(16)
        found = blockwise.attend(rows, query[:, : union.queries], key, value, True)
        output = ops.concatenate([found[0], output[:, union.queries :]], axis=1)
        lse = ops.concatenate([found[1], lse[:, :, union.queries :]], axis=2)
    return blockwise.finish(spec, output, lse, dtype)


def in_words(spec, query, key, value):
    """What the parts are computed as, for `ops.explain`."""
    union = _union(spec.pattern)
    found = [
        banded.in_words(_near(spec, union), query, key, value),
        f"all queries over {union.keys} keys",
    ]
    if union.queries:
        found.append(f"{union.queries} queries over all keys")
    return ", ".join(found)


def _near(spec, union):
    """The problem of the keys that are not global, whose log-sum-exp is returned."""
    others = ops.arange(spec.positions.key.shape[0], dtype="int32") >= union.keys
    return spec.replace(
        pattern=patterns.every(union.also, union.near),
        masks=(*spec.masks, others[None, None, None]),
        sink=None,
        return_lse=True,
    )
