"""Phi: Phi-1, 1.5 and 2."""

from keras_attention.convert.huggingface import buffers, entries, fields, rope, stacks
from keras_attention.convert.huggingface.architecture import language_model
from keras_attention.convert.huggingface.fields import count, read

FIELDS = {
    **fields.LANGUAGE,
    **rope.fields(2048),
    "partial_rotary_factor": read(0.5),
    "num_key_value_heads": count(None, int | None),
    "hidden_act": fields.activation("gelu_new"),
    "layer_norm_eps": read(1e-5),
    "qk_layernorm": read(False),
    "tie_word_embeddings": read(False),
}


def _block(config, n):
    epsilon, heads = config["layer_norm_eps"], config["num_attention_heads"]
    size = stacks.head_size(config)
    return {
        "intermediate_dim": config["intermediate_size"],
        "num_heads": heads,
        "activation": config["hidden_act"],
        "layer_norm_epsilon": epsilon,
        "residual": "parallel",
        "norm": {"feed_forward": "shared"},
        "num_key_value_heads": config["num_key_value_heads"] or heads,
        "qk_norm": stacks.layer_norm(epsilon) if config["qk_layernorm"] else False,
        "position": rope.rotary(config, size, "partial_rotary_factor"),
    }


ARCHITECTURES = {
    "phi": language_model(
        FIELDS,
        stacks.decoder(_block, lambda config: {"logits": {"use_bias": True}}),
        "embed_tokens",
        {
            "layers": entries.blocks(
                {
                    "input_layernorm": "attention_norm",
                    **entries.attention("self_attn.", "q_proj k_proj v_proj dense"),
                    "self_attn.q_layernorm": "attention.query_norm",
                    "self_attn.k_layernorm": "attention.key_norm",
                    "mlp.fc1": "feed_forward.intermediate_dense",
                    "mlp.fc2": "feed_forward.output_dense",
                }
            ),
            "final_layernorm": "final_norm",
        },
        prefix="model.",
        unread=buffers.ROTARY,
    )
}
