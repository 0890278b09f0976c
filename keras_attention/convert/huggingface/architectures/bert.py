"""BERT, RoBERTa, XLM-RoBERTa, CamemBERT and ModernBERT, and what makes encoders like them.

Each has its hidden states, the logits of its masked language model, or those of a classifier of
texts, of tokens or of the ends of answers. Elsewhere the pooler, and the prediction of the next
sentence, are left out: no output depends on them.
"""

import functools
import re

import keras

from keras_attention import patterns
from keras_attention.convert.huggingface import entries, fields, rope, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.architectures import llamas
from keras_attention.models import Encoder

# Fields of every encoder with tables of tokens and positions.
ENCODER = (
    fields.LANGUAGE
    | fields.needs("max_position_embeddings")
    | fields.defaults(layer_norm_eps=1e-12, hidden_act="gelu")
    | fields.fixed(position_embedding_type=("absolute", None), tie_word_embeddings=True)
)
_BERT = (
    ENCODER
    | fields.defaults(type_vocab_size=2)
    # Of the pooler of the first files.
    | fields.ignored("not read", "directionality pooler_type pooler_fc_size pooler_size_per_head")
    | fields.ignored("not read", "pooler_num_attention_heads pooler_num_fc_layers")
)
# `pad_token_id` is 1 in all of them, and the rows up to it are of no position.
ROBERTA = _BERT | fields.fixed(pad_token_id=1)
# Names of the dense layer, the norm, the bias and the matrix of a masked language model.
MASKED = "cls.predictions. transform.dense transform.LayerNorm bias decoder"
# Those of RoBERTa, and of both layers of its classifier.
HEADS_ROBERTA = ("lm_head. dense layer_norm bias decoder", "classifier. dense out_proj")
POOLER = {r"pooler\..*": "of another task"}
# Ends of classes with a head that nearly all have.
ENDS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")


def like_bert(
    names,
    fields,
    tensors,
    masked=MASKED,
    classes="",
    hidden="hidden_act",
    pooled="tanh",
    *,
    parts=lambda config: {},
    heads=("ForQuestionAnswering",),
    head=None,
    first=0,
    layers="encoder.layer",
    others=(),
    unread=POOLER,
):
    """The `Architecture` of an encoder with tables of tokens and positions.

    `names` are the prefix of tensors in files of models with a head, and what classes begin with;
    `tensors` is the table of a block, or a function for all blocks; `others` has further ones.
    `masked` is as `MASKED`, and `classes` has both layers of a classifier; `head`, a function of a
    model, replaces both. `hidden` is the activation before the logits of tokens, or the field that
    has it, `pooled` that before those of a classifier. `heads` are ends of classes with a head
    beside `ENDS`, `first` is the row of the first position, and `layers` the name of the blocks.

    `parts` is from a `Config` to what is not as in BERT: options of embeddings; "logits"; "head",
    the name of what is before the logits of tokens; and "blocks", a list, or further options of
    each as a function of its number.
    """

    def make(config):
        has_head = stacks.has_head(config, name, (*ENDS, *heads))
        given, epsilon = parts(config), stacks.epsilon(config) or 1e-12
        blocks = own = given.pop("blocks", lambda n: {})
        if callable(own):
            blocks = stacks.blocks(config, lambda n: {"layer_norm_epsilon": epsilon, **own(n)})
        transform, logits = given.pop("head", "transform"), given.pop("logits", None)
        size, dim = config.get("embedding_size") or config["hidden_size"], config["hidden_size"]
        logits = logits or stacks.token_classifier(config)
        if logits is None and has_head:
            if config.architecture.endswith("ForSequenceClassification"):
                logits = stacks.classes(config, config.get(pooled) or pooled)
            else:
                norm, activation = stacks.layer_norm(epsilon), config.get(hidden) or hidden
                logits = stacks.masked_logits(config, activation, norm, size, transform)
        positions = stacks.positions(config["max_position_embeddings"] - first)
        options = {"size": size, "positions": positions, "norm": stacks.layer_norm(epsilon)}
        if size != dim:
            options["projection"] = keras.layers.Dense(dim, name="projection")
        if config.get("type_vocab_size"):
            count = config["type_vocab_size"]
            options["types"] = keras.layers.Embedding(count, size, name="types")
        return Encoder(blocks, stacks.embeddings(config, **{**options, **given}), logits=logits)

    prefix, name = names.split(maxsplit=1)
    table, same = masked_names(masked)
    rows = entries.rows("embeddings.positions.embeddings", first)
    return Architecture(
        fields,
        make,
        {
            "embeddings.word_embeddings.weight": "embeddings.tokens.table",
            "embeddings.position_embeddings.weight": rows,
            "embeddings.token_type_embeddings.weight": "embeddings.types.embeddings",
            "embeddings.LayerNorm": "embeddings.norm",
            layers: tensors if callable(tensors) else entries.blocks(tensors),
        }
        | dict(others),
        prefix=prefix,
        head=head or table | class_names(classes),
        unread=unread,
        same=same,
        # Files of this package before 0.3 have the logits of a text at each token, and those of
        # former releases as much room for global tokens as there are first ones.
        unsaid=("pooling", "max_global"),
    )


