"""Every use of Keras's private API, with the reason and the public alternative.

Where Keras moves one, the import of the package fails with its name, or a test of what uses it.
"""

import contextlib
import functools

import keras
from keras.src.backend import rnn
from keras.src.backend.common import global_state, masking
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.common.variables import AutocastScope
from keras.src.layers.rnn.dropout_rnn_cell import DropoutRNNCell as DropoutRNNCell
from keras.src.random.seed_generator import draw_seed as draw_seed
from keras.src.saving.serialization_lib import ObjectSharingScope as ObjectSharingScope

# `ObjectSharingScope`: in a model that is serialized or made again within it, what several layers
# share stays one object. In public only the files of a whole model are written and read so.

# `draw_seed`: the two numbers that a random function gets from a seed or a
# `keras.random.SeedGenerator`. `SeedGenerator.next` is public, but an integer seed has no such
# method, and integers `convert`ed by Keras give other numbers.

# `DropoutRNNCell`: the base of Keras's recurrent cells with dropout. `keras.layers.RNN` lets only
# cells of this class prepare tensors that its loop closes over; there is no public hook before the
# loop. Prepared keys and values could be states, but a masked loop copies each at each step.

# The loop of `keras.layers.RNN`, whose public method `inner_loop` calls it with `self.cell` as the
# step, which gets no more than inputs and states: what else it reads would have to be stored on the
# cell, where two threads with one layer overwrite it. Keras 3.16 has a module of this name.
recurrent_loop = getattr(rnn, "rnn", rnn)

# The mask that a tensor carries, `tensor._keras_mask`, or None: there is no public accessor.
get_keras_mask = masking.get_keras_mask

# Lets a tensor carry a mask. `compute_mask` is the public way, but has no intermediate results of
# `call`, and in a functional model becomes a separate operation.
set_keras_mask = masking.set_keras_mask

# A scope in which variables are read in their stored dtype, also in half-precision layers.
# `autocast=False` is public, but also applies to the layer's inputs.
uncast_variables = functools.partial(AutocastScope, None)
# One in which they are read in a dtype, as in a call of a layer that computes in it: there is no
# public way for a method of a layer that another calls.
cast_variables = AutocastScope


# Whether Keras calls a layer for the shapes of its results alone, which on PyTorch it computes from
# arrays of sizes that it makes up. `keras.SymbolicScope` is public, but not whether one is open.
infers_shapes = in_symbolic_scope

# Whether variables may have other values than their own. `keras.StatelessScope` is public too.
reads_other_values = in_stateless_scope


@contextlib.contextmanager
def first_values():
    """A scope in which variables have shapes and no values, which they get at its end."""
    # Gives a function that replaces the initializer of a variable. In public, `variable.assign`
    # replaces a value that took time and memory to make.

    def replace(variable, initializer):
        variable._initializer = initializer

    try:
        with keras.StatelessScope():
            yield replace
    except BaseException:
        # Those that have none yet would be initialized, in part again, at the end of any scope.
        global_state.set_global_attribute("uninitialized_variables", [])
        raise


def keep_inputs_as_they_are(layer):
    """Lets `layer` receive the arguments of a call as they are, neither converted nor cast."""
    # `autocast=False` is public, but then the layer reads its variables uncast too.
    layer._convert_input_args = False


def name_in_h5(function):
    """The string that Keras's reader of `.h5` files has replaced by a function, or the function."""
    # `keras.saving.get_custom_objects` is public, but not the objects of a scope.
    scope = global_state.get_global_attribute("custom_objects_scope_dict", {})
    known = {**vars(keras.layers), **keras.saving.get_custom_objects(), **scope}
    return next((name for name, found in known.items() if found is function), function)


def writes_h5():
    """Whether configurations are written to, or read from, a file in the legacy format, `.h5`."""
    # There is no public way to know. Such a file has no `get_build_config`.
    return bool(global_state.get_global_attribute("use_legacy_config"))


