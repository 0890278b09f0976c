"""The sizes of a problem, and of the tiles that it is cut into."""

import typing

import keras

from keras_attention.backend import backend
from keras_attention.kernels import semantics
from keras_attention.sequences.sizes import blocks, known, least, most, symbolic


class Sizes(typing.NamedTuple):
    """The sizes of a problem: B sequences, H query heads, G key heads, T queries, S keys."""

    batch: object
    heads: int
    groups: int
    queries: object
    keys: object

    @classmethod
    def of(cls, query, key):
        """Those of query (B, T, H, K) and key (B, S, G, K)."""
        batch, queries, heads, _ = backend.shape(query)
        return cls(batch, heads, key.shape[2], queries, backend.shape(key)[1])

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


class Plan(typing.NamedTuple):
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
        return self.groups * self.repeats

    @property
    def chunks(self):
        return self.batches * self.groupings

    @property
    def counts(self):
        """The number of tiles along each axis."""
        return self.batches, self.groupings, self.query_blocks, self.key_blocks

    @property
    def single(self):
        """Whether there is known to be one tile."""
        return all(known(count) and count == 1 for count in self.counts)


def of(strategy, spec, sizes):
    """The `Plan` of a problem of some `Sizes`, by a `strategies.Strategy`."""
    if symbolic(sizes.queries, sizes.keys):
        # Such lengths cannot be cut: the problem is one tile.
        return _plan(sizes, sizes.batch, sizes.groups, (1, sizes.queries), (1, sizes.keys))
    skips, all_heads = spec.span is not None, bool(spec.position_biases)
    if strategy.whole_rows:
        many = 2048
        if skips or spec.dropout:
            many = 512
        elif spec.biases:
            # All queries of few heads, so that a bias is cut into stretches of memory.
            many = sizes.queries
        return _of_rows(strategy, sizes, all_heads, many, pads=masks_apart(strategy, spec))
    if backend.may_share_arrays() and known(*sizes):
        # All sequences and heads in each tile: devices that share them then have their part of
        # every tile. A loop over chunks of them would gather each chunk on every device.
        batch, heads, groups = sizes.batch, sizes.heads, sizes.groups
        one = sizes._replace(batch=1, heads=batch * heads, groups=batch * groups)
        plan = _of_blocks(strategy, one, True, skips)
        return plan._replace(batch=batch, groups=groups)
    return _of_blocks(strategy, sizes, all_heads, skips)


def masks_apart(strategy, spec):
    """Whether masks of keys, and of keys beyond the last, are one more feature of the products."""
    # Before other terms are added, masks are terms too.
    return strategy.whole_rows and not semantics.adjustments(spec)


def _of_blocks(strategy, sizes, all_heads, skips):
    """A `Plan` of blocks, with `all_heads` in each tile or some; `skips`: some may be skipped."""
    scores, repeats, pairs = strategy.scores, sizes.repeats, sizes.pairs
    groups = sizes.groups
    if known(pairs) and not all_heads:
        groups = _divisor(groups, strategy.of_few_heads // max(1, repeats * pairs))
    batch = _sequences(sizes, scores) if groups == sizes.groups else 1
    heads = groups * repeats
    if known(pairs) and pairs * heads <= scores:
        queries, keys = sizes.queries, sizes.keys
    else:
        # Many queries to few keys: matrix products are fastest so.
        keys = 1024 if heads <= 2 else 512
        queries = least(sizes.queries, max(16, scores // (heads * keys)))
        if known(queries):
            keys = max(keys, scores // (heads * queries))
        keys = least(sizes.keys, keys)
    if skips and known(pairs) and pairs >= 2**20:
        # Smaller, so that more of them are skipped, but then with more heads.
        queries = min(queries, max(512, sizes.queries // 4))
        keys = min(keys, max(512, sizes.keys // 4))
        if not all_heads:
            groups = _divisor(sizes.groups, scores // max(1, repeats * queries * keys))
        if groups == sizes.groups and known(sizes.batch):
            batch = _divisor(sizes.batch, scores // max(1, groups * repeats * queries * keys))
    queries = blocks(sizes.queries, strategy.queries or queries)
    keys = blocks(sizes.keys, strategy.keys or keys)
    return _plan(sizes, batch, groups, queries, keys)


def _of_rows(strategy, sizes, all_heads, many, pads):
    """A `Plan` whose tiles have all keys.

    A tile has fewer heads rather than fewer queries than `many`. `pads` allows keys after the last.
    """
    scores, groups, repeats, keys = strategy.scores, sizes.groups, sizes.repeats, sizes.keys
    if known(sizes.queries, keys) and not all_heads:
        of_group = repeats * min(sizes.queries, many) * keys
        groups = _divisor(groups, scores // max(1, of_group))
    batch = _sequences(sizes, scores) if groups == sizes.groups else 1
    queries = most(16, scores // (groups * repeats) // most(1, keys))
    queries = blocks(sizes.queries, least(sizes.queries, queries))
    # A length unknown in a graph may be 0.
    keys = keys if known(keys) else most(1, keys)
    even, more = strategy.uneven
    if pads and known(keys) and keys > even and keys % even == 0:
        keys += more
    return _plan(sizes, batch, groups, queries, (1, keys))


def _plan(sizes, batch, groups, queries, keys):
    """The `Plan` of tiles of so many sequences and key heads; of the others, counts and sizes."""
    return Plan(
        batch=batch,
        groups=groups,
        repeats=sizes.repeats,
        queries=queries[1],
        keys=keys[1],
        batches=1 if batch is sizes.batch else most(1, sizes.batch) // most(1, batch),
        groupings=sizes.groups // groups,
        query_blocks=queries[0],
        key_blocks=keys[0],
    )


def _sequences(sizes, scores):
    """How many sequences a tile of about so many scores has, if it has all heads."""
    batch, heads, _, queries, keys = sizes
    pairs = sizes.pairs
    if not known(pairs):
        # The whole batch at once if it is small. By quotients: the product of all sizes may
        # overflow the graph's 32-bit integers.
        room = 4 * scores // heads // most(1, batch) // most(1, keys)
        return keras.ops.where(queries <= room, batch, 1)
    if known(batch):
        if batch * heads * pairs <= scores:
            return batch
        return _divisor(batch, scores // max(1, heads * pairs))
    return batch if heads * pairs <= scores // 16 else 1


def _divisor(number, most):
    """The largest divisor of `number` that is at most `most`, or 1."""
    return max((n for n in range(1, min(number, most) + 1) if number % n == 0), default=1)
