"""How a problem is computed: at once or in tiles, in what tiles, and by which passes over them.

`choose` decides all of it, and tests decide it with `using`. It changes results by rounding alone.
"""

import contextlib
import contextvars
import dataclasses

import keras

from keras_attention.backend import backend
from keras_attention.kernels import semantics
from keras_attention.sequences import shapes
from keras_attention.sequences.sizes import known
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
    """How kernels compute a problem; None is what the problem and the machine decide.

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
    """The `Strategy` of a problem in tiles, of some `plans.Sizes`."""
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
    fewest, most = ROW_SCORES
    if spec.normalization is not None:
        # A sort, or many passes, takes several arrays of a tile.
        return fewest
    if spec.span is not None or spec.dropout:
        # The fewer queries, the more keys that none of them sees; dropout needs more memory.
        most = most // 4
    return max(fewest, min(most, 4096 * most // sizes.keys)) if known(sizes.keys) else fewest


def keeps_half(query, key, value):
    """Whether the three stay in half precision: tiles multiply them as they are."""
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (query, key, value)}
    return dtypes in ({"bfloat16"}, {"float16"}) and backend.has_wide_products(query)
