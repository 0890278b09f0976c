"""What other attention layers get wrong of masks, and these must not.

Each was seen in Keras's layers, in KerasHub's, or reported against them.
"""

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import (
    Attention,
    AttentionPooling,
    MultiHeadAttention,
    SinCosPositionEmbedding,
    TransformerBlock,
)
from tests.arrays import close, random
from tests.gradients import gradients
from tests.layers.small_layers import (
    FLOATS,
    IDS,
    B,
    D,
    S,
    T,
    built,
    numpy,
    ops,
    randomize,
)

# 1. Masks of the inputs erased in place


@pytest.mark.parametrize("way", ["eager", "functional", "predict"])
@pytest.mark.parametrize("make", [lambda: MultiHeadAttention(2, 4), lambda: Attention(2, 4)])
def test_second_attention_to_one_memory_ignores_its_padding(make, way):
    """In Keras, the second layer that attends to one masked tensor attends to its padding."""
    embedding = keras.layers.Embedding(10, D, mask_zero=True)
    first, second = make(), make()

    def both(target, ids):
        memory = embedding(ids)
        x = first(target, memory)
        return second(x, memory, return_attention_scores=True)[1]

    target = random(B, T, D)
    if way == "eager":
        scores = both(ops.convert_to_tensor(target), ops.convert_to_tensor(IDS))
    else:
        inputs = [keras.Input((None, D)), keras.Input((None,), dtype="int32")]
        model = keras.Model(inputs, both(*inputs))
        arrays = [target, IDS]
        scores = model.predict(arrays, verbose=0) if way == "predict" else model(arrays)
    scores = np.moveaxis(numpy(scores), -1, 1)
    assert (scores[IDS == 0] == 0).all()
    assert (scores[IDS != 0] > 0).all()


@pytest.mark.parametrize("normalize_first", [False, True])
def test_a_stack_gives_one_text_one_answer_however_it_is_padded(normalize_first):
    """A post-norm stack of two Keras attentions answers differently to 4 and to 20 positions."""
    layers = [
        keras.layers.Embedding(10, D, mask_zero=True),
        SinCosPositionEmbedding(),
        TransformerBlock(16, 2, normalize_first=normalize_first),
        TransformerBlock(16, 2, normalize_first=normalize_first),
        AttentionPooling(),
    ]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])
    randomize(model)
    short = np.array([[5, 3, 7, 0], [4, 1, 2, 6]])
    long = np.pad(short, ((0, 0), (0, 16)))
    answers = [model.predict(ids, verbose=0) for ids in (short, long)]
    assert np.abs(answers[0]).max() > 1e-2
    close(*answers)

    x = ops.convert_to_tensor(long)
    for layer in layers:
        x = layer(x)
    close(numpy(x), answers[0])


