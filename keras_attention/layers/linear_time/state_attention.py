"""The bases of layers that attend through a state: sums over tokens, in linear time."""

import functools
import types
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
from keras import ops

from keras_attention import patterns, saving
from keras_attention.backend import backend
from keras_attention.core import keras_private
from keras_attention.core.hints import Cache, Dtype, Tensor
from keras_attention.kernels.linear_time import recurrence
from keras_attention.layers import kv_cache
from keras_attention.layers.base import QK_NORMS, BaseAttention, OutputProjection, QkNorm
from keras_attention.layers.blocks import norms
from keras_attention.layers.heads import ROLES, EinsumHeads
from keras_attention.layers.linear_time import short_convolution
from keras_attention.layers.traits import OF_PAIRS
from keras_attention.sequences import masks, shapes
from keras_attention.spec import AttentionResult


class StateAttention(OutputProjection, saved=False):
    """Multi-head attention whose heads are combined through a state, by `recurrence`."""

    own_traits: ClassVar[dict[str, Any]] = {
        "has_weights": False,
        "one_sequence": True,
        "layouts": (kv_cache.STATE,),
        "refused": OF_PAIRS,
        "refusal": "sees all tokens up to each, through sums of them, and has no weights of pairs",
        "no_cell_reason": "it sums over tokens instead of having weights",
        "tokens_reason": "it sums the real tokens, one after another",
    }
    preset_pattern: patterns.Pattern | None = patterns.Causal()
    # Gates are projections of a token: the features of each by its name, the ranks of those that
    # are of two matrices, and whether they have biases.
    gates: Mapping[str, int] = types.MappingProxyType({})
    gate_ranks: Mapping[str, int | None] = types.MappingProxyType({})
    gate_bias = False

    def __init__(self, num_heads: int, key_dim: int, value_dim: int | None = None, **kwargs: Any):
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        self.heads = StateHeads(self)

    def recurrence(self, *heads: Any, **given: Any) -> Any:
        """The output (B, T, H, V) of heads, and the state (B, G, K', V') after them.

        Args:
            query, key, value: (B, T, H, K), (B, S, G, K) and (B, S, G, V), in full precision; and
                gates, (B, S, G, features), as `prepared` returns them. Of a masked token, the key
                and the gates are 0, so that it must change nothing then.
            causal: whether a query sees keys up to its own index only; then T = S.
            state: before the first token, or None.
        """
        raise TypeError(f"{type(self).__name__} must implement `recurrence`.")

    def prepared(self, query: Any, key: Any, value: Any, *gates: Any) -> tuple[Any, ...]:
        """What enters the recurrence, made of heads and of the projections to gates."""
        return query, key, value, *gates

    @property
    def state_shape(self) -> tuple[int, int]:
        """K' and V' of the state."""
        return self.key_dim, self.value_dim

    @property
    def _cached_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays of a cache except `index`, without the batch axis."""
        return {"state": (self.heads.key_value_heads, *self.state_shape)}

    def _counted(self, x, layout):
        # Masked tokens are skipped where they stand, so that rows need not be compacted.
        return x if layout.appends or self.position is None else x._replace(positions=x.ranked())

    def attend(self, query, key, value, positions, training=None, state=None, gates=(), **given):
        """The `AttentionResult` of heads, as in `BaseAttention`.

        Args:
            state: the cache, with the next index; None without one.
            gates: what heads have beside query, key and value.
        """
        mask, causal = given["key_mask"], state is not None or given["pattern"] is not None
        query_mask = positions.query_mask if state is None else mask
        if self.position is not None and not given["encoded"]:
            at = positions.query, positions.key
            at = positions.of_lengths if self.position.needs_length else at
            query, key = self.position.encode(query, key, *at)
        wide = shapes.accumulation_dtype(query, key, value)
        heads = [ops.cast(x, wide) for x in (query, key, value, *gates)]
        has_keys = _has_keys(query_mask, mask, causal)
        mask = None if mask is None else ops.broadcast_to(mask, backend.shape(key)[:2])
        output, after = self.recur(heads, mask, causal, state or {})
        if has_keys is not None:
            output = masks.clear(output, has_keys)
            has_keys = ops.expand_dims(has_keys, 1)
        if state is not None:
            after = {name: ops.cast(after[name], state[name].dtype) for name in after}
            state = {**state, **after}
        output = self._narrowed(output, keras.backend.standardize_dtype(value.dtype))
        return AttentionResult(output, has_keys=has_keys, state=state)

    def recur(self, heads, mask, causal, cache):
        """The output of `recurrence`, and the arrays of a cache, empty without one, after it."""
        query, key, value, *gates = self.prepared(*heads)
        key, *gates = (masks.clear(x, mask) for x in (key, *gates))
        given = {"causal": causal, "state": cache.get("state")}
        output, state = self.recurrence(query, key, value, *gates, **given)
        return output, {"state": state}

    def _narrowed(self, output, dtype):
        """The outputs of heads in the dtype of the values."""
        return ops.cast(output, dtype)

    def make_cache(
        self,
        batch_size: int | Tensor,
        length: int | None = None,
        dtype: Dtype | None = None,
        spare: int = 0,
    ) -> Cache:
        """An empty cache, as in `Attention`, of constant size.

        `{"state": (B, G, K', V'), "index": (B,)}`, where `index` counts the tokens of each row.
        `length`, `dtype` and `spare` are ignored: a row may have any number of tokens, and sums
        are in float32. Raises `ValueError` if keys are encoded by more than their own position.
        """
        if self.position is not None and not self.position.encodes_alone:
            raise ValueError(
                "A state sums keys that are encoded once, and later tokens would change those of "
                f"this position. Received: a layer with position={self.position!r}"
            )
        wide = shapes.full_precision(self.compute_dtype)
        return kv_cache.make(batch_size, self._cached_shapes, wide)


def _has_keys(query_mask, key_mask, causal):
    """Which queries have a key, (B, T) or (B, 1), or None for all."""
    if key_mask is None or key_mask is query_mask:
        return query_mask
    if causal:
        seen = ops.cumsum(ops.cast(key_mask, "int32"), axis=1) > 0
    else:
        seen = ops.any(key_mask, axis=1, keepdims=True)
    return masks.both(query_mask, seen)


class StateHeads(EinsumHeads):
    """Heads, and after them the gates of the keys' tokens: `layer.gates`, {"name": features}."""

    def build(self, query_shape, value_shape, key_shape):
        made = super().build(query_shape, value_shape, key_shape)
        for name, size in self.layer.gates.items():
            rank, shape = self.layer.gate_ranks.get(name), key_shape
            self.features[name] = key_shape[-1]
            if rank is not None:
                made[f"{name}_in"] = self._einsum(f"{name}_in", key_shape, 1, (rank,))
                shape = (*key_shape[:-1], rank)
            made[name] = self._einsum(name, shape, 1, (self.key_value_heads, size))
        return made

    def _projected(self, x, role):
        if self.layer.gate_ranks.get(role) is not None:
            x = self.dense(f"{role}_in")(x)
        return super()._projected(x, role)

    def split_all(self, query, key, value):
        heads = super().split_all(query, key, value)
        return [*heads, *(self.split(key, name) for name in self.layer.gates)]

    def _has_bias(self, name):
        return self.layer.gate_bias if name in self.layer.gates else super()._has_bias(name)


