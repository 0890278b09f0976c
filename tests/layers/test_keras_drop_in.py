"""`MultiHeadAttention` stands in for `keras.layers.MultiHeadAttention`, and for PyTorch's.

The same constructor, call, weights and files, and the same numbers wherever Keras's are right; for
the rest see `test_peer_defects.py`. Keras is asked for its scores throughout: on that path it
computes by the definition, on every backend and for every size.
"""

import inspect
import os
import subprocess
import sys
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import MultiHeadAttention
from tests.gradients import weight_gradients

ops = keras.ops
Theirs = keras.layers.MultiHeadAttention

ON_TORCH = pytest.mark.skipif(keras.backend.backend() != "torch", reason="compares with PyTorch")

B, T, S, D = 2, 5, 3, 6


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def booleans(*shape, seed=0):
    """A random mask in which every query has a key."""
    mask = np.random.default_rng(seed).random(shape) < 0.5
    mask[..., 0] = True
    return mask


def close(ours, theirs, tolerance=1e-5):
    ours, theirs = (ops.convert_to_numpy(x) for x in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def randomize(layer, seed=0):
    """Gives every weight a random value: biases start as zeros, and would not be compared."""
    values = [
        w if "seed" in v.path else random(*w.shape, seed=seed + i) / 2
        for i, (v, w) in enumerate(zip(layer.weights, layer.get_weights(), strict=True))
    ]
    layer.set_weights(values)


# Name: (constructor, call, shapes of query, value and perhaps key).
SELF, CROSS = ((B, T, D), (B, T, D)), ((B, T, D), (B, S, D))
CASES = {
    "self": ({}, {}, SELF),
    "cross": ({}, {}, CROSS),
    "longer keys": ({}, {}, ((B, S, D), (B, T, D))),
    "unequal features": ({}, {}, ((B, T, D), (B, S, 4))),
    "key of its own": ({}, {}, ((B, T, D), (B, S, 4), (B, S, 7))),
    "no bias": ({"use_bias": False}, {}, CROSS),
    "value_dim": ({"value_dim": 5}, {}, CROSS),
    "value_dim, no bias": ({"value_dim": 5, "use_bias": False}, {}, CROSS),
    "output_shape": ({"output_shape": 9}, {}, CROSS),
    "output_shape of two axes": ({"output_shape": (2, 3)}, {}, CROSS),
    "gate": ({"use_gate": True}, {}, CROSS),
    "gate, value_dim": ({"use_gate": True, "value_dim": 5, "use_bias": False}, {}, CROSS),
    "dropout": ({"dropout": 0.5}, {}, CROSS),
    "one head": ({"num_heads": 1}, {}, CROSS),
    "causal": ({}, {"use_causal_mask": True}, SELF),
    "causal, fewer keys": ({}, {"use_causal_mask": True}, CROSS),
    "causal, more keys": ({}, {"use_causal_mask": True}, ((B, S, D), (B, T, D))),
    "window": ({"sliding_window": 2}, {}, SELF),
    "causal window": ({"sliding_window": 2}, {"use_causal_mask": True}, SELF),
    "window, more keys": ({"sliding_window": 2}, {}, ((B, S, D), (B, T, D))),
    "mask (T, S)": ({}, {"attention_mask": booleans(T, S)}, CROSS),
    "mask (1, T, S)": ({}, {"attention_mask": booleans(1, T, S)}, CROSS),
    "mask (B, T, S)": ({}, {"attention_mask": booleans(B, T, S)}, CROSS),
    "mask (B, 1, S)": ({}, {"attention_mask": booleans(B, 1, S)}, CROSS),
    "mask (B, H, T, S)": ({}, {"attention_mask": booleans(B, 2, T, S)}, CROSS),
    "mask (B, 1, T, S)": ({}, {"attention_mask": booleans(B, 1, T, S)}, CROSS),
    "mask of ones and zeros": ({}, {"attention_mask": booleans(B, T, S).astype("float32")}, CROSS),
    "mask and causal": (
        {},
        {"attention_mask": booleans(B, T, T), "use_causal_mask": True},
        SELF,
    ),
    "axis 1 of two": ({"attention_axes": 1}, {}, ((B, T, 4, D), (B, S, 4, D))),
    "axis 2 of two": ({"attention_axes": (2,)}, {}, ((B, 4, T, D), (B, 4, S, D))),
    "last of two axes": ({"attention_axes": -2}, {}, ((B, 4, T, D), (B, 4, S, D))),
    "both axes": ({"attention_axes": (1, 2)}, {}, ((B, 2, T, D), (B, 2, S, D))),
    "all axes": ({}, {}, ((B, 2, T, D), (B, 2, S, D))),
    "axes, gate, value_dim": (
        {"attention_axes": 2, "use_gate": True, "value_dim": 5},
        {},
        ((B, 4, T, D), (B, 4, S, D)),
    ),
    "axes, output_shape": ({"attention_axes": 2, "output_shape": (2, 3)}, {}, ((B, 4, T, D),) * 2),
    "axes, causal": ({"attention_axes": 1}, {"use_causal_mask": True}, ((B, T, 4, D),) * 2),
    "axes, mask": (
        {"attention_axes": 2},
        {"attention_mask": booleans(B, 4, T, S)},
        ((B, 4, T, D), (B, 4, S, D)),
    ),
    "axes, mask of heads": (
        {"attention_axes": (2,)},
        {"attention_mask": booleans(B, 4, 2, T, S)},
        ((B, 4, T, D), (B, 4, S, D)),
    ),
    "both axes, mask": (
        {"attention_axes": (1, 2)},
        {"attention_mask": booleans(B, 2, T, 2, S)},
        ((B, 2, T, D), (B, 2, S, D)),
    ),
}


# Those whose backward passes differ.
DIFFERENTIATED = [
    "key of its own",
    "value_dim, no bias",
    "output_shape of two axes",
    "gate",
    "causal window",
    "mask (B, H, T, S)",
    "axes, causal",
    "both axes, mask",
]


@pytest.fixture(params=CASES, name="case")
def _case(request):
    """Keras's layer and ours with the same random weights, the inputs, and what the call takes."""
    constructor, call, shapes = CASES[request.param]
    constructor = {"num_heads": 2, "key_dim": 4, "kernel_initializer": "zeros", **constructor}
    theirs, ours = Theirs(**constructor), MultiHeadAttention(**constructor)
    theirs.build(*shapes)
    ours.build(*shapes)
    randomize(theirs)
    ours.set_weights(theirs.get_weights())
    return theirs, ours, [random(*shape, seed=9 + i) for i, shape in enumerate(shapes)], call


# Signatures


def parameters(function, *, required=True):
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
        and (required or parameter.default is not parameter.empty)
    }


