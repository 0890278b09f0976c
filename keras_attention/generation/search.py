"""A search: what a function of generation was given, checked, and its loop over a step."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_attention.backend import backend
from keras_attention.core.hints import Tensor, Tensors
from keras_attention.generation import rules
from keras_attention.generation.generated import Generated
from keras_attention.generation.programs import check_lost
from keras_attention.generation.rules import NO_TOKEN, NONE, Rules, Text
from keras_attention.sequences import shapes

# What users give: `logits, cache = step(tokens, cache)`, with `memory` third where there is one.
Step: TypeAlias = Callable[..., tuple[Tensor, Tensors]]


class Ends:
    """Where texts end, what stands after them, and rules: arguments of `greedy`, checked."""

    def __init__(self, max_tokens, stop_tokens=(), pad_token=0, constraints=None):
        self.max_tokens, self.limits = _limits(max_tokens)
        # Others than those of the vocabulary are known when a step is made.
        [self.pad_token] = rules.read_tokens("pad_token", [pad_token], least=-(2**31))
        rules.check_listed("stop_tokens", stop_tokens, "tokens and of sequences of tokens")
        stops = [x if isinstance(x, (tuple, list)) and x else (x,) for x in stop_tokens]
        self.stops = tuple(rules.read_tokens("stop_tokens", x, least=-(2**31)) for x in stops)
        given = () if constraints is None else constraints
        self.rules = Rules(given if isinstance(given, (list, tuple)) else (given,)).parts

    def check_vocabulary(self, size):
        """Raises if a stop token, or a token of a rule, is none of so many."""
        beyond = [token for stop in self.stops for token in stop if not 0 <= token < size]
        if beyond:
            raise ValueError(
                f"`stop_tokens` must be tokens of the vocabulary, 0 to {size - 1}. "
                f"Received: {beyond}"
            )
        beyond = sorted({token for rule in self.rules for token in rule.tokens if token >= size})
        if beyond:
            raise ValueError(
                f"`constraints` must have tokens of the vocabulary, 0 to {size - 1}. "
                f"Received: {beyond}"
            )

    def next_states(self, states, tokens):
        """The states of rules after tokens (R,)."""
        pairs = zip(self.rules, states, strict=True)
        return [rule.next_state(state, tokens) for rule, state in pairs]

    def stopping(self, text, tokens):
        """Which of the next tokens (R,) or (R, N) end the text before them."""
        found = ops.zeros_like(tokens, dtype="bool")
        for *before, last in self.stops:
            ends = ops.equal(tokens, last)
            if before:
                same = ops.equal(text.last(len(before), generated=True), np.array(before, "int32"))
                same = ops.all(same, axis=1)
                ends = ops.logical_and(ends, same if len(ends.shape) == 1 else same[:, None])
            found = ops.logical_or(found, ends)
        return found


class Search:
    """A strategy, a step, and where texts end: all that a loop depends on but arrays.

    `arrays` makes these of what a function was given, and they may be computed in another program
    than the loop. `begin`, `go_on` as often as wanted, and `result` are the loop.

    The strategy chooses tokens of logits, with the interface of `Greedy`. A step that is `masked`
    has an argument `mask`, (R,), of the rows that have not ended.
    """

    def __init__(self, strategy, ends, step, masked=False):
        if not callable(step):
            raise TypeError(
                f"`step` must be a function (tokens, cache) -> (logits, cache). Received: {step!r}"
            )
        self.strategy, self.ends, self.step, self.masked = strategy, ends, step, masked
        # Those of a strategy come after the user's.
        ends.rules = (*ends.rules, *strategy.rules)

    def arrays(self, tokens, cache, memory=None, prompt=None):
        """The arrays of the loop, checked, by name; those that are None are left out."""
        meaning = "the last given token of each row (start token, or last of the prompt)"
        tokens = integers("tokens", tokens, 1, f"(B,), {meaning}")
        given = {"tokens": tokens, **self.settings(tokens.shape[0], ops.shape(tokens)[0], prompt)}
        for name, nested in (("memory", memory), ("cache", cache)):
            of_rows = functools.partial(_of_rows, name, tokens.shape[0])
            if nested is not None:
                given[name] = keras.tree.map_structure(of_rows, nested)
        return given

    def settings(self, known, rows, prompt=None):
        """The arrays that settings are: limits, states of rules, and those of the strategy.

        `rows` is the number of rows, and `known` the same, or None where it is symbolic.
        """
        ends, names = self.ends, [rule.title for rule in self.ends.rules if rule.reads_prompt]
        if names and prompt is None:
            raise ValueError(
                "`prompt` must be the text (B, T) before the first generated token, with `tokens` "
                f"as its last column, for {', '.join(names)}. Received: prompt=None"
            )
        if names:
            meaning = "(B, T), the tokens before the first generated one, and -1 for padding"
            prompt = integers("prompt", prompt, 2, meaning)
            sizes = {"tokens": known, "prompt": prompt.shape[0]}
            shapes.check_same("Rows of `tokens` and of every tensor of `prompt`", **sizes)
        limits = ends.limits
        if limits is None:
            limits = ops.full((rows,), ends.max_tokens, dtype="int32")
        shapes.check_same("Rows of `tokens` and of `max_tokens`", tokens=known, max=limits.shape[0])
        states = [rule.initial_state(rows) for rule in ends.rules]
        found = {"limits": limits, "states": states, "settings": self.strategy.settings(rows)}
        return found | {"prompt": prompt} if names else found

    def begin(self, arrays):
        """What does not change, and what the loop carries: (constants, carry)."""
        copies, rows = self.strategy.copies, ops.shape(arrays["tokens"])[0]
        known = arrays["tokens"].shape[0]

        def copied(leaf):
            if copies == 1 or leaf is None or _is_shared(leaf, known):
                return leaf
            return ops.repeat(leaf, copies, axis=0)

        names = ("memory", "prompt", "limits", "cache", "states")
        # Without None, which no program is given.
        given = {name: arrays[name] for name in names if arrays.get(name) is not None}
        constants = keras.tree.map_structure(copied, given)
        cache, states = constants.pop("cache", None), constants.pop("states")
        constants |= self.strategy.constants(arrays["settings"], self.ends.max_tokens)
        start = self.strategy.begin(self.ends, arrays["tokens"], arrays["limits"], rows)
        return constants, Carried(ops.convert_to_tensor(0, dtype="int32"), cache, states, start)

    def go_on(self, constants, carried, until=None, by_steps=False):
        """The loop, until all rows have ended, or so many steps are made in all."""
        until = self.ends.max_tokens if until is None else until
        # A loop cannot carry None, which a cache may contain.
        cache = carried.cache
        start = carried._replace(cache=_leaves(cache))

        def going(*now):
            now = Carried(*now)
            return ops.logical_and(now.count < until, self.strategy.going(constants, now))

        def advance(constants, *now):
            now = Carried(*now)
            found = self.advance(constants, now._replace(cache=_packed(cache, now.cache)))
            return found._replace(cache=_same(cache, found.cache))

        by_steps = by_steps or getattr(getattr(self.step, "__self__", None), "_keeps_steps", False)
        found = Carried(*backend.while_loop(going, advance, start, constants, by_steps))
        return found._replace(cache=_packed(cache, found.cache))

    def advance(self, constants, carried):
        """What is carried after one more step, whose result is checked."""
        tokens = self.strategy.last(carried)
        memory = [constants["memory"]] if "memory" in constants else []
        masks = {"mask": self.strategy.unfinished(carried)} if self.masked else {}
        found = self.step(tokens, carried.cache, *memory, **masks)
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise ValueError(
                f"`step` must return (logits, cache). Received: {type(found).__name__}"
            )
        logits, cache = found
        logits = ops.convert_to_tensor(logits)
        shape, dtype = kind(logits)
        of_rows = shapes.may_equal(shape, (tokens.shape[0], None)) and shape[1] is not None
        if not of_rows or "float" not in dtype:
            raise ValueError(
                "`step` must return logits (R, V), floats for each of R rows and V tokens, here "
                f"({tokens.shape[0]}, V). Received: shape={shape}, dtype={dtype}"
            )
        self.ends.check_vocabulary(shape[1])
        carried = carried._replace(cache=cache)
        return self.chosen(constants, carried, ops.cast(logits, "float32"))

    def chosen(self, constants, carried, logits):
        """What is carried after tokens are chosen of logits (R, V)."""
        parents, states, chosen = self.strategy.advance(self.ends, constants, carried, logits)
        cache = carried.cache
        if parents is not None:
            cache = select_rows(cache, parents)
        return Carried(carried.count + 1, cache, states, chosen)

    def run(self, arrays, begun=None):
        """The whole loop: what does not change, and what it carries after the last step."""
        constants, carried = begun or self.begin(arrays)
        carried = self.go_on(constants, carried)
        if self.strategy.copies > 1:
            # Where a row has several texts, none of them has the cache of the last step.
            carried = carried._replace(cache=arrays.get("cache"))
            constants |= {"memory": arrays.get("memory")}
        return constants, carried

    def result(self, constants, carried):
        """The `Generated`, with the cache that is carried."""
        found = self.strategy.result(self.ends, constants, carried)
        check_lost(ops.any(ops.isnan(found.scores)))
        found.cache = carried.cache
        return found

    def found(self, *given):
        """The `Generated` of what `arrays` takes."""
        return self.result(*self.run(self.arrays(*given)))


class Carried(NamedTuple):
    """What a loop carries: the number of steps, the cache, states of rules, and the texts."""

    count: Any
    cache: Any
    states: Any
    chosen: Any


def normalized(logits):
    """Logits (R, V) minus the best of their row, and their log-sum-exp (R, 1).

    It is −inf if all tokens of a row are forbidden, and NaN if a logit is NaN or +inf.
    """
    # Of the logits: XLA's maximum and exponential on CPUs may turn NaN into a number.
    unknown = ops.any(ops.isnan(logits), axis=-1, keepdims=True)
    best = ops.max(logits, axis=-1, keepdims=True)
    logits = logits - ops.where(ops.isfinite(best), best, 0.0)
    norm = ops.log(ops.sum(ops.exp(logits), axis=-1, keepdims=True))
    lost = ops.logical_or(unknown, norm == -NONE)
    return logits, ops.where(lost, float("nan"), norm)


def list_settings(function, strategy):
    """Has the signature of a function list what it passes on by `**settings`."""
    *own, _ = inspect.signature(function).parameters.values()
    settings = inspect.signature(strategy).parameters.values()
    every = [*own, *(x.replace(kind=x.KEYWORD_ONLY) for x in settings)]
    vars(function)["__signature__"] = inspect.Signature(every, return_annotation=Generated)


def text_of(history, lengths, limits, prompt, stops):
    """The `Text` of generated tokens (R, T), of which each row has so many, after a prompt."""
    written = ops.arange(history.shape[1], dtype="int32") < lengths[:, None]
    tokens, first = ops.where(written, history, NO_TOKEN), 0
    if prompt is not None:
        tokens, first = ops.concatenate([prompt, tokens], axis=1), prompt.shape[1]
    return Text(tokens, first, lengths, limits, stops)


def _limits(max_tokens):
    """The most tokens of any row, and of each row, (B,), or None where it is the same."""
    if not shapes.is_array(max_tokens) and not isinstance(max_tokens, (list, tuple)):
        return shapes.check_count("max_tokens", max_tokens), None
    limits = integers("max_tokens", max_tokens, 1, "an integer, or integers (B,)")
    # JAX hides the values of its own tensors, of constants too, while it traces a program.
    plain = isinstance(max_tokens, (list, tuple, np.ndarray))
    values = np.asarray(max_tokens) if plain else shapes.visible_values(limits)
    if values is None or values.min(initial=0) < 0 or values.max(initial=0) < 1:
        raise ValueError(
            "`max_tokens` must be positive, and known when a program is made. "
            f"Received: max_tokens={max_tokens!r}"
        )
    return int(values.max()), limits


def select_rows(cache: Tensors, rows: Tensor) -> Tensors:
    """The cache of some rows of a cache, in any order; a row may be there more than once.

    Args:
        cache: what `make_cache`, a call of a layer or a model, or `generate` gave, as the attribute
            `cache` of its result; or any tensors with rows on axis 0.
        rows: integers (N,).

    Returns:
        The same structure of N rows. Arrays that all rows share stay as they are.

    >>> import keras_attention as ka
    >>> cache = ka.MultiHeadAttention(2, 4).make_cache(batch_size=3, length=5)
    >>> tuple(ka.generation.select_rows(cache, [2, 0])["key"].shape)
    (2, 2, 5, 4)
    """
    rows = ops.convert_to_tensor(rows)
    known = {x.shape[0] for x in keras.tree.flatten(cache) if x is not None}
    count = max(known - {None}, default=None) if None not in known else None

    def select(leaf):
        return leaf if leaf is None or _is_shared(leaf, count) else ops.take(leaf, rows, axis=0)

    return keras.tree.map_structure(select, cache)


def _leaves(nested):
    return tuple(leaf for leaf in keras.tree.flatten(nested) if leaf is not None)


def _packed(nested, leaves):
    """A structure with other leaves, but for None."""
    rest = iter(leaves)
    every = [None if x is None else next(rest) for x in keras.tree.flatten(nested)]
    return keras.tree.pack_sequence_as(nested, every)


def _of_rows(name, rows, leaf):
    """A tensor of the cache or the memory, checked."""
    if leaf is None:
        return None
    leaf = ops.convert_to_tensor(leaf)
    if len(leaf.shape) == 0:
        raise ValueError(
            f"Every tensor of `{name}` must have rows on axis 0. Received a scalar: {leaf}"
        )
    if not _is_shared(leaf, rows):
        sizes = {"tokens": rows, name: leaf.shape[0]}
        shapes.check_same(f"Rows of `tokens` and of every tensor of `{name}`", **sizes)
    return leaf


def _is_shared(leaf, rows):
    """Whether a tensor has one row that is of all of so many, or of an unknown number."""
    return leaf.shape[0] == 1 != rows


def _same(before, cache):
    """The leaves of a cache, which must match the one before."""
    try:
        keras.tree.assert_same_structure(before, cache)
    except (ValueError, TypeError) as error:
        raise ValueError(
            "`step` must return a cache of the structure that it was given. "
            f"Received another: {error}"
        ) from error
    leaves = tuple(map(ops.convert_to_tensor, _leaves(cache)))
    for old, new in zip(_leaves(before), leaves, strict=True):
        expected, received = kind(old), kind(new)
        if expected[1] != received[1] or not shapes.may_equal(expected[0], received[0]):
            raise ValueError(
                "`step` must return a cache of the shapes and dtypes that it was given, "
                f"here {expected}. Received: {received}"
            )
    return leaves


def kind(tensor):
    """What arrays of one program have in common: their shape and dtype."""
    return tuple(tensor.shape), keras.backend.standardize_dtype(tensor.dtype)


def integers(name, given, rank, meaning):
    """An argument as a tensor of int32 with so many axes."""
    tensor = ops.convert_to_tensor(given)
    shape, dtype = kind(tensor)
    if "int" not in dtype:
        raise TypeError(f"`{name}` must be integers. Received: dtype {dtype}")
    if len(shape) != rank:
        raise ValueError(f"`{name}` must be {meaning}. Received: {name}.shape={shape}")
    return ops.cast(tensor, "int32")
