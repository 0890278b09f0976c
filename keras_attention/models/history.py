"""Tokens that a stack reads again when the text passes a length at which its positions change.

"longrope" rotates all keys anew there, so what each block computed of the earlier tokens is no more
what it would be of the whole text: a cache of the blocks after the first is stale. The stack then
keeps the tokens beside its caches, and reads all of them once more in the step that passes it.
With "dynamic" that would be every step, and is refused.
"""

from keras import ops

from keras_attention.layers import kv_cache, traits
from keras_attention.sequences import sequence, shapes


def switches(blocks):
    """The lengths beyond which the positions of blocks are others, by scaling."""
    found: dict[str, set[int]] = {"dynamic": set(), "longrope": set()}
    # The last block's output is not cached, so its position does not matter.
    for block in blocks[:-1]:
        anew = traits.of(block.attention).encodes_anew
        if anew is not None:
            found[anew[0]].add(anew[1])
    return found


def make(blocks, batch_size, length, embeds):
    """The tokens of rows, none yet, as a list of one dictionary; of none if none are read again.

    Raises:
        ValueError: caches of this length cannot be those of the whole text.
    """
    found = switches(blocks)
    beyond = {kind: sorted(x for x in found[kind] if x < length) for kind in found}
    refused = beyond["dynamic"] or (not embeds and beyond["longrope"])
    if refused:
        kind = "dynamic" if beyond["dynamic"] else "longrope"
        why = (
            "changes the positions of all tokens with each one more"
            if kind == "dynamic"
            else "reads all tokens again, which needs embeddings of tokens, and the stack has none"
        )
        raise ValueError(
            f"A cache of several blocks with scaling={kind!r} must have at most "
            f"`original_max_length`={refused[0]} tokens, those of the prompt and `max_tokens`: "
            f"beyond it, {kind!r} {why}. Received: {length} tokens"
        )
    if not beyond["longrope"]:
        return []
    return [{"tokens": ops.zeros((batch_size, 1, length, 1), "int32")}]


def split(cache):
    """The caches of blocks, and the dictionary of the tokens or None."""
    listed = isinstance(cache, (list, tuple)) and len(cache) > 0
    if listed and isinstance(cache[-1], dict) and set(cache[-1]) == {"tokens"}:
        return list(cache[:-1]), cache[-1]
    return cache, None


def append(history, tokens, index, mask):
    """The tokens with new ones (B, T), and how many each row has then."""
    tokens = ops.cast(tokens, "int32")
    if mask is not None and tokens.shape[1] != 1:
        order = sequence.Order.of(mask, ops.shape(tokens))
        if order is not None:
            tokens, mask = order.numbers(tokens), order.mask
    cache = {"key": history["tokens"], "index": index}
    cache = kv_cache.append(cache, tokens[:, :, None, None], None, mask)
    return {"tokens": cache["key"]}, cache["index"]


def either(blocks, before, after, again, on):
    """The result of `again` if a row with tokens passes a length now, and of `on` if none does."""
    passing = ops.zeros_like(before, dtype="bool")
    for length in switches(blocks)["longrope"]:
        here = ops.logical_and(before <= length, after > length)
        passing = ops.logical_or(passing, ops.logical_and(here, before > 0))
    passing = ops.any(passing)
    # Outside a compiled program, JAX's `cond` would compile both branches in each call.
    values = shapes.visible_values(passing)
    if values is None:
        return ops.cond(passing, again, on)
    return again() if values else on()


def at(output, index, length, mask):
    """The outputs (B, T, …) of new tokens, of those of all tokens, (B, N, …)."""
    positions = ops.minimum(kv_cache.positions(index, length, mask), output.shape[1] - 1)
    return ops.take_along_axis(output, positions[..., None], axis=1)
