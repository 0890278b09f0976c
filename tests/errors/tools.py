"""What is raised by what is done with a model: inspected, drawn, pruned, adapted, distributed."""

import tempfile
import warnings

import keras
import numpy as np

import keras_attention as ka
from keras_attention import distribution, enable_lora, inspection, kernels, ops, visualization
from keras_attention.visualization import labels
from tests.errors.calls import X, block, built, without, zeros

WEIGHTS = np.ones((1, 1, 2, 2)) / 2
HEADS = ka.MultiHeadAttention


def model_of(cls=HEADS, num_heads=2, key_dim=4, **options):
    """A functional model with a layer called "layer"."""
    x = keras.Input((None, X.shape[-1]))
    return keras.Model(x, cls(num_heads, key_dim, name="layer", **options)(x))


def model_of_block(**options):
    x = keras.Input((None, X.shape[-1]))
    return keras.Model(x, ka.TransformerBlock(8, 4, key_dim=2, name="layer", **options)(x))


def prune(*heads, name="layer", model=model_of, **options):
    return lambda: inspection.prune_heads(model(**options), {name: heads})


def prune_inside(layer):
    """Prunes the attention of a layer around it."""
    x = keras.Input((None, X.shape[-1]))
    inspection.prune_heads(keras.Model(x, layer(x)), {"layer/attention": [0]})


def with_another_attention():
    class Custom(keras.layers.Layer):
        def call(self, x, return_attention_scores=False):
            return (x, x[:, None]) if return_attention_scores else x

    x = keras.Input((None, X.shape[-1]))
    inspection.attention_gradients(keras.Model(x, Custom(name="custom")(x)), X)


def over_pictures():
    x = keras.Input((2, 2, 4))
    layer = HEADS(2, 4, attention_axes=(1, 2), name="attention")
    inspection.attention_gradients(keras.Model(x, layer(x, x)), np.zeros((1, 2, 2, 4), "float32"))


@keras.saving.register_keras_serializable(package="errors")
class Owner(keras.layers.Layer):
    """A layer whose configuration has nothing of the attention that it makes."""

    def build(self, shape):
        self.attention = HEADS(2, 4, name="attention")
        self.attention.build(shape)

    def call(self, x):
        return self.attention(x)


@keras.saving.register_keras_serializable(package="errors")
class Sized(Owner):
    """A layer around an attention that it is given, with a weight of its own for each head."""

    def __init__(self, attention, **kwargs):
        super().__init__(**kwargs)
        if isinstance(attention, dict):
            attention = keras.saving.deserialize_keras_object(attention)
        self.attention = attention

    def get_config(self):
        attention = keras.saving.serialize_keras_object(self.attention)
        return {**super().get_config(), "attention": attention}

    def build(self, shape):
        if not self.attention.built:
            self.attention.build(shape)
        self.of_heads = self.add_weight(name="of_heads", shape=(self.attention.num_heads,))


