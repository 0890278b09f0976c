"""`collect_attention`: the scores of every attention layer of a model, without rebuilding it."""

import contextlib
import functools
import inspect
import itertools
import threading
import warnings
from typing import Any

import keras
import numpy as np

from keras_attention import saving
from keras_attention.core import keras_private, rematerialization, tap
from keras_attention.core.hints import Tensors
from keras_attention.layers import traits
from keras_attention.layers.base import BaseAttention
from keras_attention.layers.blocks.transformer_block import TransformerBlock
from keras_attention.sequences import shapes
from keras_attention.visualization import labels

ARGUMENT = "return_attention_scores"


def collect_attention(model: keras.Layer, inputs: Tensors, **kwargs: Any) -> dict[str, np.ndarray]:
    """Calls a model, and returns the weights of every attention layer in it.

    During one call, at inference, each attention layer returns its scores, which are recorded, and
    passes on only its output. So the model computes its usual results, and is not rebuilt.

    An attention layer is one whose `call` has the argument `return_attention_scores`: all of this
    package, `MultiHeadAttention`, `GroupQueryAttention`, `Attention` and `AdditiveAttention` of
    Keras, and custom ones. If such a layer consists of others, like a `TransformerBlock`,
    these are collected. Not collected: `AttentionCell`, which returns its alignments with
    `AttentionCell(return_attention_scores=True)`, attention outside a layer, such as
    `ops.attend`, layers that attend through a state and have no weights, such as `Retention`, and
    calls in a program that is compiled as a whole, whose names are in a warning.

    Args:
        model: a functional, sequential or subclassed model, or a layer; built.
        inputs, **kwargs: as in `model(inputs, **kwargs)`.

    Returns:
        A dict of NumPy arrays (B, H, T, S), float32 (float64 for float64), in the order of the
        calls. Keys are the paths of the layers:
        "encoder/attention", and "decoder/cross_attention" for a block's attention to its context
        (0.1.0's "decoder/context_attention" finds it too). Further calls of one layer are
        "encoder/attention (call 2)" and so on;
        a second layer with the path of another is "encoder/attention_1". A layer with one head
        and no axis for it (`keras.layers.Attention`) has H = 1; for a layer that attends over
        several axes, the array has the axes that the layer returns.

        The weights are those before dropout, and 0 where masked. The model
        does not change: its layers, its variables, including states of random generators, and the
        losses of its last call. Calls of other threads are not collected.

    Raises:
        TypeError: `model` is no layer.
        ValueError: the model is not built, or no attention layer was called.

    >>> import keras, keras_attention
    >>> from keras_attention.visualization import collect_attention
    >>> tokens = keras.Input((None,), dtype="int32")
    >>> x = keras_attention.ScaledEmbedding(20, 8, mask_zero=True)(tokens)
    >>> x = keras_attention.TransformerBlock(16, 2, name="block")(x)
    >>> x = keras_attention.AttentionPooling(name="pooling")(x)
    >>> model = keras.Model(tokens, keras.layers.Dense(1)(x))
    >>> scores = collect_attention(model, keras.ops.array([[5, 2, 7, 0]]))
    >>> for name, weights in scores.items():
    ...     print(name, weights.shape)
    block/attention (1, 2, 4, 4)
    pooling/attention (1, 1, 1, 4)
    """
    saving.check_built("model", model)
    records = _Records()
    inference(functools.partial(model, inputs, **kwargs), attention_layers(model), records.add)
    if records.unseen:
        warnings.warn(
            "Not collected, being called where values are not known yet, in a compiled program or "
            f"a loop of one: {', '.join(sorted(records.unseen))}",
            stacklevel=2,
        )
    if not records.scores:
        raise ValueError(
            "No attention layer with weights of pairs was called. One is a layer whose `call` has "
            f"the argument `{ARGUMENT}`; `Retention`, `LinformerAttention` and others in linear "
            f"time have none. Received: {type(model).__name__} {model.name!r}"
        )
    return records.scores


# Two collections of one model would wrap and restore each other's calls.
_one_at_a_time = threading.RLock()


