"""DeBERTa-v3, and DeBERTa-v2 without a convolution: disentangled attention.

A classifier applies to every token, as BERT's does. The discriminator that version 3 was trained as
is left out.
"""

from keras_attention import positions, scores
from keras_attention.convert.huggingface import buffers, parts, sequences
from keras_attention.convert.huggingface.architectures import bert
from keras_attention.convert.huggingface.fields import (
    LABELS,
    activation,
    count,
    ignored,
    only,
    read,
)
from keras_attention.layers.position_embedding import LearnedPositionEmbedding
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Embeddings, Encoder

PREFIX = "deberta."
_BOTH = ["p2c", "c2p"]
FIELDS = {
    "deberta-v2": {
        **bert.ENCODER,
        **LABELS,
        "type_vocab_size": read(0, least=0),
        "layer_norm_eps": read(1e-7),
        "hidden_act": activation("gelu"),
        "pooler_hidden_act": activation("gelu"),
        "position_biased_input": read(True),
        "position_buckets": read(-1),
        "max_relative_positions": read(-1),
        "legacy": read(True),
        # Of other sizes they would be other models.
        "embedding_size": count(None),
        "attention_head_size": count(None),
        "pooler_hidden_size": count(None),
        # Without these it would be another attention, whose defaults they are.
        "relative_attention": only(False, True),
        "share_att_key": only(False, True),
        "pos_att_type": only(None, _BOTH, _BOTH[::-1], "p2c|c2p", "c2p|p2c"),
        "norm_rel_ebd": only("none", "layer_norm"),
        "conv_kernel_size": only(0),
        **ignored("of the convolution, which is not supported", "conv_act conv_groups"),
        **ignored("not read", "padding_idx summary_type"),
    }
}
_MASKED = "DebertaV2ForMaskedLM"
_CLASSIFIER = "DebertaV2ForSequenceClassification"
# The dense layer, the norm and the bias before the logits, by the name of our layer: the first are
# those of `legacy` files.
_HEADS = {
    "transform": tuple(
        f"cls.predictions.{x}" for x in ("transform.dense", "transform.LayerNorm", "bias")
    ),
    "lm_head": tuple(f"lm_predictions.lm_head.{x}" for x in ("dense", "LayerNorm", "bias")),
}

UNREAD = {
    **buffers.COUNTED,
    r"embeddings\.position_embeddings\.weight": "of training: distances are the positions",
    r"(lm|mask)_predictions\..*": "of training",
}
SAME = {
    "embeddings.word_embeddings.weight": [r"cls\.predictions\.decoder\.weight"],
    "cls.predictions.bias": [r"cls\.predictions\.decoder\.bias"],
}


def model(config, dtype):
    """The `Encoder` of a configuration."""
    sequences.has_head(config, ["DebertaV2Model"], _MASKED, _CLASSIFIER)
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    vocabulary, epsilon = config["vocab_size"], config["layer_norm_eps"]
    config.require("embedding_size", dim, None)
    config.require("attention_head_size", dim // heads, None)
    config.require("pooler_hidden_size", dim, None)
    activation = parts.activation(config, "hidden_act")
    absolute = LearnedPositionEmbedding(
        config["max_position_embeddings"], name="positions", dtype=dtype
    )
    embeddings = Embeddings(
        sequences.tokens(vocabulary, dim, dtype),
        absolute if config["position_biased_input"] else None,
        types=bert.types(config, dim, dtype),
        norm=sequences.layer_norm(epsilon, dtype),
        name="embeddings",
        dtype=dtype,
    )
    table = _table(config, epsilon)
    blocks = [
        TransformerBlock(
            config["intermediate_size"],
            heads,
            activation=activation,
            layer_norm_epsilon=epsilon,
            position=table,
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["num_hidden_layers"])
    ]
    name = "transform" if config["legacy"] else "lm_head"
    logits = None
    if config.architecture == _CLASSIFIER:
        of_pooler = parts.activation(config, "pooler_hidden_act")
        logits = sequences.classes(config, dim, of_pooler, dtype)
    elif config.architecture == _MASKED:
        norm = sequences.layer_norm(epsilon, dtype)
        logits = sequences.masked_logits(vocabulary, dim, activation, norm, dtype, name=name)
    return Encoder(blocks, embeddings, logits=logits, dtype=dtype)


def _table(config, epsilon):
    """The distances that all layers share."""
    config.require("relative_attention", True)
    config.require("share_att_key", True)
    config.require("pos_att_type", _BOTH, _BOTH[::-1], "p2c|c2p", "c2p|p2c")
    longest, buckets = config["max_relative_positions"], config["position_buckets"]
    normed = config["norm_rel_ebd"] == "layer_norm"
    if longest < 1:
        longest = config["max_position_embeddings"]
    return positions.Disentangled(
        2 * (buckets if buckets > 0 else longest),
        longest if buckets > 0 else None,
        norm=sequences.layer_norm(epsilon, scores.full_precision()) if normed else None,
        name="distances",
    )


def entries(model, prefix):
    """The tensors of a model."""
    names = None
    if model.logits is not None and model.logits.tied:
        names = _HEADS[model.logits.transform.name]
    found = bert.entries(model, prefix, names, ("pooler.dense", "classifier"), suffix="_proj")
    table = model.blocks[0].attention.position
    return [
        *found,
        parts.plain(f"{prefix}encoder.rel_embeddings.weight", table.embeddings),
        *parts.norm(f"{prefix}encoder.LayerNorm", table.norm),
    ]
