"""What people read: paths of variables, names of operations in a graph, pictures of a model."""

import re

import keras
import pytest

import keras_attention
from keras_attention import positions, scores

WIDTH = 8


def model_of(layer_of):
    """A model with the layers "first" and "second", made by `layer_of(name)`."""
    x = inputs = keras.Input((None, WIDTH), name="x")
    for name in ("first", "second"):
        x = layer_of(name)(x)
    return keras.Model(inputs, x, name="whole")


def block(name, **options):
    return keras_attention.TransformerBlock(16, 2, name=name, **options)


LAYERS = {
    "block": block,
    "relative_bias": lambda name: block(name, position="relative_bias"),
    "shaw": lambda name: block(name, position=positions.Shaw(3)),
    "disentangled": lambda name: block(
        name, position=positions.Disentangled(8, 6, keras.layers.LayerNormalization())
    ),
    "additive": lambda name: keras_attention.Attention(score="additive", name=name),
    "concat": lambda name: keras_attention.Attention(2, 4, score=scores.Concat(3), name=name),
    "norms": lambda name: block(name, qk_norm="rms", num_key_value_heads=1, use_sink=True),
    "pooling": lambda name: keras_attention.AttentionPooling(num_queries=2, name=name),
}


@pytest.mark.parametrize("name", LAYERS)
def test_paths_of_variables_begin_with_their_layer_and_are_distinct(name):
    # Keras numbers what it was given no name for.
    found = [re.sub(r"_\d+", "", variable.path) for variable in model_of(LAYERS[name]).variables]
    first, second = (
        {path.split("/", 1)[1] for path in found if path.startswith(f"{layer}/")}
        for layer in ("first", "second")
    )
    assert first == second and len(found) == 2 * len(first) > 0


def test_a_slot_built_by_the_user_is_saved_with_a_layer_that_is_not_built_yet():
    table = positions.RelativeBias()
    table.build((None, None, 2, 4), (None, None, 2, 4))
    layer = keras_attention.MultiHeadAttention(2, 4, position=table)
    copy = keras_attention.MultiHeadAttention.from_config(layer.get_config())
    assert copy.position.built == table.built


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorBoard shows its graphs")
def test_operations_of_a_graph_stand_under_their_layer():
    tf = pytest.importorskip("tensorflow")
    model = model_of(block)
    traced = tf.function(model).get_concrete_function(tf.TensorSpec((None, None, WIDTH)))
    names = [node.name for node in traced.graph.as_graph_def().node]
    for layer in ("first", "second"):
        for part in ("attention", "feed_forward", "attention_norm", "feed_forward_norm"):
            # TensorFlow numbers a scope that is entered twice, once to build and once to call.
            scope = re.compile(rf"whole(_1)?/{layer}(_1)?/{part}(_1)?/")
            assert any(map(scope.match, names)), (scope, names[:40])


def test_the_summary_and_the_picture_of_a_model_name_its_layers():
    model, lines = model_of(block), []
    model.summary(print_fn=lines.append, expand_nested=True)
    text = "\n".join(lines)
    assert "first (TransformerBlock)" in text and "second (TransformerBlock)" in text
    pytest.importorskip("pydot")
    text = keras.utils.model_to_dot(model, show_layer_names=True).to_string()
    for name in ("first", "second", "TransformerBlock"):
        assert name in text
