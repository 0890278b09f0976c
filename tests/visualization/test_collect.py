"""`collect_attention`: what it finds in models of all kinds, which it leaves as they are."""

import inspect
import threading

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.visualization import collect_attention
from tests.arrays import numpy

ops = keras.ops

IDS = np.array([[3, 5, 2, 7, 0], [4, 1, 0, 0, 0]])
X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
MEMORY = np.random.default_rng(1).normal(size=(2, 7, 6)).astype("float32")


def layers_within(model):
    return model._flatten_layers()


def state(model):
    """All that a collection might leave changed."""
    return {
        "variables": [numpy(v).tolist() for v in model.variables],
        "attributes": [
            sorted(set(vars(layer)) - {"_called", "_return_attention_scores"})
            for layer in layers_within(model)
        ],
        "calls": [inspect.unwrap(layer.call) == layer.call for layer in layers_within(model)],
        "own": ["call" in vars(layer) for layer in layers_within(model)],
    }


OF_KERAS = {
    "Attention": (),
    "AdditiveAttention": (),
    "MultiHeadAttention": (2, 4),
    "GroupQueryAttention": (4, 4, 2),
}


@pytest.mark.parametrize("name", OF_KERAS)
def test_scores_of_layers_of_keras_are_those_that_they_return(name):
    """Those of this package are in tests/contract."""
    layer, listed = getattr(keras.layers, name)(*OF_KERAS[name]), not OF_KERAS[name]
    symbols = keras.Input((None, 8)), keras.Input((None, 8))
    model = keras.Model(symbols, layer(list(symbols)) if listed else layer(*symbols))
    given = [X, np.pad(MEMORY, ((0, 0), (0, 0), (0, 2)))]
    expected, before = numpy(model(given)), state(model)
    scores = collect_attention(model, given)
    assert state(model) == before and list(scores) == [layer.name]
    arrays = [ops.convert_to_tensor(x) for x in given]
    called = [arrays] if listed else arrays
    evaluated = numpy(layer(*called, return_attention_scores=True)[1])
    assert scores[layer.name].dtype == "float32"
    evaluated = evaluated[:, None] if listed else evaluated
    np.testing.assert_allclose(scores[layer.name], evaluated, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(numpy(model(given)), expected)


def translator():
    """A functional encoder and decoder with masks, dropout and a regularizer of the weights."""
    source, target = (keras.Input((None,), dtype="int32", name=n) for n in ("source", "target"))
    embedding = ka.ScaledEmbedding(20, 8, mask_zero=True)
    options = {"dropout": 0.5, "scores_regularizer": "entropy"}
    encoded = ka.TransformerBlock(16, 2, name="encoder", **options)(embedding(source))
    x = ka.TransformerBlock(16, 2, causal=True, cross_attention=True, name="decoder", **options)(
        embedding(target), encoded
    )
    # Masks reach what is behind a layer of this package, and what is behind one of Keras.
    x = keras.layers.MultiHeadAttention(2, 4, name="of_keras")(x, x)
    return keras.Model([source, target], ka.AttentionPooling(name="pooling")(x))


def test_blocks_give_what_they_are_made_of_and_padding_gets_nothing():
    model = translator()
    scores = collect_attention(model, [IDS, IDS[:, :4]])
    assert {name: array.shape for name, array in scores.items()} == {
        "encoder/attention": (2, 2, 5, 5),
        "decoder/attention": (2, 2, 4, 4),
        "decoder/cross_attention": (2, 2, 4, 5),
        "of_keras": (2, 2, 4, 4),
        "pooling/attention": (2, 1, 1, 4),
    }
    assert next(iter(scores)) == "encoder/attention"
    cross = scores["decoder/cross_attention"]
    assert scores["decoder/context_attention"] is cross  # its name in 0.1.0
    with pytest.raises(KeyError, match="decoder/other"):
        scores["decoder/other"]
    np.testing.assert_array_equal(cross[0, :, :, 4], 0)
    np.testing.assert_array_equal(cross[1, :, :, 2:], 0)
    for name in ("decoder/attention", "of_keras", "pooling/attention"):
        np.testing.assert_array_equal(scores[name][1, :, :, 2:], 0)
    np.testing.assert_allclose(cross[0].sum(axis=-1)[:, :4], 1, rtol=1e-5)
    np.testing.assert_array_equal(np.triu(scores["decoder/attention"], 1), 0)


class Restless(keras.layers.Layer):
    """Draws a number at each call, in training or not, and counts its calls."""

    def build(self, shape):
        self.generator = keras.random.SeedGenerator(1)
        self.count = self.add_weight(name="count", shape=(), trainable=False, initializer="zeros")

    def call(self, x):
        self.count.assign_add(1.0)
        return x + keras.random.normal(ops.shape(x), seed=self.generator)


def test_a_model_that_is_compiled_and_trained_is_left_as_it_was():
    x = keras.Input((5, 8))
    y = ka.SelfAttention(2, 4, dropout=0.3, name="attention")(Restless()(x))
    model = keras.Model(x, keras.layers.BatchNormalization()(y))
    model.compile("sgd", "mse", jit_compile=keras.config.backend() != "torch")
    model.fit(X, X, verbose=0)
    before = state(model)
    first, second = (collect_attention(model, X)["attention"] for _ in range(2))
    assert state(model) == before
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first.sum(axis=-1), 1, rtol=1e-5)
    model(X)
    assert state(model) != before


