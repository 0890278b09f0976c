"""`check_masks`: the layers that drop masks are named, with those that would have used them."""

import inspect
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import check_masks
from tests import keras_masks

layers, ops = keras.layers, keras.ops

# Keras warns of its own of some of the layers that drop masks.
pytestmark = pytest.mark.filterwarnings("ignore:.*destroy the mask information")


def tokens(name=None):
    return keras.Input((None,), dtype="int32", name=name)


def words(ids, name="words"):
    return layers.Embedding(20, 8, mask_zero=True, name=name)(ids)


def pooling(x, name="pooling", **kwargs):
    return keras_attention.AttentionPooling(name=name)(x, **kwargs)


def found(model, **kwargs):
    """(layer, makers of the mask, layers reached) of each finding."""
    return [tuple(lost[:3]) for lost in check_masks(model, **kwargs)]


def through(function):
    """What is found in a model with `function` between words and pooling."""
    ids = tokens()
    return found(keras.Model(ids, pooling(function(words(ids)))))


LOST = [(("words",), ("pooling",))]


def test_the_finding_is_what_happens():
    ids = tokens()
    x = words(ids)
    outputs = [pooling(x, "kept"), pooling(ops.multiply(x, 2.0), "lost")]
    model = keras.Model(ids, outputs)
    assert [lost.reaches for lost in check_masks(model)] == [("lost",)]
    short, padded = (model(np.array([ids])) for ids in ([4, 7, 1], [4, 7, 1, 0, 0]))
    apart = [np.abs(ops.convert_to_numpy(a - b)).max() for a, b in zip(short, padded, strict=True)]
    assert apart[0] < 1e-6 < 1e-4 < apart[1]


def test_a_sentence_says_it():
    ids = tokens()
    x = words(ids) * 2.0
    x = keras_attention.SelfAttention(2, 4, name="attention")(x)
    (lost,) = check_masks(keras.Model(ids, pooling(x)))
    assert lost.message == (
        f'"{lost.layer}" (Multiply) drops the mask of "words": "attention", "pooling" read padding.'
    )


def used_up(ids):
    """Sentences of words, which are none themselves."""
    sentences = layers.TimeDistributed(layers.Dense(8))(layers.Embedding(20, 8)(ids))
    summed = layers.GlobalAveragePooling1D()(layers.Masking()(layers.Reshape((3, 32))(sentences)))
    return pooling(summed[:, None] * 2.0)


def passed_by_hand(ids):
    x = layers.Conv1D(8, 3, padding="same")(words(ids))
    real = ops.not_equal(ids, 0)
    attend = keras_attention.MultiHeadAttention(2, 4)
    return [
        pooling(x, mask=real),
        attend(x, x, value_mask=real, query_mask=real),
        attend(x, x, attention_mask=real[:, None]),
    ]


def of_this_package(ids):
    x = keras_attention.SinCosPositionEmbedding()(words(ids))
    return pooling(keras_attention.TransformerBlock(16, 2)(x))


NOTHING_LOST = {
    "layers of this package keep masks": of_this_package,
    "nobody would have used it": lambda ids: layers.Dense(3)(layers.Conv1D(4, 3)(words(ids))),
    "used up": used_up,
    "passed by hand": passed_by_hand,
    "a mean over features is no pooling": lambda ids: ops.mean(words(ids), axis=-1),
}


@pytest.mark.parametrize("name", NOTHING_LOST)
def test_nothing_is_lost(name):
    ids = keras.Input((3, 4) if name == "used up" else (None,), dtype="int32")
    assert found(keras.Model(ids, NOTHING_LOST[name](ids))) == []


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, v: keras_attention.MultiHeadAttention(2, 4, name="attention")(q, v),
        lambda q, v: keras_attention.Attention(name="attention")([q, v]),
        lambda q, v: layers.Attention(name="attention")([q, v]),
        lambda q, v: keras_attention.TransformerBlock(
            16, 2, causal=True, cross_attention=True, name="attention"
        )(q, v),
    ],
)
def test_each_input_of_an_attention_counts(attend):
    left, right = tokens("left"), tokens("right")
    query, value = words(left, "first"), words(right, "second")
    value = layers.Conv1D(8, 3, name="conv")(value)
    model = keras.Model([left, right], pooling(attend(query, value)))
    assert found(model) == [("conv", ("second",), ("attention",))]


def test_the_output_of_an_attention_has_the_mask_of_its_query_alone():
    ids = tokens()
    query = keras.Input((3, 8))
    value = layers.Conv1D(8, 3, name="conv")(words(ids))
    x = layers.Attention(name="attention")([query, value])
    model = keras.Model([query, ids], pooling(x))
    assert found(model) == [("conv", ("words",), ("attention",))]


def test_nested_models_are_entered():
    inner_ids = keras.Input((None, 8))
    inner = keras.Model(inner_ids, ops.relu(layers.Dense(8)(inner_ids)), name="inner")
    middle = keras.Sequential([layers.Dense(8), inner], name="middle")
    (lost,) = through(middle)
    assert lost[0].startswith("middle/inner/relu") and lost[1:] == LOST[0]


def test_a_layer_inside_a_nested_model_is_reached():
    x = inputs = keras.Input((None, 8))
    inner = keras.Model(inputs, pooling(layers.Dense(8)(x)), name="inner")
    ids = tokens()
    model = keras.Model(ids, inner(layers.Conv1D(8, 3, name="conv")(words(ids))))
    assert found(model) == [("conv", ("words",), ("inner/pooling",))]
    assert found(keras.Model(ids, inner(words(ids)))) == []


