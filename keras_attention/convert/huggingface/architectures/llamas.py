"""Llama, and decoders that differ from it in options.

They are Mistral, Qwen 2 and 3, SmolLM3, Phi-3, StarCoder2, Command R (7B too), GLM-4 (2025),
Nemotron, OLMo 2 and 3, Granite, StableLM, Gemma 1 and 2, and the text model of Gemma 3.
"""

import keras

from keras_attention import patterns, scores
from keras_attention.convert.huggingface import entries, fields, rope, stacks
from keras_attention.layers.blocks.norms import HeadNorm, RMSNorm


def decoder(length, theta=10000.0, **defaults):
    """Fields of most, as of `rope.fields`, and those of `fields.defaults`."""
    return (
        fields.LANGUAGE
        | rope.fields(length, theta)
        | fields.nullable(num_key_value_heads=None, head_dim=None)
        | fields.defaults(**{"tie_word_embeddings": False, "hidden_act": "silu", **defaults})
    )


def stack(length, theta=10000.0, rms_norm_eps=1e-6, **defaults):
    """The same with the epsilon of RMSNorms."""
    return decoder(length, theta, rms_norm_eps=rms_norm_eps, **defaults)


BIASES = fields.defaults(attention_bias=False, mlp_bias=False)
WINDOWS = fields.defaults(use_sliding_window=False) | fields.nullable(sliding_window=4096)
TYPES = {"layer_types": fields.read(None, list | None)}
ATTENTION = {
    **entries.attention("self_attn. q_proj k_proj v_proj o_proj"),
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
}
NORMS = entries.norms("input_layernorm post_attention_layernorm")
GATED = entries.network("mlp. gate_proj up_proj down_proj")
BRANCHES = {**NORMS, **ATTENTION}
_GATED_IN_ONE = entries.gated_in_one("mlp. gate_up_proj down_proj")
# Half of the features are rotated, unless a field says otherwise.
_HALF = {"fraction": "partial_rotary_factor"}


def llama(fields, block=lambda config, n: {}, tensors=BRANCHES | GATED, gated=True, **options):
    """As of `stacks.language_model`, with Llama's names of the stack, and of tensors by default."""
    names = "model. embed_tokens layers norm"
    return stacks.language_model(fields, names, tensors, block, gated=gated, **options)


_QWEN = (
    stack(32768)
    | WINDOWS
    | TYPES
    | fields.nullable(num_key_value_heads=32)
    | fields.defaults(max_window_layers=fields.read(28))
    | fields.off("mlp_bias use_mrope")
)


def qk_normed(config, n):
    """Queries and keys have norms like those of blocks."""
    return {"qk_norm": RMSNorm(config["rms_norm_eps"])}


def _smollm3(config, n):
    """Windows, if any, are in the layers without positions."""
    layers, rotated = config["num_hidden_layers"], config["no_rope_layers"]
    if rotated is None:
        rotated = [(n + 1) % config["no_rope_layer_interval"] for n in range(layers)]
    elif len(rotated) < layers:
        config.refuse("no_rope_layers", f"a list of at least {layers} values", rotated)
    size = config["sliding_window"]
    near = config["use_sliding_window"] and size is not None
    pattern = stacks.window_by_type(config, n, size, lambda n: near and not rotated[n])
    return {"pattern": pattern, **({} if rotated[n] else {"position": None})}


# "su" and "yarn" are older names of "longrope".
_PHI3 = {"default": "default", "su": "longrope", "yarn": "longrope", "longrope": "longrope"}


@entries.layout
def _added_to_1(name, owner, path):
    weight = entries.changed(f"{path}.gamma", lambda x: x.astype("float32") + 1, lambda x: x - 1)
    return entries.of({".weight": weight, ".bias": f"{path}.beta"}, owner, name)


# Cohere: one LayerNorm without an offset for both branches, side by side

_COHERE = (
    decoder(8192, layer_norm_eps=1e-5, head_dim=fields.count(None))
    | fields.defaults(logit_scale=0.0625, tie_word_embeddings=True)
    | fields.fixed(attention_bias=False)
)
_ONE_NORM = {**entries.norms("input_layernorm"), **ATTENTION, **GATED}


def _cohere(config, n):
    by_head = HeadNorm("layer", epsilon=config["layer_norm_eps"])
    return {
        "norm": {"attention": stacks.norm(config, center=False), "feed_forward": "shared"},
        "qk_norm": by_head if config.get("use_qk_norm") else False,
    }


