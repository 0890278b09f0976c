"""Caches: keys and values of earlier tokens, passed to calls and returned by them.

A cache of self-attention is `{"key": (B, G, C, K), "value": (B, G, C, V), "index": (B,)}`, where
`index` counts the tokens of each row so far. It has only real tokens, without gaps, so rows
of unequal length need no mask: the token at position p is entry p mod C. If C is the longest
sequence, that is entry p. If it is shorter, the cache is a ring of the last C tokens. A ring with
spare entries, of which tokens can be taken back, has "reached": (B,), the largest index so far.

A beginning that all rows share is stored once: "shared_key": (1, G, P, K) and "shared_value":
(1, G, P, V) are its tokens, P of them, and entry p of a row is then the token at position P + p.

Without "value", the keys are the values too. Those of int8 are multiples of a number for each head
and token, "key_scale" and "value_scale": (B, G, C, 1).

The memory of cross-attention is `{"key": (B, G, S, K), "value": (B, G, S, V), "mask": (B, S)}`,
which never changes.

A state is `{"state": (B, G, K', V'), "index": (B,)}`: sums over all tokens, of constant size. If
heads are convolved along the sequence, it has the inputs of the last tokens too, "last" (B, N, F).

A `Layout` is a layer's interface to either. To add one, add it to the layer's `layouts`, and write
a function that makes its dictionary.

Heads come before entries, unlike everywhere else: so all that a head reads for one more token
is contiguous, and the matrix products of a step need no transpose.
"""

import typing

import keras
import numpy as np
from keras import ops

from keras_attention.backend import backend
from keras_attention.core import keras_private
from keras_attention.kernels.linear_time.recurrence import NOTHING
from keras_attention.kernels.sparse import merge
from keras_attention.sequences import masks, sequence, shapes
from keras_attention.spec import Positions, padded


def make(batch_size, arrays, dtype, spare=0):
    """An empty cache: arrays of these shapes by name, before which comes the batch axis.

    With `spare`, it is a ring that has so many more entries than the window.
    """
    check_rows("batch_size", batch_size)
    for name, shape in arrays.items():
        shapes.check_memory(name, shape)
    dtype = keras.backend.standardize_dtype(dtype)
    if "float" not in dtype and dtype != "int8":
        raise ValueError(f"`dtype` of a cache must be one of floats, or int8. Received: {dtype!r}")
    of_kind = {dtype: arrays}
    if dtype == "int8":
        # bfloat16 has the range of float32, and rounding a scale is no error of its multiples.
        of_kind["bfloat16"] = {_scale(name): (*shape[:-1], 1) for name, shape in arrays.items()}
    of_kind["int32"] = dict.fromkeys(("index", "reached") if spare else ("index",), ())
    return {
        name: ops.full((batch_size, *shape), _nothing(name), kind)
        for kind, found in of_kind.items()
        for name, shape in found.items()
    }


def check_rows(name, rows):
    """Raises unless a number of rows is a count, or a tensor."""
    if isinstance(rows, (bool, int, float)):
        shapes.check_count(name, rows, minimum=0)


def _scale(name):
    return f"{name}_scale"


# Before the names of arrays of tokens that all rows share. Their number is a multiple of this, so
# that a program of one beginning serves others of nearly the same length.
_SHARED, SHARED_MULTIPLE = "shared_", 64
# Before the names of arrays of blocks of tokens.
_BLOCK = "block_"


def slots(length, spare, window):
    """The entries of a cache of `length` tokens, and how many of them are spare."""
    length = shapes.check_count("length", length)
    spare = shapes.check_count("spare", spare, minimum=0)
    if window is None or length < window:
        return length, 0
    return min(length, window + spare), spare


def layout(cache, layouts, window):
    """The one of a layer's `layouts` that a cache has; `window` is that of the layer, or None.

    Raises ValueError if it has none of them.
    """
    names = cache.keys() if isinstance(cache, dict) else None
    for layout in layouts:
        if names == layout.arrays.keys():
            # The number of entries may be unknown in a graph: a ring is correct for any.
            count = entries(cache)
            if not layout.forgets or (window is not None and (count is None or count >= window)):
                return layout
    context = ", or what `cache_context` gave, of 'key', 'value' and 'mask'"
    raise ValueError(
        f"`cache` must be what `make_cache` or a call gave, a dict of {list(layouts[-1].arrays)}"
        f"{context if CONTEXT in layouts else ''}. "
        f"Received: {type(cache).__name__ if names is None else sorted(names)}"
    )


