"""ModernBERT: windows between layers that see all, each with wavelengths of their own."""

from keras_attention import patterns
from keras_attention.convert.huggingface import parts, sequences
from keras_attention.convert.huggingface.config import Config
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Embeddings, Encoder

MODEL_TYPES = ("modernbert",)
PREFIX = "model."

unused = sequences.matching(r"decoder\.weight")

# The wavelengths of each kind of layer, in files of version 4.
_OLD = {
    "full_attention": ("global_rope_theta", 160000.0),
    "sliding_attention": ("local_rope_theta", 10000.0),
}


def model(config, dtype):
    """The `Encoder` of a configuration."""
    has_head = sequences.has_head(config, ["ModernBertModel"], "ModernBertForMaskedLM")
    config.require("tie_word_embeddings", True, default=True)
    config.require("position_embedding_type", "absolute", "rope", default="absolute")
    config.ignore(
        *("max_position_embeddings", "attention_dropout", "embedding_dropout", "mlp_dropout"),
        *("classifier_dropout", "classifier_pooling", "deterministic_flash_attn"),
        *("sparse_prediction", "sparse_pred_ignore_index", "initializer_cutoff_factor"),
        *("reference_compile", "repad_logits_with_grad", "layer_norm_eps"),
    )
    biases = config.get("attention_bias", False)
    config.require("mlp_bias", biases, default=biases)
    norm_options = {"center": config.get("norm_bias", False)}
    epsilon, dim = config.get("norm_eps", 1e-5), config["hidden_size"]

    def norm(name):
        return sequences.layer_norm(epsilon, dtype, name, **norm_options)

    reach = config.get("local_attention", 128) // 2
    window = patterns.SlidingWindow(reach, reach)
    blocks = [
        TransformerBlock(
            config["intermediate_size"],
            config["num_attention_heads"],
            activation=parts.activation(config, "hidden_activation", "gelu"),
            gated=True,
            residual="pre",
            # The embeddings have a norm already.
            norm={"attention": norm("norm") if n else None, "feed_forward": norm("norm")},
            use_bias=biases,
            pattern=window if kind == "sliding_attention" else None,
            position=_rotary(config, kind),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n, kind in enumerate(_kinds(config))
    ]
    for kind in _OLD:
        _rotary(config, kind)  # Read, though no layer may be of this kind.
    embeddings = Embeddings(
        sequences.tokens(config["vocab_size"], dim, dtype),
        norm=norm("norm"),
        name="embeddings",
        dtype=dtype,
    )
    activation = parts.activation(config, "classifier_activation", "gelu")
    dense_bias = config.get("classifier_bias", False)
    use_bias = config.get("decoder_bias", True)
    logits = None
    if has_head:
        logits = sequences.masked_logits(
            config["vocab_size"], dim, activation, norm("norm"), dtype, dense_bias, use_bias
        )
    return Encoder(blocks, embeddings, norm("final_norm"), logits, dtype=dtype)


def _kinds(config):
    """What each layer sees."""
    every = config.get("global_attn_every_n_layers", 3)
    count = config["num_hidden_layers"]
    default = ["sliding_attention" if n % every else "full_attention" for n in range(count)]
    kinds = config.get("layer_types", default)
    if len(kinds) != count or set(kinds) - set(_OLD):
        raise ValueError(
            f"'layer_types' of `{config.where}` must be {count} of {tuple(_OLD)}. Received: {kinds}"
        )
    return kinds


def _rotary(config, kind):
    given = config.get("rope_parameters", {}).get(kind)
    name, default = _OLD[kind]
    values = {"rope_theta": config.get(name, default), "rope_parameters": given}
    return parts.rotary(Config(values, f"{kind} of {config.where}"))


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
