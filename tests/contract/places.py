"""Where an entry stands: alone, in a block, in a stack, as attention to a context, in a cell.

A `Subject` is an entry in a place. It has the layer, with random weights, and keeps what it has
computed, so that several relations look at one result.
"""

import contextlib
import functools
import inspect

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns
from keras_attention.sequences import masks
from tests.arrays import numpy
from tests.compiled import Program
from tests.contract import registry, rows
from tests.contract.registry import B, D, S, T

# The second block of a causal stack; of those that take no masks of pairs, `Retention`.
SECOND = [
    lambda: {"position": "rotary"},
    lambda: {"position": "alibi"},
    lambda: {"pattern": patterns.SlidingWindow(2, 1)},
    lambda: {"position": "relative_bias"},
]


def simply(layer, x, **given):
    return layer(x, **given)


def alone(entry, layer, causal):
    return layer, entry.call or simply


def block(entry, layer, causal):
    return registry.made(ka.TransformerBlock, attention=layer, causal=causal), simply


def stack(entry, layer, causal):
    # Linear time takes no masks of pairs, by which cells of a grid are compared, nor texts.
    second = {"attention": ka.Retention(2, 4)}
    if entry.second is not None:
        own = {"causal": True} if causal and entry.second.traits.causal_argument else {}
        second = {"attention": entry.second.make(**own)}
    elif not causal:
        # Nothing but the entry decides how tokens are counted.
        second = {}
    elif entry.traits.attention_mask:
        second = SECOND[list(registry.MECHANISMS).index(entry.name) % len(SECOND)]()
    given = {"attention": layer}, second
    blocks = [registry.made(ka.TransformerBlock, causal=causal, **x) for x in given]
    return (ka.Decoder if causal else ka.Encoder)(blocks), simply


def context(entry, layer, causal):
    return layer, registry.of_queries


def cell(entry, layer, causal):
    cell = registry.cell(layer, mode="luong")
    return ka.AttentionRNN(cell, return_sequences=True), registry.of_rnn


PLACES = {"alone": alone, "block": block, "stack": stack, "context": context, "cell": cell}


def fits(entry, place):
    """Whether a place takes an entry."""
    if place == "alone":
        return True
    if place in ("context", "cell") and not entry.traits.crosses:
        return False
    return entry.mechanism and not (place == "cell" and entry.name in registry.NO_CELL)


@functools.cache
def refuses_pieces(entry, place):
    """Why there is no cache or state, or None. Of whom, `test_registry` lists."""
    if place == "context":
        return "has no cache of a context" if entry.name in registry.NO_MEMORY else None
    if place == "cell" or entry.call is registry.of_steps:
        return None
    if not entry.traits.may_be_causal:
        return "not causal"
    if entry.traits.length:
        return "every step has another base"
    inner = Subject(entry, "alone", True).inner
    if isinstance(inner, (ka.Decoder, ka.TransformerBlock)):
        return None
    if not hasattr(inner, "make_cache"):
        return "no cache"
    try:
        inner.make_cache(B, T)
    except ValueError as error:
        return str(error)
    return None


@functools.cache
def subject(entry, place, causal=False):
    return Subject(entry, place, causal).build()


