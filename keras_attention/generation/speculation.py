"""Speculative decoding: several tokens in a step, where a draft of them was right."""

from __future__ import annotations

import functools
from typing import Any

import keras
from keras import ops

from keras_attention.core.hints import Tensor
from keras_attention.generation.rules import NO_TOKEN
from keras_attention.generation.sampling import Written, flat, write
from keras_attention.generation.search import Carried, Search, text_of
from keras_attention.sequences import shapes


def read(model, ids, real, cache, context=None):
    """Float32 logits (R, V) after a prompt (R, T), and the cache that has read it."""
    given = {"mask": real, "cache": cache, "training": False, "logits_to_keep": 1}
    logits, cache = model(ids, context, **given)
    return ops.cast(logits[:, 0], "float32"), cache


class PromptLookup:
    """Drafts of what followed the last tokens where the text had them before (Saxena 2023).

    For `generate` of a model, whose texts repeat parts of their prompt or of themselves: code,
    summaries, answers about a text, edits. Of the last `ngram` tokens, or fewer, the latest earlier
    occurrence in prompt and text counts.

    Args:
        tokens: how many tokens are drafted.
        ngram: how many tokens are looked up at most.

    >>> from keras_attention import generation
    >>> generation.PromptLookup(tokens=6).tokens
    6
    """

    reads_prompt = True

    def __init__(self, tokens: int = 8, ngram: int = 3):
        self.tokens = shapes.check_count("tokens", tokens)
        self.ngram = shapes.check_count("ngram", ngram)
        self.form: Any = "lookup", self.tokens, self.ngram

    def begin(self, ids: Tensor, real: Tensor, room: int, cache: Any = None) -> Any:
        """What it has read of a prompt (R, T)."""
        return ()

    def propose(self, search, constants, carried, state, active):
        """Tokens (R, k), −1 where it has none, and its next state."""
        chosen = carried.chosen
        given = chosen.lengths, constants["limits"], constants["prompt"]
        text = text_of(ops.transpose(chosen.history), *given, ())
        end = (text.first + text.lengths)[:, None]
        size = text.tokens.shape[1]
        column = ops.arange(size, dtype="int32")
        # After a padding of no token, so that the token before a column is at that column.
        padded = ops.pad(text.tokens, ((0, 0), (self.ngram, 0)), constant_values=NO_TOKEN)
        last, same, best = text.last(self.ngram), column < end, 0
        for n in range(1, self.ngram + 1):
            before = padded[:, self.ngram - n : self.ngram - n + size]
            token = last[:, self.ngram - n, None]
            same = ops.logical_and(same, ops.logical_and(before == token, token >= 0))
            # Longer matches count more than later ones.
            best = ops.maximum(best, ops.where(same, column + n * size, 0))
        best = ops.max(best, axis=1, keepdims=True)
        # A text that repeats its last tokens goes on to do so: after its end comes that part again.
        first = best % size
        at = ops.arange(self.tokens, dtype="int32") % ops.maximum(end - first, 1)
        drafts = ops.take_along_axis(text.tokens, ops.minimum(first + at, size - 1), axis=1)
        return ops.where(best > 0, drafts, NO_TOKEN), state

    def cut(self, state, ids, mask, taken):
        """The state without those of its last tokens (R, N) that are beyond the first `taken`."""
        return state


class DraftModel:
    """Drafts of a smaller model of the same tokens (Leviathan et al. 2023; Chen et al. 2023).

    Args:
        model: a `Decoder`.
        tokens: how many tokens are drafted.

    >>> import keras_attention as ka
    >>> tokens = ka.Embeddings(ka.ScaledEmbedding(10, 4))
    >>> small = ka.Decoder([ka.TransformerBlock(8, 1, causal=True)], tokens, logits=ka.Logits(10))
    >>> ka.generation.DraftModel(small, tokens=3).tokens
    3
    """

    reads_prompt = False

    def __init__(self, model: keras.Model, tokens: int = 4):
        if not hasattr(model, "make_cache"):
            raise TypeError(f"`model` must be a `Decoder`. Received: {model!r}")
        self.model, self.tokens = model, shapes.check_count("tokens", tokens)
        self.form: Any = "model", id(model), self.tokens

    def begin(self, ids: Tensor, real: Tensor, room: int, cache: Any = None) -> Any:
        if cache is None:
            cache = self.model.make_cache(ops.shape(ids)[0], room, spare=self.tokens + 1)
        return read(self.model, ids, real, cache)[1]

    def propose(self, search, constants, carried, state, active):
        cache, drafts, tokens = state, [], carried.chosen.tokens
        for n in range(self.tokens + 1):
            lengths = carried.chosen.lengths + n
            # Beyond the end of a text the cache may have no room.
            fits = ops.logical_and(active, lengths < constants["limits"])
            logits, cache = self.model.steps(tokens[:, None], cache, mask=fits[:, None])
            # The numbers with which the large model will draw: alike models draw alike tokens.
            logits = ops.cast(logits[:, 0], "float32")
            tokens = ops.cast(search.strategy.choose(logits, constants, lengths), "int32")
            drafts.append(tokens)
        # The last is not read by anyone; its step has the cache read the one before.
        return ops.stack(drafts[:-1], axis=1), cache

    def cut(self, state, ids, mask, taken):
        return cut(self.model, state, ids, mask, taken)


