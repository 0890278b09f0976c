"""Splits the inputs of an attention layer into heads, and joins heads into its output.

    Heads        none: the inputs themselves, as one head
    DenseHeads   projections of (B, T, D), heads concatenated in the output
    EinsumHeads  projections of any axes, and one of the output

Some presets have their own, such as `LatentHeads` and `DifferentialHeads`.

A layer has one of them. The projections are attributes of the layer, where saved files look for
their weights.

Inputs with more axes are folded to (B, T, H, K) when they are split, and what masks them with them:
`axes` is how, or None for three axes. Nothing but `split`, `restricted`, `join` and `scores` asks.
"""

from typing import Any

import keras
from keras import ops

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.layers.heads import projections
from keras_attention.layers.heads.axes import Axes
from keras_attention.sequences import inputs, shapes

ROLES = ("query", "key", "value")
# Those with biases, by the values of `use_bias` that are words.
_BIASED: dict[Any, tuple[str, ...]] = {
    "qkv": ROLES,
    "qvo": ("query", "value", "attention_output"),
}
# Those with projections, by the values of `reuse` that leave out some.
_OWN: dict[Any, tuple[str, ...]] = {"key_value": ROLES[:1], "value": ROLES[:2]}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Heads:
    """The inputs as one head, (B, T, 1, D).

    Args:
        layer: the attention layer: `num_heads`, `num_key_value_heads`, `key_dim`, `value_dim`, and
            the options of its projections.
    """

    # The reason the layer's cache cannot store these heads, or None.
    no_cache_reason: str | None = None
    no_decoding_reason: str | None = "it has no projections, `key_dim`, whose outputs could be kept"
    # The roles of inputs that are split here; of the others, another layer has the heads.
    own: tuple[str, ...] = ROLES
    # How inputs of more axes than (B, T, D) are folded, an `Axes`; None for these three.
    axes = None
    rank = 3

    def __init__(self, layer):
        self.layer = layer
        # The number of key and value heads, G.
        self.key_value_heads = layer.num_key_value_heads or layer.num_heads
        # The heads that split and join in calls that append tokens to a cache.
        self.cached: Any = self

    # Sizes

    def count(self, role):
        """The number of heads of the query, the key or the value."""
        return self.layer.num_heads if role.endswith("query") else self.key_value_heads

    def size(self, role, shape):
        """The number of features of a head, given the shape of the inputs."""
        return shape[-1]

    def shape(self, role, shape):
        """The shape (B, T, H, K) of heads, given the shape of the inputs."""
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
        shapes.check_lengths(query_shape, value_shape, key_shape)

    def output_shape(self, query_shape, value_shape):
        """The shape of the layer's output."""
        size = self.size("value", value_shape)
        return (*query_shape[:-1], None if size is None else self.count("query") * size)

    def scores_shape(self, query_shape, value_shape):
        """The shape of the weights that the layer returns."""
        return (query_shape[0], self.layer.num_heads, query_shape[1], value_shape[1])

    @property
    def stored(self):
        """What a cache stores: the number of heads, and the features of a key and of a value.

        If the last is None, the keys are the values too.
        """
        return self.key_value_heads, self.layer.key_dim, self.layer.value_dim

    # Arrays

    def build(self, query_shape, value_shape, key_shape):
        """The projections of the layer by name: it has each as an attribute `_{name}_dense`."""
        return {}

    def of_table(self, roles, shape):
        """Projections of a position's table, apart from those of inputs of a shape, by name."""
        raise ValueError(
            "A position with `own_projections` needs a layer that projects its inputs, with "
            f"`key_dim`. Received: key_dim={self.layer.key_dim}"
        )

    def split(self, x, role):
        """The heads of one input, (B, T, H, K)."""
        return ops.expand_dims(x, 2)

    def split_row(self, x, role):
        """The heads of one position of each sequence, (B, 1, H, K) of (B, D)."""
        return self.split(x[:, None], role)

    def split_table(self, table, role):
        """The heads (N, H, K) of vectors (N, D) that are no sequence."""
        return self.split(table[None], role)[0]

    def split_all(self, query, key, value):
        """The heads of all three inputs."""
        if self.axes is not None:
            self.axes.check(query.shape, value.shape)
            value, key = (self.axes.matched(x, query) for x in (value, key))
        given = zip(ROLES, (query, key, value), strict=True)
        return [self.split(x, role) if role in self.own else None for role, x in given]

    def values(self, value):
        """The values that are combined, made of those that a cache stores."""
        return value

    def merge(self, result, query):
        """The output of the layer, made of an `AttentionResult`."""
        heads = result.output
        # Sizes of the query, not of `heads`: ONNX's converter gets sizes after a loop wrong.
        batch, length = ops.shape(query)[:2]
        count, size = heads.shape[2:]
        return ops.reshape(heads, (batch, length, count * size))

    # Masks of pairs

    def check_pairs(self, x):
        """Raises unless the mask and the bias of the `Pairs` x broadcast to (B, H, T, S)."""
        axes, heads = self._axes_of(x.query.shape), self.layer.num_heads
        if x.attention_mask is not None and axes is None:
            inputs.check_not_padding(x.attention_mask, x.query)
        if x.attention_bias is not None:
            inputs.check_bias("attention_bias", x.attention_bias)
        for name, array in x.pairwise.items():
            if axes is None:
                sizes = x.query.shape[0], heads, x.query.shape[1], x.value.shape[1]
                inputs.check_fits(name, array, *sizes)
            else:
                axes.check_mask(name, array, heads, x.query, x.value)

    def restricted(self, x):
        """The `Pairs` x with masks and a bias as (B, T), (B, S) and (B, H, T, S) of the heads."""
        axes, pairs = self.axes, x.pairwise.items()
        if axes is None:
            return x._replace(**{name: inputs.four_axes(name, array) for name, array in pairs})
        folded = {name: axes.fold_mask(array, x.query, x.value) for name, array in pairs}
        for name, like in {"query_mask": x.query, "key_mask": x.value, "seen": x.value}.items():
            if getattr(x, name) is not None:
                folded[name] = axes.fold_padding(getattr(x, name), like)
        return x._replace(**folded)

    def _axes_of(self, shape):
        """The `Axes` by which inputs of a shape are folded; None if they are (B, T, D)."""

    def check_positions(self, name, shape):
        """Raises unless inputs of a shape have the one axis of positions that `name` numbers."""
        if self._axes_of(shape) is not None:
            raise ValueError(
                f"`{name}` needs inputs (batch, positions, features), attended over their one axis "
                f"of positions. Received: query.shape={tuple(shape)}, "
                f"attention_axes={self.layer.attention_axes}"
            )

    def scores(self, weights, query, value):
        """Weights (B, H, T, S) as the layer returns them."""
        return weights if self.axes is None else self.axes.unfold_scores(weights, query, value)

    def of_attentions(self, array):
        """An array of heads (B, H or 1, T, S), or None, for each attention of a head."""
        return array


