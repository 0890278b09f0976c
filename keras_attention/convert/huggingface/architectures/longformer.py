"""Longformer: RoBERTa with windows, and the first token global, as in its classifier.

`transformers` gives the same states for a `global_attention_mask` of the first token alone.
"""

from keras_attention.convert.huggingface import entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.architectures import bert, roberta
from keras_attention.convert.huggingface.fields import ignored, only, read
from keras_attention.layers.longformer_attention import LongformerAttention

FIELDS = {
    **roberta.FIELDS,
    "attention_window": read(512, int | list),
    "attention_mode": only("longformer", None),
    **fields.off("ignore_attention_mask"),
    **ignored("of an export", "onnx_export"),
}


def _windows(config):
    """The even window of each layer."""
    given, layers = config["attention_window"], config["num_hidden_layers"]
    sizes = given if isinstance(given, list) else [given] * layers
    if len(sizes) != layers or any(type(n) is not int or n < 2 or n % 2 for n in sizes):
        raise ValueError(
            f"'attention_window' of `{config.where}` must be an even number, at least 2, or one "
            f"for each of {layers} layers. Received: {given}"
        )
    return sizes


def _make(config):
    heads = ("LongformerForMaskedLM", "LongformerForSequenceClassification")
    has_head = stacks.has_head(config, ["LongformerModel"], *heads)
    windows = _windows(config)

    def block(n):
        count, size = config["num_attention_heads"], stacks.head_size(config)
        attention = LongformerAttention(count, size, windows[n] // 2, name="attention")
        return {**bert.block(config), "attention": attention}

    blocks = stacks.blocks(config["num_hidden_layers"], block)
    return bert.encoder(config, has_head and "gelu", "tanh", blocks, roberta.FIRST)


_BLOCK = bert.block_names() | {
    f"attention.self.{role}_global": f"attention.global_{role}_dense"
    for role in ("query", "key", "value")
}
ARCHITECTURES = {
    "longformer": Architecture(
        FIELDS,
        _make,
        {**bert.embedding_names(roberta.FIRST), "encoder.layer": entries.blocks(_BLOCK)},
        prefix="longformer.",
        head=roberta.HEAD,
        unread=roberta.UNREAD,
        same=roberta.SAME,
    )
}
