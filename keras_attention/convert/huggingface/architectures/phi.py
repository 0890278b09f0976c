"""Phi: Phi-1, 1.5 and 2."""

import keras

from keras_attention.convert.huggingface import parts
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

MODEL_TYPES = ("phi",)
PREFIX = "model."


def model(config, dtype):
    """The `Decoder` of a configuration."""
    epsilon = config.get("layer_norm_eps", 1e-5)
    heads = config["num_attention_heads"]
    config.ignore("attention_dropout", "resid_pdrop", "embd_pdrop", "max_position_embeddings")
    normed = config.get("qk_layernorm", False)
    blocks = [
        TransformerBlock(
            config["intermediate_size"],
            heads,
            activation=parts.activation(config, "hidden_act", "gelu_new"),
            layer_norm_epsilon=epsilon,
            causal=True,
            residual="parallel",
            norm={"feed_forward": "shared"},
            num_key_value_heads=config.get("num_key_value_heads", heads),
            qk_norm=keras.layers.LayerNormalization(epsilon=epsilon) if normed else False,
            position=parts.rotary(config, config["hidden_size"] // heads, 0.5),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["num_hidden_layers"])
    ]
    return Decoder(
        blocks,
        parts.embeddings(config, dtype),
        parts.layer_norm(epsilon, "final_norm", dtype),
        parts.logits(config, dtype, use_bias=True),
        dtype=dtype,
    )


def entries(model, prefix):
    """The tensors of a model; `prefix` is what their names begin with."""
    found = [parts.plain(f"{prefix}embed_tokens.weight", model.embeddings.tokens.table)]
    for n, block in enumerate(model.blocks):
        name, attention = f"{prefix}layers.{n}", block.attention
        found += [
            *parts.norm(f"{name}.input_layernorm", block.attention_norm),
            *parts.attention(f"{name}.self_attn", attention, "dense"),
            *parts.dense(f"{name}.mlp.fc1", block.feed_forward.intermediate_dense),
            *parts.dense(f"{name}.mlp.fc2", block.feed_forward.output_dense),
        ]
        if attention.qk_norm:
            found += parts.norm(f"{name}.self_attn.q_layernorm", attention.query_norm)
            found += parts.norm(f"{name}.self_attn.k_layernorm", attention.key_norm)
    found += parts.norm(f"{prefix}final_layernorm", model.final_norm)
    return found + parts.head("lm_head", model)
