"""Models without some of their heads: of the same size, or smaller."""

import contextlib
import tempfile
from collections.abc import Collection, Mapping
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_attention import saving
from keras_attention.core import keras_private
from keras_attention.layers import traits
from keras_attention.layers.base import BaseAttention
from keras_attention.layers.blocks.transformer_block import TransformerBlock
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.layers.recurrent.attention_cell import AttentionCell
from keras_attention.positions import Position
from keras_attention.sequences import shapes
from keras_attention.visualization import collect

# The layers with a projection of all heads to the output.
PROJECTED = MultiHeadAttention, keras.layers.MultiHeadAttention


def ablate_heads(model: keras.Layer, heads: Mapping[str, Collection[int]]) -> keras.Layer:
    """A copy of a model in which the output of some heads is 0 (Michel et al. 2019, equation 1).

    The rows of the output projection that read these heads are 0, or the head's values where there
    is no such projection. So it is evaluated, compiled and saved like the model itself, to see what
    the heads are worth. `prune_heads` makes the same model smaller.

    Args:
        model: a built model, or layer, whose configuration Keras can save.
        heads: by the names that `collect_attention` gives to layers, the numbers of the heads.

    Returns:
        A new model of the same class, not compiled.

    Raises:
        TypeError: `model` is no Keras model or layer.
        ValueError: the model is not built; a name or a number is none of its own; or a layer cannot
            do without a head: it has no projection, or heads share its values.

    >>> import keras, keras_attention
    >>> from keras_attention.inspection import ablate_heads
    >>> x = keras.Input((None, 8))
    >>> y = keras_attention.TransformerBlock(16, num_heads=2, name="block")(x)
    >>> model = keras.Model(x, y)
    >>> without = ablate_heads(model, {"block/attention": [1]})
    >>> without.count_params() == model.count_params()
    True
    """
    chosen = _read(model, heads)
    copy = _copied(model)
    for old, new in zip(model.variables, copy.variables, strict=True):
        # JAX deletes the arrays of a model that `predict` was called on, so they are not shared.
        new.assign(ops.copy(old.value))
    parts = _parts(model, copy)
    for name, (_, gone) in chosen.items():
        _clear(name, parts[name], gone)
    return copy


