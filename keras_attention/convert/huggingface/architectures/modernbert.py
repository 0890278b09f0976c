"""ModernBERT: windows between layers that see all, each with wavelengths of their own."""

from keras_attention import patterns
from keras_attention.convert.huggingface import buffers, parts, rope, sequences
from keras_attention.convert.huggingface.fields import (
    COMMON,
    SIZES,
    activation,
    count,
    ignored,
    needed,
    off,
    only,
    read,
)
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Embeddings, Encoder

PREFIX = "model."
_BASES = {
    "full_attention": ("global_rope_theta", 160000.0),
    "sliding_attention": ("local_rope_theta", 10000.0),
}
FIELDS = {
    "modernbert": {
        **COMMON,
        **SIZES,
        **rope.fields_by_type(8192, _BASES),
        "vocab_size": needed(),
        "hidden_activation": activation("gelu"),
        "norm_eps": read(1e-5),
        "norm_bias": read(False),
        "attention_bias": read(False),
        "mlp_bias": read(False),
        "layer_types": read(None, list | None),
        "global_attn_every_n_layers": count(3),
        "local_attention": read(128, least=0),
        "classifier_activation": activation("gelu"),
        "classifier_bias": read(False),
        "decoder_bias": read(True),
        "tie_word_embeddings": only(True),
        **off("causal_mask is_causal"),
        **ignored("of a classifier, which is not read", "classifier_pooling"),
        **ignored("of training", "sparse_prediction sparse_pred_ignore_index"),
        **ignored("of training", "initializer_cutoff_factor"),
        **ignored(
            "of the program that runs the model",
            "deterministic_flash_attn reference_compile repad_logits_with_grad",
        ),
        **ignored("not read: `norm_eps` is", "layer_norm_eps"),
        **ignored("not read: positions are rotary", "position_embedding_type"),
    }
}

UNREAD = buffers.ROTARY
SAME = {"embeddings.tok_embeddings.weight": [r"decoder\.weight"]}


def model(config, dtype):
    """The `Encoder` of a configuration."""
    has_head = sequences.has_head(config, ["ModernBertModel"], "ModernBertForMaskedLM")
    biases = config["attention_bias"]
    config.require("mlp_bias", biases)
    norm_options = {"center": config["norm_bias"]}
    epsilon, dim = config["norm_eps"], config["hidden_size"]

    def norm(name):
        return sequences.layer_norm(epsilon, dtype, name, **norm_options)

    def positions(kind):
        return rope.rotary_by_type(config, parts.head_size(config), _BASES, scaled=_BASES)[kind]

    reach = config["local_attention"] // 2
    window = patterns.SlidingWindow(reach, reach)
    blocks = [
        TransformerBlock(
            config["intermediate_size"],
            config["num_attention_heads"],
            activation=parts.activation(config, "hidden_activation"),
            gated=True,
            residual="pre",
            # The embeddings have a norm already.
            norm={"attention": norm("norm") if n else None, "feed_forward": norm("norm")},
            use_bias=biases,
            pattern=window if kind == "sliding_attention" else None,
            position=positions(kind),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n, kind in enumerate(_types(config))
    ]
    embeddings = Embeddings(
        sequences.tokens(config["vocab_size"], dim, dtype),
        norm=norm("norm"),
        name="embeddings",
        dtype=dtype,
    )
    activation = parts.activation(config, "classifier_activation")
    dense_bias = config["classifier_bias"]
    use_bias = config["decoder_bias"]
    logits = None
    if has_head:
        logits = sequences.masked_logits(
            config["vocab_size"], dim, activation, norm("norm"), dtype, dense_bias, use_bias
        )
    return Encoder(blocks, embeddings, norm("final_norm"), logits, dtype=dtype)


def _types(config):
    """The type of each layer."""
    layers = config["num_hidden_layers"]
    every = config["global_attn_every_n_layers"]
    types = ["sliding_attention" if n % every else "full_attention" for n in range(layers)]
    return parts.layer_types(config, types)


def entries(model, prefix):
    """The tensors of a model."""
    layer = model.embeddings
    found = [
        parts.plain(f"{prefix}embeddings.tok_embeddings.weight", layer.tokens.table),
        *parts.norm(f"{prefix}embeddings.norm", layer.norm),
    ]
    for n, block in enumerate(model.blocks):
        name = f"{prefix}layers.{n}"
        attention, feed_forward = block.attention, block.feed_forward
        inputs = [attention.query_dense, attention.key_dense, attention.value_dense]
        gates = [feed_forward.gate_dense, feed_forward.intermediate_dense]
        found += [
            *parts.norm(f"{name}.attn_norm", block.attention_norm),
            *_fused(f"{name}.attn.Wqkv", inputs),
            *parts.dense(f"{name}.attn.Wo", attention.output_dense, inputs=2),
            *parts.norm(f"{name}.mlp_norm", block.feed_forward_norm),
            *_fused(f"{name}.mlp.Wi", gates),
            *parts.dense(f"{name}.mlp.Wo", feed_forward.output_dense),
        ]
    found += parts.norm(f"{prefix}final_norm", model.final_norm)
    return found + sequences.masked_head(("head.dense", "head.norm", "decoder.bias"), model)


def _fused(name, layers):
    found = [parts.fused(f"{name}.weight", [layer.kernel for layer in layers])]
    if layers[0].bias is not None:
        found.append(parts.fused_bias(f"{name}.bias", [layer.bias for layer in layers]))
    return found
