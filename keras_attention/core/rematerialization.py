"""Layers under `keras.RematScope`: activations are discarded, and recomputed.

Keras passes a layer's `call` unchanged to the backend. JAX then makes tracers of `training=True`
and of all other Python values, TensorFlow rejects keyword arguments, and a seed leaks on JAX and
advances again on the others. So the backend gets a pure function of tensors, for layers of this
package and for models and layers around them: its inputs are arguments, their masks and the layer's
variables, its outputs results, losses and changed variables.
"""

import contextlib
import functools
import threading

import keras
from keras import ops

from keras_attention.core import keras_private
from keras_attention.sequences import masks

_state = threading.local()


@contextlib.contextmanager
def off():
    """Within it nothing is computed again, for those who read or change what is inside a layer."""
    outer = getattr(_state, "off", False)
    _state.off = True
    try:
        yield
    finally:
        _state.off = outer


def of_call(layer, rematerialized, call, *args, **kwargs):
    """The replacement of `call`; `rematerialized` is Keras's `rematerialized_call`."""
    mode, listed = keras_private.rematerialization(layer)
    if getattr(_state, "off", False):
        return call
    if mode == "activations":
        return rematerialized(call, *args, **kwargs)
    if isinstance(layer, keras.Model) and not listed:
        # Computed again as a whole, it would keep all activations while its gradient runs.
        return call
    if rematerialized(call, *args, **kwargs) is call:
        return call
    if _computes_again(layer):
        # The parts are computed again with it. And Keras's `Dense` cannot do it on TensorFlow.
        for part in keras_private.sublayers(layer):
            keras_private.never_rematerialize(part)

    def again(*args, **kwargs):
        return _pure(layer, lambda f: rematerialized(f, *args, **kwargs), call, args, kwargs)

    return again


def _of_any(rematerialized):
    """Keras's method of its layers, for which those around ours are computed again as ours are."""

    def rematerialized_call(layer, call, *args, **kwargs):
        keras_call = functools.partial(rematerialized, layer)
        around = not _computes_again(layer)
        if around and any(map(_computes_again, keras_private.sublayers(layer))):
            return of_call(layer, keras_call, call, *args, **kwargs)
        return call if getattr(_state, "off", False) else keras_call(call, *args, **kwargs)

    return rematerialized_call


def _computes_again(layer):
    """Whether a layer is of this package, with a method of its own."""
    return type(layer).rematerialized_call is not keras.Layer.rematerialized_call


keras_private.replace_rematerialized_call(_of_any)


def _pure(layer, wrap, call, args, kwargs):
    """`call(*args, **kwargs)`, by `wrap` applied to a pure function of tensors."""
    flat = keras.tree.flatten((args, kwargs))
    variables = list({id(variable): variable for variable in layer.variables}.values())
    # In the stored dtype: Keras casts them when they are read inside. Copies, since the
    # recomputation must read the state of a seed that has advanced by then.
    with keras_private.uncast_variables():
        values = [ops.copy(ops.convert_to_tensor(variable.value)) for variable in variables]
    # One tensor in several roles stays one. Only floats have gradients.
    given = [x for x in (*flat, *values) if ops.is_tensor(x)]
    tensors = {id(x): x for x in given if "float" in keras.backend.standardize_dtype(x.dtype)}
    carried = {key: masks.implicit(x) for key, x in tensors.items()}
    found = {}

    def pure(*arrays):
        known = dict(zip(tensors, arrays, strict=True))
        for key, mask in carried.items():
            if mask is not None and masks.implicit(known[key]) is None:
                masks.carry(known[key], mask)
        given = keras.tree.pack_sequence_as((args, kwargs), [known.get(id(x), x) for x in flat])
        state = [known.get(id(value), value) for value in values]
        with keras.StatelessScope(zip(variables, state, strict=True), collect_losses=True) as scope:
            output = call(*given[0], **given[1])
        now = [scope.get_current_value(variable) for variable in variables]
        changed = [n for n, value in enumerate(state) if now[n] is not value]
        found["output"] = keras.tree.map_structure(lambda _: 0, output)
        found["losses"], found["changed"] = len(scope.losses), changed
        return [*keras.tree.flatten(output), *scope.losses, *(now[n] for n in changed)]

    outputs = list(wrap(pure)(*tensors.values()))
    for n in reversed(found["changed"]):
        variables[n].assign(outputs.pop())
    for _ in range(found["losses"]):
        layer.add_loss(outputs.pop())
    return keras.tree.pack_sequence_as(found["output"], outputs)
