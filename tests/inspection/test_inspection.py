"""Rollout, flow, gradients, measures of heads, and models without some heads."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import inspection
from keras_attention.visualization import collect_attention
from tests.arrays import numpy, random

ops = keras.ops

IDS = np.array([[3, 5, 2, 7, 0], [4, 1, 0, 0, 0]])


def shifted(model):
    """The model with random numbers added to its weights."""
    for weight in model.trainable_variables:
        weight.assign(weight + 0.3 * keras.random.normal(weight.shape))
    return model


def model_of(call, *shapes):
    """A functional model of a function of its inputs, by default one of vectors."""
    inputs = [keras.Input(shape) for shape in shapes or [(5, 8)]]
    return keras.Model(inputs if shapes[1:] else inputs[0], call(*inputs))


def pruned_as_ablated(model, heads, given):
    """The pruned model, which gives what the ablated one does, and that is not the model's own."""
    ablated = inspection.ablate_heads(model, heads)
    expected = numpy(ablated(given))
    assert np.abs(expected - numpy(model(given))).max() > 1e-4
    pruned = inspection.prune_heads(model, heads)
    np.testing.assert_allclose(numpy(pruned(given)), expected, atol=1e-5)
    assert pruned.count_params() < ablated.count_params() == model.count_params()
    return pruned


@pytest.fixture(scope="module")
def model():
    """A block with grouped heads, layers of Keras and a pooling; all weights are random."""
    keras.utils.set_random_seed(1)
    tokens = keras.Input((None,), dtype="int32")
    x = ka.ScaledEmbedding(20, 8, mask_zero=True)(tokens)
    x = ka.TransformerBlock(
        16, 4, num_key_value_heads=2, qk_norm="rms", position="relative_bias", name="block"
    )(x)
    x = keras.layers.MultiHeadAttention(3, 4, name="of_keras")(x, x)
    x = keras.layers.Attention(name="of_one_head")([x, x])
    x = ka.AttentionPooling(name="pooling")(x)
    return shifted(keras.Model(tokens, keras.layers.Dense(3)(x)))


def random_weights(*shape):
    weights = np.random.default_rng(len(shape)).exponential(size=shape)
    return weights / weights.sum(axis=-1, keepdims=True)


def test_rollout_is_the_product_of_the_layers():
    first, second = random_weights(2, 3, 5, 5), random_weights(2, 3, 5, 5)
    pooling = random_weights(2, 2, 1, 5)
    expected = pooling.mean(1)
    for weights in (second, first):
        expected = expected @ (0.7 * weights.mean(1) + 0.3 * np.eye(5))
    found = inspection.attention_rollout([first, second, pooling], residual=0.3)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(found.sum(-1), 1.0, atol=1e-12)


def test_flow_through_two_layers_is_the_narrower_edge_of_each_path():
    layers = [random_weights(1, 2, 4, 4), random_weights(1, 2, 4, 4)[:, ::-1]]
    below, above = (0.5 * weights[0].mean(0) + 0.5 * np.eye(4) for weights in layers)
    expected = np.minimum(above[:, :, None], below[None]).sum(1)
    np.testing.assert_allclose(inspection.attention_flow(layers)[0], expected, atol=1e-5)


def test_entropy_and_distance_leave_out_queries_without_weights():
    even, near = np.zeros((1, 1, 4, 4)), np.zeros((1, 1, 4, 4))
    even[..., :2, :2] = 0.5
    near[0, 0, [0, 1], [1, 0]] = 0.25  # Of a layer whose weights do not sum to one.
    weights = {"layer": np.concatenate([even, near], axis=1)}
    entropy = inspection.attention_entropy(weights)["layer"]
    np.testing.assert_allclose(entropy, [np.log(2), 0.0], atol=1e-7)
    np.testing.assert_allclose(inspection.attention_distance(weights)["layer"], [0.5, 1.0])
    nothing = inspection.attention_entropy({"layer": np.zeros((1, 1, 2, 2))})["layer"]
    assert np.isnan(nothing).all()


def test_distances_on_a_grid_are_euclidean():
    weights = np.zeros((1, 1, 5, 5))
    weights[0, 0, np.arange(5), [0, 4, 2, 3, 4]] = 1  # Patch (0, 0) attends to patch (1, 1).
    found = inspection.attention_distance({"layer": weights}, grid=(2, 2))["layer"]
    np.testing.assert_allclose(found, [np.sqrt(2) / 4])


