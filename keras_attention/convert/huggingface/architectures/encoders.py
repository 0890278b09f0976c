"""Encoders like BERT: Longformer, BigBird, DistilBERT, ELECTRA, MPNet, ALBERT and DeBERTa."""

import keras

from keras_attention import positions, scores
from keras_attention.convert.huggingface import entries, fields, stacks
from keras_attention.convert.huggingface.architectures import bert
from keras_attention.layers.blocks.block_sparse_attention import BlockSparseAttention
from keras_attention.layers.blocks.transformer_block import TransformerBlock
from keras_attention.layers.sparse.longformer_attention import LongformerAttention


def _longformer(config):
    """Windows, and the first token global, as in its classifier, or those of a `global_mask`.

    `transformers` gives the same states for the same `global_attention_mask`.
    """
    given, layers = config["attention_window"], config["num_hidden_layers"]
    sizes = given if isinstance(given, list) else [given] * layers
    if len(sizes) != layers or any(type(n) is not int or n < 2 or n % 2 for n in sizes):
        wanted = f"an even number, at least 2, or one for each of {layers} layers"
        config.refuse("attention_window", wanted, given)
    heads, size = config["num_attention_heads"], stacks.head_size(config)

    def block(n):
        # Room for a question, and no more than windows cost.
        given = {"max_global": max(sizes) // 2, "name": "attention"}
        return {"attention": LongformerAttention(heads, size, sizes[n] // 2, **given)}

    return {"blocks": block}


def _big_bird(config):
    """Blocks, unless all attend to all."""
    parts = {"scale": config["hidden_size"] ** 0.5 if config["rescale_embeddings"] else 1}
    if config["attention_type"] == "block_sparse":
        heads, size = config["num_attention_heads"], stacks.head_size(config)
        sizes = heads, size, config["block_size"], config["num_random_blocks"]
        parts["blocks"] = lambda n: {"attention": BlockSparseAttention(*sizes, name="attention")}
    return parts


def _electra(config):
    """Its discriminator has a logit for each token."""
    if config.architecture != "ElectraForPreTraining":
        return {}
    return {"logits": stacks.classes(config, config["hidden_act"], 1, None)}


_GENERATOR = "predictions.dense predictions.LayerNorm lm_head.bias lm_head"
_GENERATOR = " ".join(f"generator_{name}" for name in _GENERATOR.split())


def _electra_head(model):
    classes = bert.HEADS_ROBERTA[1]
    if model.logits is not None and model.logits.vocabulary_size == 1:
        classes = "discriminator_predictions. dense dense_prediction"
    return {**bert.masked_names(_GENERATOR)[0], **bert.class_names(classes)}


def _mpnet(config):
    """Biases of distances, which all blocks share."""
    buckets = config["relative_attention_num_buckets"]
    table = positions.RelativeBias(buckets, 128, bidirectional=True, name="relative_bias")
    return {"blocks": lambda n: {"position": table}}


def _albert(config):
    """Blocks that are used several times, and tokens of fewer features than these."""
    layers, groups = config["num_hidden_layers"], config["num_hidden_groups"]
    inner = range(config["inner_group_num"])
    names = [[f"block_{group}_{n}" for n in inner] for group in range(groups)]
    options = stacks.block(config)
    made = [[TransformerBlock(**options, name=name) for name in group] for group in names]
    return {
        # Each group is used for as many layers, one after another.
        "blocks": [block for n in range(layers) for block in made[n * groups // layers]],
        "projection": keras.layers.Dense(config["hidden_size"], name="projection"),
    }


def _albert_blocks(name, model):
    table = entries.block(
        "attention.LayerNorm full_layer_layer_norm",
        "attention. query key value dense",
        "ffn ffn_output",
    )
    found = []
    for block in dict.fromkeys(model.blocks):
        # By their names, which `_albert` gave.
        _, group, inner = block.name.split("_")
        found += entries.of(table, block, f"{name}.{group}.albert_layers.{inner}.")
    return found


_BOTH = ["p2c", "c2p"]


def _deberta(config):
    """DeBERTa-v3, and DeBERTa-v2 without a convolution: disentangled attention."""
    dim = config["hidden_size"]
    config.require("embedding_size", dim, None)
    config.require("attention_head_size", dim // config["num_attention_heads"], None)
    config.require("pooler_hidden_size", dim, None)
    config.require("relative_attention", True)
    config.require("share_att_key", True)
    config.require("pos_att_type", _BOTH, _BOTH[::-1], "p2c|c2p", "c2p|p2c")
    longest, buckets = config["max_relative_positions"], config["position_buckets"]
    longest = config["max_position_embeddings"] if longest < 1 else longest
    norm, epsilon = None, config["layer_norm_eps"]
    if config["norm_rel_ebd"] == "layer_norm":
        norm = stacks.layer_norm(epsilon, dtype=scores.full_precision())
    rows, reach = (2 * buckets, longest) if buckets > 0 else (2 * longest, None)
    # All layers share them.
    distances = positions.Disentangled(rows, reach, norm=norm, name="distances")
    parts = {
        "blocks": lambda n: {"position": distances},
        "head": "transform" if config["legacy"] else "lm_head",
    }
    return parts if config["position_biased_input"] else {**parts, "positions": None}


def _deberta_head(model):
    """The names of the head: those of the masked language model depend on `legacy`."""
    own = getattr(getattr(model.logits, "transform", None), "name", None) == "lm_head"
    names = "lm_predictions.lm_head. dense LayerNorm bias decoder" if own else bert.MASKED
    return {**bert.masked_names(names)[0], **bert.class_names("pooler.dense classifier")}


ARCHITECTURES = {
    "longformer": bert.like_bert(
        "longformer. Longformer",
        bert.ROBERTA
        | fields.defaults(attention_window=fields.read(512, int | list))
        | fields.fixed(attention_mode=("longformer", None))
        | fields.off("ignore_attention_mask")
        | fields.ignored("of an export", "onnx_export"),
        bert.block_names()
        | {
            f"attention.self.{role}_global": f"attention.global_{role}_dense"
            for role in entries.ROLES[:3]
        },
        *bert.HEADS_ROBERTA,
        hidden="gelu",
        parts=_longformer,
        first=2,
    ),
    "big_bird": bert.like_bert(
        "bert. BigBird",
        bert.ENCODER
        | fields.defaults(type_vocab_size=2, hidden_act="gelu_new", block_size=64)
        | fields.defaults(num_random_blocks=3, rescale_embeddings=False)
        | fields.fixed(attention_type=("block_sparse", "original_full"), use_bias=True),
        bert.block_names(),
        classes="classifier. dense out_proj",
        pooled="hidden_act",
        parts=_big_bird,
        # Its class for answers has one more feed-forward network.
        heads=("ForPreTraining",),
        unread={**bert.POOLER, r"cls\.seq_relationship\..*": "of another task"},
    ),
    "distilbert": bert.like_bert(
        "distilbert. DistilBert",
        fields.COMMON
        | fields.renamed("dim n_layers n_heads")
        | fields.needs("vocab_size max_position_embeddings hidden_dim")
        | fields.defaults(activation="gelu", tie_weights_=fields.only(True, None))
        | fields.fixed(tie_word_embeddings=True)
        | fields.ignored("sines are stored as a table like any", "sinusoidal_pos_embds"),
        entries.block(
            "sa_layer_norm output_layer_norm",
            "attention. q_lin k_lin v_lin out_lin",
            "ffn. lin1 lin2",
        ),
        "vocab_transform vocab_layer_norm vocab_projector.bias vocab_projector",
        "pre_classifier classifier",
        hidden="activation",
        pooled="relu",
        layers="transformer.layer",
    ),
    "electra": bert.like_bert(
        "electra. Electra",
        bert.ENCODER
        | fields.needs("embedding_size")
        | fields.defaults(type_vocab_size=2)
        | fields.SUMMARY,
        bert.block_names(),
        _GENERATOR,
        hidden="gelu",
        pooled="gelu",
        parts=_electra,
        heads=("ForPreTraining", "ForQuestionAnswering"),
        head=_electra_head,
        others={"embeddings_project": "embeddings.projection"},
    ),
    "mpnet": bert.like_bert(
        "mpnet. MPNet",
        # Another number changes only the size of the table, not which rows are read.
        bert.ENCODER | fields.fixed(relative_attention_num_buckets=32),
        entries.block(
            "attention.LayerNorm output.LayerNorm",
            "attention.attn. q k v o",
            "intermediate.dense output.dense",
        ),
        *bert.HEADS_ROBERTA,
        hidden="gelu",
        parts=_mpnet,
        first=2,
        others={"encoder.relative_attention_bias.weight": "blocks.0.attention.position.embeddings"},
    ),
    "albert": bert.like_bert(
        "albert. Albert",
        bert.ENCODER
        | fields.needs("embedding_size")
        | fields.defaults(num_hidden_groups=1, inner_group_num=1, type_vocab_size=2)
        | fields.defaults(hidden_act="gelu_new")
        | fields.ignored(
            "not read",
            "down_scale_factor gap_size layers_to_keep net_structure_type num_memory_blocks",
        ),
        _albert_blocks,
        "predictions. dense LayerNorm bias decoder",
        "albert.pooler classifier",
        heads=("ForPreTraining", "ForQuestionAnswering"),
        parts=_albert,
        layers="encoder.albert_layer_groups",
        others={"encoder.embedding_hidden_mapping_in": "embeddings.projection"},
        unread={**bert.POOLER, r"sop_classifier\..*": "of another task"},
    ),
    # The discriminator that version 3 was trained as is left out.
    "deberta-v2": bert.like_bert(
        "deberta. DebertaV2",
        bert.ENCODER
        | fields.defaults(type_vocab_size=fields.read(0, least=0), pooler_hidden_act="gelu")
        | fields.defaults(layer_norm_eps=1e-7, position_biased_input=True, legacy=True)
        | fields.defaults(pooler_hidden_size=fields.count(None))
        | fields.fixed(pos_att_type=(None, _BOTH, _BOTH[::-1], "p2c|c2p", "c2p|p2c"))
        | fields.fixed(norm_rel_ebd=("none", "layer_norm"), conv_kernel_size=0)
        | fields.each("position_buckets max_relative_positions", fields.read(-1))
        # Only the sizes that follow from the width: others are other models.
        | fields.each("embedding_size attention_head_size", fields.count(None))
        # With other values it is another attention. The defaults are those of plain attention.
        | fields.each("relative_attention share_att_key", fields.only(False, True))
        | fields.ignored("of the convolution, which is not supported", "conv_act conv_groups")
        | fields.ignored("not read", "padding_idx summary_type"),
        bert.block_names("self.query_proj self.key_proj self.value_proj output.dense"),
        pooled="pooler_hidden_act",
        parts=_deberta,
        head=_deberta_head,
        others={
            "encoder.rel_embeddings.weight": "blocks.0.attention.position.embeddings",
            "encoder.LayerNorm": "blocks.0.attention.position.norm",
        },
        unread={
            r"embeddings\.position_embeddings\.weight": "of training: distances are the positions",
            r"(lm|mask)_predictions\..*": "of training",
        },
    ),
}
