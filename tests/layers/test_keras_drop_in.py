"""`MultiHeadAttention` stands in for `keras.layers.MultiHeadAttention`.

The same constructor, call, weights and files, and the same numbers wherever Keras's are right.
Keras's layer returns its scores throughout: on that path it computes by the definition, on every
backend and for every size.
"""

import inspect
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_attention import MultiHeadAttention
from tests.arrays import close, random, randomize
from tests.gradients import weight_gradients

ops = keras.ops
Theirs = keras.layers.MultiHeadAttention
B, T, S, D = 2, 5, 3, 6


def booleans(*shape):
    """A random mask in which every query has a key."""
    mask = np.random.default_rng(0).random(shape) < 0.5
    mask[..., 0] = True
    return mask


SELF, CROSS, MORE = ((B, T, D), (B, T, D)), ((B, T, D), (B, S, D)), ((B, S, D), (B, T, D))
FIRST = ((B, T, 4, D), (B, S, 4, D))
SECOND = ((B, 4, T, D), (B, 4, S, D))
BOTH = ((B, 2, T, D), (B, 2, S, D))
CAUSAL, GATE = {"use_causal_mask": True}, {"use_gate": True, "value_dim": 5}
MASKS = [(T, S), (1, T, S), (B, T, S), (B, 1, S), (B, 2, T, S), (B, 1, T, S)]
# Name: (constructor, call, shapes of query, value and perhaps key).
CASES = {
    "self": ({}, {}, SELF),
    "separate key": ({}, {}, ((B, T, D), (B, S, 4), (B, S, 7))),
    "value_dim, no bias": ({"value_dim": 5, "use_bias": False}, {}, CROSS),
    "output_shape of two axes": ({"output_shape": (2, 3)}, {}, CROSS),
    "gate": (GATE, {}, CROSS),
    "gate, no bias": ({**GATE, "use_bias": False, "output_shape": 9}, {}, MORE),
    "one head, dropout": ({"num_heads": 1, "dropout": 0.5}, {}, CROSS),
    "causal, fewer keys": ({}, CAUSAL, CROSS),
    "causal, more keys": ({}, CAUSAL, MORE),
    "causal window": ({"sliding_window": 2}, CAUSAL, SELF),
    "window, more keys": ({"sliding_window": 2}, {}, MORE),
    **{f"mask {shape}": ({}, {"attention_mask": booleans(*shape)}, CROSS) for shape in MASKS},
    "mask of ones and zeros": ({}, {"attention_mask": booleans(B, T, S).astype("float32")}, CROSS),
    "mask and causal": ({}, {"attention_mask": booleans(B, T, T), **CAUSAL}, SELF),
    "axis 1 of two": ({"attention_axes": 1}, {}, FIRST),
    "last of two axes": ({"attention_axes": -2}, {}, SECOND),
    "both axes": ({"attention_axes": (1, 2)}, {}, BOTH),
    "all axes": ({}, {}, BOTH),
    "axes, gate": ({"attention_axes": 2, **GATE, "output_shape": (2, 3)}, {}, SECOND),
    "axes, causal": ({"attention_axes": 1}, CAUSAL, ((B, T, 4, D),) * 2),
    "axes, mask": ({"attention_axes": 2}, {"attention_mask": booleans(B, 4, T, S)}, SECOND),
    "axes, mask of heads": (
        {"attention_axes": (2,)}, {"attention_mask": booleans(B, 4, 2, T, S)}, SECOND
    ),
    "both axes, mask": (
        {"attention_axes": (1, 2)}, {"attention_mask": booleans(B, 2, T, 2, S)}, BOTH
    ),
}  # fmt: skip


@pytest.fixture(params=CASES, name="case")
def _case(request):
    """Keras's layer and ours with the same random weights, the inputs, and what the call takes."""
    constructor, call, shapes = CASES[request.param]
    constructor = {"num_heads": 2, "key_dim": 4, "kernel_initializer": "zeros", **constructor}
    theirs, ours = Theirs(**constructor), MultiHeadAttention(**constructor)
    theirs.build(*shapes)
    ours.build(*shapes)
    randomize(theirs)
    ours.set_weights(theirs.get_weights())
    return theirs, ours, [random(*shape, seed=9 + i) for i, shape in enumerate(shapes)], call


# Signatures


@pytest.mark.skipif(
    "sliding_window" not in inspect.signature(Theirs).parameters,
    reason="the order of arguments is that of Keras 3.15",
)
@pytest.mark.parametrize("method", ["__init__", "call"])
def test_positional_arguments_are_those_of_keras(method):
    theirs, ours = (
        {
            name: parameter.default
            for name, parameter in inspect.signature(getattr(cls, method)).parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD
        }
        for cls in (Theirs, MultiHeadAttention)
    )
    assert list(ours)[: len(theirs)] == list(theirs)
    defaults = {n: x for n, x in theirs.items() if x is not inspect.Parameter.empty}
    assert {name: ours[name] for name in defaults} == defaults


