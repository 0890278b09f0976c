"""Llama, and models that differ from it in options: Mistral, Qwen 2 and 3."""

from keras_attention.convert.huggingface import buffers, parts, rope
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
from keras_attention.layers.rms_norm import RMSNorm
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

PREFIX = "model."
UNREAD = buffers.ROTARY
SAME = {"embed_tokens.weight": [r"lm_head\.weight"]}
STACK = {
    **COMMON,
    **SIZES,
    "vocab_size": needed(),
    "hidden_act": activation("silu"),
    "rms_norm_eps": read(1e-6),
    "tie_word_embeddings": read(False),
}
_WINDOWS = {
    "use_sliding_window": read(False),
    "sliding_window": count(4096, int | None),
    "max_window_layers": read(28),
    "layer_types": read(None, list | None),
}
FIELDS = {
    "llama": {
        **STACK,
        **rope.fields(2048),
        "num_key_value_heads": count(None, int | None),
        "head_dim": count(None, int | None),
        "attention_bias": read(False),
        "mlp_bias": read(False),
        **off("sliding_window rope_interleaved use_sliding_window"),
        **ignored("not read", "is_llama_config max_sequence_length"),
    },
    "mistral": {
        **STACK,
        **rope.fields(131072),
        "num_key_value_heads": count(8),
        "head_dim": count(None, int | None),
        "sliding_window": count(4096, int | None),
        **off("attention_bias mlp_bias use_sliding_window"),
    },
    "qwen2": {
        **STACK,
        **rope.fields(32768),
        **_WINDOWS,
        "num_key_value_heads": count(32, int | None),
        "head_dim": count(None),
        **off("mlp_bias use_mrope"),
        **ignored("of another program, for long texts", "dual_chunk_attention_config"),
    },
    "qwen3": {
        **STACK,
        **rope.fields(32768),
        **_WINDOWS,
        "num_key_value_heads": count(32, int | None),
        "head_dim": count(128),
        "attention_bias": only(False),
        **off("mlp_bias use_mrope"),
    },
}


def model(config, dtype, **rotary):
    """The `Decoder` of a configuration; `rotary` are options of its positions."""
    kind = config.model_type
    epsilon, heads = config["rms_norm_eps"], config["num_attention_heads"]
    head_dim = config["head_dim"] or parts.head_size(config)
    blocks = [
        TransformerBlock(
            config["intermediate_size"],
            heads,
            activation=parts.activation(config, "hidden_act"),
            gated=True,
            causal=True,
            residual="pre",
            norm="rms",
            layer_norm_epsilon=epsilon,
            key_dim=head_dim,
            num_key_value_heads=config["num_key_value_heads"] or heads,
            use_bias=_biases(config, kind),
            qk_norm=RMSNorm(epsilon) if kind == "qwen3" else False,
            pattern=window,
            position=rope.rotary(config, head_dim, **rotary),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n, window in enumerate(_windows(config, kind))
    ]
    return Decoder(
        blocks,
        parts.embeddings(config, dtype),
        RMSNorm(epsilon, name="final_norm", dtype=dtype),
        parts.logits(config, dtype),
        dtype=dtype,
    )


def _biases(config, kind):
    if kind == "llama":
        return config.require("mlp_bias", config["attention_bias"])
    return "qkv" if kind == "qwen2" else False


def _windows(config, kind):
    layers = config["num_hidden_layers"]
    if kind == "llama":
        return [None] * layers
    if kind in ("mistral", "phi3"):
        return [parts.window(config["sliding_window"])] * layers
    # Qwen: the first ones see all.
    size = config["sliding_window"] if config["use_sliding_window"] else None
    first = layers if size is None else config["max_window_layers"]
    types = ["full_attention" if n < first else "sliding_attention" for n in range(layers)]
    return parts.windows(config, parts.layer_types(config, types), size)


def entries(model, prefix):
    """The tensors of a model; `prefix` is what their names begin with, "model." or nothing."""
    found = [parts.plain(f"{prefix}embed_tokens.weight", model.embeddings.tokens.table)]
    for n, block in enumerate(model.blocks):
        name = f"{prefix}layers.{n}"
        attention, feed_forward = block.attention, block.feed_forward
        found += [
            *parts.norm(f"{name}.input_layernorm", block.attention_norm),
            *parts.attention(f"{name}.self_attn", attention),
            *parts.norm(f"{name}.post_attention_layernorm", block.feed_forward_norm),
            *parts.gated(f"{name}.mlp", feed_forward),
        ]
        if attention.qk_norm:
            found += parts.norm(f"{name}.self_attn.q_norm", attention.query_norm)
            found += parts.norm(f"{name}.self_attn.k_norm", attention.key_norm)
    found += parts.norm(f"{prefix}norm", model.final_norm)
    return found + parts.head("lm_head", model)