def masked_names(names, tokens="embeddings.word_embeddings.weight"):
    """The table of `stacks.masked_logits`, and the second names of the tensors that it shares."""
    dense, norm, bias, decoder = entries.names_of(names)
    same = {tokens: [re.escape(f"{decoder}.weight")]}
    if bias != f"{decoder}.bias":
        same[bias] = [re.escape(f"{decoder}.bias")]
    layers = "logits.transform.layers"
    return {dense: f"{layers}.0", norm: f"{layers}.1", bias: "logits.bias"}, same


def class_names(names):
    """The table of `stacks.classes`, by the names of both layers."""
    return dict(zip(entries.names_of(names), ("logits.transform", "logits.dense"), strict=False))


def block_names(roles="self.query self.key self.value output.dense"):
    """The tensors of a block, by the names of its attention."""
    norms = "attention.output.LayerNorm output.LayerNorm"
    return entries.block(norms, f"attention. {roles}", "intermediate.dense output.dense")


# ModernBERT: windows between layers that see all, each with wavelengths of their own

_BASES = {
    "full_attention": ("global_rope_theta", 160000.0),
    "sliding_attention": ("local_rope_theta", 10000.0),
}
_MODERN = (
    fields.LANGUAGE
    | rope.fields_by_type(8192, _BASES)
    | llamas.BIASES
    | llamas.TYPES
    | fields.defaults(hidden_activation="gelu", norm_eps=1e-5, norm_bias=False, decoder_bias=True)
    | fields.defaults(global_attn_every_n_layers=3, local_attention=fields.read(128, least=0))
    | fields.defaults(classifier_activation="gelu", classifier_bias=False)
    | fields.fixed(tie_word_embeddings=True)
    | fields.off("causal_mask is_causal")
    | fields.fixed(classifier_pooling=("cls", "mean"))
    | fields.ignored("how it is computed", "deterministic_flash_attn reference_compile")
    | fields.ignored("not read: `norm_eps` is", "layer_norm_eps")
    | fields.ignored("not read: positions are rotary", "position_embedding_type")
)


def _modernbert(config):
    norm = functools.partial(stacks.norm, config, center=config["norm_bias"])
    reach, logits = config["local_attention"] // 2, None
    types = stacks.layer_types(config, lambda n: n % config["global_attn_every_n_layers"])

    def block(n):
        positions = rope.rotary_by_type(config, stacks.head_size(config), _BASES, scaled=_BASES)
        near = patterns.SlidingWindow(reach, reach) if types[n] == "sliding_attention" else None
        # The embeddings have a norm already.
        norms = {"attention": norm() if n else None, "feed_forward": norm()}
        given = {"norm": norms, "pattern": near, "position": positions[types[n]]}
        return {**given, "gated": True, "residual": "pre"}

    if stacks.has_head(config, "ModernBert", (*ENDS, "ForQuestionAnswering")):
        logits = stacks.masked_logits(
            config,
            config["classifier_activation"],
            norm(),
            config["hidden_size"],
            dense_bias=config["classifier_bias"],
            use_bias=config["decoder_bias"],
        )
        if not config.architecture.endswith("ForMaskedLM"):
            # Each token has the same head as a text, of the first token or of the mean.
            pooling = {"cls": "first"}.get(config["classifier_pooling"], "mean")
            of_texts = "Sequence" in config.architecture
            options = {"pooling": pooling} if of_texts else {"name": "token_classifier"}
            count = 2 if "Answering" in config.architecture else None
            logits = stacks.classifier(config, count, transform=logits.transform, **options)
    blocks, embeddings = stacks.blocks(config, block), stacks.embeddings(config, norm=norm())
    return Encoder(blocks, embeddings, norm("final_norm"), logits)


_MODERN_HEAD, _SAME = masked_names(
    "head.dense head.norm decoder.bias decoder", "embeddings.tok_embeddings.weight"
)
_ROBERTAS = like_bert(
    "roberta. Roberta XLMRoberta Camembert",
    ROBERTA,
    block_names(),
    *HEADS_ROBERTA,
    hidden="gelu",
    first=2,
)
ARCHITECTURES = {
    "bert": like_bert(
        "bert. Bert",
        _BERT,
        block_names(),
        classes="bert.pooler.dense classifier",
        heads=("ForPreTraining", "ForQuestionAnswering"),
        unread={**POOLER, r"cls\.seq_relationship\..*": "of another task"},
    ),
    # Positions count from the row after that of padding, and are those of real tokens by the mask.
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), _ROBERTAS),
    "modernbert": Architecture(
        _MODERN,
        _modernbert,
        {
            "embeddings.tok_embeddings.weight": "embeddings.tokens.table",
            "embeddings.norm": "embeddings.norm",
            "layers": entries.blocks(
                entries.norms("attn_norm mlp_norm")
                | entries.attention("attn. Wqkv Wo")
                | entries.gated_in_one("mlp. Wi Wo")
            ),
            "final_norm": "final_norm",
        },
        prefix="model.",
        head=_MODERN_HEAD | {"classifier": "logits.dense"},
        same=_SAME,
    ),
}
