"""DeBERTa-v3, and DeBERTa-v2 without a convolution: disentangled attention.

A classifier applies to every token, as BERT's does. The discriminator that version 3 was trained as
is left out.
"""

from keras_attention import positions, scores
from keras_attention.convert.huggingface import buffers, entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.architectures import bert
from keras_attention.convert.huggingface.fields import count, ignored, only, read

_BOTH = ["p2c", "c2p"]
FIELDS = {
    **bert.ENCODER,
    **fields.LABELS,
    "type_vocab_size": read(0, least=0),
    "layer_norm_eps": read(1e-7),
    "pooler_hidden_act": fields.activation("gelu"),
    "position_biased_input": read(True),
    "position_buckets": read(-1),
    "max_relative_positions": read(-1),
    "legacy": read(True),
    # Only the sizes that follow from the width: others are other models.
    "embedding_size": count(None),
    "attention_head_size": count(None),
    "pooler_hidden_size": count(None),
    # With other values the attention is another one. The defaults are those of plain attention.
    "relative_attention": only(False, True),
    "share_att_key": only(False, True),
    "pos_att_type": only(None, _BOTH, _BOTH[::-1], "p2c|c2p", "c2p|p2c"),
    "norm_rel_ebd": only("none", "layer_norm"),
    "conv_kernel_size": only(0),
    **ignored("of the convolution, which is not supported", "conv_act conv_groups"),
    **ignored("not read", "padding_idx summary_type"),
}


def _make(config):
    heads = ("DebertaV2ForMaskedLM", "DebertaV2ForSequenceClassification")
    has_head = stacks.has_head(config, ["DebertaV2Model"], *heads)
    dim = config["hidden_size"]
    config.require("embedding_size", dim, None)
    config.require("attention_head_size", dim // config["num_attention_heads"], None)
    config.require("pooler_hidden_size", dim, None)
    distances = _distances(config)
    options = {} if config["position_biased_input"] else {"positions": None}
    return bert.encoder(
        config,
        has_head and config["hidden_act"],
        config["pooler_hidden_act"],
        stacks.blocks(
            config["num_hidden_layers"], lambda n: {**bert.block(config), "position": distances}
        ),
        head="transform" if config["legacy"] else "lm_head",
        **options,
    )


def _distances(config):
    """The distances that all layers share."""
    config.require("relative_attention", True)
    config.require("share_att_key", True)
    config.require("pos_att_type", _BOTH, _BOTH[::-1], "p2c|c2p", "c2p|p2c")
    longest, buckets = config["max_relative_positions"], config["position_buckets"]
    norm = None
    if config["norm_rel_ebd"] == "layer_norm":
        norm = stacks.layer_norm(config["layer_norm_eps"], dtype=scores.full_precision())
    if longest < 1:
        longest = config["max_position_embeddings"]
    return positions.Disentangled(
        2 * (buckets if buckets > 0 else longest),
        longest if buckets > 0 else None,
        norm=norm,
        name="distances",
    )


_LM_HEAD = stacks.masked_head(
    "lm_predictions.lm_head.dense",
    "lm_predictions.lm_head.LayerNorm",
    "lm_predictions.lm_head.bias",
)


def _head(model):
    """The names of the head: those of the masked language model depend on `legacy`."""
    own = model.logits is not None and model.logits.transform.name == "lm_head"
    masked = _LM_HEAD if own else bert.HEAD
    return stacks.either(masked, "pooler.dense", "classifier")(model)


ARCHITECTURES = {
    "deberta-v2": Architecture(
        FIELDS,
        _make,
        {
            **bert.embedding_names(),
            "encoder.layer": entries.blocks(bert.block_names("_proj")),
            "encoder.rel_embeddings.weight": "blocks.0.attention.position.embeddings",
            "encoder.LayerNorm": "blocks.0.attention.position.norm",
        },
        prefix="deberta.",
        head=_head,
        unread={
            **buffers.COUNTED,
            r"embeddings\.position_embeddings\.weight": "of training: distances are the positions",
            r"(lm|mask)_predictions\..*": "of training",
        },
        same=bert.SAME,
    )
}