def check(cache, layout, batch, heads, *sizes):
    """Raises unless the arrays of a cache have these sizes, None being any, and their dtypes."""
    expected = layout.shapes(batch, entries(cache), heads, *sizes)
    for name, kind in layout.arrays.items():
        found = tuple(cache[name].shape)
        if found != expected[name] and not shapes.may_equal(found, expected[name]):
            raise ValueError(
                f"`cache[{name!r}]` must be of shape {expected[name]}, None being any size. "
                f"Received: {found}"
            )
        dtype = keras.backend.standardize_dtype(cache[name].dtype)
        if kind not in dtype:
            raise TypeError(f"`cache[{name!r}]` must be of a dtype {kind}. Received: {dtype}")


def entries(cache):
    """The number of entries if it is known, or None, as for a state, which has none."""
    return (*tuple(cache["key"].shape)[2:3], None)[0] if "key" in cache else None


def cut(cache, layout, length, window):
    """The cache of at most the first `length` tokens of each row, an integer or (B,)."""
    if isinstance(length, (bool, int, float)):
        length = shapes.check_count("length", length, minimum=0)
    length = ops.convert_to_tensor(length)
    if "int" not in keras.backend.standardize_dtype(length.dtype):
        raise TypeError(f"`length` must be integers. Received: dtype {length.dtype}")
    if len(length.shape) > 0:
        shapes.check_rank("length", length, 1, "(batch,)")
        shapes.check_same("Rows", cache=cache["index"].shape[0], length=length.shape[0])
    index = ops.minimum(ops.maximum(ops.cast(length, "int32"), 0), cache["index"])
    return layout.cut(cache, index, window)


def emptied(caches):
    """Caches of the same arrays, without tokens."""
    return [{name: ops.full_like(x, _nothing(name)) for name, x in c.items()} for c in caches]


def _nothing(name):
    """What an array of this name has before any token: of exponents, the largest of none."""
    return NOTHING if name == "largest" else 0


def is_context(cache):
    """Whether a cache is a result of `cache_context`."""
    return cache.keys() == CONTEXT.arrays.keys()


def length(cache):
    """The number of entries of a cache; a tensor if it is unknown in a graph."""
    return backend.shape(cache["key"])[2]


def room(cache):
    """How many tokens a row can have, or None if that is unknown or of no cache of tokens."""
    found = entries(cache)
    return None if found is None else found + _shared_length(cache)


def _shared_length(cache):
    return cache[f"{_SHARED}key"].shape[2] if f"{_SHARED}key" in cache else 0


def context(key, value, mask):
    """The cache of cross-attention, of keys (B, S, G, K) and values (B, S, G, V)."""
    return {"key": _transposed(key), "value": _transposed(value), "mask": mask}


def read(cache, dtype):
    """Value (B, C, G, V) and key (B, C, G, K) of a cache, in a dtype."""
    key = _read(cache, "key", dtype)
    return _read(cache, "value", dtype) if "value" in cache else key, key


def _read(cache, name, dtype):
    """The heads (B, C, G, K) of a cache's array of this name."""
    scale = cache.get(_scale(name))
    if scale is None:
        return _transposed(ops.cast(cache[name], dtype))
    # In float32, which is quicker on CPUs, and where a kernel casts them again, a program does not.
    found, scale = (ops.cast(x, shapes.full_precision(dtype)) for x in (cache[name], scale))
    return _transposed(ops.cast(found * scale, dtype))


def _stored(cache, name, heads):
    """Heads by the names of the arrays that a cache has for them."""
    if _scale(name) not in cache:
        return {name: heads}
    heads = ops.cast(heads, shapes.full_precision(heads.dtype))
    # Below 127 by as much as a scale of bfloat16 may be too small.
    scale = ops.max(ops.abs(heads), axis=-1, keepdims=True) / 126.5
    scale = ops.cast(scale, cache[_scale(name)].dtype)
    steps = ops.round(heads / ops.maximum(ops.cast(scale, heads.dtype), 1e-30))
    return {name: steps, _scale(name): scale}


def _transposed(array):
    """Heads before entries, or back. A compiled program eliminates two transposes in a row."""
    return ops.transpose(array, (0, 2, 1, 3))


