"""Llama, and models that differ from it in options: Mistral, Qwen 2 and 3."""

from keras_attention.convert.huggingface import parts
from keras_attention.layers.rms_norm import RMSNorm
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
PREFIX = "model."


def model(config, dtype):
    """The `Decoder` of a configuration."""
    kind = config.values["model_type"]
    epsilon = config.get("rms_norm_eps", 1e-6)
    biases = {"llama": config.get("attention_bias", False), "qwen2": "qkv"}.get(kind, False)
    if kind == "llama":
        config.require("mlp_bias", biases, default=biases)
    if kind == "qwen3":
        config.require("attention_bias", False, default=False)
    config.ignore("attention_dropout", "max_position_embeddings")
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    blocks = [
        TransformerBlock(
            config["intermediate_size"],
            heads,
            activation=parts.activation(config, "hidden_act", "silu"),
            gated=True,
            causal=True,
            residual="pre",
            norm="rms",
            layer_norm_epsilon=epsilon,
            key_dim=head_dim,
            num_key_value_heads=config.get("num_key_value_heads", heads),
            use_bias=biases,
            qk_norm=RMSNorm(epsilon) if kind == "qwen3" else False,
            pattern=window,
            position=parts.rotary(config, head_dim),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n, window in enumerate(parts.windows(config))
    ]
    return Decoder(
        blocks,
        parts.embeddings(config, dtype),
        RMSNorm(epsilon, name="final_norm", dtype=dtype),
        parts.logits(config, dtype),
        dtype=dtype,
    )


def entries(model, prefix):
    """The tensors of a model; `prefix` is what their names begin with, "model." or nothing."""
    found = [parts.plain(f"{prefix}embed_tokens.weight", model.embeddings.tokens.table)]
    for n, block in enumerate(model.blocks):
        name = f"{prefix}layers.{n}"
        attention, feed_forward = block.attention, block.feed_forward
        found += [
            *parts.norm(f"{name}.input_layernorm", block.attention_norm),
            *parts.attention(f"{name}.self_attn", attention),
            *parts.norm(f"{name}.post_attention_layernorm", block.feed_forward_norm),
            *parts.gated(f"{name}.mlp", feed_forward),
        ]
        if attention.qk_norm:
            found += parts.norm(f"{name}.self_attn.q_norm", attention.query_norm)
            found += parts.norm(f"{name}.self_attn.k_norm", attention.key_norm)
    found += parts.norm(f"{prefix}norm", model.final_norm)
    return found + parts.head("lm_head", model)
