"""The text tower of CLIP, with its projection or without it.

Every token has an output; that of the whole text is at its end-of-text token. It is causal: padding
after the text needs no mask.
"""

from keras_attention.convert.huggingface import buffers, parts, sequences
from keras_attention.convert.huggingface.fields import COMMON, activation, count, ignored, read
from keras_attention.layers.position_embedding import LearnedPositionEmbedding
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Embeddings, Encoder, Logits

PREFIX = "text_model."
# Of both towers; those of sizes are what files of both leave out.
TOWER = {
    **COMMON,
    "num_hidden_layers": count(12),
    "projection_dim": count(512, int | None),
    "hidden_act": activation("quick_gelu"),
    "layer_norm_eps": read(1e-5),
    **ignored("a tower has no logits of tokens", "tie_word_embeddings"),
}
FIELDS = {
    "clip_text_model": {
        **TOWER,
        "vocab_size": count(49408),
        "hidden_size": count(512),
        "intermediate_size": count(2048),
        "num_attention_heads": count(8),
        "max_position_embeddings": count(77),
    }
}

UNREAD = {
    **buffers.COUNTED,
    r"vision_model\..*|visual_projection\.weight|logit_scale": "of the other tower, and of both",
}


def model(config, dtype):
    """The `Encoder` of a configuration."""
    has_head = sequences.has_head(config, ["CLIPTextModel"], "CLIPTextModelWithProjection")
    dim = config["hidden_size"]
    positions = LearnedPositionEmbedding(
        config["max_position_embeddings"], name="positions", dtype=dtype
    )
    return Encoder(
        blocks(config, dtype, causal=True),
        Embeddings(
            sequences.tokens(config["vocab_size"], dim, dtype),
            positions,
            name="embeddings",
            dtype=dtype,
        ),
        sequences.layer_norm(config["layer_norm_eps"], dtype, "final_norm"),
        projection(config, has_head, dtype),
        dtype=dtype,
    )


def blocks(config, dtype, causal):
    """The blocks of either tower."""
    return [
        TransformerBlock(
            config["intermediate_size"],
            config["num_attention_heads"],
            activation=parts.activation(config, "hidden_act"),
            layer_norm_epsilon=config["layer_norm_eps"],
            residual="pre",
            causal=causal,
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["num_hidden_layers"])
    ]


def projection(config, has_head, dtype):
    """The projection to the space of both towers."""
    if not has_head:
        return None
    return Logits(config["projection_dim"], tied=False, name="projection", dtype=dtype)


def entries(model, prefix):
    """The tensors of a model."""
    layer, name = model.embeddings, f"{prefix}embeddings"
    return [
        parts.plain(f"{name}.token_embedding.weight", layer.tokens.table),
        parts.plain(f"{name}.position_embedding.weight", layer.positions.embeddings),
        *block_entries(model, prefix),
        *parts.norm(f"{prefix}final_layer_norm", model.final_norm),
        *parts.head("text_projection", model),
    ]


def block_entries(model, prefix):
    """The tensors of the blocks of either tower."""
    found = []
    for n, block in enumerate(model.blocks):
        name = f"{prefix}encoder.layers.{n}"
        names = [f"{name}.self_attn.{x}_proj" for x in ("q", "k", "v", "out")]
        found += [
            *parts.norm(f"{name}.layer_norm1", block.attention_norm),
            *sequences.projections(names, block.attention),
            *parts.norm(f"{name}.layer_norm2", block.feed_forward_norm),
            *sequences.feed_forward(f"{name}.mlp.fc1", f"{name}.mlp.fc2", block.feed_forward),
        ]
    return found