def test_a_shared_layer_is_found_once():
    conv = layers.Conv1D(8, 3, name="conv")
    ids = [tokens("left"), tokens("right")]
    outputs = [pooling(conv(words(x, f"words_{x.name}")), f"pooling_{x.name}") for x in ids]
    ((layer, makers, reaches),) = found(keras.Model(ids, outputs))
    assert layer == "conv"
    assert sorted(makers) == ["words_left", "words_right"]
    assert sorted(reaches) == ["pooling_left", "pooling_right"]


def test_the_first_of_several_drops_is_the_one():
    assert through(
        lambda x: layers.Conv1D(8, 3, name="second")(layers.Conv1D(8, 3, name="first")(x))
    ) == [("first", *LOST[0])]


@pytest.mark.parametrize("other", ["masked", "plain"])
def test_a_concatenation_with_what_has_no_mask_makes_it_true_everywhere(other):
    ids = tokens()
    x = words(ids)
    second = layers.ReLU()(x) if other == "masked" else layers.Embedding(10, 3)(ids)
    joined = layers.Concatenate(name="joined")([x, second])
    model = keras.Model(ids, pooling(layers.Dense(8)(joined)))
    lost = check_masks(model)
    assert [finding[:3] for finding in lost] == [("joined", *LOST[0])] * (other == "plain")
    assert all("makes True everywhere" in finding.message for finding in lost)
    attended, longer = model(np.array([[3, 4, 0, 0]])), model(np.array([[3, 4, 0, 0, 0]]))
    apart = np.abs(ops.convert_to_numpy(attended - longer)).max()
    assert (apart > 1e-6) == bool(lost)


def test_a_layer_that_erases_the_mask_of_its_input_is_named():
    ids = tokens()
    x = words(ids)
    outputs = [layers.MultiHeadAttention(2, 4, name=name)(x, x) for name in ("one", "two")]
    (lost,) = check_masks(keras.Model(ids, outputs))
    assert {lost.layer, *lost.reaches} == {"one", "two"} and len(lost.reaches) == 1
    assert lost.mask_of == ("words",) and "erases from its input" in lost.message


def test_a_pooling_that_cannot_use_masks_reaches_itself():
    ids = tokens()
    model = keras.Model(ids, ops.max(words(ids), axis=(-2, 0)))
    ((layer, makers, reaches),) = found(model)
    assert makers == ("words",) and reaches == (layer,)


def test_masking_and_recurrent_layers():
    stack = [layers.Masking(name="masking"), layers.Conv1D(4, 3, name="conv")]
    model = keras.Sequential([keras.Input((None, 3)), *stack, layers.LSTM(4, name="lstm")])
    assert found(model) == [("conv", ("masking",), ("lstm",))]


def test_other_lengths():
    ids = tokens()
    x = keras_attention.LearnedPositionEmbedding(10)(words(ids)) * 2.0
    model = keras.Model(ids, pooling(x))
    ((_, makers, reaches),) = found(model, length=10)
    assert (makers, reaches) == LOST[0]


def test_the_model_stays_as_it_is():
    ids = tokens()
    conv = layers.Conv1D(8, 3)
    model = keras.Model(ids, pooling(layers.Dropout(0.5, seed=1)(conv(words(ids)))))
    variables = [np.array(variable) for variable in model.variables]
    config = model.get_config()
    check_masks(model)
    assert conv.output.shape == (None, None, 8)  # Keras refuses where it was called twice.
    assert model.get_config() == config
    for variable, before in zip(model.variables, variables, strict=True):
        np.testing.assert_array_equal(variable, before)


of_one_keras = pytest.mark.skipif(
    not keras.__version__.startswith("3.15"), reason="the table is of Keras 3.15"
)


@of_one_keras
@pytest.mark.ci
@pytest.mark.any_backend
def test_the_table_of_keras_layers_is_what_they_do_and_what_is_found():
    outcomes = keras_masks.outcomes()
    page = Path(__file__).parent.parent / "docs" / "masks.md"
    assert keras_masks.table(outcomes) in page.read_text(encoding="utf-8")
    for name, call in keras_masks.calls().items():
        x = keras.Input((keras_masks.T, keras_masks.D), batch_size=keras_masks.B)
        if outcomes[name] == keras_masks.ERROR:
            continue
        y = call(layers.Masking(name="words")(x))
        if len(y.shape) == 4:
            y = layers.Reshape((keras_masks.T, -1))(y)
        lost = found(keras.Model(x, pooling(y) if len(y.shape) == 3 else y))
        if outcomes[name] in (keras_masks.DROPPED, keras_masks.FILLED):
            assert {finding[1:] for finding in lost} == set(LOST), name
        elif outcomes[name] == keras_masks.POOLED and name != "Flatten":
            ((layer, makers, reaches),) = lost
            assert makers == ("words",) and reaches == (layer,), name
        else:
            assert lost == [], name


@of_one_keras
def test_every_layer_of_keras_is_in_the_table_or_takes_no_sequence():
    names = {
        thing.__name__
        for thing in vars(layers).values()
        if inspect.isclass(thing) and issubclass(thing, keras.Layer)
        if not thing.__name__.startswith("Random")
        if not thing.__name__.endswith(("2D", "3D", "2DTranspose", "3DTranspose"))
    }
    names = {"GroupQueryAttention" if name == "GroupedQueryAttention" else name for name in names}
    run = [
        *keras_masks.one_input(),
        *keras_masks.RECURRENT,
        *keras_masks.MERGING,
        *keras_masks.ATTENTION,
    ]
    assert sorted([*run, *keras_masks.OTHERS.split()]) == sorted(names)
