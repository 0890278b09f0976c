"""The specification and the result of attention.

Layers and `ops.attend` create an `AttentionSpec`, every kernel reads it, and returns an
`AttentionResult`. `shapes` has the legend of the axis letters.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_attention.backend import backend
from keras_attention.core.hints import Seed, Tensor
from keras_attention.patterns import Pattern

# Of each field of an `AttentionSpec`, the axes of its arrays, by the letters of `shapes`: the first
# ones, of which any may be 1; a tuple has those of each array. "" is of what no part changes.
# `positions` have parts of their own.
AXES: dict[str, str | tuple[str, ...]] = {
    **dict.fromkeys(("biases", "masks", "multiplier"), "bhts"),
    "segment_ids": ("bt", "bs"),
    **dict.fromkeys(("relative_keys", "relative_values", "sink"), "h"),
    **dict.fromkeys(("scale", "score", "relative_near", "logit_soft_cap", "position_biases"), ""),
    **dict.fromkeys(("pattern", "positions", "normalization", "dropout", "seed"), ""),
    **dict.fromkeys(("return_weights", "return_lse"), ""),
}

# More than any position.
_FAR = 2**30


@dataclasses.dataclass(frozen=True)
class Positions:
    """Positions of queries and keys, as arrays with static information.

    `query` is an integer array (T,) or (B, T), `key` is (S,) or (B, S). `consecutive` means that
    key s is s − t − `offset` after query t in each row, `own` that each query is one of the keys,
    at its own position. `filled`, (B, 1, 1, S) or None, marks the entries of a cache that have a
    key. `query_mask` and `key_mask`, (B, T) and (B, S) or None, mark real tokens, whose positions a
    caller may have `given`.
    """

    query: Tensor
    key: Tensor
    consecutive: bool
    offset: int | Tensor = 0
    own: bool = False
    filled: Tensor | None = None
    query_mask: Tensor | None = None
    key_mask: Tensor | None = None
    given: bool = False

    @classmethod
    def of(cls, queries, keys, query_positions=None, key_positions=None, offset=0):
        """Positions of so many queries and keys: by default from `offset`, one or (B,), and 0."""
        rank = len(getattr(offset, "shape", ()))
        from_0 = isinstance(offset, int) and offset == 0
        consecutive = query_positions is None and key_positions is None and rank == 0
        if query_positions is None:
            query_positions = ops.arange(queries, dtype="int32")
            if not from_0:
                query_positions = (offset[:, None] if rank else offset) + query_positions
        if key_positions is None:
            # One array for both, so that what is computed of it is computed once.
            one = queries is keys or (type(queries) is type(keys) is int and queries == keys)
            same = consecutive and one and from_0
            key_positions = query_positions if same else ops.arange(keys, dtype="int32")
        own = query_positions is key_positions
        return cls(query_positions, key_positions, consecutive, offset, own)

    @classmethod
    def of_heads(cls, query, key, query_positions=None, key_positions=None, one_sequence=False):
        """As `of`, of query (B, T, H, K) and key (B, S, G, K), which may be of one sequence."""
        queries, keys = query.shape[1], key.shape[1]
        if None in (queries, keys):
            queries, keys = ops.shape(query)[1], ops.shape(key)[1]
        return cls.of(queries, queries if one_sequence else keys, query_positions, key_positions)

    def of_padded(self, query_mask, key_mask, given=False):
        """The same, of tokens that masks (B, T) and (B, S), or None, mark."""
        return dataclasses.replace(self, query_mask=query_mask, key_mask=key_mask, given=given)

    @property
    def of_lengths(self):
        """Positions that show the length of each row: from 0 on, unless given; padding is at 0."""
        query, key = self.query, self.key
        if self.key_mask is not None and not self.given:
            first = ops.where(self.key_mask, key, _FAR)
            first = ops.min(first, axis=-1, keepdims=True, initial=_FAR)
            query, key = query - first, key - first
        pairs = (query, self.query_mask), (key, self.key_mask)
        return tuple(at if mask is None else ops.where(mask, at, 0) for at, mask in pairs)

    def rows(self, start, length):
        """The same of `length` queries from `start`."""
        query = part("t", start, length)(self.query, "bt"[-len(self.query.shape) :])
        if query is self.query:
            return self
        changes = {"query": query, "query_mask": None, "offset": self.offset + start}
        return dataclasses.replace(self, **changes)

    def columns(self, start, length):
        """The same of `length` keys from `start`, of which queries need not be one."""
        key = part("s", start, length)(self.key, "bs"[-len(self.key.shape) :])
        if key is self.key:
            return self
        return Positions(self.query, key, self.consecutive, self.offset - start)

    @property
    def pairs(self):
        """The two over all pairs: (T, 1) and (1, S), or (B, 1, T, 1) and (B, 1, 1, S)."""
        i, j = ops.expand_dims(self.query, -1), ops.expand_dims(self.key, -2)
        if len(i.shape) == 3 or len(j.shape) == 3:
            i, j = (x[:, None] if len(x.shape) == 3 else x for x in (i, j))
        return i, j

    @property
    def counted(self):
        """Whether they are consecutive from an integer, so that all distances are known."""
        return self.consecutive and isinstance(self.offset, int)


@dataclasses.dataclass(frozen=True)
class PositionBias:
    """A bias that is a function of two positions.

    Args:
        function: of two integer arrays that broadcast against each other, and of `arrays`:
            (T, 1) and (1, S) give an array that broadcasts to (H, T, S), (B, 1, T, 1) and
            (B, 1, 1, S) one that broadcasts to (B, H, T, S).
        arrays: arrays with gradients, such as a table of embeddings.
        by_distance: whether it depends on the distance j − i alone.
        bounded: whether its values are surely finite, and small enough to add up in float32.
        grid: (sizes, prefix) of a grid after so many positions, if it depends on the differences
            of coordinates alone; or None.
    """

    function: Callable[..., Tensor]
    arrays: tuple[Tensor, ...] = ()
    by_distance: bool = False
    bounded: bool = False
    grid: tuple[tuple[int, ...], int] | None = None

    def __call__(self, query, key):
        """The bias of all pairs of positions (T,) or (B, T), and (S,) or (B, S)."""
        return self.function(*Positions(query, key, consecutive=False).pairs, *self.arrays)


@dataclasses.dataclass(frozen=True)
class ElementwiseNormalization:
    """A normalization whose weight depends on its own score alone, so that tiles need no sums.

    `function` maps scores to weights, 0 for a masked one, and `derivative` weights to their
    derivatives by the scores.
    """

    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]

    def __call__(self, scores, mask):
        return self.function(scores)


@dataclasses.dataclass(frozen=True)
class RowNormalization:
    """A normalization whose weights sum to one and depend on the scores of one query alone.

    With g = `slope(weights)`, the gradient of the scores is g ∘ (dP − Σ g dP / Σ g), that of the
    weights being dP: so it is of softmax, g = P, and of α-entmax, g = P^(2 − α) where P > 0 (Peters
    et al. 2019, proposition 2). Weights are computed again from the scores, and not stored.
    `function` takes scores (masked ones hugely negative) and a mask or None; g is 0 where a weight
    is.
    """

    function: Callable[[Tensor, Tensor | None], Tensor]
    slope: Callable[[Tensor], Tensor]

    def __call__(self, scores, mask):
        return self.function(scores, mask)


def cut(array, axis, start, length):
    """At most `length` elements along an axis from `start`."""
    if not isinstance(start, int):
        return backend.dynamic_slice(array, axis, start, length)
    if start == 0 and array.shape[axis] is not None and length >= array.shape[axis]:
        return array
    return array[(slice(None),) * axis + (slice(start, start + length),)]


def padded(array, axis, before, after, value=0):
    """The array with so many elements of a value before and after it along an axis."""
    if type(before) is type(after) is int and before == after == 0:
        return array
    widths = [(0, 0)] * len(array.shape)
    widths[axis] = before, after
    return ops.pad(array, widths, constant_values=value)


def part(letter, start, length):
    """`cut` along the axis of a letter, as a function for `mapped`."""

    def function(array, axes):
        axis = axes.find(letter)
        return array if axis < 0 or array.shape[axis] == 1 else cut(array, axis, start, length)

    return function


def mapped(fields, function):
    """`function(array, axes)` of each array with `AXES`, in those fields that have some."""
    found = {}
    for name, axes in AXES.items():
        given = fields.get(name)
        if not axes or given is None:
            continue
        if isinstance(given, tuple):
            each = axes if isinstance(axes, tuple) else (axes,) * len(given)
            found[name] = tuple(map(function, given, each))
        else:
            found[name] = function(given, axes)
    return found


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """The specification of attention, without its query, key and value.

        scores  = cap(query · key · scale + relative) + clip(biases)
        weights = normalize(scores over the keys that masks, pattern and segments allow)
        output  = dropout(weights · multiplier) · (value + relative)

    Args:
        scale: multiplier of inner products.
        score: None for the inner product, or (B, H, T, S) of query and key, both with H heads.
        relative_keys, relative_values: None, or embeddings of distances clipped at k that join the
            keys in the scores, (H or 1, 2k + 1, K), and the values in the output,
            (H or 1, 2k + 1, V). See `kernels.relative`.
        relative_near: whether the pattern leaves only keys at distances below that k.
        logit_soft_cap: None, or c to replace scores by c · tanh(scores / c), before the biases.
        biases: arrays to add, with four axes that broadcast to (B, H, T, S).
        position_biases: `PositionBias`es to add.
        masks: boolean arrays, True = attend, with four axes that broadcast to (B, H, T, S).
        pattern: None, or a `Pattern`: booleans for (B, T, S) of two arrays of positions.
        segment_ids: None, or integers (B, T) and (B, S): a query sees only keys of its number.
        positions: the `Positions`.
        sink: None, or (H,), the score of one more key of each head, whose value is zero.
        normalization: None for softmax, or a function of scores (masked ones hugely negative) and
            mask giving weights over the last axis; or those and the log-probability of a choice.
        multiplier: None, or multipliers of the weights; broadcasts to (B, H, T, S).
        dropout, seed: the rate at which weights are dropped, 0 at inference, and its seed.
        return_weights, return_lse: what to return in addition to the output.
    """

    scale: float = 1.0
    score: Callable[[Tensor, Tensor], Tensor] | None = None
    relative_keys: Tensor | None = None
    relative_values: Tensor | None = None
    relative_near: bool = False
    logit_soft_cap: float | None = None
    biases: tuple[Tensor, ...] = ()
    position_biases: tuple[PositionBias, ...] = ()
    masks: tuple[Tensor, ...] = ()
    pattern: Pattern | None = None
    segment_ids: tuple[Tensor, Tensor] | None = None
    positions: Positions | None = None
    sink: Tensor | None = None
    normalization: Callable[[Tensor, Tensor | None], Any] | None = None
    multiplier: Tensor | None = None
    dropout: float = 0.0
    seed: Seed = None
    return_weights: bool = False
    return_lse: bool = False

    replace = dataclasses.replace

    def rows(self, start, length):
        """The problem of `length` queries from `start`."""
        at = self.positions and self.positions.rows(start, length)
        return self.folded(part("t", start, length), at)

    def columns(self, start, length):
        """The problem of `length` keys from `start`."""
        at = self.positions and self.positions.columns(start, length)
        return self.folded(part("s", start, length), at)

    def folded(self, fold, positions):
        """The problem with other positions, and `fold(array, axes)` of each array with `AXES`."""
        return self.replace(**mapped(vars(self), fold), positions=positions)

    def share(self, number, **changes):
        """A problem whose result is merged with others': its dropout has a seed of its own."""
        seed = self.seed + number if isinstance(self.seed, int) else self.seed
        return self.replace(seed=seed, **changes)

    @property
    def has_tables(self):
        """Whether there are embeddings of distances."""
        return self.relative_keys is not None or self.relative_values is not None

    @property
    def has_pairs(self):
        """Whether a mask or a bias has both queries and keys."""
        given = (*self.masks, *self.biases)
        return any(array.shape[2] != 1 and array.shape[3] != 1 for array in given)

    @property
    def restricted(self):
        """Whether any pair is masked."""
        return bool(self.masks) or self.pattern is not None or self.segment_ids is not None

    @property
    def may_lack_keys(self):
        """Whether a query may have no key to attend to."""
        # A query that is one of the keys has itself, unless something may hide that key: a pattern
        # by which it need not see itself, segments, or any mask but that of the entries of a cache.
        if not self.restricted:
            return False
        at = self.positions
        if at is None or not at.own or self.segment_ids is not None:
            return True
        for mask in self.masks:
            if mask is not at.filled:
                return True
        return not (self.pattern is None or self.pattern.sees_itself)

    @property
    def span(self):
        """The `Span` of a bounded pattern and consecutive positions, or None."""
        at = self.positions
        if self.pattern is None or at is None or not at.consecutive:
            return None
        span = self.pattern.span()
        return None if span.left is None and span.right is None else span

    @property
    def arrays(self):
        """The arrays with gradients, by name; the argument of `with_arrays`."""
        biases = tuple(tuple(bias.arrays) for bias in self.position_biases)
        given = self._given("relative_keys", "relative_values", "biases")
        return {**given, "position_biases": biases}

    @property
    def constants(self):
        """The arrays of queries, keys and pairs without gradients, by name."""
        return self._given("masks", "segment_ids", "multiplier")

    def _given(self, *names):
        return {name: found for name in names if (found := getattr(self, name)) is not None}

    def with_arrays(self, arrays):
        """The same with other arrays, by the names of `arrays`."""
        pairs = zip(self.position_biases, arrays["position_biases"], strict=True)
        biases = tuple(dataclasses.replace(bias, arrays=tuple(own)) for bias, own in pairs)
        return self.replace(**{**arrays, "position_biases": biases})


@dataclasses.dataclass(frozen=True)
class AttentionResult:
    """The result of a kernel.

    Args:
        output: (B, T, H, V).
        lse: (B, H, T), the logarithm of the sum of the exponentials of all scores of a query, the
            sink's too; −1.5e38 for queries without keys. None if it was not requested.
        weights, mask: (B, H, T, S), before dropout, and the whole mask, if they were requested.
        has_keys: boolean, broadcasts to (B, H, T): whether a query has a key; None means all have.
        log_probability: of the keys chosen by hard attention, (B, H, T), if requested.
        state: the next cache, of a recurrence that was given one.
    """

    output: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None
    has_keys: Tensor | None = None
    mask: Tensor | None = None
    log_probability: Tensor | None = None
    state: dict[str, Tensor] | None = None

    replace = dataclasses.replace