class Subject:
    """An entry in a place.

    Args:
        entry, place: of `registry.ENTRIES` and the name of one of `PLACES`.
        causal: whether it sees no later tokens.
        **given: further arguments of the entry, such as `dtype`.
    """

    def __init__(self, entry, place, causal=False, **given):
        self.entry, self.place, self.causal = entry, place, causal
        if causal and entry.traits.causal_argument:
            given["causal"] = True
        # Of each call, where the layer is alone.
        self.always = {}
        if causal and place == "alone" and entry.traits.use_causal_mask:
            self.always = {"use_causal_mask": True}
        with policy(given.pop("dtype", "float32")):
            self.inner = entry.make(**given)
            self.layer, self._call = PLACES[place](entry, self.inner, causal)

    def symbolic(self, batch=B, length=T, dtype="float32", **given):
        shape = (batch, length) if self.entry.ids else (batch, length, D)
        x = keras.KerasTensor(shape, "int32" if self.entry.ids else dtype)
        return keras.tree.flatten(self._call(self.layer, x, **self.always, **given))

    def build(self):
        """Builds by a call, and changes every weight."""
        if keras.backend.backend() == "jax":
            self.symbolic()
        else:
            self.run(rows.batch(self.entry.ids, garbage=False))
        rows.randomize(self.layer)
        return self

    def call(self, x, mask=None, /, **given):
        """All outputs, as arrays; a mask is carried."""
        return [numpy(x) for x in keras.tree.flatten(self.run(x, mask, **given))]

    def run(self, x, mask=None, /, **given):
        """The outputs, as tensors; a mask is carried."""
        return self.program(x, mask, **self.always, **given)

    @functools.cached_property
    def program(self):
        """`eager`, compiled where each operation would be."""
        return Program(self.eager, self.layer)

    def eager(self, x, mask=None, /, **given):
        x = keras.ops.convert_to_tensor(x)
        if mask is not None:
            x = masks.carry(x, keras.ops.convert_to_tensor(mask))
        return self._call(self.layer, x, **given)

    @property
    def mask_name(self):
        """The argument that has the mask of the tokens under test, or None."""
        if self._call in registry.MASKS:
            return registry.MASKS[self._call]
        names = inspect.signature(self.layer.call).parameters
        return next((name for name in ("query_mask", "mask") if name in names), None)

    @property
    def adapted(self):
        """Whether the layer is called with more than the tokens under test."""
        return self._call is not simply

    def of_policy(self, name):
        """The same with another dtype policy, and the same weights."""
        other = Subject(self.entry, self.place, self.causal, dtype=name).build()
        for variable, own in zip(other.layer.weights, self.layer.weights, strict=True):
            variable.assign(own)
        return other

    def model(self, masked=False):
        """A model of the layer, and what it is called with; or of tokens (B, T, D) and masks."""
        given = []

        def layer(*args):
            given.extend(args)
            return args[0]

        x = keras.ops.convert_to_tensor(rows.batch(self.entry.ids, garbage=False))
        self._call(layer, x)
        if isinstance(self.layer, keras.Model) and len(given) == 1 and not masked:
            return self.layer, given[0]

        def symbol(array):
            lengths = array.shape[1:]
            if not (self.adapted or self.entry.traits.cells):
                lengths = (None, *lengths[1:])
            return keras.Input(lengths, dtype=array.dtype)

        if masked:
            symbols = symbol(x), keras.Input((None,), dtype="bool")
            return keras.Model(symbols, self.layer(WithMask()(symbols)))
        symbols = keras.tree.map_structure(symbol, given)
        alone = len(given) == 1
        model = keras.Model(symbols[0] if alone else symbols, self.layer(*symbols))
        return model, given[0] if alone else given

    # What it can be compared with

    @property
    def reference(self):
        """The method whose result the batch with padding has at real tokens."""
        traits, model = self.entry.traits, isinstance(self.layer, keras.Model)
        if (model and not traits.cells) or isinstance(self.layer, ka.Decoder):
            return self.alone
        if self.place == "cell" or self.entry.name.startswith("alignment"):
            # Places of a memory, of which a cell cannot be told others.
            return self.zeros
        if traits.positions and not traits.cells:
            return self.placed
        if traits.attention_mask:
            return self.of_pairs
        return self.zeros if traits.cells else self.alone

    @property
    def returns_scores(self):
        return self.entry.traits.scores and self.place in ("alone", "block", "context")

    # Pieces: a cache or a state

    def start(self):
        """What the first piece goes on from."""
        if self.entry.call is registry.of_steps:
            return None
        return self.layer.make_cache(B, T, spare=2)

    def cut_back(self, state, x, mask):
        """A cache after two tokens more, which are taken back from it again, if they can be."""
        if not hasattr(self.layer, "cut_cache"):
            return state
        caches = state if isinstance(state, list) else [state]
        index, after = caches[0]["index"], self.append(x, mask, state)[1]
        if any("state" in cache for cache in caches):
            with pytest.raises(ValueError, match="state is their sum"):
                self.layer.cut_cache(after, index)
            return state
        return self.layer.cut_cache(after, index)

    def from_memory(self):
        """The outputs of queries to a context that is projected once."""

        def call(x, mask):
            memory = self.inner.cache_context(x, key_mask=mask)
            return self.inner(registry.same(x, S, D), cache=memory)[0]

        return numpy(Program(call, self.inner)(rows.batch(), rows.MASK))

    def append(self, x, mask, state, **given):
        """The outputs of a piece, and what the next goes on from."""
        name = "initial_state" if self.entry.call is registry.of_steps else "cache"
        # A cache is causal, whether that is said or not.
        output, state = self.program(x, mask, **{name: state}, **given)
        return numpy(output), state

    # Results that several relations look at, computed once

    def _once(compute):
        @functools.wraps(compute)
        def get(self, **given):
            results = self.__dict__.setdefault("results", {})
            key = (compute.__name__, *sorted(given))
            if key not in results:
                results[key] = compute(self, **given)
            return results[key]

        return get

    @_once
    def dirty(self, **given):
        """The batch, padding holding anything."""
        return self.call(rows.batch(self.entry.ids), rows.MASK, **given)

    @_once
    def zeros(self, **given):
        """The batch, padding holding zeros."""
        return self.call(rows.batch(self.entry.ids, garbage=False), rows.MASK, **given)

    @_once
    def alone(self, **given):
        """The text without padding, (3, N, …)."""
        return self.call(rows.text(self.entry.ids), **given)

    @_once
    def placed(self, **given):
        """The text without padding, at its places in the rows of each side."""
        places, queries = rows.PLACES, np.repeat(np.arange(S, dtype="int32")[None], 3, axis=0)
        if self.entry.traits.length:
            places, queries = places - places[:, :1], queries - places[:, :1]
        positions = (queries, places) if self.place == "context" else places
        return self.call(rows.text(self.entry.ids), positions=positions, **given)

    @_once
    def of_pairs(self, **given):
        """The batch without padding, of which no query sees the keys that would be padding."""
        queries = S if self.place == "context" else T
        pairs = np.repeat(rows.MASK[:, None], queries, axis=1)
        return self.call(rows.batch(self.entry.ids, garbage=False), attention_mask=pairs, **given)


@contextlib.contextmanager
def policy(name):
    """A scope in which all layers that are made have a dtype policy."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


class WithMask(keras.layers.Layer):
    """Lets tokens carry a mask in a functional model."""

    supports_masking = True

    def call(self, inputs):
        x, mask = inputs
        return masks.carry(keras.ops.copy(x), mask)

    def compute_mask(self, inputs, previous_mask=None):
        return inputs[1]
