"""`Constraints`: what generated texts must and must not have, whatever the model says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from keras_attention import shapes

Words = Sequence[Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Constraints:
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
            translation.
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

    Example:

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
    forced_first_token: int | None = None
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
            self._set(name, _tokens(name, getattr(self, name)))
        for name in ("forced_first_token", "forced_last_token"):
            token = getattr(self, name)
            self._set(name, None if token is None else _tokens(name, (token,))[0])
        if not isinstance(self.sequence_bias, Mapping):
            raise TypeError(
                "`sequence_bias` must be a dictionary from tuples of tokens to numbers. "
                f"Received: {self.sequence_bias!r}"
            )
        self._set("bad_words", _words("bad_words", self.bad_words))
        biases = map(_bias, self.sequence_bias.values())
        words = _words("sequence_bias", tuple(self.sequence_bias))
        self._set("sequence_bias", dict(zip(words, biases, strict=True)))
        for name in ("min_tokens", "no_repeat_ngram_size"):
            self._set(name, shapes.check_count(name, getattr(self, name), minimum=0))
        penalty = shapes.check_number("repetition_penalty", self.repetition_penalty, above=0)
        self._set("repetition_penalty", penalty)

    def _set(self, name, value):
        object.__setattr__(self, name, value)


def _bias(value):
    """A finite number, or an infinite one that forbids."""
    return value if value == -float("inf") else shapes.check_number("sequence_bias", value)


def _words(name, values):
    words = tuple(_tokens(name, word) for word in _sequence(name, values, "sequences of tokens"))
    if () in words:
        raise ValueError(
            f"`{name}` must have sequences of at least one token. Received: {values!r}"
        )
    return words


def _tokens(name, values):
    found = tuple(_sequence(name, values, "tokens"))
    for value in found:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"`{name}` must have tokens, which are integers. Received: {value!r}")
        if value < 0:
            raise ValueError(f"`{name}` must have tokens of at least 0. Received: {value!r}")
        shapes.check_range(name, value, "int32")
    return tuple(map(int, found))


def _sequence(name, values, of):
    if not isinstance(values, (tuple, list, np.ndarray)):
        raise TypeError(f"`{name}` must be a tuple of {of}. Received: {values!r}")
    return values
