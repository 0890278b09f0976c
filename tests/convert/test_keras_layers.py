"""Layers of Keras converted: the new layer gives what the old one gives."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import convert
from tests.arrays import numpy, random
from tests.convert import both

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
    "pairs": {"attention_mask": both.PAIRS},
    "causal pairs": {"attention_mask": both.PAIRS, "use_causal_mask": True},
}


@pytest.mark.parametrize("kwargs", HEADS.values(), ids=HEADS)
def test_multi_head_attention_of_keras(kwargs):
    theirs = keras.layers.MultiHeadAttention(2, 4, name="theirs", **kwargs)
    # With its scores: on JAX, Keras fails otherwise where value_dim is not key_dim.
    theirs(both.X, both.MEMORY, both.KEY, return_attention_scores=True)
    both.randomize(theirs)
    ours = convert.from_keras(theirs)
    for call in CALLS.values():
        expected = theirs(both.X, both.MEMORY, both.KEY, return_attention_scores=True, **call)
        given = ours(both.X, both.MEMORY, both.KEY, return_attention_scores=True, **call)
        for our, their in zip(given, expected, strict=True):
            both.close(our, their)
    assert type(ours) is ka.MultiHeadAttention and ours.name == "theirs"
    assert (ours.dropout, ours.seed) == (theirs.dropout, theirs.seed)
    assert len(ours.trainable_weights) == len(theirs.trainable_weights)


def test_over_several_axes():
    images = random(both.B, 3, 4, both.D)
    theirs = both.built(keras.layers.MultiHeadAttention(2, 4, attention_axes=(2,)), images)
    both.close(convert.from_keras(theirs)(images), theirs(images, images))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_query_attention(groups):
    memory = random(both.B, both.S, both.D, seed=1)
    theirs = keras.layers.GroupQueryAttention(4, 4, groups, use_gate=True)
    ours = convert.from_keras(both.built(theirs, both.X, memory))
    for call in CALLS.values():
        both.close(ours(both.X, memory, **call), theirs(both.X, memory, **call))
    assert ours.num_key_value_heads == groups


def test_what_lora_added_is_in_the_kernel():
    theirs = both.built(keras.layers.MultiHeadAttention(2, 4), both.X)
    theirs.query_dense.enable_lora(2)
    both.randomize(theirs)
    ours = convert.from_keras(theirs)
    both.close(ours(both.X), theirs(both.X, both.X))
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
    value = random(both.B, both.S, both.E, seed=4)
    theirs([both.X, value, both.KEY])
    both.randomize(theirs)
    ours = convert.from_keras(theirs)
    masks = {"query_mask": both.PADDING, "value_mask": both.MEMORY_PADDING}
    for causal in (False, True):
        given = {"use_causal_mask": causal, "return_attention_scores": True}
        inputs = [both.X, value, both.KEY]
        expected, expected_scores = theirs(inputs, mask=list(masks.values()), **given)
        output, scores = ours(inputs, **masks, **given)
        both.close(output, expected)
        # Those of padded queries are zero here.
        both.close(numpy(scores)[:, 0][both.PADDING], numpy(expected_scores)[both.PADDING])


def test_a_query_without_keys_is_zero_here_whatever_the_peer_gives():
    theirs = both.built(keras.layers.MultiHeadAttention(2, 4), both.X)
    nothing = np.zeros((both.B, both.T, both.T), bool)
    assert np.abs(numpy(theirs(both.X, both.X, attention_mask=nothing))).max() > 0
    assert not numpy(convert.from_keras(theirs)(both.X, attention_mask=nothing)).any()


def test_dtype_policy_and_initializers_are_kept():
    theirs = keras.layers.MultiHeadAttention(
        2, 4, kernel_initializer="he_normal", kernel_regularizer="l2", dtype="mixed_bfloat16"
    )
    ours = convert.from_keras(both.built(theirs, both.X))
    assert ours.compute_dtype == "bfloat16" and ours.variable_dtype == "float32"
    assert ours.kernel_initializer.get_config() == keras.initializers.HeNormal().get_config()
    assert ours.kernel_regularizer.get_config() == theirs._kernel_regularizer.get_config()
