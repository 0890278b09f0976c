"""Phi: Phi-1, 1.5 and 2."""

import keras

from keras_attention.convert.huggingface import buffers, parts, rope
from keras_attention.convert.huggingface.fields import (
    COMMON,
    SIZES,
    activation,
    count,
    needed,
    read,
)
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

PREFIX = "model."
UNREAD = buffers.ROTARY
SAME = {"embed_tokens.weight": [r"lm_head\.weight"]}
FIELDS = {
    "phi": {
        **COMMON,
        **SIZES,
        **rope.fields(2048),
        "partial_rotary_factor": read(0.5),
        "vocab_size": needed(),
        "num_key_value_heads": count(None, int | None),
        "hidden_act": activation("gelu_new"),
        "layer_norm_eps": read(1e-5),
        "qk_layernorm": read(False),
        "tie_word_embeddings": read(False),
    }
}


def model(config, dtype):
    """The `Decoder` of a configuration."""
    epsilon, heads = config["layer_norm_eps"], config["num_attention_heads"]
    normed = config["qk_layernorm"]
    blocks = [
        TransformerBlock(
            config["intermediate_size"],
            heads,
            activation=parts.activation(config, "hidden_act"),
            layer_norm_epsilon=epsilon,
            causal=True,
            residual="parallel",
            norm={"feed_forward": "shared"},
            num_key_value_heads=config["num_key_value_heads"] or heads,
            qk_norm=keras.layers.LayerNormalization(epsilon=epsilon) if normed else False,
            position=rope.rotary(config, parts.head_size(config), "partial_rotary_factor"),
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
