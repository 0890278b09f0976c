"""How a problem is computed: at once or in tiles, in which tiles, and by which passes over them.

`choose` decides all of that from the sizes and the machine, and `plan` the sizes of tiles by it;
tests decide it with `using`. A strategy changes results only by rounding.
"""

import contextlib
import contextvars
import dataclasses
import typing

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels import semantics
from keras_attention.sequences import shapes
from keras_attention.sequences.sizes import blocks, known, least, most, symbolic
from keras_attention.spec import RowNormalization

# The number of scores in a tile of whole rows: (fewest, most). Products are faster the larger they
# are, and the longer the sequence, the more memory its other arrays need.
ROW_SCORES = 2**21, 2**24
# A problem of whole rows and at most so many scores is one tile, which stores its weights.
STORED_SCORES = 2**24
# Products of half precision are multiplied by a scale, and with them the term of a masked key: it
# must stay far below all scores, and finite.
HALF_SCALES = 2**-20, 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
    """How kernels compute a problem. `choose` replaces None by what the problem and machine need.

    Args:
        few: the most scores, and elements of keys, of a problem for `few_scores`.
        whole_rows: whether a tile has all keys that its queries see, for the backend's softmax. If
            not, it has a block of them, and sums go from block to block. See `passes`.
        scores: about how many scores a tile has, over all its heads.
        of_few_heads: the same, of whole rows and columns of fewer heads than there are.
        queries, keys: how many of them a tile of blocks has at most; None is by `scores`.
        uneven: (n, more). Whole rows of a multiple of n keys, if longer, get some more, all masked:
            products with transposed scores are slow if rows lie a multiple of n numbers apart,
            since they fall into the same few lines of the cache.
        step: whole rows have a multiple of so many of the keys that a pattern leaves.
        dtype: of the factors of products: half precision as it is given, or that of sums.
        gradient_dtype: of the factors of the gradient's products.
        window: the fewest queries in a block of `banded`: fewer make poor products of matrices.
        shortest: the length from which `merge` splits a problem; None is by what it splits.
        hidden: how many hidden units of pairs `additive` computes at once for each head.
    """

    few: int = 2**16
    whole_rows: bool | None = None
    scores: int | None = None
    of_few_heads: int | None = None
    queries: int | None = None
    keys: int | None = None
    uneven: tuple[int, int] = (512, 16)
    step: int = 272
    dtype: str | None = None
    gradient_dtype: str | None = None
    window: int = 128
    shortest: int | None = None
    hidden: int = 2**20


_requested = contextvars.ContextVar("_requested", default=Strategy())  # noqa: B039 (it is frozen)


@contextlib.contextmanager
def using(**changes):
    """A context in which fields of each `Strategy` are as given, and not chosen."""
    token = _requested.set(dataclasses.replace(_requested.get(), **changes))
    try:
        yield
    finally:
        _requested.reset(token)


# The fields that are not None.
requested = _requested.get


def choose(spec, query, key, value, sizes):
    """The `Strategy` of a problem in tiles, of some `Sizes`."""
    given = requested()
    whole_rows = given.whole_rows
    if spec.normalization is not None:
        # There is no softmax, whose rows may be either.
        whole_rows = isinstance(spec.normalization, RowNormalization)
    elif whole_rows is None:
        whole_rows = backend.prefers_whole_rows(sizes.scores)
    scores = given.scores
    if scores is None:
        scores = _row_scores(spec, sizes) if whole_rows else backend.tile_scores(query)
    of_few_heads = given.of_few_heads
    if of_few_heads is None:
        # On CPUs a quarter, which fits the cache under XLA, is as fast.
        of_few_heads = scores if backend.on_accelerator(query) else scores // 4
    wide = shapes.accumulation_dtype(query, key, value)
    dtype = gradient_dtype = wide
    kinds = {keras.backend.standardize_dtype(x.dtype) for x in (query, key, value)}
    low, high = HALF_SCALES
    if keeps_half(query, key, value) and low <= spec.scale <= high:
        (dtype,) = kinds
        # In float16, gradients may overflow. A normalization takes a mean of them from each.
        rounds = dtype == "bfloat16" and spec.normalization is None
        gradient_dtype = dtype if rounds else wide
    elif kinds == {"bfloat16"} and whole_rows and spec.normalization is None:
        plain = not semantics.adjustments(spec) and spec.relative_values is None
        if plain and backend.has_fast_bfloat16():
            gradient_dtype = "bfloat16"
    return dataclasses.replace(
        given,
        whole_rows=whole_rows,
        scores=scores,
        of_few_heads=of_few_heads,
        dtype=dtype,
        gradient_dtype=gradient_dtype,
    )


def _row_scores(spec, sizes):
    if sizes.scores is not None and sizes.scores <= STORED_SCORES:
        return STORED_SCORES
    fewest, highest = ROW_SCORES
    if spec.normalization is not None:
        # A sort, or many passes, takes several arrays of a tile.
        return fewest
    if spec.span is not None or spec.dropout:
        # The fewer queries, the more keys that none of them sees; dropout needs more memory.
        highest = highest // 4
    by_keys = 4096 * highest // sizes.keys if known(sizes.keys) else fewest
    return max(fewest, min(highest, by_keys))


def keeps_half(query, key, value):
    """Whether the three stay in half precision: tiles multiply them as they are."""
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (query, key, value)}
    return dtypes in ({"bfloat16"}, {"float16"}) and backend.has_wide_products(query)


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


def plan(strategy, spec, sizes):
    """The `Plan` of a problem of some `Sizes`."""
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
        of_all = _of_blocks(strategy, one, True, skips)
        return of_all._replace(batch=batch, groups=groups)
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
        return ops.where(queries <= room, batch, 1)
    if known(batch):
        if batch * heads * pairs <= scores:
            return batch
        return _divisor(batch, scores // max(1, heads * pairs))
    return batch if heads * pairs <= scores // 16 else 1


def _divisor(number, most):
    """The largest divisor of `number` that is at most `most`, or 1."""
    return max((n for n in range(1, min(number, most) + 1) if number % n == 0), default=1)
