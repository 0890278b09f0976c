"""Llama, and decoders that differ from it in options.

They are Mistral, Qwen 2 and 3, SmolLM3, Phi-3, StarCoder2, Command R (7B too), GLM-4 (2025),
Nemotron, OLMo 2 and 3, Granite, StableLM, Gemma 1 and 2, and the text model of Gemma 3.
"""

import functools

import keras

from keras_attention import scores
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
_PROJECTIONS = entries.attention("self_attn. q_proj k_proj v_proj o_proj")
ATTENTION = _PROJECTIONS | entries.qk_norms("self_attn. q_norm k_norm")
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

_COHERE = decoder(8192, layer_norm_eps=1e-5, logit_scale=0.0625, tie_word_embeddings=True)
_COHERE |= fields.defaults(head_dim=fields.count(None), attention_bias=fields.only(False))


def _cohere(config, n):
    """Layers that see all have no positions, where there are types."""
    norm = {"attention": stacks.norm(config, center=False), "feed_forward": "shared"}
    found = {"norm": norm, "qk_norm": _by_head(config, "use_qk_norm")}
    full = "layer_types" in config and stacks.layer_types(config)[n] == "full_attention"
    return {**found, "position": None} if full else found


def _by_head(config, wanted):
    return HeadNorm("layer", epsilon=config["layer_norm_eps"]) if config.get(wanted) else False


_ONE, _INTERLEAVED = entries.norms("input_layernorm"), {"layout": "interleaved"}
_like_cohere = functools.partial(
    llama, tensors=_ONE | ATTENTION | GATED, residual="parallel", rotary=_INTERLEAVED
)

# OLMo: norms after the branches alone, and of queries and keys over all heads

OLMO = stack(
    2048, rms_norm_eps=1e-5, head_dim=fields.count(None), attention_bias=fields.only(False)
)
_OLMO3_BASES = dict.fromkeys(("full_attention", "sliding_attention"), ("rope_theta", 5e5))


def olmo_normed(config, n):
    """Queries and keys have norms over the features of all heads."""
    return {"qk_norm": HeadNorm("rms", together=True, epsilon=config["rms_norm_eps"])}


def _olmo2(config, n):
    norm = {"attention": None, "attention_output": "rms"}
    norm |= {"feed_forward": None, "feed_forward_output": "rms"}
    return {**olmo_normed(config, n), "norm": norm}


def _rotary_by_type(config, n, bases):
    """The positions of a layer, as an option; `rope_scaling` is of those that see all."""
    found = rope.rotary_by_type(config, stacks.head_size(config), bases, ["full_attention"])
    return {"position": found[stacks.layer_types(config)[n]]}


_AFTER = {
    **ATTENTION,
    "post_attention_layernorm": "attention_output_norm",
    **GATED,
    "post_feedforward_layernorm": "feed_forward_output_norm",
}
_GEMMA_TENSORS = _AFTER | entries.norms("input_layernorm pre_feedforward_layernorm")


def _granite(config, n):
    """Branches are multiplied before they are added."""
    multiplied = keras.layers.Rescaling(config["residual_multiplier"])
    norm = {"attention": "rms", "attention_output": multiplied}
    norm |= {"feed_forward": "rms", "feed_forward_output": multiplied}
    return {"score": scores.ScaledDot(config["attention_multiplier"]), "norm": norm}


def _stablelm(config, n):
    options = {"residual": "parallel", "norm": {"feed_forward": "shared"}}
    options = options if config["use_parallel_residual"] else {}
    use_bias = "qkv" if config["use_qkv_bias"] else False
    return {**options, "use_bias": use_bias, "qk_norm": _by_head(config, "qk_layernorm")}


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


def _gemma(config, n):
    """The norms of a block multiply by 1 + weight."""
    return {"norm": RMSNorm(config["rms_norm_eps"], offset=1.0)}


def _gemma3(config, n):
    options = {"qk_norm": _gemma(config, n)["norm"], **_rotary_by_type(config, n, _BASES)}
    return {**_gemma(config, n), **options, "causal": not config["use_bidirectional_attention"]}


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
    "cohere": _like_cohere(
        _COHERE | fields.defaults(rope_theta=500000.0, use_qk_norm=False), _cohere
    ),
    "cohere2": _like_cohere(
        _COHERE
        | TYPES
        | fields.nullable(sliding_window=4096)
        | fields.defaults(sliding_window_pattern=4)
        # `transformers` computes this whatever the fields contain.
        | fields.each("use_gated_activation use_parallel_block", fields.only(True, None))
        | fields.fixed(use_embedding_sharing=(True, None), rotary_pct=(1.0, None))
        | fields.fixed(position_embedding_type=("rope_gptj", None))
        | fields.off("use_qk_norm use_parallel_embedding")
        | fields.ignored("not read", "layer_switch order_of_interleaved_layers"),
        _cohere,
    ),
    "olmo2": llama(OLMO, _olmo2, _AFTER, residual="sandwich"),
    "olmo3": llama(
        OLMO
        | rope.fields_by_type(2048, _OLMO3_BASES)
        | TYPES
        | fields.nullable(sliding_window=4096)
        # Other values would be of some layers alone.
        | fields.fixed(rope_theta=500000.0, sliding_window_pattern=4),
        lambda config, n: _olmo2(config, n) | _rotary_by_type(config, n, _OLMO3_BASES),
        _AFTER,
        residual="sandwich",
    ),
    "granite": llama(
        stack(2048, embedding_multiplier=1.0, residual_multiplier=1.0, attention_multiplier=1.0)
        | BIASES
        | fields.defaults(logits_scaling=fields.read(1.0, least=1e-6)),
        _granite,
        further=lambda config: {
            "embeddings": {"scale": config["embedding_multiplier"]},
            "logits": {"scale": 1 / config["logits_scaling"]},
        },
        residual="sandwich",
    ),
    # LayerNorms, and a quarter of the features rotated.
    "stablelm": llama(
        decoder(4096, partial_rotary_factor=0.25, layer_norm_eps=1e-5, num_key_value_heads=32)
        | fields.defaults(use_qkv_bias=False, qk_layernorm=False, use_parallel_residual=False),
        _stablelm,
        {**_PROJECTIONS, **GATED}
        | {
            "": lambda name, block: entries.of(
                NORMS if block.residual == "pre" else _ONE, block, name
            ),
            "self_attn.q_layernorm.norms": entries.of_heads("attention.query_norm"),
            "self_attn.k_layernorm.norms": entries.of_heads("attention.key_norm"),
        },
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
