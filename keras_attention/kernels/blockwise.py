"""Attention a block of queries and a block of keys at a time, with its own gradient.

Softmax needs the largest score of a row and the sum of its exponentials. Both can be kept up to
date while blocks of keys come by (Milakov & Gimelshein 2018), so no more than a block of scores
exists at once. With `m` the largest so far, `l` the sum and `a` the weighted values, a block of
scores S makes

    m' = max(m, max S)    l' = l·exp(m − m') + Σ exp(S − m')    a' = a·exp(m − m') + exp(S − m') V

and the output is a / l. The gradient does not keep the weights either (Dao et al. 2022, appendix
B): from L = m + ln l, one number a query, it has them back as P = exp(S − L), and with D = dO · O

    dV = Pᵀ dO    dS = P ∘ (dO Vᵀ − D)    dQ = dS K    dK = dSᵀ Q.

So memory grows with T + S, in training too. L is an output as well, with a gradient: two
attentions over different keys can be put together by it (`kernels.parts`). Blocks of keys that no
query of a block can see, by `span`, are left out. A problem of one block keeps its weights.
"""

import copy
import dataclasses

import keras

from keras_attention import shapes
from keras_attention.kernels import places, primitives, relative
from keras_attention.kernels.primitives import blocks, known, least, most, product
from keras_attention.kernels.reference import finite, two_features
from keras_attention.kernels.task import pairs

ops = keras.ops

