"""Layers that attend through a state, whose tokens have gates, and whose heads have a norm."""

from __future__ import annotations

from typing import Any

from keras import ops

from keras_attention import keras_private, saving, shapes
from keras_attention.layers import kv_cache, norms, short_convolution
from keras_attention.layers.attention import QK_NORMS, Attention, QkNorm
from keras_attention.layers.heads import EinsumHeads
from keras_attention.layers.state_attention import FIXED, StateAttention


class StateHeads(EinsumHeads):
    """Heads, and after them the gates of the keys' tokens: `layer._gates`, {"name": features}."""

    def build(self, query_shape, value_shape, key_shape):
        made = super().build(query_shape, value_shape, key_shape)
        rank, shape = self.layer._gate_rank, key_shape
        for name, size in self.layer._gates.items():
            self.features[name] = key_shape[-1]
            if rank is not None:
                made[f"{name}_in"] = self._einsum(f"{name}_in", key_shape, 1, (rank,))
                shape = (*key_shape[:-1], rank)
            made[name] = self._einsum(name, shape, 1, (self.key_value_heads, size))
        return made

    def split(self, x, role):
        if role in self.layer._gates and self.layer._gate_rank is not None:
            self.check_features(role, x)
            heads = self.dense(role)(self.dense(f"{role}_in")(x))
            return heads if self.axes is None else self.axes.fold(heads)
        return super().split(x, role)

    def split_all(self, query, key, value):
        heads = super().split_all(query, key, value)
        return [*heads, *(self.split(key, name) for name in self.layer._gates)]

    def _has_bias(self, name):
        return self.layer._gate_bias if name in self.layer._gates else super()._has_bias(name)

    def join(self, result, query):
        norm = self.layer.head_norm_layer
        if norm is not None:
            output = ops.cast(norm(result.output), self.layer.compute_dtype)
            result = result.replace(output=output)
        return super().join(result, query)


class GatedStateAttention(StateAttention):
    """The base of those whose heads are normalized and gated before the output projection."""

    _fixed_arguments: tuple[str, ...] = (*FIXED, "qk_norm", "clip_qkv")
    # Whether the projections to the gates of tokens have biases.
    _gate_bias = False
    # Of the gate of the output.
    gate_activation = "silu"
    # The tokens of a convolution of queries, keys and values; None without one.
    conv_kernel_size: int | None = None

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
        self.heads = StateHeads(self)

    @property
    def _gates(self) -> dict[str, int]:
        """The features of each gate of a token, by name: projections of the inputs."""
        return {}

    @property
    def _gate_rank(self) -> int | None:
        """The rank of their projections, or None for any."""
        return None

    def _set_conv_kernel_size(self, size):
        self.conv_kernel_size = shapes.check_count("conv_kernel_size", size, 2, optional=True)
        if self.conv_kernel_size is not None:
            self.layouts = (kv_cache.ConvolvedState,)

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        if self.conv_kernel_size is not None:
            self.conv_kernels = short_convolution.add_kernels(
                self, self.conv_kernel_size, self._convolved
            )
        shape = (None, None, self.num_heads, self.value_dim)
        self.head_norm_layer = norms.make(
            self.head_norm or None, "head_norm", shape, self.dtype_policy, center=False
        )
        if self._norms_full_precision:
            self.head_norm_layer.autocast = False
        self.build_decay()

    def build_decay(self):
        """Makes weights of the decay that are no projections."""

    @property
    def _order_matters(self):
        return self.conv_kernel_size is not None or super()._order_matters

    def _counted(self, x, layout):
        # A convolution reads neighbors.
        of = StateAttention if self.conv_kernel_size is None else Attention
        return of._counted(self, x, layout)

    @property
    def _convolved(self):
        """Heads and features of what is convolved."""
        heads, groups = self.num_heads, self.heads.key_value_heads
        return {
            "query": (heads, self.key_dim),
            "key": (groups, self.key_dim),
            "value": (groups, self.value_dim),
        }

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
            (query, key, value), last = short_convolution.convolve(
                *((query, key, value), kernels, given["key_mask"]),
                before=None if state is None else state["last"],
            )
            if state is not None:
                state = {**state, "last": ops.cast(last, state["last"].dtype)}
        given = {**given, "training": training, "state": state, "gates": gates}
        return super().attend(query, key, value, positions, **given)

    @property
    def _norms_full_precision(self):
        """Whether the norm reads heads as they were summed.

        Sums may be beyond float16; and of a small one, so may be the gradient of its norm.
        """
        return self.compute_dtype == "float16" and self.head_norm in ("rms", "layer")

    def _narrowed(self, output, dtype):
        return output if self._norms_full_precision else super()._narrowed(output, dtype)
