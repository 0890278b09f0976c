"""GLM-4 of 2025: norms on both sides of branches, and half of the features rotated, in turns."""

from keras_attention.convert.huggingface import rope
from keras_attention.convert.huggingface.architectures import llama
from keras_attention.convert.huggingface.fields import count, read

FIELDS = {
    **llama.STACK,
    **rope.fields(131072),
    "partial_rotary_factor": read(0.5),
    "num_key_value_heads": count(2),
    "head_dim": count(128),
    "rms_norm_eps": read(1.5625e-7),
    "attention_bias": read(True),
}


def _block(config, n):
    return {
        **llama.block(config, n, fraction="partial_rotary_factor", layout="interleaved"),
        "residual": "sandwich",
        "use_bias": "qkv" if config["attention_bias"] else False,
    }


ARCHITECTURES = {
    "glm4": llama.architecture(
        FIELDS,
        _block,
        {
            "input_layernorm": "attention_norm",
            **llama.ATTENTION,
            "post_self_attn_layernorm": "attention_output_norm",
            "post_attention_layernorm": "feed_forward_norm",
            "mlp.gate_up_proj": ("feed_forward.gate_dense", "feed_forward.intermediate_dense"),
            "mlp.down_proj": "feed_forward.output_dense",
            "post_mlp_layernorm": "feed_forward_output_norm",
        },
    )
}
