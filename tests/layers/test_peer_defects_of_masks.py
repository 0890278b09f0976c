"""What other attention layers get wrong of masks, and these must not.

Each was seen in Keras's layers, in KerasHub's, or reported against them.
"""

import keras
import numpy as np
import pytest
from keras.src import backend

import keras_attention
from keras_attention import (
    Attention,
    AttentionPooling,
    FeedForward,
    LearnedPositionEmbedding,
    MultiHeadAttention,
    SelfAttention,
    SinCosPositionEmbedding,
    TransformerBlock,
)
from tests.arrays import random
from tests.gradients import gradients
from tests.layers.small_layers import (
    FLOATS,
    IDS,
    B,
    D,
    S,
    T,
    built,
    close,
    embedded,
    expected_attention,
    numpy,
    ops,
    randomize,
)

# 1. Masks of the inputs erased in place

READERS = {
    "MultiHeadAttention": lambda x: MultiHeadAttention(2, 4)(x),
    "MultiHeadAttention, cross": lambda x: MultiHeadAttention(2, 4)(x[:, :3], x),
    "MultiHeadAttention, three": lambda x: MultiHeadAttention(2, 4)(x, x, x),
    "Attention": lambda x: Attention()([x, x]),
    "Attention, projected": lambda x: Attention(2, 4)([x, x, x]),
    "SelfAttention": lambda x: SelfAttention(2, 4)(x),
    "TransformerBlock": lambda x: TransformerBlock(16, 2)(x),
    "AttentionPooling": lambda x: AttentionPooling()(x),
    "FeedForward": lambda x: FeedForward(16)(x),
    "SinCosPositionEmbedding": lambda x: SinCosPositionEmbedding()(x),
    "LearnedPositionEmbedding": lambda x: LearnedPositionEmbedding(9)(x),
}


@pytest.mark.parametrize("name", READERS)
def test_masks_of_inputs_are_the_same_objects_after_a_call(name):
    """Keras's MultiHeadAttention sets the masks of its inputs to None."""
    x = embedded()
    mask = backend.get_keras_mask(x)
    assert mask is not None
    READERS[name](x)
    assert backend.get_keras_mask(x) is mask
    np.testing.assert_array_equal(ops.convert_to_numpy(mask), IDS != 0)

    symbolic = keras.layers.Embedding(10, D, mask_zero=True)(keras.Input((6,), dtype="int32"))
    mask = backend.get_keras_mask(symbolic)
    assert mask is not None
    READERS[name](symbolic)
    assert backend.get_keras_mask(symbolic) is mask


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


@pytest.mark.parametrize("shape", [(B, 2, T, S), (1, 2, T, S), (T, S), (B, 1, 1, S)])
def test_a_bias_is_added_to_the_scores(shape):
    """Keras's layer takes no bias: no ALiBi, no relative positions."""
    query, key, value = (random(B, n, 2, 4, seed=i) for i, n in enumerate((T, S, S)))
    bias = random(*shape, seed=9) * 3
    mask = np.arange(S) != 2
    output, scores = keras_attention.ops.attend(
        query, key, value, mask=mask[None], bias=bias, return_attention_scores=True
    )
    expected, expected_scores = expected_attention(query, key, value, mask, bias)
    close(numpy(output), expected)
    close(numpy(scores), expected_scores)
    assert np.abs(numpy(keras_attention.ops.attend(query, key, value)) - expected).max() > 0.1


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


# 8. Masks that are ignored

QUERY_MASK = np.array([[True, True, False, True], [False, True, True, True]])
VALUE_MASK = np.array([[True] * 4 + [False] * 2, [False, True] * 3])
KEY_MASK = np.array([[False] + [True] * 5, [True] * 4 + [False, True]])


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("names", ["query", "value", "key", "query value", "query value key"])
@pytest.mark.parametrize("make", [lambda: MultiHeadAttention(2, 4), lambda: Attention()])
def test_explicit_masks_count_alone_and_with_the_carried_ones(make, names, implicit):
    """Keras ignores an explicit `query_mask`."""
    passed = {"query": QUERY_MASK, "value": VALUE_MASK, "key": KEY_MASK}
    passed = {name: passed[name] for name in names.split()}
    carried = {}
    tensors = {n: random(B, m, D, seed=m + len(n)) for n, m in zip(
        ("query", "value", "key"), (T, S, S), strict=True)}  # fmt: skip
    if implicit:
        ids = {"query": IDS[:, 1:5], "value": IDS, "key": IDS[:, ::-1].copy()}
        carried = {name: array != 0 for name, array in ids.items()}
        tensors = {name: embedded(array) for name, array in ids.items()}
    masks = [
        passed.get(name, True) & np.broadcast_to(carried.get(name, True), (B, n))
        for name, n in (("query", T), ("value", S), ("key", S))
    ]
    allowed = masks[0][:, :, None] & (masks[1] & masks[2])[:, None, :]
    explicit = {f"{name}_mask": mask for name, mask in passed.items()}
    output, scores = make()(**tensors, return_attention_scores=True, **explicit)
    scores = numpy(scores)
    np.testing.assert_array_equal(scores > 0, np.broadcast_to(allowed[:, None], scores.shape))
    close(scores.sum(axis=-1), np.broadcast_to(allowed.any(axis=-1)[:, None], scores.shape[:3]))
    if "query" in passed or implicit:
        np.testing.assert_array_equal(
            ops.convert_to_numpy(backend.get_keras_mask(output)), masks[0]
        )
    else:
        assert backend.get_keras_mask(output) is None


@pytest.mark.parametrize("make", [lambda: Attention(), lambda: Attention(2, 4)])
@pytest.mark.parametrize("way", ["eager", "predict"])
def test_the_third_mask_of_a_list_counts(make, way):
    """Keras's Attention reads the masks of query and value, and ignores the key's."""
    ids = [IDS[:, 1:5], IDS, IDS[:, ::-1].copy()]
    layer = make()
    if way == "eager":
        scores = layer([embedded(x) for x in ids], return_attention_scores=True)[1]
    else:
        inputs = [keras.Input((None,), dtype="int32") for _ in ids]
        embedding = keras.layers.Embedding(10, D, mask_zero=True)
        scores = layer([embedding(x) for x in inputs], return_attention_scores=True)[1]
        scores = keras.Model(inputs, scores).predict(ids, verbose=0)
    allowed = (ids[0] != 0)[:, :, None] & ((ids[1] != 0) & (ids[2] != 0))[:, None]
    assert allowed.any() and not allowed.all(axis=(1, 2)).any()
    np.testing.assert_array_equal(
        numpy(scores) > 0, np.broadcast_to(allowed[:, None], scores.shape)
    )


@pytest.mark.parametrize("make", [lambda: TransformerBlock(16, 2), lambda: AttentionPooling()])
def test_an_explicit_mask_counts_with_the_carried_one(make):
    """As above, for layers of one input."""
    layer, mask = make(), np.array([[False] + [True] * 5, [True] * 6])
    _, scores = layer(embedded(), mask=mask, return_attention_scores=True)
    seen = (numpy(scores) > 0).any(axis=(1, 2))
    np.testing.assert_array_equal(seen, mask & (IDS != 0))