def test_layers_are_named_by_what_holds_them():
    inner_x = keras.Input((None, 8))
    inner = keras.Sequential([ka.SelfAttention(2, 4, name="attention")], name="inner")
    nested = keras.Model(inner_x, inner(inner_x), name="nested")
    x = keras.Input((None, 8))
    y = keras.layers.TimeDistributed(ka.SelfAttention(1, 2, name="a"), name="each")(
        keras.layers.Reshape((3, 5, 8))(keras.layers.Concatenate(axis=1)([x, x, x]))
    )
    pooled = ka.AttentionPooling(num_queries=2, name="pooling")(nested(x))
    model = keras.Model(x, [pooled, ka.FeedForwardAttention(name="last")(nested(x)), y])
    shapes = {name: scores.shape for name, scores in collect_attention(model, X).items()}
    assert shapes == {
        "nested/inner/attention": (2, 2, 5, 5),
        "nested/inner/attention (call 2)": (2, 2, 5, 5),
        "pooling/attention": (2, 1, 2, 5),
        "last/attention": (2, 1, 1, 5),
        "each/a": (2, 1, 5, 5),
        "each/a (call 2)": (2, 1, 5, 5),
        "each/a (call 3)": (2, 1, 5, 5),
    }


class Stack(keras.Model):
    """A subclassed model with blocks of one name, one of them used twice, and no `training`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [ka.TransformerBlock(8, 2, name="block") for _ in range(2)]
        self.cross = {"attention": keras.layers.MultiHeadAttention(2, 4, name="cross")}

    def call(self, inputs):
        x, memory = inputs["x"], inputs["memory"]
        for block in (*self.blocks, self.blocks[0]):
            x, scores = block(x, return_attention_scores=True)
        return self.cross["attention"](x, memory), scores


def test_a_subclassed_model_that_asks_for_scores_itself():
    model = Stack()
    inputs = {"x": X, "memory": MEMORY}
    output, own = model(inputs)
    scores = collect_attention(model, inputs)
    assert list(scores) == [
        "block/attention", "block/attention_1", "block/attention (call 2)", "cross",
    ]  # fmt: skip
    np.testing.assert_array_equal(scores["block/attention (call 2)"], numpy(own))
    assert scores["cross"].shape == (2, 2, 5, 7)
    np.testing.assert_array_equal(numpy(model(inputs)[0]), numpy(output))


def test_a_layer_is_a_model_too():
    block, attention = ka.TransformerBlock(8, 2, name="block"), ka.Attention(name="alone")
    block(X)
    assert list(collect_attention(block, X)) == ["attention"]
    attention(X)
    given = {"value": X[:, :3], "value_mask": np.array([[True, True, False]] * 2)}
    scores = collect_attention(attention, X, **given)["alone"]
    assert scores.shape == (2, 1, 5, 3) and not scores[..., 2].any()


def test_a_call_that_raises_leaves_the_layers_as_they_were():
    failing = []

    def fail(x):
        if failing:
            raise RuntimeError("as told")
        return x

    x = keras.Input((None, 8))
    model = keras.Model(x, keras.layers.Lambda(fail)(ka.SelfAttention(2, 4)(x)))
    before = state(model)
    failing.append(True)
    with pytest.raises(RuntimeError, match="as told"):
        collect_attention(model, X)
    failing.clear()
    assert state(model) == before
    assert len(collect_attention(model, X)) == 1


def test_a_call_of_ones_own_on_the_instance_is_put_back():
    layer = ka.SelfAttention(2, 4, name="attention")
    layer(X)
    original = layer.call

    def call(query, return_attention_scores=False, training=None):
        return original(2 * query, return_attention_scores=return_attention_scores)

    object.__setattr__(layer, "call", call)
    scores = collect_attention(layer, X)["attention"]
    assert layer.call is call
    np.testing.assert_array_equal(
        scores, numpy(original(ops.convert_to_tensor(2 * X), return_attention_scores=True)[1])
    )


def test_calls_of_other_threads_are_not_collected():
    layer = ka.SelfAttention(2, 4, name="attention")
    layer(X)

    def beside(x):
        """Calls the layer in a thread of its own, in the midst of a collection."""
        thread = threading.Thread(target=lambda: layer(X[:1]))
        thread.start()
        thread.join()
        return x

    x = keras.Input((None, 8))
    scores = collect_attention(keras.Model(x, layer(keras.layers.Lambda(beside)(x))), X)
    assert {name: array.shape[0] for name, array in scores.items()} == {"attention": 2}


def test_what_is_traced_is_named_in_a_warning():
    class Mapped(keras.layers.Layer):
        """Calls its layer in a loop that the backend traces."""

        def __init__(self):
            super().__init__()
            self.inner = ka.SelfAttention(2, 4, name="inner")

        def build(self, shape):
            self.inner.build(shape)

        def compute_output_shape(self, shape):
            return shape

        def call(self, x):
            # PyTorch's fused kernel cannot be mapped.
            return ops.vectorized_map(
                lambda row: self.inner(row[None], return_attention_scores=True)[0][0], x
            )

    x = keras.Input((5, 8))
    outer = ka.SelfAttention(2, 4, name="outer")
    model = keras.Model(x, outer(Mapped()(x)))
    with pytest.warns(UserWarning, match=r"Not collected.*: mapped/inner$"):
        assert list(collect_attention(model, X)) == ["outer"]


@pytest.mark.parametrize("name", ["MultiHeadAttention", "GroupQueryAttention"])
def test_layers_of_keras_with_flash_attention(name):
    """Which refuse to return scores, and run on GPUs alone."""
    layer = getattr(keras.layers, name)(*OF_KERAS[name], flash_attention=True)
    x = keras.Input((5, 8))
    scores = collect_attention(keras.Model(x, layer(x, x)), X)[layer.name]
    assert scores.shape[2:] == (5, 5)
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
    with pytest.raises(ValueError, match="flash attention"):
        layer(X, X, return_attention_scores=True)