def test_gradients_are_those_of_a_change_of_a_head(model):
    names = ("block/attention", "of_keras")
    before = [numpy(weight) for weight in model.weights]
    found = inspection.attention_gradients(model, IDS, lambda output: output[:, 1])
    assert {name: array.shape for name, array in found.items()} == {
        name: weights.shape for name, weights in collect_attention(model, IDS).items()
    }
    assert (found["block/attention"][1, :, :, 2:] == 0).all()
    assert np.abs(found["of_one_head"]).max() > 1e-4
    for name in names:
        # A factor ξ of one head is a factor of the rows of the output projection that read it.
        layer = {"of_keras": model.get_layer("of_keras")}.get(name)
        layer = model.get_layer("block").attention if layer is None else layer
        kernel = layer.output_dense.kernel
        whole = numpy(kernel)
        results = []
        for factor in (0.99, 1.01):
            changed = whole.copy()
            changed[1] *= factor
            kernel.assign(changed)
            results.append(numpy(model(IDS))[:, 1].sum())
        kernel.assign(whole)
        change = (results[1] - results[0]) / 0.02
        np.testing.assert_allclose(found[name][:, 1].sum(), change, rtol=0.02, atol=2e-3)
    for old, new in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(old, numpy(new))


def test_gradients_of_a_predicted_window_sum_to_its_output():
    """Which is linear in the weights, without any other path."""
    model, given = model_of(ka.LocalAttention(2, "predictive", name="local")), random(2, 5, 8)
    found = inspection.attention_gradients(model, given, ops.sum)
    np.testing.assert_allclose(found["local"].sum(), numpy(model(given)).sum(), rtol=1e-4)


def test_importance_sums_the_gradients_of_each_example():
    gradients = np.random.default_rng(0).normal(size=(3, 2, 4, 4))
    found = inspection.head_importance({"layer": gradients})["layer"]
    np.testing.assert_allclose(found, np.abs(gradients.sum((2, 3))).mean(0), rtol=1e-6)


def test_a_pruned_model_is_the_ablated_one_and_loads(model, tmp_path):
    pruned = pruned_as_ablated(model, {"block/attention": [0, 3], "of_keras": [1]}, IDS)
    assert pruned.get_layer("block").attention.num_heads == 2
    pruned.save(tmp_path / "pruned.keras")
    loaded = keras.saving.load_model(tmp_path / "pruned.keras")
    np.testing.assert_allclose(numpy(loaded(IDS)), numpy(pruned(IDS)), atol=1e-6)
    # A group goes with its key head.
    pruned = pruned_as_ablated(model, {"block/attention": [2, 3]}, IDS)
    attention = pruned.get_layer("block").attention
    assert (attention.num_heads, attention.num_key_value_heads) == (2, 1)


@pytest.mark.parametrize("changed", [inspection.ablate_heads, inspection.prune_heads])
def test_predictions_of_a_copy_leave_the_model_as_it_is(model, changed):
    """On JAX, `predict` deletes the arrays that its model had before."""
    expected = numpy(model(IDS))
    changed(model, {"of_keras": [1]}).predict(IDS, verbose=0)
    np.testing.assert_array_equal(numpy(model(IDS)), expected)


@pytest.mark.slow
def test_heads_without_an_output_projection_are_ablated():
    model = model_of(ka.Attention(2, 3, use_bias=True, name="attention"))
    given = random(2, 5, 8)
    found = numpy(inspection.ablate_heads(model, {"attention": [0]})(given))
    assert (found[..., :3] == 0).all()
    np.testing.assert_array_equal(found[..., 3:], numpy(model(given))[..., 3:])


