"""What attention layers do with a cache: make one, append to it, attend to what it holds."""

import keras

from keras_attention import inputs, keras_private, masks, scores, shapes
from keras_attention.layers import cache as caches

ops = keras.ops


class Decoding:
    """The part of `Attention` that decodes: it computes tokens as they come, in any pieces."""

    def make_cache(self, batch_size, length, dtype=None):
        """A cache without tokens, for `layer(x, cache=cache)`.

        Such a call appends the tokens of x, one or several, and lets each attend to all up to
        itself, whatever the pattern says of those after it. So a text may come in any pieces: the
        outputs are those of one causal pass. Tokens that a mask says are padding are left out, in
        whichever places, and positions count the others, in each row for itself.

        Args:
            batch_size: number of rows.
            length: the largest number of tokens of a row. Where the pattern has a window of fewer,
                the cache holds no more than those, and rows may be of any length.
            dtype: of keys and values; that of the layer's computation by default.

        Returns:
            `{"key": (B, G, C, K), "value": (B, G, C, V), "index": (B,)}`, where C is the number of
            tokens held and `index` counts the tokens of each row so far. Keys are as projected and
            normalized, and turned where the position is a rotary one.

        Raises:
            ValueError: a size is not a positive integer, or the layer cannot decode. A call raises
                where more than `length` tokens are appended to a row. In compiled code, which
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
        self._check_decodes()
        if isinstance(batch_size, (bool, int, float)):
            shapes.check_count("batch_size", batch_size)
        shapes.check_count("length", length)
        window = self._window()
        return caches.make(
            batch_size,
            length if window is None else min(length, window),
            self._key_value_heads,
            self.key_dim,
            self.value_dim,
            dtype or self.compute_dtype,
        )

    def cache_context(self, value, key=None, key_mask=None):
        """The keys and values of cross-attention, projected once for all steps of a decoder.

        `layer(x, cache=memory)` is `(layer(x, value, key, key_mask=key_mask), memory)`.

        Args:
            value, key, key_mask: as of a call, the masks they carry included.

        Returns:
            `{"key": (B, G, S, K), "value": (B, G, S, V), "mask": (B, S)}`.

        Raises:
            ValueError: the layer is not built, or attends over other axes than one.
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
                f"it in the `call` of a layer or a model of your own. Received: value={value!r}"
            )
        self._check_caches()
        value, key = self._converted(value), self._converted(key)
        (_, value, key), (_, value_mask, key_mask) = inputs.three_inputs(
            (value, value, key), (None, None, key_mask)
        )
        mask = masks.both(value_mask, key_mask)
        value, key = inputs.without_padding((value, key), (mask, mask))
        mask = ops.ones((1, 1), "bool") if mask is None else mask
        mask = ops.broadcast_to(mask, ops.shape(value)[:2])
        return caches.memory(self._project_key(key), self._project_value(value), mask)

    def cache_memory(self, value, key=None, key_mask=None):
        """The name of `cache_context` in 0.1.0."""
        return self.cache_context(value, key, key_mask)

    def _converted(self, x):
        """An argument as a call would get it, with the mask that it carries."""
        if x is None:
            return None
        converted = self.dtype_policy.convert_input(x, self.autocast, self.input_dtype)
        return converted if converted is x else masks.carry(converted, masks.implicit(x))

    def _window(self):
        """How many tokens, itself included, a query can see of the past; None for all."""
        left = self._whole_pattern(True).span().left
        return None if left is None else left + 1

    def _why_no_cache(self):
        """Why keys and values cannot be kept, or None."""
        return None

    def _why_no_decoding(self):
        """Why the layer cannot be computed a token at a time, or None."""
        if self.key_dim is None:
            return "it has no projections, `key_dim`, whose outputs could be kept"
        if isinstance(self.score, scores.Location):
            return "the score Location asks for the number of keys"
        return self._why_no_cache()

    def _check_caches(self):
        self._check_reason(self._why_no_cache())

    def _check_decodes(self):
        self._check_reason(self._why_no_decoding())

    def _check_reason(self, reason):
        if reason is not None:
            raise ValueError(f"This {type(self).__name__} cannot have a cache: {reason}")

    def _check_cached(self, query, cache, return_attention_scores, **given):
        """Raises unless a call with a cache has all that it needs, and nothing that it has not."""
        if isinstance(query, (list, tuple)):
            query, given["value"] = query[0], query[1:]
        caches.check(cache, query.shape[0], self._key_value_heads, self.key_dim, self.value_dim)
        refused = ["value", "key", "value_mask", "key_mask"]
        if caches.is_memory(cache):
            self._check_caches()
        else:
            self._check_decodes()
            refused += ["attention_mask", "attention_bias", "positions", "segment_ids"]
        refused = [name for name in refused if given.get(name) is not None]
        if refused:
            raise ValueError(
                f"A call with a cache takes the query, and its mask as `query_mask`: a cache knows "
                f"keys, values, their masks and positions. Received also: {', '.join(refused)}"
            )
        if return_attention_scores and self._is_ring(cache):
            raise ValueError(
                "Scores are unsupported with a sliding-window cache, which is shorter than the "
                "sequence. Received: return_attention_scores=True, with a cache of "
                f"{caches.length(cache)} tokens for a window of {self._window()}"
            )

    def _is_ring(self, cache):
        """Whether a cache may lose tokens, since the pattern does not let anyone see them again."""
        window, length = self._window(), cache["key"].shape[2]
        if caches.is_memory(cache) or window is None:
            return False
        # Of slots that a graph does not know, any number may be: a ring is right for all.
        return length is None or length >= window

    def _append(self, query, mask, cache, return_attention_scores, training):
        """What `call` returns with a cache that the tokens of `query` are appended to."""
        count, length = ops.shape(query)[1], caches.length(cache)
        if mask is not None:
            mask = ops.broadcast_to(mask, ops.shape(query)[:2])
        ring = self._is_ring(cache)
        lost, end = None, caches.end(cache["index"], count, mask)
        if not ring:
            lost = caches.overflow(end, length)
        elif cache["key"].shape[2] is None:
            lost = ops.logical_and(end > length, length < self._window())
        places = caches.positions(cache["index"], count, mask)
        query_heads, value, key = self._project(query, query, query)
        encoded = self.position is not None and self.position.encodes_alone
        if encoded:
            # Turned once. Turning all keys again would cost each step more than attention does.
            with keras_private.uncast_variables():
                query_heads, key = self.position.encode(query_heads, key, places, places)
        appended = caches.append(cache, key, value, mask)
        found = [] if mask is None else [ops.expand_dims(mask, (1, 3))]
        if ring and query.shape[1] != 1:
            # The first of several tokens sees some that the last of them overwrite.
            old_value, old_key = caches.read(cache, self.compute_dtype)
            value = ops.concatenate([old_value, ops.cast(value, old_value.dtype)], axis=1)
            key = ops.concatenate([ops.cast(old_key, key.dtype), key], axis=1)
            held = caches.held(cache["index"], length)
            key_places = ops.concatenate([held, places], axis=1)
            real = ops.ones_like(places, dtype="bool") if mask is None else mask
            found.append(ops.expand_dims(ops.concatenate([held >= 0, real], axis=1), (1, 2)))
        else:
            value, key = caches.read(appended, self.compute_dtype)
            if ring or (self.position is not None and not encoded):
                key_places = caches.held(appended["index"], length)
                found.append(ops.expand_dims(key_places >= 0, (1, 2)))
            else:
                # Slots that hold nothing yet are after every query.
                key_places = ops.arange(length, dtype="int32")
        attended = self._attend(
            query_heads,
            value,
            key,
            mask=found,
            pattern=self._whole_pattern(True),
            positions=(places, key_places),
            return_scores=return_attention_scores,
            training=training,
            encoded=encoded,
        )
        output = self._combine(attended, query)
        if lost is not None:
            output = caches.spoil(output, lost)
        scores = attended.weights if return_attention_scores else None
        return self._returned(masks.carry(output, mask), scores, attended.log_probability, appended)
