"""Converters: the weights of a layer of Keras, KerasHub or PyTorch, in a new layer of this package.

Each takes a built layer and returns another, with equal outputs, that is saved, loaded and trained
like any layer of this package. The original is only read. It is recognized by the name of its
class, so that its package need not be installed.

If the original returns NaN or the mean of all values for a query with no key to attend to, or
ignores a mask, the new layer does not: see `docs/masks.md`.
"""

from keras_attention.convert.huggingface import (
    from_huggingface,
    load_adapter,
    save_adapter,
    to_huggingface,
)
from keras_attention.convert.huggingface.generation_options import generation_options, start_tokens
from keras_attention.convert.keras_layers import from_keras, from_keras_hub
from keras_attention.convert.torch_modules import from_torch

__all__ = [
    "from_huggingface",
    "from_keras",
    "from_keras_hub",
    "from_torch",
    "generation_options",
    "load_adapter",
    "save_adapter",
    "start_tokens",
    "to_huggingface",
]
