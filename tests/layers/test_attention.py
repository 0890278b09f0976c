"""`Attention` and `SelfAttention`: the ways to call them, and what masks mean."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns
from keras_attention.sequences import masks, sequence
from tests import definition
from tests.arrays import built, close, numpy, random
from tests.problems import on_tensorflow

B, T, S, D, H, K = 3, 5, 7, 8, 2, 4
X, VALUE, KEY = random(B, T, D), random(B, S, D, seed=1), random(B, S, 6, seed=2)
REAL = np.arange(T) < np.array([[5], [2], [0]])
KEPT = np.arange(S) < np.array([[7], [4], [2]])
LATE = np.arange(S) >= np.array([[2], [1], [0]])
tensor = keras.ops.convert_to_tensor


def made(cls=ka.Attention, inputs=(X, VALUE, KEY), **kwargs):
    """A layer with heads and random weights, biases included."""
    layer = cls(**{"num_heads": H, "key_dim": K, "use_bias": True, **kwargs})
    return built(layer, *(x.shape for x in inputs))


def same(layer, *calls):
    """All calls, of positions and names, give the same numbers."""
    found = [numpy(layer(*given, **named)) for *given, named in calls]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    return found[0]


# Ways to call it


def test_lists_names_and_defaults_say_the_same():
    three = X, VALUE, KEY
    named = dict(zip(("query", "value", "key"), three, strict=True))
    same(made(), (*three, {}), (list(three), {}), (three, {}), (named,))
    layer = made(inputs=(X, VALUE))
    two = same(layer, (X, VALUE, VALUE, {}), (X, VALUE, {}), ([X, VALUE], {}))
    assert np.abs(same(layer, (X, X, X, {}), (X, {})) - two).max() > 0.1


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_one_array_twice_is_one_sequence(dtype):
    """Given as NumPy arrays, or cast to a layer's dtype, one sequence becomes two tensors."""
    numbers = np.stack([np.arange(T, dtype="int32") // 3] * B)
    for name in ("segment_ids", "positions"):
        given = {name: numbers}
        same(ka.Attention(dtype=dtype), (X, given), ([X, X], given), (X, X, X, given))


def test_positions_of_the_function_are_lists_or_one_array():
    x, at = tensor(X.reshape(B, T, H, K)), keras.ops.arange(T)
    given = {"query_positions": [5, 6], "key_positions": [0, 9], "return_attention_scores": True}
    two = x[:, :2]
    _, weights = ka.ops.attend(two, two, two, pattern="causal", **given)
    assert (numpy(weights)[..., 1] == 0).all()
    for pattern in (patterns.Strided(2), ~patterns.Dilated(2), patterns.Prefix(2)):
        seen = pattern & patterns.Causal()
        given |= {"query_positions": at, "key_positions": at, "pattern": seen}
        output, weights = ka.ops.attend(x, x, x, **given)
        allowed = [[definition.attends(seen, i, j) for j in range(T)] for i in range(T)]
        assert not numpy(weights)[..., ~np.array(allowed)].any()
        assert not numpy(output)[:, ~np.any(allowed, axis=1)].any()


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


# Masks


@pytest.mark.parametrize("named", [False, True])
def test_masks_of_query_value_and_key_count_together(named):
    """As one mask of pairs, of which tests/fuzz says what it means."""
    layer, pairs = made(), np.tri(T, S, dtype=bool) & (KEPT & LATE)[:, None] & REAL[..., None]
    given = {"attention_mask": pairs, "return_attention_scores": True}
    expected = layer(X, VALUE, KEY, **given)
    inputs, given = [X, VALUE, KEY], {"use_causal_mask": True, "return_attention_scores": True}
    if named:
        given |= {"query_mask": REAL, "value_mask": KEPT, "key_mask": LATE}
    else:
        inputs = [
            masks.carry(*map(tensor, of)) for of in zip(inputs, (REAL, KEPT, LATE), strict=True)
        ]
    for found in (layer(*inputs, **given), layer(inputs, **given)):
        close(found[0], expected[0])
        close(found[1], expected[1])
        np.testing.assert_array_equal(numpy(masks.implicit(found[0])), REAL)


def test_mask_is_the_mask_of_one_sequence_or_of_a_list():
    layer = made(inputs=(X, X, X))
    close(layer(X, mask=REAL), layer(X, query_mask=REAL))
    close(layer(X, mask=REAL, query_mask=REAL[::-1]), layer(X, query_mask=REAL & REAL[::-1]))
    layer = made()
    expected = layer(X, VALUE, KEY, query_mask=REAL, value_mask=KEPT)
    close(layer([X, VALUE, KEY], mask=[REAL, KEPT, None]), expected)
    close(layer([X, VALUE, KEY], mask=[None, KEPT, None], query_mask=REAL), expected)
    x = masks.carry(tensor(X), tensor(REAL))
    close(layer([x, VALUE, KEY], mask=[None, KEPT, None]), expected)


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
    close(keras.saving.load_model(tmp_path / "model.keras")(tokens), model(tokens))


def test_one_sequence_with_one_mask_is_cleared_once():
    x, mask = map(tensor, (X, REAL))
    query, value, key = sequence.without_padding((x, x, x), (mask, mask, mask))
    assert query is value is key
    query, value, key = sequence.without_padding((x, x, x), (None, mask, mask))
    assert query is x and value is key


@pytest.mark.parametrize("name", ["SelfAttention", "TransformerBlock"])
def test_causal_holds_with_dropout_in_training(name):
    """Keras once dropped the causal mask wherever dropout was on (keras #23038)."""
    changed = X + 10 * (np.arange(T) > 2)[:, None].astype("float32")
    layers = [getattr(ka, name)(16, 2, dropout=0.5, seed=1, causal=True) for _ in range(2)]
    before, after = (
        numpy(built(layer, X.shape)(x, training=True))
        for layer, x in zip(layers, (X, changed), strict=True)
    )
    close(after[:, :3], before[:, :3])
    assert np.abs(after[:, 3:] - before[:, 3:]).max() > 1e-2


# Whether a kernel must look for queries without keys

# What a call is given, and whether each of its queries surely has a key.
SURELY = {
    "causal": ({}, {}, True),
    "a window": ({"pattern": patterns.SlidingWindow(2, 0)}, {}, True),
    "all keys": ({"causal": False}, {}, True),
    "padding": ({}, {"query_mask": REAL}, False),
    "a mask of pairs": ({}, {"attention_mask": np.tri(T, dtype="bool")}, False),
    "positions": ({}, {"positions": (np.arange(T), np.arange(T) + 2)}, False),
    "segments": ({}, {"segment_ids": np.zeros((B, T), "int32")}, False),
    "a later text": ({"pattern": ~patterns.SlidingWindow(1, 1)}, {}, False),
}


@pytest.fixture(name="specs")
def _specs(monkeypatch):
    """The specifications that are given to kernels, which are told that nothing is known."""
    specs, run = [], ka.kernels.run

    def spy(spec, *heads):
        specs.append(spec)
        unknown = dataclasses.replace(spec.positions, own=False)
        found = run(spec, *heads)
        close(found.output, run(spec.replace(positions=unknown), *heads).output, 1e-6)
        return found

    monkeypatch.setattr(ka.kernels, "run", spy)
    return specs


@pytest.mark.parametrize("name", SURELY)
def test_queries_that_surely_have_keys_are_known(name, specs):
    options, arguments, expected = SURELY[name]
    made(ka.SelfAttention, (X,), **{"causal": True, **options})(X, **arguments)
    assert [not spec.may_lack_keys for spec in specs] == [expected]


def test_tokens_of_a_text_surely_have_keys(specs):
    layer = made(ka.SelfAttention, (X,), causal=True)
    _, cache = layer(X[:, :2], cache=layer.make_cache(B, T))
    _, cache = layer(X[:, 2:3], cache=cache)
    layer(X[:, 3:], query_mask=REAL[:, 3:], cache=cache)
    assert [spec.may_lack_keys for spec in specs] == [False, False, True]


@on_tensorflow
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_a_query_without_keys_where_no_length_is_known(score):
    """Two unknown lengths are not equal ones, with which each query would see its own key."""
    import tensorflow as tf

    layer = ka.Attention(score=score, pattern=patterns.SlidingWindow(1, 0))

    def call(query, value):
        return layer(query, value, return_attention_scores=True)

    expected = call(X[:, :, :6], X[:, :2, :6])
    sizes = [tf.TensorSpec((None, None, 6))] * 2
    found = tf.function(call, sizes, autograph=False)(X[:, :, :6], X[:, :2, :6])
    for one, other in zip(found, expected, strict=True):
        close(one, other, 1e-6)
    assert not numpy(expected[1])[:, :, 3:].any()
