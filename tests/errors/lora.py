"""Errors of `keras_attention.enable_lora`."""

from keras_attention import TransformerBlock, enable_lora


def block():
    layer = TransformerBlock(8, 2, name="b")
    layer.build((None, None, 4))
    return layer


def twice():
    layer = block()
    enable_lora(layer, 2)
    enable_lora(layer, 2)


ROWS = {
    "no model to adapt": (
        lambda: enable_lora("block", 2),
        TypeError,
        r"`model` must be a Keras model or layer\. Received: 'block'",
    ),
    "a projection by another name": (
        lambda: enable_lora(block(), 2, projections=["query"]),
        ValueError,
        r"`projections` must be one of \('query_dense', .*\)\. Received: projections='query'",
    ),
    "adapters in a model that is not built": (
        lambda: enable_lora(TransformerBlock(8, 2, name="b"), 2),
        ValueError,
        r"`model` must be built, and have one of the `projections`\. "
        r"Received: <TransformerBlock name=b, built=False>, projections=\('query_dense', ",
    ),
    "adapters twice": (
        twice,
        ValueError,
        r"`model` must have no adapters yet\. Received: <TransformerBlock .* with adapters",
    ),
}
