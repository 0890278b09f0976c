"""Models of Hugging Face: `config.json` and `*.safetensors`, without their package."""

from __future__ import annotations

import json
import os
from typing import Any

import keras

from keras_attention.convert.huggingface import tensors, writing
from keras_attention.convert.huggingface.architecture import Others
from keras_attention.convert.huggingface.architectures import ARCHITECTURES, COMPOSITES
from keras_attention.convert.huggingface.config import Config, read_file
from keras_attention.convert.huggingface.generation_options import generation_options, start_tokens
from keras_attention.core import keras_private
from keras_attention.core.hints import Dtype

__all__ = ["from_huggingface", "generation_options", "start_tokens", "to_huggingface"]


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
        ValueError: the folder lacks a file, one is damaged, or there is an adapter; the
            architecture, a field of its configuration or the value of one is not supported, and the
            message names it; tensors are missing, unknown or of other shapes, or there are two
            of one that are not equal.
        ImportError: `safetensors` is not installed.

    Example:

    >>> from keras_attention import convert
    >>> model = convert.from_huggingface("gpt2")  # doctest: +SKIP
    """
    values, where = read_file(folder)
    architecture, config = _read(values, where, folder, part)
    # A part may have weights as soon as it is made.
    with keras_private.first_values() as give:
        model = architecture.model(config, dtype)
        writing.check_no_adapter(folder)
        checkpoint = tensors.Checkpoint(folder)
        # Models with a head have one more level.
        first = architecture.prefix
        prefix = first if any(name.startswith(first) for name in checkpoint.names) else ""
        others = Others(architecture, config.architecture, prefix, not _has_head(config))
        model.build(architecture.input_shape(config))
        entries = architecture.entries(model, prefix)
        tensors.read(entries, checkpoint, give, others)
    model.metadata = {"huggingface": config.values}
    return model


def to_huggingface(
    model: keras.Model, folder: str | os.PathLike[str], config: dict[str, Any] | None = None
) -> None:
    """Writes a model as a folder that `transformers` loads, with equal outputs.

    That is `config.json`, with the dtype of the weights, and `model.safetensors`. Weights of a
    former model in the folder are removed: shards with their index, and those of other formats.
    All other files are kept: of a tokenizer, and `generation_config.json`. An error halfway leaves
    the files as they were.

    Args:
        model: a result of `from_huggingface`, trained further or loaded from a `.keras` file.
        folder: path of the folder, which is created.
        config: fields of `config.json`; by default those that the model came with.

    Raises:
        ValueError: the configuration is not the model's, and the message names the field; the model
            has none, is quantized or not built; or the folder has an adapter.
        ImportError: `safetensors` is not installed.

    Example:

    >>> from keras_attention import convert
    >>> convert.to_huggingface(model, "tuned")  # doctest: +SKIP
    """
    known = (getattr(model, "metadata", None) or {}).get("huggingface")
    values = known if config is None else config
    if not isinstance(values, dict):
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
    # Without `copy`: Keras's dictionary knows the model, which would be copied too.
    values = json.loads(json.dumps(values))
    architecture, config = _read(values, "config")

    def make(values):
        architecture, config = _read(values, "config")
        return architecture.model(config, None)

    writing.check(model, values, known, make, architecture.unsaid)
    if not model.built:
        raise ValueError(f"`model` must be built, to have weights. Received: {model!r}, not built")
    prefix = architecture.prefix if _has_head(config) else ""
    writing.write(folder, architecture.entries(model, prefix), values)


def _read(values, where, folder=None, part=None):
    """The architecture of the fields of a file, and its configuration."""
    kind = values.get("model_type")
    composite = COMPOSITES.get(kind) if isinstance(kind, str) else None
    parts = (None,) if composite is None else composite.PARTS
    if part not in parts:
        raise ValueError(
            f"`part` must be one of {parts} for model_type={kind!r}. Received: part={part!r}"
        )
    if composite is not None:
        values, where = composite.tower(values, where, part)
        kind = values["model_type"]
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(
            f"'model_type' of `{where}` must be one of {sorted(ARCHITECTURES)}. Received: {kind!r}"
        )
    architecture = ARCHITECTURES[kind]
    return architecture, Config(values, architecture.fields, where, folder)


def _has_head(config):
    """Whether a model is more than the stack: `GPT2LMHeadModel` or `MarianMTModel`."""
    name = config.architecture or "Model"
    return not name.endswith("Model") or "Head" in name or name.endswith("MTModel")
