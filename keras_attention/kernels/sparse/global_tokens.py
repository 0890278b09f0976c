"""Patterns with a few global tokens beside windows, in time proportional to the visible pairs.

All queries see the first tokens, which may see all keys (Longformer), and maybe the last ones
(BigBird). So attention is problems of two kinds: all queries over the keys at each end, and over
the others, which `banded` computes; and the queries at each end over all keys. The results of the
first kind are merged, and those of the second replace rows.
"""

import typing

import keras
from keras import ops

from keras_attention import patterns
from keras_attention.kernels import blockwise
from keras_attention.kernels.sparse import banded, merge
from keras_attention.patterns import And, Global, Or, Pattern, Prefix
from keras_attention.sequences import shapes, sizes
from keras_attention.spec import cut


class _Union(typing.NamedTuple):
    """`also & (near | ends)`: `keys` of the first are seen by all, and `queries` see all.

    Those from `since` on are both, if it is not None.
    """

    keys: int
    queries: int
    since: int | None
    near: Pattern
    also: Pattern | None

    def ends(self, count, length):
        """The start and the length of the `count` first ones and of the last ones of a sequence."""
        last = length if self.since is None else min(max(self.since, count), length)
        return (0, count), (last, length - last)


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
            min([p.since for p in first if getattr(p, "since", None)], default=None),
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
    if spec.has_tables:
        return "it has no embeddings of distances"
    if not sizes.known(query.shape[1], key.shape[1]):
        return "a length is not known"
    if not spec.positions.counted or spec.positions.offset != 0:
        return "positions are not consecutive from 0"
    reason = banded.unsupported_reason(_near(spec, union), query, key, value)
    lengths = query.shape[1], key.shape[1]
    counts = zip((union.queries, union.keys), lengths, strict=True)
    most = max(n for count, length in counts for _, n in union.ends(count, length))
    if reason is None and 4 * most > min(lengths):
        return "the global tokens are many of all"
    return reason


def run(spec, query, key, value):
    """The `AttentionResult`, merged from its parts."""
    union, dtype = _union(spec.pattern), keras.backend.standardize_dtype(value.dtype)
    # Cast before the split, so that the sum of the parts' gradients is rounded once.
    wide = shapes.accumulation_dtype(query, key, value)
    query, key, value = (ops.cast(x, wide) for x in (query, key, value))
    near = banded.run(_near(spec, union), query, key, value)
    seen, found = spec.replace(pattern=union.also, sink=None), [(near.output, near.lse)]
    for n, (start, length) in enumerate(union.ends(union.keys, key.shape[1])):
        if length:
            columns = seen.columns(start, length).share(8 + n)
            given = (cut(x, 1, start, length) for x in (key, value))
            found.append(blockwise.attend(columns, query, *given, True))
    whole = merge.merge(found)
    first, last = union.ends(union.queries, query.shape[1])
    rows = [tuple(cut(x, axis, first[1], last[0] - first[1]) for axis, x in enumerate(whole, 1))]
    for n, (start, length) in enumerate((first, last)):
        if length:
            given = seen.rows(start, length).share(16 + n), cut(query, 1, start, length), key, value
            rows.insert(n * len(rows), blockwise.attend(*given, True))
    output, lse = (ops.concatenate(x, axis) for axis, x in enumerate(zip(*rows, strict=True), 1))
    return blockwise.finish(spec, output, lse, dtype)


def in_words(spec, query, key, value):
    """How each part is computed, in words for `ops.explain`."""
    union = _union(spec.pattern)
    queries, keys = (
        sum(length for _, length in union.ends(count, x.shape[1]))
        for count, x in ((union.queries, query), (union.keys, key))
    )
    near = banded.in_words(_near(spec, union), query, key, value)
    found = [near, f"all queries over {keys} keys"]
    return ", ".join(found + [f"{queries} queries over all keys"] * (queries > 0))


def _near(spec, union):
    """The problem of the keys that are not global, whose log-sum-exp is returned."""
    at = ops.arange(spec.positions.key.shape[0], dtype="int32")
    others = at >= union.keys
    if union.since is not None:
        others = ops.logical_and(others, at < union.since)
    return spec.replace(
        pattern=patterns.every(union.also, union.near),
        masks=(*spec.masks, others[None, None, None]),
        sink=None,
        return_lse=True,
    )
