"""`Constraints`: what generated texts must and must not have, whatever the model says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from keras import ops

from keras_attention.sequences import shapes

Words = Sequence[Sequence[int]]

# The logit of forbidden tokens.
NONE = -float("inf")
# No token: padding of a prompt, and positions that are not generated yet.
NO_TOKEN = -1


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


def _words(name, values):
    """Sequences of tokens as tuples of tuples, none of them empty."""
    _check_listed(name, values, "sequences of tokens")
    words = tuple(_tokens(name, word) for word in values)
    if () in words:
        raise ValueError(
            f"`{name}` must have sequences of at least one token. Received: {values!r}"
        )
    return words


def _tokens(name, values):
    """Tokens as a tuple of integers."""
    _check_listed(name, values, "tokens")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"`{name}` must have tokens, which are integers. Received: {value!r}")
        if value < 0:
            raise ValueError(f"`{name}` must have tokens of at least 0. Received: {value!r}")
        shapes.check_range(name, value, "int32")
    return tuple(map(int, values))


def _check_listed(name, values, of):
    if not isinstance(values, (tuple, list, np.ndarray)):
        raise TypeError(f"`{name}` must be a tuple of {of}. Received: {values!r}")


class Rules:
    """What `Constraints` do to the logits of each step of one loop."""

    def __init__(self, constraints, stop_tokens, max_tokens):
        self.given = constraints
        self.stop_tokens = tuple(stop_tokens)
        # With `max_tokens=1` the first token is the last: then the last one's rule wins.
        forced = {0: constraints.forced_first_token}
        if constraints.forced_last_token is not None:
            forced[max_tokens - 1] = constraints.forced_last_token
        self.forced_tokens = {at: token for at, token in forced.items() if token is not None}
        never = dict.fromkeys(constraints.bad_words, NONE)
        words = constraints.sequence_bias | never
        self.biases = {word[0]: bias for word, bias in words.items() if len(word) == 1}
        self.biases |= dict.fromkeys(constraints.suppress_tokens, NONE)
        # Longer sequences by their length: those of one length are compared at once.
        self.words: dict[int, dict] = {}
        for word, bias in words.items():
            if len(word) > 1:
                self.words.setdefault(len(word), {})[word] = bias
        self._rows = None

    def of_text(self):
        """Names of the arguments that depend on the text."""
        given = {
            "`sequence_bias` or `bad_words` of several tokens": self.words,
            "`repetition_penalty`": self.given.repetition_penalty != 1,
            "`no_repeat_ngram_size`": self.given.no_repeat_ngram_size,
        }
        return [name for name, depends in given.items() if depends]

    def before(self, prompt):
        """A prompt (R, T) after as many columns of no token as a rule looks back at."""
        back = max((*self.words, self.given.no_repeat_ngram_size, 1)) - 1
        return ops.pad(prompt, ((0, 0), (back, 0)), constant_values=NO_TOKEN)

    def forced(self, t):
        """Whether the token of step `t` is forced, a boolean scalar."""
        return among(t, self.forced_tokens)

    def __call__(self, t, logits, history, prompt):
        """The logits (R, V) of step `t` after tokens (R, max_tokens) and what `before` returned.

        Those of forbidden tokens are −inf. `prompt` is None where no rule depends on the text.
        """
        given, size = self.given, logits.shape[1]
        if self._rows is None:
            self._rows = self._of_vocabulary(size)
        bias, first, stops, forced = self._rows
        if self.biases:
            logits = logits + ops.convert_to_tensor(bias)
        if prompt is not None:
            written = ops.arange(history.shape[1], dtype="int32") < t
            text = ops.concatenate([prompt, ops.where(written, history, NO_TOKEN)], axis=1)
            end = ops.shape(prompt)[1] + t
            for length, words in self.words.items():
                logits = logits + _bias_of(words, _last(text, end, length - 1), size)
            if given.repetition_penalty != 1:
                logits = penalized(logits, text, given.repetition_penalty)
            if given.no_repeat_ngram_size:
                before = _last(text, end, given.no_repeat_ngram_size - 1)
                logits = ops.where(marked(_followers(text, before), size) > 0, NONE, logits)
        if given.begin_suppress_tokens:
            now = ops.equal(t, int(given.forced_first_token is not None))
            logits = ops.where(ops.logical_and(now, first), NONE, logits)
        if given.min_tokens and self.stop_tokens:
            logits = ops.where(ops.logical_and(t < given.min_tokens, stops), NONE, logits)
        for at, only in forced.items():
            logits = ops.where(ops.equal(t, at), only, logits)
        return logits

    def _of_vocabulary(self, size):
        """Arrays (1, `size`): biases, the first and the stop tokens, and logits by step."""
        given = self.given
        known = [*self.biases, *given.begin_suppress_tokens, *self.forced_tokens.values()]
        known += [token for words in self.words.values() for word in words for token in word]
        beyond = sorted({token for token in known if token >= size})
        if beyond:
            raise ValueError(
                f"`constraints` must have tokens of the vocabulary, 0 to {size - 1}. "
                f"Received: {beyond}"
            )
        chosen = (given.begin_suppress_tokens, self.stop_tokens)
        return (
            _row(size, self.biases),
            *(_row(size, dict.fromkeys(tokens, 1.0)) > 0 for tokens in chosen),
            {at: _row(size, {token: 0.0}, NONE) for at, token in self.forced_tokens.items()},
        )


def among(array, numbers):
    """Where an array has one of some numbers."""
    found = ops.zeros_like(array, dtype="bool")
    for number in numbers:
        found = ops.logical_or(found, ops.equal(array, number))
    return found


def penalized(logits, text, penalty):
    """Logits (R, V) in which the tokens of a text (R, T) are less likely."""
    changed = ops.where(logits > 0, logits / penalty, logits * penalty)
    return ops.where(marked(text, logits.shape[1]) > 0, changed, logits)


def marked(tokens, size, values=1.0):
    """(R, `size`) with `values`, for each of N, at the tokens (R, N) of a row; 0 elsewhere."""
    inside = ops.logical_and(tokens >= 0, tokens < size)
    # Tokens beyond the vocabulary mark an additional column, which is cut off.
    token = ops.where(inside, tokens, size)
    rows = ops.shape(token)[0]
    row = ops.broadcast_to(ops.arange(rows, dtype="int32")[:, None], ops.shape(token))
    pairs = ops.reshape(ops.stack([row, token], axis=-1), (-1, 2))
    values = ops.broadcast_to(ops.convert_to_tensor(values, dtype="float32"), ops.shape(token))
    # On PyTorch, Keras's `scatter` is a loop in Python.
    empty = ops.zeros((rows, size + 1))
    return ops.scatter_update(empty, pairs, ops.reshape(values, (-1,)))[:, :size]


def _last(text, end, count):
    """The `count` tokens of a text (R, T) before `end`."""
    return ops.take(text, end - count + ops.arange(count, dtype="int32"), axis=1)


def _bias_of(words, before, size):
    """What is added to logits (R, `size`) for sequences of one length, after `before`."""
    known = np.array(list(words), "int32")
    ends = ops.all(ops.equal(before[:, None], known[None, :, :-1]), axis=2)
    # Of the sequences with one last token, at most one matches, since all have one length.
    last = ops.where(ends, known[None, :, -1], NO_TOKEN)
    return marked(last, size, np.array(list(words.values()), "float32"))


def _followers(text, before):
    """The tokens that follow `before` (R, N) in a text (R, T), and no token elsewhere."""
    count = before.shape[1]
    following = text[:, count:]
    windows = ops.shape(following)[1]
    same = ops.logical_and(following >= 0, ops.all(before >= 0, axis=1, keepdims=True))
    for n in range(count):
        same = ops.logical_and(same, ops.equal(text[:, n : n + windows], before[:, n : n + 1]))
    return ops.where(same, following, NO_TOKEN)


def _row(size, values, otherwise=0.0):
    """(1, `size`) with a value for some tokens."""
    found = np.full((1, size), otherwise, "float32")
    found[0, list(values)] = list(values.values())
    return found