class DenseHeads(Heads):
    """Projections by one matrix each, (D, H · K)."""

    no_decoding_reason: str | None = None

    def size(self, role, shape):
        return self.layer.value_dim if role == "value" else self.layer.key_dim

    def build(self, query_shape, value_shape, key_shape):
        given = self._given(query_shape, key_shape, value_shape)
        return {role: self.projection(role, shape) for role, shape in given.items()}

    def _given(self, *given):
        """The shapes of query, key and value by role, whose features and sizes are stored."""
        found = dict(zip(ROLES, given, strict=True))
        self.own = _OWN.get(self.layer.reuse, ROLES)
        self.features = {role: shape[-1] for role, shape in found.items()}
        self.sizes = {role: (self.count(role), self.size(role, x)) for role, x in found.items()}
        return found

    def of_table(self, roles, shape):
        made = {}
        for role in roles:
            name = f"position_{role}"
            self.features[name], self.sizes[name] = shape[-1], self.sizes[role]
            made[name] = self.projection(name, shape)
        return made

    def projection(self, role, shape):
        """The layer that projects the query, the key or the value."""
        heads, size = self.sizes[role]
        shapes.check_memory(role, (shape[-1], heads, size))
        given = {"use_bias": self.layer.use_bias, "name": role, **self.arguments()}
        dense = keras.layers.Dense(heads * size, **given)
        dense.build(shape)
        return dense

    def arguments(self):
        """The options of every projection."""
        layer = self.layer
        names = "kernel_regularizer", "bias_regularizer", "kernel_constraint", "bias_constraint"
        return {
            "kernel_initializer": saving.clone_initializer(layer.kernel_initializer),
            "bias_initializer": saving.clone_initializer(layer.bias_initializer),
            "activity_regularizer": layer._activity_regularizer,
            "dtype": layer.dtype_policy,
            **{name: getattr(layer, name) for name in names},
        }

    def dense(self, role):
        """The projection of the query, the key or the value."""
        return getattr(self.layer, f"_{role}_dense")

    def check_features(self, role, x):
        """Raises if the layer was built for another number of axes or of features."""
        if len(x.shape) != self.rank:
            raise ValueError(
                f"`{role}` must have {self.rank} axes, as when the layer was built. "
                f"Received: {role}.shape={tuple(x.shape)}"
            )
        if x.shape[-1] not in (None, self.features[role]):
            raise ValueError(
                f"`{role}` must have {self.features[role]} features, as when the layer was "
                f"built. Received: {role}.shape={tuple(x.shape)} (the order of inputs is "
                "query, value, key)"
            )

    def split(self, x, role):
        self.check_features(role, x)
        return self._apart(self._projected(x, role), role)

    def _projected(self, x, role):
        return projections.apply_float64(self.layer, self.dense(role), x)

    def split_row(self, x, role):
        # With two axes, since XLA cannot compile TensorFlow's gradient of the product of three axes
        # by two inside a loop.
        return self._apart(self._projected(x, role)[:, None], role)

    def _apart(self, projected, role):
        """Concatenated heads (B, T, H · K) as (B, T, H, K)."""
        batch, length = ops.shape(projected)[:2]
        heads = self.count(role)
        return ops.reshape(projected, (batch, length, heads, projected.shape[-1] // heads))

    def split_all(self, query, key, value):
        layer = self.layer
        dense = [getattr(layer, f"_{role}_dense") for role in self.own]
        if self.axes is not None or not projections.plain(layer, *dense):
            return super().split_all(query, key, value)
        found: list[Any] = [None] * len(ROLES)
        for n, (role, x) in enumerate(zip(self.own, (query, key, value), strict=False)):
            self.check_features(role, x)
            shape = (*backend.shape(x)[:2], *self.sizes[role])
            found[n] = projections.affine(x, x.shape[-1], dense[n], shape)
        return found


class EinsumHeads(DenseHeads):
    """Projections of any number of axes, in the order of Keras's `MultiHeadAttention`."""

    def __init__(self, layer):
        super().__init__(layer)
        axes = layer.attention_axes
        if axes not in (None, (1,), (-2,)):
            self.no_cache_reason = f"attention_axes={axes} is not the one axis of positions"
            self.no_decoding_reason = self.no_cache_reason

    def _axes_of(self, shape):
        axes = Axes(len(shape), self.layer.attention_axes)
        return None if axes.trivial else axes

    def check_shapes(self, query_shape, value_shape, key_shape):
        shapes.check_lengths(query_shape, value_shape, key_shape)
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
        given = self._given(query_shape, key_shape, value_shape)
        self.rank = len(query_shape)
        self.axes = self._axes_of(query_shape)
        heads = (self.layer.num_heads, self.layer.value_dim)
        # The order is that of Keras's weights.
        made = {role: self.projection(role, given[role]) for role in self.own if role != "value"}
        if self.layer.use_gate:
            activation = self.layer.gate_activation
            made["gate"] = self._einsum("gate", query_shape, 1, heads, activation=activation)
        if "value" in self.own:
            made["value"] = self.projection("value", value_shape)
        size = self.layer.output_sizes or query_shape[-1:]
        made["output"] = self._einsum("attention_output", (*query_shape[:-1], *heads), 2, size)
        return made

    def projection(self, role, shape):
        return self._einsum(role, shape, 1, self.sizes[role])

    def _has_bias(self, name):
        """Whether a projection has a bias."""
        given = self.layer.use_bias
        return given is True or name in _BIASED.get(given, ())

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

    def project(self, name, x, *size):
        """`x` (B, T, D) by a projection, as (B, T, *size)."""
        return projections.heads(self.layer, self.dense(name), x, *size)

    # `DenseHeads` projects a row as a matrix, which these projections do not take.
    split_row = Heads.split_row

    def _projected(self, x, role):
        return self.dense(role)(x)

    def _apart(self, projected, role):
        return projected if self.axes is None else self.axes.fold(projected)

    def split_table(self, table, role):
        # The projection takes as many axes as the inputs have.
        heads = self.dense(role)(ops.reshape(table, (*(1,) * (self.rank - 2), *table.shape)))
        return ops.reshape(heads, heads.shape[-3:])

    def merge(self, result, query):
        heads, dense, axes = result.output, self.layer._output_dense, self.axes
        if axes is not None:
            heads = axes.unfold(heads, query)
        if self.layer.use_gate:
            heads = ops.multiply(heads, self.dense("gate")(query))
        if axes is None and projections.plain(self.layer, dense):
            batch, length, count, size = backend.shape(heads)
            shape = batch, length, *(self.layer.output_sizes or query.shape[-1:])
            output = projections.affine(heads, count * size, dense, shape)
        else:
            output = dense(heads)
        if result.has_keys is None or dense.bias is None:
            return output
        # A query without keys in any head has output 0, not the output's bias.
        has_keys = ops.any(result.has_keys, axis=1)
        if axes is not None:
            has_keys = axes.unfold_rows(has_keys, query)
        for _ in range(len(output.shape) - len(has_keys.shape)):
            has_keys = ops.expand_dims(has_keys, -1)
        return ops.where(has_keys, output, ops.zeros_like(output))