def specs(cache):
    """Symbols of the shapes and dtypes of a cache."""
    return {name: keras.KerasTensor(x.shape, dtype=x.dtype) for name, x in cache.items()}


def positions(index, length, mask=None):
    """Positions of new tokens, (B, T). Padding, which is not stored, shares a token's position."""
    first = ops.expand_dims(index, 1)
    if isinstance(length, int) and length == 1:
        return first
    return first + (ops.arange(length, dtype="int32") if mask is None else sequence.ranks(mask))


def end(index, length, mask=None):
    """The index after writing new tokens, (B, T)."""
    if mask is None:
        return index + length
    # JAX's sum of int32 is int64 where it has that.
    return index + ops.cast(ops.sum(ops.cast(mask, "int32"), axis=1), "int32")


def stored_positions(index, length):
    """The positions of the stored tokens, (B, C); negative for empty entries."""
    last = index[:, None] - 1
    return last - ops.mod(last - ops.arange(length, dtype="int32"), length)


class Layout:
    """How the arrays of a cache store keys and values, and how a call of a layer updates them.

    Args:
        **arrays: those of the dictionary, and substrings of their dtypes' names.
    """

    # Whether a call appends its tokens; whether these overwrite old ones; whether all keys and
    # values are in the cache before the call; whether it has sums of tokens instead of tokens.
    appends = forgets = is_memory = is_state = False
    # Whether a call encodes its keys by a position that can, before it appends them.
    encodes = True

    def __init__(self, **arrays):
        self.arrays = arrays

    def shapes(self, batch, slots, heads, *sizes):
        """The shape of each array, by name."""
        of_names = dict(
            zip(("key", "value", "key_scale", "value_scale"), (*sizes, 1, 1), strict=False)
        )
        own = {name: (batch, heads, slots, size) for name, size in of_names.items()}
        shared = {f"{_SHARED}{name}": (None, heads, None, size) for name, size in of_names.items()}
        blocks = {f"{_BLOCK}{name}": (batch, None, None, size) for name, size in of_names.items()}
        numbers = dict.fromkeys(("index", "reached"), (batch,))
        return own | shared | blocks | numbers | {"mask": (batch, slots)}

    def update(self, layer, cache, key, value, mask):
        """The next cache, and what a call attends to: (cache, key, value, positions, mask, lost).

        Args:
            key, value: of new tokens, (B, T, G, K) and (B, T, G, V).
            mask: (B, T), which of them are real, the first; None for all.

        The returned `key` (B, S, G, K) and `value` are those to attend to, in the layer's compute
        dtype, at `positions` (S,) or (B, S), None counting from 0. `mask` (B, S) marks filled
        entries, None meaning all that a causal query may see. `lost` (B,) marks rows with tokens
        that did not fit, or is None.
        """
        raise TypeError(f"{type(self).__name__} must implement `update`.")

    def cut(self, cache, index, window):
        """The cache of the first tokens of each row, so many as `index` (B,) says.

        Args:
            window: how many tokens up to and including itself a query sees, or None for all.
        """
        raise ValueError(
            "Tokens can be taken back from a cache that stores them, which `make_cache` or a call "
            "gave. A state is their sum: keep the cache from before them, or read the text anew. "
            f"Received: a cache of {sorted(cache)}"
        )

    def grown(self, cache, slots, spare):
        """The cache with at least so many entries, `spare` of them if it is a ring then."""
        return cache

    def repeated(self, layer, cache, rows):
        """The cache of so many rows that each have the tokens of its only one."""
        return {name: ops.repeat(x, rows, axis=0) for name, x in cache.items()}

    def extend(self, layer, cache, x):
        """The `Extended` of a call: its own tokens after those of the cache."""
        query, key, value, *gates = layer.split_all(x, layer.heads.cached)
        mask = x.key_mask
        if mask is not None:
            mask = ops.broadcast_to(mask, ops.shape(query)[:2])
        of_query = positions(cache["index"], backend.shape(query)[1], mask)
        is_encoded = False
        if self.encodes:
            # New keys alone: encoding all of them again would cost each step more than attention.
            at = of_query if x.positions is None else x.positions[0]
            query, key, is_encoded = encoded(layer, query, key, at, at)
        cache, key, every, of_key, mask, lost = self.update(layer, cache, key, value, mask)
        if of_key is None:
            of_key = ops.arange(backend.shape(key)[1], dtype="int32")
        found = of_entries(query, key, every, of_query, of_key, mask, x.query_mask)
        of_call = {"encoded": is_encoded, "gates": gates, "new_value": value}
        return found._replace(cache=cache, lost=lost, **of_call)


