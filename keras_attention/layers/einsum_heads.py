"""`EinsumHeads`: heads of any number of axes, with an output projection."""

import keras

from keras_attention import shapes
from keras_attention.layers import projections
from keras_attention.layers.axes import Axes
from keras_attention.layers.heads import ROLES, DenseHeads, Heads

ops = keras.ops

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class EinsumHeads(DenseHeads):
    """Projections of any number of axes, in the order of Keras's `MultiHeadAttention`.

    Args:
        layer: the attention layer: also `attention_axes`, `use_gate` and its output's shape.
    """

    def __init__(self, layer):
        super().__init__(layer)
        axes = layer.attention_axes
        if axes not in (None, (1,), (-2,)):
            self.no_cache_reason = f"attention_axes={axes} is not the one axis of positions"
            self.no_decoding_reason = self.no_cache_reason

    def axes(self, shape):
        """The `Axes` of inputs of a shape."""
        return Axes(len(shape), self.layer.attention_axes)

    def check_shapes(self, query_shape, value_shape, key_shape):
        shapes.check_lengths(value_shape, key_shape)
        if len(query_shape) != len(value_shape) or len(query_shape) < 3:
            raise ValueError(
                "`query` and `value` must have the same number of axes, at least 3, (batch, "
                f"positions, features). Received: query.shape={query_shape}, "
                f"value.shape={value_shape}"
            )
        self.axes(query_shape).check(query_shape, value_shape)

    def output_shape(self, query_shape, value_shape):
        return (*query_shape[:-1], *(self.layer.output_sizes or query_shape[-1:]))

    def scores_shape(self, query_shape, value_shape):
        return self.axes(query_shape).scores_shape(self.layer.num_heads, query_shape, value_shape)

    def build(self, query_shape, value_shape, key_shape):
        given = dict(zip(ROLES, (query_shape, key_shape, value_shape), strict=True))
        self.features = {role: shape[-1] for role, shape in given.items()}
        self.rank = len(query_shape)
        heads = (self.layer.num_heads, self.layer.value_dim)
        # The order is that of Keras's weights.
        for role in ("query", "key"):
            self.set(role, self.projection(role, given[role]))
        if self.layer.use_gate:
            self.set("gate", self._einsum("gate", query_shape, 1, heads, activation="sigmoid"))
        self.set("value", self.projection("value", value_shape))
        size = self.layer.output_sizes or query_shape[-1:]
        self.set("output", self._einsum("attention_output", (*query_shape[:-1], *heads), 2, size))

    def projection(self, role, shape):
        return self._einsum(role, shape, 1, (self.count(role), self.size(role, shape)))

    def _has_bias(self, name):
        """Whether a projection has a bias."""
        return self.layer.use_bias is True or (self.layer.use_bias == "qkv" and name in ROLES)

    def _einsum(self, name, shape, summed, size, **kwargs):
        """A projection of the last `summed` axes of inputs of `shape` to axes of `size`."""
        given, made = _LETTERS[: len(shape)], _LETTERS[len(shape) :][: len(size)]
        free, bound = given[:-summed], given[-summed:]
        shapes.check_memory(name, (*shape[-summed:], *size))
        dense = keras.layers.EinsumDense(
            f"{given},{bound}{made}->{free}{made}",
            output_shape=(*shape[1:-summed], *size),
            bias_axes=made if self._has_bias(name) else None,
            name=name,
            **self.arguments(),
            **kwargs,
        )
        # Keras's EinsumDense would warn that it drops the mask, which was read already.
        dense.supports_masking = True
        dense.build(shape)
        return dense

    # Its projections are no products of two axes by two.
    split_row = Heads.split_row

    def split(self, x, role):
        self.check_features(role, x)
        heads, axes = self.dense(role)(x), self.axes(x.shape)
        return heads if axes.trivial else axes.fold(heads)

    def split_rows(self, table, role):
        # With as many axes as the inputs.
        heads = self.dense(role)(ops.reshape(table, (*(1,) * (self.rank - 2), *table.shape)))
        return ops.reshape(heads, heads.shape[-3:])

    def split_all(self, query, key, value):
        axes = self.axes(query.shape)
        if not axes.trivial:
            axes.check(query.shape, value.shape)
            value, key = (axes.matched(x, query) for x in (value, key))
        return super().split_all(query, key, value)

    def _are_matrices(self, query):
        return self.axes(query.shape).trivial and super()._are_matrices(query)

    def join(self, result, query):
        heads, axes = result.output, self.axes(query.shape)
        if not axes.trivial:
            heads = axes.unfold(heads, query)
        if self.layer.use_gate:
            heads = ops.multiply(heads, self.dense("gate")(query))
        dense = self.dense("output")
        if axes.trivial and projections.plain(self.layer, dense):
            size = self.layer.output_sizes or (query.shape[-1],)
            output = projections.from_heads(heads, dense, size)
        else:
            output = dense(heads)
        if result.has_keys is None or not self._has_bias("output"):
            return output
        # A query without keys in any head has output 0, not the output's bias.
        has_keys = ops.any(result.has_keys, axis=1)
        if not axes.trivial:
            has_keys = axes.unfold_rows(has_keys, query)
        for _ in range(len(output.shape) - len(has_keys.shape)):
            has_keys = ops.expand_dims(has_keys, -1)
        return ops.where(has_keys, output, ops.zeros_like(output))

    def mask(self, query, value, query_mask, key_mask, attention_mask):
        axes = self.axes(query.shape)
        if not axes.trivial:
            if query_mask is not None:
                query_mask = axes.fold_padding(query_mask, query)
            if key_mask is not None:
                key_mask = axes.fold_padding(key_mask, value)
            if attention_mask is not None:
                attention_mask = axes.fold_mask(attention_mask, query, value)
        return super().mask(query, value, query_mask, key_mask, attention_mask)

    def bias(self, bias, query, value):
        axes = self.axes(query.shape)
        if bias is None or axes.trivial:
            return super().bias(bias, query, value)
        return (axes.fold_mask(ops.convert_to_tensor(bias), query, value, "attention_bias"),)

    def pair(self, name, given, query, value):
        if given is not None and not self.axes(query.shape).trivial:
            raise ValueError(
                f"`{name}` needs inputs (batch, positions, features), attended over their one axis "
                f"of positions. Received: query.shape={tuple(query.shape)}, "
                f"attention_axes={self.layer.attention_axes}"
            )
        return super().pair(name, given, query, value)

    def scores(self, weights, query, value):
        axes = self.axes(query.shape)
        return weights if axes.trivial else axes.unfold_scores(weights, query, value)
