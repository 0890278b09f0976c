"""`Attention` and `SelfAttention`: the ways to call them, and what masks mean."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.sequences import masks, sequence
from tests import definition
from tests.arrays import built, close, numpy, random

B, T, S, D, H, K = 3, 5, 7, 8, 2, 4


X, VALUE, KEY = random(B, T, D), random(B, S, D, seed=1), random(B, S, 6, seed=2)


def made(cls=ka.Attention, inputs=(X, VALUE, KEY), **kwargs):
    """A layer with heads and random weights, biases included."""
    layer = cls(**{"num_heads": H, "key_dim": K, "use_bias": True, **kwargs})
    return built(layer, *(x.shape for x in inputs))


# Ways to call it


def test_lists_and_arguments_say_the_same():
    layer = made()
    expected = numpy(layer(X, VALUE, KEY))
    for inputs in (([X, VALUE, KEY],), ((X, VALUE, KEY),)):
        np.testing.assert_array_equal(numpy(layer(*inputs)), expected)
    np.testing.assert_array_equal(numpy(layer(query=X, key=KEY, value=VALUE)), expected)


def test_key_defaults_to_value_and_value_to_query():
    layer = made(inputs=(X, VALUE))
    expected = numpy(layer(X, VALUE, VALUE))
    for inputs in ((X, VALUE), ([X, VALUE],)):
        np.testing.assert_array_equal(numpy(layer(*inputs)), expected)
    np.testing.assert_array_equal(numpy(layer(X)), numpy(layer(X, X, X)))
    assert np.abs(numpy(layer(X)) - expected).max() > 0.1


# Masks

KEPT = np.arange(S) < np.array([[7], [4], [2]])
LATE = np.arange(S) >= np.array([[2], [1], [0]])
REAL = np.arange(T) < np.array([[5], [3], [2]])
ALLOWED = np.random.default_rng(5).random((B, T, S)) < 0.6
ALLOWED[..., 1] = True
# Name: (masks carried by query, value and key; call arguments; the mask that these mean).
MASKED = {
    "query, implicit": ({"query": REAL}, {}, REAL[:, None, :, None]),
    "query, explicit": ({}, {"query_mask": REAL}, REAL[:, None, :, None]),
    "value, implicit": ({"value": KEPT}, {}, KEPT[:, None, None]),
    "value, explicit": ({}, {"value_mask": KEPT}, KEPT[:, None, None]),
    "key, implicit": ({"key": KEPT}, {}, KEPT[:, None, None]),
    "key, explicit": ({}, {"key_mask": KEPT}, KEPT[:, None, None]),
    "value, both": ({"value": KEPT}, {"value_mask": LATE}, (KEPT & LATE)[:, None, None]),
    "value and key": ({"value": KEPT}, {"key_mask": LATE}, (KEPT & LATE)[:, None, None]),
    "attention": ({}, {"attention_mask": ALLOWED}, ALLOWED[:, None]),
    "attention (T, S)": ({}, {"attention_mask": ALLOWED[0]}, ALLOWED[0]),
    "attention of heads": (
        {},
        {"attention_mask": np.stack([ALLOWED, ALLOWED[:, ::-1]], axis=1)},
        np.stack([ALLOWED, ALLOWED[:, ::-1]], axis=1),
    ),
    "causal": ({}, {"use_causal_mask": True}, np.tri(T, S, dtype=bool)),
    "all": (
        {"query": REAL, "value": KEPT},
        {"key_mask": LATE, "attention_mask": ALLOWED, "use_causal_mask": True},
        REAL[:, None, :, None]
        & (KEPT & LATE)[:, None, None]
        & ALLOWED[:, None]
        & np.tri(T, S, dtype=bool),
    ),
}


def carrying(array, mask):
    """A tensor of `array` that carries `mask`, or none."""
    tensor = keras.ops.convert_to_tensor(array)
    return tensor if mask is None else masks.carry(tensor, keras.ops.convert_to_tensor(mask))


@pytest.mark.parametrize("kind", MASKED)
def test_every_mask_means_what_it_says(kind):
    carried, call, mask = MASKED[kind]
    layer = made()
    inputs = [
        carrying(array, carried.get(name))
        for name, array in (("query", X), ("value", VALUE), ("key", KEY))
    ]
    # As a list, every other.
    inputs = [inputs] if list(MASKED).index(kind) % 2 else inputs
    output, scores = layer(*inputs, return_attention_scores=True, **call)
    # As the mask of pairs that they mean together: what that means, tests/fuzz says.
    pairs = np.broadcast_to(mask, scores.shape)
    expected = layer(X, VALUE, KEY, attention_mask=pairs, return_attention_scores=True)
    close(output, expected[0])
    close(scores, expected[1])
    np.testing.assert_array_equal(numpy(scores)[~np.broadcast_to(mask, scores.shape)], 0.0)
    # The output carries the query's mask, from wherever it came.
    query_mask = carried.get("query", call.get("query_mask"))
    found = masks.implicit(output)
    assert (found is None) == (query_mask is None)
    if found is not None:
        np.testing.assert_array_equal(numpy(found), query_mask)


def test_a_model_has_no_operation_that_computes_a_mask(tmp_path):
    """Two of one name, of a file and of what Keras fills in, are a model that does not load."""
    ids = keras.Input((None,), dtype="int32")
    x = ka.SelfAttention(H, K)(keras.layers.Embedding(9, D, mask_zero=True)(ids))
    model = keras.Model(ids, [x, ka.TransformerBlock(D, H)(x)])
    names = [type(operation).__name__ for operation in model.operations]
    assert names.count("NotEqual") <= 1  # The block's; Keras 3.16 records none.
    model = keras.Model(ids, x)
    assert len(model.operations) == 3
    model.save(tmp_path / "model.keras")
    tokens = np.array([[1, 2, 0], [3, 4, 5]])
    again = keras.saving.load_model(tmp_path / "model.keras")
    close(again(tokens), numpy(model(tokens)))


def test_mask_is_the_mask_of_one_sequence_or_of_a_list():
    mask = np.arange(T) < [[2], [T], [0]]
    value_mask = np.arange(S) < [[3], [0], [S]]
    layer = made(inputs=(X, X, X))
    close(layer(X, mask=mask), layer(X, query_mask=mask))
    close(layer(X, mask=mask, query_mask=mask[::-1]), layer(X, query_mask=mask & mask[::-1]))
    layer = made()
    expected = layer(X, VALUE, KEY, query_mask=mask, value_mask=value_mask)
    close(layer([X, VALUE, KEY], mask=[mask, value_mask, None]), expected)
    close(layer([X, VALUE, KEY], mask=[None, value_mask, None], query_mask=mask), expected)
    x = masks.carry(keras.ops.convert_to_tensor(X), keras.ops.convert_to_tensor(mask))
    close(layer([x, VALUE, KEY], mask=[None, value_mask, None]), expected)


# Positions and texts


def test_positions_and_texts_of_a_model_of_unknown_lengths():
    texts, at = (keras.Input((None,), dtype="int32") for _ in range(2))
    symbol = keras.Input((None, D))
    layer = ka.MultiHeadAttention(2, 4, position="rotary")
    y = layer(symbol, segment_ids=texts, positions=at, use_causal_mask=True)
    memory = ka.Attention(2, 4)(symbol, y, segment_ids=(texts, texts))
    model = keras.Model([symbol, texts, at], [y, memory])
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    ids = np.array([[1, 1, 1, 2, 2, 2, 2]] * B, "int32")
    places = np.array([[0, 1, 2, 0, 1, 2, 3]] * B, "int32")
    found = model.predict([VALUE, ids, places], verbose=0)
    for part in (slice(0, 3), slice(3, 7)):
        alone = [array[:, part] for array in (VALUE, ids, places)]
        for answer, expected in zip(found, model(alone), strict=True):
            close(answer[:, part], expected)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_one_array_twice_is_one_sequence(dtype):
    """Given as NumPy arrays, or cast to a layer's dtype, one sequence becomes two tensors."""
    layer, numbers = ka.Attention(dtype=dtype), np.arange(T, dtype="int32") // 3
    for name in ("segment_ids", "positions"):
        given = {name: np.stack([numbers] * B)}
        expected = numpy(layer(X, **given))
        for found in (layer([X, X], **given), layer(X, X, X, **given)):
            np.testing.assert_array_equal(numpy(found), expected)


