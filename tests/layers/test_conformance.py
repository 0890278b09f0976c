"""Every public layer in a layer of a user's own, and given what is no dense tensor; its parts."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.core import keras_private
from tests.arrays import numpy, random
from tests.compiled import compiled
from tests.conformance import LAYERS, outputs_of

BACKEND = keras.backend.backend()
ON_TENSORFLOW = BACKEND == "tensorflow"


# In a layer of a user's own


@keras.saving.register_keras_serializable(package="test_conformance")
class OwnLayer(keras.layers.Layer):
    """What a user writes around a layer: a `call` alone. Keras builds the layer by tracing it."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def call(self, x, other=None):
        return self.inner(x) if other is None else self.inner(x, other)

    def get_config(self):
        return {**super().get_config(), "inner": keras.saving.serialize_keras_object(self.inner)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config.pop("inner")), **config)


@pytest.mark.ci
def test_the_same_outputs_and_again_when_loaded(tmp_path):
    """All layers are branches of one model, each in two of a user's own."""
    layers, inputs, outputs = [case.make() for case in LAYERS], [], []
    for number, (case, layer) in enumerate(zip(LAYERS, layers, strict=True)):
        known = number % 4 < 2 or not case.any_length
        inputs.append(case.symbols(3 if number % 2 else None, known))
        outputs.append(outputs_of(OwnLayer(OwnLayer(layer))(*inputs[-1]))[0])
    model = keras.Model([symbol for of_case in inputs for symbol in of_case], outputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")

    def direct(arrays):
        arrays = iter(arrays)
        calls = zip(LAYERS, layers, inputs, strict=True)
        given = ((case, layer, [next(arrays) for _ in own]) for case, layer, own in calls)
        return [outputs_of(case.call(layer, own))[0] for case, layer, own in given]

    arrays = [array for case in LAYERS for array in case.arrays()]
    found = [compiled(lambda *x, f=f: f(list(x)), *arrays) for f in (direct, model, loaded)]
    for case, expected, *others in zip(LAYERS, *found, strict=True):
        for other in others:
            np.testing.assert_allclose(numpy(other), numpy(expected), atol=1e-5, err_msg=str(case))


# Ragged and sparse tensors, and dicts: errors that say what to pass

LENGTHS = (4, 2, 1)


def ragged(array):
    if ON_TENSORFLOW:
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


# What is given, and the message.
GIVEN = {"dict": (lambda array: {"x": array}, r"takes dense tensors\. .*Received: a dict")}
if not ON_TENSORFLOW:
    GIVEN["sparse"] = (sparse, r"takes dense tensors\. Pass a sparse .* as `.*dense.*Received: a ")
if BACKEND != "jax":
    GIVEN["ragged"] = (
        ragged,
        r"takes dense tensors\. Pass a \w+ tensor as `.*to_(padded_)?tensor\(.*as its mask\.",
    )


def not_built():
    """Layers, each with its inputs, of which each may be what is refused."""
    ids, x = np.ones((3, 4), "int32"), np.ones((3, 4, 8), "float32")
    for case in LAYERS if ON_TENSORFLOW else LAYERS[::3]:
        if case.layer is not ka.ScaledEmbedding:  # Keras's own takes ragged ids.
            yield case.make(), case.arrays()
    yield ka.Encoder([ka.TransformerBlock(8, 2)], ka.Embeddings(ka.ScaledEmbedding(9, 8))), [ids]
    yield ka.AttentionRNN(ka.AttentionCell(keras.layers.GRUCell(4), "additive")), [x, x]


@pytest.mark.parametrize("given", GIVEN)
def test_every_layer_says_what_to_pass_before_it_is_built(given):
    make, message = GIVEN[given]
    for layer, arrays in not_built():
        for at in range(1 if given == "dict" else len(arrays)):
            inputs = [make(x) if n == at else x for n, x in enumerate(arrays)]
            with pytest.raises(TypeError, match=message):
                layer(*inputs)
            assert not layer.built


class OfADict(ka.SelfAttention):
    """What a user's own class takes is its own."""

    def build(self, shapes):
        super().build(shapes["x"])

    def call(self, inputs):
        return super().call(inputs["x"])


def test_a_class_may_take_a_dict_and_keras_takes_products_for_sparse():
    assert OfADict(2, 4)({"x": random(2, 3, 8)}).shape == (2, 3, 8)
    assert ka.TransformerBlock(16, 2)(keras.Input((5, 8)) * 2.0).shape == (None, 5, 8)


@pytest.mark.skipif(not ON_TENSORFLOW, reason="Keras has these inputs on TensorFlow alone")
def test_symbols_of_ragged_inputs_and_what_keras_takes():
    import tensorflow as tf

    for layer, arrays in list(not_built())[::4]:
        if len(arrays) == 1:
            with pytest.raises(TypeError, match=r"Pass a ragged tensor as"):
                layer(keras.Input(arrays[0].shape[1:], ragged=True))
    layer, x = ka.TransformerBlock(16, 2), ragged(random(3, 4, 8))
    # As the message says.
    output = numpy(layer(x.to_tensor(), mask=tf.sequence_mask(x.row_lengths())))
    for row, found in zip(x, output, strict=True):
        np.testing.assert_allclose(found[: len(row)], numpy(layer(row[None]))[0], atol=1e-5)
    layer, x = ka.SelfAttention(2, 4), random(2, 3, 8)
    x[..., 1:5] = 0
    np.testing.assert_allclose(layer(tf.sparse.from_dense(x)), layer(x), atol=1e-6)
    output = ka.ScaledEmbedding(9, 8)(ragged(np.ones((3, 4), "int32")))
    assert output.shape.as_list() == [3, None, 8]
    assert list(output.row_lengths().numpy()) == list(LENGTHS)


# Parts


def built(case, **kwargs):
    layer = case.make(**kwargs)
    case.call(layer, case.arrays())
    return layer


def test_a_dtype_policy_that_is_set_later_is_that_of_the_parts():
    for case in LAYERS[::4]:
        expected, layer = built(case, dtype="mixed_bfloat16"), built(case)
        layer.dtype_policy = "mixed_bfloat16"
        both = ([of, *keras_private.sublayers(of)] for of in (layer, expected))
        for part, other in zip(*both, strict=True):
            assert part.dtype_policy.name == other.dtype_policy.name, (case, part)
        for variable, other in zip(layer.weights, expected.weights, strict=True):
            variable.assign(other)
        outputs = [outputs_of(case.call(one, case.arrays()))[0] for one in (layer, expected)]
        assert outputs[0].dtype == outputs[1].dtype
        np.testing.assert_array_equal(*map(numpy, outputs))


@pytest.mark.any_backend
def test_a_part_with_a_dtype_of_its_own_keeps_it():
    block = ka.TransformerBlock(16, 2, attention=ka.MultiHeadAttention(2, 4, dtype="float16"))
    block.build((None, 5, 8))
    block.dtype_policy = "mixed_bfloat16"
    assert block.feed_forward.compute_dtype == "bfloat16"
    assert block.attention.query_dense.compute_dtype == "float16"


@pytest.mark.any_backend
def test_what_build_makes_is_frozen_with_its_layer_and_missed_by_name():
    for case in LAYERS:
        layer, made = case.make(), case.make(trainable=False)
        case.call(made, case.symbols())
        assert not any(weight.trainable for weight in made.weights), case
        made.trainable = True
        assert bool(made.trainable_weights) == bool(made.get_weights()), case
        names = {name for name in dir(type(layer)) + list(vars(made)) if not name.startswith("_")}
        for name in names - set(dir(keras.Model)) - set(vars(layer)):
            kind = type(layer).__name__
            if not hasattr(layer, name):
                with pytest.raises(AttributeError, match=f"{kind} has no `{name}` yet.*Received"):
                    getattr(layer, name)
            if not hasattr(made, name):
                with pytest.raises(AttributeError, match=f"{kind} has no `{name}`, by its arg"):
                    getattr(made, name)
    assert not hasattr(ka.MultiHeadAttention(2, 4), "query_dense")
    with pytest.raises(AttributeError, match="never been called and thus has no defined input"):
        _ = ka.MultiHeadAttention(2, 4).input
    with pytest.raises(AttributeError, match="'RMSNorm' object has no attribute 'gama'"):
        _ = built(next(case for case in LAYERS if case.layer is ka.RMSNorm)).gama
