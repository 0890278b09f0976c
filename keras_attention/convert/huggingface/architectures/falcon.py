"""Falcon: 7B with one head of keys, 40B with groups of heads, and models without either."""

from keras_attention.convert.huggingface import buffers, entries, fields, rope, stacks
from keras_attention.convert.huggingface.architecture import language_model
from keras_attention.convert.huggingface.fields import count, needs, off, only, read, same_as

FIELDS = {
    **fields.COMMON,
    **rope.fields(2048),
    **needs("vocab_size hidden_size num_hidden_layers num_attention_heads"),
    "n_embed": same_as("hidden_size"),
    "num_kv_heads": count(None, int | None),
    "ffn_hidden_size": count(None, int | None),
    "activation": fields.activation("gelu"),
    "layer_norm_epsilon": read(1e-5),
    "bias": read(False),
    "new_decoder_architecture": read(False),
    "multi_query": read(True),
    "parallel_attn": read(True),
    "num_ln_in_parallel_attn": count(None, int | None),
    "tie_word_embeddings": read(True),
    # Its own code computes the penalties of ALiBi in bfloat16, which ours are not rounded to.
    "alibi": only(False),
    "ff_factor": only(4, None),
    **off("apply_residual_connection_post_layernorm"),
    # When it returns them, its code loses the causal mask that PyTorch's kernel applies.
    **off("output_attentions"),
}


def _block(config, n):
    grouped, heads = config["new_decoder_architecture"], config["num_attention_heads"]
    residual, norm = _topology(config, grouped)
    return {
        "intermediate_dim": config["ffn_hidden_size"] or 4 * config["hidden_size"],
        "num_heads": heads,
        "activation": config["activation"],
        "layer_norm_epsilon": config["layer_norm_epsilon"],
        "residual": residual,
        "norm": norm,
        "num_key_value_heads": _groups(config, grouped, heads),
        "use_bias": config["bias"],
        "position": rope.rotary(config, stacks.head_size(config)),
    }


def _topology(config, grouped):
    """The residual and the norms of blocks."""
    if grouped:
        config.require("parallel_attn", True)
        norms = config.require("num_ln_in_parallel_attn", None, 1, 2)
        return "parallel", {"feed_forward": "shared"} if norms == 1 else {}
    config.require("num_ln_in_parallel_attn", None, 1)
    return ("parallel", {"feed_forward": "shared"}) if config["parallel_attn"] else ("pre", "layer")


def _groups(config, grouped, heads):
    """The number of heads of keys."""
    if grouped:
        return config["num_kv_heads"] or heads
    if config["multi_query"]:
        return 1
    config.require("num_kv_heads", None, heads)
    return heads


def _norms(name, block):
    first, second = "ln_attn", "ln_mlp"
    if block.residual == "pre":
        first, second = "input_layernorm", "post_attention_layernorm"
    if block.attention_norm is block.feed_forward_norm:
        return entries.of({"input_layernorm": "attention_norm"}, block, name)
    return entries.of({first: "attention_norm", second: "feed_forward_norm"}, block, name)


ARCHITECTURES = {
    "falcon": language_model(
        FIELDS,
        stacks.decoder(_block),
        "word_embeddings",
        {
            "h": entries.blocks(
                {
                    "": _norms,
                    "self_attention.query_key_value": entries.by_head(
                        "attention.num_key_value_heads"
                    ),
                    "self_attention.dense": "attention.output_dense",
                    "mlp.dense_h_to_4h": "feed_forward.intermediate_dense",
                    "mlp.dense_4h_to_h": "feed_forward.output_dense",
                }
            ),
            "ln_f": "final_norm",
        },
        prefix="transformer.",
        unread=buffers.ROTARY,
    )
}