@pytest.mark.skipif(
    "sliding_window" not in inspect.signature(Theirs).parameters,
    reason="the order of arguments is that of Keras 3.15",
)
@pytest.mark.parametrize("method", ["__init__", "call"])
def test_positional_arguments_are_those_of_keras(method):
    theirs = getattr(Theirs, method)
    ours = getattr(MultiHeadAttention, method)
    names = list(parameters(theirs))
    assert list(parameters(ours))[: len(names)] == names
    defaults = parameters(theirs, required=False)
    assert {name: parameters(ours)[name] for name in defaults} == defaults


def test_a_config_of_keras_is_a_config_of_ours():
    theirs = Theirs(
        2, 4, value_dim=3, dropout=0.1, use_bias=False, output_shape=(5, 2), attention_axes=(1,),
        sliding_window=3, kernel_initializer=keras.initializers.RandomNormal(stddev=0.3),
        kernel_regularizer=keras.regularizers.L2(0.5), activity_regularizer="l1",
        bias_constraint="non_neg", use_gate=True, seed=7, name="here", dtype="mixed_bfloat16",
    )  # fmt: skip
    config = theirs.get_config()
    ours = MultiHeadAttention.from_config(config).get_config()
    assert set(config) <= set(ours)
    for name in config:
        written, read = (
            list(c[name]) if isinstance(c[name], tuple) else c[name] for c in (config, ours)
        )
        assert read == written, name


