"""ALBERT: blocks that are used several times, and tokens of fewer features than these.

The pooler and the prediction of the order of sentences are left out.
"""

import keras

from keras_attention.convert.huggingface import buffers, entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.architectures import bert
from keras_attention.convert.huggingface.fields import count, ignored, needed
from keras_attention.layers.transformer_block import TransformerBlock

FIELDS = {
    **bert.ENCODER,
    "embedding_size": needed(),
    "num_hidden_groups": count(1),
    "inner_group_num": count(1),
    "type_vocab_size": count(2),
    "hidden_act": fields.activation("gelu_new"),
    **ignored(
        "not read",
        "down_scale_factor gap_size layers_to_keep net_structure_type num_memory_blocks",
    ),
}


def _make(config):
    heads = ("AlbertForMaskedLM", "AlbertForPreTraining")
    has_head = stacks.has_head(config, ["AlbertModel"], *heads)
    return bert.encoder(
        config,
        has_head and config["hidden_act"],
        blocks=_blocks(config),
        size=config["embedding_size"],
        projection=keras.layers.Dense(config["hidden_size"], name="projection"),
    )


def _blocks(config):
    layers, groups = config["num_hidden_layers"], config["num_hidden_groups"]
    made = [
        [
            TransformerBlock(**bert.block(config), name=f"block_{group}_{n}")
            for n in range(config["inner_group_num"])
        ]
        for group in range(groups)
    ]
    # Each group is used for as many layers, one after another.
    return [block for n in range(layers) for block in made[n * groups // layers]]


_BLOCK = {
    **entries.attention("attention.", "query key value dense"),
    "attention.LayerNorm": "attention_norm",
    "ffn": "feed_forward.intermediate_dense",
    "ffn_output": "feed_forward.output_dense",
    "full_layer_layer_norm": "feed_forward_norm",
}


def _of_blocks(name, model):
    found = []
    for block in dict.fromkeys(model.blocks):
        # By their names, which `_blocks` gave.
        _, group, inner = block.name.split("_")
        found += entries.of(_BLOCK, block, f"{name}.{group}.albert_layers.{inner}.")
    return found


ARCHITECTURES = {
    "albert": Architecture(
        FIELDS,
        _make,
        {
            **bert.embedding_names(),
            "encoder.embedding_hidden_mapping_in": "embeddings.projection",
            "encoder.albert_layer_groups": _of_blocks,
        },
        prefix="albert.",
        head=stacks.masked_head("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
        unread={
            **buffers.COUNTED,
            r"pooler\..*": "of another task",
            r"sop_classifier\..*": "of another task",
        },
        same={
            "embeddings.word_embeddings.weight": [r"predictions\.decoder\.weight"],
            "predictions.bias": [r"predictions\.decoder\.bias"],
        },
    )
}
