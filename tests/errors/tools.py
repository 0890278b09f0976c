"""What is raised by what is done with a model: inspected, drawn, pruned, adapted, distributed."""

import warnings

import keras
import numpy as np

import keras_attention as ka
from keras_attention import distribution, enable_lora, inspection, kernels, ops, visualization
from keras_attention.visualization import labels
from tests.errors.calls import X, block, built, in_folder, without, zeros

WEIGHTS = np.ones((1, 1, 2, 2)) / 2
HEADS = ka.MultiHeadAttention


def model_of(layer=None, shape=(None, X.shape[-1])):
    """A functional model of a function of its input, by default a layer called "layer"."""
    x = keras.Input(shape)
    return keras.Model(x, (layer or HEADS(2, 4, name="layer"))(x))


def block_of(**options):
    return ka.TransformerBlock(8, 4, key_dim=2, name="layer", **options)


def prune(*heads, of=None, name="layer"):
    return lambda: inspection.prune_heads(model_of(of), {name: list(heads)})


def ablate(change=lambda model: None, of=None):
    """Ablates a head of a model after a change to it."""
    model = model_of(of)
    change(model)
    inspection.ablate_heads(model, {"layer": [0]})


def gradients(layer, shape=X.shape[1:]):
    return inspection.attention_gradients(model_of(layer, shape), np.zeros((2, *shape), "float32"))


class Custom(keras.layers.Layer):
    def call(self, x, return_attention_scores=False):
        return (x, x[:, None]) if return_attention_scores else x


@keras.saving.register_keras_serializable(package="errors")
class Owner(keras.layers.Layer):
    """A layer around an attention that it makes, or has, and then with a weight for each head."""

    def __init__(self, attention=None, **kwargs):
        super().__init__(**kwargs)
        given = isinstance(attention, dict)
        self.attention = keras.saving.deserialize_keras_object(attention) if given else attention
        self.makes = attention is None

    def get_config(self):
        given = None if self.makes else keras.saving.serialize_keras_object(self.attention)
        return {**super().get_config(), "attention": given}

    def build(self, shape):
        if self.makes:
            self.attention = HEADS(2, 4, name="attention")
        else:
            self.add_weight(name="of_heads", shape=(self.attention.num_heads,))
        if not self.attention.built:
            self.attention.build(shape)

    def call(self, x):
        return self.attention(x)


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


def sharing_a_table(x):
    position = ka.positions.Shaw(2, per_head=True)
    y = HEADS(2, 4, position=position, name="first")(x)
    return HEADS(2, 4, position=position, name="second")(y)


