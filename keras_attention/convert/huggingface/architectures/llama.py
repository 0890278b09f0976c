"""Llama, and models that differ from it in options: Mistral, Qwen 2 and 3, Phi-3, SmolLM3."""

import functools

from keras_attention.convert.huggingface import buffers, entries, fields, rope, stacks
from keras_attention.convert.huggingface.architecture import language_model
from keras_attention.convert.huggingface.fields import count, ignored, off, only, read
from keras_attention.layers.rms_norm import RMSNorm

STACK = {
    **fields.LANGUAGE,
    "hidden_act": fields.activation("silu"),
    "rms_norm_eps": read(1e-6),
    "tie_word_embeddings": read(False),
    "num_key_value_heads": count(None, int | None),
    "head_dim": count(None, int | None),
}
_WINDOWS = {
    "use_sliding_window": read(False),
    "sliding_window": count(4096, int | None),
    "max_window_layers": read(28),
    "layer_types": read(None, list | None),
}
ATTENTION = {
    **entries.attention("self_attn.", "q_proj k_proj v_proj o_proj"),
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
}
NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm"}
GATED = {
    "mlp.gate_proj": "feed_forward.gate_dense",
    "mlp.up_proj": "feed_forward.intermediate_dense",
    "mlp.down_proj": "feed_forward.output_dense",
}
_BLOCK = {**NORMS, **ATTENTION, **GATED}
_FUSED = {
    "self_attn.qkv_proj": entries.HEADS,
    "self_attn.o_proj": "attention.output_dense",
    "mlp.gate_up_proj": ("feed_forward.gate_dense", "feed_forward.intermediate_dense"),
    "mlp.down_proj": "feed_forward.output_dense",
}


def architecture(fields, block, tensors=_BLOCK, further=lambda config: {}, norm="final_norm"):
    """The architecture whose blocks have the tensors `tensors`, and whose stack has Llama's.

    `block` and `further` are as of `stacks.decoder`; `norm` is the part that is the last norm.
    """
    return language_model(
        fields,
        stacks.decoder(block, further),
        "embed_tokens",
        {
            "layers": entries.blocks(tensors),
            "norm": norm,
        },
        prefix="model.",
        unread=buffers.ROTARY,
    )


def block(config, n, **rotary):
    """The options of a block; `rotary` are those of its positions."""
    return {
        **attention(config, **rotary),
        "norm": "rms",
        "layer_norm_epsilon": config["rms_norm_eps"],
    }


def attention(config, **rotary):
    """The options of a block but those of its norms."""
    size = stacks.head_size(config)
    return {
        "intermediate_dim": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "activation": config["hidden_act"],
        "gated": True,
        "key_dim": size,
        "num_key_value_heads": config["num_key_value_heads"] or config["num_attention_heads"],
        "use_bias": False,
        "position": rope.rotary(config, size, **rotary),
    }


def _llama(config, n):
    biases = config.require("mlp_bias", config["attention_bias"])
    return {**block(config, n), "use_bias": biases}


def windowed(config, n, **rotary):
    """The options of a block that sees the same window in each layer."""
    return {**block(config, n, **rotary), "pattern": stacks.window(config["sliding_window"])}


def _qwen(config, n):
    layers = config["num_hidden_layers"]
    size = config["sliding_window"] if config["use_sliding_window"] else None
    # The first layers have no window.
    first = layers if size is None else config["max_window_layers"]
    types = ["full_attention" if n < first else "sliding_attention" for n in range(layers)]
    types = stacks.layer_types(config, types)
    return {**block(config, n), "pattern": stacks.window_by_type(config, types, n, size)}


def _qwen2(config, n):
    return {**_qwen(config, n), "use_bias": "qkv"}


def _qwen3(config, n):
    return {**_qwen(config, n), "qk_norm": RMSNorm(config["rms_norm_eps"])}


def _smollm3(config, n):
    layers = config["num_hidden_layers"]
    default = [(n + 1) % config["no_rope_layer_interval"] != 0 for n in range(layers)]
    rotated = stacks.per_layer(config, "no_rope_layers", default)
    # Windows, if any, are in the layers without positions.
    size = config["sliding_window"]
    near = config["use_sliding_window"] and size is not None
    types = [
        "sliding_attention" if near and not has_rope else "full_attention" for has_rope in rotated
    ]
    types = stacks.layer_types(config, types)
    options = {**_llama(config, n), "pattern": stacks.window_by_type(config, types, n, size)}
    return options if rotated[n] else {**options, "position": None}


# "su" and "yarn" are older names of "longrope".
_KINDS = {"default": "default", "su": "longrope", "yarn": "longrope", "longrope": "longrope"}
_phi3 = functools.partial(windowed, fraction="partial_rotary_factor", kinds=_KINDS)
ARCHITECTURES = {
    "llama": architecture(
        {
            **STACK,
            **rope.fields(2048),
            "attention_bias": read(False),
            "mlp_bias": read(False),
            **off("sliding_window rope_interleaved use_sliding_window"),
            **ignored("not read", "is_llama_config max_sequence_length"),
        },
        _llama,
    ),
    "mistral": architecture(
        {
            **STACK,
            **rope.fields(131072),
            "num_key_value_heads": count(8),
            "sliding_window": count(4096, int | None),
            **off("attention_bias mlp_bias use_sliding_window"),
        },
        windowed,
    ),
    "qwen2": architecture(
        {
            **STACK,
            **rope.fields(32768),
            **_WINDOWS,
            "num_key_value_heads": count(32, int | None),
            "head_dim": count(None),
            **off("mlp_bias use_mrope"),
            **ignored("of another program, for long texts", "dual_chunk_attention_config"),
        },
        _qwen2,
    ),
    "qwen3": architecture(
        {
            **STACK,
            **rope.fields(32768),
            **_WINDOWS,
            "num_key_value_heads": count(32, int | None),
            "head_dim": count(128),
            "attention_bias": only(False),
            **off("mlp_bias use_mrope"),
        },
        _qwen3,
    ),
    "smollm3": architecture(
        {
            **STACK,
            **rope.fields(32768, theta=2000000.0),
            "num_key_value_heads": count(4, int | None),
            "head_dim": count(None),
            "attention_bias": read(False),
            "mlp_bias": read(False),
            "use_sliding_window": read(False),
            "sliding_window": count(None, int | None),
            "layer_types": read(None, list | None),
            "no_rope_layers": read(None, list | None),
            "no_rope_layer_interval": count(4),
            "tie_word_embeddings": read(True),
            **ignored("not read", "max_window_layers"),
        },
        _smollm3,
    ),
    "phi3": architecture(
        {
            **STACK,
            **rope.fields(4096),
            "rms_norm_eps": read(1e-5),
            "sliding_window": count(None, int | None),
            "original_max_position_embeddings": count(4096),
            "partial_rotary_factor": read(1.0),
            **off("attention_bias mlp_bias lm_head_bias"),
            **ignored("of another program", "full_attn_mod interpolate_factor"),
        },
        _phi3,
        {**NORMS, **_FUSED},
    ),
}