def inference(
    run, layers, add=lambda *heard: None, factor=lambda name: None, scopes=(), target=None
):
    """The output of `run()`, a call of a model at inference within `scopes`, or `target` of it.

    `add` gets the name and the weights of each call of an attention layer; the weights of layers of
    this package are multiplied by `factor(name)`, unless that is None.
    """
    outputs: list = []
    names = {id(layer): name for name, layer in layers.items() if isinstance(layer, BaseAttention)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_one_at_a_time)
        stack.enter_context(rematerialization.off())
        stack.enter_context(tap.listening(tap.Listener(names, add, factor)))
        for name, layer in layers.items():
            if id(layer) not in names:
                stack.enter_context(asked(layer, functools.partial(add, name)))
        for scope in scopes:
            stack.enter_context(scope)
        # Assignments to variables stay in the scope: random generators do not advance.
        stack.enter_context(keras.StatelessScope())
        _Part(lambda: outputs.append(run()))(keras.ops.zeros(()), training=False)
        return target(outputs[0]) if target else outputs[0]


class _Part(keras.Layer):
    """Calls a model: Keras discards the losses of its last call if a call starts at it."""

    def __init__(self, run):
        super().__init__(dtype="float32")
        self._run = run

    def call(self, x, training=None):
        self._run()
        return x


class _Records:
    """Scores by the name of their layer, and the names of layers without any."""

    def __init__(self):
        self.scores = labels.Scores()
        self.unseen = set()
        self._calls = {}
        self._thread = threading.get_ident()

    def add(self, name, scores):
        if threading.get_ident() != self._thread:
            return
        wide = shapes.accumulation_dtype(scores)
        weights = shapes.visible_values(keras.ops.cast(scores, wide))
        if weights is None:
            self.unseen.add(name)
            return
        if weights.ndim == 3:
            weights = weights[:, None]
        count = self._calls[name] = self._calls.get(name, 0) + 1
        self.scores[name if count == 1 else f"{name} (call {count})"] = np.array(weights)


@contextlib.contextmanager
def asked(layer, add):
    """A scope in which a layer's scores are passed to `add`, and its results do not change."""
    call = layer.call
    signature = inspect.signature(call)

    @functools.wraps(call)
    def with_scores(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        wanted = bound.arguments.get(ARGUMENT, False)
        bound.arguments[ARGUMENT] = True
        output, scores, *rest = call(*bound.args, **bound.kwargs)
        add(scores)
        if wanted:
            return (output, scores, *rest)
        return (output, *rest) if rest else output

    with keras_private.without_flash_attention(layer), replaced(layer, "call", with_scores):
        yield


@contextlib.contextmanager
def replaced(layer, name, method):
    """A scope in which a layer has another method of a name."""
    own = vars(layer).get(name)
    # Bypasses Keras and PyTorch, which would track it as a part of the layer.
    object.__setattr__(layer, name, method)
    try:
        yield
    finally:
        if own is None:
            object.__delattr__(layer, name)
        else:
            object.__setattr__(layer, name, own)


def attention_layers(model):
    """The attention layers of a model that contain no others, by their names."""
    named: dict[str, keras.Layer] = {}
    attends: dict[int, bool] = {}

    def visit(layer, path):
        """Whether `layer` is, or has, an attention layer."""
        if id(layer) not in attends:
            attends[id(layer)] = False
            parts = keras_private.sublayers(layer, recursive=False)
            within = [visit(part, [*path, _name(layer, part)]) for part in parts]
            if not any(within) and ARGUMENT in inspect.signature(layer.call).parameters:
                if traits.of(layer).has_weights:
                    name = "/".join(path) or layer.name
                    candidates = (f"{name}_{n}" if n else name for n in itertools.count())
                    named[next(x for x in candidates if x not in named)] = layer
                within = [True]
            attends[id(layer)] = any(within)
        return attends[id(layer)]

    visit(model, [])
    return named


def _name(layer, part):
    """The displayed name of `part` of a layer: its own, unless that is only for old files."""
    crossing = isinstance(layer, TransformerBlock) and layer.cross_attention
    return "cross_attention" if crossing and part is layer.cross_attention_layer else part.name
