"""RoBERTa and XLM-RoBERTa: BERT, with positions that count from the row after that of padding.

A classifier applies to every token: the first has the logits of the text. The pooler is left out.
Positions are those of real tokens by the mask.
"""

from keras_attention.convert.huggingface import buffers, entries, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.architectures import bert
from keras_attention.convert.huggingface.fields import only

# `pad_token_id` is 1 in all of them, and the rows up to it are of no position.
FIRST = 2
FIELDS = {**bert.STACK, "pad_token_id": only(FIRST - 1)}
HEAD = stacks.either(
    stacks.masked_head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "classifier.dense",
    "classifier.out_proj",
)
UNREAD = {**buffers.COUNTED, r"pooler\..*": "of another task"}
SAME = {
    "embeddings.word_embeddings.weight": [r"lm_head\.decoder\.weight"],
    "lm_head.bias": [r"lm_head\.decoder\.bias"],
}
_NAMES = ("Roberta", "XLMRoberta", "Camembert")
_HEADS = ("ForMaskedLM", "ForSequenceClassification")


def _make(config):
    bases = [f"{name}Model" for name in _NAMES]
    heads = [f"{name}{head}" for name in _NAMES for head in _HEADS]
    has_head = stacks.has_head(config, bases, *heads)
    return bert.encoder(config, has_head and "gelu", "tanh", first=FIRST)


_ROBERTA = Architecture(
    FIELDS,
    _make,
    {**bert.embedding_names(FIRST), "encoder.layer": entries.blocks(bert.block_names())},
    prefix="roberta.",
    head=HEAD,
    unread=UNREAD,
    same=SAME,
)
ARCHITECTURES = dict.fromkeys(("roberta", "xlm-roberta", "camembert"), _ROBERTA)
