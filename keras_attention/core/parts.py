"""The layers that a layer is made of: what Keras's configuration of it does not have of them.

Keras rebuilds a layer from its constructor's arguments alone. What was set on its parts later, that
a projection is quantized or frozen, and how far a seed has come, it keeps only for the layers that
a model lists. Here it is part of what a layer says of how it was built.
"""

import functools

import keras

from keras_attention.core import keras_private


def inside(layer, name=lambda n, part: part.name, prefix=""):
    """Every layer inside `layer`, with its path relative to it, of `name(n, part)` of each part."""
    for n, child in enumerate(keras_private.sublayers(layer, recursive=False)):
        path = f"{prefix}{name(n, child)}"
        yield path, child
        yield from inside(child, name, f"{path}/")


def part(attribute, doc):
    """A property for a part of a layer, in an attribute by whose name saved files find it."""

    def found(self: keras.Layer) -> keras.Layer:
        return getattr(self, attribute)

    return property(found, doc=doc)


def freezing(build):
    """`build`, after which the parts of a layer that is not trainable are not trainable either.

    Keras sets that of a layer's own weights. Those of its parts would be trained by any model
    around it. So are the parts that were frozen in an `.h5` file.
    """

    @functools.wraps(build)
    def build_and_freeze(self, *args, **kwargs):
        build(self, *args, **kwargs)
        if not self.trainable:
            for part in keras_private.sublayers(self, recursive=False):
                part.trainable = False
        freeze(self, self._frozen_parts)

    return build_and_freeze


def frozen(layer):
    """The places of the parts that are not trainable, but for those inside another of them."""
    found: list[str] = []
    for place, part in inside(layer, _place):
        if not part.trainable and not any(place.startswith(f"{outer}/") for outer in found):
            found.append(place)
    return found if layer.trainable else []


def freeze(layer, places):
    """Sets parts not trainable, by their places."""
    for place, part in inside(layer, _place):
        if place in places:
            part.trainable = False


def _place(n, part):
    # Names that Keras gives differ in each process.
    return f"{n}.{type(part).__name__}"


def check_h5(layer, part=None, trained=True):
    """Raises if the parts that are frozen do not say which weights of one of them are trained.

    An `.h5` file has the weights of a layer in an order, those that are trained before the others.
    """
    part = layer if part is None else part
    trained = trained and part.trainable
    changed = [
        w for w, made in keras_private.own_weights(part) if w.trainable != (made and trained)
    ]
    if changed or getattr(part, "quantization_mode", None) is not None:
        names = [weight.path for weight in changed] or part.quantization_mode
        raise ValueError(
            "The legacy format `.h5` does not store which weights are trained by themselves, apart "
            "from those of a whole layer, nor quantization: save the model as `.keras`. Received: "
            f"layer {layer.name!r} with {names} of its part {part.name!r}"
        )
    for child in keras_private.sublayers(part, recursive=False):
        check_h5(layer, child, trained)


def seeds(layer):
    """The states of the seeds of a layer and its parts, two integers each, in order."""
    return [keras.ops.convert_to_numpy(variable).tolist() for variable in _seeds(layer)]


def set_seeds(layer, states):
    """Sets the states of the seeds, if there are as many."""
    variables = _seeds(layer)
    if len(variables) == len(states):
        for variable, state in zip(variables, states, strict=True):
            variable.assign(keras.ops.cast(state, variable.dtype))


def _seeds(layer):
    # Beside its weights, a layer has these variables and those of metrics.
    found = {id(v): v for v in layer.variables if v.name == "seed_generator_state"}
    return list(found.values())


def set_dtype_policy(layer, value):
    """Sets the dtype policy of a layer and of all its parts that have the same one."""
    policy = keras.dtype_policies.get(value)
    former = layer.dtype_policy
    changed = [layer, *(part for part in _of_one_dtype(layer) if part.dtype_policy == former)]
    modes = {x.quantization_mode for x in (*changed, policy)} - {None}
    if modes:
        raise ValueError(
            f"The `dtype_policy` of a layer made of others, here {layer.name!r}, cannot be set to "
            "one of quantization, or once it is quantized: `model.quantize(mode)` quantizes a "
            f"model. Received: dtype_policy={value!r}, quantization_mode {sorted(modes)}"
        )
    for part in changed:
        _set(part, policy)


# Keras's own setter, which does not change the parts of a layer.
_set = keras.Layer.dtype_policy.fset


def _of_one_dtype(layer):
    """The parts of a layer, but for those that compute in a dtype of their own in every policy."""
    for part in keras_private.sublayers(layer, recursive=False):
        if not getattr(part, "_has_own_dtype", False):
            yield part
            yield from _of_one_dtype(part)
