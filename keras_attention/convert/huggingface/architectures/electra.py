"""ELECTRA: its discriminator, with a logit for each token, its generator, and its classifier."""

import keras

from keras_attention.convert.huggingface import buffers, entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.architectures import bert
from keras_attention.convert.huggingface.fields import count, ignored, needed

FIELDS = {
    **bert.ENCODER,
    **fields.LABELS,
    "embedding_size": needed(),
    "type_vocab_size": count(2),
    **fields.SUMMARY,
    **ignored("of training", "generator_size"),
}


def _make(config):
    heads = ("ElectraForPreTraining", "ElectraForMaskedLM", "ElectraForSequenceClassification")
    has_head = stacks.has_head(config, ["ElectraModel"], *heads)
    size, dim = config["embedding_size"], config["hidden_size"]
    projection = keras.layers.Dense(dim, name="projection") if size != dim else None
    discriminator = config.architecture == heads[0]
    logits = stacks.classes(config, config["hidden_act"], count=1) if discriminator else None
    return bert.encoder(
        config, has_head and "gelu", "gelu", logits=logits, size=size, projection=projection
    )


_GENERATOR = stacks.masked_head(
    "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"
)


def _head(model):
    names = ("classifier.dense", "classifier.out_proj")
    if model.logits is not None and model.logits.vocabulary_size == 1:
        names = ("discriminator_predictions.dense", "discriminator_predictions.dense_prediction")
    return stacks.either(_GENERATOR, *names)(model)


ARCHITECTURES = {
    "electra": Architecture(
        FIELDS,
        _make,
        {
            **bert.embedding_names(),
            "embeddings_project": "embeddings.projection",
            "encoder.layer": entries.blocks(bert.block_names()),
        },
        prefix="electra.",
        head=_head,
        unread=buffers.COUNTED,
        same={"embeddings.word_embeddings.weight": [r"generator_lm_head\.weight"]},
    )
}
