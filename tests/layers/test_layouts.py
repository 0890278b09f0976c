"""Ragged and sparse tensors, and dicts, given to every layer: errors that say what to pass."""

import contextlib

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import numpy
from tests.layers.conformance_cases import CASES

BACKEND = keras.backend.backend()


def ragged(array):
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.RaggedTensor.from_tensor(array, lengths=LENGTHS)
    import torch

    rows = [torch.tensor(row[:length]) for row, length in zip(array, LENGTHS, strict=True)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def sparse(array):
    if BACKEND == "jax":
        from jax.experimental import sparse

        return sparse.BCOO.fromdense(array)
    return keras.ops.convert_to_tensor(array).to_sparse()


LENGTHS = (4, 2, 1)
# What is given, and the message.
GIVEN = {"dict": (lambda array: {"x": array}, r"takes dense tensors\. .*Received: a dict")}
if BACKEND != "tensorflow":
    GIVEN["sparse"] = (sparse, r"takes dense tensors\. Pass a sparse .* as `.*dense.*Received: a ")
if BACKEND != "jax":
    GIVEN["ragged"] = (
        ragged,
        r"takes dense tensors\. Pass a \w+ tensor as `.*to_(padded_)?tensor\(.*as its mask\.",
    )


@contextlib.contextmanager
def refused(layer, message):
    with pytest.raises(TypeError, match=message):
        yield
    assert not layer.built


@pytest.mark.parametrize("given", GIVEN)
def test_every_layer_says_what_to_pass_before_it_is_built(given):
    for case in CASES if BACKEND == "tensorflow" else CASES[::3]:
        if case.layer is ka.ScaledEmbedding and given != "dict":
            continue
        layer, arrays = case.make(), case.arrays()
        make, message = GIVEN[given]
        with refused(layer, message):
            case.call(layer, list(map(make, arrays)))
        if given != "dict" and len(arrays) > 1:
            # In the place of one argument.
            with refused(layer, message):
                case.call(layer, [*arrays[:-1], make(arrays[-1])])


@pytest.mark.parametrize("given", GIVEN)
def test_models_and_recurrent_layers_too(given):
    make, message = GIVEN[given]
    ids, x = np.ones((3, 4), "int32"), np.ones((3, 4, 8), "float32")
    encoder = ka.Encoder([ka.TransformerBlock(8, 2)], ka.Embeddings(ka.ScaledEmbedding(9, 8)))
    with refused(encoder, message):
        encoder(make(ids))
    rnn = ka.AttentionRNN(ka.AttentionCell(keras.layers.GRUCell(4), "additive"))
    with refused(rnn, message):
        rnn(make(x), x)
    if given != "dict":
        with refused(rnn, message):
            rnn(x, memory=make(x))


class OfADict(ka.SelfAttention):
    """What a user's own class takes is its own."""

    def build(self, shapes):
        super().build(shapes["x"])

    def call(self, inputs):
        return super().call(inputs["x"])


def test_a_class_may_take_a_dict():
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype("float32")
    assert OfADict(2, 4)({"x": x}).shape == (2, 3, 8)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="Keras has ragged inputs on TensorFlow alone")
def test_symbols_of_ragged_inputs():
    # Keras's own embedding takes them.
    for case in [case for case in CASES if case.layer is not ka.ScaledEmbedding][::4]:
        layer = case.make()
        symbols = [
            keras.Input((n, *(() if f is None else (f,))), ragged=True) for n, f in case.inputs
        ]
        with refused(layer, r"Pass a ragged tensor as"):
            case.call(layer, symbols)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="Keras has ragged inputs on TensorFlow alone")
def test_the_advice_computes_the_rows_by_themselves():
    import tensorflow as tf

    layer = ka.TransformerBlock(16, 2)
    x = ragged(np.random.default_rng(0).normal(size=(3, 4, 8)).astype("float32"))
    output = numpy(layer(x.to_tensor(), mask=tf.sequence_mask(x.row_lengths())))
    for row, found in zip(x, output, strict=True):
        np.testing.assert_allclose(found[: len(row)], numpy(layer(row[None]))[0], atol=1e-5)


def test_a_symbol_that_keras_takes_for_sparse():
    x = keras.Input((5, 8))
    assert ka.TransformerBlock(16, 2)(x * 2.0).shape == (None, 5, 8)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="Keras projects no others")
def test_projections_take_sparse_tensors():
    import tensorflow as tf

    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype("float32")
    x[..., 1:5] = 0
    layer = ka.SelfAttention(2, 4)
    np.testing.assert_allclose(layer(tf.sparse.from_dense(x)), layer(x), atol=1e-6)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="Keras has ragged inputs on TensorFlow alone")
def test_an_embedding_takes_ragged_tokens_as_keras_does():
    tokens = ragged(np.ones((3, 4), "int32"))
    output = ka.ScaledEmbedding(9, 8)(tokens)
    assert output.shape.as_list() == [3, None, 8]
    assert list(output.row_lengths().numpy()) == list(LENGTHS)
