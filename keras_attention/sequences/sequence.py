"""Sequences: which tokens are there, and how they are counted.

A mask says which tokens are not there, and `positions` how the others are counted:

- "tokens": a token's position is its rank among the real tokens of its row, or of its text where
  `segment_ids` number several. A masked token does not exist, wherever it is.
- "places": its index in the row, so that a missing step of a series takes its time.
- integers: as the caller likes.

Where tokens are counted, and more than their order matters, rows are compacted: their real tokens
come first, so that the index of each is its position. Results are restored to the caller's order.
"""

import functools
import operator
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels.sparse import folding
from keras_attention.sequences import inputs, masks, shapes

WORDS = ("tokens", "places")


class _Word(str):
    """A word that says more than its letters."""


# Of a stack that has compacted its rows: blocks count their tokens by the index.
COMPACTED = _Word("tokens")


def word(positions):
    """`positions` if it is a word, checked, and None if it is an array or None."""
    if not isinstance(positions, str):
        return None
    return shapes.check_choice("positions", positions, WORDS)


def only_word(positions):
    """`positions` of a call that takes no arrays of them: a word or None."""
    if positions is not None and not isinstance(positions, str):
        raise ValueError(
            f"`positions` must be one of {WORDS}, or None: this layer takes no integers. "
            f"Received: {type(positions).__name__}"
        )
    return word(positions)


def ranks(mask, segment_ids=None):
    """Positions (B, T) from 0 on that count the real tokens of each row, or each of its texts."""
    # A masked token has the position of the last real one before it. None counts all.
    if segment_ids is None:
        if mask is None:
            return None
        return ops.maximum(ops.cumsum(ops.cast(mask, "int32"), axis=1) - 1, 0)
    real = ops.ones_like(segment_ids, "bool")
    real = real if mask is None else ops.logical_and(real, mask)
    ids = ops.broadcast_to(segment_ids, ops.shape(real))

    def take(array, order):
        return ops.take_along_axis(array, order, axis=1)

    # Texts one after another, each in its order: a rank is what was counted since its text began.
    order = ops.cast(ops.argsort(ids, axis=1), "int32")
    ids, real = take(ids, order), ops.cast(take(real, order), "int32")
    begins = ops.concatenate([ops.ones_like(ids[:, :1], "bool"), ids[:, 1:] != ids[:, :-1]], axis=1)
    number = ops.cumsum(ops.cast(begins, "int32"), axis=1) - 1
    first = ops.cast(ops.argsort(ops.cast(ops.logical_not(begins), "int32"), axis=1), "int32")
    until = ops.cumsum(real, axis=1)
    before = take(take(until - real, first), number)
    found = ops.maximum(until - before - 1, 0)
    return take(found, ops.cast(ops.argsort(order, axis=1), "int32"))


