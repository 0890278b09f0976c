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
from keras_attention.convert.huggingface.config import Config, read_file
from keras_attention.hints import Dtype

__all__ = ["from_huggingface", "to_huggingface"]


def from_huggingface(
    folder: str | os.PathLike[str], dtype: Dtype | None = None, part: str | None = None
) -> keras.Model:
    """A Keras model with the weights of a folder that `transformers` wrote.

    The folder has `config.json` and `model.safetensors`, or several files with an index. Tensors
    are read one at a time into weights; pickles (`*.bin`) are never opened.

    The model computes what `transformers` computes for the same folder, or the folder is refused.
    Each field of `config.json` is read, ignored since it changes nothing in what is computed, or
    refused. A field that is absent has the default of `transformers`, except sizes, which must be
    there; null is refused where `transformers` gives it no meaning. The class is the first of
    `architectures`; where there are none it is the base model, and tensors of heads are left out.

    Args:
        folder: path of the folder.
        dtype: the dtype policy of the model, such as "bfloat16"; Keras's by default, whatever the
            files have.
        part: "text" or "vision", the tower of CLIP to read; None for models of one part.

    Returns:
        An `Encoder`, a `Decoder` or an `EncoderDecoder`, built, without dropout. It has no mask of
        padding tokens of its own: pass `mask`.

    Raises:
        ValueError: the folder lacks a file, or one is damaged; the architecture, a field of its
            configuration or the value of one is not supported, and the message names it; tensors
            are missing, unknown or of other shapes.
        ImportError: `safetensors` is not installed.

    Example:

    >>> from keras_attention import convert
    >>> model = convert.from_huggingface("gpt2")  # doctest: +SKIP
    """
    values, where = read_file(folder)
    architecture, config = _read(values, where, folder, part)
    model = architecture.model(config, dtype)
    checkpoint = tensors.Checkpoint(folder)
    prefix = _prefix(checkpoint.names, architecture)
    unused = _unused(architecture, config, prefix)
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
    architecture, config = _read(values, "config")
    prefix = architecture.PREFIX if _has_head(config) else ""
    folder = pathlib.Path(folder)
    entries = architecture.entries(model, prefix)
    folder.mkdir(parents=True, exist_ok=True)
    tensors.write(entries, folder / "model.safetensors")
    text = json.dumps(values, indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def _read(values, where, folder=None, part=None):
    """The architecture of the fields of a file, and its configuration."""
    kind = values.get("model_type")
    composite = COMPOSITES.get(kind)
    parts = (None,) if composite is None else composite.PARTS
    if part not in parts:
        raise ValueError(
            f"`part` must be one of {parts} for model_type={kind!r}. Received: part={part!r}"
        )
    if composite is not None:
        values, where = composite.tower(values, where, part)
        kind = values["model_type"]
    if kind not in ARCHITECTURES:
        raise ValueError(
            f"'model_type' of `{where}` must be one of {sorted(ARCHITECTURES)}. Received: {kind!r}"
        )
    architecture = ARCHITECTURES[kind]
    return architecture, Config(values, architecture.FIELDS[kind], where, folder)


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


def _unused(architecture, config, prefix):
    """Whether a tensor is not read, by its name."""
    unused = getattr(architecture, "unused", lambda name: False)
    if config.architecture is None and prefix:
        # The base model: what is beside it is of a head.
        return lambda name: unused(name) or not name.startswith(prefix)
    return unused


def _has_head(config):
    """Whether a model is more than the stack: `GPT2LMHeadModel`, not `GPT2Model`."""
    name = config.architecture or "Model"
    return not name.endswith("Model") or "Head" in name
