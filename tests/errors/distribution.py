"""Errors of `keras_attention.distribution`."""

import keras

from keras_attention import TransformerBlock, distribution, kernels, ops, positions


def mesh():
    return keras.distribution.DeviceMesh((1,), ["model"], ["cpu:0"])


def block():
    layer = TransformerBlock(8, 2)
    layer.build((None, None, 4))
    return layer


ROWS = {
    "no mesh": (
        lambda: distribution.layout_map([8], block()),
        TypeError,
        r"`mesh` must be a `keras\.distribution\.DeviceMesh`\. Received: \[8\]",
    ),
    "no model to lay out": (
        lambda: distribution.layout_map(mesh(), "block"),
        TypeError,
        r"`model` must be a Keras model or layer\. Received: 'block'",
    ),
    "no such axis of a mesh": (
        lambda: distribution.layout_map(mesh(), block(), "heads"),
        ValueError,
        r"`axis` must be one of the mesh's axes, \['model'\]\. Received: axis='heads'",
    ),
    "a model to lay out that is not built": (
        lambda: distribution.layout_map(mesh(), TransformerBlock(8, 2, name="b")),
        ValueError,
        r"`model` must be built\. Received: <TransformerBlock name=b, built=False>, not built",
    ),
    "no axis for sequences": (
        lambda: distribution.SequenceParallel(layout_map=keras.distribution.LayoutMap(mesh())),
        ValueError,
        r"one of the mesh's axes, \['model'\]\. Received: sequence_dim_name='sequence'",
    ),
    "a method of sequences that is none": (
        lambda: distribution.SequenceParallel(
            layout_map=keras.distribution.LayoutMap(mesh()),
            sequence_dim_name="model",
            method="tree",
        ),
        ValueError,
        r"`method` must be one of \('ring', 'heads'\)\. Received: method='tree'",
    ),
    "a position that needs the last of all": (
        lambda: ops.ring_attend(
            *[keras.ops.zeros((1, 4, 2, 8))] * 3,
            "sequence",
            position=positions.Rotary(scaling="dynamic", factor=2.0, original_max_length=2),
        ),
        ValueError,
        r"must encode each element by its own position alone, and have no bias that sees the "
        r"queries\. Received: position=<Rotary",
    ),
    "a position that compares keys with queries": (
        lambda: ops.ring_attend(
            *[keras.ops.zeros((1, 4, 2, 8))] * 3, "sequence", position=positions.CoPE(3)
        ),
        ValueError,
        r"have no bias that sees the queries\. Received: position=<CoPE",
    ),
    "a position of Transformer-XL in a ring": (
        lambda: ops.ring_attend(
            *[keras.ops.zeros((1, 4, 2, 8))] * 3, "sequence", position="transformer_xl"
        ),
        ValueError,
        r"have no bias that sees the queries\. Received: position=<TransformerXL",
    ),
    "a ring that is none": (
        lambda: ops.ring_positions("sequence", 4),
        ValueError,
        r"inside `jax\.shard_map` over an axis of a mesh .* Received: axis_name='sequence'",
    ),
    "an order of a sequence that devices do not divide": (
        lambda: ops.ring_order(keras.ops.arange(10), 2, axis=0),
        ValueError,
        r"a multiple of 2 · devices = 4\. Received: array\.shape=\(10,\), axis=0",
    ),
    "a sequence of two chunks that is odd": (
        lambda: kernels.ring.chunks(0, 2, 5, zigzag=True),
        ValueError,
        r"its length must be even\. Received: length 5",
    ),
}