def own_weights(layer):
    """The weights of a layer itself, each with whether it was made to be trained."""
    # `layer.trainable_weights` is public, and has those that are trained now, of its parts too.
    yield from ((weight, True) for weight in layer._trainable_variables)
    yield from ((weight, False) for weight in layer._non_trainable_variables)


def rematerialization(layer):
    """The mode of the `keras.RematScope` in which a layer was made, and whether it is listed."""
    # `keras.RematScope` has a public mode, but a layer's `rematerialized_call` is given no scope.
    scope = layer._remat_mode
    listed = scope is not None and layer.name in scope.layer_names
    return (scope and scope.mode), listed and scope.mode == "list_of_layers"


def never_rematerialize(layer):
    """Lets a layer be as if it were made within `keras.RematScope(mode=None)`, the public way."""
    layer._remat_mode = None


def replace_rematerialized_call(wrap):
    """Lets `wrap(method)` be the method `rematerialized_call` of Keras's layers."""
    # The method is public, but functional models and other layers around ours do not override it.
    keras.Layer.rematerialized_call = wrap(keras.Layer.rematerialized_call)


def replace_saving_of_optimizers(wrap):
    """Lets `wrap(method)` be the method `save_own_variables` of Keras's optimizers."""
    # The method is public, but the optimizers that `compile` makes do not override it.
    optimizer = keras.optimizers.Optimizer
    optimizer.save_own_variables = wrap(optimizer.save_own_variables)


def stores_weights(store):
    """Whether a file has weights of a layer, or of a layer in it, to which `store` belongs."""
    # In public, the argument of `load_own_variables` has the weights of the layer itself alone.
    file, path = (getattr(store, name, None) for name in ("h5_file", "_h5_entry_path"))
    if not path or file is None or path not in file:
        return False
    return bool(file[path].visititems(lambda name, item: hasattr(item, "dtype") or None))


def sublayers(layer, recursive=True):
    """The layers inside a layer or a model; their own too if `recursive`."""
    # `Model.layers` is public and gives a model's own; a layer has no such property.
    return layer._flatten_layers(include_self=False, recursive=recursive)


def run_operations(model, inputs, replaced):
    """The outputs of a functional model, of which `replaced(operation)` runs for each operation."""
    # `keras.models.clone_model` is public and replaces operations, but makes a new symbolic graph.
    return model._run_through_graph(inputs, replaced)


def method_of_weights(layer):
    """How to multiply the weights of an attention layer of Keras; None for other layers."""
    # Returns a function: from one that returns the factor of the next call, to the name of the
    # method that uses the weights and another method. Nothing public changes weights.
    if isinstance(layer, (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)):
        softmax = layer._masked_softmax

        def of_heads(factor):
            def multiplied(scores, attention_mask=None):
                weights = softmax(scores, attention_mask)
                return weights * keras.ops.cast(factor(), weights.dtype)

            return "_masked_softmax", multiplied

        return of_heads
    if isinstance(layer, keras.layers.Attention):
        apply = layer._apply_scores

        def of_one_head(factor):
            def multiplied(scores, value, scores_mask=None, training=False):
                _, weights = apply(scores, value, scores_mask, training)
                weights = weights * keras.ops.cast(factor()[:, 0], weights.dtype)
                return keras.ops.matmul(weights, value), weights

            return "_apply_scores", multiplied

        return of_one_head
    return None


@contextlib.contextmanager
def without_flash_attention(layer):
    """A scope in which an attention layer of Keras with flash attention may return its scores."""
    # `flash_attention` is public as an argument of the constructor, and cannot be changed later.
    asked = getattr(layer, "_flash_attention", None)
    if asked:
        layer._flash_attention = False
    try:
        yield
    finally:
        if asked:
            layer._flash_attention = asked


def saving_a_model():
    """Whether `get_config` was called for a model that Keras is saving, which shares objects."""
    # `keras.saving` has `ObjectSharingScope`, but no public way to check whether one is open.
    return global_state.get_global_attribute("shared_objects/id_to_config_map") is not None


def torch_device():
    """The device of Keras's PyTorch tensors; `keras.config` does not have it."""
    return keras.src.backend.torch.core.get_device()
