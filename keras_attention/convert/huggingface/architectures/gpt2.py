"""GPT-2, whose matrices are stored as (inputs, outputs)."""

from keras_attention import scores
from keras_attention.convert.huggingface import buffers, parts
from keras_attention.convert.huggingface.fields import (
    COMMON,
    activation,
    count,
    ignored,
    needed,
    read,
    same_as,
)
from keras_attention.layers.position_embedding import LearnedPositionEmbedding
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

PREFIX = "transformer."
UNREAD = buffers.causal(r"(attn|crossattention)")
SAME = {"wte.weight": [r"lm_head\.weight"]}
FIELDS = {
    "gpt2": {
        **COMMON,
        "vocab_size": needed(),
        "n_positions": needed(),
        "n_embd": needed(),
        "n_layer": needed(),
        "n_head": needed(),
        "n_inner": count(None, int | None),
        "max_position_embeddings": same_as("n_positions"),
        "hidden_size": same_as("n_embd"),
        "num_hidden_layers": same_as("n_layer"),
        "num_attention_heads": same_as("n_head"),
        "activation_function": activation("gelu_new"),
        "layer_norm_epsilon": read(1e-5),
        "scale_attn_weights": read(True),
        "scale_attn_by_inverse_layer_idx": read(False),
        "tie_word_embeddings": read(True),
        **ignored(
            "the order of a product and a cast, of half precision", "reorder_and_upcast_attn"
        ),
        **ignored("an older name of `n_positions`, which is not read", "n_ctx"),
        **ignored("of GPT, and not read", "n_special predict_special_tokens"),
        **ignored(
            "of a head that is not read",
            """
            summary_type summary_use_proj summary_activation summary_proj_to_labels
            summary_first_dropout
            """,
        ),
    }
}


def model(config, dtype):
    """The `Decoder` of a configuration."""
    epsilon = config["layer_norm_epsilon"]
    size, heads = config["n_embd"], config["n_head"]
    scale = (
        parts.head_size(config, "n_embd", "n_head") ** -0.5 if config["scale_attn_weights"] else 1.0
    )
    by_layer = config["scale_attn_by_inverse_layer_idx"]
    blocks = [
        TransformerBlock(
            config["n_inner"] or 4 * size,
            heads,
            activation=parts.activation(config, "activation_function"),
            layer_norm_epsilon=epsilon,
            causal=True,
            residual="pre",
            score=scores.ScaledDot(scale / (n + 1) if by_layer else scale),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["n_layer"])
    ]
    positions = LearnedPositionEmbedding(config["n_positions"], name="positions", dtype=dtype)
    return Decoder(
        blocks,
        parts.embeddings(config, dtype, size=size, positions=positions),
        parts.layer_norm(epsilon, "final_norm", dtype),
        parts.logits(config, dtype),
        dtype=dtype,
    )


def entries(model, prefix):
    """The tensors of a model; `prefix` is what their names begin with."""
    found = [
        parts.plain(f"{prefix}wte.weight", model.embeddings.tokens.table),
        parts.plain(f"{prefix}wpe.weight", model.embeddings.positions.embeddings),
    ]
    for n, block in enumerate(model.blocks):
        name = f"{prefix}h.{n}"
        attention, feed_forward = block.attention, block.feed_forward
        found += parts.norm(f"{name}.ln_1", block.attention_norm)
        found += parts.norm(f"{name}.ln_2", block.feed_forward_norm)
        for weight, *bias in (
            parts.fused_dense(f"{name}.attn.c_attn", parts.heads(attention)),
            parts.dense(f"{name}.attn.c_proj", attention.output_dense, inputs=2),
            parts.dense(f"{name}.mlp.c_fc", feed_forward.intermediate_dense),
            parts.dense(f"{name}.mlp.c_proj", feed_forward.output_dense),
        ):
            found += [parts.transposed(weight), *bias]
    found += parts.norm(f"{prefix}ln_f", model.final_norm)
    return found + parts.head("lm_head", model)
