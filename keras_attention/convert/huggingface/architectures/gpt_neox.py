"""GPT-NeoX and Pythia."""

from keras_attention.convert.huggingface import buffers, parts, rope
from keras_attention.convert.huggingface.fields import COMMON, SIZES, activation, needed, only, read
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

PREFIX = "gpt_neox."
UNREAD = {**buffers.ROTARY, **buffers.causal("attention")}
SAME = {"embed_in.weight": [r"embed_out\.weight"]}
_ROPE = rope.fields(2048)
FIELDS = {
    "gpt_neox": {
        **COMMON,
        **SIZES,
        **{name: field for name, field in _ROPE.items() if name != "partial_rotary_factor"},
        "rotary_emb_base": read(10000.0),
        "rotary_pct": read(0.25),
        "vocab_size": needed(),
        "hidden_act": activation("gelu"),
        "layer_norm_eps": read(1e-5),
        "use_parallel_residual": read(True),
        "tie_word_embeddings": read(False),
        "attention_bias": only(True),
    }
}


def model(config, dtype):
    """The `Decoder` of a configuration."""
    epsilon, heads = config["layer_norm_eps"], config["num_attention_heads"]
    blocks = [
        TransformerBlock(
            config["intermediate_size"],
            heads,
            activation=parts.activation(config, "hidden_act"),
            layer_norm_epsilon=epsilon,
            causal=True,
            residual="parallel" if config["use_parallel_residual"] else "pre",
            position=rope.rotary(config, parts.head_size(config), "rotary_pct", "rotary_emb_base"),
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
