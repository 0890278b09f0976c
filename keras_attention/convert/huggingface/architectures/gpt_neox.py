"""GPT-NeoX and Pythia."""

from keras_attention.convert.huggingface import buffers, entries, fields, rope, stacks
from keras_attention.convert.huggingface.architecture import language_model
from keras_attention.convert.huggingface.fields import only, read

_ROPE = rope.fields(2048)
FIELDS = {
    **fields.LANGUAGE,
    **{name: field for name, field in _ROPE.items() if name != "partial_rotary_factor"},
    "rotary_emb_base": read(10000.0),
    "rotary_pct": read(0.25),
    "hidden_act": fields.activation("gelu"),
    "layer_norm_eps": read(1e-5),
    "use_parallel_residual": read(True),
    "tie_word_embeddings": read(False),
    "attention_bias": only(True),
}


def _block(config, n):
    size = stacks.head_size(config)
    return {
        "intermediate_dim": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "activation": config["hidden_act"],
        "layer_norm_epsilon": config["layer_norm_eps"],
        "residual": "parallel" if config["use_parallel_residual"] else "pre",
        "position": rope.rotary(config, size, "rotary_pct", "rotary_emb_base"),
    }


ARCHITECTURES = {
    "gpt_neox": language_model(
        FIELDS,
        stacks.decoder(_block),
        "embed_in",
        {
            "layers": entries.blocks(
                {
                    "input_layernorm": "attention_norm",
                    "attention.query_key_value": entries.by_head("attention.num_heads"),
                    "attention.dense": "attention.output_dense",
                    "post_attention_layernorm": "feed_forward_norm",
                    "mlp.dense_h_to_4h": "feed_forward.intermediate_dense",
                    "mlp.dense_4h_to_h": "feed_forward.output_dense",
                }
            ),
            "final_layer_norm": "final_norm",
        },
        prefix="gpt_neox.",
        head="embed_out",
        unread={**buffers.ROTARY, **buffers.causal("attention")},
    )
}