class Extended(typing.NamedTuple):
    """The heads of a call, and what is known of them.

    Args:
        query, key, value: (B, T, H, K), (B, S, G, K) and (B, S, G, V).
        positions: their `Positions`.
        masks: of pairs, as in an `AttentionSpec`.
        key_mask: (B, S), the padding of the keys, which is among the masks; or None.
        cache: the next one, or None without any.
        lost: (B,), rows with tokens that did not fit into it, or None.
        encoded: whether the position has encoded query and key.
        gates: what a layer's heads have beside the three.
        earlier: what `attend` takes for keys that all rows share, by name, or None.
        new_value: the values of the tokens that the call appends to a cache, or None.
    """

    query: typing.Any
    key: typing.Any
    value: typing.Any
    positions: Positions
    masks: tuple
    key_mask: typing.Any = None
    cache: typing.Any = None
    lost: typing.Any = None
    encoded: bool = False
    gates: typing.Sequence = ()
    earlier: dict | None = None
    new_value: typing.Any = None


def encoded(layer, query, key, of_query, of_key):
    """Query and key by the layer's position, and whether it encodes each by its own alone."""
    if layer.position is None or not layer.position.encodes_alone:
        return query, key, False
    with keras_private.uncast_variables():
        return *layer.position.encode(query, key, of_query, of_key), True


def of_entries(query, key, value, of_query, of_key, mask, query_mask):
    """The `Extended` of heads of a cache, of which `mask` marks the entries that have a token."""
    filled = None if mask is None else ops.expand_dims(mask, (1, 2))
    found = masks.of_pairs(query_mask, mask, None)
    at = Positions(of_query, of_key, consecutive=False, own=True, filled=filled)
    return Extended(query, key, value, at, found, mask)


def with_shared(found, query_mask, key, value):
    """An `Extended` after keys and values that all rows share, (1, S, G, K) and (1, S, G, V)."""
    # The queries of all rows are those of one, whose keys are read once.
    rows = found.query, found.positions.query, query_mask
    query, at, mask = (None if y is None else ops.reshape(y, (1, -1, *y.shape[2:])) for y in rows)
    keys = ops.arange(key.shape[1], dtype="int32")
    at, pairs = Positions(at, keys, consecutive=False), masks.of_pairs(mask, None, None)
    earlier = {"query": query, "key": key, "value": value, "positions": at, "masks": pairs}
    return found._replace(earlier=earlier)


# The layout of a call without a cache, which attends to the keys and values that it is given.
UNCACHED = Layout()


class Context(Layout):
    """The keys and values of cross-attention, which never change."""

    is_memory = True

    def extend(self, layer, cache, x):
        value, key = read(cache, layer.compute_dtype)
        found = layer.extended(x, (layer.split(x.query, "query"), key, value))
        return found._replace(cache=cache)


class Full(Layout):
    """All tokens so far: the one at position p is entry p."""

    appends = True

    def update(self, layer, cache, key, value, mask):
        after = end(cache["index"], backend.shape(key)[1], mask)
        lost = overflow(after, backend.shape(cache["key"])[2])
        cache = append(cache, key, value, mask, after)
        value, key = read(cache, layer.compute_dtype)
        if layer.position is None or not layer.position.needs_length:
            # Empty entries come after every token, where no causal query sees them.
            return cache, key, value, None, None, lost
        # The length is that of the tokens so far, not of all entries.
        at = stored_positions(cache["index"], length(cache))
        return cache, key, value, at, at >= 0, lost

    def cut(self, cache, index, window):
        # What stands in the entries after the index is never seen.
        return {**cache, "index": index}

    def grown(self, cache, slots, spare):
        more = slots - length(cache)
        if isinstance(more, int) and more <= 0:
            return cache
        arrays = cache.items()
        found = {name: x if len(x.shape) == 1 else padded(x, 2, 0, more) for name, x in arrays}
        return {**found, "reached": cache["index"]} if spare else found

    def repeated(self, layer, cache, rows):
        index = shapes.visible_values(cache["index"])
        count = 0 if index is None else int(index[0]) // SHARED_MULTIPLE * SHARED_MULTIPLE
        if not (layer.traits.merges and count and isinstance(rows, int) and rows > 1):
            return super().repeated(layer, cache, rows)
        arrays = {name: x for name, x in cache.items() if name != "index"}
        shared = {f"{_SHARED}{name}": x[:, :, :count] for name, x in arrays.items()}
        # At least one entry, as of any cache.
        last = max(int(index[0]), count + 1)
        own = {name: x[:, :, count:last] for name, x in arrays.items()}
        own = {name: padded(x, 2, 0, last - count - x.shape[2]) for name, x in own.items()}
        return shared | super().repeated(layer, own | {"index": cache["index"]}, rows)