def test_the_function_takes_positions_in_lists():
    x = keras.ops.convert_to_tensor(X[:, :2, None])
    given = {"query_positions": [5, 6], "key_positions": [0, 9]}
    _, weights = ka.ops.attend(x, x, x, pattern="causal", return_attention_scores=True, **given)
    assert (numpy(weights)[..., 1] == 0).all()


def test_one_sequence_with_one_mask_is_cleared_once():
    x, mask = map(keras.ops.convert_to_tensor, (X, REAL))
    query, value, key = sequence.without_padding((x, x, x), (mask, mask, mask))
    assert query is value is key
    query, value, key = sequence.without_padding((x, x, x), (None, mask, mask))
    assert query is x and value is key


def test_the_function_takes_one_array_of_positions_for_queries_and_keys():
    x, at = keras.ops.reshape(X, (B, T, H, K)), keras.ops.arange(T)
    for pattern in (ka.patterns.Strided(2), ~ka.patterns.Dilated(2), ka.patterns.Prefix(2)):
        seen = pattern & ka.patterns.Causal()
        given = dict(query_positions=at, key_positions=at, pattern=seen)
        output, weights = ka.ops.attend(x, x, x, return_attention_scores=True, **given)
        allowed = [[definition.attends(seen, i, j) for j in range(T)] for i in range(T)]
        assert not numpy(weights)[..., ~np.array(allowed)].any()
        assert not numpy(output)[:, ~np.any(allowed, axis=1)].any()


