"""Phi-3: Llama with projections in one tensor, and "longrope"."""

from keras_attention.convert.huggingface import buffers, parts, rope
from keras_attention.convert.huggingface.architectures import llama
from keras_attention.convert.huggingface.fields import count, ignored, off, read

PREFIX = "model."
UNREAD = buffers.ROTARY
SAME = {"embed_tokens.weight": [r"lm_head\.weight"]}
FIELDS = {
    "phi3": {
        **llama.STACK,
        **rope.fields(4096),
        "rms_norm_eps": read(1e-5),
        "num_key_value_heads": count(None, int | None),
        "head_dim": count(None, int | None),
        "sliding_window": count(None, int | None),
        "original_max_position_embeddings": count(4096),
        "partial_rotary_factor": read(1.0),
        **off("attention_bias mlp_bias lm_head_bias"),
        **ignored("of another program", "full_attn_mod interpolate_factor"),
    }
}
# Two are older names of the third.
_KINDS = {"default": "default", "su": "longrope", "yarn": "longrope", "longrope": "longrope"}


def model(config, dtype):
    """The `Decoder` of a configuration."""
    return llama.model(config, dtype, fraction="partial_rotary_factor", kinds=_KINDS)


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