def test_attributes_are_those_of_keras():
    layer = MultiHeadAttention(2, 4, 3, dropout=0.1, use_bias=False, attention_axes=1)
    theirs = Theirs(2, 4, 3, dropout=0.1, use_bias=False, attention_axes=1)
    for name in ("num_heads", "key_dim", "value_dim", "dropout", "use_bias", "attention_axes"):
        assert getattr(layer, name) == getattr(theirs, name), name
    layer.build((B, T, D), (B, S, D))
    for name in ("query", "key", "value", "output"):
        assert isinstance(getattr(layer, f"{name}_dense"), keras.layers.EinsumDense)


# Weights


def inside(layer):
    """Names and shapes of all weights, without the layer's own name."""
    return [(weight.path.split("/", 1)[1], tuple(weight.shape)) for weight in layer.weights]


def test_weights_have_the_names_shapes_and_order_of_keras(case):
    theirs, ours, _, _ = case
    assert inside(ours) == inside(theirs)


def test_sublayers_have_the_names_of_keras():
    layers = [cls(2, 4, use_gate=True, name="attention") for cls in (MultiHeadAttention, Theirs)]
    for layer in layers:
        layer.build((B, T, D), (B, S, D))
    ours, theirs = (
        {sub.name for sub in layer._flatten_layers() if sub.weights} for layer in layers
    )
    assert ours == theirs


