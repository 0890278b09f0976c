"""Problems for kernels, and how the answers of two kernels are compared, for the tests.

A problem is a pair of dictionaries: arrays to differentiate by, and all other arguments of
`attend`.
"""

import contextlib
import dataclasses

import keras
import numpy as np
import pytest

from keras_attention import kernels, positions
from keras_attention.backend import backend
from keras_attention.kernels.tiles import strategies
from keras_attention.spec import AttentionSpec, PositionBias, Positions
from tests.arrays import numpy
from tests.gradients import gradients, total

B, T, S, H, G, K, V = 2, 31, 47, 4, 2, 8, 6
BACKEND = keras.backend.backend()
# JAX compiles each problem anew.
FEW = BACKEND == "jax"
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's alone.")

# What kernels may differ by from the reference, relative to the largest of an array, if above 1.
# In narrow dtypes both compute in float32, and round once: to one of two neighbors.
ROUNDING = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 2**-7, "float16": 2**-10}


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


def some(*shape, rate=0.6, seed=0):
    """A random mask."""
    return np.random.default_rng([seed, *shape]).random(shape) < rate


def integers(low, high, *shape, seed=0):
    found = np.random.default_rng([seed, *shape]).integers(low, high, shape)
    return keras.ops.convert_to_tensor(found.astype("int32"))


def inputs(batch=B, queries=T, keys=S, heads=H, groups=G, size=K, features=V):
    return {
        "query": random(batch, queries, heads, size, seed=1),
        "key": random(batch, keys, groups, size, seed=2),
        "value": random(batch, keys, groups, features, seed=3),
    }


def answers(kernel, arrays, rest, dtype="float32", differentiate=gradients):
    """The output of a kernel and its gradients, by name."""
    names = [*arrays, "output"]
    batch, queries, heads, _ = arrays["query"].shape
    shape = (batch, queries, heads, arrays["value"].shape[3])
    tensors = [
        keras.ops.cast(keras.ops.convert_to_tensor(array), dtype) for array in arrays.values()
    ]

    def function(*tensors):
        *tensors, upstream = tensors
        output = attended(kernel, dict(zip(arrays, tensors, strict=True)), rest).output
        # The gradient by what it is multiplied by is the output.
        return keras.ops.cast(output, upstream.dtype) * upstream

    wide = "float64" if dtype == "float64" else "float32"
    upstream = keras.ops.cast(keras.ops.convert_to_tensor(random(*shape, seed=4)), wide)
    found = differentiate(function, [*tensors, upstream])
    return dict(zip(names, found, strict=True))


def given(
    query,
    key,
    value,
    *,
    mask=None,
    bias=None,
    query_positions=None,
    key_positions=None,
    offset=0,
    **rest,
):
    """What kernels are given, (spec, query, key, value).

    `mask` and `bias` are one or a list, of arrays that broadcast to (B, H, T, S), and of
    `PositionBias`es. `rest` is what else an `AttentionSpec` is made of.
    """

    def listed(parts):
        parts = parts if isinstance(parts, (list, tuple)) else [parts]
        return [part for part in parts if part is not None]

    def four_axes(array):
        array = keras.ops.convert_to_tensor(array)
        for _ in range(4 - len(array.shape)):
            array = array[None]
        return array

    biases = [part for part in listed(bias) if not isinstance(part, PositionBias)]
    spec = AttentionSpec(
        masks=tuple(four_axes(part) for part in listed(mask)),
        biases=tuple(four_axes(part) for part in biases),
        position_biases=tuple(part for part in listed(bias) if isinstance(part, PositionBias)),
        positions=Positions.of(
            keras.ops.shape(query)[1],
            keras.ops.shape(key)[1],
            query_positions,
            key_positions,
            offset,
        ),
        **rest,
    )
    return spec, query, key, value


def attend(query, key, value, kernel="auto", **rest):
    """The `AttentionResult` of a problem."""
    return kernels.run(*given(query, key, value, **rest), kernel=kernel)


def explain(query, key, value, kernel="auto", **rest):
    """The kernel that a problem would be computed by, and why."""
    return kernels.explain(*given(query, key, value, **rest), kernel=kernel)


def attended(kernel, arrays, rest):
    """As `attend`, of which every bias may be given by name; `fixed` has no gradient."""
    arrays = {name: keras.ops.convert_to_tensor(array) for name, array in arrays.items()}
    rest = dict(rest)
    biases = [arrays.pop(name) for name in ("bias", "more_bias") if name in arrays]
    fixed = rest.pop("fixed", [])
    biases += fixed if isinstance(fixed, list) else [fixed]
    between = rest.pop("between", None)
    if between is not None:
        table = (arrays.pop("table"),) if "table" in arrays else between.arrays
        biases.append(dataclasses.replace(between, arrays=table))
    return attend(**arrays, **rest, bias=biases, kernel=kernel)


def compare(
    kernel, arrays, rest, dtype="float32", differentiate=gradients, expected=None, roundings=1
):
    if expected is None:
        expected = answers("reference", arrays, rest, dtype)
    found = answers(kernel, arrays, rest, dtype, differentiate)
    for name, array in expected.items():
        error = roundings * ROUNDING[dtype] * max(1.0, np.abs(array).max(initial=0.0))
        np.testing.assert_allclose(found[name], array, rtol=0, atol=error, err_msg=name)
    return expected


def blocks_of(queries, keys, scores=2**17):
    """A context in which blocks have at most so many queries, keys, and scores of all heads."""
    return strategies.using(whole_rows=False, scores=scores, queries=queries, keys=keys)