def prune_heads(model: keras.Layer, heads: Mapping[str, Collection[int]]) -> keras.Layer:
    """A smaller copy of a model, without some of its heads (Michel et al. 2019; Voita et al. 2019).

    Its layers have fewer heads, in their configurations too, so that it saves, loads and runs as
    any model. Its outputs are those of `ablate_heads`.

    Args:
        model, heads: as in `ablate_heads`. At least one head of a layer is kept. Where heads share
            keys and values, as many heads of each group are pruned, or whole groups. The
            self-attention and the cross-attention that a `TransformerBlock` made lose the same
            number of heads.

    Returns:
        A new model of the same class, not compiled.

    Raises:
        TypeError: `model` is no Keras model or layer.
        ValueError: as `ablate_heads`, or heads cannot be pruned as described, or the bias of a
            position depends on the number of heads, as that of ALiBi does.

    >>> import keras, keras_attention
    >>> from keras_attention.inspection import prune_heads
    >>> x = keras.Input((None, 8))
    >>> y = keras_attention.TransformerBlock(16, num_heads=2, name="block")(x)
    >>> model = keras.Model(x, y)
    >>> smaller = prune_heads(model, {"block/attention": [1]})
    >>> smaller.get_layer("block").num_heads
    1
    """
    chosen = _read(model, heads)
    for name, (layer, _) in chosen.items():
        if not isinstance(layer, PROJECTED):
            raise ValueError(
                "Only heads that an output projection reads can be pruned: the output of other "
                "layers would have fewer features. `ablate_heads` can set them to 0. "
                f"Received: {name!r} of class {type(layer).__name__}"
            )
    kept = {name: _Kept.of(name, layer, gone) for name, (layer, gone) in chosen.items()}
    layers = [model, *keras_private.sublayers(model)]
    # The block that made an attention layer, by the layer's `id`.
    makers = {id(y): x for x in layers if isinstance(x, TransformerBlock) for y in _made(x)}
    with contextlib.ExitStack() as stack:
        for name, (layer, _) in chosen.items():
            maker = makers.get(id(layer), layer)
            made = [part for part in chosen if makers.get(id(chosen[part][0])) is maker]
            counts = {kept[part].counts for part in made}
            if maker is not layer and (len(counts), len(made)) != (1, len(_made(maker))):
                raise ValueError(
                    "All attentions that a `TransformerBlock` made have its number of heads: as "
                    f"many of each must be pruned. Received: heads={dict(heads)}"
                )
            stack.enter_context(_configured(maker, layer, kept[name]))
        copy = _copied(model)
    parts = _parts(model, copy)
    for name in chosen:
        if _sizes(parts[name]) != kept[name].counts:
            raise ValueError(
                "The heads of a layer are pruned by its own configuration, or that of a "
                f"`TransformerBlock`. Received: {name!r}, which another layer made"
            )
    # What has weights of a layer's heads: itself, and its alignment.
    cells = [part for part in keras_private.sublayers(model) if isinstance(part, AttentionCell)]
    owners = {
        name: [layer, *(cell.alignment for cell in cells if cell.attention is layer)]
        for name, (layer, _) in chosen.items()
    }
    for old, new in zip(model.variables, copy.variables, strict=True):
        array = ops.convert_to_numpy(old.value)
        if old.shape != new.shape:
            name = _owner(old, owners, kept)
            array = kept[name].of_weight(chosen[name][0], old, array, new.shape)
        new.assign(array)
    for name, (layer, _) in chosen.items():
        _check_position(name, layer, parts[name], kept[name].heads)
        _check_norm(name, layer)
    return copy


