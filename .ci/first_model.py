"""A first model with the installed package: `first_model.py save`, then `load` in a fresh process.

Run away from the checkout, in an environment that holds the wheel and a backend, and nothing else.
"""

import importlib.metadata
import pathlib
import sys

import keras
import numpy as np

import keras_attention
from keras_attention.visualization import attention_html, collect_attention

IDS = np.array([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 9]], "int32")


def save():
    """Trains a model, and writes it, its export and a page of its attention."""
    ids = keras.Input((None,), dtype="int32")
    x = keras_attention.ScaledEmbedding(10, 8, mask_zero=True)(ids)
    x = keras_attention.SinCosPositionEmbedding()(x)
    x = keras_attention.TransformerBlock(16, 2, position="rotary", name="block")(x)
    x = keras_attention.AttentionPooling(name="pooling")(x)
    model = keras.Model(ids, keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile("adam", "binary_crossentropy")
    model.fit(IDS, np.array([[0.0], [1.0], [1.0]]), verbose=0)
    model.save("first.keras")
    if keras.backend.backend() == "tensorflow":
        model.export("first", verbose=False)
    np.save("first.npy", model.predict(IDS, verbose=0))
    weights = collect_attention(model, IDS)["block/attention"][0]
    attention_html(weights, ["a", "b", "c", None], path="a.html")


def load():
    """Reads what `save` wrote, in another process."""
    expected = np.load("first.npy")
    loaded = keras.saving.load_model("first.keras")
    np.testing.assert_allclose(loaded.predict(IDS, verbose=0), expected, rtol=1e-5)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        exported = tf.saved_model.load("first")
        np.testing.assert_allclose(exported.serve(IDS).numpy(), expected, rtol=1e-5)
    # The page has its script and its style, which are files of the package.
    page = pathlib.Path("a.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "<script" in page and "<style" in page


if __name__ == "__main__":
    installed = pathlib.Path(keras_attention.__file__)
    assert installed.is_relative_to(sys.prefix), f"not the wheel's package: {installed}"
    version = importlib.metadata.version("keras-attention-layers")
    assert keras_attention.__version__ == version, (keras_attention.__version__, version)
    {"save": save, "load": load}[sys.argv[1]]()
    print(f"keras_attention {version}: {sys.argv[1]}")
