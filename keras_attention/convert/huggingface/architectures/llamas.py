"""Llama, and decoders that differ from it in options.

They are Mistral, Qwen 2 and 3, SmolLM3, Phi-3, StarCoder2, Command R, GLM-4 (2025) and Nemotron.
"""

from keras_attention.convert.huggingface import buffers, entries, fields, rope, stacks
from keras_attention.convert.huggingface.architecture import language_model
from keras_attention.layers.blocks.norms import RMSNorm


def decoder(length, theta=10000.0):
    """Fields of most, with those of rotary positions, whose defaults are as of `rope.fields`."""
    return {
        **fields.LANGUAGE,
        **rope.fields(length, theta),
        **fields.nullable(num_key_value_heads=None, head_dim=None),
        **fields.defaults(tie_word_embeddings=False),
        "hidden_act": fields.activation("silu"),
    }


def stack(length, theta=10000.0):
    """The same with the epsilon of RMSNorms."""
    return {**decoder(length, theta), **fields.defaults(rms_norm_eps=1e-6)}


BIASES = fields.defaults(attention_bias=False, mlp_bias=False)
WINDOWS = {**fields.defaults(use_sliding_window=False), **fields.nullable(sliding_window=4096)}
TYPES = {"layer_types": fields.read(None, list | None)}
ATTENTION = {
    **entries.attention("self_attn. q_proj k_proj v_proj o_proj"),
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
}
NORMS = entries.norms("input_layernorm post_attention_layernorm")
GATED = entries.network("mlp. gate_proj up_proj down_proj")
BRANCHES = {**NORMS, **ATTENTION}
_BLOCK = {**BRANCHES, **GATED}
_GATED_IN_ONE = entries.gated_in_one("mlp. gate_up_proj down_proj")


def llama(fields, block, tensors=_BLOCK, further=lambda config: {}, others=None, unread=()):
    """As of `language_model`, with Llama's names of the stack, and of tensors by default."""
    names, unread = "model. embed_tokens layers norm", {**buffers.ROTARY, **dict(unread)}
    return language_model(fields, block, names, tensors, further, others, unread=unread)


def block(config, rotary=None, **options):
    """The options of a block; `rotary` are those of its positions, and `options` win."""
    size = stacks.head_size(config)
    if "position" not in options:
        options["position"] = rope.rotary(config, size, **(rotary or {}))
    usual = {
        "norm": "rms",
        "gated": True,
        "key_dim": size,
        "num_key_value_heads": config["num_key_value_heads"] or config["num_attention_heads"],
        "use_bias": False,
    }
    return stacks.block(config, **{**usual, **options})


def windowed(config, n, **rotary):
    """The options of a block that sees the same window in each layer."""
    return block(config, rotary, pattern=stacks.window(config["sliding_window"]))


def _llama(config, n, **options):
    return block(config, use_bias=config.require("mlp_bias", config["attention_bias"]), **options)


_QWEN = {
    **stack(32768),
    **WINDOWS,
    **TYPES,
    **fields.nullable(num_key_value_heads=32),
    "max_window_layers": fields.read(28),
    **fields.off("mlp_bias use_mrope"),
}


def _qwen(config, n, **options):
    size = config["sliding_window"] if config["use_sliding_window"] else None
    # The first layers have no window.
    first = config["max_window_layers"]
    pattern = stacks.window_by_type(config, n, size, lambda n: size is not None and n >= first)
    return block(config, pattern=pattern, **options)


def _smollm3(config, n):
    layers, rotated = config["num_hidden_layers"], config["no_rope_layers"]
    if rotated is None:
        rotated = [(n + 1) % config["no_rope_layer_interval"] for n in range(layers)]
    elif len(rotated) < layers:
        config.refuse("no_rope_layers", f"a list of at least {layers} values", rotated)
    # Windows, if any, are in the layers without positions.
    size = config["sliding_window"]
    near = config["use_sliding_window"] and size is not None
    pattern = stacks.window_by_type(config, n, size, lambda n: near and not rotated[n])
    options = _llama(config, n, pattern=pattern)
    return options if rotated[n] else {**options, "position": None}


# "su" and "yarn" are older names of "longrope".
_PHI3 = {"default": "default", "su": "longrope", "yarn": "longrope", "longrope": "longrope"}


def _starcoder2(config, n):
    """LayerNorms, biases, and a feed-forward network without a gate."""
    pattern, biases = stacks.window(config["sliding_window"]), config["use_bias"]
    return block(config, gated=False, norm="layer", use_bias=biases, pattern=pattern)


def _cohere(config, n):
    """One LayerNorm without an offset for both branches, side by side."""
    norm = stacks.layer_norm(config["layer_norm_eps"], center=False)
    norms = {"attention": norm, "feed_forward": "shared"}
    return block(config, {"layout": "interleaved"}, residual="parallel", norm=norms)


def _glm4(config, n):
    """Norms on both sides of branches, and half of the features rotated, in turns."""
    rotary = {"fraction": "partial_rotary_factor", "layout": "interleaved"}
    biases = "qkv" if config["attention_bias"] else False
    return block(config, rotary, residual="sandwich", use_bias=biases)


def _nemotron(config, n):
    """LayerNorms whose weight is what is added to 1, and squared ReLU without a gate."""
    rotary = {"fraction": "partial_rotary_factor"}
    biases = config.require("mlp_bias", config["attention_bias"])
    return block(config, rotary, gated=False, norm="layer", use_bias=biases)


