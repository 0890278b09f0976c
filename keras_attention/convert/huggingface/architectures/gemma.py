"""Gemma 2, and the text model of Gemma 3."""

from keras_attention import positions, scores
from keras_attention.convert.huggingface import parts
from keras_attention.layers.rms_norm import RMSNorm
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

MODEL_TYPES = ("gemma2", "gemma3_text")
PREFIX = "model."


def model(config, dtype):
    """The `Decoder` of a configuration."""
    third = config.values["model_type"] == "gemma3_text"
    epsilon = config.get("rms_norm_eps", 1e-6)
    activation = parts.activation(config, "hidden_activation", "gelu_pytorch_tanh")
    # A second name, in older files.
    config.require("hidden_act", None, config.get("hidden_activation", "gelu_pytorch_tanh"))
    config.require("attention_bias", False, default=False)
    config.require("use_bidirectional_attention", False, default=False)
    config.ignore("attention_dropout", "max_position_embeddings", "cache_implementation")
    types = _types(config, third)
    at = _positions(config, third)
    head_dim = config["head_dim"]

    def norm(name=None):
        return RMSNorm(epsilon, offset=1.0, name=name, dtype=dtype)

    blocks = [
        TransformerBlock(
            config["intermediate_size"],
            config["num_attention_heads"],
            activation=activation,
            gated=True,
            causal=True,
            residual="sandwich",
            norm=norm(),
            key_dim=head_dim,
            num_key_value_heads=config["num_key_value_heads"],
            use_bias=False,
            qk_norm=norm() if third else False,
            score=scores.ScaledDot(config.get("query_pre_attn_scalar", head_dim) ** -0.5),
            logit_soft_cap=config.get("attn_logit_softcapping"),
            pattern=window,
            position=at(types[n]),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n, window in enumerate(parts.windows(config, types))
    ]
    return Decoder(
        blocks,
        parts.embeddings(config, dtype, scale=None),
        norm("final_norm"),
        parts.logits(config, dtype, tied=True, soft_cap=config.get("final_logit_softcapping")),
        dtype=dtype,
    )


def _types(config, third):
    """The types of layers: in files without them, the last of each few sees all."""
    period = 2
    if third:
        period = config.get("sliding_window_pattern", config.get("_sliding_window_pattern", 6))
    default = [
        "sliding_attention" if (n + 1) % period else "full_attention"
        for n in range(config["num_hidden_layers"])
    ]
    return config.get("layer_types", default)


def _positions(config, third):
    """A function of the type of a layer: its positions."""
    if not third:
        return lambda kind: parts.rotary(config)
    if "rope_parameters" in config:
        by_type = config.part("rope_parameters")
        given = {kind: by_type.part(kind) for kind in ("full_attention", "sliding_attention")}
        by_type.check_read()
        return lambda kind: parts.rotary(config, given=given[kind])
    local = positions.Rotary(config["rope_local_base_freq"])
    whole = parts.rotary(config)
    config["rope_theta"]
    return lambda kind: whole if kind == "full_attention" else local


def entries(model, prefix):
    """The tensors of a model; `prefix` is what their names begin with."""
    found = [parts.plain(f"{prefix}embed_tokens.weight", model.embeddings.tokens.table)]
    for n, block in enumerate(model.blocks):
        name, attention = f"{prefix}layers.{n}", block.attention
        found += [
            *parts.norm(f"{name}.input_layernorm", block.attention_norm),
            *parts.attention(f"{name}.self_attn", attention),
            *parts.norm(f"{name}.post_attention_layernorm", block.attention_output_norm),
            *parts.norm(f"{name}.pre_feedforward_layernorm", block.feed_forward_norm),
            *parts.gated(f"{name}.mlp", block.feed_forward),
            *parts.norm(f"{name}.post_feedforward_layernorm", block.feed_forward_output_norm),
        ]
        if attention.qk_norm:
            found += parts.norm(f"{name}.self_attn.q_norm", attention.query_norm)
            found += parts.norm(f"{name}.self_attn.k_norm", attention.key_norm)
    found += parts.norm(f"{prefix}norm", model.final_norm)
    return found + parts.head("lm_head", model)
