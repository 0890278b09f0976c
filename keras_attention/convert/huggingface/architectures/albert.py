"""ALBERT: blocks that are used several times, and tokens of fewer features than these.

The pooler and the prediction of the order of sentences are left out.
"""

import keras

from keras_attention.convert.huggingface import buffers, parts, sequences
from keras_attention.convert.huggingface.architectures import bert
from keras_attention.convert.huggingface.fields import activation, count, ignored, needed
from keras_attention.layers.position_embedding import LearnedPositionEmbedding
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Embeddings, Encoder

PREFIX = "albert."
FIELDS = {
    "albert": {
        **bert.ENCODER,
        "embedding_size": needed(),
        "num_hidden_groups": count(1),
        "inner_group_num": count(1),
        "type_vocab_size": count(2),
        "hidden_act": activation("gelu_new"),
        **ignored(
            "not read",
            "down_scale_factor gap_size layers_to_keep net_structure_type num_memory_blocks",
        ),
    }
}
_HEADS = ("AlbertForMaskedLM", "AlbertForPreTraining")

UNREAD = {
    **buffers.COUNTED,
    r"pooler\..*": "of another task",
    r"sop_classifier\..*": "of another task",
}
SAME = {
    "embeddings.word_embeddings.weight": [r"predictions\.decoder\.weight"],
    "predictions.bias": [r"predictions\.decoder\.bias"],
}


def model(config, dtype):
    """The `Encoder` of a configuration."""
    has_head = sequences.has_head(config, ["AlbertModel"], *_HEADS)
    size, dim = config["embedding_size"], config["hidden_size"]
    epsilon, vocabulary = config["layer_norm_eps"], config["vocab_size"]
    activation = parts.activation(config, "hidden_act")
    embeddings = Embeddings(
        sequences.tokens(vocabulary, size, dtype),
        LearnedPositionEmbedding(config["max_position_embeddings"], name="positions", dtype=dtype),
        types=bert.types(config, size, dtype),
        norm=sequences.layer_norm(epsilon, dtype),
        projection=keras.layers.Dense(dim, name="projection", dtype=dtype),
        name="embeddings",
        dtype=dtype,
    )
    layers, groups = config["num_hidden_layers"], config["num_hidden_groups"]
    inner = config["inner_group_num"]
    made = [
        TransformerBlock(
            config["intermediate_size"],
            config["num_attention_heads"],
            activation=activation,
            layer_norm_epsilon=epsilon,
            name=f"block_{group}_{n}",
            dtype=dtype,
        )
        for group in range(groups)
        for n in range(inner)
    ]
    # Each group is used for as many layers, one after another.
    used = [n * groups // layers for n in range(layers)]
    blocks = [block for group in used for block in made[group * inner : (group + 1) * inner]]
    logits = None
    if has_head:
        norm = sequences.layer_norm(epsilon, dtype)
        logits = sequences.masked_logits(vocabulary, size, activation, norm, dtype)
    return Encoder(blocks, embeddings, logits=logits, dtype=dtype)


def entries(model, prefix):
    """The tensors of a model."""
    found = bert.embedding_entries(model.embeddings, f"{prefix}embeddings")
    projection = model.embeddings.projection
    found += parts.dense(f"{prefix}encoder.embedding_hidden_mapping_in", projection)
    for block in dict.fromkeys(model.blocks):
        # By their names, which `model` gave.
        _, group, inner = block.name.split("_")
        name = f"{prefix}encoder.albert_layer_groups.{group}.albert_layers.{inner}"
        names = [f"{name}.attention.{x}" for x in ("query", "key", "value", "dense")]
        found += [
            *sequences.projections(names, block.attention),
            *parts.norm(f"{name}.attention.LayerNorm", block.attention_norm),
            *sequences.feed_forward(f"{name}.ffn", f"{name}.ffn_output", block.feed_forward),
            *parts.norm(f"{name}.full_layer_layer_norm", block.feed_forward_norm),
        ]
    head = ("predictions.dense", "predictions.LayerNorm", "predictions.bias")
    return found + sequences.masked_head(head, model)
