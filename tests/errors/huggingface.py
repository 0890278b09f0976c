"""Errors of folders of Hugging Face: `tests/convert/huggingface` has those of architectures."""

import contextlib
import json
import pathlib
import sys
import tempfile
import warnings
from unittest import mock

import keras
import numpy as np

from keras_attention import convert

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 6,
    "hidden_size": 4,
    "intermediate_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "tie_word_embeddings": True,
}

SMALL = {"vocab_size": 6, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
FALCON = {**SMALL, "model_type": "falcon", "architectures": ["FalconForCausalLM"]}
BLOOM = {**SMALL, "model_type": "bloom", "architectures": ["BloomForCausalLM"]}
OPT = {**SMALL, "model_type": "opt", "ffn_dim": 4, "max_position_embeddings": 8}

SHAPES = {
    "model.embed_tokens.weight": (6, 4),
    "model.norm.weight": (4,),
    "model.layers.0.input_layernorm.weight": (4,),
    "model.layers.0.post_attention_layernorm.weight": (4,),
    **{f"model.layers.0.self_attn.{x}_proj.weight": (4, 4) for x in "qkvo"},
    **{f"model.layers.0.mlp.{x}_proj.weight": (4, 4) for x in ("gate", "up", "down")},
}


def read(files=None, missing=(), of=CONFIG, without=(), **fields):
    """Reads a folder of a configuration and other files, of text or bytes."""
    config = {**of, **fields}
    config = {name: value for name, value in config.items() if name not in missing}
    files = {"config.json": json.dumps(config), **(files or {})}
    files = {name: content for name, content in files.items() if name not in without}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            content = content.encode() if isinstance(content, str) else content
            (pathlib.Path(folder) / name).write_bytes(content)
        return convert.from_huggingface(folder)


def saved(**tensors):
    """The bytes of a file of safetensors."""
    from safetensors.numpy import save

    return save(tensors)


def of_index(weight_map):
    index = json.dumps({"weight_map": weight_map})
    return read({"model.safetensors.index.json": index})


def whole(**tensors):
    """Reads a folder with all tensors, some of them replaced."""
    found = {name: np.ones(shape, "float32") for name, shape in SHAPES.items()}
    return read({"model.safetensors": saved(**{**found, **tensors})})


def in_eight_bits():
    """The bytes of a file of numbers that NumPy does not have."""
    header, start = {}, 0
    for name, shape in SHAPES.items():
        end = start + int(np.prod(shape))
        header[name] = {"dtype": "F8_E4M3", "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(start)


@contextlib.contextmanager
def without_safetensors():
    with mock.patch.dict(sys.modules, {"safetensors": None}):
        yield


def read_without_safetensors():
    with without_safetensors():
        read({"model.safetensors": b""})


def written_in_eight_bits():
    """Writes a model whose weights are integers and scales."""
    model = whole()
    with warnings.catch_warnings():
        # Keras warns of each layer that stays as it is.
        warnings.simplefilter("ignore")
        model.quantize("int8")
    convert.to_huggingface(model, "folder")


def write(model=None, **fields):
    """Writes a model with other fields than its own."""
    model = whole() if model is None else model
    with tempfile.TemporaryDirectory() as folder:
        convert.to_huggingface(model, folder, {**CONFIG, **fields})


def write_beside_an_adapter():
    """Writes where an adapter is."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "adapter_config.json").write_text("{}", encoding="utf-8")
        convert.to_huggingface(whole(), folder)


def unbuilt():
    """A model of the configuration, without weights."""
    model = whole()
    return type(model).from_config(model.get_config())


ROWS = {
    "a configuration of another model": (
        lambda: write(rms_norm_eps=0.3),
        ValueError,
        r"`config` must be the configuration of `model`\. Received: rms_norm_eps=0\.3, with which "
        r"`blocks\[0\]\.layer_norm_epsilon` would be 0\.3, where the model has 1e-06",
    ),
    "a configuration to write of no model": (
        lambda: write(num_attention_heads=3),
        ValueError,
        r"Received: num_attention_heads=3, of which none is made: .*hidden_size",
    ),
    "a configuration of a model of another kind": (
        lambda: write(keras.Sequential()),
        ValueError,
        r"`config` must describe `model`, which must be a Decoder\. Received: <Sequential",
    ),
    "a model without weights": (
        lambda: write(unbuilt()),
        ValueError,
        r"`model` must be built, to have weights\. Received: <Decoder.*not built",
    ),
    "an adapter": (
        write_beside_an_adapter,
        ValueError,
        r"`folder` must have no `adapter_config\.json`: its adapter.* Received: .*adapter_config",
    ),
    "a model that came from elsewhere": (
        lambda: convert.to_huggingface(keras.Sequential(), "folder"),
        ValueError,
        r"`model` must be a result of `from_huggingface`, or come with the `config` of one\. "
        r"Received: <Sequential.*config=None",
    ),
    "an architecture that is not there": (
        lambda: read(model_type="mamba"),
        ValueError,
        r"'model_type' of `.*config\.json` must be one of \[.*'llama'.*\]\. Received: 'mamba'",
    ),
    "a folder without a configuration": (
        lambda: read(without=["config.json"]),
        ValueError,
        r"`folder` must have a `config\.json` of a Hugging Face model\. "
        r"Received: .*FileNotFoundError",
    ),
    "a name of a model that is not there": (
        lambda: convert.from_huggingface("gpt2-of-nobody"),
        ValueError,
        r"`folder` must be a folder\. Received: gpt2-of-nobody, which is nothing: download the",
    ),
    "a file of a folder": (
        lambda: convert.from_huggingface(__file__),
        ValueError,
        r"`folder` must be a folder\. Received: .*huggingface\.py, which is a file",
    ),
    "a quantized model": (
        written_in_eight_bits,
        ValueError,
        r"`model` must not be quantized: .* Received: \d+ quantized layers, \[",
    ),
    "weights that are integers": (
        lambda: whole(**{"model.norm.weight": np.ones(4, "uint8")}),
        ValueError,
        r"The tensor 'model\.norm\.weight' of `.*` must be of one of \['BF16', .*\]\. "
        r"Received: 'U8'",
    ),
    "a configuration that is damaged": (
        lambda: read({"config.json": "{"}),
        ValueError,
        r"`folder` must have a `config\.json`.*JSONDecodeError",
    ),
    "a configuration of no model": (
        lambda: read({"config.json": "[1]"}),
        ValueError,
        r"config\.json` must be an object with a `model_type`\. Received: \[1\]",
    ),
    "a configuration without a field": (
        lambda: read(missing=["hidden_size"]),
        ValueError,
        r"config\.json` must have a field 'hidden_size'\. Received: none",
    ),
    "a field of another value": (
        lambda: read(hidden_act="mish"),
        ValueError,
        r"'hidden_act' of `.*` must be one of \('gelu'.*\): nothing else is supported for "
        r"model_type='llama'\. Received: 'mish'",
    ),
    "biases of Falcon that are rounded": (
        lambda: read(of=FALCON, alibi=True),
        ValueError,
        r"'alibi' of `.*` must be one of \(False,\): nothing else is supported for "
        r"model_type='falcon'\. Received: True",
    ),
    "residuals of BLOOM after the norm": (
        lambda: read(of=BLOOM, apply_residual_connection_post_layernorm=True),
        ValueError,
        r"'apply_residual_connection_post_layernorm' of `.*` must be one of \(False,\)",
    ),
    "states of OPT before a projection": (
        lambda: read(of=OPT, architectures=["OPTModel"], word_embed_proj_dim=2),
        ValueError,
        r"'word_embed_proj_dim' of `.*` must be one of \(4, None\).* Received: 2",
    ),
    "a part of a configuration that is none": (
        lambda: read(rope_parameters=[1]),
        ValueError,
        r"'rope_parameters' of `.*` must be an object or null\. Received: \[1\]",
    ),
    "a field that is unknown": (
        lambda: read(quantization_config={"bits": 4}),
        ValueError,
        r"config\.json` has fields that are not supported for model_type='llama'\. "
        r"Received: \{'quantization_config': \{'bits': 4\}\}",
    ),
    "a field of another type": (
        lambda: read(num_hidden_layers="1"),
        ValueError,
        r"'num_hidden_layers' of `.*` must be an integer\. Received: '1'",
    ),
    "a truth that is no number": (
        lambda: read(rms_norm_eps=True),
        ValueError,
        r"'rms_norm_eps' of `.*` must be a number\. Received: True",
    ),
    "a field that is null": (
        lambda: read(rms_norm_eps=None),
        ValueError,
        r"'rms_norm_eps' of `.*` must be a number\. Received: None",
    ),
    "a size that is not positive": (
        lambda: read(num_hidden_layers=0),
        ValueError,
        r"'num_hidden_layers' of `.*` must be at least 1\. Received: 0",
    ),
    "two names of a field that differ": (
        lambda: read(of=BLOOM, n_embed=8),
        ValueError,
        r"'n_embed' of `.*` must be equal to 'hidden_size', of which it is a second name\. "
        r"Received: 8 and 4",
    ),
    "features that are not a multiple of heads": (
        lambda: read(num_attention_heads=3),
        ValueError,
        r"'hidden_size' of `.*` must be a multiple of 'num_attention_heads'\. Received: 4 and 3",
    ),
    "layers in a window of no size": (
        lambda: read(model_type="qwen2", layer_types=["sliding_attention"]),
        ValueError,
        r"'sliding_window' of `.*` must be a number, and in use, where layers are of "
        r"'sliding_attention'\. Received: 4096, layer_types=\['sliding_attention'\]",
    ),
    "a head that no language model has": (
        lambda: read(architectures=["LlamaForSequenceClassification"]),
        ValueError,
        r"'architectures' of `.*` must be of a language model, or of a base model: no other head "
        r"is supported for model_type='llama'\. Received: 'LlamaForSequenceClassification'",
    ),
    "positions of another kind": (
        lambda: read(rope_scaling={"type": "proportional"}),
        ValueError,
        r"'rope_type' of `rope_scaling of .*` must be one of \('default', .*\)\. "
        r"Received: 'proportional'",
    ),
    "positions without a number of theirs": (
        lambda: read(rope_scaling={"type": "yarn"}),
        ValueError,
        r"`rope_scaling of .*` must have a field 'factor'\. Received: none",
    ),
    "factors for other features": (
        lambda: read(rope_scaling={"type": "longrope", "short_factor": [], "long_factor": []}),
        ValueError,
        r"'short_factor' of `rope_scaling of .*` must be 1 numbers, one for each pair of features "
        r"that are rotated\. Received: \[\]",
    ),
    "a ramp of no features": (
        lambda: read(
            rope_scaling={"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 6}
        ),
        ValueError,
        r"'original_max_position_embeddings' of `rope_scaling of .*` must be above 2π · beta_slow, "
        r".*\. Received: 6, beta_slow=1\.0",
    ),
    "types of layers that are not those of layers": (
        lambda: read(model_type="qwen2", layer_types=["full_attention", "linear_attention"]),
        ValueError,
        r"'layer_types' of `.*` must be 1 of 'sliding_attention' and 'full_attention'\. "
        r"Received: \['full_attention', 'linear_attention'\]",
    ),
    "layers without a value of their own": (
        lambda: read(model_type="smollm3", no_rope_layers=[]),
        ValueError,
        r"'no_rope_layers' of `.*` must have a value for each of 1 layers\. Received: \[\]",
    ),
    "a folder of pickles": (
        lambda: read({"pytorch_model.bin": b""}),
        ValueError,
        r"must have its weights in `model\.safetensors`\. Received: no such file, and "
        r"\['pytorch_model\.bin'\], which are pickles: opening one may run any code",
    ),
    "an index of files that are not there": (
        lambda: of_index({"model.norm.weight": "model-1.safetensors"}),
        ValueError,
        r"must have its weights in `model-1\.safetensors`\. Received: no such file",
    ),
    "an index of files elsewhere": (
        lambda: of_index({"model.norm.weight": "../model.safetensors"}),
        ValueError,
        r"must name files of its own folder that end in '\.safetensors'\. "
        r"Received: \['\.\./model\.safetensors'\]",
    ),
    "an index that is none": (
        lambda: read({"model.safetensors.index.json": "[]"}),
        ValueError,
        r"index\.json` must be an object with a `weight_map` of tensors and files\. "
        r"Received: TypeError",
    ),
    "no safetensors": (
        read_without_safetensors,
        ImportError,
        r"Files of Hugging Face are read by `safetensors`: "
        r"pip install 'keras_attention\[huggingface\]'",
    ),
    "a file that is damaged": (
        lambda: read({"model.safetensors": b"\xff" * 20}),
        ValueError,
        r"model\.safetensors` must be a file of safetensors\. Received: SafetensorError",
    ),
    "tensors that are missing and others that are unknown": (
        lambda: read({"model.safetensors": saved(**{"model.other": np.ones(3)})}),
        ValueError,
        r"must be those of the configuration\. Received: 11 missing, \['model\.embed_tokens\.weight"
        r".*\], and 1 unknown, \['model\.other'\]",
    ),
    "a head of a model without its own": (
        lambda: whole(**{"lm_head.weight": np.zeros((6, 4), "float32")}),
        ValueError,
        r"The tensors 'lm_head\.weight' and 'model\.embed_tokens\.weight' must be equal: the model "
        r"has one for both\. Received: different ones",
    ),
    "a tensor of another size": (
        lambda: whole(**{"model.norm.weight": np.ones(5, "float32")}),
        ValueError,
        r"The tensor 'model\.norm\.weight' must have the shape \(4,\), as the configuration has "
        r"it\. Received: shape \(5,\)",
    ),
    "numbers of eight bits": (
        lambda: read({"model.safetensors": in_eight_bits()}),
        ValueError,
        r"The tensor 'model\.embed_tokens\.weight' of `.*` must be of one of \['BF16', .*\]\. "
        r"Received: 'F8_E4M3'",
    ),
    "a table that is transposed": (
        lambda: whole(**{"model.embed_tokens.weight": np.ones((4, 6), "float32")}),
        ValueError,
        r"The tensor 'model\.embed_tokens\.weight' must have the shape \(6, 4\), .*"
        r"Received: shape \(4, 6\)",
    ),
}