# Training


@pytest.mark.parametrize("name", ["SelfAttention", "TransformerBlock"])
def test_causal_holds_with_dropout_in_training(name):
    """Keras once dropped the causal mask wherever dropout was on (keras #23038)."""
    changed = X + 10 * (np.arange(T) > 2)[:, None].astype("float32")
    first, again = (getattr(ka, name)(16, 2, dropout=0.5, seed=1, causal=True) for _ in range(2))
    first.build(X.shape)
    again.build(X.shape)
    again.set_weights(first.get_weights())
    before, after = numpy(first(X, training=True)), numpy(again(changed, training=True))
    close(after[:, :3], before[:, :3])
    assert np.abs(after[:, 3:] - before[:, 3:]).max() > 1e-2


# Whether a kernel must look for queries without keys

REAL = np.arange(T) < np.array([[5], [2], [0]])
# What a call is given, and whether each of its queries surely has a key.
SURELY = {
    "causal": ({}, {}, True),
    "a window": ({"pattern": ka.patterns.SlidingWindow(2, 0)}, {}, True),
    "all keys": ({"causal": False}, {}, True),
    "padding": ({}, {"query_mask": REAL}, False),
    "a mask of pairs": ({}, {"attention_mask": np.tri(T, dtype="bool")}, False),
    "positions": ({}, {"positions": (np.arange(T), np.arange(T) + 2)}, False),
    "segments": ({}, {"segment_ids": np.zeros((B, T), "int32")}, False),
    "a later text": ({"pattern": ~ka.patterns.SlidingWindow(1, 1)}, {}, False),
}


@pytest.mark.parametrize("name", SURELY)
def test_queries_that_surely_have_keys_are_known(name, monkeypatch):
    options, arguments, expected = SURELY[name]
    layer = made(ka.SelfAttention, (X,), **{"causal": True, **options})
    specs, run = [], ka.kernels.run

    def spy(spec, *heads):
        specs.append(spec)
        return run(spec, *heads)

    monkeypatch.setattr(ka.kernels, "run", spy)
    output = layer(X, **arguments)
    assert [not spec.may_lack_keys for spec in specs] == [expected]
    monkeypatch.setattr(ka.kernels, "run", lambda spec, *heads: run(_unknown(spec), *heads))
    np.testing.assert_allclose(numpy(output), numpy(layer(X, **arguments)), atol=1e-6)


def _unknown(spec):
    return spec.replace(positions=dataclasses.replace(spec.positions, own=False))


def test_tokens_of_a_text_surely_have_keys(monkeypatch):
    layer = made(ka.SelfAttention, (X,), causal=True)
    found, run = [], ka.kernels.run
    monkeypatch.setattr(
        ka.kernels, "run", lambda spec, *x: found.append(spec.may_lack_keys) or run(spec, *x)
    )
    cache = layer.make_cache(B, T)
    _, cache = layer(X[:, :2], cache=cache)
    _, cache = layer(X[:, 2:3], cache=cache)
    layer(X[:, 3:], query_mask=REAL[:, 3:], cache=cache)
    assert found == [False, False, True]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only its graphs have None")
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_a_query_without_keys_where_no_length_is_known(score):
    """Two unknown lengths are not equal ones, with which each query would see its own key."""
    import tensorflow as tf

    layer = ka.Attention(score=score, pattern=ka.patterns.SlidingWindow(1, 0))
    rng = np.random.default_rng(0)
    query, value = (rng.normal(size=(1, n, 4)).astype("float32") for n in (6, 2))
    expected = layer(query, value, return_attention_scores=True)
    call = tf.function(
        lambda query, value: layer(query, value, return_attention_scores=True),
        [tf.TensorSpec((None, None, 4))] * 2,
        autograph=False,
    )
    for found, other in zip(call(query, value), expected, strict=True):
        np.testing.assert_allclose(numpy(found), numpy(other), atol=1e-6)
    assert not numpy(expected[1])[0, 0, 3:].any()
