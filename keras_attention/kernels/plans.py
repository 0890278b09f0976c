"""The sizes of a problem, and of the tiles that it is cut into."""

import dataclasses
import typing

import keras

from keras_attention.sizes import blocks, known, least, most, symbolic

ops = keras.ops

# Products with transposed scores are slow if rows of scores lie a multiple of EVEN numbers apart:
# they fall into the same few lines of the cache. Longer rows get UNEVEN more keys, all masked.
EVEN, UNEVEN = 512, 16


class Sizes(typing.NamedTuple):
    """The sizes of a problem: B sequences, H query heads, G key heads, T queries, S keys."""

    batch: object
    heads: int
    groups: int
    queries: object
    keys: object

    @property
    def repeats(self):
        """Query heads per key head, R."""
        return self.heads // self.groups

    @property
    def pairs(self):
        """Pairs of a query and a key, or None if a length is unknown."""
        return self.queries * self.keys if known(self.queries, self.keys) else None

    @property
    def scores(self):
        """Scores of all heads, or None if a size is unknown."""
        known_all = known(self.batch, self.queries, self.keys)
        return self.batch * self.heads * self.pairs if known_all else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The sizes of a tile, and the number of tiles along each axis.

    A tile has `batch` sequences, `groups` of their key heads (and the `repeats` query heads of
    each), `queries` and `keys`. There are `batches` · `groupings` · `query_blocks` · `key_blocks`.
    """

    batch: object
    groups: int
    repeats: int
    queries: object
    keys: object
    batches: object
    groupings: int
    query_blocks: object
    key_blocks: object

    @property
    def shape(self):
        """Of a tile's scores, without its keys: (b, g, r·t)."""
        return self.batch, self.groups, self.repeats * self.queries

    @property
    def heads(self):
        """Query heads of a tile."""
        return self.groups * self.repeats

    @property
    def chunks(self):
        """The number of chunks of sequences and heads."""
        return self.batches * self.groupings

    @property
    def single(self):
        """Whether there is known to be one tile."""
        return all(
            known(count) and count == 1
            for count in (self.batches, self.groupings, self.query_blocks, self.key_blocks)
        )


def of_blocks(sizes, elements, all_heads=False, skips=False):
    """A `Plan` for a problem of some `Sizes`, with about `elements` scores in a tile.

    `all_heads` puts all heads in each tile. `skips` means that tiles may be skipped, which
    requires several. Lengths that are symbolic dimensions cannot be cut: the problem is one tile.
    """
    queries, keys, groups = sizes.queries, sizes.keys, sizes.groups
    repeats, pairs = sizes.repeats, sizes.pairs
    if symbolic(queries, keys):
        return _whole(sizes)
    # A quarter, with a tile per head, is as fast and fits the cache under XLA.
    some = groups
    if known(pairs) and not all_heads:
        some = _divisor(groups, elements // 4 // max(1, repeats * pairs))
    few = _sequences(sizes, elements) if some == groups else 1
    together = some * repeats
    if known(pairs) and pairs * together <= elements:
        rows, columns = queries, keys
    else:
        # Many queries to few keys: matrix products are fastest so.
        columns = 1024 if together <= 2 else 512
        rows = least(queries, max(16, elements // (together * columns)))
        if known(rows):
            columns = max(columns, elements // (together * rows))
        columns = least(keys, columns)
    if skips and known(pairs) and pairs >= 2**20:
        # Smaller, so that more of them are skipped, but then with more heads.
        rows, columns = (
            min(size, max(512, length // 4)) for size, length in ((rows, queries), (columns, keys))
        )
        if not all_heads:
            some = _divisor(groups, elements // max(1, repeats * rows * columns))
    query_blocks, rows = blocks(queries, rows)
    key_blocks, columns = blocks(keys, columns)
    return Plan(
        batch=few,
        groups=some,
        repeats=repeats,
        queries=rows,
        keys=columns,
        batches=_batches(sizes, few),
        groupings=groups // some,
        query_blocks=query_blocks,
        key_blocks=key_blocks,
    )


def _whole(sizes):
    """The `Plan` of one tile."""
    return Plan(
        batch=sizes.batch,
        groups=sizes.groups,
        repeats=sizes.repeats,
        queries=sizes.queries,
        keys=sizes.keys,
        batches=1,
        groupings=1,
        query_blocks=1,
        key_blocks=1,
    )


def of_shared(sizes, elements, skips=False):
    """A `Plan` as of `of_blocks`, with all sequences and heads in each tile.

    Devices that share the sequences or the heads then have their part of every tile. A loop over
    chunks of them would gather each chunk on every device.
    """
    batch, heads, groups = sizes.batch, sizes.heads, sizes.groups
    one = sizes._replace(batch=1, heads=batch * heads, groups=batch * groups)
    plan = of_blocks(one, elements, all_heads=True, skips=skips)
    return dataclasses.replace(plan, batch=batch, groups=groups)


def of_rows(sizes, elements, all_heads=False, many_queries=2048, pads=False):
    """A `Plan` as of `of_blocks`, whose tiles have all keys.

    A tile has fewer heads rather than fewer than `many_queries`. `pads` allows more keys than there
    are, where that is faster.
    """
    queries, keys, groups, repeats = sizes.queries, sizes.keys, sizes.groups, sizes.repeats
    some = groups
    if known(queries, keys) and not all_heads:
        many = repeats * min(queries, many_queries) * keys
        some = _divisor(groups, elements // max(1, many))
    few = _sequences(sizes, elements) if some == groups else 1
    rows = least(queries, most(16, elements // (some * repeats) // most(1, keys)))
    query_blocks, rows = blocks(queries, rows)
    # A length unknown in a graph may be 0.
    columns = keys if known(keys) else most(1, keys)
    if pads and known(keys) and keys > EVEN and keys % EVEN == 0:
        columns += UNEVEN
    return Plan(
        batch=few,
        groups=some,
        repeats=repeats,
        queries=rows,
        keys=columns,
        batches=_batches(sizes, few),
        groupings=groups // some,
        query_blocks=query_blocks,
        key_blocks=1,
    )


def _sequences(sizes, elements):
    """How many sequences a tile has, if it has all heads."""
    batch, heads, _, queries, keys = sizes
    pairs = sizes.pairs
    if not known(pairs):
        # The whole batch at once if it is small. By quotients: the product of all sizes may
        # overflow the graph's 32-bit integers.
        room = 4 * elements // heads // most(1, batch) // most(1, keys)
        return ops.where(queries <= room, batch, 1)
    if known(batch):
        if batch * heads * pairs <= elements:
            return batch
        return _divisor(batch, elements // max(1, heads * pairs))
    return batch if heads * pairs <= elements // 16 else 1


def _batches(sizes, few):
    """How many tiles of `few` sequences there are."""
    return 1 if few is sizes.batch else most(1, sizes.batch) // most(1, few)


def _divisor(number, most):
    """The largest divisor of `number` that is at most `most`, or 1."""
    return max((n for n in range(1, min(number, most) + 1) if number % n == 0), default=1)
