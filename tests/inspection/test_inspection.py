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


def pruned_as_ablated(model, heads, given):
    """The pruned model, which gives what the ablated one does, and that is not the model's own."""
    expected = numpy(inspection.ablate_heads(model, heads)(given))
    assert np.abs(expected - numpy(model(given))).max() > 1e-4
    pruned = inspection.prune_heads(model, heads)
    np.testing.assert_allclose(numpy(pruned(given)), expected, atol=1e-5)
    return pruned


@pytest.fixture(scope="module")
def model():
    """A block with grouped heads, a layer of Keras and a pooling; all weights are random."""
    keras.utils.set_random_seed(1)
    tokens = keras.Input((None,), dtype="int32")
    x = ka.ScaledEmbedding(20, 8, mask_zero=True)(tokens)
    x = ka.TransformerBlock(
        16, 4, num_key_value_heads=2, qk_norm="rms", position="relative_bias", name="block"
    )(x)
    x = keras.layers.MultiHeadAttention(3, 4, name="of_keras")(x, x)
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


def test_gradients_of_a_layer_of_one_head_of_keras_and_of_a_predicted_window():
    x = keras.Input((4, 6))
    y = keras.layers.Attention(name="luong")([x, x])
    y = ka.LocalAttention(2, "predictive", name="local")(y)
    model = keras.Model(x, y)
    given = random(2, 4, 6)
    found = inspection.attention_gradients(model, given, ops.sum)
    # The output is linear in the weights of the last layer, without any other path.
    np.testing.assert_allclose(found["local"].sum(), numpy(model(given)).sum(), rtol=1e-4)
    assert np.abs(found["luong"]).max() > 1e-3


def test_importance_sums_the_gradients_of_each_example():
    gradients = np.random.default_rng(0).normal(size=(3, 2, 4, 4))
    found = inspection.head_importance({"layer": gradients})["layer"]
    np.testing.assert_allclose(found, np.abs(gradients.sum((2, 3))).mean(0), rtol=1e-6)


HEADS = {"block/attention": [0, 3], "of_keras": [1]}


def test_a_pruned_model_is_the_ablated_one_and_loads(model, tmp_path):
    pruned, ablated = pruned_as_ablated(model, HEADS, IDS), inspection.ablate_heads(model, HEADS)
    assert pruned.count_params() < ablated.count_params() == model.count_params()
    assert pruned.get_layer("block").attention.num_heads == 2
    pruned.save(tmp_path / "pruned.keras")
    loaded = keras.saving.load_model(tmp_path / "pruned.keras")
    np.testing.assert_allclose(numpy(loaded(IDS)), numpy(ablated(IDS)), atol=1e-5)


def test_a_group_of_heads_goes_with_its_key_head(model):
    pruned = pruned_as_ablated(model, {"block/attention": [2, 3]}, IDS)
    attention = pruned.get_layer("block").attention
    assert (attention.num_heads, attention.num_key_value_heads) == (2, 1)


@pytest.mark.slow
def test_heads_without_an_output_projection_are_ablated():
    x = keras.Input((None, 8))
    model = keras.Model(x, ka.Attention(2, 3, use_bias=True, name="attention")(x))
    given = keras.random.normal((2, 4, 8))
    found = numpy(inspection.ablate_heads(model, {"attention": [0]})(given))
    assert (found[..., :3] == 0).all()
    np.testing.assert_array_equal(found[..., 3:], numpy(model(given))[..., 3:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer",
    [
        lambda: ka.MultiHeadLatentAttention(4, 4, rope_dim=2, latent_dim=6, name="layer"),
        lambda: ka.DifferentialAttention(4, 4, name="layer"),
        lambda: ka.DifferentialAttention(4, 4, position="relative_bias", name="layer"),
        lambda: ka.LinearAttention(4, 4, causal=True, name="layer"),
        lambda: ka.MultiHeadAttention(4, 4, score="general", name="layer"),
        lambda: ka.MultiHeadAttention(4, 4, position="kerple", use_gate=True, name="layer"),
        lambda: ka.MultiHeadAttention(
            4, 4, num_key_value_heads=2, position=ka.positions.MixedRotary((1, 5)), name="layer"
        ),
    ],
)
def test_heads_of_every_kind_are_pruned(layer):
    x = keras.Input((None, 8))
    model = shifted(keras.Model(x, layer()(x)))
    gone = {"layer": [0, 1] if model.get_layer("layer").num_key_value_heads else [0, 2]}
    pruned_as_ablated(model, gone, keras.random.normal((2, 5, 8)))


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
    "position",
    [lambda: ka.positions.RelativeBias(8, 20), lambda: ka.positions.Shaw(2, per_head=True)],
)
def test_layers_that_share_a_position_are_pruned(position):
    shared = position()
    x = y = keras.Input((5, 8))
    for n in range(2):
        y = ka.MultiHeadAttention(4, 4, position=shared, name=f"layer_{n}")(y)
    heads = {"layer_0": [0, 2], "layer_1": [0, 2]}
    pruned = pruned_as_ablated(shifted(keras.Model(x, y)), heads, keras.random.normal((2, 5, 8)))
    assert pruned.get_layer("layer_0").position is pruned.get_layer("layer_1").position


