"""BLOOM."""

from keras_attention.convert.huggingface import parts
from keras_attention.convert.huggingface.fields import COMMON, ignored, needed, only, read, same_as
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

PREFIX = "transformer."
SAME = {"word_embeddings.weight": [r"lm_head\.weight"]}
FIELDS = {
    "bloom": {
        **COMMON,
        "vocab_size": needed(),
        "hidden_size": needed(),
        "n_layer": needed(),
        "n_head": needed(),
        # Of older files.
        "n_embed": same_as("hidden_size"),
        "num_hidden_layers": same_as("n_layer"),
        "num_attention_heads": same_as("n_head"),
        "layer_norm_epsilon": read(1e-5),
        "apply_residual_connection_post_layernorm": only(False),
        # Its sums of parts leave biases out, where `pretraining_tp` is above 1.
        "slow_but_exact": only(False),
        "tie_word_embeddings": read(True),
        **ignored("not read", "n_inner seq_length"),
        **ignored(
            "of the program that trained it",
            """
            attention_softmax_in_fp32 masked_softmax_fusion bias_dropout_fusion offset_alibi
            skip_bias_add skip_bias_add_qkv
            """,
        ),
    }
}


def model(config, dtype):
    """The `Decoder` of a configuration."""
    epsilon, size = config["layer_norm_epsilon"], config["hidden_size"]
    blocks = [
        TransformerBlock(
            4 * size,
            config["n_head"],
            activation="gelu_tanh",
            layer_norm_epsilon=epsilon,
            causal=True,
            residual="pre",
            position="alibi",
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["n_layer"])
    ]
    norm = parts.layer_norm(epsilon, "norm", dtype)
    return Decoder(
        blocks,
        parts.embeddings(config, dtype, size=size, norm=norm),
        parts.layer_norm(epsilon, "final_norm", dtype),
        parts.logits(config, dtype),
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
