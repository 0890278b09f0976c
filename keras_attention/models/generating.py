"""`generate` and `stream` of a model: programs for a few sizes, made once and kept."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Sized
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attention.generation import DraftModel, Generated, Stream, compiled
from keras_attention.generation.rules import NO_TOKEN
from keras_attention.generation.search import Search, kind
from keras_attention.generation.speculation import Speculation, read
from keras_attention.generation.streams import chosen
from keras_attention.layers import kv_cache
from keras_attention.sequences import masks, shapes


def rounded(size: int, least: int = 1) -> int:
    """The next of the sizes 1, 2, 3, 4, 6, 8, 12, 16, …, from the least one on."""
    found = max(least, 1)
    while found < size:
        # Of 2ⁿ and 3 · 2ⁿ.
        found += found // 3 if found % 3 == 0 else max(found // 2, 1)
    return found


class Kept:
    """The programs of a model, as long as its variables are the same."""

    def __init__(self):
        self.variables, self.programs = [], {}

    def __deepcopy__(self, memo):
        return Kept()

    def of(self, model):
        """The programs by what they depend on."""
        # Quantization and adapters, for two, make other variables.
        now = model.variables
        if [*map(id, now)] != [*map(id, self.variables)]:
            self.variables, self.programs = now, {}
        return self.programs


class Request:
    """A call of `generate` or `stream`: its arrays, of sizes that are rounded, and its programs.

    Texts, and how many of their last tokens are unread, are of `_texts`; `past` is what they go on
    from, or {}; `draft` is where drafts come from, or None; `more` are other arrays of rows.
    """

    def __init__(self, model, decoder, text, unread, *given):
        self.model, self.decoder, self.read_text = model, decoder, text
        max_tokens, method, settings, past, draft, more = given
        # The tokens to be read.
        ids = text[:, -int(unread.max(initial=1)) :]
        real = np.arange(ids.shape[1]) >= ids.shape[1] - unread[:, None]
        self.dtype = settings.pop("cache_dtype", None)
        limits = np.broadcast_to(keras.ops.convert_to_numpy(max_tokens), ids.shape[:1])
        self.columns, self.rows = int(limits.max(initial=0)), ids.shape[0]
        # With 0, the prompt is read for a later call.
        strategy, ends = chosen(method, max_tokens if self.columns else 1, settings)
        ends.limits, ends.max_tokens = limits.astype("int32"), rounded(self.columns, 16)
        of_search = {"strategy": strategy, "ends": ends, "step": self._step}
        if draft is None:
            self.search = Search(**of_search, masked=True)
        else:
            if strategy.copies > 1:
                raise ValueError("Beam search takes no `draft`. Received: method='beam_search'")
            self.search = Speculation(draft, decoder, **of_search)
        self.draft, self.spare = draft, 0 if draft is None else draft.tokens + 1
        index = past["cache"][0]["index"] if past else np.zeros(ids.shape[:1], "int32")
        index = keras.ops.convert_to_numpy(index)
        # Of the row that needs most, the numbers of its tokens.
        counts = np.stack([real.sum(axis=1), index, limits])
        self.need = int(counts.sum(axis=0).max(initial=1)) - 1
        if self.rows:
            decoder._check_length(*counts[:, counts.sum(axis=0).argmax()])
        switches = [most for kind in ("dynamic", "longrope") for most in decoder._switches(kind)]
        arrays = self.search.settings(self.rows, self.rows, text)
        if draft is not None and draft.reads_prompt:
            arrays["prompt"] = text
        arrays |= {"ids": np.maximum(ids, 0), "real": real, **more}
        # Rows and columns that are none: a copy of the last row that ends at once, and padding.
        self.size = rounded(self.rows) if self.rows and not past else self.rows
        arrays = keras.tree.map_structure(self._with_rows, arrays)
        arrays["limits"][self.rows :] = 0
        for name, empty in {"ids": 0, "real": False, "prompt": NO_TOKEN}.items():
            if name in arrays:
                size = arrays[name].shape[1]
                before = (0, 0), (rounded(size, 16 if size > 2 else 1) - size, 0)
                arrays[name] = np.pad(arrays[name], before, constant_values=empty)
        self.room = rounded(arrays["ids"].shape[1], 16) + ends.max_tokens
        self.room = min([self.room, *(most for most in switches if most >= self.need)])
        if past:
            arrays["past"] = past | {"cache": self._grown(self.decoder, past["cache"])}
            if "draft" in past and isinstance(draft, DraftModel):
                arrays["past"]["draft"] = self._grown(draft.model, past["draft"])
        self.arrays = arrays
        rules = tuple(_hashable(rule.form) for rule in ends.rules)
        form = (strategy.form, rules, ends.stops, ends.pad_token, ends.max_tokens, self.room)
        kinds = str([*map(kind, keras.tree.flatten(arrays))])
        self.key = (*form, str(self.dtype), None if draft is None else draft.form, kinds)
        self.programs = vars(model).setdefault("_programs", Kept()).of(model)

    def _grown(self, model, cache):
        room = max(kv_cache.room(x) or 0 for x in cache if "key" in x or "state" in x)
        if room and room < self.need:
            return model.grow_cache(cache, rounded(self.need), self.spare)
        return cache

    def _with_rows(self, array):
        array = keras.ops.convert_to_numpy(array)
        return np.concatenate([array, np.repeat(array[-1:], self.size - self.rows, axis=0)])

    # In programs

    def _step(self, tokens, cache, memory=None, mask=None):
        logits, cache = self.decoder.steps(tokens[:, None], cache, memory, mask=mask[:, None])
        return logits[:, 0], cache

    def given(self, arrays):
        """The arrays of the search, of those of the call: the prompt is read."""
        ids, real, past = arrays["ids"], arrays["real"], arrays.get("past", {})
        memory, cache = past.get("memory"), past.get("cache")
        if memory is None:
            memory = self.model._memory(arrays)
        if cache is None:
            cache = self.decoder.make_cache(ops.shape(ids)[0], self.room, self.dtype, self.spare)
        # Of rows that end at once, the last token stays unread.
        last = ops.logical_and(real[:, -1:], arrays["limits"][:, None] > 0)
        real = ops.concatenate([real[:, :-1], last], axis=1)
        logits, cache = read(self.decoder, ids, real, cache, memory)
        self.search.ends.check_vocabulary(logits.shape[1])
        if self.draft is not None:
            cache = cache, self.draft.begin(ids, real, self.room, past.get("draft"))
        more = {"tokens": ids[:, -1], "cache": cache, "memory": memory, "logits": logits}
        return arrays | more

    def begin(self, given):
        """The loop after the first tokens, which come with the prompt."""
        constants, carried = self.search.begin(given)
        logits = ops.repeat(given["logits"], self.search.strategy.copies, axis=0)
        return constants, self.search.chosen(constants, carried, logits)

    def first(self, arrays):
        return self.begin(self.given(arrays))

    def whole(self, arrays):
        given = self.given(arrays)
        return self.result(*self.search.run(given, self.begin(given)))

    def result(self, constants, carried):
        found = self.search.result(constants, carried)
        cache, draft = (carried.cache, None) if self.draft is None else carried.cache
        past = {"cache": cache, "draft": draft or None, "memory": constants.get("memory")}
        found.cache = {name: x for name, x in past.items() if x is not None}
        return found

    # Around programs

    def run(self, name, *arrays):
        """What the method of this name returns, as a program that is made once and kept."""
        key = (name, *self.key)
        made = key not in self.programs
        if made:
            function = self.search.go_on if name == "go_on" else getattr(self, name)
            self.programs[key] = compiled(function, self._layer())
        told, began = made and keras.config.is_interactive_logging_enabled(), time.monotonic()
        if told:
            rows, columns = self.arrays["ids"].shape
            print(
                f"Compiling a program for {rows} rows, prompts of at most {columns} tokens and "
                f"{self.search.ends.max_tokens} more …",
                file=sys.stderr,
            )
        outputs = self.programs[key](*arrays)
        if told:
            print(f"… {time.monotonic() - began:.1f} s.", file=sys.stderr)
        return outputs

    def _layer(self):
        if not isinstance(self.draft, DraftModel):
            return self.model
        both = keras.layers.Layer()
        both.large, both.small, both.built = self.model, self.draft.model, True
        return both

    def text(self):
        """The `Generated` of whole texts."""
        return self.trimmed(self.run("whole", self.arrays))

    def stream(self, chunk):
        if self.draft is not None or self.search.strategy.copies > 1:
            raise ValueError(
                "A stream takes no `draft` and no beams. "
                f"Received: draft={self.draft!r}, num_beams={self.search.strategy.copies}"
            )
        first = functools.partial(self.run, "first", self.arrays)
        go_on = functools.partial(self.run, "go_on")

        def found(*loop):
            return self.trimmed(self.run("result", *loop))

        return Stream(self.search, first, go_on, found, chunk, self.rows)

    def trimmed(self, found):
        """The rows and columns that were asked for, and the cache for the next call."""
        past = found.cache
        tokens, lengths, log_probs, scores = (ops.convert_to_numpy(x)[: self.rows] for x in found)
        every = tokens[..., : self.columns], lengths, log_probs[..., : self.columns], scores
        cut = Generated(*map(ops.convert_to_tensor, every))
        if self.size != self.rows:
            past = keras.tree.map_structure(lambda x: x[: self.rows], past)
        # Of several hypotheses, texts go on from the best, of which nothing is read.
        if tokens.ndim == 3:
            tokens, lengths, scores = tokens[:, 0], lengths[:, 0], scores[:, 0]
        written = np.arange(tokens.shape[1]) < lengths[:, None]
        text = np.concatenate([self.read_text, np.where(written, tokens, NO_TOKEN)], axis=1)
        # Of a row that had no way to go on, all is read.
        unread = (scores > -np.inf).astype("int32")
        if self.search.strategy.copies > 1:
            unread = np.where(self.search.ends.limits > 0, lengths, 1)
        cut.cache = past | {"text": _padded(text), "unread": unread}
        return cut


class Generating:
    """What `Decoder` and `EncoderDecoder` share: loops of their own, compiled by themselves."""

    # `generation` may call `step` as often as it likes.
    _keeps_steps = True
    built: bool
    _build_for: Any

    def _request(self, prompt, max_tokens, more, mask=None, method="greedy", **settings):
        """The `Request` of a call, which checks it; `more` are other arrays, such as a source."""
        decoder: Any = getattr(self, "decoder", self)
        past, draft = dict(settings.pop("cache", None) or {}), settings.pop("draft", None)
        text, unread = _texts(decoder, prompt, mask, past)
        if past and len(text) > 1 == past["cache"][0]["index"].shape[0]:
            # A beginning that all rows share.
            cache, rows = past.pop("cache"), len(text)
            past = keras.tree.map_structure(lambda x: ops.repeat(x, rows, axis=0), past)
            past["cache"] = decoder.repeat_cache(cache, rows)
        if draft is not None and not hasattr(draft, "propose"):
            draft = DraftModel(draft)
        if not self.built:
            self._build_for(np.maximum(text, 0), more)
        given = max_tokens, method, settings, past, draft, more
        return Request(self, decoder, text, unread, *given)


def _texts(decoder, prompt, mask, past):
    """The texts (B, T) of a past and a prompt, and how many of their last tokens are to be read.

    They are padded on the left, with −1 for no token; the numbers are (B,).
    """
    parts, unread = [], 0
    if past:
        if not {"cache", "text", "unread"} <= past.keys():
            raise ValueError(
                "`cache` must be the attribute `cache` of what `generate` or `stream` returned. "
                f"Received: {sorted(past)}"
            )
        text, unread = (ops.convert_to_numpy(past.pop(name)) for name in ("text", "unread"))
        parts.append(text)
    if prompt is not None or not past:
        ids, _, real = read_prompt(decoder, prompt, mask)
        ids = ops.convert_to_numpy(ids)
        real = np.array(True) if real is None else ops.convert_to_numpy(real)
        parts.append(np.where(real, ids, NO_TOKEN))
    if past and len(parts) == 2 and len(parts[0]) == 1:
        # A beginning that all rows share.
        parts[0] = np.repeat(parts[0], len(parts[1]), axis=0)
    rows = {f"part {n}": text.shape[0] for n, text in enumerate(parts)}
    shapes.check_same("Rows of `cache` and of `prompt`", **rows)
    if prompt is not None:
        unread = unread + (parts[-1] >= 0).sum(axis=1)
    if not np.all(unread > 0):
        row = int(np.argmin(unread))
        raise ValueError(
            "Each prompt must have a token. Received a row without: "
            f"{[text[row].tolist() for text in parts]}"
        )
    return _padded(np.concatenate(parts, axis=1)), unread


def _padded(texts):
    """Texts (B, T) with −1 for no token, padded on the left."""
    texts = np.take_along_axis(texts, np.argsort(texts >= 0, axis=1, kind="stable"), axis=1)
    return texts[:, -max(1, int((texts >= 0).sum(axis=1).max(initial=0))) :].astype("int32")


def _hashable(form):
    try:
        hash(form)
    except TypeError:
        return id(form)
    return form


def read_prompt(decoder, rows, mask):
    """A prompt of any form as tokens (B, T), its mask, and where it is real; or None for both."""
    if not shapes.is_array(rows):
        try:
            rows = np.asarray(rows)
        except ValueError as error:
            lengths = [len(row) if isinstance(row, Sized) else 1 for row in rows]
            raise ValueError(
                "`prompt` must have rows of one length: pad shorter ones on the left, and say "
                f"so in a mask. Received: rows of lengths {lengths}"
            ) from error
        except (NotImplementedError, TypeError, RuntimeError):
            # Rows of tensors that are being traced.
            rows = ops.convert_to_tensor(rows)
    if "int" not in str(rows.dtype) and 0 not in rows.shape:
        raise TypeError(
            f"`prompt` must be integers (batch, positions). Received dtype {rows.dtype}"
        )
    shapes.check_rank("prompt", rows, 2, "(batch, positions)")
    if rows.shape[1] == 0:
        raise ValueError(f"`prompt` must have a token. Received: prompt.shape={tuple(rows.shape)}")
    prompt, mask = ops.cast(rows, "int32"), masks.boolean("mask", mask)
    if mask is not None:
        # One row for all of a batch is not taken: the mask is stored in the cache.
        shapes.check_rank("mask", mask, 2, "(batch, positions)")
        sizes = {"prompt": prompt.shape[0], "mask": mask.shape[0]}
        shapes.check_same("Batch sizes of `prompt` and its mask", **sizes)
    mask = own = masks.padding(prompt, mask, "prompt", features=False)
    # A prompt of one token is a start token, which may equal the padding token, as in T5.
    if decoder.embeddings is not None and prompt.shape[1] > 1:
        own = masks.both(mask, decoder.embeddings.compute_mask(prompt))
    return prompt, mask, own
