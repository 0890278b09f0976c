"""Falcon: 7B with one head of keys, 40B with groups of heads, and models without either."""

from keras_attention.convert.huggingface import parts
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

MODEL_TYPES = ("falcon",)
PREFIX = "transformer."


def model(config, dtype):
    """The `Decoder` of a configuration."""
    epsilon = config.get("layer_norm_epsilon", 1e-5)
    size, heads = config["hidden_size"], config["num_attention_heads"]
    # Its own code computes the penalties of ALiBi in bfloat16, which ours are not rounded to.
    config.require("alibi", False, default=False)
    config.ignore("hidden_dropout", "attention_dropout", "max_position_embeddings")
    grouped = config.get("new_decoder_architecture", False)
    residual, norms = _topology(config, grouped)
    blocks = [
        TransformerBlock(
            config.get("ffn_hidden_size", 4 * size),
            heads,
            activation=parts.activation(config, "activation", "gelu"),
            layer_norm_epsilon=epsilon,
            causal=True,
            residual=residual,
            norm=norms,
            num_key_value_heads=_groups(config, grouped, heads),
            use_bias=config.get("bias", False),
            position=parts.rotary(config),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["num_hidden_layers"])
    ]
    return Decoder(
        blocks,
        parts.embeddings(config, dtype),
        parts.layer_norm(epsilon, "final_norm", dtype),
        parts.logits(config, dtype, tied=True),
        dtype=dtype,
    )


def _topology(config, grouped):
    """The residual and the norms of blocks."""
    parallel = config.get("parallel_attn", True)
    count = config.get("num_ln_in_parallel_attn", 2 if grouped else 1)
    if grouped:
        config.require("parallel_attn", True, default=True)
        config.require("num_ln_in_parallel_attn", 1, 2, default=2)
    else:
        config.require("num_ln_in_parallel_attn", None, 1)
    if not parallel:
        return "pre", "layer"
    return "parallel", {} if count == 2 else {"feed_forward": "shared"}


def _groups(config, grouped, heads):
    """The number of heads of keys."""
    one = config.get("multi_query", True) and not grouped
    given = config.get("num_kv_heads", heads)
    if not grouped and not one:
        config.require("num_kv_heads", heads, default=heads)
    return 1 if one else given


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


def unused(name):
    """Whether a tensor is a table of wavelengths, which older files have."""
    return name.endswith(".rotary_emb.inv_freq")