MASKED = -1.5e38
# Scores with a bias are kept within this, so that a masked one is lower.
HIGHEST = 1e38
# A row whose largest score is below this saw no key.
REACHED = -1.25e38
# So many scores at once, for all heads that are looked at together. On processor cores, few enough
# to stay in the cache; an accelerator is busy only with many.
ELEMENTS = {False: 2**21, True: 2**26}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a problem is cut: sizes of a block and how many there are, and what they are blocks of.

    A block has `batch` sequences, `groups` of their key heads (and the `repeats` query heads of
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
    def heads(self):
        """Query heads of a block."""
        return self.groups * self.repeats

    @property
    def chunks(self):
        """How many blocks there are beside those of queries and keys."""
        return self.batches * self.groupings

    @property
    def single(self):
        """Whether it is known that there is one block."""
        return all(
            isinstance(count, int) and count == 1
            for count in (self.batches, self.groupings, self.query_blocks, self.key_blocks)
        )


def plan(batch, heads, groups, queries, keys, elements, all_heads=False, skips=False):
    """A `Plan` for arrays of these sizes, with about `elements` scores in a block.

    `all_heads` asks for all heads in each block. `skips` says that blocks may be left out, for
    which there must be several.
    """
    repeats = heads // groups
    pairs = queries * keys if known(queries, keys) else None
    if known(pairs):
        # A quarter, where heads are blocks of their own, is as fast and has XLA in the cache.
        some = groups if all_heads else _divisor(groups, elements // 4 // max(1, repeats * pairs))
        if some < groups:
            few = 1
        elif known(batch):
            few = _divisor(batch, elements // max(1, heads * pairs))
        else:
            few = batch if heads * pairs <= elements // 16 else 1
    else:
        # All the batch at once where it is small. By quotients: the product of all sizes may be
        # more than the graph's integers of 32 bits hold.
        some = groups
        room = 4 * elements // heads // most(1, batch) // most(1, keys)
        few = ops.where(queries <= room, batch, 1)
    together = some * repeats
    if known(pairs) and pairs * together <= elements:
        rows, columns = queries, keys
    else:
        # Many queries to few keys: matrix products like it best.
        columns = 1024 if together <= 2 else 512
        rows = least(queries, max(16, elements // (together * columns)))
        if known(rows):
            columns = max(columns, elements // (together * rows))
        columns = least(keys, columns)
    if skips and known(pairs) and pairs >= 2**20:
        # Smaller, for more of them to be left out, but then of more heads.
        rows, columns = (
            min(size, max(512, length // 4)) for size, length in ((rows, queries), (columns, keys))
        )
        if not all_heads:
            some = _divisor(groups, elements // max(1, repeats * rows * columns))
    query_blocks, rows = blocks(queries, rows)
    key_blocks, columns = blocks(keys, columns)
    batches = 1 if few is batch else most(1, batch) // most(1, few)
    return Plan(
        few, some, repeats, rows, columns, batches, groups // some, query_blocks, key_blocks
    )


def _divisor(number, most):
    """The largest divisor of `number` that is at most `most`, or 1."""
    return max((n for n in range(1, min(number, most) + 1) if number % n == 0), default=1)


class Blocks:
    """What the blocks of one problem share: how arrays are cut, and what happens to scores."""

    def __init__(self, task, plan, wide):
        self.task, self.plan, self.wide = task, plan, wide
        self.batch = primitives.shape(task.query)[0]
        self.queries, self.keys = (primitives.shape(x)[1] for x in (task.query, task.key))
        self.padded_keys = not (known(self.keys, plan.keys) and self.keys % plan.keys == 0)
        self.restricted = task.restricted or self.padded_keys
        offset = task.positions.offset
        self.offset = offset if isinstance(offset, int) else None
        # All arrays but those that have a gradient.
        self.held = {
            "query_positions": self._padded(task.positions.query, -1, self.queries, plan.queries),
            "key_positions": self._padded(task.positions.key, -1, self.keys, plan.keys),
            "offset": None if isinstance(offset, int) else offset,
            "masks": [self.fitted(mask) for mask in task.masks],
            "segments": task.segments
            and (
                self._padded(task.segments[0], 1, self.queries, plan.queries),
                self._padded(task.segments[1], 1, self.keys, plan.keys),
            ),
            "dropout": primitives.key(task.seed) if task.dropout else None,
        }
        self.adjusts = bool(
            task.biases
            or task.between
            or task.relative_keys is not None
            or task.soft_cap is not None
        )

    def holding(self, held):
        """The same with other arrays in `held`."""
        same = copy.copy(self)
        same.held = held
        return same

    def _start(self):
        """The position of the first query, where positions are consecutive."""
        return self.held["offset"] if self.offset is None else self.offset

    # Cutting

    def rows(self, query):
        """Query (B, T, H, K) as (B, G, H / G, T', K), T' a multiple of the block."""
        query = self._padded(query, 1, self.queries, self.plan.queries)
        query = ops.transpose(query, (0, 2, 1, 3))
        batch, heads, length, size = primitives.shape(query)
        repeats = self.plan.repeats
        return ops.reshape(query, (batch, heads // repeats, repeats, length, size))

    def columns(self, key):
        """Key or value (B, S, G, K) as (B, G, S', K), S' a multiple of the block."""
        key = self._padded(key, 1, self.keys, self.plan.keys)
        if key.shape[2] == 1:
            return ops.reshape(key, (*primitives.shape(key)[:1], 1, -1, key.shape[3]))
        return ops.transpose(key, (0, 2, 1, 3))

    def _padded(self, array, axis, length, size):
        """`array` with zeros after its end along an axis, up to a multiple of `size`, not 0."""
        if known(length, size) and length % size == 0:
            return array
        axis = axis % len(array.shape)
        widths = [(0, 0)] * len(array.shape)
        widths[axis] = (0, most(size, -(-length // size) * size) - length)
        return ops.pad(array, widths)

    def fitted(self, array):
        """An array that broadcasts to (B, H, T, S), padded, each axis known to be 1 or whole."""
        if None in array.shape:
            whole = (self.batch, self.task.query.shape[2], self.queries, self.keys)
            sizes = zip(array.shape, whole, strict=True)
            array = ops.broadcast_to(array, [full if n is None else n for n, full in sizes])
        for axis, length, size in (
            (2, self.queries, self.plan.queries),
            (3, self.keys, self.plan.keys),
        ):
            if array.shape[axis] != 1:
                array = self._padded(array, axis, length, size)
        return array

    def chunk(self, c):
        """The first sequence and the first group of key heads of a chunk."""
        return (
            c // self.plan.groupings * self.plan.batch,
            c % self.plan.groupings * self.plan.groups,
        )

    def cut_rows(self, rows, c, i):
        """The block (b, g, r·t, K) of (B, G, H / G, T', K)."""
        plan = self.plan
        first, group = self.chunk(c)
        rows = primitives.piece(rows, 0, first, plan.batch)
        rows = primitives.piece(rows, 1, group, plan.groups)
        rows = primitives.piece(rows, 3, i * plan.queries, plan.queries)
        return ops.reshape(
            rows, (plan.batch, plan.groups, plan.repeats * plan.queries, rows.shape[-1])
        )

    def cut_columns(self, columns, c, j):
        """The block (b, g, s, K) of (B, G, S', K)."""
        plan = self.plan
        first, group = self.chunk(c)
        columns = primitives.piece(columns, 0, first, plan.batch)
        columns = primitives.piece(columns, 1, group, plan.groups)
        return primitives.piece(columns, 2, j * plan.keys, plan.keys)

    def cut_pairs(self, array, c, i, j):
        """The block of an array that broadcasts to (B, H, T', S'), axes of 1 left as they are."""
        plan = self.plan
        first, group = self.chunk(c)
        cuts = (
            (first, plan.batch),
            (group * plan.repeats, plan.heads),
            (i * plan.queries, plan.queries),
            (j * plan.keys, plan.keys),
        )
        for axis, (start, size) in enumerate(cuts):
            if array.shape[axis] != 1:
                array = primitives.piece(array, axis, start, size)
        return array

    def cut_integers(self, array, c, start, size):
        """The block of integers (T',) or (B, T')."""
        if len(array.shape) == 2 and array.shape[0] != 1:
            array = primitives.piece(array, 0, self.chunk(c)[0], self.plan.batch)
        return primitives.piece(array, len(array.shape) - 1, start, size)

    def positions_of(self, c, i, j):
        """Positions of the queries and keys of a block."""
        plan = self.plan
        return (
            self.cut_integers(self.held["query_positions"], c, i * plan.queries, plan.queries),
            self.cut_integers(self.held["key_positions"], c, j * plan.keys, plan.keys),
        )

    # Blocks of keys that a block of queries can see

    def reach(self, i):
        """The first block of keys that queries of block i can see, and the one after the last."""
        span, positions, plan = _span(self.task), self.task.positions, self.plan
        if span is None or not positions.consecutive:
            return 0, plan.key_blocks
        start = self._start() + i * plan.queries
        first, last = 0, plan.key_blocks
        if span.left is not None:
            first = most(0, (start - span.left) // plan.keys)
        if span.right is not None:
            last = least(last, most(0, (start + plan.queries - 1 + span.right) // plan.keys + 1))
        return first, last

    # Scores

    def scores(self, query, key, extras, c, i, j):
        """The scores (b, g, r·t, s) of a block, masked."""
        logits = product(query, key, flip_second=True)
        if self.adjusts:
            logits = self._adjust(logits, query, extras, c, i, j)
        mask = self._mask(c, i, j)
        if mask is not None:
            logits = self._flat(ops.where(mask, self._split(logits), MASKED))
        return logits

    def scores_back(self, upstream, query, key, extras, c, i, j):
        """Gradients of a block's query, of its key, (K, s), and of the extras."""
        of_query, of_extras = None, ()
        if self.adjusts:
            _, pull = primitives.pullback(
                lambda logits, query, *extras: self._adjust(logits, query, extras, c, i, j),
                (product(query, key, flip_second=True), query, *extras),
            )
            upstream, of_query, *of_extras = pull(upstream)
        direct = product(upstream, key)
        of_query = direct if of_query is None else direct + of_query
        # Transposed, as products like their large side not to be.
        return of_query, product(query, upstream, flip_first=True), of_extras

    def _split(self, array):
        """(b, g, r·t, …) as (b, h, t, …)."""
        plan = self.plan
        return ops.reshape(
            array, (plan.batch, plan.heads, plan.queries, primitives.shape(array)[-1])
        )

    def _flat(self, array):
        """(b, h, t, …) as (b, g, r·t, …)."""
        plan = self.plan
        return ops.reshape(
            array,
            (
                plan.batch,
                plan.groups,
                plan.repeats * plan.queries,
                primitives.shape(array)[-1],
            ),
        )

    def _adjust(self, logits, query, extras, c, i, j):
        """Scores with all that is added to products, in the order of the definition."""
        task, plan = self.task, self.plan
        extras = list(extras)
        logits = self._split(logits)
        if task.relative_keys is not None:
            table = self._heads(extras.pop(0), c)
            rows, places = self._split(query), self._places(c, i, j)
            logits = logits + relative.scores(rows, table, plan.keys, places, task.near)
        if task.soft_cap is not None:
            logits = ops.tanh(logits / task.soft_cap) * task.soft_cap
        for _ in task.biases:
            logits = logits + ops.cast(extras.pop(0), self.wide)
        for between in task.between:
            arrays = [extras.pop(0) for _ in between.arrays]
            logits = logits + ops.cast(self._between(between, arrays, c, i, j), self.wide)
        return self._flat(ops.clip(logits, -HIGHEST, HIGHEST))

    def relative_values(self, weights, table, c, i, j):
        """What embeddings of distances add to the output of a block."""
        table = self._heads(table, c)
        places, near = self._places(c, i, j), self.task.near
        return self._flat(relative.values(self._split(weights), table, places, near))

    def _places(self, c, i, j):
        """The `Positions` of a block, whose keys count from 0 where they are consecutive."""
        plan, positions = self.plan, self.task.positions
        offset = 0
        if positions.consecutive:
            offset = self._start() + i * plan.queries - j * plan.keys
        query, key = self.positions_of(c, i, j)
        return places.Positions(query, key, positions.consecutive, offset)

    def _heads(self, table, c):
        """The rows of a block's query heads, of an array (H or 1, …)."""
        if table.shape[0] == 1:
            return table
        group = self.chunk(c)[1]
        return primitives.piece(table, 0, group * self.plan.repeats, self.plan.heads)

    def _between(self, between, arrays, c, i, j):
        """A bias by positions, for a block; all heads are in it."""
        query, key = self.positions_of(c, i, j)
        positions = self.task.positions
        # Arithmetic, which has no arrays, costs less than few distances and many copies.
        if arrays and between.by_distance and positions.consecutive and len(query.shape) == 1:
            return relative.by_distance(lambda i, j: between.function(i, j, *arrays), query, key)
        return between.function(*pairs(query, key), *arrays)

    def _mask(self, c, i, j):
        """The whole mask of a block, which broadcasts to (b, h, t, s), or None."""
        task, plan = self.task, self.plan
        parts = [self.cut_pairs(mask, c, i, j) for mask in self.held["masks"]]
        if task.pattern is not None:
            allowed = task.pattern(*self.positions_of(c, i, j))
            parts.append(allowed[None, None] if len(allowed.shape) == 2 else allowed[:, None])
        if self.held["segments"] is not None:
            query, key = (
                self.cut_integers(segments, c, place * size, size)
                for segments, place, size in zip(
                    self.held["segments"], (i, j), (plan.queries, plan.keys), strict=True
                )
            )
            parts.append(ops.equal(ops.expand_dims(query, (1, 3)), ops.expand_dims(key, (1, 2))))
        if self.padded_keys:
            place = j * plan.keys + ops.arange(plan.keys, dtype="int32")
            parts.append((place < self.keys)[None, None, None])
        mask = None
        for part in parts:
            mask = part if mask is None else ops.logical_and(mask, part)
        return mask

    def kept(self, shape, c, i, j):
        """Which weights of a block dropout keeps."""
        plan = self.plan
        place = (c * plan.query_blocks + i) * plan.key_blocks + j
        return primitives.kept(self.held["dropout"], place, shape, self.task.dropout)

    def dropped(self, weights, kept):
        """`weights` after dropout."""
        if kept is None:
            return weights
        return ops.where(kept, weights, 0.0) * (1 / (1 - self.task.dropout))


def attend(task):
    """The output (B, T, H, V) in float32 (float64 among float64), and L, (B, H, T).

    L is below `REACHED` for queries that no key was there for, whose output is zero.
    """
    wide = shapes.accumulation_dtype(task.query, task.key, task.value)
    batch, queries, heads, _ = primitives.shape(task.query)
    cut = plan(
        batch,
        heads,
        task.key.shape[2],
        queries,
        primitives.shape(task.key)[1],
        ELEMENTS[primitives.on_accelerator(task.query)],
        all_heads=bool(task.between),
        skips=_span(task) is not None and task.positions.consecutive,
    )
    shared = Blocks(task, cut, wide)
    extras = _extras(task, shared, wide)
    arrays = (
        # In this order, for transposing back and forth to cancel out.
        two_features(finite(shared.rows(ops.cast(task.query, wide)) * task.scale)),
        two_features(finite(shared.columns(ops.cast(task.key, wide)))),
        shared.columns(ops.cast(task.value, wide)),
        *extras,
    )

    def make(held):
        run = (_Single if cut.single else _Many)(shared.holding(held))
        return run.forward, run.backward

    output, normalizer = primitives.custom(make, arrays, shared.held, saves=cut.single)
    # (B, G, R, T', V) and (B, G, R, T', 1), T' a multiple of the block.
    length = cut.query_blocks * cut.queries
    output = ops.reshape(output, (batch, heads, length, task.value.shape[3]))
    normalizer = ops.reshape(normalizer, (batch, heads, length))
    if not (known(length, queries) and length == queries):
        output, normalizer = output[:, :, :queries], normalizer[:, :, :queries]
    return ops.transpose(output, (0, 2, 1, 3)), normalizer


def _span(task):
    """What is known of the pattern's reach, or None."""
    span = getattr(task.pattern, "span", None)
    span = span and span()
    return span if span and (span.left is not None or span.right is not None) else None


def _extras(task, shared, wide):
    """What else has a gradient: tables, biases, what biases by position are made of."""
    tables = []
    if task.relative_keys is not None:
        tables = [two_features(finite(ops.cast(task.relative_keys, wide)))]
    biases = [shared.fitted(bias) for bias in task.biases]
    weights = [array for between in task.between for array in between.arrays]
    values = [] if task.relative_values is None else [ops.cast(task.relative_values, wide)]
    return [*tables, *biases, *weights, *values]


def _balance(outputs, upstream):
    """The gradient of the output, and D less the gradient of L."""
    of_output, of_normalizer = upstream
    balance = ops.sum(of_output * outputs[0], axis=-1, keepdims=True) - of_normalizer
    return of_output, balance


def _add(buffer, place, array):
    """The buffer with an array added at a place."""
    return primitives.write(buffer, place, primitives.read(buffer, place) + array)


class _Pass:
    """One block, forward and backward."""

    def __init__(self, shared):
        self.shared = shared
        task = shared.task
        self.first_bias = 0 if task.relative_keys is None else 1
        self.last_bias = self.first_bias + len(task.biases)
        self.of_values = task.relative_values is not None

    def _place(self, n):
        """The chunk and the block of queries that come n-th."""
        count = self.shared.plan.query_blocks
        return (n, 0) if known(count) and count == 1 else (n // count, n % count)

    def extras_of(self, extras, c, i, j):
        """`extras` for the scores of a block: biases cut, tables and weights whole."""
        extras = extras[:-1] if self.of_values else extras
        return [
            self.shared.cut_pairs(extra, c, i, j)
            if self.first_bias <= place < self.last_bias
            else extra
            for place, extra in enumerate(extras)
        ]

    def weighted(self, weights, value, extras, c, i, j):
        """Values, and embeddings of distances, summed by the weights of a block."""
        output = product(weights, value)
        if self.of_values:
            output = output + self.shared.relative_values(weights, extras[-1], c, i, j)
        return output

    def gradients(self, block, weights, extras, of_output, balance, kept, c, i, j):
        """Gradients of query, (K, s) of key and (V, s) of value, and of the extras.

        `block` is query, key and value of the block.
        """
        query, key, value = block
        shared = self.shared
        dropped = shared.dropped(weights, kept)
        of_weights = product(of_output, value, flip_second=True)
        of_table = ()
        if self.of_values:
            _, pull = primitives.pullback(
                lambda weights, table: shared.relative_values(weights, table, c, i, j),
                (dropped, extras[-1]),
            )
            more, *of_table = pull(of_output)
            of_weights = of_weights + more
        of_scores = weights * (shared.dropped(of_weights, kept) - balance)
        of_query, of_key, of_extras = shared.scores_back(
            of_scores, query, key, self.extras_of(extras, c, i, j), c, i, j
        )
        of_value = product(of_output, dropped, flip_first=True)
        return of_query, of_key, of_value, [*of_extras, *of_table]


class _Single(_Pass):
    """All in one block. Its weights are kept for the gradient."""

    def forward(self, query, key, value, *extras):
        shared = self.shared
        rows, columns, values = (
            shared.cut_rows(query, 0, 0),
            shared.cut_columns(key, 0, 0),
            shared.cut_columns(value, 0, 0),
        )
        logits = shared.scores(rows, columns, self.extras_of(extras, 0, 0, 0), 0, 0, 0)
        largest = ops.max(logits, axis=-1, keepdims=True)
        weights = ops.exp(logits - largest)
        total = ops.sum(weights, axis=-1, keepdims=True)
        normalizer = largest + ops.log(total)
        # Of the sums that follow, which have fewer numbers, rather than of the weights.
        share = 1.0 / total
        if shared.restricted:
            share = ops.where(largest > REACHED, share, 0.0)
        dropped = weights
        if shared.task.dropout:
            dropped = shared.dropped(weights, shared.kept(primitives.shape(weights), 0, 0, 0))
        output = self.weighted(dropped, values, extras, 0, 0, 0) * share
        shape = primitives.shape(query)[:4]
        output = ops.reshape(output, (*shape, value.shape[-1]))
        return (output, ops.reshape(normalizer, (*shape, 1))), (weights, share)

    def backward(self, arrays, outputs, saved, upstream):
        shared, (weights, share) = self.shared, saved
        query, key, value, *extras = arrays
        of_output, balance = _balance(outputs, upstream)
        rows, columns, values, of_output, balance = (
            shared.cut_rows(query, 0, 0),
            shared.cut_columns(key, 0, 0),
            shared.cut_columns(value, 0, 0),
            shared.cut_rows(of_output, 0, 0),
            shared.cut_rows(balance, 0, 0),
        )
        kept = None
        if shared.task.dropout:
            kept = shared.kept(primitives.shape(weights), 0, 0, 0)
        of_query, of_key, of_value, of_extras = self.gradients(
            (rows, columns, values),
            weights,
            extras,
            of_output * share,
            balance * share,
            kept,
            0,
            0,
            0,
        )
        return (
            ops.reshape(of_query, primitives.shape(query)),
            ops.swapaxes(of_key, -1, -2),
            ops.swapaxes(of_value, -1, -2),
            *of_extras,
        )


class _Many(_Pass):
    """A block after the other."""

    def forward(self, query, key, value, *extras):
        shared, plan, wide = self.shared, self.shared.plan, self.shared.wide
        together = (plan.batch, plan.groups, plan.repeats * plan.queries)
        size = value.shape[-1]

        def queries(n, carry):
            outputs, normalizers = carry
            c, i = self._place(n)
            rows = shared.cut_rows(query, c, i)

            def keys(j, carry):
                logits = shared.scores(
                    rows, shared.cut_columns(key, c, j), self.extras_of(extras, c, i, j), c, i, j
                )
                largest = ops.max(logits, axis=-1, keepdims=True)
                if carry is not None:
                    # Not by `maximum`, which Keras has in float32 among float64 on PyTorch.
                    largest = ops.where(largest < carry[0], carry[0], largest)
                weights = ops.exp(logits - largest)
                total = ops.sum(weights, axis=-1, keepdims=True)
                if shared.task.dropout:
                    kept = shared.kept(primitives.shape(weights), c, i, j)
                    weights = shared.dropped(weights, kept)
                values = shared.cut_columns(value, c, j)
                output = self.weighted(weights, values, extras, c, i, j)
                if carry is None:
                    return largest, total, output
                shrunk = ops.exp(carry[0] - largest)
                return largest, carry[1] * shrunk + total, carry[2] * shrunk + output

            if known(plan.key_blocks) and plan.key_blocks == 1:
                largest, total, output = keys(0, None)
            else:
                start = (
                    ops.full((*together, 1), MASKED, dtype=wide),
                    ops.zeros((*together, 1), dtype=wide),
                    ops.zeros((*together, size), dtype=wide),
                )
                largest, total, output = primitives.loop(*shared.reach(i), keys, start)
            if not shared.restricted:
                normalizer = largest + ops.log(total)
                return (
                    primitives.write(outputs, n, output / total),
                    primitives.write(normalizers, n, normalizer),
                )
            reached = largest > REACHED
            total = ops.where(reached, total, 1.0)
            output = ops.where(reached, output / total, 0.0)
            normalizer = ops.where(reached, largest + ops.log(total), MASKED)
            return (
                primitives.write(outputs, n, output),
                primitives.write(normalizers, n, normalizer),
            )

        count = plan.chunks * plan.query_blocks
        outputs = primitives.buffer(count, (*together, size), wide, filled=False)
        normalizers = primitives.buffer(count, (*together, 1), wide, filled=False)
        outputs, normalizers = primitives.loop(0, count, queries, (outputs, normalizers))
        return (self._of_rows(outputs, size), self._of_rows(normalizers, 1)), ()

    def backward(self, arrays, outputs, saved, upstream):
        shared, plan, wide = self.shared, self.shared.plan, self.shared.wide
        query, key, value, *extras = arrays
        self.bias_counts = {
            place: self._counts(extra) for place, extra in enumerate(extras) if self._is_bias(place)
        }
        of_output, balance = _balance(outputs, upstream)
        # Zero weights for queries without keys, and for what fills the last block.
        normalizer = ops.where(outputs[1] > REACHED, outputs[1], -MASKED)
        together = (plan.batch, plan.groups, plan.repeats * plan.queries)

        def queries(n, carry):
            c, i = self._place(n)
            rows, of_rows, balances, normalizers = (
                shared.cut_rows(x, c, i) for x in (query, of_output, balance, normalizer)
            )

            def keys(j, carry):
                of_query, of_keys, of_values, of_extras = carry
                columns, values = (shared.cut_columns(x, c, j) for x in (key, value))
                cut = self.extras_of(extras, c, i, j)
                logits = shared.scores(rows, columns, cut, c, i, j)
                # Never above 0, but for the rounding of huge scores, whose power would be infinite.
                weights = ops.exp(ops.clip(logits - normalizers, 2 * MASKED, 0.0))
                kept = None
                if shared.task.dropout:
                    kept = shared.kept(primitives.shape(weights), c, i, j)
                of_row, of_key, of_value, found = self.gradients(
                    (rows, columns, values), weights, extras, of_rows, balances, kept, c, i, j
                )
                place = c * plan.key_blocks + j
                return (
                    of_query + of_row,
                    _add(of_keys, place, of_key),
                    _add(of_values, place, of_value),
                    self._gathered(extras, of_extras, found, c, i, j),
                )

            of_queries, of_keys, of_values, of_extras = carry
            start = ops.zeros((*together, query.shape[-1]), dtype=wide)
            start = (start, of_keys, of_values, of_extras)
            if known(plan.key_blocks) and plan.key_blocks == 1:
                of_query, *rest = keys(0, start)
            else:
                of_query, *rest = primitives.loop(*shared.reach(i), keys, start)
            return (primitives.write(of_queries, n, of_query), *rest)

        count, columns = plan.chunks * plan.query_blocks, plan.chunks * plan.key_blocks
        few = (plan.batch, plan.groups)
        carry = (
            primitives.buffer(count, (*together, query.shape[-1]), wide, filled=False),
            primitives.buffer(columns, (*few, key.shape[-1], plan.keys), wide),
            primitives.buffer(columns, (*few, value.shape[-1], plan.keys), wide),
            self._room(extras),
        )
        of_queries, of_keys, of_values, of_extras = primitives.loop(0, count, queries, carry)
        return (
            self._of_rows(of_queries, query.shape[-1]),
            self._of_columns(of_keys, key.shape[-1]),
            self._of_columns(of_values, value.shape[-1]),
            *self._of_extras(extras, of_extras),
        )

    def _of_rows(self, buffer, size):
        """(B, G, R, T', K) of the blocks of queries."""
        plan = self.shared.plan
        found = ops.reshape(
            primitives.stack(buffer),
            (
                plan.batches,
                plan.groupings,
                plan.query_blocks,
                plan.batch,
                plan.groups,
                plan.repeats,
                plan.queries,
                size,
            ),
        )
        return ops.reshape(
            ops.transpose(found, (0, 3, 1, 4, 5, 2, 6, 7)),
            (
                plan.batches * plan.batch,
                plan.groupings * plan.groups,
                plan.repeats,
                plan.query_blocks * plan.queries,
                size,
            ),
        )

    def _of_columns(self, buffer, size):
        """(B, G, S', K) of the blocks (K, s) of keys."""
        plan = self.shared.plan
        found = ops.reshape(
            primitives.stack(buffer),
            (
                plan.batches,
                plan.groupings,
                plan.key_blocks,
                plan.batch,
                plan.groups,
                size,
                plan.keys,
            ),
        )
        return ops.reshape(
            ops.transpose(found, (0, 3, 1, 4, 2, 6, 5)),
            (
                plan.batches * plan.batch,
                plan.groupings * plan.groups,
                plan.key_blocks * plan.keys,
                size,
            ),
        )

    # Gradients of what is added to scores: of biases in blocks, of all else as a sum

    def _is_bias(self, place):
        return self.first_bias <= place < self.last_bias

    def _counts(self, bias):
        """How many blocks a bias is cut in along each axis, None where the axis is 1."""
        plan = self.shared.plan
        counts = (plan.batches, plan.groupings, plan.query_blocks, plan.key_blocks)
        return [
            None if size == 1 else count for size, count in zip(bias.shape, counts, strict=True)
        ]

    def _room(self, extras):
        """Zeros for the gradients of the extras: an array, or for a bias a buffer of blocks."""
        plan, room = self.shared.plan, []
        sizes = (plan.batch, plan.heads, plan.queries, plan.keys)
        for place, extra in enumerate(extras):
            if self._is_bias(place):
                count = 1
                for axis in self.bias_counts[place]:
                    count = count if axis is None else count * axis
                block = [
                    1 if size == 1 else whole
                    for size, whole in zip(extra.shape, sizes, strict=True)
                ]
                room.append(primitives.buffer(count, block, self._wider(extra)))
            else:
                room.append(ops.zeros_like(extra, dtype=self._wider(extra)))
        return tuple(room)

    def _wider(self, extra):
        """The dtype that gradients of an extra are added up in."""
        dtype = keras.backend.standardize_dtype(extra.dtype)
        return dtype if dtype == "float64" else self.shared.wide

    def _gathered(self, extras, of_extras, found, c, i, j):
        """The gradients so far and those of one more block."""
        plan, gathered = self.shared.plan, []
        at = (c // plan.groupings, c % plan.groupings, i, j)
        for place, (so_far, new, extra) in enumerate(zip(of_extras, found, extras, strict=True)):
            if self._is_bias(place):
                index = 0
                for count, here in zip(self.bias_counts[place], at, strict=True):
                    index = index if count is None else index * count + here
                gathered.append(_add(so_far, index, ops.cast(new, self._wider(extra))))
            else:
                gathered.append(so_far + ops.cast(new, so_far.dtype))
        return tuple(gathered)

    def _of_extras(self, extras, found):
        """The gradients of the extras, each in its own shape."""
        gradients = []
        for place, (extra, of_extra) in enumerate(zip(extras, found, strict=True)):
            if self._is_bias(place):
                blocks = primitives.stack(of_extra)
                counts = [1 if count is None else count for count in self.bias_counts[place]]
                blocks = ops.reshape(blocks, (*counts, *primitives.shape(blocks)[1:]))
                blocks = ops.transpose(blocks, (0, 4, 1, 5, 2, 6, 3, 7))
                of_extra = ops.reshape(blocks, primitives.shape(extra))
            gradients.append(ops.cast(of_extra, extra.dtype))
        return gradients
