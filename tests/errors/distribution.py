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
    r"`mesh` must be a `keras\.distribution\.DeviceMesh`\. Received: \[8\]": (
        TypeError,
        lambda: distribution.layout_map([8], block()),
    ),
    r"`model` must be a Keras model or layer\. Received: 'block'": (
        TypeError,
        lambda: distribution.layout_map(mesh(), "block"),
    ),
    r"`axis` must be one of the mesh's axes, \['model'\]\. Received: axis='heads'": lambda: (
        distribution.layout_map(mesh(), block(), "heads")
    ),
    r"`model` must be built\. Received: <TransformerBlock name=b, built=False>, not "
    r"built": lambda: distribution.layout_map(mesh(), TransformerBlock(8, 2, name="b")),
    r"one of the mesh's axes, \['model'\]\. Received: sequence_dim_name='sequence'": lambda: (
        distribution.SequenceParallel(layout_map=keras.distribution.LayoutMap(mesh()))
    ),
    r"`method` must be one of \('ring', 'heads'\)\. Received: method='tree'": lambda: (
        distribution.SequenceParallel(
            layout_map=keras.distribution.LayoutMap(mesh()),
            sequence_dim_name="model",
            method="tree",
        )
    ),
    r"must encode each element by its own position alone, and have no bias that sees the "
    r"queries\. Received: position=<Rotary": lambda: ops.ring_attend(
        *[keras.ops.zeros((1, 4, 2, 8))] * 3,
        "sequence",
        position=positions.Rotary(scaling="dynamic", factor=2.0, original_max_length=2),
    ),
    r"have no bias that sees the queries\. Received: position=<CoPE": lambda: ops.ring_attend(
        *[keras.ops.zeros((1, 4, 2, 8))] * 3, "sequence", position=positions.CoPE(3)
    ),
    r"inside `jax\.shard_map` over an axis of a mesh .* Received: axis_name='sequence'": lambda: (
        ops.ring_positions("sequence", 4)
    ),
    r"a multiple of 2 · devices = 4\. Received: array\.shape=\(10,\), axis=0": lambda: (
        ops.ring_order(keras.ops.arange(10), 2, axis=0)
    ),
    r"its length must be even\. Received: length 5": lambda: kernels.ring.chunks(
        0, 2, 5, zigzag=True
    ),
}
