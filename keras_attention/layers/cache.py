"""Caches: what decoding keeps of the tokens so far, as a value that is passed in and returned.

A cache of self-attention is `{"key": (B, C, G, K), "value": (B, C, G, V), "index": (B,)}`, where
`index` counts the tokens of each row so far. Only real tokens are in it, and without gaps, so rows
of unequal length need no mask: the token at position p is in slot p mod C. Where C is the longest
sequence that is slot p. Where it is shorter the cache is a ring, which keeps the last C tokens.

The memory of cross-attention is `{"key": (B, S, G, K), "value": (B, S, G, V), "mask": (B, S)}`,
which never changes.
"""

import keras

from keras_attention import shapes

ops = keras.ops

_TOKENS = {"key": "float", "value": "float", "index": "int32"}
_MEMORY = {"key": "float", "value": "float", "mask": "bool"}


def make(batch_size, length, heads, key_dim, value_dim, dtype):
    """A cache without tokens, of `length` slots."""
    return {
        "key": ops.zeros((batch_size, length, heads, key_dim), dtype),
        "value": ops.zeros((batch_size, length, heads, value_dim), dtype),
        "index": ops.zeros((batch_size,), "int32"),
    }


def check(cache, batch, heads, key_dim, value_dim):
    """Raises unless `cache` is of one of the two kinds, for these sizes; None is any size."""
    given = set(cache) if isinstance(cache, dict) else None
    kinds = [kind for kind in (_TOKENS, _MEMORY) if given == set(kind)]
    if not kinds:
        received = type(cache).__name__ if given is None else sorted(given)
        raise ValueError(
            "`cache` must be what `make_cache` or a call gave, a dict of 'key', 'value' and "
            "'index', or what `cache_memory` gave, of 'key', 'value' and 'mask'. "
            f"Received: {received}"
        )
    length = tuple(cache["key"].shape)[1:2] or (None,)
    expected = {
        "key": (batch, *length, heads, key_dim),
        "value": (batch, *length, heads, value_dim),
        "index": (batch,),
        "mask": (batch, *length),
    }
    for name, kind in kinds[0].items():
        found = tuple(cache[name].shape)
        if len(found) != len(expected[name]) or any(
            None not in pair and pair[0] != pair[1]
            for pair in zip(found, expected[name], strict=True)
        ):
            raise ValueError(
                f"`cache[{name!r}]` must be of shape {expected[name]}, None being any size. "
                f"Received: {found}"
            )
        dtype = keras.backend.standardize_dtype(cache[name].dtype)
        if kind not in dtype:
            raise TypeError(f"`cache[{name!r}]` must be of a dtype {kind}. Received: {dtype}")


def is_memory(cache):
    """Whether a cache that was checked is the memory of cross-attention."""
    return "mask" in cache


def specs(cache):
    """Symbols of the shapes and dtypes of a cache."""
    return {name: keras.KerasTensor(x.shape, dtype=x.dtype) for name, x in cache.items()}


def positions(index, length, mask=None):
    """Where new tokens stand, (B, T). Padding, of which nothing is kept, shares a token's place."""
    if mask is None:
        return index[:, None] + ops.arange(length, dtype="int32")
    rank = ops.cumsum(ops.cast(mask, "int32"), axis=1) - 1
    return index[:, None] + ops.maximum(rank, 0)


def end(index, length, mask=None):
    """The index when new tokens, (B, T), have been written."""
    return index + (length if mask is None else ops.sum(ops.cast(mask, "int32"), axis=1))


def held(index, length):
    """The positions of what the slots hold, (B, C); negative where that is nothing."""
    last = index[:, None] - 1
    return last - ops.mod(last - ops.arange(length, dtype="int32"), length)


def append(cache, key, value, mask=None):
    """The cache when new tokens, (B, T, G, K) and (B, T, G, V), have been written.

    Args:
        mask: (B, T), which of the tokens are real; None for all. The others are left out.
    """
    write = _write_one if key.shape[1] == 1 else _write_many
    new = end(cache["index"], ops.shape(key)[1], mask)
    return {
        "key": write(cache["key"], key, cache["index"], new, mask),
        "value": write(cache["value"], value, cache["index"], new, mask),
        "index": new,
    }


def _write_one(old, new, index, end, mask):
    """One token, of each row. XLA writes a scatter in place, and a choice of every slot anew."""
    batch, length = ops.shape(old)[:2]
    flat = ops.reshape(old, (-1, *old.shape[2:]))
    at = ops.arange(batch, dtype="int32") * length + ops.mod(index, length)
    new = ops.cast(new[:, 0], old.dtype)
    if mask is not None:
        new = ops.where(mask[:, :, None], new, ops.take(flat, at, axis=0))
    return ops.reshape(ops.scatter_update(flat, at[:, None], new), ops.shape(old))


def _write_many(old, new, index, end, mask):
    """Any number of tokens, more than there are slots even: every slot asks which one it holds."""
    batch, length = ops.shape(old)[:2]
    count = ops.shape(new)[1]
    rank = held(end, length) - index[:, None]
    at = ops.clip(rank, 0, count - 1)
    if mask is not None:
        # Real tokens first, each kind in its order.
        order = ops.arange(count, dtype="int32") + count * ops.cast(ops.logical_not(mask), "int32")
        at = ops.take_along_axis(ops.cast(ops.argsort(order, axis=1), "int32"), at, axis=1)
    first = ops.arange(batch, dtype="int32")[:, None] * count
    found = ops.take(ops.reshape(new, (-1, *new.shape[2:])), first + at, axis=0)
    return ops.where((rank >= 0)[:, :, None, None], ops.cast(found, old.dtype), old)


def overflow(end, length):
    """Which rows have more tokens than there are slots, (B,). An error where that can be seen."""
    beyond = end > length
    seen = shapes.visible_values(end)
    if seen is None:
        return beyond
    if (seen > length).any():
        raise ValueError(
            f"The cache has {length} slots, and cannot hold more tokens. Make it longer by "
            f"`make_cache(batch_size, length)`. Received tokens up to {seen.max()} in a row"
        )
    return None


def spoil(output, rows):
    """`output` with NaN in the given rows: where nothing can be raised, a lost token is loud."""
    rows = ops.reshape(rows, (-1, *[1] * (len(output.shape) - 1)))
    return ops.where(rows, ops.cast(float("nan"), output.dtype), output)
