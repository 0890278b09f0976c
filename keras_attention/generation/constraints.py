"""`Constraints`: what generated texts must and must not have, whatever the model says."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_attention.generation import rules
from keras_attention.generation.rules import NO_TOKEN, NONE, Penalty, Rule, counted, row
from keras_attention.sequences import shapes

Words = Sequence[Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Constraints(Rule):
    r"""What generated texts must and must not have, for `greedy`, `sample` and `beam_search`.

    In each step these change the logits of a row, in this order:

    1. `sequence_bias`: a number b of a sequence y_1 … y_n is added to the logit of y_n where the
       text ends with y_1 … y_{n−1}.
    2. `repetition_penalty` θ: the logit l of each token of the text becomes l / θ if it is
       positive, and l · θ if not.
    3. `no_repeat_ngram_size` n: forbids each token that would end n tokens of which the text has
       the same already (Paulus et al. 2018, section 2.5, have n = 3).
    4. `bad_words`, `suppress_tokens`, `begin_suppress_tokens` and `min_tokens` forbid tokens.
    5. `forced_first_token` and `forced_last_token` forbid all but one.

    The text of a row is its prompt with the tokens generated so far. Forbidden tokens have a logit
    of −inf. What needs the text needs the argument `prompt` of the function: `sequence_bias` and
    `bad_words` of two tokens and more, `repetition_penalty`, `no_repeat_ngram_size`.

    `greedy` and `sample` return the model's own log-probabilities, of before all of this.
    `beam_search` changes log-probabilities in place of logits, does not normalize them again, and
    compares and returns the changed ones. That of a forced token is 0.

    Args:
        suppress_tokens: tokens that are never generated.
        begin_suppress_tokens: tokens that are not the first; not the second, where
            `forced_first_token` is the first.
        forced_first_token: None, or the first generated token, such as the language of a
            translation; or a sequence of integers, one for each row.
        forced_last_token: None, or the token number `max_tokens`, usually a stop token, of rows
            that have not ended before.
        bad_words: sequences of tokens that are never generated.
        sequence_bias: a dictionary from sequences of tokens, as tuples, to numbers.
        min_tokens: how many tokens come before a stop token.
        repetition_penalty: above 0; 1 for none.
        no_repeat_ngram_size: 0 for none.

    Raises:
        TypeError: tokens are not integers, or an argument is no sequence or dictionary of such.
        ValueError: a token is negative, a sequence is empty, or a number is not as described. A
            token that is not in the vocabulary raises when a step is made.

    >>> import keras
    >>> from keras_attention import generation
    >>> table = keras.ops.roll(keras.ops.eye(4), 1, axis=1)  # 1 comes after 0, and so on
    >>> def step(tokens, cache):
    ...     return keras.ops.take(table, tokens, axis=0), cache
    >>> rules = generation.Constraints(forced_last_token=3, bad_words=[(1, 2)])
    >>> found = generation.greedy(
    ...     step, [0], (), max_tokens=4, constraints=rules, prompt=[[3, 0]]
    ... )
    >>> print(keras.ops.convert_to_numpy(found.tokens))
    [[1 0 1 3]]
    """

    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()
    forced_first_token: int | Sequence[int] | None = None
    forced_last_token: int | None = None
    bad_words: Words = ()
    sequence_bias: Mapping[Sequence[int], float] = dataclasses.field(
        default_factory=dict, hash=False
    )
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0

    def __post_init__(self):
        for name in ("suppress_tokens", "begin_suppress_tokens"):
            self._set(name, rules.read_tokens(name, getattr(self, name)))
        for name in ("forced_first_token", "forced_last_token"):
            token = getattr(self, name)
            if name == "forced_first_token" and isinstance(token, (tuple, list, np.ndarray)):
                self._set(name, rules.read_tokens(name, token))
            elif token is not None:
                self._set(name, rules.read_tokens(name, (token,))[0])
        if not isinstance(self.sequence_bias, Mapping):
            raise TypeError(
                "`sequence_bias` must be a dictionary from tuples of tokens to numbers. "
                f"Received: {self.sequence_bias!r}"
            )
        self._set("bad_words", _words("bad_words", self.bad_words))
        biases = [
            bias if bias == NONE else shapes.check_number("sequence_bias", bias)
            for bias in self.sequence_bias.values()
        ]
        words = _words("sequence_bias", tuple(self.sequence_bias))
        self._set("sequence_bias", dict(zip(words, biases, strict=True)))
        for name in ("min_tokens", "no_repeat_ngram_size"):
            self._set(name, shapes.check_count(name, getattr(self, name), minimum=0))
        penalty = shapes.check_positive("repetition_penalty", self.repetition_penalty)
        self._set("repetition_penalty", penalty)

    def _set(self, name, value):
        object.__setattr__(self, name, value)

    @functools.cached_property
    def parts(self):
        """The rules, in the order in which they change logits."""
        first, last = self.forced_first_token, self.forced_last_token
        size = self.no_repeat_ngram_size
        words = {**self.sequence_bias, **dict.fromkeys(self.bad_words, NONE)}
        words |= {(token,): NONE for token in self.suppress_tokens}
        penalty = Penalty(self.repetition_penalty, prompt=True)
        begin = {(token,): NONE for token in self.begin_suppress_tokens}
        found = [
            (Bias(words), words),
            (penalty, self.repetition_penalty != 1),
            (NoRepeats(size), size),
            (Bias(begin, step=int(first is not None)), begin),
            (Fewest(self.min_tokens), self.min_tokens),
            (Forced(first), first is not None),
            (Forced(last, last=True), last is not None),
        ]
        return tuple(rule for rule, needed in found if needed)

    def get_config(self):
        # JSON has no tuples for keys.
        return super().get_config() | {"sequence_bias": [*map(list, self.sequence_bias.items())]}

    @classmethod
    def from_config(cls, config):
        biases = {tuple(word): bias for word, bias in config["sequence_bias"]}
        return super().from_config(config | {"sequence_bias": biases})


def _words(name, values):
    """Sequences of tokens as tuples of tuples, none of them empty."""
    rules.check_listed(name, values, "sequences of tokens")
    words = tuple(rules.read_tokens(name, word) for word in values)
    if () in words:
        raise ValueError(
            f"`{name}` must have sequences of at least one token. Received: {values!r}"
        )
    return words


class Bias(Rule, saved=False):
    """Adds numbers to the logits of the last tokens of sequences, in one step or in all."""

    form: Any = None
    title = "`sequence_bias` or `bad_words` of several tokens"

    def __init__(self, biases, step=None):
        """Of a dictionary from tuples of tokens."""
        self.biases, self.step = biases, step
        self.tokens = tuple(token for word in biases for token in word)
        self.reads_prompt = any(len(word) > 1 for word in biases)
        self.form = "bias", tuple(biases.items()), step

    def __call__(self, logits, text):
        changed = _biased(logits, self.biases, text)
        if self.step is None:
            return changed
        return ops.where((text.lengths == self.step)[:, None], changed, logits)


class Fewest(Rule, saved=False):
    """Forbids stop tokens, and the last tokens of stop sequences, before so many tokens."""

    reads_prompt = False

    def __init__(self, count):
        self.count = count

    def __call__(self, logits, text):
        changed = _biased(logits, dict.fromkeys(text.stops, NONE), text, generated=True)
        return ops.where((text.lengths < self.count)[:, None], changed, logits)


class NoRepeats(Rule, saved=False):
    """Forbids the tokens that would end n tokens of which the text has the same already."""

    title = "`no_repeat_ngram_size`"

    def __init__(self, size):
        self.size = size

    def __call__(self, logits, text):
        before, following = text.last(self.size - 1), text.tokens[:, self.size - 1 :]
        same = ops.logical_and(following >= 0, ops.all(before >= 0, axis=1, keepdims=True))
        for n in range(self.size - 1):
            window = text.tokens[:, n : n + ops.shape(following)[1]]
            same = ops.logical_and(same, ops.equal(window, before[:, n : n + 1]))
        found = ops.where(same, following, NO_TOKEN)
        return ops.where(counted(found, logits.shape[1]) > 0, NONE, logits)


class Forced(Rule, saved=False):
    """Forbids all tokens but one, which rows may have of their own, in the first step or the last.

    With one token at most the first is the last: then the rule that comes last wins.
    """

    form: Any = None
    reads_prompt = False

    def __init__(self, token, last=False):
        self.token, self.last, self.of_rows = token, last, isinstance(token, tuple)
        self.tokens = token if self.of_rows else (token,)
        # Those of rows are arrays that a program is given.
        self.form = "forced", None if self.of_rows else token, last

    def initial_state(self, rows):
        if not self.of_rows:
            return ()
        sizes = {"tokens": rows, "forced_first_token": len(self.token)}
        shapes.check_same("Rows of `tokens` and of `forced_first_token`", **sizes)
        return ops.convert_to_tensor(self.token, "int32")

    def __call__(self, logits, text):
        token = text.state[:, None] if self.of_rows else self.token
        only = ops.arange(logits.shape[1], dtype="int32") == token
        return ops.where(self.forces(text)[:, None], ops.where(only, 0.0, NONE), logits)

    def forces(self, text):
        return text.lengths + 1 == text.limits if self.last else text.lengths == 0


def _biased(logits, biases, text, generated=False):
    """Logits to which numbers are added after a text, or what is generated of it."""
    size = logits.shape[1]
    alone = {word[0]: bias for word, bias in biases.items() if len(word) == 1}
    if alone:
        logits = logits + ops.convert_to_tensor(row(size, alone))
    # Sequences of one length are compared at once.
    for length in sorted({len(word) for word in biases} - {1}):
        words = {word: bias for word, bias in biases.items() if len(word) == length}
        known = np.array(list(words), "int32")
        before = text.last(length - 1, generated)
        ends = ops.all(ops.equal(before[:, None], known[None, :, :-1]), axis=2)
        # Of the sequences with one last token, at most one matches, since all have one length.
        last = ops.where(ends, known[None, :, -1], NO_TOKEN)
        logits = logits + counted(last, size, np.array(list(words.values()), "float32"))
    return logits