def saved_with(change):
    """Saves a model in a legacy file after a change to its attention."""
    model = keras.Sequential([keras.Input((3, 4)), block(name="b")])
    change(model.layers[0].attention)
    in_folder({}, lambda folder: model.save(f"{folder}/model.h5"))


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
    "of 1 with B=1 and T=2": lambda: inspection.attention_rollout([WEIGHTS, np.ones((1, 1, 2, 3))]),
    "'a' must be weights.*from -0.5 to": lambda: inspection.attention_entropy({"a": WEIGHTS - 1}),
    "not negative.*nan to nan": lambda: inspection.attention_rollout([WEIGHTS * np.nan]),
    "`pip install scipy`": (
        ImportError,
        without("scipy.sparse", lambda: inspection.attention_flow([WEIGHTS])),
    ),
    r"grid=\(2, 2\), scores of 0 ": lambda: inspection.attention_distance([WEIGHTS], grid=(2, 2)),
    "'custom' of class Custom": (TypeError, lambda: gradients(Custom(name="custom"))),
    "one axis of positions.*weights of 'attention'": lambda: gradients(
        HEADS(2, 4, attention_axes=(1, 2), name="attention"), (2, 2, 4)
    ),
    r"gradients of \['layer'\]": lambda: inspection.head_importance(
        gradients(ka.DifferentialAttention(2, 4, name="layer"))
    ),
    # Heads that are pruned or ablated
    r"`heads` .*heads=\{\}": lambda: inspection.prune_heads(model_of(), {}),
    r"\['layer/attention'\].*'decoder'": prune(0, of=block_of(), name="decoder"),
    "that project their inputs.*Attention": prune(0, of=lambda x: ka.Attention(name="layer")(x, x)),
    r"from 0 to 3.*\[4\]": prune(4, of=block_of(), name="layer/attention"),
    "an output projection reads.*class Attention": prune(0, of=ka.Attention(2, 4, name="layer")),
    r"\[0, 1\] of 2 heads of 'layer', in 2 groups": prune(0, 1),
    "'layer' with 4 heads in 2 groups": prune(
        0, 2, of=ka.DifferentialAttention(4, 4, num_key_value_heads=2, name="layer")
    ),
    r"as many of each.*\{'layer/attention': \[0\]\}": prune(
        0,
        of=lambda x: block(causal=True, cross_attention=True, name="layer")(x, x),
        name="layer/attention",
    ),
    "which another layer made": prune(0, of=Owner(name="layer"), name="layer/attention"),
    "no adapters": lambda: ablate(lambda model: enable_lora(model, 1)),
    "has a `build`.* and 0 by its configuration": prune_what_has_no_build,
    r"of_heads' of shape \(2,\)": prune(
        0, of=Owner(HEADS(2, 4, name="attention"), name="layer"), name="layer/attention"
    ),
    "values of its own": lambda: ablate(of=ka.Attention(2, 4, num_key_value_heads=1, name="layer")),
    "must not depend on the number of heads": (
        prune(0, of=ka.DifferentialAttention(2, 4, position="alibi", name="layer")),
        prune(0, of=block_of(position="alibi"), name="layer/attention"),
    ),
    "`qk_norm` of a head.* of 'layer'": prune(
        0, of=HEADS(4, 4, qk_norm=keras.layers.LayerNormalization(axis=(-2, -1)), name="layer")
    ),
    r"the same heads.*\['first', 'second'\]": lambda: inspection.prune_heads(
        model_of(sharing_a_table), {"first": [0], "second": [1]}
    ),
    "quantized layers.*MultiHeadAttention": lambda: ablate(
        lambda model: model.get_layer("layer").query_dense.quantize("int8")
    ),
    # Masks of a model
    "be a Keras model. Received: Dense": (TypeError, lambda: ka.check_masks(keras.layers.Dense(2))),
    "Sequential 'a'": lambda: ka.check_masks(keras.Sequential([keras.layers.Dense(2)], name="a")),
    # Visualization
    "an array of numbers.*list": (TypeError, html([["a", "b"]])),
    "no layer 'pooling'.*of: a, b/c": (
        KeyError,
        lambda: labels.Scores(a=0, **{"b/c": 1})["pooling"],
    ),
    "keys=2, series=3": lambda: visualization.plot_attention(WEIGHTS, series=zeros(3)),
    "`vmax` must be": lambda: visualization.plot_attention(WEIGHTS, vmax=0),
    r"images.shape=\(1, 4\), weights.shape=\(1, 2, 2\)": lambda: visualization.overlay_attention(
        zeros(1, 4), zeros(1, 2, 2)
    ),
    "images=2, weights=1": lambda: visualization.overlay_attention(zeros(2, 4, 4), zeros(1, 2, 2)),
    "Received: <function": (TypeError, lambda: visualization.collect_attention(lambda x: x, X)),
    "name=a, built=False>, not built": lambda: visualization.collect_attention(
        ka.SelfAttention(2, 4, name="a"), X
    ),
    "FeedForward": lambda: visualization.collect_attention(built(ka.FeedForward(8, name="a")), X),
    r"a layer at least. Received: \{\}": html({}),
    r"'first' .*\(3,\)": html({"first": np.ones(3)}),
    r"one row of a batch.*\(2, 1, 3, 3\)": html(np.ones((2, 1, 3, 3))),
    "must be finite.*numbers from nan to nan": html(np.full((3, 3), np.nan)),
    "no 'a'": html({"a": np.ones((1, 1))}, {"b": ["x"]}),
    "`query_tokens` .*'abc'": (TypeError, html(np.ones((3, 3)), "abc")),
    "`key_tokens` .*3 positions.*1 words of 2": html(np.ones((2, 3)), ["a", "b"], ["c", None]),
    "`pip install matplotlib`": (
        ImportError,
        without("matplotlib.figure", lambda: visualization.plot_attention(np.ones((2, 2)))),
    ),
    # Adapters, and files of layers in which not all is trained
    r"`.keras`.*\['.*'\] of its part '": (
        lambda: saved_with(lambda attention: enable_lora(attention, 2)),
        lambda: saved_with(train_the_query_alone),
    ),
    "with int8": lambda: saved_with(lambda attention: attention.query_dense.quantize("int8")),
    "`model` .*Keras layer.*'block'": (
        TypeError,
        lambda: enable_lora("block", 2),
        lambda: distribution.layout_map(mesh(), "block"),
    ),
    "projections='query'": lambda: enable_lora(built(block()), 2, projections=["query"]),
    "b, built=False>, projections": lambda: enable_lora(block(name="b"), 2),
    "must have no adapters yet.* with adapters": lambda: [
        enable_lora(layer, 2) for layer in [built(block(name="b"))] * 2
    ],
    # Distribution
    r"`mesh` .*\[8\]": (TypeError, lambda: distribution.layout_map([8], built(block()))),
    "axis='heads'": lambda: distribution.layout_map(mesh(), built(block()), "heads"),
    "b, built=False>, not built": lambda: distribution.layout_map(mesh(), block(name="b")),
    r"\['model'\].*sequence_dim_name='sequence'": parallel,
    "`method` .*'tree'": lambda: parallel(sequence_dim_name="model", method="tree"),
    "sees the queries.*<(CoPE|Rotary)": (
        around(ka.positions.CoPE(3)),
        around(ka.positions.Rotary(scaling="dynamic", factor=2.0, original_max_length=2)),
    ),
    "axis_name='sequence'": lambda: ops.ring_positions("sequence", 4),
    r"array\.shape=\(10,\), axis=0": lambda: ops.ring_order(zeros(10), 2, axis=0),
    "must be even.*length 5": lambda: kernels.ring.chunks(0, 2, 5, zigzag=True),
}
