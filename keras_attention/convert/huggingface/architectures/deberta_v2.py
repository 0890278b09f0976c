"""DeBERTa-v3, and DeBERTa-v2 without a convolution: disentangled attention.

A classifier applies to every token, as BERT's does. The discriminator that version 3 was trained as
is left out.
"""

from keras_attention import positions, scores
from keras_attention.convert.huggingface import parts, sequences
from keras_attention.convert.huggingface.architectures import bert
from keras_attention.layers.position_embedding import LearnedPositionEmbedding
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Embeddings, Encoder

MODEL_TYPES = ("deberta-v2",)
PREFIX = "deberta."
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

unused = sequences.matching(
    r"(deberta\.)?embeddings\.(position_ids|position_embeddings\.weight)",
    r"cls\.predictions\.decoder\..*",
    r"(lm|mask)_predictions\..*",
)


def model(config, dtype):
    """The `Encoder` of a configuration."""
    sequences.has_head(config, ["DebertaV2Model"], _MASKED, _CLASSIFIER)
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    vocabulary, epsilon = config["vocab_size"], config.get("layer_norm_eps", 1e-7)
    config.require("conv_kernel_size", None, 0)
    config.require("embedding_size", dim, default=dim)
    config.require("attention_head_size", dim // heads, default=dim // heads)
    config.require("pooler_hidden_size", dim, default=dim)
    config.require("tie_word_embeddings", True, default=True)
    config.ignore(
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "pooler_dropout", "cls_dropout"),
        *("conv_act", "conv_groups"),
    )
    activation = parts.activation(config, "hidden_act", "gelu")
    of_pooler = parts.activation(config, "pooler_hidden_act", "gelu")
    absolute = LearnedPositionEmbedding(
        config["max_position_embeddings"], name="positions", dtype=dtype
    )
    embeddings = Embeddings(
        sequences.tokens(vocabulary, dim, dtype),
        absolute if config.get("position_biased_input", True) else None,
        types=bert.types(config, dim, dtype, default=0),
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
    name = "transform" if config.get("legacy", True) else "lm_head"
    logits = None
    if config["architectures"] == [_CLASSIFIER]:
        logits = sequences.classes(config, dim, of_pooler, dtype)
    elif config["architectures"] == [_MASKED]:
        norm = sequences.layer_norm(epsilon, dtype)
        logits = sequences.masked_logits(vocabulary, dim, activation, norm, dtype, name=name)
    return Encoder(blocks, embeddings, logits=logits, dtype=dtype)


def _table(config, epsilon):
    """The distances that all layers share."""
    config.require("relative_attention", True, default=False)
    config.require("share_att_key", True, default=False)
    both = ["p2c", "c2p"]
    config.require("pos_att_type", both, both[::-1], "p2c|c2p", "c2p|p2c")
    normed = config.require("norm_rel_ebd", "none", "layer_norm", default="none") != "none"
    longest = config.get("max_relative_positions", -1)
    if longest < 1:
        longest = config["max_position_embeddings"]
    buckets = config.get("position_buckets", -1)
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
