"""What is raised by conversions of folders of Hugging Face, and of each kind of model."""

import json
import warnings

import keras
import numpy as np

from keras_attention import convert
from tests.errors.calls import in_folder, without

SIZES = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL = {"vocab_size": 6, **SIZES}
LLAMA = {
    **SMALL,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "intermediate_size": 4,
    "tie_word_embeddings": True,
}
BERT = {**SMALL, "intermediate_size": 4, "max_position_embeddings": 8}
OF_TYPE = {
    "bert": BERT,
    "bloom": {**SMALL, "architectures": ["BloomForCausalLM"]},
    "clip": {},
    "falcon": {**SMALL, "architectures": ["FalconForCausalLM"]},
    "longformer": {**BERT, "pad_token_id": 1},
    "modernbert": BERT,
    "opt": {**SMALL, "architectures": ["OPTModel"], "ffn_dim": 4, "max_position_embeddings": 8},
    "m2m_100": {"vocab_size": 6, "d_model": 3, "encoder_layers": 1, "decoder_layers": 1}
    | dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 4)
    | dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 1),
    "qwen3_next": {**LLAMA, "num_key_value_heads": 2, "head_dim": 8},
    "swin": {"image_size": 8, "patch_size": 1, "embed_dim": 4, "window_size": 4},
    "swinv2": {"image_size": 8, "patch_size": 1, "embed_dim": 4, "window_size": 4},
    "t5": {"vocab_size": 10, "d_model": 4, "d_kv": 2, "d_ff": 4, "num_layers": 1, "num_heads": 2},
    "vit": {**SIZES, "intermediate_size": 4},
}
SHAPES = {
    "model.embed_tokens.weight": (6, 4),
    "model.norm.weight": (4,),
    "model.layers.0.input_layernorm.weight": (4,),
    "model.layers.0.post_attention_layernorm.weight": (4,),
    **{f"model.layers.0.self_attn.{x}_proj.weight": (4, 4) for x in "qkvo"},
    **{f"model.layers.0.mlp.{x}_proj.weight": (4, 4) for x in ("gate", "up", "down")},
}


def read(model_type="llama", files=None, missing=None, part=None, **fields):
    """Reads a folder of a configuration and other files, of text or bytes."""
    config = {**OF_TYPE.get(model_type, LLAMA), "model_type": model_type, **fields}
    config.pop(missing, None)
    files = {"config.json": json.dumps(config), **(files or {})}
    files.pop(missing, None)
    return lambda: in_folder(files, lambda folder: convert.from_huggingface(folder, part=part))


def of_file(content, name="model.safetensors"):
    return read(files={name: content})


def of_index(content):
    return of_file(json.dumps(content), "model.safetensors.index.json")


def tensors(**tensors):
    """Reads a folder with these tensors."""
    from safetensors.numpy import save

    return of_file(save(tensors))


def whole(**others):
    """Reads a folder with all tensors, some of them replaced."""
    return tensors(**{name: np.ones(shape, "float32") for name, shape in SHAPES.items()} | others)


