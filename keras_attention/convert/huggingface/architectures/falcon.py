"""Falcon: 7B with one head of keys, 40B with groups of heads, and models without either."""

from keras_attention.convert.huggingface import buffers, parts, rope
from keras_attention.convert.huggingface.fields import (
    COMMON,
    activation,
    count,
    needed,
    off,
    only,
    read,
    same_as,
)
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

PREFIX = "transformer."
UNREAD = buffers.ROTARY
SAME = {"word_embeddings.weight": [r"lm_head\.weight"]}
FIELDS = {
    "falcon": {
        **COMMON,
        **rope.fields(2048),
        "vocab_size": needed(),
        "hidden_size": needed(),
        "n_embed": same_as("hidden_size"),
        "num_hidden_layers": needed(),
        "num_attention_heads": needed(),
        "num_kv_heads": count(None, int | None),
        "ffn_hidden_size": count(None, int | None),
        "activation": activation("gelu"),
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
        # With them, its code forgets the causal mask where a kernel of PyTorch's had it.
        **off("output_attentions"),
    }
}


def model(config, dtype):
    """The `Decoder` of a configuration."""
    epsilon = config["layer_norm_epsilon"]
    size, heads = config["hidden_size"], config["num_attention_heads"]
    grouped = config["new_decoder_architecture"]
    residual, norms = _topology(config, grouped)
    blocks = [
        TransformerBlock(
            config["ffn_hidden_size"] or 4 * size,
            heads,
            activation=parts.activation(config, "activation"),
            layer_norm_epsilon=epsilon,
            causal=True,
            residual=residual,
            norm=norms,
            num_key_value_heads=_groups(config, grouped, heads),
            use_bias=config["bias"],
            position=rope.rotary(config, parts.head_size(config)),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["num_hidden_layers"])
    ]
    return Decoder(
        blocks,
        parts.embeddings(config, dtype),
        parts.layer_norm(epsilon, "final_norm", dtype),
        parts.logits(config, dtype),
        dtype=dtype,
    )


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


def entries(model, prefix):
    """The tensors of a model; `prefix` is what their names begin with."""
    found = [parts.plain(f"{prefix}word_embeddings.weight", model.embeddings.tokens.table)]
    for n, block in enumerate(model.blocks):
        name, attention = f"{prefix}h.{n}", block.attention
        found += [
            *_norms(name, block),
            *parts.fused_dense(
                f"{name}.self_attention.query_key_value",
                parts.heads(attention),
                attention.num_key_value_heads,
            ),
            *parts.dense(f"{name}.self_attention.dense", attention.output_dense, inputs=2),
            *parts.dense(f"{name}.mlp.dense_h_to_4h", block.feed_forward.intermediate_dense),
            *parts.dense(f"{name}.mlp.dense_4h_to_h", block.feed_forward.output_dense),
        ]
    found += parts.norm(f"{prefix}ln_f", model.final_norm)
    return found + parts.head("lm_head", model)


def _norms(name, block):
    first, second = block.attention_norm, block.feed_forward_norm
    if first is second:
        return parts.norm(f"{name}.input_layernorm", first)
    names = "ln_attn", "ln_mlp"
    if block.residual == "pre":
        names = "input_layernorm", "post_attention_layernorm"
    return parts.norm(f"{name}.{names[0]}", first) + parts.norm(f"{name}.{names[1]}", second)
