"""What is set on the parts of a layer: frozen, dtype, the state of seeds; in saved files too."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.core import keras_private
from tests.arrays import numpy
from tests.layers.conformance_cases import CASES

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
# Of each layer one case.
LAYERS = list({case.layer: case for case in CASES}.values())


ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


def built(case, **kwargs):
    layer = case.make(**kwargs)
    case.call(layer, case.arrays())
    return layer


def weights(layers):
    """How many weights of them a model around them would train."""
    return sum(v.trainable for layer in layers for v in layer.weights)


def again(layer):
    """The layer as a model that is loaded makes it."""
    copy = type(layer).from_config(layer.get_config())
    copy.build_from_config(layer.get_build_config())
    return copy


@pytest.mark.any_backend
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_what_is_frozen_is_frozen_in_a_layer_that_is_loaded(case):
    layer = built(case, trainable=False)
    assert weights([layer, again(layer)]) == 0
    layer.trainable = True
    assert weights([again(layer)]) == weights([layer])
    parts = [part for part in keras_private.sublayers(layer) if part.trainable_weights]
    for chosen in filter(None, (parts[::3], parts[1::3], parts[2::3])):
        # On TensorFlow, True that was True before sets nothing.
        layer.trainable = False
        layer.trainable = True
        before = [v.trainable for v in layer.weights]
        for part in chosen:
            part.trainable = False
        expected = [v.trainable for v in layer.weights]
        assert expected != before, chosen
        assert [v.trainable for v in again(layer).weights] == expected, chosen
    layer.trainable = False
    assert weights([layer]) == 0


@pytest.mark.parametrize("nested", [False, True])
def test_frozen_parts_of_a_model_in_a_file(tmp_path, nested):
    block = ka.TransformerBlock(16, 2)
    stack = ka.Encoder([block], final_norm=keras.layers.LayerNormalization())
    x = keras.Input((5, 8))
    model = keras.Model(x, (stack if nested else block)(x))
    block.attention.query_dense.trainable = False
    block.feed_forward.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [v.trainable for v in loaded.weights] == [v.trainable for v in model.weights]
    assert len(loaded.trainable_weights) == len(model.weights) - 2 - 4


@pytest.mark.parametrize("case", LAYERS[::4], ids=str)
def test_a_dtype_policy_that_is_set_later_is_that_of_the_parts(case):
    expected = built(case, dtype="mixed_bfloat16")
    layer = built(case)
    layer.dtype_policy = "mixed_bfloat16"
    for part, other in zip(
        [layer, *keras_private.sublayers(layer)],
        [expected, *keras_private.sublayers(expected)],
        strict=True,
    ):
        assert part.dtype_policy.name == other.dtype_policy.name, (case, part)
    for variable, other in zip(layer.weights, expected.weights, strict=True):
        variable.assign(other)
    outputs = [keras.tree.flatten(case.call(one, case.arrays()))[0] for one in (layer, expected)]
    assert outputs[0].dtype == outputs[1].dtype
    np.testing.assert_array_equal(*(numpy(keras.ops.cast(o, "float32")) for o in outputs))


@pytest.mark.any_backend
def test_a_part_with_a_dtype_of_its_own_keeps_it():
    block = ka.TransformerBlock(16, 2, attention=ka.MultiHeadAttention(2, 4, dtype="float16"))
    block(X)
    block.dtype_policy = "mixed_bfloat16"
    assert block.feed_forward.compute_dtype == "bfloat16"
    assert block.attention.query_dense.compute_dtype == "float16"


def states(model):
    return [numpy(v).tolist() for v in model.variables if v.name == "seed_generator_state"]


# Without a seed Keras draws from PyTorch's own generator there.
@pytest.mark.parametrize("seed", [7, None] if ON_TENSORFLOW else [7])
def test_training_that_is_resumed_draws_what_is_drawn_without_a_stop(tmp_path, seed):
    def layers(x):
        x = ka.MultiHeadAttention(2, 4, dropout=0.5, seed=seed)(x)
        x = ka.FeedForward(8, dropout=0.3, seed=seed)(x)
        return ka.SelfAttention(2, 4, normalization="hard", seed=seed)(x)

    x = keras.Input((5, 8))
    model = keras.Model(x, layers(x))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.train_on_batch(X, X)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert states(loaded) == states(model)
    assert all(drawn for _, drawn in states(model))
    losses = [[float(m.train_on_batch(X, X)) for _ in range(2)] for m in (model, loaded)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_a_copy_of_a_layer_begins_with_its_seed(tmp_path):
    x = keras.Input((5, 8))
    model = keras.Model(x, ka.MultiHeadAttention(2, 4, dropout=0.5, seed=7)(x))
    model(X, training=True)
    assert states(model) == [[7, 1]]
    assert states(keras.models.clone_model(model)) == [[7, 0]]
    # As do files of weights alone, which Keras's own layer loads too.
    model.save_weights(tmp_path / "model.weights.h5")
    copy = keras.models.clone_model(model)
    copy.load_weights(tmp_path / "model.weights.h5")
    assert states(copy) == [[7, 0]]


@pytest.mark.any_backend
def test_what_build_makes_is_missed_by_name():
    for case in LAYERS:
        layer, made = case.make(), built(case)
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
