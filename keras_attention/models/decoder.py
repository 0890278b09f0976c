"""`Decoder`: a stack of causal blocks, and its steps."""

from __future__ import annotations

import functools

from keras import ops

from keras_attention.core.hints import Cache, Positions, Tensor, Tensors
from keras_attention.models import history, prompts
from keras_attention.models.encoder import Stack
from keras_attention.sequences import masks, shapes


class Decoder(Stack):
    """A Transformer decoder: a language model, or with a context half of an `EncoderDecoder`.

    A `keras.Model`: train it as it is, or call it in another model.

    Args:
        blocks: the `TransformerBlock`s, with `causal=True` and, for a context,
            `cross_attention=True`, each with options of its own. A position that is given to
            several blocks is one table for all of them.
        embeddings, final_norm, logits, metadata: as in `Encoder`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        inputs, types, mask, attention_mask, positions, segment_ids, training: as in `Encoder`.
        context: (B, S, D'), the output of an encoder, or the result of `cache_context`.
        context_mask: boolean (B, S), True = a real token.
        cache: the result of `make_cache`, to which the tokens are appended. Positions then go on
            from the tokens in it.

    Returns:
        Logits (B, T, vocabulary_size), or (B, T, D) without `logits`, carrying the mask. With a
        `cache`, `(output, cache)`.

    Raises:
        TypeError: a part is not of its class.
        ValueError: tied logits without embeddings; or as the parts.

    Example:

    >>> import keras
    >>> from keras_attention import Decoder, Embeddings, Logits, ScaledEmbedding, TransformerBlock
    >>> from keras_attention import generation
    >>> model = Decoder(
    ...     [TransformerBlock(32, 2, causal=True, position="rotary") for _ in range(2)],
    ...     Embeddings(ScaledEmbedding(100, 16, mask_zero=True)),
    ...     logits=Logits(100),
    ... )
    >>> prompt = keras.ops.convert_to_tensor([[5, 7, 3], [0, 9, 4]])    # 0 is padding
    >>> model(prompt).shape
    (2, 3, 100)
    >>> last, cache = model.start(prompt, max_tokens=6)
    >>> generation.greedy(model.step, last, cache, max_tokens=6).tokens.shape
    (2, 6)
    """

    # A cache has no room for masked cells, so its calls count real ones, and those without it too.
    _counts = True

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
    ) -> Tensors:
        cache, tokens = self._split(cache)
        if tokens is not None:
            given = {"types": types, "attention_mask": attention_mask, "positions": positions}
            given["segment_ids"] = segment_ids
            if refused := [name for name, value in given.items() if value is not None]:
                raise ValueError(
                    "A call with a cache that passes the `original_max_length` of 'longrope' takes "
                    f"tokens, their mask and a context alone. Received also: {', '.join(refused)}"
                )
            return self._read_on(inputs, context, mask, context_mask, cache, tokens, training)
        of_rows = context, types, mask, context_mask, attention_mask, positions, segment_ids
        return self._read(inputs, *of_rows, cache, training)

    def _read_on(self, inputs, context, mask, context_mask, cache, tokens, training):
        """The result of a call with a cache beside which the tokens are stored."""
        mask = masks.padding(inputs, mask, "inputs", features=False)
        mask = masks.both(mask, self.embeddings.compute_mask(inputs))
        before = cache[0]["index"]
        tokens, after = history.append(tokens, inputs, before, mask)
        read = functools.partial(
            self._read, context=context, context_mask=context_mask, training=training
        )

        def again():
            ids = tokens["tokens"][:, 0, :, 0]
            length = ids.shape[1]
            real = ops.arange(length, dtype="int32") < after[:, None]
            empty = self._caches(ops.shape(ids)[0], length)
            output, caches = read(ids, mask=real, cache=empty)
            return history.at(output, before, ops.shape(inputs)[1], mask), caches

        def on():
            return read(inputs, mask=mask, cache=cache)

        output, caches = history.either(self.blocks, before, after, again, on)
        return masks.carry(output, mask), [*caches, tokens]

    # Steps, for `generation`

    def make_cache(self, batch_size: int | Tensor, length: int) -> list[Cache]:
        """Empty caches of `length` tokens, one for each block. See `Attention.make_cache`.

        With "longrope" positions that change within this length, there is one more, of the tokens:
        in the step that passes `original_max_length` all are read again, as the blocks would have
        read them in a call.

        Raises:
            ValueError: `length` exceeds the `original_max_length` of "dynamic" positions, with
                which that would be every step.
        """
        embeds = self.embeddings is not None
        tokens = history.make(self.blocks, batch_size, length, embeds)
        return self._caches(batch_size, length) + tokens

    def _caches(self, batch_size, length):
        return [block.make_cache(batch_size, length) for block in self.blocks]

    def cache_context(self, context: Tensor, context_mask: Tensor | None = None) -> list[Cache]:
        """The keys and values of a context for each block, projected once for all steps."""
        return [block.cache_context(context, context_mask) for block in self.blocks]

    def start(
        self,
        prompt: Tensor,
        max_tokens: int,
        context: Tensor | list[Cache] | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, list[Cache]]:
        """Reads a prompt, so that `step` can go on from it.

        Args:
            prompt: integers (B, T), T ≥ 1, padded on the left where rows differ in length: the last
                column is of real tokens.
            max_tokens: how many tokens may follow.
            context: as in a call.
            mask: boolean (B, T), True = a real token, if the embeddings do not mask padding.

        Returns:
            `(last, cache)`, the last tokens (B,) and the caches of the others: arguments of
            `generation.greedy(model.step, last, cache, max_tokens=max_tokens)`.

        Raises:
            ValueError: `prompt` or `mask` is not (B, T), a prompt ends with padding or, with the
                tokens that may follow, is longer than a table of positions, or `max_tokens` is not
                a positive integer.
            TypeError: `prompt` does not have integers.
        """
        prompt, mask = self._checked(prompt, mask, max_tokens)
        length = prompt.shape[1] - 1
        if not self.built:
            self(prompt, context, mask=mask)
        cache = self.make_cache(ops.shape(prompt)[0], length + max_tokens)
        if length:
            mask = None if mask is None else mask[:, :-1]
            _, cache = self(prompt[:, :-1], context, mask=mask, cache=cache, training=False)
        return prompt[:, -1], cache

    def _checked(self, prompt, mask, max_tokens):
        """A prompt and its mask as tensors, if `start` can read them."""
        shapes.check_count("max_tokens", max_tokens)
        prompt = prompts.tokens("prompt", prompt)
        mask = prompts.mask(mask, prompt)
        embeddings = self.embeddings
        own = None if embeddings is None else embeddings.compute_mask(prompt)
        positions = None if embeddings is None else embeddings.positions
        prompts.check(prompt, masks.both(mask, own), max_tokens, positions)
        return prompt, mask

    def step(
        self, tokens: Tensor, cache: list[Cache], context: Tensor | list[Cache] | None = None
    ) -> tuple[Tensor, list[Cache]]:
        """The logits after one more token of each row: a step of `generation`.

        Args:
            tokens: integers (R,).
            cache: of `start`, or of the step before.
            context: as in a call; `memory` of `generation`.

        Returns:
            `(logits, cache)`, logits (R, vocabulary_size).
        """
        real = ops.ones_like(tokens[:, None], dtype="bool")
        logits, cache = self(tokens[:, None], context, mask=real, cache=cache, training=False)
        return logits[:, 0], cache
