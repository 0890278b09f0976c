"""`Decoder`: a stack of causal blocks, and its steps."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from keras import ops

from keras_attention.core.hints import Cache, Dtype, Positions, Tensor, Tensors
from keras_attention.generation import Generated, Stream
from keras_attention.layers import kv_cache, traits
from keras_attention.models import stepping
from keras_attention.models.encoder import PAIRS, Stack
from keras_attention.models.generating import Generating, read_prompt
from keras_attention.sequences import masks, sequence, shapes
from keras_attention.spec import padded


class Decoder(Stack, Generating):
    """A Transformer decoder: a language model, or with a context half of an `EncoderDecoder`.

    A `keras.Model`: train it as it is, or call it in another model.

    Args:
        blocks: the `TransformerBlock`s, with `causal=True` and, for a context,
            `cross_attention=True`, each with options of its own. A position that is given to
            several blocks is one table for all of them.
        embeddings, final_norm, logits, metadata, sources: as in `Encoder`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        inputs, types, mask, attention_mask, positions, segment_ids, training: as in `Encoder`.
        context: (B, S, D'), the output of an encoder, or the result of `cache_context`.
        context_mask: boolean (B, S), True = a real token.
        cache: the result of `make_cache`, to which the tokens are appended. Positions then go on
            from the tokens in it.
        logits_to_keep: None, or K: the final norm and the logits are computed for the last K
            columns alone, T of which become min(K, T). Those of a long prompt over many words
            would need more memory than all else; 0 only reads it into a cache.

    Returns:
        Logits (B, T, vocabulary_size), or (B, T, D) without `logits`, carrying the mask. With a
        `cache`, `(output, cache)`.

    Raises:
        TypeError: a part is not of its class.
        ValueError: tied logits without embeddings; `logits_to_keep` is negative; or as the parts.

    Example:

    >>> import keras
    >>> from keras_attention import Decoder, Embeddings, Logits, ScaledEmbedding, TransformerBlock
    >>> model = Decoder(
    ...     [TransformerBlock(32, 2, causal=True, position="rotary") for _ in range(2)],
    ...     Embeddings(ScaledEmbedding(100, 16, mask_zero=True)),
    ...     logits=Logits(100),
    ... )
    >>> prompt = keras.ops.convert_to_tensor([[5, 7, 3], [0, 9, 4]])    # 0 is padding
    >>> model(prompt).shape
    (2, 3, 100)
    >>> model(prompt, logits_to_keep=1).shape
    (2, 1, 100)
    >>> model.generate(prompt, max_tokens=6).tokens.shape
    (2, 6)
    >>> len(list(model.stream(prompt, max_tokens=3)))
    3
    """

    # A cache has no room for masked cells, so its calls count real ones, and those without it too.
    _counts = True
    # A cache has a dtype of its own.
    _unrounded = ("cache",)

    def call(
        self,
        inputs: Tensor,
        context: Tensor | list[Cache] | None = None,
        types: Tensor | None = None,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        positions: Positions | None = None,
        segment_ids: Tensors | None = None,
        cache: list[Cache] | None = None,
        training: bool | None = None,
        logits_to_keep: int | None = None,
    ) -> Tensors:
        keep = shapes.check_count("logits_to_keep", logits_to_keep, minimum=0, optional=True)
        pairs = attention_mask, positions, segment_ids, None
        given = inputs, context, types, mask, context_mask, pairs
        before, tokens = self._split(cache)
        states = self._states if tokens is None else functools.partial(self._on, tokens)
        x, mask, caches = states(*given, before, training)
        output = self._output(x, mask, keep)
        return output if cache is None else (output, caches)

    # "longrope" rotates all keys anew where a text passes a length. What each block but the first
    # computed of earlier tokens is then not what it would be of the whole text, so its cache is
    # stale: the tokens are stored too, and the step that passes the length reads them all again.
    # With "dynamic" that would be every step, and is refused.

    def _on(self, tokens, inputs, context, types, mask, context_mask, pairs, cache, training):
        """As `_states`, of a call with a cache of `tokens`."""
        given = zip(("types", *PAIRS), (types, *pairs), strict=True)
        if refused := [name for name, value in given if value is not None]:
            raise ValueError(
                "A call with a cache that passes the `original_max_length` of 'longrope' takes "
                f"tokens, their mask and a context alone. Received also: {', '.join(refused)}"
            )
        mask = masks.padding(inputs, mask, "inputs", features=False)
        mask = masks.both(mask, self.embeddings.compute_mask(inputs))
        before, ids, new = cache[0]["index"], ops.cast(inputs, "int32"), mask
        # The number of tokens that rows had when the blocks read last, before any were cut.
        since = tokens["read"]
        if mask is not None and inputs.shape[1] != 1:
            order = sequence.Order.of(mask, ops.shape(inputs))
            if order is not None:
                ids, new = order.numbers(ids), order.mask
        stored = {"key": tokens["tokens"], "index": before}
        stored = kv_cache.append(stored, ids[:, :, None, None], None, new)
        every, after = stored["key"][:, 0, :, 0], stored["index"]

        def read(ids, mask, cache):
            given = ids, context, None, mask, context_mask, pairs, cache, training
            return self._states(*given)[::2]

        def again():
            length = every.shape[1]
            real = ops.arange(length, dtype="int32") < after[:, None]
            x, caches = read(every, real, kv_cache.emptied(cache))
            at = kv_cache.positions(before, ops.shape(inputs)[1], mask)
            return ops.take_along_axis(x, ops.minimum(at, length - 1)[..., None], axis=1), caches

        def on():
            return read(inputs, mask, cache)

        passing = ops.zeros_like(before, dtype="bool")
        for length in self._switches("longrope"):
            here = (since <= length) != (after <= length)
            passing = ops.logical_or(passing, ops.logical_and(here, before > 0))
        passing = ops.any(passing)
        # Outside a compiled program, JAX's `cond` would compile both branches in each call.
        value = shapes.visible_values(passing)
        if value is None:
            x, caches = ops.cond(passing, again, on)
        else:
            x, caches = again() if value else on()
        return x, mask, [*caches, {"tokens": stored["key"], "read": after}]

    def _switches(self, scaling):
        """The lengths beyond which blocks with this scaling of positions encode keys anew."""
        # The last block's output is not cached, so its position does not matter.
        found = (traits.of(block.attention).encodes_anew for block in self.blocks[:-1])
        return sorted({anew[1] for anew in found if anew is not None and anew[0] == scaling})

    def generate(
        self,
        prompt: Tensor | None,
        max_tokens: int | Tensor,
        method: str = "greedy",
        *,
        mask: Tensor | None = None,
        context: Tensor | list[Cache] | None = None,
        cache: Any = None,
        draft: Any = None,
        **settings: Any,
    ) -> Generated:
        """Tokens that follow prompts, by one compiled program that is made once and kept.

        Rows, columns and `max_tokens` are rounded up to a few sizes, and what is added is masked,
        so that one program serves many prompts and changes no token. The first call of a size
        compiles for some seconds, and says so where Keras's interactive logging is on.

        Args:
            prompt: integers (B, T), padded anywhere; or None to go on from `cache` alone.
            max_tokens: how many tokens may follow, or integers (B,), one for each row. With 0 the
                prompt is only read, for the `cache` of the result.
            method: "greedy", "sample" or "beam_search", the function of `generation`.
            mask: boolean (B, T), True = a real token, if the embeddings do not mask padding.
            context: as in a call.
            cache: the attribute `cache` of an earlier result: the prompt follows its text, of which
                nothing is read again. That of one row serves prompts of any number of rows, and is
                stored once. `generation.select_rows` selects and repeats its rows.
            draft: None, a `generation.PromptLookup`, or a smaller `Decoder` of the same tokens, or
                a `generation.DraftModel` of it: the same tokens, several in a step.
            **settings: those of the function, such as `temperature`, `seed`, `stop_tokens`,
                `constraints`; and `cache_dtype`, the `dtype` of `make_cache`.

        Returns:
            The `Generated` of the function, whose `cache` goes on from its texts, or from the best
            hypotheses of "beam_search".

        Raises:
            ValueError, TypeError: as the function and `start`; or the cache, or the draft, is not
                as described.
        """
        more = {} if context is None else {"context": context}
        given = {"cache": cache, "draft": draft, **settings}
        return self._request(prompt, max_tokens, more, mask, method, **given).text()

    def stream(
        self, prompt: Tensor | None, max_tokens: int | Tensor, *, chunk: int = 8, **settings: Any
    ) -> Stream:
        """The tokens of `generate` as they are drawn. See `generation.stream`.

        Args:
            prompt, max_tokens: as in `generate`.
            chunk: how many steps at most are made at a time.
            **settings: all else that `generate` takes, but for a `draft` and beams.

        Returns:
            A `Stream`, an iterator of `(tokens, finished)`, NumPy arrays (B,).

        Raises:
            ValueError, TypeError: as `generate`.
        """
        more = {"context": x} if (x := settings.pop("context", None)) is not None else {}
        return self._request(prompt, max_tokens, more, **settings).stream(chunk)

    def _memory(self, arrays):
        """The keys and values of a context, in a program; or None."""
        context = arrays.get("context")
        return self.cache_context(context) if shapes.is_array(context) else context

    def _build_for(self, ids, more):
        self(ids, more.get("context"), logits_to_keep=0)

    # Steps, for `generation`

    def make_cache(
        self,
        batch_size: int | Tensor,
        length: int,
        dtype: Dtype | None = None,
        spare: int = 0,
    ) -> list[Cache]:
        """Empty caches of `length` tokens, one for each block. See `Attention.make_cache`.

        With "longrope" positions that change within this length, there is one more, of the tokens:
        in the step that passes `original_max_length` all are read again, as the blocks would have
        read them in a call.

        Raises:
            ValueError: `length` exceeds the `original_max_length` of "dynamic" positions, with
                which that would be every step.
        """
        beyond = self._beyond(length)
        caches = [block.make_cache(batch_size, length, dtype, spare) for block in self.blocks]
        if beyond:
            tokens = ops.zeros((batch_size, 1, length, 1), "int32")
            caches.append({"tokens": tokens, "read": ops.zeros((batch_size,), "int32")})
        return caches

    def cut_cache(self, cache: list[Cache], length: int | Tensor) -> list[Cache]:
        """The caches of the first tokens of each row. See `Attention.cut_cache`.

        With "longrope", the next step reads all tokens again if rows were cut to fewer than
        `original_max_length` from more.
        """
        cache, tokens = self._split(cache)
        cut = self._of_caches("cut_cache", cache, length)
        return cut if tokens is None else [*cut, tokens]

    def grow_cache(self, cache: list[Cache], length: int, spare: int = 0) -> list[Cache]:
        """The same caches with entries for at least `length` tokens. See `Attention.grow_cache`.

        Raises:
            ValueError: as `make_cache`; or `length` exceeds the `original_max_length` of "longrope"
                positions, and the first cache did not, which therefore has no tokens to read again.
        """
        cache, tokens = self._split(cache)
        if self._beyond(length) and tokens is None:
            raise ValueError(
                "Beyond `original_max_length`, 'longrope' reads all tokens again, which this cache "
                "has not: make the first cache longer than that. Received: a cache to be grown to "
                f"{length} tokens"
            )
        grown = self._of_caches("grow_cache", cache, length, spare)
        if tokens is None:
            return grown
        more = max(0, length - tokens["tokens"].shape[2])
        return [*grown, {**tokens, "tokens": padded(tokens["tokens"], 2, 0, more)}]

    def repeat_cache(self, cache: list[Cache], rows: int | Tensor) -> list[Cache]:
        """The caches of one row as those of many. See `Attention.repeat_cache`."""
        cache, tokens = self._split(cache)
        found = self._of_caches("repeat_cache", cache, rows)
        if tokens is None:
            return found
        return [*found, {name: ops.repeat(x, rows, axis=0) for name, x in tokens.items()}]

    def _of_caches(self, method, cache, *given):
        """The caches of the blocks after a method of each; those of other blocks are empty."""
        pairs = zip(self.blocks, cache, strict=True)
        return [getattr(block, method)(x, *given) if x else x for block, x in pairs]

    def _beyond(self, length):
        """The lengths after which blocks would encode all keys anew; raises where they cannot."""
        reasons = {
            "dynamic": "changes the positions of all tokens with each one more",
            "longrope": "reads all tokens again, which needs embeddings of tokens, and the stack "
            "has none",
        }
        for kind, why in reasons.items():
            beyond = [most for most in self._switches(kind) if most < length]
            if beyond and (kind == "dynamic" or self.embeddings is None):
                raise ValueError(
                    f"A cache of several blocks with scaling={kind!r} must have at most "
                    f"`original_max_length`={beyond[0]} tokens, those of the prompt and "
                    f"`max_tokens`: beyond it, {kind!r} {why}. Received: {length} tokens"
                )
        return beyond

    def cache_context(self, context: Tensor, context_mask: Tensor | None = None) -> list[Cache]:
        """The keys and values of a context for each block, projected once for all steps."""
        return [block.cache_context(context, context_mask) for block in self.blocks]

    def start(
        self,
        prompt: Tensor,
        max_tokens: int,
        context: Tensor | list[Cache] | None = None,
        mask: Tensor | None = None,
        cache_dtype: Dtype | None = None,
        spare: int = 0,
        cache: list[Cache] | None = None,
    ) -> tuple[Tensor, list[Cache]]:
        """Reads a prompt, so that `step` can go on from it.

        Args:
            prompt: integers (B, T), T ≥ 1, padded on the left where rows differ in length: the last
                column is of real tokens. With a `cache`, what follows its tokens.
            max_tokens: how many tokens may follow.
            context: as in a call.
            mask: boolean (B, T), True = a real token, if the embeddings do not mask padding.
            cache_dtype, spare: of the caches, as `dtype` and `spare` of `make_cache`.
            cache: of an earlier call, to go on from: of a text that goes on, or with one row of a
                beginning that all rows have. It grows by what may follow.

        Returns:
            `(last, cache)`, the last tokens (B,) and the caches of the others: arguments of
            `generation.greedy(model.step, last, cache, max_tokens=max_tokens)`.

        Raises:
            ValueError: `prompt` or `mask` is not (B, T), a prompt ends with padding or, with the
                tokens that may follow, is longer than a table of positions, or `max_tokens` is not
                a positive integer.
            TypeError: `prompt` does not have integers.
        """
        before = 0 if cache is None else _tokens_in(cache)
        prompt, mask = self._checked(prompt, mask, max_tokens, before)
        length, rows = prompt.shape[1] - 1, ops.shape(prompt)[0]
        if not self.built:
            self(prompt, context, mask=mask, logits_to_keep=0)
        if cache is None:
            cache = self.make_cache(rows, length + max_tokens, cache_dtype, spare)
        else:
            if cache[0]["index"].shape[0] == 1:
                cache = self.repeat_cache(cache, rows)
            cache = self.grow_cache(cache, before + length + max_tokens, spare)
        if length:
            mask = None if mask is None else mask[:, :-1]
            given = {"mask": mask, "cache": cache, "training": False, "logits_to_keep": 0}
            _, cache = self(prompt[:, :-1], context, **given)
        return prompt[:, -1], cache

    def _checked(self, prompt, mask, max_tokens, before=0):
        """A prompt after `before` tokens, and its mask; raises where steps would go wrong."""
        shapes.check_count("max_tokens", max_tokens)
        prompt, mask, real = read_prompt(self, prompt, mask)
        values = None if real is None else shapes.visible_values(real)
        if values is not None and values.shape[1] > 1 and not values[:, -1].all():
            row = int(np.argmin(values[:, -1]))
            raise ValueError(
                "The last token of each prompt is what the first step reads, and must be real: pad "
                f"on the left. Received: mask[{row}]={values[row].tolist()}"
            )
        if real is None:
            self._check_length(prompt.shape[1], before, max_tokens)
        elif values is not None:
            self._check_length(int(values.sum(axis=1).max(initial=1)), before, max_tokens)
        return prompt, mask

    def _check_length(self, longest, before, max_tokens):
        """Raises if the model has no positions for a prompt, what is before it, and after it."""
        most = None if self.embeddings is None else self.embeddings.positions
        most = getattr(most, "max_length", None)
        # The last of the tokens that follow is never read.
        if most is not None and before + longest + max_tokens - 1 > most:
            raise ValueError(
                f"A prompt and `max_tokens` must fit into the {most} positions of the model. "
                f"Received: a prompt of {longest} tokens after {before} of a cache, and "
                f"max_tokens={max_tokens}"
            )

    def step(
        self, tokens: Tensor, cache: list[Cache], context: Tensor | list[Cache] | None = None
    ) -> tuple[Tensor, list[Cache]]:
        """The logits after one more token of each row: a step of `generation`.

        Outside of programs, the first two of some shapes run as they are, the third compiles for
        seconds, and later ones are this program, which is kept as those of `generate`: without the
        Python code of layers. So only where no gradient is recorded: on PyTorch, in
        `torch.no_grad()`. A call of the model with a `cache` is the same, and never compiled.

        Args:
            tokens: integers (R,).
            cache: of `start`, or of the step before.
            context: as in a call; `memory` of `generation`.

        Returns:
            `(logits, cache)`, logits (R, vocabulary_size).
        """
        logits, cache = self.steps(tokens[:, None], cache, context)
        return logits[:, 0], cache

    def steps(
        self,
        tokens: Tensor,
        cache: list[Cache],
        context: Tensor | list[Cache] | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, list[Cache]]:
        """The logits after each of several tokens of each row, such as those of another model.

        Args:
            tokens: integers (R, N).
            cache, context: as of `step`.
            mask: boolean (R, N), True = a real token, which is appended to the cache; all, if None.

        Returns:
            `(logits, cache)`, logits (R, N, vocabulary_size).
        """
        given = {"inputs": tokens, "cache": cache, "context": context, "mask": mask}
        return stepping.run(self, {name: x for name, x in given.items() if x is not None})


def _tokens_in(cache):
    """The most tokens that a row of a stack's cache has, or may have where that is not known."""
    index = shapes.visible_values(cache[0]["index"])
    if index is None:
        # Windows and states have fewer entries, and need not grow.
        return max(kv_cache.room(x) or 0 for x in cache)
    return int(index.max(initial=0))
