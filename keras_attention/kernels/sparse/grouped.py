"""Patterns of groups of queries that see the same few keys, such as windows of an image.

The tokens of each group become a short sequence of a larger batch, by an index that is known
beforehand (`patterns.Groups`), for `blockwise`. `banded` calls this for each part of a pattern.
"""

import functools

import numpy as np
from keras import ops

from keras_attention.kernels import blockwise
from keras_attention.kernels.sparse import folding
from keras_attention.patterns.base import shorter
from keras_attention.sequences import sizes
from keras_attention.spec import Positions


def unsupported_reason(spec, query, key, value):
    """The reason this kernel cannot compute a part, or None."""
    groups = spec.pattern.groups() if spec.pattern is not None else None
    if groups is None:
        return "the pattern has no window and no rate"
    if not spec.positions.counted or spec.positions.offset:
        return "positions are not consecutive from 0"
    length, keys = query.shape[1], key.shape[1]
    if not sizes.known(length, keys) or not groups.prefix < length == keys <= groups.length:
        return f"the groups are those of {groups.length} queries and keys"
    if spec.has_tables:
        return "embeddings of distances are for consecutive keys"
    if spec.has_pairs:
        return "a mask or bias has all pairs"
    if share(spec) > 0.5:
        return "the groups are as large as the sequence, or nearly"
    return None


def _groups(spec):
    """The groups of the sequence, which may be shorter than those of the pattern."""
    return shorter(spec.pattern.groups(), spec.positions.query.shape[0])


def share(spec):
    """Which share of all pairs is computed."""
    groups = _groups(spec)
    return groups.pairs / groups.length**2


def in_words(spec):
    """How a problem is computed, for `ops.explain`."""
    of_queries, of_keys, *_ = _takes(_groups(spec))
    count, size = of_queries.shape
    return f"{count} groups of {size} queries and the {of_keys.shape[1]} keys that they may see"


def attend(spec, query, key, value, needs_lse):
    """As `blockwise.attend`."""
    groups = _groups(spec)
    of_queries, of_keys, back, real = _takes(groups)
    batch, (count, size), keys = ops.shape(query)[0], of_queries.shape, of_keys.shape[1]

    fold = folding.Fold(batch, count, (of_queries, size), (of_keys, keys))
    alike = [bias for bias in spec.position_biases if _is_alike(bias, groups)]
    others = [bias for bias in spec.position_biases if not _is_alike(bias, groups)]
    positions = Positions.of(size, keys)
    if others or not groups.exact:
        of_each = (
            ops.tile(ops.convert_to_tensor(x.index), (batch, 1)) for x in (of_queries, of_keys)
        )
        positions = Positions(*of_each, consecutive=False)
    folded = spec.folded(fold, positions)
    masks, biases = list(folded.masks), list(folded.biases)
    if real is not None:
        masks.append(ops.tile(ops.convert_to_tensor(real), (batch, 1, 1, 1)))
    for bias in alike:
        # It is the same for all groups, and computed once.
        found = bias(*(ops.convert_to_tensor(x.index[groups.alike]) for x in (of_queries, of_keys)))
        biases.append(ops.reshape(found, (1,) * (4 - len(found.shape)) + tuple(found.shape)))
    folded = folded.replace(
        masks=tuple(masks),
        biases=tuple(biases),
        position_biases=tuple(others),
        pattern=None if groups.exact else spec.pattern,
    )
    output, lse = fold.attend(blockwise.attend, folded, query, key, value, needs_lse)
    rest = back(output, 1), back(lse, 2)
    if not groups.prefix:
        return rest
    # The queries of the prefix see all keys.
    rows = spec.rows(0, groups.prefix).share(1)
    first = blockwise.attend(rows, query[:, : groups.prefix], key, value, needs_lse)
    pairs = zip(first, rest, (1, 2), strict=True)
    return tuple(ops.concatenate(pair, axis) for *pair, axis in pairs)


def _is_alike(bias, groups):
    """Whether a position's bias is the same for each group, as it is for `groups.alike`."""
    if groups.alike is None:
        return False
    by_distance = bias.by_distance and not groups.prefix
    return by_distance or (groups.grid, groups.prefix) == bias.grid


@functools.lru_cache(maxsize=64)
def _takes(groups):
    """`Take`s of the queries and keys of groups, and back; a mask of keys (N, 1, 1, s) or None."""
    queries, keys, prefix = groups.queries, groups.keys, groups.prefix
    if prefix:
        first = np.broadcast_to(np.arange(prefix), (len(keys), prefix))
        keys = np.concatenate([first, keys], axis=1)
    back = folding.Take(queries.reshape(1, -1) - prefix, groups.length - prefix).takers.T
    real = None if (keys >= 0).all() else (keys >= 0)[:, None, None]
    takes = folding.Take(queries, groups.length), folding.Take(keys, groups.length, prefix)
    return *takes, folding.Take(back, queries.size), real
