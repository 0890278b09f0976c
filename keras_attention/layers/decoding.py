"""Decoding with a cache: create it, append to it, attend to its entries."""

from __future__ import annotations

import keras

from keras_attention import inputs, keras_private, masks, shapes
from keras_attention.hints import Cache, Dtype, Tensor
from keras_attention.layers import kv_cache
from keras_attention.spec import AttentionSpec, Positions

ops = keras.ops


class Decoding(keras.layers.Layer):
    """The decoding methods of `Attention`: they compute a text in calls of any length."""

    def make_cache(
        self, batch_size: int | Tensor, length: int, dtype: Dtype | None = None
    ) -> Cache:
        """An empty cache, for `layer(x, cache=cache)`.

        Such a call appends the tokens of x, one or several, and each attends to all up to
        itself, even if the pattern includes later ones. So a text may be split into any calls: the
        outputs are those of one causal pass. Tokens masked as padding are left out, at any
        position, and positions count only the others, per row.

        Args:
            batch_size: number of rows.
            length: the largest number of tokens of a row. If the pattern has a smaller window,
                the cache stores only the window, and rows may be of any length.
            dtype: of keys and values; the layer's compute dtype by default.

        Returns:
            `{"key": (B, G, C, K), "value": (B, G, C, V), "index": (B,)}`, where C is the number of
            stored tokens and `index` counts the tokens of each row so far. Keys are projected,
            normalized, and rotated by rotary positions.

        Raises:
            ValueError: a size is not a positive integer, or the layer cannot decode. A call raises
                if more than `length` tokens are appended to a row. In compiled code, which
                cannot raise, the whole output of that row is NaN, from then on.

        >>> import keras, keras_attention
        >>> layer = keras_attention.MultiHeadAttention(num_heads=4, key_dim=8)
        >>> x = keras.random.normal((2, 5, 32))
        >>> expected = layer(x, use_causal_mask=True)
        >>> cache = layer.make_cache(batch_size=2, length=5)
        >>> first, cache = layer(x[:, :3], cache=cache)
        >>> fourth, cache = layer(x[:, 3:4], cache=cache)
        >>> bool(keras.ops.max(keras.ops.abs(fourth - expected[:, 3:4])) < 1e-5)
        True
        """
        self._check_cache(self._no_decoding_reason())
        if isinstance(batch_size, (bool, int, float)):
            shapes.check_count("batch_size", batch_size)
        shapes.check_count("length", length)
        window = self._window()
        return kv_cache.make(
            batch_size,
            length if window is None else min(length, window),
            self.heads.key_value_heads,
            self.key_dim,
            self.value_dim,
            dtype or self.compute_dtype,
        )

    def cache_context(
        self, value: Tensor, key: Tensor | None = None, key_mask: Tensor | None = None
    ) -> Cache:
        """The keys and values of cross-attention, projected once for all steps of a decoder.

        `layer(x, cache=memory)` is `(layer(x, value, key, key_mask=key_mask), memory)`.

        Args:
            value, key, key_mask: as in a call, including the masks that they carry.

        Returns:
            `{"key": (B, G, S, K), "value": (B, G, S, V), "mask": (B, S)}`.

        Raises:
            ValueError: the layer is not built, or attends over more than one axis.
            TypeError: `value` or `key` is symbolic, as in a functional model.

        >>> import keras, keras_attention
        >>> layer = keras_attention.MultiHeadAttention(num_heads=4, key_dim=8)
        >>> x, encoded = keras.random.normal((2, 3, 32)), keras.random.normal((2, 7, 16))
        >>> expected = layer(x, encoded)
        >>> memory = layer.cache_context(encoded)
        >>> output, memory = layer(x[:, :1], cache=memory)
        >>> bool(keras.ops.max(keras.ops.abs(output - expected[:, :1])) < 1e-5)
        True
        """
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} has no weights yet: call it once, or "
                "`layer.build(query_shape, value_shape)`, before `cache_context`."
            )
        if any(isinstance(x, keras.KerasTensor) for x in (value, key, key_mask)):
            raise TypeError(
                "`cache_context` takes arrays, and no symbolic tensors of a functional model: use "
                f"it in the `call` of a custom layer or model. Received: value={value!r}"
            )
        self._check_cache(self.heads.no_cache_reason)
        value, key = self._converted(value), self._converted(key)
        (_, value, key), (_, value_mask, key_mask) = inputs.three_inputs(
            (value, value, key), (None, None, key_mask)
        )
        mask = masks.both(value_mask, key_mask)
        value, key = inputs.without_padding((value, key), (mask, mask))
        mask = ops.ones((1, 1), "bool") if mask is None else mask
        mask = ops.broadcast_to(mask, ops.shape(value)[:2])
        return kv_cache.context(self.split(key, "key"), self.split(value, "value"), mask)

    def cache_memory(
        self, value: Tensor, key: Tensor | None = None, key_mask: Tensor | None = None
    ) -> Cache:
        """The name of `cache_context` in 0.1.0."""
        return self.cache_context(value, key, key_mask)

    def _converted(self, x):
        """An argument as a call would get it, with the mask that it carries."""
        if x is None:
            return None
        converted = self.dtype_policy.convert_input(x, self.autocast, self.input_dtype)
        return converted if converted is x else masks.carry(converted, masks.implicit(x))

    def _window(self):
        """The number of tokens up to and including itself that a query can see; None for all."""
        left = self.whole_pattern(causal=True).span().left
        return None if left is None else left + 1

    def _no_decoding_reason(self):
        """The reason the layer cannot be computed token by token, or None."""
        if self.one_sequence:
            pattern = self.whole_pattern()
            right = None if pattern is None else pattern.span().right
            if right is None or right > 0:
                return "a token would see tokens after it; pass causal=True"
        for position in (self.preset_position, self.position):
            if position is not None and position.no_decoding_reason is not None:
                return position.no_decoding_reason
        if self.score.needs_length:
            return f"the score {type(self.score).__name__} depends on the number of keys"
        return self.heads.no_decoding_reason

    def _check_cache(self, reason):
        """Raises if the layer does not support a cache."""
        if reason is not None:
            raise ValueError(f"This {type(self).__name__} cannot have a cache: {reason}")

    def check_cached(self, query, cache, return_attention_scores=False, **given):
        """Raises unless a call with a cache has exactly the arguments that it supports."""
        if isinstance(query, (list, tuple)):
            query, given["value"] = query[0], query[1:]
        layout = kv_cache.layout(cache, self._window())
        heads = self.heads.key_value_heads
        kv_cache.check(cache, layout, query.shape[0], heads, self.key_dim, self.value_dim)
        refused = ["value", "key", "value_mask", "key_mask"]
        if layout.appends:
            self._check_cache(self._no_decoding_reason())
            refused += ["attention_mask", "attention_bias", "positions", "segment_ids"]
        else:
            self._check_cache(self.heads.no_cache_reason)
        refused = [name for name in refused if given.get(name) is not None]
        if refused:
            raise ValueError(
                f"A call with a cache takes the query, and its mask as `query_mask`: a cache knows "
                f"keys, values, their masks and positions. Received also: {', '.join(refused)}"
            )
        if return_attention_scores and layout.forgets:
            raise ValueError(
                "Scores are unsupported with a sliding-window cache, which is shorter than the "
                "sequence. Received: return_attention_scores=True, with a cache of "
                f"{kv_cache.length(cache)} tokens for a window of {self._window()}"
            )

    def _call_cached(self, query, mask, given):
        """The result of `call` with a cache."""
        cache, layout = given.cache, kv_cache.layout(given.cache, self._window())
        key, value, encoded = None, None, False
        if layout.appends:
            if mask is not None:
                mask = ops.broadcast_to(mask, ops.shape(query)[:2])
            at = kv_cache.positions(cache["index"], ops.shape(query)[1], mask)
            heads, key, value = self.split_all(query, query, query)
            encoded = self.position is not None and self.position.encodes_alone
            if encoded:
                # Once: encoding all keys again would cost each step more than attention.
                with keras_private.uncast_variables():
                    heads, key = self.position.encode(heads, key, at, at)
        else:
            heads = self.split(query, "query")
        update = layout.update(cache, key, value, mask, self.compute_dtype)
        if layout.appends:
            if (
                update.positions is None
                and self.position is not None
                and self.position.needs_length
            ):
                # The length is that of the tokens so far, not of all entries.
                update = update.of_stored()
            positions = at, update.positions
        else:
            positions = self.heads.pair("positions", given.positions, query, update.value)
        attention_mask = masks.boolean("attention_mask", given.attention_mask)
        spec = AttentionSpec(
            masks=self.heads.mask(query, update.value, mask, update.mask, attention_mask),
            pattern=self.whole_pattern(layout.appends or given.use_causal_mask),
            biases=self.heads.bias(given.attention_bias, query, update.value),
            positions=Positions.of_heads(heads, update.key, *positions),
            segment_ids=self.heads.pair("segment_ids", given.segment_ids, query, update.value),
            return_weights=given.return_attention_scores,
        )
        result = self.attend(
            *(spec, heads, update.key, update.value, update.mask, given.training), encoded=encoded
        )
        if not layout.appends:
            self._regularize(result)
        output = self.heads.join(result, query)
        if update.lost is not None:
            output = kv_cache.spoil(output, update.lost)
        return self._returned(
            masks.carry(output, mask),
            result.weights if given.return_attention_scores else None,
            result.log_probability,
            update.cache,
        )