def test_initial_weights_are_drawn_as_in_keras():
    """The same seed gives the same start: nothing else is drawn, and in the same order."""
    starts = []
    for cls in (MultiHeadAttention, Theirs):
        keras.utils.set_random_seed(3)
        layer = cls(2, 4, use_gate=True)
        layer.build((B, T, D), (B, S, D))
        starts.append(layer.get_weights())
    for ours, theirs in zip(*starts, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# Numbers


def test_outputs_and_scores_are_those_of_keras(case):
    theirs, ours, inputs, call = case
    expected, expected_scores = theirs(*inputs, return_attention_scores=True, **call)
    output, scores = ours(*inputs, return_attention_scores=True, **call)
    assert output.shape == expected.shape and scores.shape == expected_scores.shape
    close(output, expected)
    close(scores, expected_scores)
    close(ours(*inputs, **call), expected)


def test_weights_go_back_to_keras():
    ours, theirs = MultiHeadAttention(2, 4, use_gate=True), Theirs(2, 4, use_gate=True)
    x, y = random(B, T, D), random(B, S, D, seed=1)
    ours.build(x.shape, y.shape)
    theirs.build(x.shape, y.shape)
    randomize(ours, seed=20)
    theirs.set_weights(ours.get_weights())
    close(ours(x, y), theirs(x, y))


@pytest.mark.parametrize("case", DIFFERENTIATED, indirect=True)
def test_gradients_are_those_of_keras(case):
    theirs, ours, inputs, call = case
    shape = theirs.compute_output_shape(*(x.shape for x in inputs))
    cotangent = ops.convert_to_tensor(random(*shape, seed=30))

    def both(layer):
        def loss(*inputs):
            output, scores = layer(*inputs, return_attention_scores=True, **call)
            return ops.sum(output * cotangent) + ops.sum(ops.square(scores))

        of_weights, of_inputs = weight_gradients(layer, loss, inputs)
        names = [variable.path.split("/", 1)[1] for variable in layer.trainable_variables]
        return dict(zip([*names, "query", "value", "key"], of_weights + of_inputs, strict=False))

    found, expected = both(ours), both(theirs)
    assert len(found) == len(ours.trainable_variables) + len(inputs)
    for name in expected:
        # A bias of all keys adds the same to every score: its gradient is rounding.
        assert name == "key/bias" or np.abs(expected[name]).max() > 1e-3, name
        close(found[name], expected[name], 1e-4)


def test_masks_of_embeddings_count_as_in_keras():
    ids, other = np.array([[1, 2, 3, 0, 0], [3, 4, 1, 1, 0]]), np.array([[5, 4, 0], [2, 1, 3]])
    answers = []
    for cls in (MultiHeadAttention, Theirs):
        embeddings = [keras.layers.Embedding(7, D, mask_zero=True) for _ in range(2)]
        inputs = [keras.Input((None,), dtype="int32") for _ in range(2)]
        x, y = (embed(i) for embed, i in zip(embeddings, inputs, strict=True))
        outputs = cls(2, 4)(x, y, return_attention_scores=True)
        model = keras.Model(inputs, outputs)
        randomize(model)
        answers.append(model.predict([ids, other], verbose=0))
    real = ids != 0  # A padded query has the output 0 here, and the output's bias in Keras.
    (output, scores), (expected, expected_scores) = answers
    close(output[real], expected[real])
    close(scores, expected_scores)
    assert (np.moveaxis(scores, 1, -1)[real][0, 2] == 0).all()


def test_training_gives_the_weights_that_keras_gives():
    x, y, target = random(8, T, D), random(8, S, D, seed=1), random(8, T, D, seed=2)
    trained = []
    for cls in (MultiHeadAttention, Theirs):
        inputs = [keras.Input((None, D)), keras.Input((None, D))]
        model = keras.Model(inputs, cls(2, 4)(*inputs))
        randomize(model)
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
        model.fit([x, y], target, batch_size=4, epochs=2, shuffle=False, verbose=0)
        trained.append(model.get_weights())
    for ours, theirs in zip(*trained, strict=True):
        close(ours, theirs, 1e-4)


# Files


def classifier(cls):
    """A model with two attentions: self, with every option, and cross, with unequal sizes."""
    ids, memory = keras.Input((None,), dtype="int32"), keras.Input((None, 4))
    x = keras.layers.Embedding(11, D)(ids)
    x = cls(2, 4, value_dim=5, dropout=0.1, use_gate=True)(x, x, return_attention_scores=True)[0]
    x = keras.layers.LayerNormalization()(x)
    x = cls(3, 2, use_bias=False, output_shape=7)(x, memory)
    return keras.Model([ids, memory], keras.layers.Dense(3)(x))


@pytest.mark.parametrize(
    "writer, reader", [(Theirs, MultiHeadAttention), (MultiHeadAttention, Theirs)]
)
def test_weight_files_load_in_both_directions(writer, reader, tmp_path):
    inputs = [np.array([[1, 2, 3, 4], [5, 6, 7, 8]]), random(B, S, 4)]
    written, read = classifier(writer), classifier(reader)
    randomize(written, seed=40)
    randomize(read, seed=60)
    written.save_weights(tmp_path / "model.weights.h5")
    read.load_weights(tmp_path / "model.weights.h5")
    close(read.predict(inputs, verbose=0), written.predict(inputs, verbose=0))


class Subclassed(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, x):
        return self.layer(x, x)


@pytest.mark.parametrize("output_shape", [None, 5, (3, 2)])
def test_a_model_with_it_has_a_summary(output_shape, capsys):
    expected = {None: "(2, 5, 6)", 5: "(2, 5, 5)", (3, 2): "(2, 5, 3, 2)"}[output_shape]
    subclassed = Subclassed(MultiHeadAttention(2, 4, output_shape=output_shape))
    subclassed(random(B, T, D))
    inputs = keras.Input((T, D), batch_size=B)
    layer = MultiHeadAttention(2, 4, output_shape=output_shape)
    for model in (subclassed, keras.Model(inputs, layer(inputs, inputs))):
        model.summary(line_length=100)
        assert expected in capsys.readouterr().out


# PyTorch


@ON_TORCH
@pytest.mark.parametrize("mask", [None, "boolean", "causal", "bias"])
def test_attend_is_torchs_scaled_dot_product_attention(mask):
    import torch

    query, key, value = (
        ops.convert_to_tensor(random(B, n, 2, size, seed=i))
        for i, (n, size) in enumerate([(T, 4), (T, 4), (T, 3)])
    )
    allowed, bias = booleans(B, 2, T, T), ops.convert_to_tensor(random(B, 2, T, T, seed=5))
    theirs, ours = {
        None: ({}, {}),
        "boolean": ({"attn_mask": ops.convert_to_tensor(allowed)}, {"mask": allowed}),
        "causal": ({"is_causal": True}, {"pattern": "causal"}),
        "bias": ({"attn_mask": bias}, {"bias": bias}),
    }[mask]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (query, key, value)), **theirs
    ).transpose(1, 2)
    close(keras_attention.ops.attend(query, key, value, **ours), expected)


