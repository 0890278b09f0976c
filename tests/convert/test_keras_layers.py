"""Layers of Keras converted: the new layer gives what the old one gives."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import convert
from tests.arrays import random
from tests.convert.both import (
    KEY,
    MEMORY,
    MEMORY_PADDING,
    PADDING,
    PAIRS,
    B,
    D,
    E,
    S,
    T,
    X,
    array,
    built,
    close,
    ops,
    randomize,
    reloaded,
)
from tests.gradients import weight_gradients

HEADS = {
    "plain": {},
    "value_dim": {"value_dim": 3},
    "no bias": {"use_bias": False},
    "gate": {"use_gate": True},
    "window": {"sliding_window": 2},
    "output_shape": {"output_shape": 5},
    "dropout": {"dropout": 0.5, "seed": 1},
}
CALLS = {
    "no mask": {},
    "causal": {"use_causal_mask": True},
    "pairs": {"attention_mask": PAIRS},
    "causal pairs": {"attention_mask": PAIRS, "use_causal_mask": True},
}


@pytest.mark.parametrize("kwargs", HEADS.values(), ids=HEADS)
def test_multi_head_attention_of_keras(kwargs):
    theirs = keras.layers.MultiHeadAttention(2, 4, name="theirs", **kwargs)
    # With its scores: on JAX, Keras fails otherwise where value_dim is not key_dim.
    theirs(X, MEMORY, KEY, return_attention_scores=True)
    randomize(theirs)
    ours = convert.from_keras(theirs)
    for call in CALLS.values():
        expected = theirs(X, MEMORY, KEY, return_attention_scores=True, **call)
        given = ours(X, MEMORY, KEY, return_attention_scores=True, **call)
        for our, their in zip(given, expected, strict=True):
            close(our, their)
    assert type(ours) is ka.MultiHeadAttention and ours.name == "theirs"
    assert (ours.dropout, ours.seed) == (theirs.dropout, theirs.seed)


def test_over_several_axes():
    images = random(B, 3, 4, D)
    theirs = keras.layers.MultiHeadAttention(2, 4, attention_axes=(2,))
    expected = theirs(images, images)
    close(convert.from_keras(theirs)(images), expected)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_query_attention(groups):
    theirs = keras.layers.GroupQueryAttention(4, 4, groups, use_gate=True)
    memory = random(B, S, D, seed=1)
    theirs(X, memory)
    randomize(theirs)
    ours = convert.from_keras(theirs)
    for call in CALLS.values():
        close(ours(X, memory, **call), theirs(X, memory, **call))
    assert ours.num_key_value_heads == groups


def test_what_lora_added_is_in_the_kernel():
    theirs = keras.layers.MultiHeadAttention(2, 4)
    theirs(X, X)
    theirs.query_dense.enable_lora(2)
    randomize(theirs)
    ours = convert.from_keras(theirs)
    close(ours(X), theirs(X, X))
    assert len(ours.weights) == 8


WITHOUT_HEADS = {
    "dot": lambda: keras.layers.Attention(),
    "dot, scaled": lambda: keras.layers.Attention(use_scale=True, dropout=0.5, seed=1),
    "concat": lambda: keras.layers.Attention(score_mode="concat"),
    "concat, scaled": lambda: keras.layers.Attention(score_mode="concat", use_scale=True),
    "additive": lambda: keras.layers.AdditiveAttention(),
    "additive, not scaled": lambda: keras.layers.AdditiveAttention(use_scale=False),
}


@pytest.mark.parametrize("make", WITHOUT_HEADS.values(), ids=WITHOUT_HEADS)
def test_attention_of_keras(make):
    theirs = make()
    value = random(B, S, E, seed=4)
    theirs([X, value, KEY])
    randomize(theirs)
    ours = convert.from_keras(theirs)
    for causal in (False, True):
        expected, expected_scores = theirs(
            [X, value, KEY],
            mask=[PADDING, MEMORY_PADDING],
            use_causal_mask=causal,
            return_attention_scores=True,
        )
        output, scores = ours(
            [X, value, KEY],
            query_mask=PADDING,
            value_mask=MEMORY_PADDING,
            use_causal_mask=causal,
            return_attention_scores=True,
        )
        close(output, expected)
        # Those of padded queries are zero here.
        close(array(scores)[:, 0][PADDING], array(expected_scores)[PADDING])


def test_implicit_masks_count_in_the_new_layer():
    ids = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]])
    x = keras.layers.Embedding(10, D, mask_zero=True)(ids)
    theirs = keras.layers.MultiHeadAttention(2, 4)
    ours = convert.from_keras(built(theirs, X))
    expected = theirs(array(x), array(x), attention_mask=(ids != 0)[:, None])
    close(array(ours(x))[ids != 0], array(expected)[ids != 0])


def test_a_query_without_keys_is_zero_here_whatever_the_peer_gives():
    theirs = built(keras.layers.MultiHeadAttention(2, 4), X)
    nothing = np.zeros((B, T, T), bool)
    assert np.abs(array(theirs(X, X, attention_mask=nothing))).max() > 0
    assert not array(convert.from_keras(theirs)(X, attention_mask=nothing)).any()


def test_gradients_are_equal():
    theirs = built(keras.layers.MultiHeadAttention(2, 4), X, MEMORY)
    ours = convert.from_keras(theirs)
    target = ops.convert_to_tensor(random(B, T, D, seed=5))

    def gradients(layer):
        def loss():
            return ops.mean(ops.square(layer(X, MEMORY, attention_mask=PAIRS) - target))

        return weight_gradients(layer, loss)[0]

    for our, their in zip(gradients(ours), gradients(theirs), strict=True):
        close(our, their)


def test_dtype_policy_and_initializers_are_kept():
    theirs = keras.layers.MultiHeadAttention(
        2, 4, kernel_initializer="he_normal", kernel_regularizer="l2", dtype="mixed_bfloat16"
    )
    ours = convert.from_keras(built(theirs, X))
    assert ours.compute_dtype == "bfloat16" and ours.variable_dtype == "float32"
    assert ours.kernel_initializer.get_config() == keras.initializers.HeNormal().get_config()
    assert ours.kernel_regularizer.get_config() == theirs._kernel_regularizer.get_config()


def test_the_new_layer_is_saved_and_loaded(tmp_path):
    theirs = built(keras.layers.MultiHeadAttention(2, 4), X, MEMORY)
    loaded = reloaded(convert.from_keras(theirs), tmp_path, X.shape, MEMORY.shape)
    close(loaded(X, MEMORY), theirs(X, MEMORY))
    theirs = keras.layers.AdditiveAttention()
    expected = theirs([X, KEY])
    loaded = reloaded(convert.from_keras(theirs), tmp_path, X.shape, KEY.shape)
    close(loaded(X, KEY), expected)
