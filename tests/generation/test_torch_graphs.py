"""Recorded steps on PyTorch: what does not change is computed once, and caches written in place."""

import collections

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention import generation
from tests.arrays import random

if keras.config.backend() != "torch":
    pytest.skip("the other backends have XLA", allow_module_level=True)

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ops = keras.ops

ROWS, SIZE, TOKENS = 2, 3, 6
FIRST = np.array([1, 2], "int32")
ONES = np.ones((ROWS, SIZE), "float32")


class Count(TorchDispatchMode):
    """Counts calls of PyTorch's operators with a first argument of a shape."""

    def __init__(self, shape):
        super().__init__()
        self.shape, self.calls = shape, collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if args and isinstance(args[0], torch.Tensor) and tuple(args[0].shape) == self.shape:
            self.calls[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def layer():
    dense = keras.layers.Dense(5, kernel_initializer=keras.initializers.RandomNormal(seed=1))
    dense.build((None, SIZE))
    return dense


def writing(step):
    """The loop of a step, as a function of the first tokens and what the step is given."""
    return lambda first, *given: generation.greedy(step, first, *given, max_tokens=TOKENS)


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(one), ops.convert_to_numpy(other))


def assert_as_uncompiled(step, cache, memory):
    """Runs a loop twice compiled, and compares with the loop as it is; inputs must not change."""
    write = writing(step)
    before = keras.tree.map_structure(np.array, (cache, memory))
    program = generation.compiled(write, step.layer)
    tensors = keras.tree.map_structure(ops.convert_to_tensor, (cache, memory))
    expected = write(FIRST, *tensors)
    for _ in range(2):
        assert_equal(program(FIRST, *tensors), expected)
    after = keras.tree.map_structure(ops.convert_to_numpy, tensors)
    keras.tree.map_structure(np.testing.assert_array_equal, after, before)
    return program


class Step:
    """Logits of a sum of the carried arrays after `changes`, and, if it shows the old, before."""

    def __init__(self, changes, shows_old):
        self.layer, self.changes, self.shows_old = layer(), changes, shows_old

    def __call__(self, tokens, cache, memory):
        at = ops.cast(ops.stack([tokens % 2, tokens % SIZE], axis=1), "int32")
        old = list(cache)
        for change, target, source in self.changes:
            old[target] = CHANGES[change](at, old[target], old[source], cache[source], memory)
        shown = (*old, *cache) if self.shows_old else old
        return self.layer(sum(ops.tanh(x) * (n + 1) for n, x in enumerate(shown))), old


# Of: where to write, an array as it is by now, another, that one as it came, and the memory.
CHANGES = {
    "write": lambda at, x, y, old, memory: ops.scatter_update(x, at, y[:, 0] + 1),
    "write what it reads": lambda at, x, y, old, memory: ops.scatter_update(x, at, x[:, 1] * 0.5),
    "write a view of itself": lambda at, x, y, old, memory: ops.scatter_update(x, at, x[:, 1]),
    "write into another": lambda at, x, y, old, memory: ops.scatter_update(y, at, x[:, 0] - 1),
    "write into the old": lambda at, x, y, old, memory: ops.scatter_update(old, at, x[:, 0] - 1),
    "write and read the old": lambda at, x, y, old, memory: ops.scatter_update(x, at, x[0, :2]) + x,
    "write into the memory": lambda at, x, y, old, memory: ops.scatter_update(memory, at, x[:, 1]),
    "write into a view": lambda at, x, y, old, memory: ops.reshape(
        ops.scatter_update(ops.reshape(x, (SIZE, ROWS)), ops.flip(at, axis=1), y[:, 2]),
        (ROWS, SIZE),
    ),
    "write into a row for all": lambda at, x, y, old, memory: ops.scatter_update(
        ops.broadcast_to(x[:1], (ROWS, SIZE)), at, y[:, 0]
    ),
    "take": lambda at, x, y, old, memory: y,
    "take the old": lambda at, x, y, old, memory: old,
    "take the memory": lambda at, x, y, old, memory: memory,
    "turn": lambda at, x, y, old, memory: ops.flip(x, axis=0),
    "add": lambda at, x, y, old, memory: x + 0.5 * old + ops.exp(memory),
}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, 2), st.integers(0, 2)),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_arrays_are_written_in_place_only_where_nobody_can_tell(changes, shows_old, shared):
    *cache, memory = random(4, ROWS, SIZE)
    if shared:
        cache[1] = cache[2] = ops.convert_to_tensor(cache[0])
    assert_as_uncompiled(Step(changes, shows_old), cache, memory)


