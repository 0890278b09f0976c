"""MPT, without biases."""

import keras

from keras_attention import positions, scores
from keras_attention.convert.huggingface import parts
from keras_attention.convert.huggingface.fields import (
    COMMON,
    ignored,
    needed,
    only,
    part,
    read,
    same_as,
)
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

PREFIX = "transformer."
SAME = {"wte.weight": [r"lm_head\.weight"]}
_ATTENTION = {
    **COMMON,
    "alibi": only(True),
    # The one of `transformers`, which does not read it.
    "alibi_bias_max": only(8),
    "attn_type": only("multihead_attention"),
    "qk_ln": only(False),
    "prefix_lm": only(False),
    "attn_uses_sequence_id": only(False),
    # 0 is none.
    "clip_qkv": read(None, float | None),
    "softmax_scale": read(None, float | None),
    **ignored("of the program that runs the model", "attn_impl"),
}
FIELDS = {
    "mpt": {
        **COMMON,
        "vocab_size": needed(),
        "d_model": needed(),
        "n_heads": needed(),
        "n_layers": needed(),
        "hidden_size": same_as("d_model"),
        "num_attention_heads": same_as("n_heads"),
        "num_hidden_layers": same_as("n_layers"),
        "attn_config": part(_ATTENTION),
        "layer_norm_epsilon": read(1e-5),
        "tie_word_embeddings": read(True),
        # As it is there, whatever they say.
        "expansion_ratio": only(4),
        "no_bias": only(True),
        "logit_scale": only(None),
        "norm_type": only("low_precision_layernorm"),
        **ignored("of texts that are longer, which are computed here", "max_seq_len"),
        **ignored("of the program that trained it", "verbose init_device init_config"),
        **ignored("of the gradient of embeddings", "embedding_fraction"),
        **ignored("of models without ALiBi", "learned_pos_emb"),
    }
}


def model(config, dtype):
    """The `Decoder` of a configuration."""
    size = config["d_model"]
    given = config["attn_config"]

    def norm(name):
        return keras.layers.LayerNormalization(
            epsilon=config["layer_norm_epsilon"], center=False, name=name, dtype=dtype
        )

    blocks = [
        TransformerBlock(
            config["expansion_ratio"] * size,
            config["n_heads"],
            activation="gelu",
            causal=True,
            residual="pre",
            norm=norm(None),
            use_bias=False,
            score=scores.ScaledDot(given["softmax_scale"]),
            position=positions.ALiBi(float(given["alibi_bias_max"])),
            clip_qkv=given["clip_qkv"] or None,
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["n_layers"])
    ]
    return Decoder(
        blocks,
        parts.embeddings(config, dtype, size=size),
        norm("final_norm"),
        parts.logits(config, dtype),
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
