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

    def _axes_of(self, shape):
        """The `Axes` by which inputs of a shape are folded; None if they are (B, T, D)."""
        axes = Axes(len(shape), self.layer.attention_axes)
        return None if axes.trivial else axes

    def check_shapes(self, query_shape, value_shape, key_shape):
        shapes.check_lengths(value_shape, key_shape)
        if len(query_shape) != len(value_shape) or len(query_shape) < 3:
            raise ValueError(
                "`query` and `value` must have the same number of axes, at least 3, (batch, "
                f"positions, features). Received: query.shape={query_shape}, "
                f"value.shape={value_shape}"
            )
        Axes(len(query_shape), self.layer.attention_axes).check(query_shape, value_shape)

    def output_shape(self, query_shape, value_shape):
        return (*query_shape[:-1], *(self.layer.output_sizes or query_shape[-1:]))

    def scores_shape(self, query_shape, value_shape):
        axes = Axes(len(query_shape), self.layer.attention_axes)
        return axes.scores_shape(self.layer.num_heads, query_shape, value_shape)

    def build(self, query_shape, value_shape, key_shape):
        given = dict(zip(ROLES, (query_shape, key_shape, value_shape), strict=True))
        self.features = {role: shape[-1] for role, shape in given.items()}
        self.rank = len(query_shape)
        self.axes = self._axes_of(query_shape)
        heads = (self.layer.num_heads, self.layer.value_dim)
        # The order is that of Keras's weights.
        made = {role: self.projection(role, given[role]) for role in ("query", "key")}
        if self.layer.use_gate:
            made["gate"] = self._einsum("gate", query_shape, 1, heads, activation="sigmoid")
        made["value"] = self.projection("value", value_shape)
        size = self.layer.output_sizes or query_shape[-1:]
        made["output"] = self._einsum("attention_output", (*query_shape[:-1], *heads), 2, size)
        return made

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

    # `DenseHeads` projects a row as a matrix, which these projections do not take.
    split_row = Heads.split_row

    def split(self, x, role):
        self.check_features(role, x)
        heads = self.dense(role)(x)
        return heads if self.axes is None else self.axes.fold(heads)

    def split_rows(self, table, role):
        # With as many axes as the inputs.
        heads = self.dense(role)(ops.reshape(table, (*(1,) * (self.rank - 2), *table.shape)))
        return ops.reshape(heads, heads.shape[-3:])

    def split_all(self, query, key, value):
        if self.axes is None:
            return super().split_all(query, key, value)
        self.axes.check(query.shape, value.shape)
        value, key = (self.axes.matched(x, query) for x in (value, key))
        return Heads.split_all(self, query, key, value)

    def join(self, result, query):
        heads, dense, axes = result.output, self.layer._output_dense, self.axes
        if axes is not None:
            heads = axes.unfold(heads, query)
        if self.layer.use_gate:
            heads = ops.multiply(heads, self.dense("gate")(query))
        if axes is None and projections.plain(self.layer, dense):
            size = self.layer.output_sizes or (query.shape[-1],)
            output = projections.from_heads(heads, dense, size)
        else:
            output = dense(heads)
        if result.has_keys is None or not self._has_bias("output"):
            return output
        # A query without keys in any head has output 0, not the output's bias.
        has_keys = ops.any(result.has_keys, axis=1)
        if axes is not None:
            has_keys = axes.unfold_rows(has_keys, query)
        for _ in range(len(output.shape) - len(has_keys.shape)):
            has_keys = ops.expand_dims(has_keys, -1)
        return ops.where(has_keys, output, ops.zeros_like(output))

    def restricted(self, x):
        axes = self.axes
        if axes is None:
            return super().restricted(x)
        of_query, of_key, seen = (
            None if mask is None else axes.fold_padding(mask, like)
            for mask, like in ((x.query_mask, x.query), (x.key_mask, x.value), (x.seen, x.value))
        )
        mask, bias = (
            None if array is None else axes.fold_mask(array, x.query, x.value, name)
            for array, name in (
                (x.attention_mask, "attention_mask"),
                (x.attention_bias, "attention_bias"),
            )
        )
        return x._replace(
            query_mask=of_query,
            key_mask=of_key,
            seen=seen,
            attention_mask=mask,
            attention_bias=bias,
        )

    def check_positions(self, name, shape):
        if self._axes_of(shape) is not None:
            raise ValueError(
                f"`{name}` needs inputs (batch, positions, features), attended over their one axis "
                f"of positions. Received: query.shape={tuple(shape)}, "
                f"attention_axes={self.layer.attention_axes}"
            )

    def scores(self, weights, query, value):
        axes = self.axes
        return weights if axes is None else axes.unfold_scores(weights, query, value)
