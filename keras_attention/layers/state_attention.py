"""The base of layers that attend through a state: sums over tokens, in time linear in their number.

They take the road of `Attention.call`. What follows the heads is another function of them, `recur`.
"""

from __future__ import annotations

import keras

from keras_attention import masks, patterns, shapes
from keras_attention.backend import backend
from keras_attention.hints import Cache, Dtype, Tensor
from keras_attention.layers import kv_cache
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.sizes import known
from keras_attention.spec import AttentionResult

ops = keras.ops

# What has no meaning without a weight for each pair.
FIXED = (
    "score",
    "normalization",
    "pattern",
    "position",
    "dropout",
    "logit_soft_cap",
    "use_sink",
    "scores_regularizer",
    "sliding_window",
    "flash_attention",
)


# Arguments of a call that need all pairs of queries and keys.
OF_PAIRS = (
    "attention_mask",
    "attention_bias",
    "segment_ids",
    "positions",
    "return_attention_scores",
)


class StateAttention(MultiHeadAttention):
    """Multi-head attention whose heads are combined through a state.

    Subclasses have `recur(query, key, value, mask, causal, state)`, which returns the output
    (B, T, H, V) and the state (B, G, K', V'), and the sizes of the state, `state_shape`.
    """

    _fixed_arguments: tuple[str, ...] = FIXED
    layouts: tuple[type[kv_cache.Layout], ...] = (kv_cache.State,)
    one_sequence = True
    has_weights = False
    refused_arguments: tuple[str, ...] = OF_PAIRS
    refusal_reason = "sees all tokens up to each, through sums of them, and has no weights of pairs"
    tokens_reason: str | None = "it sums the real tokens, one after another"
    preset_pattern: patterns.Pattern | None = patterns.Causal()

    @property
    def state_shape(self) -> tuple[int, int]:
        """K' and V' of the state."""
        return self.key_dim, self.value_dim

    @property
    def _order_matters(self):
        return self.position is not None

    def _counted(self, x, layout):
        # Masked tokens are skipped where they are.
        return x if layout.appends or self.position is None else x._replace(positions=x.ranked())

    @property
    def _state_sizes(self) -> tuple[int, ...]:
        """The sizes of a cache's arrays beside those of rows and heads."""
        return self.state_shape

    def attend(self, query, key, value, positions, training=None, state=None, **given):
        """The `AttentionResult` of heads, as in `Attention`.

        Args:
            state: the cache, with the next index; None without one.
        """
        key_mask = given.get("key_mask")
        query_mask = key_mask if state is not None else positions.query_mask
        asked = of_pairs(query_mask, positions.given, **given)
        if any(asked.values()) or (key.shape[1] == 0 and not self.one_sequence and state is None):
            if state is not None:
                names = [name for name in asked if asked[name]]
                raise ValueError(
                    "A state has sums of tokens, and no weights of them. Received with a cache of "
                    f"`make_cache`: {', '.join(names)}"
                )
            return super().attend(query, key, value, positions, training, **given)
        causal = state is not None or given["pattern"] is not None
        if causal and not self.one_sequence and not _as_many(query, key):
            key, value, key_mask = _cut(query, key, value, key_mask)
        if self.position is not None and not given.get("encoded"):
            at = positions.query, positions.key
            at = positions.of_lengths if self.position.needs_length else at
            query, key = self.position.encode(query, key, *at)
        before = None if state is None else self.sums_of(state)
        output, after = self.recur(query, key, value, key_mask, causal, before)
        has_keys = _has_keys(query_mask, key_mask, causal)
        if has_keys is not None:
            output = ops.where(ops.expand_dims(has_keys, (2, 3)), output, ops.zeros_like(output))
            has_keys = ops.expand_dims(has_keys, 1)
        output = self._narrowed(output, keras.backend.standardize_dtype(value.dtype))
        if state is not None:
            state = self.with_sums(state, after)
        return AttentionResult(output, has_keys=has_keys, state=state)

    def empty(self, sums):
        """The arrays of a cache without tokens but its index, of zeros (B, G, K', V')."""
        return {"state": sums}

    def sums_of(self, cache):
        """The state of `recur`, of a cache."""
        return cache["state"]

    def with_sums(self, cache, state):
        """The cache with another state."""
        return {**cache, "state": ops.cast(state, cache["state"].dtype)}

    def _narrowed(self, output, dtype):
        """Outputs of heads in the dtype of the values."""
        return ops.cast(output, dtype)

    def recur(self, query, key, value, mask, causal, state):
        """The output (B, T, H, V) of heads, and the state after them.

        Args:
            mask: (B, S), True = a real token, or None.
            causal: whether a query sees keys up to its own index only; then T = S.
            state: before the first token, or None.
        """
        raise TypeError(f"{type(self).__name__} must implement `recur`.")

    def make_cache(
        self, batch_size: int | Tensor, length: int | None = None, dtype: Dtype | None = None
    ) -> Cache:
        """An empty cache, for `layer(x, cache=cache)`, as in `Attention`, of constant size.

        Args:
            batch_size: number of rows.
            length, dtype: ignored: a row may have any number of tokens, and sums are in float32.

        Returns:
            `{"state": (B, G, K', V'), "index": (B,)}`, where `index` counts the tokens of each row.

        Raises:
            ValueError: `batch_size` is a number below 0, or keys are encoded by more than
                their own position.
        """
        if isinstance(batch_size, (bool, int, float)):
            shapes.check_count("batch_size", batch_size, minimum=0)
        if self.position is not None and not self.position.encodes_alone:
            raise ValueError(
                "A state sums keys that are encoded once, and later tokens would change those of "
                f"this position. Received: a layer with position={self.position!r}"
            )
        shape = (batch_size, self.heads.key_value_heads, *self.state_shape)
        wide = shapes.full_precision(self.compute_dtype)
        return {
            **self.empty(ops.zeros(shape, wide)),
            "index": ops.zeros((batch_size,), "int32"),
        }


def of_pairs(
    query_mask, positioned, *, masks, biases, segment_ids, return_weights, key_mask=None, **others
):
    """Whether each argument of a call that needs all pairs of queries and keys is given."""
    padding = (query_mask is not None) + (key_mask is not None)
    masked = len(masks) > padding
    given = masked, bool(biases), segment_ids is not None, positioned, return_weights
    return dict(zip(OF_PAIRS, given, strict=True))


def _as_many(query, key):
    """Whether there are surely as many keys as queries."""
    return known(query.shape[1]) and query.shape[1] == key.shape[1]


def _cut(query, key, value, key_mask):
    """Keys, values and their mask (B, S) as many as queries: later ones are seen by none."""
    length, given = backend.shape(query)[1], backend.shape(key)[1]
    if key_mask is None:
        key_mask = ops.ones((1, given), "bool")
    missing = backend.most_size(length - given, 0)
    widths = [(0, 0), (0, missing), (0, 0), (0, 0)]
    found = ops.pad(key, widths), ops.pad(value, widths), ops.pad(key_mask, widths[:2])
    return tuple(array[:, :length] for array in found)


def _has_keys(query_mask, key_mask, causal):
    """Which queries have a key, (B, T) or (B, 1), or None for all."""
    if key_mask is None or key_mask is query_mask:
        return query_mask
    if causal:
        seen = ops.cumsum(ops.cast(key_mask, "int32"), axis=1) > 0
    else:
        seen = ops.any(key_mask, axis=1, keepdims=True)
    return masks.both(query_mask, seen)