@pytest.mark.slow
@pytest.mark.parametrize("seed", [14, 44])
def test_a_bias_that_is_rounded_is_the_same(seed):
    x, rng = keras.Input((5, 8)), np.random.default_rng(seed)
    layer = ka.MultiHeadAttention(4, 4, position="fire", name="layer")
    model = keras.Model(x, layer(x))
    for weight in layer.position.weights:
        fixed = {"c": 0.1, "factor": 1.0}.get(weight.name)
        drawn = rng.normal if weight.name == "hidden_bias" else rng.uniform
        scale = {"hidden_bias": (0, 0.1)}.get(weight.name, (-1, 1))
        weight.assign(drawn(*scale, weight.shape) if fixed is None else fixed)
    assert inspection.prune_heads(model, {"layer": [0, 2]}).get_layer("layer").num_heads == 2


@pytest.mark.parametrize("mode", ["full", "activations"])
def test_gradients_of_what_is_computed_again(mode):
    given = random(2, 5, 8)
    models = []
    for scope in (None, mode):
        with keras.RematScope(mode=scope):
            x = keras.Input((5, 8))
            y = ka.TransformerBlock(16, 2, name="block")(x)
            y = keras.layers.MultiHeadAttention(2, 4, name="of_keras")(y, y)
            models.append(keras.Model(x, keras.layers.Dense(2)(y)))
    models[1].set_weights(models[0].get_weights())
    for function in (collect_attention, inspection.attention_gradients):
        expected, found = (function(model, given) for model in models)
        assert list(found) == ["block/attention", "of_keras"]
        for name, array in expected.items():
            assert np.abs(array).max() > 1e-3
            np.testing.assert_allclose(found[name], array, atol=1e-5)


def test_gradients_beside_a_layer_that_is_not_collected():
    x, memory = keras.Input((4, 8)), keras.Input((6, 8))
    cell = ka.AttentionCell(keras.layers.GRUCell(8), "additive")
    y = ka.AttentionRNN(cell, return_sequences=True)(x, memory)
    model = keras.Model([x, memory], ka.TransformerBlock(16, 2, name="block")(y))
    given = [np.ones((1, 4, 8), "float32"), np.ones((1, 6, 8), "float32")]
    assert list(inspection.attention_gradients(model, given)) == ["block/attention"]


def test_a_copy_has_what_its_layers_adapted():
    """The mean of a `Normalization` is no variable."""
    given = np.random.default_rng(0).normal(300, 50, size=(8, 5, 8)).astype("float32")
    norm = keras.layers.Normalization()
    norm.adapt(given)
    x = keras.Input((5, 8))
    block = ka.TransformerBlock(16, 4, name="block")
    model = keras.Model(x, block(norm(x)))
    heads = {"block/attention": [1]}
    copies = [inspection.ablate_heads(model, heads), inspection.prune_heads(model, heads)]
    block.attention.output_dense.kernel.assign(
        np.where(np.arange(4)[:, None, None] == 1, 0, numpy(block.attention.output_dense.kernel))
    )
    for copy in copies:
        np.testing.assert_allclose(numpy(copy(given)), numpy(model(given)), atol=1e-5)


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
    [None, "coverage", "location_sensitive", ka.alignments.Monotonic(initial_bias=2.0)],
    ids=lambda x: x if isinstance(x, str | None) else "monotonic",
)
def test_heads_of_a_cell_are_pruned_with_its_alignment(alignment):
    attention = ka.MultiHeadAttention(4, 4, score="additive", output_shape=8, name="attention")
    cell = ka.AttentionCell(keras.layers.GRUCell(8), attention, alignment=alignment, name="cell")
    x, memory = keras.Input((5, 8)), keras.Input((7, 6))
    model = keras.Model([x, memory], ka.AttentionRNN(cell, True, name="rnn")(x, memory))
    given = [random(2, 5, 8), random(2, 7, 6)]
    pruned_as_ablated(shifted(model), {"rnn/cell/attention": [0, 2]}, given)
