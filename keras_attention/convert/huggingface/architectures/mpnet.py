"""MPNet: BERT with biases of distances, and positions that count as RoBERTa's do.

A classifier applies to every token, as BERT's does.
"""

from keras_attention import positions
from keras_attention.convert.huggingface import buffers, entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.architectures import bert
from keras_attention.convert.huggingface.fields import only

# Rows of the table of positions before that of position 0, whatever `pad_token_id` is.
_FIRST = 2


def _make(config):
    heads = ("MPNetForMaskedLM", "MPNetForSequenceClassification")
    has_head = stacks.has_head(config, ["MPNetModel"], *heads)
    table = positions.RelativeBias(
        config["relative_attention_num_buckets"], 128, bidirectional=True, name="relative_bias"
    )
    options = {**bert.block(config), "position": table}
    blocks = stacks.blocks(config["num_hidden_layers"], lambda n: options)
    return bert.encoder(config, has_head and "gelu", "tanh", blocks, _FIRST, types=None)


_BLOCK = {
    **entries.attention("attention.attn.", "q k v o"),
    "attention.LayerNorm": "attention_norm",
    "intermediate.dense": "feed_forward.intermediate_dense",
    "output.dense": "feed_forward.output_dense",
    "output.LayerNorm": "feed_forward_norm",
}
ARCHITECTURES = {
    "mpnet": Architecture(
        # Another number changes only the size of the table, not which rows are read.
        {**bert.ENCODER, **fields.LABELS, "relative_attention_num_buckets": only(32)},
        _make,
        {
            **bert.embedding_names(_FIRST),
            "encoder.layer": entries.blocks(_BLOCK),
            "encoder.relative_attention_bias.weight": "blocks.0.attention.position.embeddings",
        },
        prefix="mpnet.",
        head=stacks.either(
            stacks.masked_head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
            "classifier.dense",
            "classifier.out_proj",
        ),
        unread={**buffers.COUNTED, r"pooler\..*": "of another task"},
        same={
            "embeddings.word_embeddings.weight": [r"lm_head\.decoder\.weight"],
            "lm_head.bias": [r"lm_head\.decoder\.bias"],
        },
    )
}