class _Kept(NamedTuple):
    """The heads of the queries, and of keys and values, that are kept of a layer."""

    heads: list[int]
    groups: list[int]

    @classmethod
    def of(cls, name, layer, gone):
        """Those of a layer without the heads `gone`."""
        count, groups = _sizes(layer)
        each = count // groups
        if each > 1 and traits.of(layer).attentions > 1:
            raise ValueError(
                f"Heads of `{type(layer).__name__}` that share keys and values cannot be pruned. "
                f"Received: {name!r} with {count} heads in {groups} groups"
            )
        heads = [head for head in range(count) if head not in gone]
        left = {group: [head for head in heads if head // each == group] for group in range(groups)}
        left = {group: members for group, members in left.items() if members}
        if len({len(members) for members in left.values()}) != 1:
            raise ValueError(
                "A head must be kept of each layer, and where heads share keys and values, as many "
                f"of each group that is kept. Received: {sorted(gone)} of {count} heads of "
                f"{name!r}, in {groups} groups"
            )
        return cls(heads, list(left))

    @property
    def counts(self):
        return len(self.heads), len(self.groups)

    def of_weight(self, layer, weight, array, shape):
        """The part of a weight of `layer` that is kept, of `shape`."""
        count, groups = _sizes(layer)
        sizes = zip(array.shape, shape, strict=True)
        [axis] = [n for n, (before, after) in enumerate(sizes) if before != after]
        names = ("key_dense", "value_dense", "global_key_dense", "global_value_dense")
        shared = [w for n in names if hasattr(layer, n) for w in getattr(layer, n).weights]
        # A position may have a weight for each of the key's heads.
        of_groups = array.shape[axis] == groups or any(weight is one for one in shared)
        count, kept = (groups, self.groups) if of_groups else (count, self.heads)
        apart = (*array.shape[:axis], count, array.shape[axis] // count, *array.shape[axis + 1 :])
        return np.take(array.reshape(apart), kept, axis=axis).reshape(shape)


def _read(model, heads):
    """The layer and the set of heads that a call names, by the layer's name."""
    saving.check_built("model", model)
    layers = collect.attention_layers(model)
    if not isinstance(heads, Mapping) or not heads:
        raise ValueError(
            "`heads` must be a dict from names of layers to numbers of heads, such as "
            f"{{'encoder/attention': [0]}}. Received: heads={heads!r}"
        )
    found = {}
    for name, numbers in heads.items():
        if name not in layers:
            raise ValueError(
                f"`heads` must name attention layers, {sorted(layers)}. Received: {name!r}"
            )
        layer = layers[name]
        ours = isinstance(layer, BaseAttention) and layer.key_dim is not None
        if not ours and not isinstance(layer, keras.layers.MultiHeadAttention):
            raise ValueError(
                "Heads can be taken from layers of this package that project their inputs, "
                "`key_dim`, and from `keras.layers.MultiHeadAttention`. "
                f"Received: {name!r} of class {type(layer).__name__}"
            )
        inside = [layer, *keras_private.sublayers(layer)]
        if any(getattr(part, "quantization_mode", None) for part in inside):
            raise ValueError(
                "Heads cannot be taken from quantized layers: take them before `quantize`. "
                f"Received: {name!r} of class {type(layer).__name__}"
            )
        numbers = [shapes.check_integer(f"heads[{name!r}]", n, unsigned=True) for n in numbers]
        if not numbers or max(numbers) >= layer.num_heads:
            raise ValueError(
                f"`heads[{name!r}]` must be numbers of heads, from 0 to {layer.num_heads - 1}. "
                f"Received: {numbers}"
            )
        found[name] = layer, set(numbers)
    return found


def _sizes(layer):
    """The numbers of heads of queries, and of keys and values."""
    ours = isinstance(layer, BaseAttention)
    return layer.num_heads, (ours and layer.num_key_value_heads) or layer.num_heads


def _copied(model):
    """A new model of the configuration of a model, without its `compile`, with all but its weights.

    Layers load what is no variable, such as the vocabulary of a layer of text.
    """
    with keras_private.ObjectSharingScope():
        config = keras.saving.serialize_keras_object(model)
    config.pop("compile_config", None)
    with keras_private.ObjectSharingScope():
        copy = keras.saving.deserialize_keras_object(config)
    if len(model.variables) != len(copy.variables):
        raise ValueError(
            "A model must have the weights that its configuration says: a class of its own has a "
            "`build` that makes them, and there are no adapters, no quantized layers, and no layer "
            f"used twice but by a functional model. Received: {model.name!r} with "
            f"{len(model.variables)} variables, and {len(copy.variables)} by its configuration"
        )
    for old, new in _with_own("load_own_variables", model, copy):
        if [v.shape for v in old.variables] == [v.shape for v in new.variables]:
            store: dict = {}
            old.save_own_variables(store)
            new.load_own_variables(store)
    for old, new in _with_own("load_assets", model, copy):
        with tempfile.TemporaryDirectory() as folder:
            old.save_assets(folder)
            new.load_assets(folder)
    return copy


def _with_own(method, *models):
    """The layers of both models whose class replaces a method of Keras's base class, in pairs."""
    bases = [getattr(base, method, None) for base in (keras.Layer, saving.ConfigurableLayer)]
    layers = ([model, *keras_private.sublayers(model)] for model in models)
    own = ([x for x in found if getattr(type(x), method, None) not in bases] for found in layers)
    return zip(*own, strict=True)


def _parts(model, copy):
    """The attention layers of a copy, by the names in the model, of which Keras makes up some."""
    layers = collect.attention_layers
    return dict(zip(layers(model), layers(copy).values(), strict=True))


def _owner(weight, owners, kept):
    """The name of a layer that has a weight, whose heads are those of all others that have it."""
    names = [
        name
        for name, parts in owners.items()
        if any(weight is one for part in parts if part is not None for one in part.weights)
    ]
    if not names:
        raise ValueError(
            "Only weights of attention layers and of their alignments may have a size for each "
            f"head. Received: {weight.path!r} of shape {tuple(weight.shape)}"
        )
    if any(kept[name] != kept[names[0]] for name in names):
        raise ValueError(
            "Layers that share a weight for each head must lose the same heads. Received: "
            f"{names}, which share {weight.path!r}"
        )
    return names[0]


def _clear(name, layer, heads):
    """Sets the weights to 0 that let the output of a layer depend on some of its heads."""
    count, groups = _sizes(layer)
    heads, projected = sorted(heads), isinstance(layer, PROJECTED)
    position = None if projected else layer.position
    changes = position is not None and type(position).build_values is not Position.build_values
    if not projected and (groups != count or changes):
        raise ValueError(
            f"A layer without an output projection must have values of its own for each head. "
            f"Received: {name!r} of class {type(layer).__name__}"
        )
    for weight in [layer.output_dense.kernel] if projected else layer.value_dense.weights:
        array = np.array(ops.convert_to_numpy(weight.value))
        if projected:
            array[heads] = 0
        else:
            array.reshape((*array.shape[:-1], count, -1))[..., heads, :] = 0
        weight.assign(array)


def _made(block):
    """The attention layers that a block made of its own arguments."""
    own = block.self_attention and block.get_config()["attention"] is None
    made = [block.attention] if own else []
    return [*made, block.cross_attention_layer] if block.cross_attention else made


def _configured(maker, layer, kept):
    """A scope in which a layer, or the block that made it, is configured with fewer heads."""
    # In the configuration of a model, nothing tells which part of it is that of a layer.
    get_config = maker.get_config
    heads, groups = kept.counts
    fewer = {"num_heads": heads, "key_dim": layer.key_dim}
    if isinstance(layer, BaseAttention) and layer.num_key_value_heads is not None:
        fewer["num_key_value_heads"] = groups
    return collect.replaced(maker, "get_config", lambda: {**get_config(), **fewer})


def _check_position(name, old, new, kept):
    """Raises if a position gives the heads that were kept another bias than before."""
    position = getattr(old, "position", None)
    if position is None or "bias" not in position.overrides:
        return
    i, j = ops.arange(9, dtype="int32")[:, None], ops.arange(9, dtype="int32")[None]
    before, after = (
        ops.convert_to_numpy(x.position.bias(i, j, x.heads.count("query"))) for x in (old, new)
    )
    if before.shape[-3] > 1:
        # Two attentions for each head, if differential.
        each = before.shape[-3] // old.num_heads
        before = before[..., [head * each + n for head in kept for n in range(each)], :, :]
    if not np.allclose(before, after, rtol=0, atol=1e-3 * np.abs(before).max()):
        raise ValueError(
            "The bias of a position must not depend on the number of heads. "
            f"Received: {position!r} of {name!r}"
        )


def _check_norm(name, layer):
    """Raises if the `qk_norm` of a head depends on other heads."""
    if not (isinstance(layer, BaseAttention) and layer.qk_norm):
        return
    for role in ("query", "key"):
        shape = (1, 1, layer.heads.count(role), layer.key_dim)
        x = np.random.default_rng(0).normal(size=shape).astype("float32")
        other = np.concatenate([1 - 2 * x[:, :, :1], x[:, :, 1:]], axis=2)
        before, after = (
            ops.convert_to_numpy(ops.cast(layer.normed(one, role), "float32"))[:, :, 1:]
            for one in map(ops.convert_to_tensor, (x, other))
        )
        if not np.allclose(before, after, rtol=0, atol=1e-2):
            raise ValueError(
                "The `qk_norm` of a head must not depend on others. "
                f"Received: {layer.qk_norm!r} of {name!r}"
            )
