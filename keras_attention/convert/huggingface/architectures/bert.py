"""BERT: its hidden states, the logits of its masked language model, or those of its classifier.

A classifier applies to every token: the first has the logits of the text. Elsewhere the pooler, and
the prediction of the next sentence, are left out: no output depends on them.
"""

import keras

from keras_attention.convert.huggingface import buffers, parts, sequences
from keras_attention.convert.huggingface.fields import (
    COMMON,
    LABELS,
    SIZES,
    activation,
    count,
    ignored,
    needed,
    only,
    read,
)
from keras_attention.convert.huggingface.tensors import rows
from keras_attention.layers.position_embedding import LearnedPositionEmbedding
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Embeddings, Encoder

PREFIX = "bert."
# Of any encoder with tables of tokens and of positions.
ENCODER = {
    **COMMON,
    **SIZES,
    "vocab_size": needed(),
    "max_position_embeddings": needed(),
    "layer_norm_eps": read(1e-12),
    "position_embedding_type": only("absolute", None),
    "tie_word_embeddings": only(True),
}
STACK = {
    **ENCODER,
    **LABELS,
    "type_vocab_size": count(2),
    "hidden_act": activation("gelu"),
    **ignored(
        "of the pooler of the first files, and not read",
        """
        directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
        pooler_size_per_head pooler_type
        """,
    ),
}
FIELDS = {"bert": STACK}
HEADS = ("BertForMaskedLM", "BertForPreTraining")
CLASSIFIER = "BertForSequenceClassification"
# The dense layer, the norm and the bias before the logits.
HEAD = tuple(f"cls.predictions.{x}" for x in ("transform.dense", "transform.LayerNorm", "bias"))

UNREAD = {
    **buffers.COUNTED,
    r"pooler\..*": "of another task",
    r"cls\.seq_relationship\..*": "of another task",
}
SAME = {
    "embeddings.word_embeddings.weight": [r"cls\.predictions\.decoder\.weight"],
    "cls.predictions.bias": [r"cls\.predictions\.decoder\.bias"],
}


def model(config, dtype):
    """The `Encoder` of a configuration."""
    has_head = sequences.has_head(config, ["BertModel"], *HEADS, CLASSIFIER)
    activation = parts.activation(config, "hidden_act")
    return encoder(config, dtype, activation if has_head else None)


def encoder(config, dtype, head, first=0):
    """The `Encoder`; `head` is the activation before masked logits, or None without a head.

    `first` is the row of the first position in the table of positions.
    """
    dim, epsilon = config["hidden_size"], config["layer_norm_eps"]
    vocabulary = config["vocab_size"]
    embeddings = Embeddings(
        sequences.tokens(vocabulary, dim, dtype),
        LearnedPositionEmbedding(
            config["max_position_embeddings"] - first, name="positions", dtype=dtype
        ),
        types=types(config, dim, dtype),
        norm=sequences.layer_norm(epsilon, dtype),
        name="embeddings",
        dtype=dtype,
    )
    blocks = [
        TransformerBlock(
            config["intermediate_size"],
            config["num_attention_heads"],
            activation=parts.activation(config, "hidden_act"),
            layer_norm_epsilon=epsilon,
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["num_hidden_layers"])
    ]
    logits = None
    if (config.architecture or "").endswith("ForSequenceClassification"):
        logits = sequences.classes(config, dim, "tanh", dtype)
    elif head is not None:
        norm = sequences.layer_norm(epsilon, dtype)
        logits = sequences.masked_logits(vocabulary, dim, head, norm, dtype)
    return Encoder(blocks, embeddings, logits=logits, dtype=dtype)


def types(config, dim, dtype):
    """The table of token types; None for a model without."""
    size = config["type_vocab_size"]
    return keras.layers.Embedding(size, dim, name="types", dtype=dtype) if size else None


def entries(
    model, prefix, head=HEAD, classifier=("bert.pooler.dense", "classifier"), first=0, suffix=""
):
    """The tensors of a model, whose head has the names `head` or `classifier`.

    `suffix` ends the names of the projections of query, key and value.
    """
    found = embedding_entries(model.embeddings, f"{prefix}embeddings", first)
    for n, block in enumerate(model.blocks):
        name = f"{prefix}encoder.layer.{n}"
        names = [f"{name}.attention.self.{x}{suffix}" for x in ("query", "key", "value")]
        found += [
            *sequences.projections([*names, f"{name}.attention.output.dense"], block.attention),
            *parts.norm(f"{name}.attention.output.LayerNorm", block.attention_norm),
            *sequences.feed_forward(
                f"{name}.intermediate.dense", f"{name}.output.dense", block.feed_forward
            ),
            *parts.norm(f"{name}.output.LayerNorm", block.feed_forward_norm),
        ]
    return found + sequences.head(head, classifier, model)


def embedding_entries(layer, name, first=0):
    """The tables and the norm of the embeddings."""
    found = [
        parts.plain(f"{name}.word_embeddings.weight", layer.tokens.table),
        *parts.norm(f"{name}.LayerNorm", layer.norm),
    ]
    if layer.positions is not None:
        table = layer.positions.embeddings
        found.append(rows(f"{name}.position_embeddings.weight", table, first))
    if layer.types is not None:
        found.append(parts.plain(f"{name}.token_type_embeddings.weight", layer.types.embeddings))
    return found