def test_a_config_of_keras_is_a_config_of_ours():
    theirs = Theirs(
        2, 4, value_dim=3, dropout=0.1, use_bias=False, output_shape=(5, 2), attention_axes=(1,),
        sliding_window=3, kernel_initializer=keras.initializers.RandomNormal(stddev=0.3),
        kernel_regularizer=keras.regularizers.L2(0.5), activity_regularizer="l1",
        bias_constraint="non_neg", use_gate=True, seed=7, name="here", dtype="mixed_bfloat16",
    )  # fmt: skip
    config = theirs.get_config()
    ours = MultiHeadAttention.from_config(config).get_config()
    assert set(config) <= set(ours)
    for name in config:
        written, read = (
            list(c[name]) if isinstance(c[name], tuple) else c[name] for c in (config, ours)
        )
        assert read == written, name


# Weights


def inside(layer):
    """Names and shapes of all weights, without the layer's own name."""
    return [(weight.path.split("/", 1)[1], tuple(weight.shape)) for weight in layer.weights]


def test_initial_weights_are_drawn_as_in_keras():
    """The same seed gives the same start: nothing else is drawn, and in the same order."""
    starts = []
    for cls in (MultiHeadAttention, Theirs):
        keras.utils.set_random_seed(3)
        layer = cls(2, 4, use_gate=True)
        layer.build((B, T, D), (B, S, D))
        starts.append(layer.get_weights())
    for ours, theirs in zip(*starts, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# Numbers


def test_weights_outputs_scores_and_gradients_are_those_of_keras(case):
    """Weights by their names, shapes and order."""
    theirs, ours, inputs, call = case
    assert inside(ours) == inside(theirs)
    # Numbers as a mask are checked by their values, which a program does not know.
    given = {n: np.asarray(x, bool) if n == "attention_mask" else x for n, x in call.items()}
    shape = theirs.compute_output_shape(*(x.shape for x in inputs))
    upstream = random(*shape, seed=30)
    of_pairs = random(*(ours(*inputs, return_attention_scores=True, **call)[1].shape), seed=31)

    def both(layer):
        """By name: the gradient by what an output is multiplied by is the output."""

        def loss(*tensors):
            *tensors, times, times_scores = tensors
            output, scores = layer(*tensors, return_attention_scores=True, **given)
            return output * times, scores * times_scores

        of_weights, of_arrays = weight_gradients(layer, loss, [*inputs, upstream, of_pairs])
        names = [variable.path.split("/", 1)[1] for variable in layer.trainable_variables]
        names += [*("query", "value", "key")[: len(inputs)], "output", "scores"]
        return dict(zip(names, of_weights + of_arrays, strict=True))

    found, expected = both(ours), both(theirs)
    assert set(found) == set(expected)
    for name, array in expected.items():
        # A bias of all keys adds the same to every score: its gradient is rounding.
        assert name == "key/bias" or np.abs(array).max() > 1e-3, name
        close(found[name], array, 1e-5 if name in ("output", "scores") else 1e-4)
    close(ours(*inputs, **call), found["output"])


# Files


def classifier(cls):
    """A model with two attentions: self, with every option, and cross, with unequal sizes."""
    ids, memory = keras.Input((None,), dtype="int32"), keras.Input((None, 4))
    x = keras.layers.Embedding(11, D)(ids)
    x = cls(2, 4, value_dim=5, dropout=0.1, use_gate=True)(x, x, return_attention_scores=True)[0]
    x = keras.layers.LayerNormalization()(x)
    x = cls(3, 2, use_bias=False, output_shape=7)(x, memory)
    return keras.Model([ids, memory], keras.layers.Dense(3)(x))


@pytest.mark.parametrize(
    "writer, reader", [(Theirs, MultiHeadAttention), (MultiHeadAttention, Theirs)]
)
def test_weight_files_load_in_both_directions(writer, reader, tmp_path):
    inputs = [np.array([[1, 2, 3, 4], [5, 6, 7, 8]]), random(B, S, 4)]
    written, read = classifier(writer), classifier(reader)
    randomize(written, seed=40)
    randomize(read, seed=60)
    written.save_weights(tmp_path / "model.weights.h5")
    read.load_weights(tmp_path / "model.weights.h5")
    close(read(inputs), written(inputs))


@pytest.mark.slow
def test_ours_passes_the_tests_that_keras_ships():
    """See `tests/keras_own_tests.py`."""
    command = [sys.executable, "-m", "tests.keras_own_tests"]
    root = pathlib.Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