class Order(NamedTuple):
    """Rows with their real tokens first, and the way back.

    `order` (B, T) has the index that each token of a compacted row had before, `inverse` the way
    back, and `mask` the tokens of a compacted row that are real. Rows are folded by `axes`, if any.
    """

    order: Any
    inverse: Any
    mask: Any
    axes: Any = None

    @classmethod
    def of(cls, mask, shape, axes=None):
        """The order of rows of a shape (B, T) with a mask; None if real tokens are the first."""
        mask = ops.broadcast_to(mask, shape)
        if backend.known_true(ops.logical_or(mask[:, :-1], ops.logical_not(mask[:, 1:]))):
            return None
        order, inverse = folding.real_first(mask)
        count = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)
        return cls(order, inverse, ops.arange(shape[1], dtype="int32") < count, axes)

    @classmethod
    def with_first(cls, chosen, count, real, compacts):
        """Rows of up to `count` tokens (B, T) that are chosen among the real ones, and then of all.

        These stay where they are, or are those of a compacted row; among them, the chosen ones are
        masked. So the way back is the inverse in gradients too: those of masked tokens are 0.
        """
        length, chosen = ops.shape(chosen)[1], ops.logical_and(chosen, real)
        first, rank = folding.real_first(chosen)
        chosen = ops.logical_and(chosen, rank < count)
        order = inverse = ops.arange(length, dtype="int32") + ops.zeros_like(first)
        if compacts:
            order, inverse = folding.real_first(real)
        places = ops.arange(count, dtype="int32")
        # Of fewer tokens than places, some place has one again, which is masked.
        first = ops.take(first, ops.minimum(places, length - 1), axis=1)
        used = places < ops.sum(ops.cast(chosen, "int32"), axis=1, keepdims=True)
        others = ops.logical_and(real, ops.logical_not(chosen))
        return cls(
            ops.concatenate([first, order], axis=1),
            ops.where(chosen, rank, count + inverse),
            ops.concatenate([used, ops.take_along_axis(others, order, axis=1)], axis=1),
        )

    def compacted(self, x):
        """Inputs (B, T, …) with the real tokens first."""
        return self._moved(x, self.order, self.inverse)

    def restored(self, x):
        """Outputs (B, T, …) of compacted rows in the order of the inputs."""
        return self._moved(x, self.inverse, self.order)

    def _moved(self, x, order, inverse):
        axes = self.axes
        if axes is not None:
            shape = ops.shape(x)
            lead = len(axes.positions) + len(axes.free) + 1
            like = ops.reshape(x, (*shape[:lead], -1)) if len(shape) > lead + 1 else x
            rows = axes.fold(like[..., None, :])[:, :, 0]
            rows = folding.reordered(rows, order, inverse)
            return ops.reshape(axes.unfold(rows[:, :, None], like), shape)
        return folding.reordered(x, order, inverse)

    def numbers(self, array):
        """Numbers of tokens, (B or 1, T), such as a mask, with the real tokens first."""
        return ops.take_along_axis(ops.broadcast_to(array, ops.shape(self.inverse)), self.order, 1)

    def pairs(self, array, axis, back=False):
        """An array of pairs, with four axes, with the tokens of one of them in order, or back."""
        if array.shape[axis] == 1 and self.order.shape[1] != 1:
            return array
        order = self.inverse if back else self.order
        order = order[:, None, :, None] if axis == 2 else order[:, None, None, :]
        return ops.take_along_axis(array, order, axis=axis)


