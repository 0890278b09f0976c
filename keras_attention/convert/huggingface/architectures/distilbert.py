"""DistilBERT: BERT without token types.

A classifier applies to every token: the first has the logits of the text.
"""

from keras_attention.convert.huggingface import buffers, entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.architectures import bert
from keras_attention.convert.huggingface.fields import ignored, needs, only

FIELDS = {
    **fields.COMMON,
    **fields.LABELS,
    **fields.renamed(
        hidden_size="dim", num_hidden_layers="n_layers", num_attention_heads="n_heads"
    ),
    **needs("vocab_size max_position_embeddings hidden_dim"),
    "activation": fields.activation("gelu"),
    "tie_word_embeddings": only(True),
    "tie_weights_": only(True, None),
    **ignored("sinusoidal positions are stored as a table like any", "sinusoidal_pos_embds"),
}
_EPSILON = 1e-12


def _make(config):
    heads = ("DistilBertForMaskedLM", "DistilBertForSequenceClassification")
    has_head = stacks.has_head(config, ["DistilBertModel"], *heads)
    activation = config["activation"]
    block = {
        "intermediate_dim": config["hidden_dim"],
        "num_heads": config["n_heads"],
        "activation": activation,
        "layer_norm_epsilon": _EPSILON,
    }
    blocks = stacks.blocks(config["n_layers"], lambda n: block)
    masked = has_head and activation
    return bert.encoder(config, masked, "relu", blocks, epsilon=_EPSILON, types=None)


ARCHITECTURES = {
    "distilbert": Architecture(
        FIELDS,
        _make,
        {
            **bert.embedding_names(),
            "transformer.layer": entries.blocks(
                {
                    **entries.attention("attention.", "q_lin k_lin v_lin out_lin"),
                    "sa_layer_norm": "attention_norm",
                    "ffn.lin1": "feed_forward.intermediate_dense",
                    "ffn.lin2": "feed_forward.output_dense",
                    "output_layer_norm": "feed_forward_norm",
                }
            ),
        },
        prefix="distilbert.",
        head=stacks.either(
            stacks.masked_head("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
            "pre_classifier",
            "classifier",
        ),
        unread=buffers.COUNTED,
        same={"embeddings.word_embeddings.weight": [r"vocab_projector\.weight"]},
    )
}