# 2. Fully masked rows


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("by", ["attention_mask", "query_mask", "value_mask"])
@pytest.mark.parametrize(
    "make",
    [
        lambda **kwargs: MultiHeadAttention(2, 4, **kwargs),
        lambda **kwargs: Attention(2, 4, use_bias=True, **kwargs),
        lambda **kwargs: Attention(**kwargs),
    ],
    ids=["MultiHeadAttention", "Attention", "Attention without projections"],
)
def test_a_query_without_keys_gets_zeros_on_every_path(make, by, dtype):
    """In Keras such a query gets the mean of all values, zero, the bias or NaN, by the path."""
    layer = built(make(dtype=dtype), (B, T, D), (B, S, D))
    query, value = (ops.cast(random(B, n, D, seed=n), dtype) for n in (T, S))
    kept = np.ones((B, T), bool)
    kept[1] = False
    call = {
        "attention_mask": {"attention_mask": np.broadcast_to(kept[..., None], (B, T, S))},
        "query_mask": {"query_mask": kept},
        "value_mask": {"value_mask": np.repeat(kept[:, :1], S, axis=1)},
    }[by]
    output, scores = layer(query, value, return_attention_scores=True, **call)
    alone = layer(query, value, **call)
    assert (numpy(output)[1] == 0).all() and (numpy(alone)[1] == 0).all()
    assert (numpy(scores)[1] == 0).all()
    free, free_scores = layer(query, value, return_attention_scores=True)
    tolerance = 1e-6 if dtype == "float32" else 0.03
    close(numpy(output)[0], numpy(free)[0], tolerance)
    close(numpy(alone)[0], numpy(free)[0], tolerance)
    close(numpy(scores)[0], numpy(free_scores)[0], tolerance)

    if by == "attention_mask":  # The others become one before anything is computed with them.

        def loss(query, value):
            output, scores = layer(query, value, return_attention_scores=True, **call)
            return [output * output, output, scores * scores]

        found = gradients(loss, [query, value])
        for gradient in found:
            assert np.isfinite(gradient).all()
            assert (gradient[1] == 0).all()
        assert np.abs(found[1][0]).max() > 1e-3


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("pattern", [None, "causal"])
def test_attend_gives_zeros_to_a_query_without_keys(dtype, pattern):
    """As above, for one query among others, some heads only, and with a bias."""
    arrays = [ops.cast(random(B, n, 2, 4, seed=i), dtype) for i, n in enumerate((T, S, S))]
    mask = np.ones((B, 2, T, S), bool)
    mask[0, 1, 2] = False
    mask[1, 0, 3, :4] = False  # Under "causal", these four are all that the last query has.
    bias = random(1, 2, T, S)
    dead = ~(mask & np.tril(np.ones((T, S), bool)) if pattern else mask).any(axis=-1)
    assert dead.sum() == (2 if pattern else 1)

    def loss(*arrays):
        return keras_attention.ops.attend(
            *arrays, mask=mask, bias=bias, pattern=pattern, return_attention_scores=True
        )

    output, scores = map(numpy, loss(*arrays))
    assert (output[np.moveaxis(dead, 1, 2)] == 0).all()
    assert (scores[dead] == 0).all()
    close(scores.sum(axis=-1)[~dead], 1, 1e-5 if dtype == "float32" else 0.01)
    found = gradients(lambda *x: [y * y for y in loss(*x)], arrays)
    for gradient in found:
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max() > 1e-3
    assert (found[0][np.moveaxis(dead, 1, 2)] == 0).all()


# 6. Bias, and masks that are meant to be added


ADDED = np.where(np.tril(np.ones((T, T), bool)), 0.0, -1e9).astype("float32")


@pytest.mark.parametrize(
    "call",
    [
        lambda x: MultiHeadAttention(2, 4)(x, x, attention_mask=ADDED),
        lambda x: Attention()(x, attention_mask=ops.convert_to_tensor(ADDED)),
        lambda x: TransformerBlock(16, 2)(x, attention_mask=ADDED),
        lambda x: keras_attention.ops.attend(*([x[:, :, None]] * 3), mask=ADDED),
        lambda x: MultiHeadAttention(2, 4)(x, x, attention_mask=np.where(ADDED, -np.inf, 0)),
        lambda x: MultiHeadAttention(2, 4)(x, x, value_mask=np.full((B, T), -1e9)),
    ],
)
def test_an_added_mask_is_an_error_that_says_what_to_pass(call):
    """Keras casts a mask of 0 and -1e9 to boolean, which inverts it."""
    with pytest.raises(ValueError, match=r"must be boolean.*pass `mask == 0`"):
        call(ops.convert_to_tensor(random(B, T, D)))


def test_a_float_mask_of_unknown_values_is_an_error_before_the_model_runs():
    """As above, for a symbolic mask: the dtype alone says that something is wrong."""
    x, mask = keras.Input((T, D)), keras.Input((T, T))
    for layer in (MultiHeadAttention(2, 4), Attention(), TransformerBlock(16, 2)):
        with pytest.raises(TypeError, match=r"must be boolean.*dtype='bool'.*mask == 0"):
            layer(x, attention_mask=mask)


class AddsItsMask(keras.Model):
    """A model as people write them: the mask is made inside, to be added."""

    def __init__(self):
        super().__init__()
        self.attention = MultiHeadAttention(2, 4)

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, x):
        padding = ops.cast(ops.all(ops.equal(x, 0), axis=-1), "float32")
        return self.attention(x, x, attention_mask=padding[:, None, :] * -1e9)


def test_an_added_mask_is_an_error_in_fit():
    """As above, where the layer is traced."""
    x = random(B, T, D)
    x[:, -1] = 0
    model = AddsItsMask()
    model.compile(optimizer="sgd", loss="mse")
    with pytest.raises((TypeError, ValueError, RuntimeError), match="must be boolean"):
        model.fit(x, x, verbose=0)
