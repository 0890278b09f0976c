"""`generation.compiled`, and generation by layers."""

import functools
import itertools

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import random
from tests.generation.toy import numpy, ops


class Decoder(keras.Model):
    """A GRU over an embedding, that also adds a memory."""

    def __init__(self, vocabulary=5, units=6):
        super().__init__()
        self.embedding = keras.layers.Embedding(vocabulary, units, embeddings_initializer="normal")
        self.cell = keras.layers.GRUCell(units)
        self.head = keras.layers.Dense(
            vocabulary, kernel_initializer=keras.initializers.Orthogonal(3)
        )
        self.units = units

    def call(self, tokens, state, memory):
        output, (state,) = self.cell(self.embedding(tokens) * 30 + memory, [state])
        return self.head(output), state


def decoder():
    model = Decoder()
    state = np.zeros((2, model.units), "float32")
    model(np.zeros(2, "int32"), state, state)
    return model, state, random(*state.shape, seed=12)


def test_a_compiled_decoder_sees_new_weights_and_compiles_once():
    model, state, memory = decoder()
    calls = []

    def step(tokens, cache, memory):
        calls.append(1)
        logits, new = model(tokens, cache[0], memory)
        return logits, [new]

    def write(tokens, state, memory):
        return ka.generation.greedy(step, tokens, [state], memory, max_tokens=6)

    program = ka.generation.compiled(write, model)
    arrays = (np.array([1, 2], "int32"), state, memory)

    def by_hand():
        tokens, now, found = arrays[0], state, []
        for _ in range(6):
            logits, now = model(tokens, now, memory)
            tokens = np.argmax(numpy(logits), axis=-1)
            found.append(tokens)
        return np.stack(found, axis=1)

    before = numpy(program(*arrays).tokens)
    np.testing.assert_array_equal(before, by_hand())
    traced = len(calls)
    model.set_weights([3 * np.random.default_rng(1).normal(size=w.shape) for w in model.weights])
    after = program(*arrays)
    np.testing.assert_array_equal(numpy(after.tokens), by_hand())
    assert (before != numpy(after.tokens)).any()
    assert len(calls) == traced
    if keras.config.backend() == "torch":
        assert not after.log_probabilities.requires_grad
    # Other shapes are another program, of the same variables.
    one = program(*(array[:1] for array in arrays))
    np.testing.assert_array_equal(numpy(one.tokens), numpy(after.tokens)[:1])


# `compiled`


def test_seeds_go_on_between_calls_of_a_compiled_function():
    dropout = keras.layers.Dropout(0.5, seed=1)
    dropout.build((2, 8))
    generator = keras.random.SeedGenerator(2)  # of no layer
    calls = []

    def function(x):
        calls.append(1)
        drawn = keras.random.uniform((2, 8), seed=generator)
        return {"dropped": dropout(x, training=True), "drawn": (drawn,)}

    program = ka.generation.compiled(function, dropout)
    x = np.ones((2, 8), "float32")
    found = [numpy(program(x)) for _ in range(3)]
    for one, other in itertools.combinations(found, 2):
        assert (one["dropped"] != other["dropped"]).any()
        assert (one["drawn"][0] != other["drawn"][0]).any()
    generator.state.assign(keras.random.SeedGenerator(2).state)
    again = numpy(program(x))
    np.testing.assert_array_equal(again["drawn"][0], found[0]["drawn"][0])
    assert len(calls) <= 2 or keras.config.backend() == "torch"


def test_variables_of_other_layers_do_not_go_stale():
    first, second = keras.layers.Dense(3), keras.layers.Dense(3)
    first.build((None, 3))
    second.build((None, 3))
    program = ka.generation.compiled(lambda x: second(first(x)), first)
    x = np.ones((1, 3), "float32")
    program(x)
    for layer in (first, second):
        layer.set_weights([np.eye(3), np.ones(3)])
    np.testing.assert_allclose(numpy(program(x)), [[3, 3, 3]])


def test_structures_of_arrays_go_in():
    layer = keras.layers.Dense(1)
    layer.build((1, 1))
    program = ka.generation.compiled(lambda x: x["a"] + x["b"][0], layer)
    np.testing.assert_array_equal(numpy(program({"a": np.ones(2), "b": [np.ones(2)]})), [2, 2])


