"""Cohere's Command R, without norms of queries and keys."""

from keras_attention.convert.huggingface import fields, rope, stacks
from keras_attention.convert.huggingface.architectures import llama
from keras_attention.convert.huggingface.fields import count, only, read

FIELDS = {
    **fields.LANGUAGE,
    **rope.fields(8192, theta=500000.0),
    "num_key_value_heads": count(None, int | None),
    "head_dim": count(None),
    "hidden_act": fields.activation("silu"),
    "layer_norm_eps": read(1e-5),
    "logit_scale": read(0.0625),
    "tie_word_embeddings": read(True),
    "attention_bias": only(False),
    # Those norms have weights for each head.
    "use_qk_norm": only(False, None),
}


def _block(config, n):
    return {
        **llama.attention(config, layout="interleaved"),
        "residual": "parallel",
        "norm": {
            "attention": stacks.layer_norm(config["layer_norm_eps"], center=False),
            "feed_forward": "shared",
        },
    }


ARCHITECTURES = {
    "cohere": llama.architecture(
        FIELDS,
        _block,
        {"input_layernorm": "attention_norm", **llama.ATTENTION, **llama.GATED},
        lambda config: {"logits": {"scale": config["logit_scale"]}},
    )
}
