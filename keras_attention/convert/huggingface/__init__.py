"""Models of Hugging Face: `config.json` and `*.safetensors`, without their package."""

import json
import os
from typing import Any

import keras

from keras_attention import saving
from keras_attention.convert.huggingface import adapters, tensors, writing
from keras_attention.convert.huggingface.architecture import Others
from keras_attention.convert.huggingface.architectures import ARCHITECTURES, COMPOSITES
from keras_attention.convert.huggingface.config import Config, read_file
from keras_attention.core import keras_private
from keras_attention.core.hints import Dtype
from keras_attention.sequences import shapes


def from_huggingface(
    folder: str | os.PathLike[str],
    dtype: Dtype | None = None,
    part: str | None = None,
    head: bool = True,
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
        head: whether to read the head of the class. Without it a model of any folder returns
            states (B, T, D), such as an encoder of the folder of a masked language model.

    Returns:
        An `Encoder`, a `Decoder` or an `EncoderDecoder`, built, without dropout. It has no mask of
        padding tokens of its own: pass `mask`. The output is that of the class: states; logits of
        tokens; of a classifier of texts or images (B, labels), of tokens (B, T, labels), of the
        ends of answers (B, T, 2), first and last. `model.metadata["huggingface"]` has the fields,
        such as the names of labels, "id2label".

    Raises:
        ValueError: the folder lacks a file, one is damaged or in another format, which the message
            says how to convert, or there is an adapter; the architecture, a field of its
            configuration or the value of one is not supported, and the message names it; tensors
            are missing, unknown or of other shapes, or there are two of one that are not equal.
        ImportError: `safetensors` is not installed.

    >>> from keras_attention import convert
    >>> model = convert.from_huggingface("gpt2")  # doctest: +SKIP
    """
    head = shapes.check_flag("head", head)
    values, where = read_file(folder)
    architecture, config = _read(values, where, folder, part, head)
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

    >>> from keras_attention import convert
    >>> convert.to_huggingface(model, "tuned")  # doctest: +SKIP
    """
    known, values = _fields(model, config)
    architecture, config = _read(values, "config")

    def make(values):
        architecture, config = _read(values, "config")
        return architecture.model(config, None)

    unsaid = architecture.unsaid
    writing.check(model, values, known, make, unsaid(model) if callable(unsaid) else unsaid)
    saving.check_built("model", model)
    prefix = architecture.prefix if _has_head(config) else ""
    writing.write(folder, architecture.entries(model, prefix), values)


def load_adapter(model: keras.Model, folder: str | os.PathLike[str], merge: bool = True) -> None:
    r"""Reads an adapter in the format of `peft`, a low-rank update of weights, onto a model.

    The folder has `adapter_config.json` and `adapter_model.safetensors`: pairs of matrices A and B
    of rank r, for `W + (lora_alpha / r) · B A` in place of W (Hu et al. 2021), of projections,
    embeddings, logits or experts; and whole tensors, as of `modules_to_save`.

    Args:
        model: a result of `from_huggingface`, of the folder that the adapter was trained for.
        folder: path of the adapter's folder.
        merge: whether to add the updates to the weights, of several adapters one after another.
            Otherwise they become adapters of Keras's dense layers, to be trained on, and all else
            but whole tensors is frozen. Heads share a matrix there, so those of queries, keys and
            values become as large as their kernels.

    Raises:
        ValueError: a file is missing or damaged; a field of `adapter_config.json` is not supported,
            such as `use_dora` or another `peft_type`; a tensor is not of the model, or of one that
            it has once for tokens and logits; without `merge`, a module is no dense layer; `model`
            is not as described, is quantized, or has adapters that are not merged.
        ImportError: `safetensors` is not installed.

    >>> from keras_attention import convert
    >>> convert.load_adapter(model, "adapter")  # doctest: +SKIP
    """
    merge = shapes.check_flag("merge", merge)
    architecture, _ = _read(_fields(model)[1], "config")
    adapters.load(architecture, saving.check_built("model", model), folder, merge)


def save_adapter(
    model: keras.Model, folder: str | os.PathLike[str], base: str | None = None
) -> None:
    """Writes the adapters of a model in the format of `peft`, which `load_adapter` reads too.

    Weights that train beside them are written whole, as `modules_to_save`. Projections of several
    heads, whose adapter in Keras has a matrix A for each, have the rank of all together.

    Args:
        model: a result of `from_huggingface`, with adapters of `enable_lora` or of `load_adapter`.
        folder: path of the folder, which is created; other files stay.
        base: name or path of the model that the adapters are for, which `peft` reads.

    Raises:
        ValueError: `model` is not as described, is quantized, or has adapters of no tensor.
        ImportError: `safetensors` is not installed.

    >>> from keras_attention import convert
    >>> convert.save_adapter(model, "adapter")  # doctest: +SKIP
    """
    architecture, config = _read(_fields(model)[1], "config")
    prefix = architecture.prefix if _has_head(config) else ""
    adapters.save(architecture, saving.check_built("model", model), folder, prefix, base)


def _fields(model, config=None):
    """The fields that a model came with, or None, and a copy of `config`, by default of these.

    It checks that the model has weights that files can have.
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
    return known, json.loads(json.dumps(values))


def _read(values, where, folder=None, part=None, head=True):
    """The architecture of the fields of a file, and its configuration; that of the base model."""
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
    config = Config(values, ARCHITECTURES[kind].fields, where, folder)
    architecture = ARCHITECTURES[kind].of_class(config.architecture)
    if not head and _has_head(config):
        values = {**values, "architectures": None}
        config = Config(values, architecture.fields, where, folder)
    return architecture, config


def _has_head(config):
    """Whether a model is more than the stack: `GPT2LMHeadModel` or `MarianMTModel`."""
    name = config.architecture or "Model"
    return not name.endswith("Model") or "Head" in name or name.endswith("MTModel")