def at_once(scores):
    """A context in which a block has about so many scores."""
    return strategies.using(whole_rows=False, scores=scores)


@contextlib.contextmanager
def rows_of(scores):
    """A context in which a tile has all keys, in about so many scores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "has_fast_bfloat16", lambda: True)
        with strategies.using(whole_rows=True, scores=scores, uneven=(1, 3), step=5):
            yield


def relative_bias(heads=H):
    """A `PositionBias` with a table, (buckets, H)."""
    position = positions.RelativeBias(8, 20)
    position.build((B, T, heads, K), (B, S, heads, K))
    return position.bias_between(heads)


def slow(*arguments):
    return pytest.param(*arguments, marks=pytest.mark.slow)


# TensorFlow


def in_a_graph(function, tensors, **options):
    """As `gradients`, in one graph, with options of `tf.function`."""
    import tensorflow as tf

    @tf.function(autograph=False, **options)
    def step(tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            whole = total(function(*tensors))
        found = tape.gradient(whole, tensors, unconnected_gradients="zero")
        # That of an array that is looked up in may be of some rows only.
        return [tf.convert_to_tensor(gradient) for gradient in found]

    return [numpy(gradient) for gradient in step(tensors)]


def by_xla(function, tensors):
    """As `gradients`, compiled as a whole on TensorFlow."""
    if BACKEND != "tensorflow":
        return gradients(function, tensors)
    return in_a_graph(function, tensors, jit_compile=True)


# Dropout


def weights_shown(kernel, arrays, rest, **given):
    """The weights (B, H, T, S) after dropout: the values are unit vectors, and show each weight."""
    batch, keys, groups, _ = arrays["key"].shape
    value = np.broadcast_to(np.eye(keys, dtype="float32")[:, None], (batch, keys, groups, keys))
    arrays = {**arrays, "value": np.ascontiguousarray(value)}
    output = attended(kernel, arrays, {**rest, **given}).output
    return keras.ops.convert_to_numpy(output).transpose(0, 2, 1, 3)


def check_dropout(kernel, arrays, rest, rate):
    """Whatever a kernel drops is at random, by its seed, and alike in output and gradients.

    Returns which weights (B, H, T, S) are kept, and which there are.
    """
    dropout = {"dropout": rate, "seed": 3}
    arrays = {**arrays, "query": 0.3 * arrays["query"]}
    whole = weights_shown("reference", arrays, rest)
    there = whole > 0
    shown = weights_shown(kernel, arrays, rest, **dropout)
    kept = shown > 0
    assert not kept[~there].any()
    count = there.sum()
    assert abs(kept.sum() / count - (1 - rate)) < 4.5 * np.sqrt(rate * (1 - rate) / count)
    np.testing.assert_allclose(shown[kept], whole[kept] / (1 - rate), rtol=1e-4, atol=1e-8)

    np.testing.assert_array_equal(weights_shown(kernel, arrays, rest, **dropout), shown)
    generator = keras.random.SeedGenerator(5)
    again = [
        weights_shown(kernel, arrays, rest, dropout=rate, seed=seed) > 0
        for seed in (4, generator, generator)
    ]
    for first, second in ((kept, again[0]), (again[1], again[2]), (kept, again[1])):
        # As many as two sets that know nothing of each other.
        unlike = (first != second)[there].mean()
        assert abs(unlike - 2 * rate * (1 - rate)) < 0.08 * min(1, 20 * rate)

    multiplier = kept.astype("float32") / np.float32(1 - rate)
    expected = answers(
        "reference", arrays, {**rest, "multiplier": keras.ops.convert_to_tensor(multiplier)}
    )
    compare(kernel, arrays, {**rest, **dropout}, expected=expected)
    return kept, there


# Memory


def largest_in_training(kernel, arrays, rest):
    """How many elements the largest array has of all that a training step makes."""
    tensors = [keras.ops.convert_to_tensor(array) for array in arrays.values()]

    def loss(*tensors):
        output = attended(kernel, dict(zip(arrays, tensors, strict=True)), rest).output
        return keras.ops.sum(keras.ops.square(output))

    return {"tensorflow": _in_graph, "jax": _in_jaxpr, "torch": _in_calls}[BACKEND](loss, tensors)


def _in_graph(loss, tensors):
    import tensorflow as tf
    from tensorflow.python.framework import function_def_to_graph

    @tf.function(autograph=False)
    def step(tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            total = loss(*tensors)
        return tape.gradient(total, tensors)

    graph = step.get_concrete_function(tensors).graph
    library = graph.as_graph_def().library.function
    with graph.as_default():
        graphs = [graph, *map(function_def_to_graph.function_def_to_graph, library)]
    return max(
        output.shape.num_elements() or 0
        for graph in graphs
        for operation in graph.get_operations()
        for output in operation.outputs
        if output.shape.rank is not None
    )


def _in_jaxpr(loss, tensors):
    import jax

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (variable.aval.size for variable in equation.outvars)
            for value in jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
            ):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    yield from sizes(inner)

    step = jax.grad(loss, argnums=tuple(range(len(tensors))))
    return max(sizes(jax.make_jaxpr(step)(*tensors).jaxpr))


def _in_calls(loss, tensors):
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Sizes(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            parts = found if isinstance(found, (tuple, list)) else [found]
            for part in parts:
                if isinstance(part, torch.Tensor):
                    self.largest = max(self.largest, part.numel())
            return found

    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    with Sizes() as seen:
        torch.autograd.grad(loss(*leaves), leaves)
    return seen.largest