@pytest.mark.parametrize("shows_old", [False, True])
@pytest.mark.parametrize("change", sorted(CHANGES))
def test_each_change_is_as_uncompiled(change, shows_old):
    *cache, memory = random(4, ROWS, SIZE)
    assert_as_uncompiled(Step([(change, 0, 1), (change, 1, 2)], shows_old), cache, memory)


def test_a_cache_is_copied_once_and_then_written_in_place():
    step = Step([("write", 0, 0)], shows_old=False)
    program = assert_as_uncompiled(step, [ONES], ONES)
    with Count((ROWS, SIZE)) as count:
        program(FIRST, [ONES], ONES)
    assert count.calls["index_put_"] == TOKENS
    assert count.calls["clone"] == 1


def test_what_every_step_computes_of_the_memory_is_computed_once():
    shape = (ROWS, SIZE, 7)
    dense = layer()

    def step(tokens, cache, memory):
        return dense(cache + ops.sum(ops.exp(memory), axis=-1)), ops.tanh(cache)

    program = generation.compiled(writing(step), dense)
    arrays = FIRST, ONES, np.ones(shape, "float32")
    program(*arrays)
    with Count(shape) as count:
        program(*arrays)
    assert count.calls["exp"] == 1


def test_a_step_with_an_effect_is_replayed_as_it_is():
    """Such as writing into the array that it was given."""
    dense = layer()

    def step(tokens, cache):
        cache = cache.mul_(0.5)
        return dense(cache), cache

    write = writing(step)
    expected = write(FIRST, ops.convert_to_tensor(ONES.copy()))
    program = generation.compiled(write, dense)
    for _ in range(2):
        assert_equal(program(FIRST, ops.convert_to_tensor(ONES.copy())), expected)


def test_random_numbers_of_a_step_are_drawn_in_every_step():
    """Though they make its texts differ from those of the loop as it is."""
    dense = layer()

    def step(tokens, cache):
        return dense(cache), cache + torch.rand((ROWS, SIZE))

    program = generation.compiled(writing(step), dense)
    found = program(FIRST, 0 * ONES)
    log_probs = ops.convert_to_numpy(found.log_probabilities)
    assert len(np.unique(log_probs[0])) == TOKENS


def test_a_step_that_cannot_be_made_functional_is_replayed_as_it_is(monkeypatch):
    def refuse(function):
        raise RuntimeError("no functional form")

    monkeypatch.setattr(torch.func, "functionalize", refuse)
    assert_as_uncompiled(Step([("write", 0, 0)], True), [ONES], ONES)


def test_a_program_with_one_loop_is_replayed_whole():
    """Its function runs in the first call of a shape alone, and weights are read in every call."""
    dense, calls = layer(), []

    def write(first, cache):
        calls.append(len(first))
        step = lambda tokens, cache: (dense(cache), cache)  # noqa: E731
        return generation.greedy(step, first, ops.tanh(cache), max_tokens=TOKENS)

    program = generation.compiled(write, dense)
    expected, made = program(FIRST, ONES), len(calls)
    assert_equal(program(FIRST, ONES), expected)
    dense.kernel.assign(2 * dense.kernel)
    assert float(program(FIRST, ONES).scores[0]) != float(expected.scores[0])
    assert len(calls) == made
    assert_equal(program(FIRST[:1], ONES[:1]), [x[:1] for x in write(FIRST, ONES)])
    assert len(calls) > made + 1
