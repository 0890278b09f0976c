"""Errors of `keras_attention.enable_lora`, and of legacy files of parts that are not trained."""

import tempfile

import keras

from keras_attention import TransformerBlock, enable_lora


def block():
    layer = TransformerBlock(8, 2, name="b")
    layer.build((None, None, 4))
    return layer


def twice():
    layer = block()
    enable_lora(layer, 2)
    enable_lora(layer, 2)


def saved(freeze):
    model = keras.Sequential([keras.Input((3, 4)), TransformerBlock(8, 2, name="b")])
    freeze(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.h5")


def again(model):
    model.layers[0].attention.trainable = False
    model.layers[0].attention.query_dense.trainable = True


ROWS = {
    r"save the model as `.keras`\. Received: layer .* with \['.*kernel', .* of its part": lambda: (
        saved(lambda model: enable_lora(model, 2))
    ),
    r"save the model as `.keras`\. Received: layer .* with int8 of its part": lambda: saved(
        lambda model: model.layers[0].attention.query_dense.quantize("int8")
    ),
    r"save the model as `.keras`\. Received: layer .* with \['.*'\] of its part 'query'": lambda: (
        saved(again)
    ),
    r"`model` must be a Keras model or layer\. Received: 'block'": (
        TypeError,
        lambda: enable_lora("block", 2),
    ),
    r"`projections` must be one of \('query_dense', .*\)\. "
    r"Received: projections='query'": lambda: enable_lora(block(), 2, projections=["query"]),
    r"`model` must be built, and have one of the `projections`\. "
    r"Received: <TransformerBlock name=b, built=False>, projections=\('query_dense', ": lambda: (
        enable_lora(TransformerBlock(8, 2, name="b"), 2)
    ),
    r"`model` must have no adapters yet\. Received: <TransformerBlock .* with adapters": twice,
}
