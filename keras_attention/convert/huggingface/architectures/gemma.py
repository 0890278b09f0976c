"""Gemma 2, and the text model of Gemma 3."""

from keras_attention import scores
from keras_attention.convert.huggingface import buffers, parts, rope
from keras_attention.convert.huggingface.fields import (
    COMMON,
    SIZES,
    activation,
    count,
    ignored,
    needed,
    only,
    read,
)
from keras_attention.layers.rms_norm import RMSNorm
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

PREFIX = "model."
UNREAD = buffers.ROTARY
SAME = {"embed_tokens.weight": [r"lm_head\.weight"]}
_BASES = {
    "full_attention": ("rope_theta", 1e6),
    "sliding_attention": ("rope_local_base_freq", 1e4),
}
_STACK = {
    **COMMON,
    **SIZES,
    "vocab_size": needed(),
    "num_key_value_heads": count(4),
    "head_dim": count(256),
    "hidden_activation": activation("gelu_pytorch_tanh"),
    "rms_norm_eps": read(1e-6),
    "query_pre_attn_scalar": count(256),
    "sliding_window": count(4096, int | None),
    "layer_types": read(None, list | None),
    "tie_word_embeddings": read(True),
    "attention_bias": only(False),
    "use_bidirectional_attention": only(False, None),
    **ignored("not read beside `hidden_activation`", "hidden_act"),
    **ignored("not read beside `sliding_window`", "sliding_window_size"),
}
FIELDS = {
    "gemma2": {
        **_STACK,
        **rope.fields(8192),
        "attn_logit_softcapping": read(50.0, float | None),
        "final_logit_softcapping": read(30.0, float | None),
    },
    "gemma3_text": {
        **_STACK,
        **rope.fields_by_type(131072, _BASES),
        "sliding_window_pattern": count(6),
        "final_logit_softcapping": read(None, float | None),
        **ignored("not read for this model", "attn_logit_softcapping _sliding_window_pattern"),
    },
}


def model(config, dtype):
    """The `Decoder` of a configuration."""
    third = config.model_type == "gemma3_text"
    epsilon = config["rms_norm_eps"]
    types = _types(config, third)

    def norm(name=None):
        return RMSNorm(epsilon, offset=1.0, name=name, dtype=dtype)

    blocks = [
        TransformerBlock(
            config["intermediate_size"],
            config["num_attention_heads"],
            activation=parts.activation(config, "hidden_activation"),
            gated=True,
            causal=True,
            residual="sandwich",
            norm=norm(),
            key_dim=config["head_dim"],
            num_key_value_heads=config["num_key_value_heads"],
            use_bias=False,
            qk_norm=norm() if third else False,
            score=scores.ScaledDot(config["query_pre_attn_scalar"] ** -0.5),
            logit_soft_cap=None if third else config["attn_logit_softcapping"],
            pattern=window,
            position=_position(config, third, types[n]),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n, window in enumerate(parts.windows(config, types, config["sliding_window"]))
    ]
    return Decoder(
        blocks,
        parts.embeddings(config, dtype, scale=None),
        norm("final_norm"),
        parts.logits(config, dtype, soft_cap=config["final_logit_softcapping"]),
        dtype=dtype,
    )


def _types(config, third):
    """The types of layers: in files without them, the last of each few sees all."""
    period = config["sliding_window_pattern"] if third else 2
    default = [
        "sliding_attention" if (n + 1) % period else "full_attention"
        for n in range(config["num_hidden_layers"])
    ]
    return parts.layer_types(config, default)


def _position(config, third, kind):
    """The positions of a layer of some type."""
    if third:
        return rope.rotary_by_type(config, config["head_dim"], _BASES, ["full_attention"])[kind]
    return rope.rotary(config, config["head_dim"])


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