@keras.saving.register_keras_serializable(package="errors")
class Unbuilt(keras.Model):
    """A model of several inputs without a `build`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.block = ka.TransformerBlock(16, 2, cross_attention=True, name="block")

    def call(self, x, context):
        return self.block(x, context)


def prune_what_has_no_build():
    model = Unbuilt()
    model(X, X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        inspection.prune_heads(model, {"block/attention": [0], "block/cross_attention": [0]})


def prune_a_shared_table():
    x, position = keras.Input((None, X.shape[-1])), ka.positions.Shaw(2, per_head=True)
    y = HEADS(2, 4, position=position, name="first")(x)
    y = HEADS(2, 4, position=position, name="second")(y)
    inspection.prune_heads(keras.Model(x, y), {"first": [0], "second": [1]})


def prune_one_of_two():
    x = keras.Input((None, X.shape[-1]))
    y = block(causal=True, cross_attention=True, name="layer")(x, x)
    inspection.prune_heads(keras.Model(x, y), {"layer/attention": [0]})


def ablate_quantized():
    model = model_of()
    model.get_layer("layer").query_dense.quantize("int8")
    inspection.ablate_heads(model, {"layer": [0]})


def with_adapters():
    model = model_of()
    enable_lora(model, 1)
    inspection.ablate_heads(model, {"layer": [0]})


def prune_unprojected():
    x = keras.Input((None, X.shape[-1]))
    inspection.prune_heads(keras.Model(x, ka.Attention(name="layer")(x, x)), {"layer": [0]})


def importance_of_differences():
    model = model_of(ka.DifferentialAttention)
    inspection.head_importance(inspection.attention_gradients(model, X))


def adapted_twice():
    layer = built(block(name="b"))
    enable_lora(layer, 2)
    enable_lora(layer, 2)


def saved_with(change):
    """Saves a model in a legacy file after a change to its attention."""
    model = keras.Sequential([keras.Input((3, 4)), block(name="b")])
    change(model.layers[0].attention)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.h5")


def train_the_query_alone(attention):
    attention.trainable = False
    attention.query_dense.trainable = True


def mesh():
    return keras.distribution.DeviceMesh((1,), ["model"], ["cpu:0"])


def parallel(**options):
    layouts = keras.distribution.LayoutMap(mesh())
    return distribution.SequenceParallel(layout_map=layouts, **options)


def around(position):
    return lambda: ops.ring_attend(*[zeros(1, 4, 2, 8)] * 3, "sequence", position=position)


def html(scores, *tokens):
    return lambda: visualization.attention_html(scores, *tokens or (None,))


ROWS = {
    # Inspection
    "`scores` must be a dict .*ndarray": (TypeError, lambda: inspection.attention_entropy(WEIGHTS)),
    r"'a' .*shape \(1, 2, 2\)": lambda: inspection.attention_entropy({"a": WEIGHTS[0]}),
    r"`scores` must have a layer at least.*\{\}": lambda: inspection.attention_rollout({}),
    r"\(1, 1, 2, 3\) of 1 with B=1 and T=2": lambda: inspection.attention_rollout(
        [WEIGHTS, np.ones((1, 1, 2, 3))]
    ),
    "'a' must be weights.*from -0.5 to -0.5": lambda: inspection.attention_entropy(
        {"a": WEIGHTS - 1}
    ),
    "not negative.*nan to nan": lambda: inspection.attention_rollout([WEIGHTS * np.nan]),
    "`pip install scipy`": (
        ImportError,
        without("scipy.sparse", lambda: inspection.attention_flow([WEIGHTS])),
    ),
    r"grid=\(2, 2\), scores of 0 ": lambda: inspection.attention_distance([WEIGHTS], grid=(2, 2)),
    "'custom' of class Custom": (TypeError, with_another_attention),
    "one axis of positions.*weights of 'attention'": over_pictures,
    r"gradients of \['layer'\]": importance_of_differences,
    # Heads that are pruned or ablated
    r"`heads` .*heads=\{\}": lambda: inspection.prune_heads(model_of(), {}),
    r"\['layer/attention'\].*'decoder'": prune(0, name="decoder", model=model_of_block),
    "that project their inputs.*class Attention": prune_unprojected,
    r"from 0 to 3.*\[4\]": prune(4, name="layer/attention", model=model_of_block),
    "an output projection reads.*class Attention": prune(0, cls=ka.Attention),
    r"\[0, 1\] of 2 heads of 'layer', in 2 groups": prune(0, 1),
    "'layer' with 4 heads in 2 groups": prune(
        0, 2, cls=ka.DifferentialAttention, num_heads=4, num_key_value_heads=2
    ),
    r"as many of each.*\{'layer/attention': \[0\]\}": prune_one_of_two,
    "'layer/attention', which another layer made": lambda: prune_inside(Owner(name="layer")),
    "no adapters": with_adapters,
    "has a `build`.* and 0 by its configuration": prune_what_has_no_build,
    r"of_heads' of shape \(2,\)": lambda: prune_inside(
        Sized(HEADS(2, 4, name="attention"), name="layer")
    ),
    "values of its own for each head": lambda: inspection.ablate_heads(
        model_of(ka.Attention, num_key_value_heads=1), {"layer": [0]}
    ),
    "must not depend on the number of heads": (
        ValueError,
        prune(0, cls=ka.DifferentialAttention, position="alibi"),
        prune(0, name="layer/attention", model=model_of_block, position="alibi"),
    ),
    "`qk_norm` of a head.* of 'layer'": prune(
        0, num_heads=4, qk_norm=keras.layers.LayerNormalization(axis=(-2, -1))
    ),
    r"the same heads.*\['first', 'second'\]": prune_a_shared_table,
    "quantized layers.*MultiHeadAttention": ablate_quantized,
    # Masks of a model
    "`model` must be a Keras model. Received: Dense": (
        TypeError,
        lambda: ka.check_masks(keras.layers.Dense(2)),
    ),
    "Sequential 'plain'": lambda: ka.check_masks(
        keras.Sequential([keras.layers.Dense(2)], name="plain")
    ),
    # Visualization
    "an array of numbers.*list": (TypeError, html([["a", "b"]])),
    "decoder/attention": (KeyError, lambda: labels.Scores()["decoder/attention"]),
    "Received: function": (TypeError, lambda: visualization.collect_attention(lambda x: x, X)),
    "SelfAttention 'a', not built": lambda: visualization.collect_attention(
        ka.SelfAttention(2, 4, name="a"), X
    ),
    "FeedForward 'plain'": lambda: visualization.collect_attention(
        built(ka.FeedForward(8, name="plain")), X
    ),
    r"a layer at least. Received: \{\}": html({}),
    r"'first' .*\(3,\)": html({"first": np.ones(3)}),
    r"one row of a batch.*\(2, 1, 3, 3\)": html(np.ones((2, 1, 3, 3))),
    "numbers from -1.0 to -1.0": html(-np.ones((3, 3))),
    "no 'a'": html({"a": np.ones((1, 1))}, {"b": ["x"]}),
    "`query_tokens` .*'abc'": (TypeError, html(np.ones((3, 3)), "abc")),
    "`key_tokens` .*3 positions.*1 words of 2": html(np.ones((2, 3)), ["a", "b"], ["c", None]),
    "`pip install matplotlib`": (
        ImportError,
        without("matplotlib.figure", lambda: visualization.plot_attention(np.ones((2, 2)))),
    ),
    # Adapters, and files of layers in which not all is trained
    r"`.keras`.*\['.*'\] of its part '": (
        ValueError,
        lambda: saved_with(lambda attention: enable_lora(attention, 2)),
        lambda: saved_with(train_the_query_alone),
    ),
    "`.keras`.* with int8 of its part": lambda: saved_with(
        lambda attention: attention.query_dense.quantize("int8")
    ),
    "Keras model or layer.*'block'": (
        TypeError,
        lambda: enable_lora("block", 2),
        lambda: distribution.layout_map(mesh(), "block"),
    ),
    "projections='query'": lambda: enable_lora(built(block()), 2, projections=["query"]),
    "b, built=False>, projections": lambda: enable_lora(block(name="b"), 2),
    "must have no adapters yet.* with adapters": adapted_twice,
    # Distribution
    r"`mesh` .*\[8\]": (TypeError, lambda: distribution.layout_map([8], built(block()))),
    "axis='heads'": lambda: distribution.layout_map(mesh(), built(block()), "heads"),
    "b, built=False>, not built": lambda: distribution.layout_map(mesh(), block(name="b")),
    r"\['model'\].*sequence_dim_name='sequence'": parallel,
    "`method` .*'tree'": lambda: parallel(sequence_dim_name="model", method="tree"),
    "sees the queries.*<(CoPE|Rotary)": (
        ValueError,
        around(ka.positions.CoPE(3)),
        around(ka.positions.Rotary(scaling="dynamic", factor=2.0, original_max_length=2)),
    ),
    "axis_name='sequence'": lambda: ops.ring_positions("sequence", 4),
    r"array\.shape=\(10,\), axis=0": lambda: ops.ring_order(zeros(10), 2, axis=0),
    "must be even.*length 5": lambda: kernels.ring.chunks(0, 2, 5, zigzag=True),
}
