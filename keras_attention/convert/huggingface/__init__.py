"""Models of Hugging Face: `config.json` and `*.safetensors`, without their package."""

from __future__ import annotations

import copy
import json
import os
import pathlib
from typing import Any

import keras

from keras_attention import keras_private
from keras_attention.convert.huggingface import tensors
from keras_attention.convert.huggingface.architectures import ARCHITECTURES, COMPOSITES
from keras_attention.convert.huggingface.config import Config
from keras_attention.hints import Dtype

__all__ = ["from_huggingface", "to_huggingface"]


def from_huggingface(
    folder: str | os.PathLike[str], dtype: Dtype | None = None, part: str | None = None
) -> keras.Model:
    """A Keras model with the weights of a folder that `transformers` wrote.

    The folder has `config.json` and `model.safetensors`, or several files with an index. Tensors
    are read one at a time into weights; pickles (`*.bin`) are never opened.

    Args:
        folder: path of the folder.
        dtype: the dtype policy of the model, such as "bfloat16"; Keras's by default, whatever the
            files have.
        part: "text" or "vision", the tower of CLIP to read; None for models of one part.

    Returns:
        An `Encoder`, a `Decoder` or an `EncoderDecoder`, built, without dropout. It has no mask of
        padding tokens of its own: pass `mask`.

    Raises:
        ValueError: the folder lacks a file, or one is damaged; the architecture or a field of its
            configuration is not supported; tensors are missing, unknown or of other shapes.
        ImportError: `safetensors` is not installed.

    Example:

    >>> from keras_attention import convert
    >>> model = convert.from_huggingface("gpt2")  # doctest: +SKIP
    """
    config = _part(Config.of(folder), part)
    architecture = _architecture(config)
    model = architecture.model(config, dtype)
    config.check_read()
    checkpoint = tensors.Checkpoint(folder)
    prefix = _prefix(checkpoint.names, architecture)
    unused = getattr(architecture, "unused", lambda name: False)
    with keras_private.first_values() as give:
        model.build(_input_shape(architecture, config))
        entries = architecture.entries(model, prefix)
        tensors.read(entries, checkpoint, give, unused, _tied(model))
    model.metadata = {"huggingface": config.values}
    return model


def to_huggingface(
    model: keras.Model, folder: str | os.PathLike[str], config: dict[str, Any] | None = None
) -> None:
    """Writes a model as a folder that `transformers` loads, with equal outputs.

    That is `config.json` and `model.safetensors`; those of a tokenizer are not part of a model.

    Args:
        model: a result of `from_huggingface`, trained further or loaded from a `.keras` file.
        folder: path of the folder, which is created.
        config: fields of `config.json`; by default those that the model came with.

    Raises:
        ValueError: the model does not have such a configuration, or another one, or is quantized.
        ImportError: `safetensors` is not installed.

    Example:

    >>> from keras_attention import convert
    >>> convert.to_huggingface(model, "tuned")  # doctest: +SKIP
    """
    values = config or (getattr(model, "metadata", None) or {}).get("huggingface")
    if values is None:
        raise ValueError(
            "`model` must be a result of `from_huggingface`, or come with the `config` of one. "
            f"Received: {model!r}, config={config!r}"
        )
    quantized = sorted(
        layer.name
        for layer in keras_private.sublayers(model, recursive=True)
        if getattr(layer, "quantization_mode", None) is not None
    )
    if quantized:
        raise ValueError(
            "`model` must not be quantized: `transformers` would read its integers as weights. "
            f"Received: {len(quantized)} quantized layers, {quantized[:3]}"
        )
    values = copy.deepcopy(values)
    given = Config(values, "config")
    architecture = _architecture(given)
    prefix = architecture.PREFIX if _has_head(values) else ""
    folder = pathlib.Path(folder)
    entries = architecture.entries(model, prefix)
    folder.mkdir(parents=True, exist_ok=True)
    tensors.write(entries, folder / "model.safetensors")
    text = json.dumps(values, indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def _part(config, name):
    """The configuration of a part of a model of several."""
    composite = COMPOSITES.get(config["model_type"])
    parts = (None,) if composite is None else composite.PARTS
    if name not in parts:
        raise ValueError(
            f"`part` must be one of {parts} for model_type={config['model_type']!r}. "
            f"Received: part={name!r}"
        )
    return config if composite is None else composite.part(config, name)


def _architecture(config):
    kind = config["model_type"]
    if kind not in ARCHITECTURES:
        raise ValueError(
            f"'model_type' of `{config.where}` must be one of {sorted(ARCHITECTURES)}. "
            f"Received: {kind!r}"
        )
    return ARCHITECTURES[kind]


def _tied(model):
    """The table of the embeddings, if logits are of it too."""
    logits = getattr(model, "logits", None)
    return model.embeddings.tokens.table if logits is not None and logits.tied else None


def _input_shape(architecture, config):
    """The shape of the inputs, to create the weights: of tokens, if the architecture has none."""
    shape = getattr(architecture, "input_shape", None)
    return (None, None) if shape is None else shape(config)


def _prefix(names, architecture):
    """What names of tensors begin with: models with a head have one more level."""
    prefix = architecture.PREFIX
    return prefix if any(name.startswith(prefix) for name in names) else ""


def _has_head(values):
    """Whether a model is more than the stack: `GPT2LMHeadModel`, not `GPT2Model`."""
    return not any(
        name.endswith("Model") and "Head" not in name for name in values["architectures"]
    )
