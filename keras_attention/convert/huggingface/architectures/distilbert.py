"""DistilBERT: BERT without token types.

A classifier applies to every token: the first has the logits of the text.
"""

from keras_attention.convert.huggingface import buffers, parts, sequences
from keras_attention.convert.huggingface.fields import (
    COMMON,
    LABELS,
    activation,
    ignored,
    needed,
    only,
    same_as,
)
from keras_attention.layers.position_embedding import LearnedPositionEmbedding
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Embeddings, Encoder

PREFIX = "distilbert."
FIELDS = {
    "distilbert": {
        **COMMON,
        **LABELS,
        "vocab_size": needed(),
        "max_position_embeddings": needed(),
        "dim": needed(),
        "hidden_dim": needed(),
        "n_layers": needed(),
        "n_heads": needed(),
        "hidden_size": same_as("dim"),
        "num_hidden_layers": same_as("n_layers"),
        "num_attention_heads": same_as("n_heads"),
        "activation": activation("gelu"),
        "tie_word_embeddings": only(True),
        "tie_weights_": only(True, None),
        **ignored("sinusoidal positions are stored as a table like any", "sinusoidal_pos_embds"),
    }
}
_MASKED = "DistilBertForMaskedLM"
_CLASSIFIER = "DistilBertForSequenceClassification"
_EPSILON = 1e-12

UNREAD = buffers.COUNTED
SAME = {"embeddings.word_embeddings.weight": [r"vocab_projector\.weight"]}


def model(config, dtype):
    """The `Encoder` of a configuration."""
    has_head = sequences.has_head(config, ["DistilBertModel"], _MASKED, _CLASSIFIER)
    dim, vocabulary = config["dim"], config["vocab_size"]
    activation = parts.activation(config, "activation")
    embeddings = Embeddings(
        sequences.tokens(vocabulary, dim, dtype),
        LearnedPositionEmbedding(config["max_position_embeddings"], name="positions", dtype=dtype),
        norm=sequences.layer_norm(_EPSILON, dtype),
        name="embeddings",
        dtype=dtype,
    )
    blocks = [
        TransformerBlock(
            config["hidden_dim"],
            config["n_heads"],
            activation=activation,
            layer_norm_epsilon=_EPSILON,
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["n_layers"])
    ]
    logits = None
    if config.architecture == _CLASSIFIER:
        logits = sequences.classes(config, dim, "relu", dtype)
    elif has_head:
        norm = sequences.layer_norm(_EPSILON, dtype)
        logits = sequences.masked_logits(vocabulary, dim, activation, norm, dtype)
    return Encoder(blocks, embeddings, logits=logits, dtype=dtype)


def entries(model, prefix):
    """The tensors of a model."""
    layer = model.embeddings
    found = [
        parts.plain(f"{prefix}embeddings.word_embeddings.weight", layer.tokens.table),
        parts.plain(f"{prefix}embeddings.position_embeddings.weight", layer.positions.embeddings),
        *parts.norm(f"{prefix}embeddings.LayerNorm", layer.norm),
    ]
    for n, block in enumerate(model.blocks):
        name = f"{prefix}transformer.layer.{n}"
        names = [f"{name}.attention.{x}_lin" for x in ("q", "k", "v", "out")]
        found += [
            *sequences.projections(names, block.attention),
            *parts.norm(f"{name}.sa_layer_norm", block.attention_norm),
            *sequences.feed_forward(f"{name}.ffn.lin1", f"{name}.ffn.lin2", block.feed_forward),
            *parts.norm(f"{name}.output_layer_norm", block.feed_forward_norm),
        ]
    head = ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias")
    return found + sequences.head(head, ("pre_classifier", "classifier"), model)