@ON_TORCH
@pytest.mark.parametrize("sizes", [(D, D, D), (D, 4, 8)], ids=["equal sizes", "unequal sizes"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_layer_is_torchs_multihead_attention(sizes, masked):
    import torch

    heads, dim = 2, sizes[0]
    query, key, value = (
        random(B, n, size, seed=i) for i, (n, size) in enumerate(zip((T, S, S), sizes, strict=True))
    )
    theirs = torch.nn.MultiheadAttention(
        dim, heads, kdim=sizes[1], vdim=sizes[2], batch_first=True, device=ops.zeros(()).device
    )
    ours = MultiHeadAttention(heads, dim // heads)
    ours.build(query.shape, value.shape, key.shape)
    randomize(ours)
    weights = {w.path.split("/", 1)[1]: ops.convert_to_tensor(w) for w in ours.weights}
    kernels = [weights[f"{n}/kernel"].reshape(-1, dim).T for n in ("query", "key", "value")]
    names = ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
    with torch.no_grad():
        if len(set(sizes)) == 1:
            theirs.in_proj_weight.copy_(torch.cat(kernels))
        else:
            for name, kernel in zip(names, kernels, strict=True):
                getattr(theirs, name).copy_(kernel)
        theirs.in_proj_bias.copy_(
            torch.cat([weights[f"{n}/bias"].flatten() for n in ("query", "key", "value")])
        )
        theirs.out_proj.weight.copy_(weights["attention_output/kernel"].reshape(dim, dim).T)
        theirs.out_proj.bias.copy_(weights["attention_output/bias"])
    allowed, real = booleans(T, S), np.array([[True, True, False], [True, True, True]])
    arguments, call = {}, {}
    if masked:
        arguments = {
            "attn_mask": ops.convert_to_tensor(~allowed),
            "key_padding_mask": ops.convert_to_tensor(~real),
        }
        call = {"attention_mask": allowed, "value_mask": real}
    expected, expected_scores = theirs(
        *map(ops.convert_to_tensor, (query, key, value)), average_attn_weights=False, **arguments
    )
    output, scores = ours(query, value, key, return_attention_scores=True, **call)
    close(output, expected.detach())
    close(scores, expected_scores.detach())


# LoRA


@pytest.mark.parametrize("cls", [MultiHeadAttention, keras_attention.Attention])
def test_lora_trains_and_survives_saving(cls, tmp_path):
    x, y, target = random(8, T, D), random(8, S, D, seed=1), random(8, T, 8, seed=2)
    layer = cls(2, 4, **({"output_shape": 8} if cls is MultiHeadAttention else {}))
    inputs = [keras.Input((None, D)), keras.Input((None, D))]
    model = keras.Model(inputs, layer(*inputs))
    randomize(model)
    before = model.predict([x, y], verbose=0)
    names = ["query_dense", "key_dense", "value_dense", "output_dense"]
    for name in names[: 4 if cls is MultiHeadAttention else 3]:
        getattr(layer, name).enable_lora(2)
    close(model.predict([x, y], verbose=0), before)

    frozen = [np.array(ops.convert_to_numpy(w)) for w in layer.non_trainable_variables]
    assert frozen
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss="mse")
    model.fit([x, y], target, epochs=3, verbose=0)
    after = model.predict([x, y], verbose=0)
    assert np.abs(after - before).max() > 1e-2
    for weight, value in zip(layer.non_trainable_variables, frozen, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(weight), value)

    model.save(tmp_path / "lora.keras")
    close(keras.saving.load_model(tmp_path / "lora.keras").predict([x, y], verbose=0), after)

    model.save_weights(tmp_path / "lora.weights.h5")
    plain = keras.Model(inputs, cls.from_config(layer.get_config())(*inputs))
    plain.load_weights(tmp_path / "lora.weights.h5")
    close(plain.predict([x, y], verbose=0), after)


# Attention along chosen axes

OTHER_ROWS = {
    "batch and free axis": (2, (2, 3, 4, 8), (3, 2, 5, 8)),
    "two free axes": (3, (2, 3, 4, 5, 8), (2, 4, 3, 6, 8)),
    "a free axis to broadcast": (2, (2, 3, 4, 8), (2, 1, 5, 8)),
}


@pytest.mark.parametrize("name", OTHER_ROWS)
def test_rows_of_other_examples_are_not_attended_to(name):
    axes, query_shape, value_shape = OTHER_ROWS[name]
    layer = MultiHeadAttention(2, 3, attention_axes=axes)
    message = r"Sizes of axis \d, which is not attended over, must be equal"
    with pytest.raises(ValueError, match=message):
        layer(keras.KerasTensor(query_shape), keras.KerasTensor(value_shape))
    layer.build(query_shape, query_shape)
    with pytest.raises(ValueError, match=message):
        layer(random(*query_shape), random(*value_shape))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_rows_of_other_examples_are_not_attended_to_where_sizes_are_unknown(jit_compile):
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("nothing to compile")
    query, value = (keras.Input((None, None, None, 8)) for _ in range(2))
    model = keras.Model([query, value], MultiHeadAttention(2, 3, attention_axes=3)(query, value))
    model.compile(jit_compile=jit_compile)
    arrays = [random(2, 3, 4, 5, 8), random(2, 3, 4, 6, 8)]
    close(model.predict(arrays, verbose=0), model(arrays))
    # As many rows, of other axes. Where lengths are unknown, the error is the backend's.
    with pytest.raises(Exception, match=r"must be equal|[Rr]eshape"):
        model.predict([arrays[0], random(2, 4, 3, 6, 8)], verbose=0)


# int8: every model is quantized and saved here, and all are read in one other process.


def ids_model(function):
    ids = keras.Input((None,), dtype="int32")
    return keras.Model(ids, function(ids)), [np.array([[1, 2, 3, 4, 0], [5, 6, 7, 0, 0]])]


def vectors_model(function, *sizes):
    inputs = [keras.Input((None, size)) for size in sizes]
    shapes = [(B, n, size) for n, size in zip((T, S, S), sizes, strict=False)]
    return (
        keras.Model(inputs, function(*inputs)),
        [random(*shape, seed=i) for i, shape in enumerate(shapes)],
    )


def axes_model(x):
    return keras.Model(x, MultiHeadAttention(2, 4, attention_axes=2)(x)), [random(B, 3, T, 8)]


def tied(ids):
    embedding = keras_attention.ScaledEmbedding(11, 8, mask_zero=True)
    return embedding(keras_attention.FeedForward(16)(embedding(ids)), reverse=True)


def small_transformer(ids):
    x = keras_attention.ScaledEmbedding(11, 8, mask_zero=True)(ids)
    x = keras_attention.SinCosPositionEmbedding()(x)
    for normalize_first in (False, True):
        x = keras_attention.TransformerBlock(
            16, 2, normalize_first=normalize_first, causal=True, gated=normalize_first
        )(x)
    return keras.layers.Dense(3)(keras_attention.AttentionPooling(num_heads=2, key_dim=4)(x))


def nested(x):
    inputs = keras.Input((None, 8))
    block = keras_attention.TransformerBlock(16, 2, name="block")
    return keras.Model(inputs, block(inputs), name="inner")(x)


INT8 = {
    "MultiHeadAttention": lambda: vectors_model(
        MultiHeadAttention(2, 4, value_dim=5, output_shape=(2, 3), use_gate=True), 8, 6, 4
    ),
    "MultiHeadAttention with axes": lambda: axes_model(keras.Input((3, None, 8))),
    "Attention": lambda: vectors_model(keras_attention.Attention(2, 4), 8, 6),
    "Attention, general score": lambda: vectors_model(
        keras_attention.Attention(2, 4, score="general", use_bias=True), 8, 6
    ),
    "SelfAttention": lambda: vectors_model(keras_attention.SelfAttention(2, 4, causal=True), 8),
    "TransformerBlock": lambda: vectors_model(keras_attention.TransformerBlock(16, 2), 8),
    "FeedForward": lambda: vectors_model(keras_attention.FeedForward(16, gated=True), 8),
    "ScaledEmbedding": lambda: ids_model(keras_attention.ScaledEmbedding(11, 8, mask_zero=True)),
    "ScaledEmbedding, tied": lambda: ids_model(tied),
    "AttentionPooling": lambda: vectors_model(
        keras_attention.AttentionPooling(num_queries=2, num_heads=2, key_dim=4), 8
    ),
    "a transformer": lambda: ids_model(small_transformer),
    "a model in a model": lambda: vectors_model(nested, 8),
}

READ_ALL = """
import gc, pathlib, sys
import keras_attention
import keras
import numpy as np
gc.freeze()  # Keras collects garbage after each layer that it quantizes.
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.keras")):
    model = keras.saving.load_model(path)
    model.run_eagerly = True
    with np.load(path.with_suffix(".npz")) as inputs:
        inputs = [inputs[name] for name in sorted(inputs)]
    given = inputs if isinstance(model.input, list) else inputs[0]
    answer = model.predict(given, verbose=0)
    np.save(path.with_suffix(".npy"), answer)
"""


def quantize(model, mode="int8", **kwargs):
    with warnings.catch_warnings():
        # Keras says of each layer without weights, such as dropout, that it stays as it is.
        warnings.filterwarnings("ignore", message=".*does not have a `quantize")
        model.quantize(mode, **kwargs)


def quantized(layer, mode="int8"):
    return [sub.name for sub in layer._flatten_layers() if sub.quantization_mode == mode]


@pytest.fixture(scope="module", name="reloaded")
def _reloaded(tmp_path_factory):
    """Of each model: its outputs in float, after quantization, and in a process that loaded it."""
    folder = tmp_path_factory.mktemp("int8")
    answers = {}
    for number, (name, make) in enumerate(INT8.items()):
        model, inputs = make()
        randomize(model)
        model.run_eagerly = True  # A program for each model takes longer than all else here.
        given = inputs if isinstance(model.input, list) else inputs[0]
        before = model.predict(given, verbose=0)
        quantize(model, filters="query" if name == "SelfAttention" else None)
        after = model.predict(given, verbose=0)
        path = folder / f"{number}.keras"
        model.save(path)
        np.savez(path.with_suffix(".npz"), *inputs)
        answers[name] = (before, after, path.with_suffix(".npy"), quantized(model))
    run = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(folder)],
        cwd=Path(keras_attention.__file__).parent.parent,
        env=os.environ
        | {"KERAS_BACKEND": keras.backend.backend(), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
    )
    answers["log"] = run.stdout + run.stderr
    return answers


@pytest.mark.parametrize("name", INT8)
def test_int8_model_loads_in_a_fresh_process(name, reloaded):
    before, after, path, layers = reloaded[name]
    assert layers
    # The quantized model computes nearly what the float one did, and by other weights.
    assert 0 < np.abs(after - before).max() < 0.1 * np.abs(before).max()
    assert path.exists(), reloaded["log"]
    close(np.load(path), after)


QUANTIZATIONS = {
    "int8, weights alone": lambda: keras.quantizers.Int8QuantizationConfig(
        activation_quantizer=None
    ),
    "int4, small blocks": lambda: keras.quantizers.Int4QuantizationConfig(block_size=8),
}


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_how_a_model_was_quantized_is_saved(name, tmp_path):
    options = inspect.signature(keras.quantizers.Int4QuantizationConfig).parameters
    if "blocks" in name and "block_size" not in options:
        pytest.skip(f"Keras {keras.__version__} quantizes no blocks")
    model, (inputs,) = vectors_model(keras_attention.SelfAttention(2, 4, causal=True), 16)
    randomize(model)
    quantize(model, mode=None, config=QUANTIZATIONS[name]())
    expected = model.predict(inputs, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert quantized(again, name[:4]) == quantized(model, name[:4]) != []
    np.testing.assert_array_equal(again.predict(inputs, verbose=0), expected)


def test_files_that_name_a_mode_alone_still_load():
    layer = MultiHeadAttention(2, 4)
    layer(random(B, T, 8))
    config = {**layer.get_build_config(), "quantized": {"query": "int8", "value": "int8"}}
    again = MultiHeadAttention(2, 4)
    again.build_from_config(config)
    assert quantized(again) == ["query", "value"]


def test_int8_embedding_gives_logits_of_its_dequantized_table():
    embedding = keras_attention.ScaledEmbedding(11, 8)
    ids = np.arange(11)[None]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), embedding])
    randomize(model)
    table = ops.convert_to_numpy(embedding.embeddings)
    quantize(model)
    x = random(B, T, 8)
    rows = ops.convert_to_numpy(embedding(ids))[0] / np.sqrt(8)
    assert 0 < np.abs(rows - table).max() < 0.02
    close(embedding(x, reverse=True), x @ rows.T)
    close(embedding.embeddings, rows)