@entries.layout
def _added_to_1(name, owner, path):
    weight = entries.changed(f"{path}.gamma", lambda x: x.astype("float32") + 1, lambda x: x - 1)
    return entries.of({".weight": weight, ".bias": f"{path}.beta"}, owner, name)


ARCHITECTURES = {
    "llama": llama(
        {
            **stack(2048),
            **BIASES,
            **fields.off("sliding_window rope_interleaved use_sliding_window"),
            **fields.ignored("not read", "is_llama_config max_sequence_length"),
        },
        _llama,
    ),
    "mistral": llama(
        {
            **stack(131072),
            **fields.defaults(num_key_value_heads=8),
            **fields.nullable(sliding_window=4096),
            **fields.off("attention_bias mlp_bias use_sliding_window"),
        },
        windowed,
    ),
    "qwen2": llama(
        {
            **_QWEN,
            "head_dim": fields.count(None),
            **fields.ignored("of another program, for long texts", "dual_chunk_attention_config"),
        },
        lambda config, n: _qwen(config, n, use_bias="qkv"),
    ),
    "qwen3": llama(
        {**_QWEN, **fields.defaults(head_dim=128), **fields.fixed(attention_bias=False)},
        lambda config, n: _qwen(config, n, qk_norm=RMSNorm(config["rms_norm_eps"])),
    ),
    "smollm3": llama(
        {
            **stack(32768, theta=2000000.0),
            **BIASES,
            **WINDOWS,
            **TYPES,
            **fields.nullable(sliding_window=None, num_key_value_heads=4),
            "head_dim": fields.count(None),
            "no_rope_layers": fields.read(None, list | None),
            **fields.defaults(no_rope_layer_interval=4, tie_word_embeddings=True),
            **fields.ignored("not read", "max_window_layers"),
        },
        _smollm3,
    ),
    "phi3": llama(
        {
            **stack(4096),
            **fields.defaults(rms_norm_eps=1e-5, original_max_position_embeddings=4096),
            **fields.defaults(partial_rotary_factor=1.0),
            **fields.nullable(sliding_window=None),
            **fields.off("attention_bias mlp_bias lm_head_bias"),
            **fields.ignored("of another program", "full_attn_mod interpolate_factor"),
        },
        lambda config, n: windowed(config, n, fraction="partial_rotary_factor", kinds=_PHI3),
        {**NORMS, **entries.attention("self_attn. qkv_proj o_proj"), **_GATED_IN_ONE},
    ),
    "starcoder2": llama(
        {
            **decoder(4096),
            **fields.defaults(num_key_value_heads=2, norm_epsilon=1e-5, use_bias=True),
            **fields.defaults(tie_word_embeddings=True),
            **fields.nullable(sliding_window=None),
            "hidden_act": fields.activation("gelu_pytorch_tanh"),
            # `transformers` computes this whatever the fields contain.
            "mlp_type": fields.only("default", None),
            "norm_type": fields.only("layer_norm", None),
            "scale_attn_weights": fields.only(True, None),
            **fields.ignored("a rate of dropout, which is 0 in use", "residual_dropout"),
            **fields.ignored("not read", "activation_function layer_norm_epsilon"),
            **fields.ignored("weights are in float32", "attention_softmax_in_fp32"),
            **fields.ignored("weights are in float32", "scale_attention_softmax_in_fp32"),
        },
        _starcoder2,
        {**BRANCHES, **entries.network("mlp. c_fc c_proj")},
    ),
    "cohere": llama(
        {
            **decoder(8192, theta=500000.0),
            "head_dim": fields.count(None),
            **fields.defaults(layer_norm_eps=1e-5, logit_scale=0.0625, tie_word_embeddings=True),
            **fields.fixed(attention_bias=False),
            # Norms of queries and keys, as in Command R+, have weights for each head.
            **fields.off("use_qk_norm"),
        },
        _cohere,
        {**entries.norms("input_layernorm"), **ATTENTION, **GATED},
        lambda config: {"logits": {"scale": config["logit_scale"]}},
    ),
    "glm4": llama(
        {
            **stack(131072),
            **fields.defaults(partial_rotary_factor=0.5, num_key_value_heads=2, head_dim=128),
            **fields.defaults(rms_norm_eps=1.5625e-7, attention_bias=True),
        },
        _glm4,
        {
            **entries.norms("input_layernorm post_attention_layernorm"),
            **ATTENTION,
            "post_self_attn_layernorm": "attention_output_norm",
            **_GATED_IN_ONE,
            "post_mlp_layernorm": "feed_forward_output_norm",
        },
    ),
    "nemotron": llama(
        {
            **decoder(4096),
            **BIASES,
            **fields.defaults(partial_rotary_factor=0.5, norm_eps=1e-5),
            **fields.needs("num_key_value_heads"),
            "hidden_act": fields.activation("relu2"),
            **fields.ignored("`norm_eps` and `head_dim` are read", "layer_norm_eps kv_channels"),
        },
        _nemotron,
        {
            **{name: _added_to_1(path) for name, path in NORMS.items()},
            **ATTENTION,
            **entries.network("mlp. up_proj down_proj"),
        },
        others={"norm": _added_to_1("final_norm")},
    ),
}
