"""GPT-NeoX and Pythia."""

from keras_attention.convert.huggingface import parts
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

MODEL_TYPES = ("gpt_neox",)
PREFIX = "gpt_neox."


def model(config, dtype):
    """The `Decoder` of a configuration."""
    epsilon = config.get("layer_norm_eps", 1e-5)
    heads = config["num_attention_heads"]
    biases = config.get("attention_bias", True)
    config.require("attention_bias", True, default=True)
    config.ignore("attention_dropout", "hidden_dropout", "classifier_dropout", "is_decoder")
    config.ignore("max_position_embeddings")
    parallel = config.get("use_parallel_residual", True)
    blocks = [
        TransformerBlock(
            config["intermediate_size"],
            heads,
            activation=parts.activation(config, "hidden_act", "gelu"),
            layer_norm_epsilon=epsilon,
            causal=True,
            residual="parallel" if parallel else "pre",
            use_bias=biases,
            position=parts.rotary(
                config,
                config["hidden_size"] // heads,
                config.get("rotary_pct", 0.25),
                base="rotary_emb_base",
            ),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["num_hidden_layers"])
    ]
    return Decoder(
        blocks,
        parts.embeddings(config, dtype),
        parts.layer_norm(epsilon, "final_norm", dtype),
        parts.logits(config, dtype),
        dtype=dtype,
    )


def entries(model, prefix):
    """The tensors of a model; `prefix` is what their names begin with."""
    found = [parts.plain(f"{prefix}embed_in.weight", model.embeddings.tokens.table)]
    for n, block in enumerate(model.blocks):
        name, attention = f"{prefix}layers.{n}", block.attention
        found += [
            *parts.norm(f"{name}.input_layernorm", block.attention_norm),
            *parts.fused_dense(
                f"{name}.attention.query_key_value", parts.heads(attention), attention.num_heads
            ),
            *parts.dense(f"{name}.attention.dense", attention.output_dense, inputs=2),
            *parts.norm(f"{name}.post_attention_layernorm", block.feed_forward_norm),
            *parts.dense(f"{name}.mlp.dense_h_to_4h", block.feed_forward.intermediate_dense),
            *parts.dense(f"{name}.mlp.dense_4h_to_h", block.feed_forward.output_dense),
        ]
    found += parts.norm(f"{prefix}final_layer_norm", model.final_norm)
    return found + parts.head("embed_out", model)


def unused(name):
    """Whether a tensor is the causal mask or a table of wavelengths, which older files have."""
    return name.endswith((".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"))