class Shared(Full):
    """All tokens so far, of which the first are those of every row."""

    def update(self, layer, cache, key, value, mask):
        shared, own = _apart(cache)
        count = _shared_length(cache)
        own["index"] = own["index"] - count
        own, key, value, at, filled, lost = super().update(layer, own, key, value, mask)
        own["index"] = own["index"] + count
        at = count + ops.arange(backend.shape(key)[1], dtype="int32")
        return shared | own, key, value, at, filled, lost

    def extend(self, layer, cache, x):
        found = super().extend(layer, cache, x)
        shared = {name.removeprefix(_SHARED): y for name, y in _apart(cache)[0].items()}
        value, key = (y[:1] for y in read(shared, layer.compute_dtype))
        return with_shared(found, x.query_mask, key, value)

    def cut(self, cache, index, window):
        count = _shared_length(cache)
        lost = index < count
        if np.any(shapes.visible_values(lost)):
            raise ValueError(
                f"The first {count} tokens of this cache are shared by all rows, and cannot be "
                "taken from some: cut the cache before `repeat_cache`. Received: rows to be cut to "
                f"{shapes.visible_values(index).tolist()} tokens"
            )
        # Of no token that fits: the output of such a row is NaN.
        return {**cache, "index": ops.where(lost, 2**30, index)}

    def grown(self, cache, slots, spare):
        shared, own = _apart(cache)
        return shared | super().grown(own, slots - _shared_length(cache), spare)

    def repeated(self, layer, cache, rows):
        shared, own = _apart(cache)
        return shared | Layout.repeated(self, layer, own, rows)


def _apart(cache, prefix=_SHARED):
    """The arrays whose names begin by that of a kind, and the others: shared ones, by default."""
    shared = {name: x for name, x in cache.items() if name.startswith(prefix)}
    return shared, {name: x for name, x in cache.items() if name not in shared}


def merged(earlier, own):
    """One result of two: over keys that all rows share, (1, B · T, …), and over those of a row."""
    batch, _, heads, _ = sizes = ops.shape(own.output)

    def of_rows(array):
        split = ops.reshape(array, (heads, batch, -1, *array.shape[3:]))
        return ops.moveaxis(split, 0, 1)

    parts = [(ops.reshape(earlier.output, sizes), of_rows(earlier.lse)), (own.output, own.lse)]
    output, lse = merge.merge(parts)
    result = own.replace(output=output)
    if own.weights is None:
        return result
    pairs = zip((of_rows(earlier.weights), own.weights), parts, strict=True)
    weights = [x * ops.cast(ops.exp(y[1] - lse), x.dtype)[..., None] for x, y in pairs]
    return result.replace(weights=ops.concatenate(weights, axis=-1))


