"""RoBERTa and XLM-RoBERTa: BERT, with positions that count from the row after that of padding.

A classifier applies to every token: the first has the logits of the text. The pooler is left out.
Positions are those of real tokens by the mask.
"""

from keras_attention.convert.huggingface import buffers, sequences
from keras_attention.convert.huggingface.architectures import bert
from keras_attention.convert.huggingface.fields import only

PREFIX = "roberta."
_NAMES = ("Roberta", "XLMRoberta", "Camembert")
# `pad_token_id` is 1 in all of them, and the rows up to it are of no position.
_FIRST = 2
_FIELDS = {**bert.STACK, "pad_token_id": only(_FIRST - 1)}
FIELDS = {"roberta": _FIELDS, "xlm-roberta": _FIELDS, "camembert": _FIELDS}

UNREAD = {**buffers.COUNTED, r"pooler\..*": "of another task"}
SAME = {
    "embeddings.word_embeddings.weight": [r"lm_head\.decoder\.weight"],
    "lm_head.bias": [r"lm_head\.decoder\.bias"],
}


def model(config, dtype):
    """The `Encoder` of a configuration."""
    heads = ("ForMaskedLM", "ForSequenceClassification")
    has_head = sequences.has_head(
        config,
        [f"{name}Model" for name in _NAMES],
        *(f"{name}{head}" for name in _NAMES for head in heads),
    )
    return bert.encoder(config, dtype, "gelu" if has_head else None, first=_FIRST)


def entries(model, prefix):
    """The tensors of a model."""
    head = ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
    classifier = ("classifier.dense", "classifier.out_proj")
    return bert.entries(model, prefix, head, classifier, first=_FIRST)
