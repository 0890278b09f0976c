"""What calls of a `TransformerBlock` take and return, for arrays and for symbolic tensors."""

import inspect

import keras

from keras_attention import inputs, masks
from keras_attention.hints import Cache, Dtype, Tensor
from keras_attention.layers import kv_cache


class BlockCalls(keras.layers.Layer):
    """The caches of a block, the checks of its arguments, and the shapes of its results."""

    # Decoding with a cache

    def make_cache(
        self, batch_size: int | Tensor, length: int, dtype: Dtype | None = None
    ) -> Cache:
        """An empty cache, for `block(x, cache=cache)`: that of the self-attention.

        See `Attention.make_cache`.

        Raises:
            ValueError: a size is not a positive integer, or the block is not built or not causal.
        """
        self._check_built("make_cache")
        self._check_causal()
        return self.attention.make_cache(batch_size, length, dtype)

    def cache_context(self, context: Tensor, context_mask: Tensor | None = None) -> Cache:
        """The keys and values of `context`, projected once for all steps of a decoder.

        `block(x, memory)` is `block(x, context, context_mask=context_mask)`.

        Args:
            context, context_mask: as in a call, including the mask that it carries.

        Returns:
            `{"key": (B, G, S, K), "value": (B, G, S, V), "mask": (B, S)}`.

        Raises:
            ValueError: the block has no cross-attention, or is not built.
        """
        self._check_built("cache_context")
        self._check_context(context)
        return self.cross_attention_layer.cache_context(context, key_mask=context_mask)

    def _check_built(self, method):
        if not self.built:
            raise ValueError(
                "The block has no weights yet: call it once, or "
                f"`block.build(x_shape, context_shape)`, before `{method}`."
            )

    def _check_causal(self):
        if self.causal:
            return
        pattern = self.attention.whole_pattern()
        right = None if pattern is None else pattern.span().right
        if right is None or right > 0:
            raise ValueError(
                "A block that is not causal cannot have a cache: a token would see tokens after "
                f"it. Pass causal=True. Received: causal={self.causal}, pattern={self.pattern!r}"
            )

    def _check_cached(self, x, cache, return_attention_scores):
        self._check_causal()
        if isinstance(cache, dict) and kv_cache.is_context(cache):
            raise ValueError(
                "`cache` must be what `make_cache` or a call gave. Received what `cache_context` "
                "gave, which is passed as `context`"
            )
        self.attention.check_cached(x, cache, return_attention_scores=return_attention_scores)

    def _check_context(self, context, context_mask=None):
        if self.cross_attention == (context is None):
            raise ValueError(
                "A block takes a `context` if, and only if, it was made with cross_attention=True. "
                f"Received: cross_attention={self.cross_attention}, and "
                + ("no `context`" if context is None else "a `context`")
            )
        if isinstance(context, dict) and not kv_cache.is_context(context):
            raise ValueError(
                "`context` must be a tensor, or what `cache_context` gave. Received a dict of "
                f"{sorted(context)}"
            )
        if isinstance(context, dict) and context_mask is not None:
            raise ValueError(
                "A `context` from `cache_context` contains its mask: omit `context_mask`"
            )

    def _check_context_shape(self, shape):
        if isinstance(shape, dict):
            raise ValueError(
                "The block has no weights yet, so that `context` cannot be what its "
                "`cache_context` made. Call it once with a tensor, or "
                "`block.build(x_shape, context_shape)`."
            )

    def _read_context(self, context, context_mask):
        """The mask of the context, after checking both."""
        # For a dict, Keras passes the masks that its parts carry, a dict of None.
        context_mask = None if isinstance(context_mask, dict) else context_mask
        self._check_context(context, context_mask)
        return context_mask

    def _returned(self, output, scores, cache):
        """The result of `call`; `scores` are the returned ones, by attention."""
        returned = [output]
        if scores:
            returned.append(scores if self.cross_attention else scores["attention"])
        if cache is not None:
            returned.append(cache)
        return tuple(returned) if len(returned) > 1 else output

    # Shapes and masks, symbolically

    def compute_mask(self, x, previous_mask=None):
        return previous_mask

    def compute_output_shape(self, x_shape, context_shape=None):
        self._check(x_shape)
        return tuple(x_shape)

    def compute_output_spec(self, *args, **kwargs):
        bound = inspect.signature(self.call).bind(*args, **kwargs)
        bound.apply_defaults()
        given = inputs.Given(**bound.arguments)
        x, context, cache = given.x, given.context, given.cache
        masks.boolean("context_mask", self._read_context(context, given.context_mask))
        masks.boolean("mask", given.mask)
        masks.boolean("attention_mask", given.attention_mask)
        inputs.pair("positions", given.positions, x, x)
        inputs.pair("segment_ids", given.segment_ids, x, x)
        output = keras.KerasTensor(self.compute_output_shape(x.shape), dtype=self.compute_dtype)
        keys, scores = x.shape[1], {}
        if cache is not None:
            self._check_cached(x, cache, given.return_attention_scores)
            keys, cache = cache["key"].shape[2], kv_cache.specs(cache)
        if given.return_attention_scores:
            scores["attention"] = self._scores(x, keys)
            if self.cross_attention:
                keys = context["key"].shape[2] if isinstance(context, dict) else context.shape[1]
                scores["cross_attention"] = self._scores(x, keys)
        return self._returned(output, scores, cache)

    def _scores(self, x, keys):
        shape = (x.shape[0], self.num_heads, x.shape[1], keys)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)


def _each(returned):
    return returned if isinstance(returned, tuple) else (returned,)
