"""`check_masks`: the layers that drop masks are named, with those that would have used them."""

import inspect
import re
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


def tokens():
    return keras.Input((None,), dtype="int32")


def words(ids, name="words"):
    return layers.Embedding(20, 8, mask_zero=True, name=name)(ids)


def pooling(x, name="pooling", **kwargs):
    return keras_attention.AttentionPooling(name=name)(x, **kwargs)


def found(model, **kwargs):
    """The findings as "layer: makers of the mask > layers reached", without numbers of Keras's."""
    texts = (
        f"{lost.layer}: {' '.join(sorted(lost.mask_of))} > {' '.join(sorted(lost.reaches))}"
        for lost in check_masks(model, **kwargs)
    )
    return [re.sub(r"_\d+\b", "", text) for text in texts]


def conv(x, name="conv"):
    return layers.Conv1D(8, 3, padding="same", name=name)(x)


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
    x = keras_attention.SelfAttention(2, 4, name="attention")(words(ids) * 2.0)
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


def attended(attend):
    """Queries with a mask, and values that have lost theirs."""
    return lambda ids: pooling(attend(words(ids, "first"), conv(words(ids, "second"))))


def of_plain_queries(ids):
    """The output of an attention has the mask of its query alone."""
    query = layers.Embedding(20, 8)(ids)
    return pooling(layers.Attention(name="attention")([query, conv(words(ids))]))


def nested(ids):
    inputs = keras.Input((None, 8))
    inner = keras.Model(inputs, layers.Dense(8)(conv(inputs)), name="inner")
    return pooling(keras.Sequential([layers.Dense(8), inner], name="middle")(words(ids)))


def pooled_inside(function):
    """A layer inside a nested model."""
    inputs = keras.Input((None, 8))
    inner = keras.Model(inputs, pooling(layers.Dense(8)(inputs)), name="inner")
    return lambda ids: inner(function(words(ids)))


def shared(ids):
    layer = layers.Conv1D(8, 3, name="conv")
    return [pooling(layer(words(ids, name)), f"of_{name}") for name in ("one", "two")]


def recurrent(ids):
    x = layers.Masking(name="masking")(layers.Embedding(20, 8)(ids))
    return layers.LSTM(4, name="lstm")(conv(x))


SECOND = "conv: second > attention"
BLOCK = {"causal": True, "cross_attention": True, "name": "attention"}
# Models from ids on, and what is found in them.
MODELS = {
    "layers of this package keep masks": (of_this_package, ""),
    "nobody would have used it": (lambda ids: layers.Dense(3)(conv(words(ids))), ""),
    "used up": (used_up, ""),
    "passed by hand": (passed_by_hand, ""),
    "a mean over features is no pooling": (lambda ids: ops.mean(words(ids), axis=-1), ""),
    "multi-head": (attended(keras_attention.MultiHeadAttention(2, 4, name="attention")), SECOND),
    "a list": (attended(lambda *x: keras_attention.Attention(name="attention")(list(x))), SECOND),
    "Keras's": (attended(lambda *x: layers.Attention(name="attention")(list(x))), SECOND),
    "a block": (attended(keras_attention.TransformerBlock(16, 2, **BLOCK)), SECOND),
    "plain queries": (of_plain_queries, "conv: words > attention"),
    "nested": (nested, "middle/inner/conv: words > pooling"),
    "pooled inside": (pooled_inside(conv), "conv: words > inner/pooling"),
    "kept inside": (pooled_inside(lambda x: x), ""),
    "a shared layer": (shared, "conv: one two > of_one of_two"),
    "two": (lambda ids: pooling(conv(conv(words(ids), "first"))), "first: words > pooling"),
    "no masks": (lambda ids: ops.max(words(ids), axis=(-2, 0)), "max: words > max"),
    "recurrent": (recurrent, "conv: masking > lstm"),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_lost(name):
    function, expected = MODELS[name]
    ids = keras.Input((3, 4) if name == "used up" else (None,), dtype="int32")
    assert found(keras.Model(ids, function(ids))) == [expected] * bool(expected)


@pytest.mark.parametrize("other", ["masked", "plain"])
def test_a_concatenation_with_what_has_no_mask_makes_it_true_everywhere(other):
    ids = tokens()
    x = words(ids)
    second = layers.ReLU()(x) if other == "masked" else layers.Embedding(10, 3)(ids)
    joined = layers.Concatenate(name="joined")([x, second])
    model = keras.Model(ids, pooling(layers.Dense(8)(joined)))
    lost = check_masks(model)
    assert found(model) == ["joined: words > pooling"] * (other == "plain")
    assert all("makes True everywhere" in each.message for each in lost)
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


def test_other_lengths():
    ids = tokens()
    x = keras_attention.LearnedPositionEmbedding(10)(words(ids)) * 2.0
    model = keras.Model(ids, pooling(x))
    assert found(model, length=10) == ["multiply: words > pooling"]


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
            assert {text.partition(": ")[2] for text in lost} == {"words > pooling"}, name
        elif outcomes[name] == keras_masks.POOLED and name != "Flatten":
            assert re.fullmatch(r"(.*): words > \1", *lost), name
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
