"""Phi-3: Llama with projections in one tensor, and "longrope"."""

from keras_attention.convert.huggingface import parts
from keras_attention.convert.huggingface.architectures import llama

MODEL_TYPES = ("phi3",)
PREFIX = "model."


def model(config, dtype):
    """The `Decoder` of a configuration."""
    config.require("attention_bias", False, default=False)
    config.ignore("resid_pdrop", "embd_pdrop", "original_max_position_embeddings")
    return llama.model(config, dtype)


def entries(model, prefix):
    """The tensors of a model; `prefix` is what their names begin with."""
    found = [parts.plain(f"{prefix}embed_tokens.weight", model.embeddings.tokens.table)]
    for n, block in enumerate(model.blocks):
        name, attention = f"{prefix}layers.{n}", block.attention
        feed_forward = block.feed_forward
        gate_up = [feed_forward.gate_dense, feed_forward.intermediate_dense]
        found += [
            *parts.norm(f"{name}.input_layernorm", block.attention_norm),
            *parts.fused_dense(f"{name}.self_attn.qkv_proj", parts.heads(attention)),
            *parts.dense(f"{name}.self_attn.o_proj", attention.output_dense, inputs=2),
            *parts.norm(f"{name}.post_attention_layernorm", block.feed_forward_norm),
            *parts.fused_dense(f"{name}.mlp.gate_up_proj", gate_up),
            *parts.dense(f"{name}.mlp.down_proj", feed_forward.output_dense),
        ]
    found += parts.norm(f"{prefix}norm", model.final_norm)
    return found + parts.head("lm_head", model)