class Pairs(NamedTuple):
    """Query, value and key of a call, what masks them, and in which order their tokens are.

    Args:
        query, value, key: floats, with zeros for padding.
        query_mask, key_mask: padding (B, T) and (B, S), True = a real token; or None.
        attention_mask: boolean, of pairs, or None.
        attention_bias: the numbers to add, as given, or None.
        seen: (B, S), the keys that are neither padding nor left out by all queries; or None.
        one_sequence: whether the query came as the value: zeros for padding make two of one.
        positions, segment_ids: integers (B, T) and (B, S), of tokens and of their texts; or None.
        given: whether a caller gave the positions.
        counts_tokens: whether positions are to count the real tokens of these rows.
        of_query, of_key: the `Order` of the tokens; None for that of the inputs.
        first: how many places before all tokens are of chosen ones; None for no such places.
        key_value: the keys and values that another layer has handed on, or None.
        hands_on: whether the call hands on its own.
    """

    query: Any
    value: Any
    key: Any
    query_mask: Any = None
    key_mask: Any = None
    attention_mask: Any = None
    attention_bias: Any = None
    seen: Any = None
    one_sequence: bool = False
    positions: tuple[Any, Any] | None = None
    segment_ids: tuple[Any, Any] | None = None
    given: bool = False
    counts_tokens: bool = False
    of_query: Order | None = None
    of_key: Order | None = None
    first: int | None = None
    key_value: dict[str, Any] | None = None
    hands_on: bool = False

    @property
    def pairwise(self):
        """The mask and the bias of pairs that are given, by name."""
        names = "attention_mask", "attention_bias"
        return {name: array for name in names if (array := getattr(self, name)) is not None}

    def compacted(self, axes=None):
        """The same with the real tokens of each row first.

        In a sequence that attends to itself, real are the tokens that may be keys.
        """
        of_query = of_key = self._order(self.key_mask, self.value, axes)
        if not self.one_sequence:
            of_query = self._order(self.query_mask, self.query, axes)
        if of_query is of_key is None:
            return self
        return self._ordered(of_query, of_key)

    def with_first(self, chosen, count):
        """The same of one sequence, with tokens that are chosen before all; see `Order`."""
        real = masks.whole(self.key_mask, self.value)
        order = Order.with_first(chosen, count, real, self.counts_tokens)
        # Masks of all tokens, although there may have been none.
        found = self._replace(query_mask=real, key_mask=real, seen=real, first=count)
        return found._ordered(order, order)

    def _ordered(self, of_query, of_key):
        """The same in an order of queries, and one of keys."""
        tensors, orders = (self.query, self.value, self.key), (of_query, of_key, of_key)
        query, value, key = once(lambda x, order: order.compacted(x), tensors, orders)
        numbers = {
            name: once(lambda x, order: order.numbers(x), pair, (of_query, of_key))
            for name in ("positions", "segment_ids")
            if (pair := getattr(self, name)) is not None
        }

        def masked(mask, order):
            if mask is None or order is None:
                return mask
            own = mask is (self.key_mask if order is of_key else self.query_mask)
            return order.mask if own else order.numbers(mask)

        found = self._replace(of_query=of_query, of_key=of_key, **numbers)
        return found._replace(
            query=query,
            value=value,
            key=key,
            query_mask=masked(self.query_mask, of_query),
            key_mask=masked(self.key_mask, of_key),
            seen=masked(self.seen, of_key),
            **{name: found._pairs_in_order(array) for name, array in self.pairwise.items()},
        )

    def _pairs_in_order(self, array, back=False):
        for order, axis in ((self.of_query, 2), (self.of_key, 3)):
            array = array if array is None or order is None else order.pairs(array, axis, back)
        return array

    @staticmethod
    def _order(mask, like, axes):
        if mask is None:
            return None
        shape = ops.shape(mask) if axes is not None else ops.shape(like)[:2]
        return Order.of(mask, shape, axes)

    def ranked(self):
        """Positions of queries and keys that count real tokens; None where all are real."""
        of_query, of_key = self.segment_ids or (None, None)
        of_queries = ranks(self.key_mask if self.one_sequence else self.query_mask, of_query)
        alike = self.one_sequence and of_query is of_key
        return of_queries, of_queries if alike else ranks(self.key_mask, of_key)

    def factor(self, listeners, layer):
        """What listeners multiply weights (B, H, T, S) by, in the order of the rows; or None."""
        factors = [listener.factor(layer) for listener in listeners]
        factors = [factor for factor in factors if factor is not None]
        return self._pairs_in_order(functools.reduce(operator.mul, factors) if factors else None)

    def restored(self, output, result):
        """The output of a layer, and its `AttentionResult` but for its own, as the inputs were."""
        if self.of_query is not None:
            output = self.of_query.restored(output)
        weights, mask, chosen = result.weights, result.mask, result.log_probability
        weights, mask = (self._pairs_in_order(x, back=True) for x in (weights, mask))
        if chosen is not None:
            chosen = self._pairs_in_order(chosen[..., None], back=True)[..., 0]
        return output, result.replace(weights=weights, mask=mask, log_probability=chosen)


def read(tensors, explicit, mask, attention_mask, attention_bias, dtype, counts_tokens):
    """The `Pairs` of a call, of arrays or of symbols.

    `tensors` are query, value and key in any form that a call takes, `explicit` the masks that were
    passed for them, and `mask` is Keras's name for that of a layer's inputs, or False. Integers and
    booleans are cast to `dtype`.
    """
    if mask is not None and mask is not False:
        explicit = (query_mask(explicit[0], mask, *tensors[:2]), *explicit[1:])
    found, (of_query, of_value, of_key) = three_inputs(tensors, explicit)
    of_key = of_value if of_key is None else masks.both(of_value, of_key)
    seen = of_key
    # Queries may be an array beside a symbol of values.
    symbolic = keras.KerasTensor in map(type, found)
    if attention_mask is not None:
        attention_mask = masks.boolean("attention_mask", attention_mask)
        if not symbolic:
            seen = masks.both(seen, masked_for_all(attention_mask, found[2]))
    query, value, key = inputs.floats(found, dtype)
    if not symbolic and (of_query is not None or seen is not None):
        query, value, key = without_padding((query, value, key), (of_query, seen, seen))
    if attention_bias is not None and not shapes.is_array(attention_bias):
        attention_bias = ops.convert_to_tensor(attention_bias)
    more = {"one_sequence": found[0] is found[1], "counts_tokens": counts_tokens}
    masked = of_query, of_key, attention_mask, attention_bias, seen
    return Pairs(query, value, key, *masked, **more)


