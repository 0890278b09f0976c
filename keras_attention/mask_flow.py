"""`check_masks`: which layer of a model drops a mask on its way to a layer that would use it."""

import inspect
import warnings
from typing import NamedTuple

import keras

from keras_attention.core import keras_private
from keras_attention.sequences import masks, shapes

tree = keras.tree

# Layers and operations that reduce a sequence, padding included, ignoring its mask. A sum is
# not among them: masked elements are often zero.
POOLS = (keras.layers.GlobalMaxPooling1D,)
REDUCTIONS = ("Max", "Mean", "Min")

FILLS = "makes True everywhere"


class LostMask(NamedTuple):
    """A layer or operation that drops a mask, and the layers that would have used it."""

    layer: str
    mask_of: tuple[str, ...]
    reaches: tuple[str, ...]
    message: str


def check_masks(model: keras.Model, length: int = 64) -> list[LostMask]:
    """Finds the layers of a model that drop a mask which a later layer would have used.

    `Embedding(mask_zero=True)`, `Masking` and others create a mask of padding. Each layer passes
    the mask of its input on to its output, or drops it: `Conv1D`, `keras.ops.multiply(x, y)` and
    `x * y` drop it, for example. Later attention, pooling and recurrent layers then read
    padding, without an error.

    The model is traced on abstract values, as Keras does to infer shapes: no data are needed,
    nothing is computed, and the model does not change. Nested functional and sequential models and
    shared layers are followed; the operations inside a layer's own `call` are not.

    Args:
        model: functional or sequential model with known inputs.
        length: positive integer, the size of input axes of unknown length while the model is
            traced. Choose another if the model does not run at 64.

    Returns:
        A list with one named tuple per layer or operation that drops a mask; empty if no mask is
        lost. Fields:

        - `layer`: name of the layer or operation, after those of the models that contain it:
          "encoder/multiply";
        - `mask_of`: names of the layers that made the mask;
        - `reaches`: names of the layers that would have used it, and get none: layers whose `call`
          has an argument `mask`, `query_mask` or `value_mask` and was given no mask. A pooling that
          cannot use any (`GlobalMaxPooling1D`, `keras.ops.max` over the sequence) reaches itself;
        - `message`: all of it in one sentence.

    Raises:
        TypeError: `model` is not a Keras model.
        ValueError: `model` is subclassed, or its input shapes are not known yet; `length` is not
            a positive integer.

    >>> import keras, keras_attention
    >>> tokens = keras.Input((None,), dtype="int32")
    >>> x = keras.layers.Embedding(20, 8, mask_zero=True, name="words")(tokens)
    >>> x = keras.layers.Conv1D(8, 3, padding="same", name="pairs")(x)
    >>> x = keras_attention.AttentionPooling(name="pooling")(x)
    >>> for lost in keras_attention.check_masks(keras.Model(tokens, x)):
    ...     print(lost.message)
    "pairs" (Conv1D) drops the mask of "words": "pooling" reads padding.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a Keras model. Received: {type(model).__name__}")
    if not _is_graph(model):
        raise ValueError(
            "`model` must be functional, or sequential with a known input shape: the layers inside "
            f"of another model's `call` cannot be seen. Received: {type(model).__name__} "
            f"{model.name!r}"
        )
    shapes.check_count("length", length)
    flows = []

    def run(inputs):
        flows.append(_Flow())  # PyTorch traces again if its abstract tensors do not work.
        flows[-1].follow(model, inputs, path=())
        return keras.ops.zeros(())

    def abstract(x):
        shape = [length if size is None else size for size in x.shape]
        return keras.KerasTensor(shape, x.dtype, sparse=x.sparse)

    with warnings.catch_warnings():
        # Keras warns about some layers that drop masks, used or not.
        warnings.simplefilter("ignore")
        # Keras traces the function of a layer on abstract values, on each backend in its own way.
        inputs = [abstract(x) for x in model.inputs]
        keras.layers.Lambda(run, dtype="float32").compute_output_spec(inputs)
    return flows[-1].findings()


class _Drop(NamedTuple):
    """An operation that leaves a mask behind, and how."""

    layer: str
    kind: str
    verb: str
    mask_of: frozenset


class _Known(NamedTuple):
    """The mask that a tensor carries, and the masks that were lost."""

    tensor: object  # Referenced, so that no other tensor gets its id.
    mask_of: frozenset = frozenset()
    lost: tuple = ()  # Pairs of a drop and the number of axes behind those of its mask.


class _Flow:
    """The masks of every tensor of a model while it runs."""

    def __init__(self):
        self._known = {}
        self._reached = {}

    def follow(self, model, inputs, path):
        """Runs a functional or sequential model, each operation watched; returns flat outputs."""
        # A sequential model keeps its graph private; another over its tensors changes nothing.
        graph = keras.Model(model.inputs, model.outputs, name="check_masks")

        def watched(operation):
            return lambda *args, **kwargs: self._call(operation, path, args, kwargs)

        return tree.flatten(keras_private.run_operations(graph, list(inputs), watched))

    def findings(self):
        """A `LostMask` for each drop that reached a layer, in the order of the calls."""
        merged: dict[tuple, tuple[dict, dict]] = {}
        for drop, reached in self._reached.items():
            makers, reaches = merged.setdefault((drop.layer, drop.kind, drop.verb), ({}, {}))
            makers |= dict.fromkeys(sorted(drop.mask_of))
            reaches |= reached
        return [
            LostMask(
                layer,
                tuple(makers),
                tuple(reaches),
                f'"{layer}" ({kind}) {verb} the mask of {_listed(makers)}: {_listed(reaches)} '
                f"{'reads' if len(reaches) == 1 else 'read'} padding.",
            )
            for (layer, kind, verb), (makers, reaches) in merged.items()
        ]

    def _call(self, operation, path, args, kwargs):
        """Calls an operation, and records what it does with the masks of its inputs."""
        layer, kind = "/".join([*path, operation.name]), type(operation).__name__
        arguments = inspect.signature(operation.call).bind(*args, **kwargs).arguments
        inputs = _tensors([x for name, x in arguments.items() if not name.endswith("mask")])
        masked = [x for x in inputs if masks.implicit(x) is not None]
        features = {id(x): len(x.shape) - len(masks.implicit(x).shape) for x in masked}
        mask_of = frozenset().union(*(self._get(x).mask_of for x in masked))
        lost = [self._get(x).lost for x in inputs]

        outputs = operation(*args, **kwargs)

        if _is_graph(operation):
            given = tree.flatten(next(iter(arguments.values())))
            inside = self.follow(operation, given, (*path, operation.name))
            for output, seen in zip(tree.flatten(outputs), inside, strict=True):
                self._learn(output, self._get(seen).mask_of, self._get(seen).lost)
            return outputs

        for x, given in _with_masks(operation, arguments):
            lost_by = [drop for drop, _ in self._get(x).lost]
            # Keras records the mask that a tensor carries in a model as if it were passed.
            self._reach([drop for drop in lost_by if drop.verb == FILLS or not given], layer)
        for x in masked:
            if masks.implicit(x) is None:
                drop = _Drop(layer, kind, "erases from its input", self._get(x).mask_of)
                self._learn(x, (), ((drop, features[id(x)]),))

        # The output of an attention has a mask if its queries have one, and needs no other.
        if _is_attention(operation):
            lost = lost[:1]
        passed_on = dict(pair for drops in lost for pair in drops)
        if masked and _fills_masks(operation, masked, inputs):
            passed_on[_Drop(layer, kind, FILLS, mask_of)] = min(features.values())
        marked = any(masks.implicit(y) is not None for y in _tensors(outputs))
        if masked and not marked and not _is_attention(operation):
            drop = _Drop(layer, kind, "drops", mask_of)
            passed_on[drop] = min(features.values())
            if _pools_padding(operation, masked, features):
                self._reach([drop], layer)
        for y in _tensors(outputs):
            marked = masks.implicit(y) is not None
            # Batch and sequence, besides features: with fewer axes there is no sequence
            # anymore. A mask computed from others replaces lost ones.
            left = {
                drop: n
                for drop, n in passed_on.items()
                if len(y.shape) - n >= 2 and (drop.verb == FILLS or not marked)
            }
            self._learn(y, (mask_of or {layer}) if marked else (), tuple(left.items()))
        return outputs

    def _get(self, tensor):
        return self._known.get(id(tensor), _Known(tensor))

    def _learn(self, tensor, mask_of, lost):
        self._known[id(tensor)] = _Known(tensor, frozenset(mask_of), lost)

    def _reach(self, drops, layer):
        for drop in drops:
            self._reached.setdefault(drop, {})[layer] = None


def _is_graph(operation):
    """Whether an operation is a model with visible layers: functional or sequential."""
    return isinstance(operation, keras.Model) and bool(getattr(operation, "inputs", None))


def _is_attention(operation):
    """Whether an operation is an attention layer: one that can return its scores."""
    return "return_attention_scores" in inspect.signature(operation.call).parameters


def _with_masks(operation, arguments):
    """Pairs of an input whose mask a layer takes, and whether the call passes one."""
    parameters = list(inspect.signature(operation.call).parameters)
    pairs = arguments.get("attention_mask") is not None
    for name, nest in arguments.items():
        inputs = nest if isinstance(nest, (list, tuple)) else [nest]
        if f"{name}_mask" in parameters:
            names = [name] if inputs is not nest else ["query", "value", "key"]
            given = [arguments.get(f"{name}_mask") for name in names]
            if name in ("value", "key"):  # The two have the same elements.
                given = [arguments.get("value_mask", arguments.get("key_mask"))]
        elif name == parameters[0] and "mask" in parameters:
            given = arguments.get("mask")
            if not isinstance(given, (list, tuple)):
                given = [given] * len(inputs)
        else:
            continue
        yield from ((x, pairs or m is not None) for x, m in zip(inputs, given, strict=False))


def _fills_masks(operation, masked, inputs):
    """Whether a layer combines masks by "or", treating a missing mask as all True."""
    last = -1, len(masked[0].shape) - 1
    along_features = isinstance(operation, keras.layers.Concatenate) and operation.axis in last
    return along_features and len(masked) < len(inputs)


def _pools_padding(operation, masked, features):
    """Whether an operation without masks reduces a sequence, padding included."""
    if isinstance(operation, POOLS):
        return True
    if isinstance(operation, keras.Layer) or type(operation).__name__ not in REDUCTIONS:
        return False
    x = masked[0]
    axes = range(len(x.shape)) if operation.axis is None else tree.flatten(operation.axis)
    return any(0 < axis % len(x.shape) < len(x.shape) - features[id(x)] for axis in axes)


def _tensors(nest):
    """The tensors of a nest, each once."""
    return list({id(x): x for x in tree.flatten(nest) if keras.ops.is_tensor(x)}.values())


def _listed(names):
    return ", ".join(f'"{name}"' for name in names)
