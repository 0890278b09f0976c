"""Splits the inputs of an attention layer into heads, and joins heads into its output.

    Heads        none: the inputs themselves, as one head
    DenseHeads   projections of (B, T, D), heads concatenated in the output
    EinsumHeads  projections of (B, …, D), attended over some of the axes, and an output projection

A layer has one of them. The projections are attributes of the layer, where saved files look for
their weights.
"""

import keras

from keras_attention import inputs, saving, shapes
from keras_attention.layers import projections
from keras_attention.layers.axes import Axes

ops = keras.ops

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
ROLES = ("query", "key", "value")


class Heads:
    """The inputs as one head, (B, T, 1, D).

    Args:
        layer: the attention layer: `num_heads`, `num_key_value_heads`, `key_dim`, `value_dim`, and
            the options of its projections.
    """

    # The reason the layer's cache cannot store these heads, or None.
    no_cache_reason: str | None = None
    no_decoding_reason: str | None = "it has no projections, `key_dim`, whose outputs could be kept"

    def __init__(self, layer):
        self.layer = layer

    # Sizes

    @property
    def key_value_heads(self):
        """G."""
        return self.layer.num_key_value_heads or self.layer.num_heads

    def count(self, role):
        """Heads of the query, the key or the value."""
        return self.layer.num_heads if role == "query" else self.key_value_heads

    def size(self, role, shape):
        """Features of a head, from inputs of a shape."""
        return shape[-1]

    def shape(self, role, shape):
        """The shape (B, T, H, K) of heads of inputs of a shape."""
        return (shape[0], shape[1], self.count(role), self.size(role, shape))

    def check_shapes(self, query_shape, value_shape, key_shape):
        """Raises if inputs of these shapes cannot be attended over."""
        named = {"query": query_shape, "value": value_shape, "key": key_shape}
        for name, shape in named.items():
            if len(shape) != 3:
                raise ValueError(
                    f"`{name}` must have 3 axes, (batch, positions, features). "
                    f"Received: {name}.shape={tuple(shape)}"
                )
        shapes.check_lengths(value_shape, key_shape)

    def output_shape(self, query_shape, value_shape):
        """The shape of the layer's output."""
        size = self.size("value", value_shape)
        return (*query_shape[:-1], None if size is None else self.count("query") * size)

    def scores_shape(self, query_shape, value_shape):
        """The shape of the weights that the layer returns."""
        return (query_shape[0], self.layer.num_heads, query_shape[1], value_shape[1])

    # Arrays

    def build(self, query_shape, value_shape, key_shape):
        """Creates the projections of the layer."""

    def split(self, x, role):
        """The heads of one input, (B, T, H, K)."""
        return ops.expand_dims(x, 2)

    def split_row(self, x, role):
        """The heads of one position of each sequence, (B, 1, H, K) of (B, D)."""
        return self.split(x[:, None], role)

    def split_all(self, query, key, value):
        """The heads of the three."""
        given = zip(ROLES, (query, key, value), strict=True)
        return [self.split(x, role) for role, x in given]

    def join(self, result, query):
        """The layer's output of an `AttentionResult`."""
        heads = result.output
        # Not those of `heads`: ONNX's converter gets sizes after a loop wrong.
        batch, length = ops.shape(query)[:2]
        count, size = heads.shape[2:]
        return ops.reshape(heads, (batch, length, count * size))

    # Arrays of pairs of positions

    def mask(self, query, value, query_mask, key_mask, attention_mask):
        """Masks that broadcast to (B, H, T, S). Not combined, which would need (B, 1, T, S)."""
        found = []
        if query_mask is not None:
            found.append(ops.expand_dims(query_mask, (1, 3)))
        if key_mask is not None:
            found.append(ops.expand_dims(key_mask, (1, 2)))
        if attention_mask is not None:
            inputs.check_not_padding(attention_mask, query)
            found.append(inputs.four_axes("attention_mask", attention_mask))
        return tuple(found)

    def bias(self, bias, query, value):
        """`attention_bias` with four axes, in a tuple; empty if it is None."""
        if bias is None:
            return ()
        bias = ops.convert_to_tensor(bias)
        inputs.check_bias("attention_bias", bias)
        return (inputs.four_axes("attention_bias", bias),)

    def pair(self, name, given, query, value):
        """`positions` or `segment_ids` for query and key."""
        return inputs.pair(name, given, query, value)

    def scores(self, weights, query, value):
        """Weights (B, H, T, S) as the layer returns them."""
        return weights