# Layers of four heads.
KINDS = {
    "latent": (ka.MultiHeadLatentAttention, {"rope_dim": 2, "latent_dim": 6}),
    "differential": (ka.DifferentialAttention, {}),
    "differential, bias": (ka.DifferentialAttention, {"position": "relative_bias"}),
    "linear": (ka.LinearAttention, {"causal": True}),
    "general": (ka.MultiHeadAttention, {"score": "general"}),
    "gate": (ka.MultiHeadAttention, {"position": "kerple", "use_gate": True}),
    "groups": (
        ka.MultiHeadAttention,
        {"num_key_value_heads": 2, "position": ka.positions.MixedRotary((1, 5))},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_heads_of_every_kind_are_pruned(name):
    kind, options = KINDS[name]
    model = shifted(model_of(kind(4, 4, **options, name="layer")))
    pruned_as_ablated(model, {"layer": [0, 1 if name == "groups" else 2]}, random(2, 5, 8))


@keras.saving.register_keras_serializable(package="inspection")
class Unnamed(keras.Model):
    """A model whose configuration has no names of its layers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [ka.TransformerBlock(16, 2), ka.TransformerBlock(16, 2)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_layers_of_a_copy_are_found_by_their_order():
    x = random(1, 3, 8)
    keras.utils.clear_session()
    model = Unnamed()
    model(x)
    _, second = collect_attention(model, x)
    # The blocks of the copy are named "…_1" and "…_2" by Keras.
    keras.utils.clear_session()
    ka.TransformerBlock(16, 2)
    copy = inspection.ablate_heads(model, {second: [0]})
    changed = [
        sum(
            not np.array_equal(*pair) for pair in zip(a.get_weights(), b.get_weights(), strict=True)
        )
        for a, b in zip(model.blocks, copy.blocks, strict=True)
    ]
    assert changed == [0, 1]


@pytest.mark.parametrize(
    "shared",
    [ka.positions.RelativeBias(8, 20), ka.positions.Shaw(2, per_head=True)],
    ids=lambda position: type(position).__name__,
)
def test_layers_that_share_a_position_are_pruned(shared):
    layers = [ka.MultiHeadAttention(4, 4, position=shared, name=name) for name in "ab"]
    model = shifted(model_of(lambda x: layers[1](layers[0](x))))
    pruned = pruned_as_ablated(model, {"a": [0, 2], "b": [0, 2]}, random(2, 5, 8))
    assert pruned.get_layer("a").position is pruned.get_layer("b").position


@pytest.mark.slow
@pytest.mark.parametrize("seed", [14, 44])
def test_a_bias_that_is_rounded_is_the_same(seed):
    rng, layer = np.random.default_rng(seed), ka.MultiHeadAttention(4, 4, position="fire", name="a")
    model = model_of(layer)
    for weight in layer.position.weights:
        fixed = {"c": 0.1, "factor": 1.0}.get(weight.name)
        drawn = rng.normal if weight.name == "hidden_bias" else rng.uniform
        scale = {"hidden_bias": (0, 0.1)}.get(weight.name, (-1, 1))
        weight.assign(drawn(*scale, weight.shape) if fixed is None else fixed)
    assert inspection.prune_heads(model, {"a": [0, 2]}).get_layer("a").num_heads == 2


@pytest.mark.parametrize("mode", ["full", "activations"])
def test_gradients_of_what_is_computed_again(mode):
    given = random(2, 5, 8)
    models = []
    for scope in (None, mode):
        with keras.RematScope(mode=scope):
            block = ka.TransformerBlock(16, 2, name="block")
            layer = keras.layers.MultiHeadAttention(2, 4, name="of_keras")
            models.append(model_of(lambda x, layer=layer, block=block: layer(y := block(x), y)))
    models[1].set_weights(models[0].get_weights())
    for function in (collect_attention, inspection.attention_gradients):
        expected, found = (function(model, given) for model in models)
        assert list(found) == ["block/attention", "of_keras"]
        for name, array in expected.items():
            assert np.abs(array).max() > 1e-3
            np.testing.assert_allclose(found[name], array, atol=1e-5)


def test_gradients_beside_a_layer_that_is_not_collected():
    cell = ka.AttentionCell(keras.layers.GRUCell(8), "additive")
    rnn = ka.AttentionRNN(cell, return_sequences=True)
    block = ka.TransformerBlock(16, 2, name="block")
    model = model_of(lambda x, memory: block(rnn(x, memory)), (4, 8), (6, 8))
    found = inspection.attention_gradients(model, [random(1, 4, 8), random(1, 6, 8)])
    assert list(found) == ["block/attention"]


@pytest.mark.parametrize("changed", [inspection.ablate_heads, inspection.prune_heads])
def test_a_copy_has_what_its_layers_adapted(changed):
    """The mean of a `Normalization` is no variable."""
    norm, block = keras.layers.Normalization(), ka.TransformerBlock(16, 4, name="block")
    norm.adapt(300 + 50 * random(8, 5, 8))
    copy = changed(model_of(lambda x: block(norm(x))), {"block/attention": [1]})
    np.testing.assert_array_equal(numpy(copy.get_layer(norm.name).mean), numpy(norm.mean))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strings are TensorFlow's")
def test_a_copy_has_vocabularies():
    words = keras.layers.TextVectorization(output_sequence_length=4)
    words.adapt(["a wonderful movie", "not a good one"])
    x = keras.Input((), dtype="string")
    y = ka.ScaledEmbedding(20, 8, mask_zero=True)(words(x))
    model = keras.Model(x, ka.TransformerBlock(16, 2, name="block")(y))
    given = keras.ops.convert_to_tensor(["a good movie"])
    copy = inspection.ablate_heads(model, {"block/attention": [0]})
    assert copy.layers[1].get_vocabulary() == words.get_vocabulary()
    assert np.abs(numpy(copy(given)) - numpy(model(given))).max() > 1e-3


@pytest.mark.parametrize(
    "alignment",
    # With a bias by which heads attend to a key, whatever the weights.
    ["coverage", "location_sensitive", ka.alignments.Monotonic(initial_bias=2.0)],
    ids=lambda x: x if isinstance(x, str) else "monotonic",
)
def test_heads_of_a_cell_are_pruned_with_its_alignment(alignment):
    attention = ka.MultiHeadAttention(4, 4, score="additive", output_shape=8, name="attention")
    cell = ka.AttentionCell(keras.layers.GRUCell(8), attention, alignment=alignment, name="cell")
    model = shifted(model_of(ka.AttentionRNN(cell, True, name="rnn"), (5, 8), (7, 6)))
    given = [random(2, 5, 8), random(2, 7, 6)]
    pruned_as_ablated(model, {"rnn/cell/attention": [0, 2]}, given)
