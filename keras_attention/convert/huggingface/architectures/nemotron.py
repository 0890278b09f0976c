"""Nemotron: LayerNorms whose weight is what is added to 1, and squared ReLU."""

from keras_attention.convert.huggingface import entries, fields, rope
from keras_attention.convert.huggingface.architectures import llama
from keras_attention.convert.huggingface.fields import count, ignored, needed, read

FIELDS = {
    **fields.LANGUAGE,
    **rope.fields(4096),
    "partial_rotary_factor": read(0.5),
    "num_key_value_heads": needed(),
    "head_dim": count(None, int | None),
    "hidden_act": fields.activation("relu2"),
    "norm_eps": read(1e-5),
    "attention_bias": read(False),
    "mlp_bias": read(False),
    "tie_word_embeddings": read(False),
    **ignored("not read beside `norm_eps` and `head_dim`", "layer_norm_eps kv_channels"),
}


def _block(config, n):
    return {
        **llama.attention(config, fraction="partial_rotary_factor"),
        "gated": False,
        "norm": "layer",
        "layer_norm_epsilon": config["norm_eps"],
        "use_bias": config.require("mlp_bias", config["attention_bias"]),
    }


def _norm(path):
    weight = entries.changed(f"{path}.gamma", lambda x: x.astype("float32") + 1, lambda x: x - 1)
    return lambda name, owner: entries.of({".weight": weight, ".bias": f"{path}.beta"}, owner, name)


ARCHITECTURES = {
    "nemotron": llama.architecture(
        FIELDS,
        _block,
        {
            "input_layernorm": _norm("attention_norm"),
            **llama.ATTENTION,
            "post_attention_layernorm": _norm("feed_forward_norm"),
            "mlp.up_proj": "feed_forward.intermediate_dense",
            "mlp.down_proj": "feed_forward.output_dense",
        },
        norm=_norm("final_norm"),
    )
}