class DenseHeads(Heads):
    """Projections by one matrix each, (D, H · K)."""

    no_decoding_reason: str | None = None

    def size(self, role, shape):
        return self.layer.value_dim if role == "value" else self.layer.key_dim

    def build(self, query_shape, value_shape, key_shape):
        given = dict(zip(ROLES, (query_shape, key_shape, value_shape), strict=True))
        self.features = {role: shape[-1] for role, shape in given.items()}
        for role, shape in given.items():
            self.set(role, self.projection(role, shape))

    def projection(self, role, shape):
        """The layer that projects the query, the key or the value."""
        heads, size = self.count(role), self.size(role, shape)
        shapes.check_memory(role, (shape[-1], heads, size))
        dense = keras.layers.Dense(
            heads * size, use_bias=self.layer.use_bias, name=role, **self.arguments()
        )
        dense.build(shape)
        return dense

    def arguments(self):
        """The options of every projection."""
        layer = self.layer
        return {
            "kernel_initializer": saving.clone_initializer(layer.kernel_initializer),
            "bias_initializer": saving.clone_initializer(layer.bias_initializer),
            "kernel_regularizer": layer.kernel_regularizer,
            "bias_regularizer": layer.bias_regularizer,
            "activity_regularizer": layer._activity_regularizer,
            "kernel_constraint": layer.kernel_constraint,
            "bias_constraint": layer.bias_constraint,
            "dtype": layer.dtype_policy,
        }

    def set(self, role, dense):
        """Adds a projection to the layer, under the attribute name of saved files."""
        setattr(self.layer, f"_{role}_dense", dense)

    def dense(self, role):
        """The projection of the query, the key or the value."""
        return getattr(self.layer, f"_{role}_dense")

    def check_features(self, role, x):
        """Raises if the layer was built for another number of features."""
        if x.shape[-1] not in (None, self.features[role]):
            raise ValueError(
                f"`{role}` must have {self.features[role]} features, as when the layer was "
                f"built. Received: {role}.shape={tuple(x.shape)} (the order of inputs is "
                "query, value, key)"
            )

    def split(self, x, role):
        self.check_features(role, x)
        return self._apart(self.dense(role)(x), role)

    def split_row(self, x, role):
        # With two axes, since XLA cannot compile TensorFlow's gradient of the product of three axes
        # by two inside a loop.
        return self._apart(self.dense(role)(x)[:, None], role)

    def _apart(self, projected, role):
        """(B, T, H, K) of (B, T, H · K)."""
        batch, length = ops.shape(projected)[:2]
        heads = self.count(role)
        return ops.reshape(projected, (batch, length, heads, projected.shape[-1] // heads))

    def split_all(self, query, key, value):
        if not self._are_matrices(query):
            return super().split_all(query, key, value)
        found = []
        for role, x in zip(ROLES, (query, key, value), strict=True):
            self.check_features(role, x)
            size = self.count(role), self.size(role, x.shape)
            found.append(projections.to_heads(x, self.dense(role), size))
        return found

    def _are_matrices(self, query):
        """Whether the projections are products with matrices, which `projections` computes."""
        return projections.plain(self.layer, *map(self.dense, ROLES))


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

    def has_bias(self, name):
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
            bias_axes=made if self.has_bias(name) else None,
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
        if result.has_keys is None or not self.has_bias("output"):
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
