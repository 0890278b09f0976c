"""BERT: its hidden states, the logits of its masked language model, or those of its classifier.

A classifier applies to every token: the first has the logits of the text. Elsewhere the pooler, and
the prediction of the next sentence, are left out: no output depends on them.
"""

import keras

from keras_attention.convert.huggingface import buffers, entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.fields import count, ignored, needed, only, read
from keras_attention.models import Encoder

# Fields of every encoder with tables of tokens and positions.
ENCODER = {
    **fields.LANGUAGE,
    "max_position_embeddings": needed(),
    "layer_norm_eps": read(1e-12),
    "hidden_act": fields.activation("gelu"),
    "position_embedding_type": only("absolute", None),
    "tie_word_embeddings": only(True),
}
STACK = {
    **ENCODER,
    **fields.LABELS,
    "type_vocab_size": count(2),
    **ignored(
        "of the pooler of the first files, and not read",
        """
        directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
        pooler_size_per_head pooler_type
        """,
    ),
}


def encoder(
    config,
    masked,
    classifier=None,
    blocks=None,
    first=0,
    head="transform",
    epsilon=None,
    logits=None,
    **given,
):
    """The `Encoder` of a configuration.

    Args:
        config: the configuration.
        masked: the activation before the logits of tokens; None or False for a model without them.
        classifier: the activation before those of a classifier.
        blocks: if not those of `block`.
        first: the row of the first position in the table of positions.
        head: the name of what stands before the logits of tokens.
        epsilon: of norms, if not `layer_norm_eps`.
        logits: if neither of these.
        **given: options of the embeddings.
    """
    epsilon = config["layer_norm_eps"] if epsilon is None else epsilon
    size = given.get("size")
    options = {
        "positions": stacks.positions(config["max_position_embeddings"] - first),
        "norm": stacks.layer_norm(epsilon),
        **given,
    }
    if "types" not in given and config["type_vocab_size"]:
        dim = size or config["hidden_size"]
        options["types"] = keras.layers.Embedding(config["type_vocab_size"], dim, name="types")
    if logits is None and (config.architecture or "").endswith("ForSequenceClassification"):
        logits = stacks.classes(config, classifier)
    elif logits is None and masked:
        norm = stacks.layer_norm(epsilon)
        logits = stacks.masked_logits(config, masked, norm, size, head)
    if blocks is None:
        blocks = stacks.blocks(config["num_hidden_layers"], lambda n: block(config))
    return Encoder(blocks, stacks.embeddings(config, **options), logits=logits)


def block(config):
    """The options of a block."""
    return {
        "intermediate_dim": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "activation": config["hidden_act"],
        "layer_norm_epsilon": config["layer_norm_eps"],
    }


def embedding_names(first=0):
    """The tensors of the embeddings, whose first position has the row `first`."""
    return {
        "embeddings.word_embeddings.weight": "embeddings.tokens.table",
        "embeddings.position_embeddings.weight": entries.rows(
            "embeddings.positions.embeddings", first
        ),
        "embeddings.token_type_embeddings.weight": "embeddings.types.embeddings",
        "embeddings.LayerNorm": "embeddings.norm",
    }


def block_names(suffix=""):
    """The tensors of a block; `suffix` ends the names of query, key and value."""
    roles = " ".join(f"self.{role}{suffix}" for role in ("query", "key", "value"))
    return {
        **entries.attention("attention.", f"{roles} output.dense"),
        "attention.output.LayerNorm": "attention_norm",
        "intermediate.dense": "feed_forward.intermediate_dense",
        "output.dense": "feed_forward.output_dense",
        "output.LayerNorm": "feed_forward_norm",
    }


def _make(config):
    heads = ("BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification")
    has_head = stacks.has_head(config, ["BertModel"], *heads)
    return encoder(config, has_head and config["hidden_act"], "tanh")


HEAD = stacks.masked_head(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.bias",
)
SAME = {
    "embeddings.word_embeddings.weight": [r"cls\.predictions\.decoder\.weight"],
    "cls.predictions.bias": [r"cls\.predictions\.decoder\.bias"],
}
ARCHITECTURES = {
    "bert": Architecture(
        STACK,
        _make,
        {**embedding_names(), "encoder.layer": entries.blocks(block_names())},
        prefix="bert.",
        head=stacks.either(HEAD, "bert.pooler.dense", "classifier"),
        unread={
            **buffers.COUNTED,
            r"pooler\..*": "of another task",
            r"cls\.seq_relationship\..*": "of another task",
        },
        same=SAME,
    )
}