# Loops


def looping(step, model, **options):
    """A compiled function, and the same function as it is."""

    def write(tokens, state, memory):
        return ka.generation.sample(step, tokens, state, memory, max_tokens=6, seed=4, **options)

    return ka.generation.compiled(write, model), write


def assert_same_texts(found, expected):
    np.testing.assert_array_equal(numpy(found.tokens), numpy(expected.tokens))
    np.testing.assert_allclose(
        numpy(found.log_probabilities), numpy(expected.log_probabilities), atol=1e-5
    )


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a warning of TensorFlow")
def test_tensorflow_warns_of_no_retracing(caplog, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    layer = keras.layers.Dense(3)
    layer.build((None, 4))

    def function(x, n):
        return layer(x) + ops.cast(n, "float32")

    # Of new lengths, new numbers, and new functions.
    called = ka.generation.compiled(function, layer)
    for number in range(7):
        x = np.ones((1 + number, 4), "float32")
        expected = numpy(layer(x)) + number
        for one in (called, called, ka.generation.compiled(function, layer)):
            np.testing.assert_allclose(numpy(one(x, number)), expected, rtol=1e-6)
    assert "retracing" not in caplog.text


def of_its_own(model):
    """Memory and cache of each call."""
    return looping(model, model)[1]


def closed_over(model):
    """A step that closes over arrays of the call."""

    def write(tokens, state, memory):
        step = functools.partial(model, memory=2 * ops.convert_to_tensor(memory))
        return ka.generation.greedy(step, tokens, state, max_tokens=6)

    return write


def of_two_loops(model):
    """Two loops in a function are two."""

    def write(tokens, state, memory):
        def texts(k):
            step = functools.partial(model, memory=k * ops.convert_to_tensor(memory))
            return ka.generation.greedy(step, tokens, state, max_tokens=6)

        # As one structure: the tokens, and the logarithms of their probabilities.
        return ka.generation.Generated(*map(ops.stack, zip(texts(0.0), texts(9.0), strict=True)))

    return write


@pytest.mark.parametrize("made", [of_its_own, closed_over, of_two_loops])
def test_every_call_uses_its_own_arrays(made):
    model, state, memory = decoder()
    write = made(model)
    program = ka.generation.compiled(write, model)
    for k in range(2):
        arrays = (np.array([1, 2], "int32") + k, state + k, (1 - 3 * k) * memory)
        assert_same_texts(program(*arrays), write(*arrays))


def test_a_step_may_return_a_cache_in_another_order_in_memory():
    model, *_ = decoder()

    def step(tokens, cache, memory):
        logits, after = model(tokens, ops.transpose(cache), memory)
        return logits, ops.transpose(after)

    # Square, so that the shapes are the same.
    tokens = np.arange(model.units, dtype="int32") % 5
    square = np.zeros((model.units, model.units), "float32")
    program, write = looping(step, model)
    for _ in range(2):
        arrays = (tokens, square, np.ones_like(square))
        assert_same_texts(program(*arrays), write(*arrays))


@pytest.mark.skipif(keras.config.backend() != "torch", reason="elsewhere this cannot be compiled")
def test_a_step_that_reads_values_runs_uncompiled_and_says_so():
    model, state, memory = decoder()

    def step(tokens, cache, memory):
        logits, cache = model(tokens, cache, memory)
        return logits * (1 + int(tokens[0])), cache

    program, write = looping(step, model)
    arrays = (np.array([1, 2], "int32"), state, memory)
    for _ in range(2):
        said = r"reads values of tensors, so that it runs uncompiled: .+ \(in 'step', .+int\(tokens"
        with pytest.warns(UserWarning, match=said):
            found = program(*arrays)
        assert_same_texts(found, write(*arrays))


ONE_OF_EACH = {
    "one row": ((1, 3), 4, {"num_heads": 2}),
    "one of all": ((1, 1), 1, {"num_heads": 1, "pattern": ka.patterns.SlidingWindow(0, 0)}),
    "one key head": ((2, 1), 1, {"num_heads": 2, "num_key_value_heads": 1, "position": "rotary"}),
}
WAYS = {
    "greedy": ka.generation.greedy,
    "sample": functools.partial(ka.generation.sample, top_k=4, top_p=0.9, seed=1),
    "one beam": functools.partial(ka.generation.beam_search, num_beams=1),
    "beams": functools.partial(ka.generation.beam_search, num_beams=2),
}
# All ways for one prompt, the normal case.
SIZES_OF_ONE = [("one row", way) for way in WAYS]
SIZES_OF_ONE += [("one of all", "greedy"), ("one of all", "one beam"), ("one key head", "greedy")]


@pytest.mark.skipif(keras.config.backend() != "torch", reason="elsewhere it would not compile")
@pytest.mark.parametrize(("sizes", "way"), SIZES_OF_ONE)
def test_steps_are_recorded_with_one_of_anything(sizes, way, recwarn):
    shape, max_tokens, options = ONE_OF_EACH[sizes]
    tokens = ka.Embeddings(ka.ScaledEmbedding(9, 4, mask_zero=True))
    model = ka.Decoder(
        [ka.TransformerBlock(8, causal=True, **options)], tokens, logits=ka.Logits(9)
    )
    prompt = np.arange(1, 1 + np.prod(shape), dtype="int32").reshape(shape)
    model(prompt)

    calls = []

    def step(tokens, cache):
        calls.append(1)
        return model.step(tokens, cache)

    def write(prompt):
        last, cache = model.start(prompt, max_tokens=max_tokens)
        return WAYS[way](step, last, cache, max_tokens=max_tokens)

    expected, program = write(prompt), ka.generation.compiled(write, model)
    assert_same_texts(program(prompt), expected)
    assert not [w for w in recwarn if "uncompiled" in str(w.message)]
    calls.clear()
    assert_same_texts(program(prompt), expected)
    assert not calls  # Replayed.


# Only PyTorch reads how large they are.
@pytest.mark.parametrize("size", [1.0, 1e9] if keras.config.backend() == "torch" else [1e9])
def test_steps_of_the_kernel_of_one_query_are_recorded(size, recwarn):
    """It clips keys only where scores are huge, which no recorded step can see."""
    layer = ka.MultiHeadAttention(2, 4, position=ka.positions.Shaw(max_distance=4))
    x = size * np.random.default_rng(3).normal(size=(2, 4, 8)).astype("float32")
    layer(x, x)

    def step(tokens, cache, x):
        one = ops.take(x, tokens % 4, axis=1)[:, :1]
        output, cache = layer(one, cache=cache)
        return output[:, 0], cache

    def write(tokens, x):
        cache = layer.make_cache(2, 5)
        return ka.generation.greedy(step, tokens, cache, x, max_tokens=5)

    program = ka.generation.compiled(write, layer)
    arrays = (np.array([1, 2], "int32"), x)
    assert_same_texts(program(*arrays), write(*arrays))
    assert not [w for w in recwarn if "uncompiled" in str(w.message)]


def test_what_is_wrong_in_a_step_raises_as_it_is():
    model, state, memory = decoder()

    def step(tokens, cache, memory):
        raise KeyError("mine")

    program, _ = looping(step, model)
    with pytest.raises(KeyError, match="mine"):
        program(np.array([1, 2], "int32"), state, memory)


def test_quantized_layers_are_recorded_anew():
    dense = keras.layers.Dense(5, kernel_initializer=keras.initializers.RandomNormal(seed=1))
    dense.build((None, 6))

    def step(tokens, cache):
        return dense(cache), ops.roll(cache, 1, axis=-1)

    def write(tokens, cache):
        return ka.generation.greedy(step, tokens, cache, max_tokens=4)

    arrays = (np.zeros(3, "int32"), np.random.default_rng(0).normal(size=(3, 6)).astype("float32"))
    program = ka.generation.compiled(write, dense)
    assert_same_texts(program(*arrays), write(*arrays))
    if keras.config.backend() == "torch":
        dense.quantize("int8")
        assert_same_texts(program(*arrays), write(*arrays))
