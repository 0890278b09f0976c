"""`generation.compiled`, and generation by layers."""

import functools
import itertools

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import random
from tests.generation.toy import numpy, ops

on_torch = pytest.mark.skipif(
    keras.config.backend() != "torch", reason="PyTorch records steps; elsewhere XLA compiles them"
)
TOKENS = np.arange(6, dtype="int32") % 5


def decoder():
    """A layer, a step that calls it, its first state and a memory, as many rows as features."""
    dense = keras.layers.Dense(6, "tanh", kernel_initializer=keras.initializers.Orthogonal(seed=3))
    dense.build((None, 6))

    def step(tokens, cache, memory):
        state = dense(cache + memory + 2 * ops.one_hot(tokens, 6))
        return 5 * state, state

    return dense, step, np.zeros((6, 6), "float32"), random(6, 6, seed=12)


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


def test_a_compiled_decoder_sees_new_weights_and_compiles_once():
    dense, step, *arrays = decoder()
    calls = []

    def counted(*given):
        calls.append(1)
        return step(*given)

    program, write = looping(counted, dense)
    before = program(TOKENS, *arrays)
    assert_same_texts(before, write(TOKENS, *arrays))
    dense.set_weights([random(6, 6, seed=1), random(6, seed=2)])
    arrays = (TOKENS[::-1].copy(), arrays[0] + 1, -2 * arrays[1])
    expected = write(*arrays)
    traced = len(calls)
    after = program(*arrays)
    assert_same_texts(after, expected)
    assert (numpy(before.tokens) != numpy(after.tokens)).any()
    assert len(calls) == traced
    if keras.config.backend() == "torch":
        assert not after.log_probabilities.requires_grad
        # Other shapes are another program, of the same variables.
        one = [array[:1] for array in arrays]
        assert_same_texts(program(*one), write(*one))


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
    # Structures of arrays go in, too.
    program = ka.generation.compiled(lambda x: second(first(x["a"])) + x["b"][0], first)
    x = {"a": np.ones((1, 3), "float32"), "b": [np.zeros((1, 3), "float32")]}
    program(x)
    for layer in (first, second):
        layer.set_weights([np.eye(3), np.ones(3)])
    np.testing.assert_allclose(numpy(program(x)), [[3, 3, 3]])


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


def of_two_loops(tokens, state, memory, step):
    """Two loops in a function are two, whose steps and prompts are arrays of the call."""
    rules = ka.generation.Constraints(repetition_penalty=1.5, no_repeat_ngram_size=2)
    options = {"constraints": rules, "prompt": ops.stack([ops.flip(tokens), tokens], axis=1)}

    def texts(k):
        closed = functools.partial(step, memory=k * ops.convert_to_tensor(memory))
        return ka.generation.greedy(closed, tokens, state, max_tokens=6, **options)

    # As one structure: the tokens, and the logarithms of their probabilities.
    return ka.generation.Generated(*map(ops.stack, zip(texts(0.5), texts(1.0), strict=True)))


def of_another_order(tokens, state, memory, step):
    """A step that returns a cache in another order in memory."""

    def turned(tokens, cache, memory):
        logits, after = step(tokens, ops.transpose(cache), memory)
        return logits, ops.transpose(after)

    return ka.generation.greedy(turned, tokens, state, memory, max_tokens=6)


@pytest.mark.parametrize("write", [of_two_loops, pytest.param(of_another_order, marks=on_torch)])
def test_every_call_uses_its_own_arrays(write):
    dense, step, state, memory = decoder()
    write = functools.partial(write, step=step)
    program = ka.generation.compiled(write, dense)
    for k in range(2):
        arrays = ((TOKENS + k) % 5, state + k, (1 - 3 * k) * memory)
        assert_same_texts(program(*arrays), write(*arrays))


@on_torch
def test_a_step_that_reads_values_runs_uncompiled_and_says_so():
    dense, inner, *arrays = decoder()

    def step(tokens, cache, memory):
        logits, cache = inner(tokens, cache, memory)
        return logits * (1 + int(tokens[0])), cache

    program, write = looping(step, dense)
    for _ in range(2):
        said = r"reads values of tensors, so that it runs uncompiled: .+ \(in 'step', .+int\(tokens"
        with pytest.warns(UserWarning, match=said):
            found = program(TOKENS, *arrays)
        assert_same_texts(found, write(TOKENS, *arrays))


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


@on_torch
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


@on_torch
@pytest.mark.parametrize("size", [1.0, 1e9])
def test_steps_of_the_kernel_of_one_query_are_recorded(size, recwarn):
    """It clips keys only where scores are huge, which no recorded step can see."""
    layer = ka.MultiHeadAttention(2, 4, position=ka.positions.Shaw(max_distance=4))
    x = size * random(2, 4, 8)
    layer(x, x)

    def step(tokens, cache, x):
        output, cache = layer(ops.take(x, tokens % 4, axis=1)[:, :1], cache=cache)
        return output[:, 0], cache

    program, write = looping(step, layer)
    arrays = (TOKENS[1:3], layer.make_cache(2, 6), x)
    assert_same_texts(program(*arrays), write(*arrays))
    assert not [w for w in recwarn if "uncompiled" in str(w.message)]


def test_what_is_wrong_in_a_step_raises_as_it_is():
    dense, _, *arrays = decoder()

    def step(tokens, cache, memory):
        raise KeyError("mine")

    program, _ = looping(step, dense)
    with pytest.raises(KeyError, match="mine"):
        program(TOKENS, *arrays)


@on_torch
def test_quantized_layers_are_recorded_anew():
    dense, step, *arrays = decoder()
    program, write = looping(step, dense)
    assert_same_texts(program(TOKENS, *arrays), write(TOKENS, *arrays))
    dense.quantize("int8")
    assert_same_texts(program(TOKENS, *arrays), write(TOKENS, *arrays))
