"""MPT, without biases."""

import keras

from keras_attention import positions, scores
from keras_attention.convert.huggingface import parts
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

MODEL_TYPES = ("mpt",)
PREFIX = "transformer."


def model(config, dtype):
    """The `Decoder` of a configuration."""
    size = config["d_model"]
    given = config.part("attn_config")
    given.require("alibi", True, default=True)
    given.require("attn_type", "multihead_attention", default="multihead_attention")
    given.require("qk_ln", False, default=False)
    given.require("prefix_lm", False, default=False)
    given.require("attn_uses_sequence_id", False, default=False)
    given.ignore("attn_pdrop", "attn_impl", "is_encoder_decoder")
    config.require("no_bias", True, default=True)
    config.require("logit_scale", None)
    config.require("norm_type", "low_precision_layernorm", default="low_precision_layernorm")
    config.ignore("max_seq_len", "resid_pdrop", "emb_pdrop", "verbose", "init_device")
    # A fraction of the gradient of embeddings; learned positions are for models without ALiBi.
    config.ignore("embedding_fraction", "learned_pos_emb", "init_config")

    def norm(name):
        return keras.layers.LayerNormalization(
            epsilon=config.get("layer_norm_epsilon", 1e-5), center=False, name=name, dtype=dtype
        )

    blocks = [
        TransformerBlock(
            config.get("expansion_ratio", 4) * size,
            config["n_heads"],
            activation="gelu",
            causal=True,
            residual="pre",
            norm=norm(None),
            use_bias=False,
            score=scores.ScaledDot(given.get("softmax_scale")),
            position=positions.ALiBi(float(given.get("alibi_bias_max", 8))),
            # 0 is none there.
            clip_qkv=given.get("clip_qkv") or None,
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["n_layers"])
    ]
    given.check_read()
    return Decoder(
        blocks,
        parts.embeddings(config, dtype, size=size),
        norm("final_norm"),
        parts.logits(config, dtype, tied=True),
        dtype=dtype,
    )


def entries(model, prefix):
    """The tensors of a model; `prefix` is what their names begin with."""
    found = [parts.plain(f"{prefix}wte.weight", model.embeddings.tokens.table)]
    for n, block in enumerate(model.blocks):
        name, attention = f"{prefix}blocks.{n}", block.attention
        found += [
            *parts.norm(f"{name}.norm_1", block.attention_norm),
            *parts.fused_dense(f"{name}.attn.Wqkv", parts.heads(attention)),
            *parts.dense(f"{name}.attn.out_proj", attention.output_dense, inputs=2),
            *parts.norm(f"{name}.norm_2", block.feed_forward_norm),
            *parts.dense(f"{name}.ffn.up_proj", block.feed_forward.intermediate_dense),
            *parts.dense(f"{name}.ffn.down_proj", block.feed_forward.output_dense),
        ]
    found += parts.norm(f"{prefix}norm_f", model.final_norm)
    return found + parts.head("lm_head", model)
