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
    r"`config` must be the configuration of `model`\. Received: rms_norm_eps=0\.3, with which "
    r"`blocks\[0\]\.layer_norm_epsilon` would be 0\.3, where the model has 1e-06": lambda: write(
        rms_norm_eps=0.3
    ),
    r"Received: num_attention_heads=3, of which none is made: .*hidden_size": lambda: write(
        num_attention_heads=3
    ),
    r"`config` must describe `model`, which must be a Decoder\. Received: <Sequential": lambda: (
        write(keras.Sequential())
    ),
    r"`model` must be built, to have weights\. Received: <Decoder.*not built": lambda: write(
        unbuilt()
    ),
    r"`folder` must have no `adapter_config\.json`: its adapter.* "
    r"Received: .*adapter_config": write_beside_an_adapter,
    r"`model` must be a result of `from_huggingface`, or come with the `config` of one\. "
    r"Received: <Sequential.*config=None": lambda: convert.to_huggingface(
        keras.Sequential(), "folder"
    ),
    r"'model_type' of `.*config\.json` must be one of \[.*'llama'.*\]\. "
    r"Received: 'mamba'": lambda: read(model_type="mamba"),
    r"`folder` must have a `config\.json` of a Hugging Face model\. "
    r"Received: .*FileNotFoundError": lambda: read(without=["config.json"]),
    r"`folder` must be a folder\. Received: gpt2-of-nobody, which is nothing: "
    r"download the": lambda: convert.from_huggingface("gpt2-of-nobody"),
    r"`model` must not be quantized: .* Received: \d+ quantized layers, \[": written_in_eight_bits,
    r"The tensor 'model\.norm\.weight' of `.*` must be of one of \['BF16', .*\]\. "
    r"Received: 'U8'": lambda: whole(**{"model.norm.weight": np.ones(4, "uint8")}),
    r"`folder` must have a `config\.json`.*JSONDecodeError": lambda: read({"config.json": "{"}),
    r"config\.json` must be an object with a `model_type`\. Received: \[1\]": lambda: read(
        {"config.json": "[1]"}
    ),
    r"config\.json` must have a field 'hidden_size'\. Received: none": lambda: read(
        missing=["hidden_size"]
    ),
    r"'hidden_act' of `.*` must be one of \('gelu'.*\): nothing else is supported for "
    r"model_type='llama'\. Received: 'mish'": lambda: read(hidden_act="mish"),
    r"'alibi' of `.*` must be one of \(False,\): nothing else is supported for "
    r"model_type='falcon'\. Received: True": lambda: read(of=FALCON, alibi=True),
    r"'apply_residual_connection_post_layernorm' of `.*` must be one of \(False,\)": lambda: read(
        of=BLOOM, apply_residual_connection_post_layernorm=True
    ),
    r"'word_embed_proj_dim' of `.*` must be one of \(4, None\).* Received: 2": lambda: read(
        of=OPT, architectures=["OPTModel"], word_embed_proj_dim=2
    ),
    r"'rope_parameters' of `.*` must be an object or null\. Received: \[1\]": lambda: read(
        rope_parameters=[1]
    ),
    r"config\.json` has fields that are not supported for model_type='llama'\. "
    r"Received: \{'quantization_config': \{'bits': 4\}\}": lambda: read(
        quantization_config={"bits": 4}
    ),
    r"'num_hidden_layers' of `.*` must be an integer\. Received: '1'": lambda: read(
        num_hidden_layers="1"
    ),
    r"'rms_norm_eps' of `.*` must be a number\. Received: True": lambda: read(rms_norm_eps=True),
    r"'num_hidden_layers' of `.*` must be at least 1\. Received: 0": lambda: read(
        num_hidden_layers=0
    ),
    r"'n_embed' of `.*` must be equal to 'hidden_size', of which it is a second name\. "
    r"Received: 8 and 4": lambda: read(of=BLOOM, n_embed=8),
    r"'hidden_size' of `.*` must be a multiple of 'num_attention_heads'\. "
    r"Received: 4 and 3": lambda: read(num_attention_heads=3),
    r"'sliding_window' of `.*` must be a number, and in use, where layers are of "
    r"'sliding_attention'\. Received: 4096, layer_types=\['sliding_attention'\]": lambda: read(
        model_type="qwen2", layer_types=["sliding_attention"]
    ),
    r"'architectures' of `.*` must be of a language model, or of a base model: no other head "
    r"is supported for model_type='llama'\. Received: 'LlamaForSequenceClassification'": lambda: (
        read(architectures=["LlamaForSequenceClassification"])
    ),
    r"'rope_type' of `rope_scaling of .*` must be one of \('default', .*\)\. "
    r"Received: 'proportional'": lambda: read(rope_scaling={"type": "proportional"}),
    r"`rope_scaling of .*` must have a field 'factor'\. Received: none": lambda: read(
        rope_scaling={"type": "yarn"}
    ),
    r"'short_factor' of `rope_scaling of .*` must be 1 numbers, one for each pair of features "
    r"that are rotated\. Received: \[\]": lambda: read(
        rope_scaling={"type": "longrope", "short_factor": [], "long_factor": []}
    ),
    r"'original_max_position_embeddings' of `rope_scaling of .*` must be above 2π · beta_slow, "
    r".*\. Received: 6, beta_slow=1\.0": lambda: read(
        rope_scaling={"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 6}
    ),
    r"'layer_types' of `.*` must be 1 of 'sliding_attention' and 'full_attention'\. "
    r"Received: \['full_attention', 'linear_attention'\]": lambda: read(
        model_type="qwen2", layer_types=["full_attention", "linear_attention"]
    ),
    r"'no_rope_layers' of `.*` must be a list of at least 1 values\. Received: \[\]": lambda: read(
        model_type="smollm3", no_rope_layers=[]
    ),
    r"must have its weights in `model\.safetensors`\. Received: no such file, and "
    r"\['pytorch_model\.bin'\], which are pickles: opening one may run any code": lambda: read(
        {"pytorch_model.bin": b""}
    ),
    r"must have its weights in `model-1\.safetensors`\. Received: no such file": lambda: of_index(
        {"model.norm.weight": "model-1.safetensors"}
    ),
    r"must name files of its own folder that end in '\.safetensors'\. "
    r"Received: \['\.\./model\.safetensors'\]": lambda: of_index(
        {"model.norm.weight": "../model.safetensors"}
    ),
    r"index\.json` must be an object with a `weight_map` of tensors and files\. "
    r"Received: TypeError": lambda: read({"model.safetensors.index.json": "[]"}),
    r"Files of Hugging Face are read by `safetensors`: "
    r"pip install 'keras_attention\[huggingface\]'": (ImportError, read_without_safetensors),
    r"model\.safetensors` must be a file of safetensors\. Received: SafetensorError": lambda: read(
        {"model.safetensors": b"\xff" * 20}
    ),
    r"must be those of the configuration\. Received: 11 missing, \['model\.embed_tokens\.weight"
    r".*\], and 1 unknown, \['model\.other'\]": lambda: read(
        {"model.safetensors": saved(**{"model.other": np.ones(3)})}
    ),
    r"The tensors 'lm_head\.weight' and 'model\.embed_tokens\.weight' must be equal: the model "
    r"has one for both\. Received: different ones": lambda: whole(
        **{"lm_head.weight": np.zeros((6, 4), "float32")}
    ),
    r"The tensor 'model\.norm\.weight' must have the shape \(4,\), as the configuration has "
    r"it\. Received: shape \(5,\)": lambda: whole(**{"model.norm.weight": np.ones(5, "float32")}),
    r"The tensor 'model\.embed_tokens\.weight' of `.*` must be of one of \['BF16', .*\]\. "
    r"Received: 'F8_E4M3'": lambda: read({"model.safetensors": in_eight_bits()}),
}
