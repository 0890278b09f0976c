"""Starcoder2: Llama with LayerNorms, biases, and a feed-forward network without a gate."""

from keras_attention.convert.huggingface import fields, rope, stacks
from keras_attention.convert.huggingface.architectures import llama
from keras_attention.convert.huggingface.fields import count, ignored, only, read

FIELDS = {
    **fields.LANGUAGE,
    **rope.fields(4096),
    "num_key_value_heads": count(2),
    "head_dim": count(None, int | None),
    "hidden_act": fields.activation("gelu_pytorch_tanh"),
    "norm_epsilon": read(1e-5),
    "sliding_window": count(None, int | None),
    "use_bias": read(True),
    "tie_word_embeddings": read(True),
    # `transformers` computes this whatever the fields contain.
    "mlp_type": only("default", None),
    "norm_type": only("layer_norm", None),
    "scale_attn_weights": only(True, None),
    **ignored("a rate of dropout, which is 0 in use", "residual_dropout"),
    **ignored("not read beside `hidden_act` and `norm_epsilon`", "activation_function"),
    **ignored("not read beside `hidden_act` and `norm_epsilon`", "layer_norm_epsilon"),
    **ignored(
        "weights are in float32", "attention_softmax_in_fp32 scale_attention_softmax_in_fp32"
    ),
}


def _block(config, n):
    return {
        **llama.attention(config),
        "gated": False,
        "norm": "layer",
        "layer_norm_epsilon": config["norm_epsilon"],
        "use_bias": config["use_bias"],
        "pattern": stacks.window(config["sliding_window"]),
    }


ARCHITECTURES = {
    "starcoder2": llama.architecture(
        FIELDS,
        _block,
        {
            **llama.NORMS,
            **llama.ATTENTION,
            "mlp.c_fc": "feed_forward.intermediate_dense",
            "mlp.c_proj": "feed_forward.output_dense",
        },
    )
}
