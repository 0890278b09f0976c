"""Rules: what changes the logits of a step, by the text of a row so far."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_attention import saving
from keras_attention.core.hints import Tensor, Tensors
from keras_attention.sequences import shapes

# The logit of forbidden tokens.
NONE = -float("inf")
# No token: padding of a prompt, and places that are not generated yet.
NO_TOKEN = -1


class Text(NamedTuple):
    """The texts of R rows before a step, as a `Rule` gets them.

    Args:
        tokens: (R, N) int32, the prompt, if there is one, and the generated tokens, and −1 where
            there is no token.
        first: the column of the first generated token.
        lengths: (R,) int32, how many tokens are generated.
        limits: (R,) int32, how many may be.
        stops: the stop tokens and sequences, as tuples.
        state: what the rule's `initial_state` and `next_state` returned.
    """

    tokens: Tensor
    first: Any
    lengths: Tensor
    limits: Tensor
    stops: tuple[tuple[int, ...], ...] = ()
    state: Tensors = ()

    def last(self, count: int, generated: bool = False) -> Tensor:
        """The last `count` tokens (R, count); −1 before the text, or what is generated of it."""
        before = ops.arange(count, dtype="int32") - count
        at = self.first + self.lengths[:, None] + before
        begin = self.first if generated else 0
        found = ops.take_along_axis(self.tokens, ops.maximum(at, 0), axis=1)
        return ops.where(at >= begin, found, NO_TOKEN)

    def where(self, prompt: bool = True, window: int | None = None) -> Tensor:
        """The tokens (R, N), −1 but for those generated, of the prompt, and of a last window."""
        tokens, column = self.tokens, ops.arange(ops.shape(self.tokens)[1], dtype="int32")
        if not prompt:
            tokens = ops.where(column >= self.first, tokens, NO_TOKEN)
        if window is not None:
            begin = self.first + self.lengths[:, None] - window
            tokens = ops.where(column >= begin, tokens, NO_TOKEN)
        return tokens


class Rule(saving.Configurable, saved=False):
    """What changes the logits of a step, for `greedy`, `sample` and `beam_search`.

    A subclass has a method `__call__(logits, text)`, which returns the logits (R, V) of the next
    token, −inf for what is forbidden, of float32 logits (R, V) and the `Text` before it. It runs
    inside a loop that is compiled: it is written in `keras.ops`. An array of NumPy is used by
    functions of `keras.ops` alone, such as `keras.ops.add(x, array)`: `x + array` would keep
    PyTorch from recording the step, so that each token takes several times as long.

    A rule that keeps a state, as the automaton of a grammar does, has two methods more:
    `initial_state(rows)` returns it, tensors of so many rows, and `next_state(state, tokens)`
    returns it after tokens (R,). `text.state` has it. Beam search reorders it with its beams. Of a
    draft, `next_state` may get −1, no token, or a forbidden one: it must not fail, and what it
    returns there is not used.

    `a + b` is both, one after the other, as is a list of them. A rule with one attribute for each
    argument of its constructor is saved by `keras.saving.serialize_keras_object`.

    >>> import keras
    >>> from keras_attention import generation
    >>> class NotTwice(generation.Rule):
    ...     def __call__(self, logits, text):
    ...         same = keras.ops.one_hot(text.last(1)[:, 0], logits.shape[1]) > 0
    ...         return keras.ops.where(same, -float("inf"), logits)
    >>> def step(tokens, cache):
    ...     return keras.ops.tile([[0.0, 1.0, 3.0]], (tokens.shape[0], 1)), cache
    >>> found = generation.greedy(
    ...     step, [0], (), max_tokens=4, constraints=NotTwice(), prompt=[[0]]
    ... )
    >>> print(keras.ops.convert_to_numpy(found.tokens))
    [[2 1 2 1]]
    """

    # Whether it reads a prompt too, which then must be given.
    reads_prompt: bool = True
    # Tokens that it is about, which must be in the vocabulary.
    tokens: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """What a message calls it."""
        return type(self).__name__

    @property
    def parts(self) -> tuple[Rule, ...]:
        """The rules that it consists of."""
        return (self,)

    @property
    def form(self) -> Any:
        """What a program of it depends on: all but its state."""
        return self

    def initial_state(self, rows: int) -> Tensors:
        """The state before the first step: nested tensors, rows on axis 0."""
        return ()

    def __call__(self, logits: Tensor, text: Text) -> Tensor:
        raise TypeError(f"{type(self).__name__} must implement `__call__(logits, text)`.")

    def next_state(self, state: Tensors, tokens: Tensor) -> Tensors:
        """The state after tokens (R,)."""
        return state

    def forces(self, text: Text) -> Tensor | None:
        """Where the next token is certain, whatever the model says, (R,); or None."""
        return None

    def __add__(self, other: Rule) -> Rule:
        return Rules((self, other))


class Rules(Rule, saved=False):
    """Several rules, one after the other."""

    def __init__(self, rules):
        self.rules = tuple(rules)
        wrong = [rule for rule in self.rules if not isinstance(rule, Rule)]
        if wrong:
            raise TypeError(
                "`constraints` must be None, or `generation.Constraints` and other rules, such as "
                f"the sum or a list of several. Received: {wrong[0]!r}"
            )

    @property
    def parts(self):
        return tuple(part for rule in self.rules for part in rule.parts)


class Penalty(Rule):
    r"""Makes tokens of a text less likely to come again.

    Of a logit l of a token that the text has n > 0 times: l / θ if it is positive, and l · θ if not
    (`repetition` θ); then l − p (`presence` p); then l − f · n (`frequency` f).

    Args:
        repetition: above 0; 1 for none.
        presence, frequency: numbers; below 0 they make tokens more likely.
        window: None, or how many of the last tokens count.
        prompt: whether those of the prompt count too.

    >>> import keras
    >>> from keras_attention import generation
    >>> def step(tokens, cache):
    ...     return keras.ops.tile([[0.0, 1.0, 3.0]], (tokens.shape[0], 1)), cache
    >>> rule = generation.Penalty(frequency=1.5)
    >>> found = generation.greedy(step, [0], (), max_tokens=4, constraints=rule)
    >>> print(keras.ops.convert_to_numpy(found.tokens))
    [[2 2 1 0]]
    """

    def __init__(
        self,
        repetition: float = 1.0,
        presence: float = 0.0,
        frequency: float = 0.0,
        window: int | None = None,
        prompt: bool = False,
    ):
        self.repetition = shapes.check_positive("repetition", repetition)
        self.presence = shapes.check_number("presence", presence)
        self.frequency = shapes.check_number("frequency", frequency)
        self.window = shapes.check_optional_count("window", window)
        self.prompt = self.reads_prompt = shapes.check_flag("prompt", prompt)

    title = "`repetition_penalty`, or a `Penalty` of the prompt"

    def __call__(self, logits, text):
        counts = counted(text.where(self.prompt, self.window), logits.shape[1])
        if self.repetition != 1:
            changed = ops.where(logits > 0, logits / self.repetition, logits * self.repetition)
            logits = ops.where(counts > 0, changed, logits)
        if self.presence or self.frequency:
            logits = logits - self.presence * ops.cast(counts > 0, "float32")
            logits = logits - self.frequency * counts
        return logits


class LengthDecay(Rule):
    """Makes stop tokens more likely, the longer a text is.

    After n > `start` generated tokens the logit l of a stop token becomes
    l + |l| · (`factor`^(n − `start`) − 1). A sequence of several stop tokens is not changed.

    Args:
        start: how many tokens change nothing.
        factor: above 0; above 1 ends texts, and below 1 goes on.

    >>> import keras
    >>> from keras_attention import generation
    >>> def step(tokens, cache):
    ...     return keras.ops.tile([[1.0, 2.0]], (tokens.shape[0], 1)), cache
    >>> rule = generation.LengthDecay(start=2, factor=1.6)
    >>> found = generation.greedy(
    ...     step, [1], (), max_tokens=6, stop_tokens=(0,), constraints=rule
    ... )
    >>> print(keras.ops.convert_to_numpy(found.tokens))
    [[1 1 1 1 0 0]]
    """

    reads_prompt = False

    def __init__(self, start: int, factor: float):
        self.start = shapes.check_count("start", start, minimum=0)
        self.factor = shapes.check_positive("factor", factor)

    def __call__(self, logits, text):
        beyond = ops.cast(ops.maximum(text.lengths - self.start, 0), "float32")[:, None]
        stops = row(logits.shape[1], {stop[0]: 1.0 for stop in text.stops if len(stop) == 1})
        change = ops.abs(logits) * (self.factor**beyond - 1)
        # A forbidden one stays so.
        return ops.where(ops.logical_and(stops > 0, logits > NONE), logits + change, logits)


def counted(tokens, size, values=1.0):
    """(R, `size`): how often a row has each of its tokens (R, N), or sums of `values`, (N,)."""
    inside = ops.logical_and(tokens >= 0, tokens < size)
    # Tokens beyond the vocabulary count in an additional column, which is cut off.
    token = ops.where(inside, tokens, size)
    rows = ops.shape(token)[0]
    first = (size + 1) * ops.arange(rows, dtype="int32")[:, None]
    values = ops.broadcast_to(ops.convert_to_tensor(values, dtype="float32"), ops.shape(token))
    flat = ops.reshape(values, (-1,)), ops.reshape(first + token, (-1,))
    sums = ops.segment_sum(*flat, num_segments=rows * (size + 1))
    return ops.reshape(sums, (rows, size + 1))[:, :size]


def row(size, values):
    """(1, `size`) with a value for some tokens, and 0 for others."""
    found = np.zeros((1, size), "float32")
    found[0, list(values)] = list(values.values())
    return found


def apply(rules, logits, text, states):
    """The logits (R, V) after all rules, of the text before them and the state of each."""
    for rule, state in zip(rules, states, strict=True):
        logits = rule(logits, text._replace(state=state))
    return logits


def forced(rules, text, states):
    """Where a rule says that the next token is certain, (R,); or None if none ever does."""
    found = None
    for rule, state in zip(rules, states, strict=True):
        here = rule.forces(text._replace(state=state))
        if here is not None:
            found = here if found is None else ops.logical_or(found, here)
    return found


def check_listed(name, values, of):
    """Raises unless values are a sequence."""
    if not isinstance(values, (tuple, list, np.ndarray)):
        raise TypeError(f"`{name}` must be a tuple of {of}. Received: {values!r}")


def read_tokens(name, values, least=0):
    """Tokens as a tuple of integers."""
    check_listed(name, values, "tokens")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"`{name}` must have tokens, which are integers. Received: {value!r}")
        shapes.check_range(name, value, "int32")
        if value < least:
            raise ValueError(f"`{name}` must have tokens of at least {least}. Received: {value!r}")
    return tuple(map(int, values))
