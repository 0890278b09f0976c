"""Keys and values that a layer hands on, and a later layer attends to or adds to its own.

A call with `return_key_value=True` hands on `{"key": (B, S, G, K), "value": (B, S, G, V)}`, with
norms and positions, in the order of the inputs. With a cache these are all its entries, beside
"new_value" (B, T, G, V), "query_positions", "key_positions" and, where not all entries have a
token, "mask" (B, S); those that all rows share are "shared_key" and "shared_value".
"""

import keras
from keras import ops

from keras_attention.kernels.sparse import folding
from keras_attention.layers import kv_cache
from keras_attention.layers.heads.base import DenseHeads, EinsumHeads


class Handed(kv_cache.Layout):
    """The keys and values of an earlier layer's call, with a cache or without one."""

    def extend(self, layer, cache, x):
        query, given = layer.split(x.query, "query"), _in_order(x.key_value, x.of_key)
        heads, at = (query, given["key"], given["value"]), given.get("query_positions")
        if at is None:
            found = layer.extended(x, heads)
            at = found.positions.query
        else:
            entries = given["key_positions"], given.get("mask"), x.query_mask
            found = kv_cache.of_entries(*heads, at, *entries)
        at = at if x.positions is None else x.positions[0]
        query, _, encoded = kv_cache.encoded(layer, query, query, at, at)
        found = found._replace(query=query, encoded=encoded, cache=cache)
        if "shared_key" not in given:
            return found
        return kv_cache.with_shared(found, x.query_mask, given["shared_key"], given["shared_value"])


HANDED, HANDED_OF_CACHE = Handed(heads="float"), Handed(heads="float")
# A call is then one of those that append tokens, to the cache of the earlier layer.
HANDED_OF_CACHE.appends = True


def layout(layer, given, hands_on, cache):
    """The `Layout` of a call by the keys and values that it is `given`, checked, if any."""
    if (layer.reuse is None) != (given is None):
        raise ValueError(
            "A layer takes `key_value` if, and only if, it was made with `reuse`. Received: "
            f"reuse={layer.reuse!r}, and {'no' if given is None else 'a'} `key_value`"
        )
    if (given is not None or hands_on) and type(layer.heads) not in (DenseHeads, EinsumHeads):
        raise ValueError(
            "`reuse` and `return_key_value` are of softmax attention over plain projections. "
            f"Received: {type(layer).__name__}"
        )
    if given is None:
        return kv_cache.UNCACHED
    if not isinstance(given, dict) or not {"key", "value"} <= given.keys():
        raise ValueError(
            "`key_value` must be what a call with return_key_value=True gave, a dict with 'key' "
            f"and 'value'. Received: {sorted(given) if isinstance(given, dict) else given!r}"
        )
    heads, *sizes = layer.heads.stored
    for name, size in zip(("key", "value"), sizes, strict=True):
        found = tuple(given[name].shape)[2:]
        if found != (heads, size) and (name == "value" or layer.reuse == "key_value"):
            raise ValueError(
                f"`key_value[{name!r}]` must have this layer's numbers of key and value heads and "
                f"of their features, {(heads, size)}. Received: {found}"
            )
    if layer.reuse != "key_value":
        return kv_cache.UNCACHED
    if cache:
        raise ValueError(
            f"A layer with reuse='key_value' has an empty cache, {{}}. Received: {sorted(cache)}"
        )
    return HANDED_OF_CACHE if "query_positions" in given else HANDED


def handed(layer, extended, x):
    """The `Extended` of a call, with its keys encoded, and what the call hands on."""
    at, query, key = extended.positions, extended.query, extended.key
    if not extended.encoded:
        query, key, encoded = kv_cache.encoded(layer, query, key, at.query, at.key)
        extended = extended._replace(query=query, key=key, encoded=encoded)
    given = {"key": key, "value": extended.value}
    if extended.new_value is None:
        return extended, _in_order(given, x.of_key, back=True)
    earlier = extended.earlier or {}
    given |= {"new_value": extended.new_value, "mask": extended.key_mask}
    given |= {"query_positions": at.query, "key_positions": at.key}
    given |= {f"shared_{name}": earlier.get(name) for name in ("key", "value")}
    return extended, {name: array for name, array in given.items() if array is not None}


def mixed(layer, heads, x):
    """Heads whose values are those of an earlier layer, or are added to them."""
    query, key, value = heads
    given = _in_order(x.key_value, x.of_key)
    first = given.get("new_value", given["value"])
    if value is not None:
        own, other = ops.unstack(ops.cast(layer.value_scales, value.dtype))
        first = own * value + other * ops.cast(first, value.dtype)
    return query, key, first


def _in_order(given, order, back=False):
    """Heads (B, S, G, K) by name in the order of compacted rows, or back in that of the inputs."""
    if order is None:
        return given
    orders = (order.inverse, order.order) if back else (order.order, order.inverse)
    return {name: folding.reordered(given[name], *orders) for name in ("key", "value")}


def specs(layer, key, cache=None):
    """Symbols of what a call of keys (B, S, D) hands on, without a cache."""
    if cache is not None:
        raise TypeError(
            "`return_key_value=True` with a `cache` takes arrays, and no symbolic tensors. "
            f"Received: a cache of {sorted(cache)}"
        )
    heads, *sizes = layer.heads.stored
    return {
        name: keras.KerasTensor((*key.shape[:2], heads, size), layer.compute_dtype)
        for name, size in zip(("key", "value"), sizes, strict=True)
    }
