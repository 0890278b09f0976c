"""Two threads that call one layer get what one thread gets: a call leaves nothing on its layer."""

import contextlib
import copy
import functools
import threading
from concurrent import futures

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import AttentionCell, AttentionRNN, generation, visualization
from tests.arrays import numpy, random
from tests.conformance import LAYERS, outputs_of
from tests.transforms import check

COUNT = 4
# What Keras itself sets in a call, to what it was.
ALLOWED = {"_called", "built"}


def in_two_threads(*functions):
    """What two functions returned in their last of some calls, made in a thread each."""
    ready = threading.Barrier(2)

    def work(function):
        ready.wait(60)
        return [function() for _ in range(COUNT)][-1]

    return list(futures.ThreadPoolExecutor(2).map(work, functions, timeout=120))


def parts_of(thing, found):
    """What is reached from a layer by attributes and lists, by its id."""
    if id(thing) not in found and hasattr(thing, "__dict__") and not isinstance(thing, type):
        found[id(thing)] = thing
        for part in vars(thing).values():
            for leaf in part if isinstance(part, (list, tuple)) else [part]:
                parts_of(leaf, found)
    return found


@contextlib.contextmanager
def recorded(layer):
    """The names of attributes that are set on a layer's parts, of classes of this package."""
    parts, written = parts_of(layer, {}), set()
    owners = {owner for part in parts.values() for owner in type(part).__mro__}

    def setting(owner):
        def set_attribute(thing, name, value):
            if id(thing) in parts:
                written.add(name)
            super(owner, thing).__setattr__(name, value)

        return set_attribute

    with pytest.MonkeyPatch.context() as patch:
        for owner in owners:
            if str(owner.__module__).startswith("keras_attention"):
                patch.setattr(owner, "__setattr__", setting(owner), raising=False)
        yield written


def check_as_alone(*functions):
    """Each function, called beside the other, returns what it returns alone."""
    alone = [function() for function in functions]
    for one, other in zip(alone, in_two_threads(*functions), strict=True):
        for expected, found in zip(outputs_of(one), outputs_of(other), strict=True):
            assert found.shape == expected.shape
            np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-5, atol=1e-6)


# On JAX an array of another size would be a program for each operation, which the test of decoders
# has.
CUT = slice(None) if keras.backend.backend() == "jax" else slice(-1)


@pytest.mark.ci
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_layers(case):
    layer = case.make()
    cut = CUT if case.any_length else slice(None)
    other = [array[CUT, cut] for array in case.arrays(seed=1)]
    calls = [lambda arrays=arrays: case.call(layer, arrays) for arrays in (case.arrays(), other)]
    calls[0]()
    with recorded(layer) as written:
        calls[1]()
    assert written <= ALLOWED
    check("threads", lambda: check_as_alone(*calls))


def recurrent():
    cell = AttentionCell(keras.layers.GRUCell(4), "general", mode="luong", attention_dim=3)
    rnn = keras.layers.RNN(cell, return_sequences=True)
    by_keras = lambda x, memory: rnn(x, initial_state=cell.initial_state(memory))  # noqa: E731
    return cell, AttentionRNN(cell, return_sequences=True), by_keras


@pytest.mark.ci
def test_recurrent_decoders():
    """Those of Keras's own loop keep the memory of a call, of which nothing is left after it."""
    cell, *decoders = recurrent()
    for decoder, allowed in zip(decoders, (set(), {"memory_shape", "memory"}), strict=True):
        calls = []
        for shapes in (((2, 4, 5), (2, 6, 7)), ((3, 3, 5), (3, 8, 7))):
            given = [keras.ops.convert_to_tensor(random(*shape)) for shape in shapes]
            calls.append(functools.partial(decoder, *given))
        check_as_alone(*calls)
        with recorded(cell) as written:
            calls[0]()
        assert written <= ALLOWED | allowed and not cell._loop.memory


def test_a_copy_of_a_cell_in_a_loop_is_in_none():
    cell, layer, _ = recurrent()
    x, memory = keras.ops.ones((2, 3, 5)), keras.ops.ones((2, 6, 7))
    expected = layer(x, memory)
    cell.get_recurrent_dropout_mask(cell.initial_state(memory)[0])
    again = copy.deepcopy(layer)
    assert cell._loop.memory and not again.cell._loop.memory
    np.testing.assert_array_equal(numpy(again(x, memory)), numpy(expected))


def test_dropout_and_seeds():
    layer, x = ka.TransformerBlock(8, 2, dropout=0.5, seed=1), keras.ops.ones((2, 3, 4))
    layer(x)
    for output in in_two_threads(*[lambda: layer(x, training=True)] * 2):
        assert np.isfinite(numpy(output)).all()
        assert np.abs(numpy(output) - numpy(layer(x))).max() > 1e-3


def test_collected_scores():
    symbol = keras.Input((None, 4))
    model = keras.Model(symbol, ka.MultiHeadAttention(2, 2, name="layer")(symbol))
    given = [keras.random.normal((1, length, 4), seed=length) for length in (3, 5)]

    def collect(x):
        return visualization.collect_attention(model, x)["layer"]

    check_as_alone(*[lambda x=x: collect(x) for x in given])
    check_as_alone(lambda: collect(given[0]), lambda: model(given[1]))
    assert "call" not in vars(model.get_layer("layer"))


@pytest.mark.ci
def test_compiled_generation():
    """Both compile at once."""
    model = keras.Sequential([keras.layers.Embedding(7, 4), keras.layers.Dense(7)])
    model.build((None,))

    def write(tokens):
        def step(tokens, cache):
            return model(tokens), cache + 1

        cache = keras.ops.zeros((tokens.shape[0], 1))
        return generation.greedy(step, tokens, cache, max_tokens=4)

    def made():
        program = generation.compiled(write, model)
        return [lambda n=n: program(np.arange(n) % 7).tokens for n in (2, 3)]

    expected = [numpy(call()) for call in made()]
    for one, other in zip(expected, in_two_threads(*made()), strict=True):
        np.testing.assert_array_equal(numpy(other), one)
