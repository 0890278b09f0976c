"""Layers, arrays and calls that rows of several modules need."""

import sys
import tempfile
from unittest import mock

import keras
import numpy as np

import keras_attention as ka
from keras_attention import generation, normalizations, patterns, positions, scores, visualization

B, T, S, D = 2, 3, 5, 4


def zeros(*shape, dtype="float32"):
    return keras.ops.zeros(shape, dtype)


def heads(*shapes):
    return [zeros(*shape) for shape in shapes or ((B, T, 2, D), (B, S, 2, D), (B, S, 2, D))]


X = np.zeros((B, T, D), "float32")
Y = np.zeros((B, S, D), "float32")
ADDITIVE = np.where(np.eye(T, S) > 0, 0.0, -1e9).astype("float32")


class Unbegun(scores.Score):
    def __init__(self, sharpness):
        self.sharpness = sharpness


RELATIVE_BIAS = positions.RelativeBias(8)


def cell(**kwargs):
    return ka.AttentionCell(keras.layers.GRUCell(D), "dot", **kwargs)


class Careless(keras.Model):
    """A model whose `build` does not build what is in it."""

    def __init__(self):
        super().__init__()
        self.inner = ka.SelfAttention(2, 4, name="inner")

    def build(self, shape):
        self.built = True

    def call(self, x):
        return self.inner(x)


def load_unbuilt():
    """The weights of a model loaded into another that has none yet."""
    saved, other = Careless(), Careless()
    saved(X)
    other.build(X.shape)
    with tempfile.TemporaryDirectory() as folder:
        saved.save_weights(f"{folder}/model.weights.h5")
        other.load_weights(f"{folder}/model.weights.h5")


def built_attention(query=X, value=None, key=None):
    """A call of a layer that was built for a value of 6 features and a key of 4."""
    layer = ka.MultiHeadAttention(2, 4)
    layer.build((B, T, D), (B, S, 6), (B, S, D))
    value = np.zeros((B, S, 6), "float32") if value is None else value
    return layer(query, value, Y if key is None else key)


def built_cell():
    """A cell, and the `RNN` that has built it."""
    built = cell()
    rnn = keras.layers.RNN(built)
    rnn(X, initial_state=built.initial_state(Y))
    return built, rnn


def multi_head(**kwargs):
    layer = ka.MultiHeadAttention(2, 4, **kwargs)
    layer.build(X.shape, Y.shape)
    return layer


def memory():
    return multi_head().cache_context(Y)


def decoder(causal=True):
    block = ka.TransformerBlock(8, 2, causal=causal, cross_attention=True)
    block.build(X.shape, Y.shape)
    return block


class Nearness(patterns.Pattern):
    def attends(self, i, j):
        return i - j


class Both(patterns.Pattern):
    def attends(self, i, j):
        return i - j == 2 and j > 0


class Forgetful(patterns.Pattern):
    def __init__(self, distance):
        self.reach = distance

    def attends(self, i, j):
        return i - j == self.reach


class Named(scores.Score):
    """Calls its method something else."""

    def score(self, query, key):
        return query


def silent(name):
    """A score whose method `name` forgets to return something."""
    nothing = (lambda self, x: None) if name == "prepare_key" else (lambda self, query, key: None)
    return type("Silent", (scores.Score,), {name: nothing})()


class Speechless(normalizations.Normalization):
    """Forgets to return its weights."""

    def normalize(self, scores, mask):
        keras.ops.exp(scores)


class Misshapen(scores.Score):
    """Forgets where the heads belong."""

    def call(self, query, key):
        return keras.ops.einsum("bthk,bshk->btsh", query, key)


def built_feed_forward():
    layer = ka.FeedForward(8, name="plain")
    layer.build(X.shape)
    return layer


def plot_without_matplotlib():
    with mock.patch.dict(sys.modules, {"matplotlib.figure": None}):
        visualization.plot_attention(np.ones((2, 2)))


def step_giving(logits, cache=()):
    """A step of generation that returns the same each time."""
    return lambda tokens, _: (logits, cache)


def greedy(step=None, tokens=(0, 0), cache=(), memory=None, **options):
    options = {"max_tokens": 2, **options}
    step = step_giving(zeros(B, 4)) if step is None else step
    return generation.greedy(step, np.array(tokens), cache, memory, **options)


def sample(**options):
    return generation.sample(step_giving(zeros(B, 4)), [0, 0], (), max_tokens=2, **options)


def beam_search(**options):
    options = {"num_beams": 2, "max_tokens": 2, **options}
    return generation.beam_search(step_giving(zeros(2 * B, 4)), [0, 0], (), **options)


SHARED, SHARED_SCORE = positions.Shaw(2), scores.General()


def nested(pattern, times):
    for _ in range(times):
        pattern = ~pattern
    return pattern
