"""MPT, without biases."""

from keras_attention import positions, scores
from keras_attention.convert.huggingface import entries, fields, stacks
from keras_attention.convert.huggingface.architecture import language_model
from keras_attention.convert.huggingface.fields import ignored, needed, only, part, read

_ATTENTION = {
    **fields.COMMON,
    "alibi": only(True),
    # The value that `transformers` uses: it does not read this field.
    "alibi_bias_max": only(8),
    "attn_type": only("multihead_attention"),
    "qk_ln": only(False),
    "prefix_lm": only(False),
    "attn_uses_sequence_id": only(False),
    # 0 and null mean no limit.
    "clip_qkv": read(None, float | None),
    "softmax_scale": read(None, float | None),
    **ignored("of the program that runs the model", "attn_impl"),
}
FIELDS = {
    **fields.COMMON,
    **fields.renamed(
        hidden_size="d_model", num_attention_heads="n_heads", num_hidden_layers="n_layers"
    ),
    "vocab_size": needed(),
    "attn_config": part(_ATTENTION),
    "layer_norm_epsilon": read(1e-5),
    "tie_word_embeddings": read(True),
    # `transformers` computes this whatever the fields contain.
    "expansion_ratio": only(4),
    "no_bias": only(True),
    "logit_scale": only(None),
    "norm_type": only("low_precision_layernorm"),
    **ignored("of texts that are longer, which are computed here", "max_seq_len"),
    **ignored("of the program that trained it", "verbose init_device init_config"),
    **ignored("of the gradient of embeddings", "embedding_fraction"),
    **ignored("of models without ALiBi", "learned_pos_emb"),
}


def _block(config, n):
    given = config["attn_config"]
    return {
        "intermediate_dim": config["expansion_ratio"] * config["d_model"],
        "num_heads": config["n_heads"],
        "activation": "gelu",
        "norm": stacks.layer_norm(config["layer_norm_epsilon"], center=False),
        "use_bias": False,
        "score": scores.ScaledDot(given["softmax_scale"]),
        "position": positions.ALiBi(float(given["alibi_bias_max"])),
        "clip_qkv": given["clip_qkv"] or None,
    }


ARCHITECTURES = {
    "mpt": language_model(
        FIELDS,
        stacks.decoder(_block),
        "wte",
        {
            "blocks": entries.blocks(
                {
                    "norm_1": "attention_norm",
                    "attn.Wqkv": entries.HEADS,
                    "attn.out_proj": "attention.output_dense",
                    "norm_2": "feed_forward_norm",
                    "ffn.up_proj": "feed_forward.intermediate_dense",
                    "ffn.down_proj": "feed_forward.output_dense",
                }
            ),
            "norm_f": "final_norm",
        },
        prefix="transformer.",
    )
}