def _cohere2(config, n):
    """Layers that see all have no positions."""
    types = stacks.layer_types(config, lambda n: (n + 1) % config["sliding_window_pattern"])
    rotated = {} if types[n] == "sliding_attention" else {"position": None}
    return {**_cohere(config, n), **rotated}


# OLMo: norms after the branches alone, and of queries and keys over all heads

_OLMO2 = stack(2048, rms_norm_eps=1e-5, head_dim=fields.count(None)) | fields.fixed(
    attention_bias=False
)
_OLMO2_TENSORS = {
    **ATTENTION,
    "post_attention_layernorm": "attention_output_norm",
    **GATED,
    "post_feedforward_layernorm": "feed_forward_output_norm",
}
# Where a file has no parameters by type, `rope_theta` is of one of them alone, in `transformers`.
_OLMO3_BASES = dict.fromkeys(("full_attention", "sliding_attention"), ("rope_theta", 5e5))


def olmo_normed(config, n):
    """Queries and keys have norms over the features of all heads."""
    return {"qk_norm": HeadNorm("rms", together=True, epsilon=config["rms_norm_eps"])}


def _olmo2(config, n):
    none, rms = ("attention", "feed_forward"), ("attention_output", "feed_forward_output")
    return {**olmo_normed(config, n), "norm": dict.fromkeys(none) | dict.fromkeys(rms, "rms")}


def _olmo3(config, n):
    types = stacks.layer_types(config, lambda n: (n + 1) % 4)
    found = rope.rotary_by_type(config, stacks.head_size(config), _OLMO3_BASES, ["full_attention"])
    pattern = stacks.window_by_type(config, n, config["sliding_window"], lambda n: (n + 1) % 4)
    return {**_olmo2(config, n), "position": found[types[n]], "pattern": pattern}


# Granite


def _granite(config, n):
    """Branches are multiplied before they are added."""
    before = dict.fromkeys(("attention", "feed_forward"), "rms")
    after = (f"{name}_output" for name in before)
    return {
        "score": scores.ScaledDot(config["attention_multiplier"]),
        "norm": before | {x: keras.layers.Rescaling(config["residual_multiplier"]) for x in after},
    }


def _granite_further(config):
    if not config["logits_scaling"]:
        config.refuse("logits_scaling", "a number by which logits can be divided", 0)
    return {
        "embeddings": {"scale": config["embedding_multiplier"]},
        "logits": {"scale": 1 / config["logits_scaling"]},
    }


def _stablelm(config, n):
    by_head = HeadNorm("layer", epsilon=config["layer_norm_eps"])
    parallel = config["use_parallel_residual"]
    return {
        "residual": "parallel" if parallel else "pre",
        "norm": {"feed_forward": "shared"} if parallel else "layer",
        "use_bias": "qkv" if config["use_qkv_bias"] else False,
        "qk_norm": by_head if config["qk_layernorm"] else False,
    }


def _stablelm_norms(name, block):
    """Of both branches, or the one of both."""
    both = "" if block.residual == "parallel" else " post_attention_layernorm"
    return entries.of(entries.norms(f"input_layernorm{both}"), block, name)


# Gemma

_BASES = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}
_GEMMA = (
    fields.LANGUAGE
    | fields.defaults(num_key_value_heads=4, head_dim=256, query_pre_attn_scalar=256)
    | fields.defaults(rms_norm_eps=1e-6, tie_word_embeddings=True)
    | fields.nullable(sliding_window=4096)
    | TYPES
    | fields.defaults(hidden_activation="gelu_pytorch_tanh")
    | fields.fixed(attention_bias=False)
    | fields.off("use_bidirectional_attention")
    | fields.ignored("not read beside `hidden_activation`", "hidden_act")
    | fields.ignored("not read beside `sliding_window`", "sliding_window_size")
)
_GEMMA_TENSORS = {
    **entries.norms("input_layernorm pre_feedforward_layernorm"),
    **ATTENTION,
    "post_attention_layernorm": "attention_output_norm",
    **GATED,
    "post_feedforward_layernorm": "feed_forward_output_norm",
}


def _gemma(config, n):
    """The norms of a block multiply by 1 + weight."""
    return {"norm": RMSNorm(config["rms_norm_eps"], offset=1.0)}