class Blocks(Full):
    """All tokens so far, and what a layer makes of blocks of the first third of their heads."""

    encodes = False

    def __init__(self, size, stride, **arrays):
        super().__init__(**arrays)
        self.size, self.stride = size, stride

    def extend(self, layer, cache, x):
        blocks, own = _apart(cache, _BLOCK)
        found, groups = super().extend(layer, own, x), layer.heads.groups
        ends = own["index"], found.cache["index"]
        first, last = (ops.maximum((n - self.size) // self.stride + 1, 0) for n in ends)
        # No more blocks can end in these tokens.
        most = backend.shape(x.query)[1] // self.stride + 1
        at = ops.arange((most - 1) * self.stride + self.size, dtype="int32")
        at = ops.minimum(first[:, None] * self.stride + at, backend.shape(found.key)[1] - 1)
        key, value = (y[:, :, :groups] for y in (found.key, found.value))
        key, value = (ops.take_along_axis(y, at[..., None, None], 1) for y in (key, value))
        key, value = layer._compressed("key", key), layer._compressed("value", value)
        blocks = {name.removeprefix(_BLOCK): x for name, x in blocks.items()} | {"index": first}
        ended = first[:, None] + ops.arange(most, dtype="int32") < last[:, None]
        blocks = append(blocks, key, value, ended, last)
        value, key = read(blocks, layer.compute_dtype)
        cache = {f"{_BLOCK}{name}": x for name, x in blocks.items() if name != "index"}
        return found._replace(cache=found.cache | cache, gates=[*found.gates, key, value])

    def grown(self, cache, slots, spare):
        blocks, own = _apart(cache, _BLOCK)
        more = slots // self.stride + 1
        blocks = {n: padded(x, 2, 0, max(0, more - x.shape[2])) for n, x in blocks.items()}
        return super().grown(own, slots, spare) | blocks


class Ring(Full):
    """The last C tokens: the one at position p is entry p mod C."""

    forgets = True

    def update(self, layer, cache, key, value, mask):
        dtype = layer.compute_dtype
        slots, count, lost = length(cache), backend.shape(key)[1], None
        if entries(cache) is None:
            # A number of entries that is unknown in the graph may be too small for a ring.
            after = end(cache["index"], count, mask)
            lost = ops.logical_and(after > slots, slots < layer.traits.window)
        after = append(cache, key, value, mask)
        if key.shape[1] == 1:
            value, key = read(after, dtype)
            at = stored_positions(after["index"], slots)
            return after, key, value, at, at >= 0, lost
        # The first of several tokens may see entries that the last ones overwrite.
        old_value, old_key = read(cache, dtype)
        at, new = stored_positions(cache["index"], slots), positions(cache["index"], count, mask)
        real = ops.ones_like(new, dtype="bool") if mask is None else mask
        key = ops.concatenate([ops.cast(old_key, key.dtype), key], axis=1)
        if value is not None:
            value = ops.concatenate([old_value, ops.cast(value, old_value.dtype)], axis=1)
        seen, at = ops.concatenate([at >= 0, real], axis=1), ops.concatenate([at, new], axis=1)
        return after, key, key if value is None else value, at, seen, lost

    def cut(self, cache, index, window):
        slots, reached = length(cache), cache.get("reached")
        if reached is None:
            # Once a token is overwritten, it is not known how many are.
            reached, first = cache["index"], ops.where(index < cache["index"], 0, index)
        else:
            first = ops.maximum(index - window + 1, 0)
            cache = {**cache, "reached": ops.where(index > 0, reached, 0)}
        # Whether the next query would see a token that another has overwritten.
        lost = first < ops.minimum(reached - slots, index)
        seen = shapes.visible_values(lost)
        if seen is None:
            # Its output is NaN: so is the value before it.
            name = "value" if "value" in cache else "key"
            name = _scale(name) if _scale(name) in cache else name
            row = ops.full_like(cache[name][:, :, :1], float("nan"))
            at = _rows(cache[name], index - 1)
            cache = {**cache, name: _write_one(cache[name], row, at, lost)}
        elif seen.any():
            had, wanted = (shapes.visible_values(x).tolist() for x in (cache["index"], index))
            raise ValueError(
                f"This cache of a window of {window} tokens has {slots} entries, and later tokens "
                "took the places of those that are needed again: pass as `spare` of `make_cache` "
                f"how many may be taken back. Received: {had} tokens in the rows, to be cut to "
                f"{wanted}"
            )
        return super().cut(cache, index, window)

    # Rows may have any number of tokens.
    grown = Layout.grown


class State(Layout):
    """Sums over all tokens so far, of constant size, to which a call's own tokens are added."""

    appends = is_state = True

    def shapes(self, batch, slots, heads, *sizes):
        return {**{name: (batch, *shape) for name, shape in sizes[0].items()}, "index": (batch,)}

    def update(self, layer, cache, key, value, mask):
        after = end(cache["index"], backend.shape(key)[1], mask)
        return {**cache, "index": after}, key, value, None, mask, None


CONTEXT = Context(key="float", value="float", mask="bool")


def _kinds(*names):
    """The arrays of caches with these names: of multiples, and of floats."""
    scaled = dict.fromkeys(names, "int8") | dict.fromkeys(map(_scale, names), "float")
    return [arrays | {"index": "int32"} for arrays in (scaled, dict.fromkeys(names, "float"))]


def _layouts(*names):
    """The layouts of caches with these arrays of tokens, in the order in which they are tried."""
    found: list[Layout] = [CONTEXT]
    for arrays in _kinds(*names):
        shared = {f"{_SHARED}{name}": kind for name, kind in arrays.items() if name != "index"}
        kinds = Ring(**arrays, reached="int32"), Ring(**arrays), Full(**arrays)
        found += [*kinds, Shared(**shared, **arrays)]
    return tuple(found)


# The second are of keys that are the values too.
LAYOUTS, KEYS_ALONE = _layouts("key", "value"), _layouts("key")
OF_BLOCKS = _kinds("key", "value", "block_key", "block_value")
STATE = State(state="float", index="int32")
# A state of exponentials, each divided by that of the largest exponent of its feature.
STATE_OF_EXPONENTS = State(state="float", largest="float", index="int32")
# A state and the inputs of the last tokens, which a convolution reads again.
CONVOLVED_STATE = State(state="float", last="float", index="int32")


def append(cache, key, value, mask=None, after=None):
    """The cache after writing new tokens, (B, T, G, K) and (B, T, G, V).

    Args:
        value: None where the cache has keys alone.
        mask: (B, T), which of the tokens are real, the first; None for all. Others are left out.
        after: the new index, if it is known.
    """
    if 0 in tuple(key.shape[:2]):
        return dict(cache)
    index = cache["index"]
    if after is None:
        after = end(index, backend.shape(key)[1], mask)
    write, at = _write_many, (index, after)
    if key.shape[1] == 1:
        # The token's index, computed once for key and value.
        write, at = _write_one, (_rows(cache["key"], index), mask)
    new = {"index": after}
    if "reached" in cache:
        new["reached"] = ops.maximum(cache["reached"], after)
    for name, heads in (("key", key), ("value", value)):
        if name in cache:
            for stored, array in _stored(cache, name, heads).items():
                new[stored] = write(cache[stored], array, *at)
    return {**cache, **new}


def _rows(array, index):
    """Where the next token's heads are among the rows of a cache's array, (B · G,)."""
    batch, heads, length, _ = backend.shape(array)
    # Not by `repeat`, which is fourteen operations of TensorFlow.
    first = ops.arange(0, batch * heads * length, length, dtype="int32")
    first = ops.reshape(first, (-1, heads))
    return ops.reshape(first + ops.expand_dims(index % length, 1), (-1,))


def _write_one(old, new, at, mask):
    """Writes one token per row. XLA does a scatter in place; a select would copy all entries."""
    new = ops.cast(new, old.dtype)
    if mask is not None:
        flat = ops.reshape(old, (-1, old.shape[-1]))
        real = ops.repeat(ops.reshape(mask, (-1,)), old.shape[1], axis=0)
        new = ops.reshape(new, (-1, old.shape[-1]))
        new = ops.where(real[:, None], new, ops.take(flat, at, axis=0))
    return backend.write_rows(old, at, new)


def _write_many(old, new, index, end):
    """Writes any number of tokens, even more than entries: each entry gathers its token."""
    batch, _, length, _ = backend.shape(old)
    count = backend.shape(new)[1]
    rank = stored_positions(end, length) - index[:, None]
    at = ops.clip(rank, 0, count - 1)
    first = ops.arange(batch, dtype="int32")[:, None] * count
    found = ops.take(ops.reshape(new, (-1, *new.shape[2:])), first + at, axis=0)
    return ops.where((rank >= 0)[:, None, :, None], ops.cast(_transposed(found), old.dtype), old)


def overflow(end, length):
    """Which rows have more tokens than entries, (B,). Raises if the values are known."""
    seen = shapes.visible_values(end)
    if seen is None:
        return end > length
    if (seen > length).any():
        raise ValueError(
            f"The cache has {length} entries, too few for all tokens. Make it longer by "
            f"`make_cache(batch_size, length)`. Received tokens up to {seen.max()} in a row"
        )
    return None


def spoil(output, rows):
    """Sets overflowing rows of `output` to NaN, for code that cannot raise."""
    rows = ops.reshape(rows, (-1, *[1] * (len(output.shape) - 1)))
    return ops.where(rows, ops.cast(float("nan"), output.dtype), output)