class NormedHeads(StateHeads):
    """Heads whose outputs are normalized before they are merged.

    Queries and keys may have fewer than values, by `num_key_heads` of the layer.
    """

    def count(self, role):
        keys = None if role == "value" else self.layer.num_key_heads
        return keys or super().count(role)

    def merge(self, result, query):
        layer, output = self.layer, result.output
        if layer.head_norm_layer is not None:
            output = ops.cast(layer.head_norm_layer(output), layer.compute_dtype)
        return super().merge(result.replace(output=output), query)


class GatedStateAttention(StateAttention, saved=False):
    """The base of those whose heads are normalized and gated before the output projection."""

    _fixed_arguments = ("qk_norm", "clip_qkv")
    # Of the gate of the output.
    gate_activation: str = "silu"
    # The tokens of a convolution of queries, keys and values; None without one.
    conv_kernel_size: int | None = None
    # The heads of queries and keys; None for as many as of values.
    num_key_heads: int | None = None

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        use_gate: bool = True,
        head_norm: QkNorm = "rms",
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        super().__init__(num_heads, key_dim, value_dim, use_gate=use_gate, **kwargs)
        self.head_norm = norms.check("head_norm", head_norm, QK_NORMS)
        self.heads = NormedHeads(self)

    def _build_slots(self, query_heads, key_heads):
        super()._build_slots(query_heads, key_heads)
        if self.conv_kernel_size is not None:
            size, start = self.conv_kernel_size, short_convolution.near_identity
            self.conv_kernels = [
                self.add_weight((size, *shape), start, name=f"{name}_conv_kernel")
                for name, shape in self._convolved.items()
            ]
        shape = (None, None, self.num_heads, self.value_dim)
        given = self.head_norm or None, "head_norm", shape, self.dtype_policy
        self.head_norm_layer = norms.make(*given, center=False)
        if self._norms_full_precision:
            self.head_norm_layer.autocast = False

    def recurrence(self, *heads: Any, **given: Any) -> Any:
        query, key, value, decay = heads
        return recurrence.run(query, key, value, decay, given["state"])

    @functools.cached_property
    def traits(self):
        found = super().traits
        if self.conv_kernel_size is None:
            return found
        return found._replace(needs_positions=True, layouts=(kv_cache.CONVOLVED_STATE,))

    def _counted(self, x, layout):
        # A convolution reads neighbors.
        of = StateAttention if self.conv_kernel_size is None else BaseAttention
        return of._counted(self, x, layout)

    @property
    def _convolved(self):
        """The number of heads and of features of each array that is convolved."""
        return {role: (self.heads.count(role), self.heads.size(role, None)) for role in ROLES}

    @property
    def _cached_shapes(self) -> dict[str, tuple[int, ...]]:
        if self.conv_kernel_size is None:
            return super()._cached_shapes
        features = sum(heads * size for heads, size in self._convolved.values())
        return {**super()._cached_shapes, "last": (self.conv_kernel_size - 1, features)}

    def attend(self, query, key, value, positions, training=None, state=None, gates=(), **given):
        if self.conv_kernel_size is not None:
            with keras_private.uncast_variables():
                kernels = [ops.convert_to_tensor(kernel) for kernel in self.conv_kernels]
            heads, before = (query, key, value), None if state is None else state["last"]
            convolved = short_convolution.convolve(heads, kernels, given["key_mask"], before)
            (query, key, value), last = convolved
            if state is not None:
                state = {**state, "last": ops.cast(last, state["last"].dtype)}
        return super().attend(query, key, value, positions, training, state, gates, **given)

    @property
    def _norms_full_precision(self):
        """Whether the norm reads heads as they were summed.

        Sums may be beyond float16; and of a small one, so may be the gradient of its norm.
        """
        return self.compute_dtype == "float16" and self.head_norm in ("rms", "layer")

    def _narrowed(self, output, dtype):
        return output if self._norms_full_precision else super()._narrowed(output, dtype)
