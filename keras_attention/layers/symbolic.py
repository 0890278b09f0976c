"""The call of `Attention` on symbolic tensors: its shapes, dtypes and masks, checked."""

import keras

from keras_attention import inputs, masks
from keras_attention.layers import kv_cache


class SymbolicCall(keras.layers.Layer):
    """The methods of `Attention` by which Keras traces it without arrays."""

    def _shapes(self, query_shape, value_shape, key_shape):
        """The shapes of query, value and key, checked."""
        given = inputs.three_shapes(query_shape, value_shape, key_shape)
        self.heads.check_shapes(*given)
        query_shape, value_shape, key_shape = given
        if self.one_sequence and not query_shape[1:] == value_shape[1:] == key_shape[1:]:
            raise ValueError(
                f"{type(self).__name__} takes one sequence. Received: query.shape={query_shape}, "
                f"value.shape={value_shape}, key.shape={key_shape}"
            )
        return given

    def compute_mask(self, inputs, previous_mask=None):
        return previous_mask[0] if isinstance(previous_mask, (list, tuple)) else previous_mask

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        query_shape, value_shape, _ = self._shapes(query_shape, value_shape, key_shape)
        return self.heads.output_shape(query_shape, value_shape)

    def compute_output_spec(self, *args, **kwargs):
        given = inputs.arguments(self.call, *args, **kwargs)
        inputs.check_one_sequence(given.mask, given.query, given.value)
        for name in ("query_mask", "value_mask", "key_mask", "attention_mask", "mask"):
            mask = getattr(given, name)
            if mask is not False and not isinstance(mask, (list, tuple)):
                masks.boolean(name, mask)
        cache = given.cache
        if cache is not None:
            self.check_cached(**vars(given))
        (query, value, key), _ = inputs.three_inputs(
            (given.query, given.value, given.key), (None, None, None)
        )
        if cache is not None:
            cached = cache["value"]
            batch, _, length, size = cached.shape
            value = key = keras.KerasTensor((batch, length, size), cached.dtype)
        shape = self.compute_output_shape(query.shape, value.shape, key.shape)
        self.heads.pair("positions", given.positions, query, value)
        self.heads.pair("segment_ids", given.segment_ids, query, value)
        if given.attention_bias is not None and len(query.shape) == 3:
            inputs.check_pairs("attention_bias", given.attention_bias)
            inputs.check_bias("attention_bias", given.attention_bias)
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        scores = None
        if given.return_attention_scores:
            shape = self.heads.scores_shape(query.shape, value.shape)
            scores = keras.KerasTensor(shape, dtype=self.compute_dtype)
        shape = (query.shape[0], self.num_heads, query.shape[1])
        chosen = keras.KerasTensor(shape, dtype="float32")
        return self._returned(
            output, scores, chosen, None if cache is None else kv_cache.specs(cache)
        )
