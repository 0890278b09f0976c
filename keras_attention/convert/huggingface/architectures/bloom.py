"""BLOOM."""

from keras_attention.convert.huggingface import parts
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

MODEL_TYPES = ("bloom",)
PREFIX = "transformer."


def model(config, dtype):
    """The `Decoder` of a configuration."""
    epsilon = config.get("layer_norm_epsilon", 1e-5)
    # The second names are those of older files.
    size = config["n_embed" if "n_embed" in config else "hidden_size"]
    heads = config["num_attention_heads" if "num_attention_heads" in config else "n_head"]
    count = config["num_hidden_layers" if "num_hidden_layers" in config else "n_layer"]
    config.require("apply_residual_connection_post_layernorm", False, default=False)
    config.require("n_inner", None, 4 * size)
    config.ignore("hidden_dropout", "attention_dropout", "seq_length", "n_embed", "hidden_size")
    # Of the program that trained it.
    config.ignore("attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion")
    config.ignore("offset_alibi", "skip_bias_add", "skip_bias_add_qkv")
    blocks = [
        TransformerBlock(
            4 * size,
            heads,
            activation="gelu_tanh",
            layer_norm_epsilon=epsilon,
            causal=True,
            residual="pre",
            position="alibi",
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(count)
    ]
    norm = parts.layer_norm(epsilon, "norm", dtype)
    return Decoder(
        blocks,
        parts.embeddings(config, dtype, size=size, norm=norm),
        parts.layer_norm(epsilon, "final_norm", dtype),
        parts.logits(config, dtype, tied=True),
        dtype=dtype,
    )


def entries(model, prefix):
    """The tensors of a model; `prefix` is what their names begin with."""
    found = [
        parts.plain(f"{prefix}word_embeddings.weight", model.embeddings.tokens.table),
        *parts.norm(f"{prefix}word_embeddings_layernorm", model.embeddings.norm),
    ]
    for n, block in enumerate(model.blocks):
        name, attention = f"{prefix}h.{n}", block.attention
        found += [
            *parts.norm(f"{name}.input_layernorm", block.attention_norm),
            *parts.fused_dense(
                f"{name}.self_attention.query_key_value",
                parts.heads(attention),
                attention.num_heads,
            ),
            *parts.dense(f"{name}.self_attention.dense", attention.output_dense, inputs=2),
            *parts.norm(f"{name}.post_attention_layernorm", block.feed_forward_norm),
            *parts.dense(f"{name}.mlp.dense_h_to_4h", block.feed_forward.intermediate_dense),
            *parts.dense(f"{name}.mlp.dense_4h_to_h", block.feed_forward.output_dense),
        ]
    found += parts.norm(f"{prefix}ln_f", model.final_norm)
    return found + parts.head("lm_head", model)