def _gemma3(config, n):
    slides, size = (lambda n: (n + 1) % config["sliding_window_pattern"]), config["sliding_window"]
    types, found = (
        stacks.layer_types(config, slides),
        stacks.window_by_type(config, n, size, slides),
    )
    rotary = rope.rotary_by_type(config, config["head_dim"], _BASES, ["full_attention"])
    options = {"qk_norm": _gemma(config, n)["norm"], "position": rotary[types[n]]}
    if config["use_bidirectional_attention"]:
        if size is None:
            config.refuse("sliding_window", "a number beside 'use_bidirectional_attention'", None)
        if found is not None:
            found = patterns.SlidingWindow(size // 2, size // 2)
        options["causal"] = False
    return {**_gemma(config, n), **options, "pattern": found}


# Vectors of tokens are multiplied by the root of their size.
_SCALED = {"further": lambda config: {"embeddings": {"scale": None}}}


ARCHITECTURES = {
    "llama": llama(
        stack(2048)
        | BIASES
        | fields.off("sliding_window rope_interleaved use_sliding_window")
        | fields.ignored("not read", "is_llama_config max_sequence_length")
    ),
    "mistral": llama(
        stack(131072, num_key_value_heads=8)
        | fields.nullable(sliding_window=4096)
        | fields.off("attention_bias mlp_bias use_sliding_window")
    ),
    "qwen2": llama(
        _QWEN
        | fields.defaults(head_dim=fields.count(None))
        | fields.ignored("of another program, for long texts", "dual_chunk_attention_config"),
        use_bias="qkv",
    ),
    "qwen3": llama(
        _QWEN | fields.defaults(head_dim=128) | fields.fixed(attention_bias=False), qk_normed
    ),
    "smollm3": llama(
        stack(32768, theta=2e6, head_dim=fields.count(None), tie_word_embeddings=True)
        | BIASES
        | WINDOWS
        | TYPES
        | fields.nullable(sliding_window=None, num_key_value_heads=4)
        | fields.defaults(no_rope_layer_interval=4, no_rope_layers=fields.read(None, list | None))
        | fields.ignored("not read", "max_window_layers"),
        _smollm3,
    ),
    "phi3": llama(
        stack(4096, rms_norm_eps=1e-5, partial_rotary_factor=1.0)
        | fields.defaults(original_max_position_embeddings=4096)
        | fields.nullable(sliding_window=None)
        | fields.off("attention_bias mlp_bias lm_head_bias")
        | fields.ignored("of another program", "full_attn_mod interpolate_factor"),
        tensors={**NORMS, **entries.attention("self_attn. qkv_proj o_proj"), **_GATED_IN_ONE},
        rotary={**_HALF, "kinds": _PHI3},
    ),
    # LayerNorms, biases, and a feed-forward network without a gate.
    "starcoder2": llama(
        decoder(4096, num_key_value_heads=2, norm_epsilon=1e-5, use_bias=True)
        | fields.defaults(tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh")
        | fields.nullable(sliding_window=None)
        # `transformers` computes this whatever the fields contain.
        | fields.fixed(scale_attn_weights=(True, None))
        | fields.fixed(mlp_type=("default", None), norm_type=("layer_norm", None))
        | fields.ignored("a rate of dropout, which is 0 in use", "residual_dropout")
        | fields.ignored("not read", "activation_function layer_norm_epsilon")
        | fields.ignored("weights are in float32", "scale_attention_softmax_in_fp32"),
        tensors={**BRANCHES, **entries.network("mlp. c_fc c_proj")},
        gated=False,
    ),
    "cohere": llama(
        _COHERE | fields.defaults(rope_theta=500000.0, use_qk_norm=False),
        _cohere,
        _ONE_NORM,
        residual="parallel",
        rotary={"layout": "interleaved"},
    ),
    "cohere2": llama(
        _COHERE
        | TYPES
        | fields.nullable(sliding_window=4096)
        | fields.defaults(sliding_window_pattern=4)
        # `transformers` computes this whatever the fields contain.
        | fields.fixed(use_gated_activation=(True, None), use_parallel_block=(True, None))
        | fields.fixed(use_embedding_sharing=(True, None), rotary_pct=(1.0, None))
        | fields.fixed(position_embedding_type=("rope_gptj", None))
        | fields.fixed(order_of_interleaved_layers=("local_attn_first", None))
        | fields.off("use_qk_norm use_parallel_embedding")
        | fields.ignored("not read beside `sliding_window_pattern`", "layer_switch"),
        _cohere2,
        _ONE_NORM,
        residual="parallel",
        rotary={"layout": "interleaved"},
    ),
    "olmo2": llama(
        _OLMO2,
        _olmo2,
        _OLMO2_TENSORS,
        residual="sandwich",
    ),
    "olmo3": llama(
        _OLMO2
        | rope.fields_by_type(2048, _OLMO3_BASES)
        | TYPES
        | fields.nullable(sliding_window=4096)
        | fields.fixed(rope_theta=500000.0),
        _olmo3,
        _OLMO2_TENSORS,
        residual="sandwich",
    ),
    "granite": llama(
        stack(2048)
        | BIASES
        | fields.defaults(embedding_multiplier=1.0, logits_scaling=1.0)
        | fields.defaults(residual_multiplier=1.0, attention_multiplier=1.0),
        _granite,
        further=_granite_further,
        residual="sandwich",
    ),
    # LayerNorms, and a quarter of the features rotated.
    "stablelm": llama(
        decoder(4096, partial_rotary_factor=0.25, layer_norm_eps=1e-5, num_key_value_heads=32)
        | fields.defaults(use_qkv_bias=False, qk_layernorm=False, use_parallel_residual=False),
        _stablelm,
        {"": _stablelm_norms}
        | entries.attention("self_attn. q_proj k_proj v_proj o_proj")
        | {
            f"self_attn.{x}_layernorm.norms": entries.of_heads(f"attention.{role}_norm")
            for x, role in (("q", "query"), ("k", "key"))
        }
        | GATED,
        rotary=_HALF,
    ),
    # Norms on both sides of branches, and half of the features rotated, in turns.
    "glm4": llama(
        stack(131072, rms_norm_eps=1.5625e-7, partial_rotary_factor=0.5, attention_bias=True)
        | fields.defaults(num_key_value_heads=2, head_dim=128),
        lambda config, n: {"use_bias": "qkv" if config["attention_bias"] else False},
        BRANCHES
        | {"post_self_attn_layernorm": "attention_output_norm"}
        | _GATED_IN_ONE
        | {"post_mlp_layernorm": "feed_forward_output_norm"},
        residual="sandwich",
        rotary={**_HALF, "layout": "interleaved"},
    ),
    # LayerNorms whose weight is what is added to 1, and squared ReLU without a gate.
    "nemotron": llama(
        decoder(4096, partial_rotary_factor=0.5, norm_eps=1e-5, hidden_act="relu2")
        | BIASES
        | fields.needs("num_key_value_heads")
        | fields.ignored("`norm_eps` and `head_dim` are read", "layer_norm_eps kv_channels"),
        tensors={
            **{name: _added_to_1(path) for name, path in NORMS.items()},
            **ATTENTION,
            **entries.network("mlp. up_proj down_proj"),
        },
        others={"norm": _added_to_1("final_norm")},
        gated=False,
        rotary=_HALF,
    ),
    "gemma": llama(
        stack(8192, num_key_value_heads=16, head_dim=256, tie_word_embeddings=True)
        | fields.fixed(use_bidirectional_attention=(None, False), attention_bias=False)
        # "gelu" is its approximation, which the first files do not say.
        | fields.defaults(hidden_act=fields.activation("gelu_pytorch_tanh", gelu="gelu_tanh"))
        | fields.ignored("not read beside `hidden_act`", "hidden_activation"),
        _gemma,
        **_SCALED,
    ),
    "gemma2": llama(
        _GEMMA
        | rope.fields(8192)
        | fields.nullable(attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
        _gemma,
        _GEMMA_TENSORS,
        **_SCALED,
        residual="sandwich",
    ),
    "gemma3_text": llama(
        _GEMMA
        | rope.fields_by_type(131072, _BASES)
        | fields.defaults(sliding_window_pattern=6)
        | fields.defaults(final_logit_softcapping=fields.read(None, float | None))
        # EmbeddingGemma: all tokens see each other, or those of a window around them.
        | fields.defaults(use_bidirectional_attention=fields.read(False, bool | None))
        | fields.ignored("not read", "attn_logit_softcapping _sliding_window_pattern"),
        _gemma3,
        _GEMMA_TENSORS,
        **_SCALED,
        residual="sandwich",
    ),
}
