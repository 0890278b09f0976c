"""`Constraints` inside a loop: what they make of the logits of a step."""

import numpy as np
from keras import ops

# The logit of forbidden tokens.
NONE = -float("inf")
# No token: padding of a prompt, and positions that are not generated yet.
NO_TOKEN = -1


class Rules:
    """Functions of the logits and the text of a step, for one loop.

    Args:
        constraints: the `Constraints`.
        stop_tokens, max_tokens: as in `greedy`.
    """

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
        found = []
        if self.words:
            found += ["`sequence_bias` or `bad_words` of several tokens"]
        if self.given.repetition_penalty != 1:
            found += ["`repetition_penalty`"]
        if self.given.no_repeat_ngram_size:
            found += ["`no_repeat_ngram_size`"]
        return found

    def before(self, prompt):
        """A prompt (R, T) after as many columns of no token as a rule looks back at."""
        back = max((*self.words, self.given.no_repeat_ngram_size, 1)) - 1
        return ops.pad(prompt, ((0, 0), (back, 0)), constant_values=NO_TOKEN)

    def forced(self, t):
        """Whether the token of step `t` is forced, a boolean scalar."""
        found = ops.zeros_like(t, dtype="bool")
        for at in self.forced_tokens:
            found = ops.logical_or(found, ops.equal(t, at))
        return found

    def __call__(self, t, logits, history, prompt):
        """The logits (R, V) of step `t`, in which those of forbidden tokens are −inf.

        `history` are the tokens (R, max_tokens) of the loop; `prompt` is the result of `before`, or
        None where no rule depends on the text.
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
                logits = logits + _bias(words, _last(text, end, length - 1), size)
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


def penalized(logits, text, penalty):
    """Logits (R, V) in which the tokens of a text (R, T) are less likely."""
    changed = ops.where(logits > 0, logits / penalty, logits * penalty)
    return ops.where(marked(text, logits.shape[1]) > 0, changed, logits)


def marked(tokens, size, values=1.0):
    """(R, `size`) with `values` at the tokens (R, N) of each row, and 0 elsewhere.

    Tokens beyond the vocabulary mark nothing; `values` are for each of the N.
    """
    inside = ops.logical_and(tokens >= 0, tokens < size)
    # Those mark an additional column, which is cut off.
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


def _bias(words, before, size):
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