def in_eight_bits():
    """The bytes of a file of numbers that NumPy does not have."""
    header, start = {}, 0
    for name, shape in SHAPES.items():
        end = start + int(np.prod(shape))
        header[name] = {"dtype": "F8_E4M3", "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(start)


def written_in_eight_bits():
    """Writes a model whose weights are integers and scales."""
    model = whole()()
    with warnings.catch_warnings():
        # Keras warns of each layer that stays as it is.
        warnings.simplefilter("ignore")
        model.quantize("int8")
    convert.to_huggingface(model, "folder")


def write(model=None, beside=(), **fields):
    """Writes a model with other fields than its own, beside other files."""
    model = whole()() if model is None else model
    in_folder(
        dict(beside), lambda folder: convert.to_huggingface(model, folder, {**LLAMA, **fields})
    )


def unbuilt():
    """A model of the configuration, without weights."""
    model = whole()()
    return type(model).from_config(model.get_config())


def adapter(change=(), model=None, merge=True, file="adapter_model.safetensors", **fields):
    """Reads an adapter of one projection, with other tensors and fields, onto a model."""
    from safetensors.numpy import save

    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    pair = {key.format("A"): np.ones((2, 4), "f"), key.format("B"): np.ones((4, 2), "f")}
    files = {file: save({**pair, **dict(change)})}
    files["adapter_config.json"] = json.dumps({"peft_type": "LORA", "r": 2, **fields})

    def load():
        made = whole()() if model is None else model()
        in_folder(files, lambda folder: convert.load_adapter(made, folder, merge))
        return made

    return load


def of_module(name, first, second, **given):
    """Reads one with a further pair, of these shapes."""
    start = f"base_model.model.model.{name}.lora_"
    shapes = {f"{start}A.weight": first, f"{start}B.weight": second}
    return adapter({key: np.ones(shape, "f") for key, shape in shapes.items()}, **given)


def written_adapter(change=lambda model: None):
    """Writes the adapters of a model."""
    model = whole()()
    change(model)
    in_folder({}, lambda folder: convert.save_adapter(model, folder))


ONE = np.ones(1, "f")
TABLE = "base_model.model.model.embed_tokens.weight"
ROWS = {
    # Adapters
    "`model` must have no adapters .* Received: .* with": adapter(model=adapter(merge=False)),
    "`folder` must have an `adapter_config.json` .*FileNotFound": lambda: in_folder(
        {}, lambda folder: convert.load_adapter(whole()(), folder)
    ),
    r"adapter_config.json` must be an object. Received: \[\]": lambda: in_folder(
        {"adapter_config.json": "[]"}, lambda folder: convert.load_adapter(whole()(), folder)
    ),
    r"have `adapter_model.safetensors`.*'adapter_model.bin'\], .* or of `peft`": adapter(
        file="adapter_model.bin"
    ),
    "'use_dora' of .* Received: True": adapter(use_dora=True),
    "'peft_type' of .* one of .*LORA.* Received: 'IA3'": adapter(peft_type="IA3"),
    "'init_lora_weights' of .* Received: 'pissa'": adapter(init_lora_weights="pissa"),
    "'r' of .* the rank of .*q_proj'. Received: 3 and 2": adapter(r=3),
    r"'rank_pattern' of .* expressions and numbers. Received: .*unterm": adapter(
        rank_pattern={"(": 2}
    ),
    "'alpha_pattern' of .* and numbers. Received: could not .*'x'": adapter(
        alpha_pattern={"q_proj": "x"}
    ),
    r"pairs A and B of modules .* 2 others, \['base.*other.lora_A": of_module(
        "other", (2, 4), (4, 2)
    ),
    "in their shapes. Received: 2 others": of_module("layers.0.mlp.up_proj", (2, 5), (4, 2)),
    "must not change 'model.embed_tokens' .* and tied logits": of_module(
        "embed_tokens", (2, 6), (4, 2)
    ),
    r"embed_tokens.weight' of an adapter must be .*\(6, 4\).* shape \(1,\), and 1 o": adapter(
        {TABLE: ONE}
    ),
    "dense layers have adapters in Keras: .* 1 tensors of no dense.*embed_tokens": of_module(
        "embed_tokens", (2, 4), (6, 2), merge=False, ensure_weight_tying=True
    ),
    r"`model` must have adapters, .* Received: 0 adapters, .*: \[\]": written_adapter,
    # Files in other formats
    r"no such file in .*'a.gguf'\], which .*gguf_file=": read(
        files={"a.gguf": b""}, missing="config.json"
    ),
    r"no such file.*'consolidated.00.pth'\], the layout of Meta": read(
        files={"consolidated.00.pth": b""}
    ),
    r"no such file in .*'adapter_config.json'\], an adapter: read the model": read(
        files={"adapter_config.json": b""}, missing="config.json"
    ),
    r"no 'quantization_config'.*Mxfp4Config\(dequantize=True\).*'mxfp4'": read(
        quantization_config={"quant_method": "mxfp4"}
    ),
    r"few bits .*\.dequantize\(\).* quant_method='bitsandbytes'": read(
        quantization_config={"quant_method": "bitsandbytes"}
    ),
    "Take the model that this one was made of.* quant_method='gptq'": read(
        quantization_config={"quant_method": "gptq"}
    ),
    # Models that are written
    r"`blocks\[0\]\.layer_norm_epsilon` would be 0\.3, where": lambda: write(rms_norm_eps=0.3),
    "num_attention_heads=3, of which none is made: .*hidden": lambda: write(num_attention_heads=3),
    "`config` must describe `model`.*Received: <Sequential": lambda: write(keras.Sequential()),
    "`model` must be built.* Received: <Decoder.*not built": lambda: write(unbuilt()),
    "`folder` must have no `adapter_config.json`": lambda: write(
        beside={"adapter_config.json": ""}
    ),
    "come with.*<Sequential.*=None": lambda: convert.to_huggingface(keras.Sequential(), "folder"),
    r"`model` must not be quantized: .* Received: \d+ quantized layers, \[": written_in_eight_bits,
    # Folders
    "gpt2-of-nobody, which is nothing": lambda: convert.from_huggingface("gpt2-of-nobody"),
    "`folder` must have a `config.json` .*no such file in": read(missing="config.json"),
    "`folder` must have a `config.json`.*JSONDecodeError": of_file("{", "config.json"),
    r"config.json` must be .* with a `model_type`.*: \[1\]": of_file("[1]", "config.json"),
    "read by `safetensors`: pip install": (ImportError, without("safetensors", of_file(b""))),
    "weights in .*'pytorch_model.bin'.* may run any code": read(files={"pytorch_model.bin": b""}),
    "model-1.safetensors`": of_index({"weight_map": {"model.norm.weight": "model-1.safetensors"}}),
    "its own folder": of_index({"weight_map": {"model.norm.weight": "../model.safetensors"}}),
    "an object with a `weight_map` of tensors and files.*TypeError": of_index([]),
    "must be a file of safetensors. Received: SafetensorError": of_file(b"\xff" * 20),
    r"11 missing, .*, and 1 unknown, \['model.other'\]": tensors(**{"model.other": np.ones(3)}),
    "'lm_head.weight' and 'model.embed_tokens.weight' must be equal.*different ones": whole(
        **{"lm_head.weight": np.zeros((6, 4), "float32")}
    ),
    r"must have the shape \(4,\), .*\(5,\)": whole(**{"model.norm.weight": np.ones(5, "float32")}),
    "'model.embed_tokens.weight' of .* one of .*'BF16', .*'F8_E4M3'": of_file(in_eight_bits()),
    "'model.norm.weight' of .*'U8'": whole(**{"model.norm.weight": np.ones(4, "uint8")}),
    # Configurations
    "'model_type' of .* must be one of .*'llama'.* Received: 'mamba'": read("mamba"),
    r"`part` must be one of \('text', 'vision'\) .*'clip'.* part=None": read("clip"),
    r"`part` must be one of \(None,\) for model_type='bert'.*'text'": read("bert", part="text"),
    "config.json` must have a field 'hidden_size'.*: none": read(missing="hidden_size"),
    "fields that are not supported for .*'llama'.*'bits': 4": read(bits=4),
    "'hidden_act' of .*'gelu'.* supported for model_type='llama'.*'mish'": read(hidden_act="mish"),
    r"'alibi' of .* must be one of \(False,\): .*'falcon'.* True": read("falcon", alibi=True),
    "'apply_residual.*False.*bloom": read("bloom", apply_residual_connection_post_layernorm=True),
    r"'word_embed_proj_dim' of .* one of \(4, None\).*: 2": read("opt", word_embed_proj_dim=2),
    "'rope_parameters' of .* must be an object or null.*1": read(rope_parameters=[1]),
    "'num_hidden_layers' of .* must be an integer. Received: '1'": read(num_hidden_layers="1"),
    "'rms_norm_eps' of .* must be a number. Received: True": read(rms_norm_eps=True),
    "'num_hidden_layers' of .* must be at least 1. Received: 0": read(num_hidden_layers=0),
    "'n_embed' of .* must be equal to 'hidden_size', .*: 8 and 4": read("bloom", n_embed=8),
    "'hidden_size' of .* a multiple of .*heads'.*: 4 and 3": read(num_attention_heads=3),
    "in use, where .* 'sliding_attention'": read("qwen2", layer_types=["sliding_attention"]),
    "'architectures' .* language .*llama": read(architectures=["LlamaForMultipleChoice"]),
    "'BertForMaskedLM', .*no other head": read("bert", architectures=["BertForMultipleChoice"]),
    r"'layer_types' .*\['full": read("qwen2", layer_types=["full_attention", "linear_attention"]),
    "'linear_num_value_heads' .*multiple of 4 key.*: 6": read(
        "qwen3_next", linear_num_key_heads=4, linear_num_value_heads=6
    ),
    r"'layer_types' .*_attention'.*\['linear": read("modernbert", layer_types=["linear_attention"]),
    r"'no_rope_layers' of .* at least 1 values. Received: \[\]": read("smollm3", no_rope_layers=[]),
    r"'patch_size' of .* a positive integer, or two.*\[4, 0\]": read("vit", patch_size=[4, 0]),
    r"'depths' of .* positive integers, .*\[2\]": read("swin", depths=[1, 1], num_heads=[2]),
    r"'pretrained_window_sizes' of .* 1 integers of .*\[-1\]": read(
        "swinv2", depths=[1], num_heads=[2], pretrained_window_sizes=[-1]
    ),
    "'feed_forward_proj' of .* activation.*gated-what": read("t5", feed_forward_proj="gated-what"),
    "'d_model' of .* an even number of at least 4. Received: 3": read("m2m_100"),
    "'attention_window' of .* an even number, .*: 5": read("longformer", attention_window=5),
    # Rotary positions
    "'rope_type' of .*'default', .*: 'proportional'": read(rope_scaling={"type": "proportional"}),
    "`rope_scaling of .* must have a field 'factor'.*: none": read(rope_scaling={"type": "yarn"}),
    r"'short_factor' of .* 1 numbers, one for each pair of features .*: \[\]": read(
        rope_scaling={"type": "longrope", "short_factor": [], "long_factor": []}
    ),
    "'original_max_position_embeddings' of .* above 2π · beta_slow, .*: 6, beta_slow=1.0": read(
        rope_scaling={"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 6}
    ),
}
