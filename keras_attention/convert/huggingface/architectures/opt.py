"""OPT. The embeddings of 350m are smaller than its blocks, and projected on both sides."""

import keras

from keras_attention.convert.huggingface import buffers, parts
from keras_attention.convert.huggingface.fields import COMMON, activation, count, needed, only, read
from keras_attention.layers.position_embedding import LearnedPositionEmbedding
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

PREFIX = "model."
UNREAD = buffers.VERSION
SAME = {"decoder.embed_tokens.weight": [r"lm_head\.weight"]}
FIELDS = {
    "opt": {
        **COMMON,
        "vocab_size": needed(),
        "hidden_size": needed(),
        "ffn_dim": needed(),
        "num_hidden_layers": needed(),
        "num_attention_heads": needed(),
        "max_position_embeddings": needed(),
        "word_embed_proj_dim": count(None, int | None),
        "activation_function": activation("relu"),
        "do_layer_norm_before": read(True),
        "_remove_final_layer_norm": read(False),
        "enable_bias": read(True),
        "tie_word_embeddings": read(True),
        "layer_norm_elementwise_affine": only(True),
    }
}
# Rows of the table of positions before that of position 0.
_BEFORE = 2


def model(config, dtype):
    """The `Decoder` of a configuration."""
    size, pre = config["hidden_size"], config["do_layer_norm_before"]
    blocks = [
        TransformerBlock(
            config["ffn_dim"],
            config["num_attention_heads"],
            activation=parts.activation(config, "activation_function"),
            causal=True,
            residual="pre" if pre else "post",
            use_bias=config["enable_bias"],
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["num_hidden_layers"])
    ]
    length = config["max_position_embeddings"]
    positions = LearnedPositionEmbedding(length, name="positions", dtype=dtype)
    removed = config["_remove_final_layer_norm"]
    tokens = config["word_embed_proj_dim"] or size
    into, out_of = (
        None
        if tokens == size
        else keras.layers.Dense(features, use_bias=False, name=name, dtype=dtype)
        for features, name in ((size, "project_in"), (tokens, "project_out"))
    )
    logits = parts.logits(config, dtype, transform=out_of)
    if logits is None:
        # Its states would be those before the projection.
        config.require("word_embed_proj_dim", size, None)
    return Decoder(
        blocks,
        parts.embeddings(config, dtype, size=tokens, positions=positions, token_projection=into),
        parts.layer_norm(1e-5, "final_norm", dtype) if pre and not removed else None,
        logits,
        dtype=dtype,
    )


def entries(model, prefix):
    """The tensors of a model; `prefix` is what their names begin with."""
    inside = f"{prefix}decoder."
    table = model.embeddings.positions.embeddings
    found = [
        parts.plain(f"{inside}embed_tokens.weight", model.embeddings.tokens.table),
        parts.table_from(f"{inside}embed_positions.weight", table, _BEFORE),
    ]
    for n, block in enumerate(model.blocks):
        name = f"{inside}layers.{n}"
        found += [
            *parts.norm(f"{name}.self_attn_layer_norm", block.attention_norm),
            *parts.attention(f"{name}.self_attn", block.attention, "out_proj"),
            *parts.norm(f"{name}.final_layer_norm", block.feed_forward_norm),
            *parts.dense(f"{name}.fc1", block.feed_forward.intermediate_dense),
            *parts.dense(f"{name}.fc2", block.feed_forward.output_dense),
        ]
    found += parts.norm(f"{inside}final_layer_norm", model.final_norm)
    if model.embeddings.token_projection is not None:
        found += parts.dense(f"{inside}project_in", model.embeddings.token_projection)
        found += parts.dense(f"{inside}project_out", model.logits.transform)
    return found + parts.head("lm_head", model)