def query_mask(query_mask, mask, query, value):
    """`query_mask` combined with `mask`, Keras's name for the mask of a layer's inputs."""
    # Raises unless the latter is unambiguous: the padding of all inputs.
    listed, received = isinstance(query, (list, tuple)), None
    if listed != isinstance(mask, (list, tuple)):
        received = f"a {type(query).__name__} and a mask of type {type(mask).__name__}"
    elif value is not None:
        received = "a `value` beside it"
    elif not listed and len(query.shape) == 3 and len(mask.shape) != 2:
        received = f"mask.shape={tuple(mask.shape)}"
    if received is not None:
        raise ValueError(
            "`mask` must be the padding (B, T) of one sequence that attends to itself, or a list "
            "of masks for a list of tensors. Pass padding of two sequences as `query_mask` (B, T) "
            "and `value_mask` (B, S), and a mask of pairs, (T, S), (B, T, S) or (B, H, T, S), as "
            f"`attention_mask`. Received: {received}"
        )
    if listed:
        if query_mask is not None and not isinstance(query_mask, (list, tuple)):
            return [masks.both(mask[0], query_mask), *mask[1:]]
        return mask
    if mask is masks.implicit(query):
        # Keras passes the carried mask, which is read from the tensor anyway.
        return query_mask
    return masks.both(masks.boolean("query_mask", query_mask), masks.boolean("mask", mask))


def three_inputs(tensors, explicit):
    """Query, value and key from any form, and their masks: those carried and passed, combined."""
    query, value, key = tensors
    query_mask, value_mask, key_mask = explicit
    if isinstance(query, (list, tuple)):
        if value is not None or key is not None:
            raise ValueError(
                "Pass query, value and key either as one list or as three arguments. Received: a "
                "list, and `value` or `key` beside it"
            )
        query, value, key = inputs.unpack("query", query)
        if isinstance(query_mask, (list, tuple)):
            # Keras passes the masks that a list of tensors carries as a list.
            listed = inputs.unpack("query_mask", query_mask)
            query_mask = listed[0]
            value_mask = masks.both(listed[1], value_mask)
            key_mask = masks.both(listed[2], key_mask)
    if value is None:
        # One tensor in both roles: its query mask is also its value mask.
        value = query
        value_mask = query_mask if value_mask is None else masks.both(query_mask, value_mask)
    tensors = (query, value, value if key is None else key)
    of_query = masks.padding(query, query_mask, "query", "query_mask")
    of_value = of_query
    if value is not query or value_mask is not query_mask:
        of_value = masks.padding(value, value_mask, "value", "value_mask")
    of_key = None
    if tensors[2] is not value or key_mask is not None:
        of_key = masks.padding(tensors[2], key_mask, "key", "key_mask")
    return tensors, (of_query, of_value, of_key)


def once(function, tensors, by):
    """Tensors as `function(x, y)`, or as they are if y is None; one in several roles stays one."""
    found, known = [], {}
    for x, y in zip(tensors, by, strict=True):
        if y is not None and (id(x), id(y)) not in known:
            known[id(x), id(y)] = function(x, y)
        found.append(x if y is None else known[id(x), id(y)])
    return tuple(found)


# The tensors with zeros for padding, by masks or None.
without_padding = functools.partial(once, masks.clear)


def masked_for_all(attention_mask, key):
    """The mask (B, S) of an `attention_mask` that is one for all heads and queries, or None."""
    # Finding keys that all queries leave out in other masks would cost more than the zeros.
    if not 2 <= len(attention_mask.shape) <= 4 or len(key.shape) != 3:
        return None
    mask = inputs.four_axes("attention_mask", attention_mask)
    fits = mask.shape[0] in (1, key.shape[0]) and mask.shape[3] == key.shape[1]
    return mask[:, 0, 0] if fits and mask.shape[1] == mask.shape[2] == 1 else None