class Speculation(Search):
    """A search whose steps read a draft after the last token, and keep what is right of it.

    At each place of the draft a token is chosen as ever, with the random numbers of its place. As
    long as these are the tokens of the draft, they are what the model would have read by itself: so
    the texts are those of the search without a draft, whatever the draft. (Where models differ,
    fewer tokens are accepted than by the test of the papers, which keeps distributions, not texts.)

    It has the draft, a `PromptLookup` or `DraftModel`, the `Decoder`, and what `Search` has.
    """

    def __init__(self, draft, model, **given):
        super().__init__(**given, masked=True)
        self.draft, self.model = draft, model

    def advance(self, constants, carried):
        (cache, state), chosen = carried.cache, carried.chosen
        active = self.strategy.unfinished(carried)
        drafts, state = self.draft.propose(self, constants, carried, state, active)
        ids = ops.concatenate([chosen.tokens[:, None], ops.maximum(drafts, 0)], axis=1)
        # Where there is no draft, none is read, nor beyond the end of a text.
        fits = chosen.lengths[:, None] + ops.arange(ids.shape[1], dtype="int32")
        fits = ops.logical_and(active[:, None], fits < constants["limits"][:, None])
        mask = ops.logical_and(fits, ops.pad(drafts >= 0, ((0, 0), (1, 0)), constant_values=True))
        logits, cache = self.model.steps(ids, cache, constants.get("memory"), mask)
        self.ends.check_vocabulary(logits.shape[2])
        chosen, states, taken = self.written(constants, carried, ids, drafts, logits)
        cache = cut(self.model, cache, ids, mask, taken)
        cache = cache, self.draft.cut(state, ids, fits, taken)
        return Carried(carried.count + 1, cache, states, chosen)

    def written(self, constants, carried, ids, drafts, logits):
        """The texts after the tokens that count, the states of rules, and their numbers (R,).

        Each of the N places of tokens (R, N) is a row by itself, whose text has the drafts before.
        """
        chosen, count, states = carried.chosen, ids.shape[1], [carried.states]
        places = chosen.lengths[:, None] + ops.arange(count, dtype="int32")
        active = self.strategy.unfinished(carried)[:, None]
        history = write(chosen.history, places[:, :-1], active, drafts)
        for n in range(count - 1):
            states.append(self.ends.next_states(states[-1], drafts[:, n]))
        states = keras.tree.map_structure(lambda *x: flat(ops.stack(x, axis=1)), *states)
        each = functools.partial(ops.repeat, repeats=count)
        every = Written(
            flat(ids),
            each(chosen.finished, axis=0),
            flat(places),
            each(history, axis=1),
            each(chosen.log_probs, axis=1),
        )
        of_rows = {name: each(x, axis=0) for name, x in constants.items() if name != "memory"}
        given = Carried(carried.count, (), states, every), ops.cast(flat(logits), "float32")
        _, states, after = self.strategy.advance(self.ends, of_rows, *given)
        new, ended, lengths = (ops.reshape(x, (-1, count)) for x in after[:3])
        right = ops.logical_and(new[:, :-1] == drafts, ops.logical_not(ended[:, :-1]))
        alive = ops.concatenate([active, right], axis=1)
        alive = ops.cumprod(ops.cast(alive, "int32"), axis=1) > 0
        taken = ops.cast(ops.sum(ops.cast(alive, "int32"), axis=1), "int32")
        rows = count * ops.arange(ops.shape(ids)[0], dtype="int32") + ops.maximum(taken - 1, 0)
        tokens, finished, length, states = keras.tree.map_structure(
            lambda x: ops.take(x, rows, axis=0), (*after[:3], states)
        )
        at = ops.minimum(flat(places), after.log_probs.shape[0] - 1)[None]
        found = ops.reshape(ops.take_along_axis(after.log_probs, at, axis=0), (-1, count))
        history = write(chosen.history, places, ops.logical_and(alive, lengths > places), new)
        log_probs = write(chosen.log_probs, places, alive, found)
        return Written(tokens, finished, length, history, log_probs), states, taken


def cut(model, cache, ids, mask, taken):
    """The cache without those of the last tokens (R, N) that are not among the first `taken`."""
    own = None if model.embeddings is None else model.embeddings.compute_mask(ids)
    # Those that embeddings mask are in no cache.
    mask = mask if own is None else ops.logical_and(mask, own)
    wrong = ops.logical_and(mask, ops.arange(ids.shape[1], dtype="int32") >= taken[:, None])
    count = ops.sum(ops.cast(wrong, "int32"), axis=1)
    return model.cut_cache(cache, cache[0]["index"] - ops.cast(count, "int32"))
