"""Gemma 1 and 2, and the text model of Gemma 3."""

from keras_attention import scores
from keras_attention.convert.huggingface import fields, rope, stacks
from keras_attention.convert.huggingface.architectures import llama
from keras_attention.convert.huggingface.fields import (
    ACTIVATIONS,
    Field,
    count,
    ignored,
    only,
    read,
)
from keras_attention.layers.rms_norm import RMSNorm

_BASES = {
    "full_attention": ("rope_theta", 1e6),
    "sliding_attention": ("rope_local_base_freq", 1e4),
}
_STACK = {
    **fields.LANGUAGE,
    "num_key_value_heads": count(4),
    "head_dim": count(256),
    "hidden_activation": fields.activation("gelu_pytorch_tanh"),
    "rms_norm_eps": read(1e-6),
    "query_pre_attn_scalar": count(256),
    "sliding_window": count(4096, int | None),
    "layer_types": read(None, list | None),
    "tie_word_embeddings": read(True),
    "attention_bias": only(False),
    "use_bidirectional_attention": only(False, None),
    **ignored("not read beside `hidden_activation`", "hidden_act"),
    **ignored("not read beside `sliding_window`", "sliding_window_size"),
}
_TENSORS = {
    "input_layernorm": "attention_norm",
    **llama.ATTENTION,
    "post_attention_layernorm": "attention_output_norm",
    "pre_feedforward_layernorm": "feed_forward_norm",
    **llama.GATED,
    "post_feedforward_layernorm": "feed_forward_output_norm",
}


def _block(config, n, period, position, **options):
    """The options of a block: of files without types of layers, the last of a period sees all."""
    default = [
        "sliding_attention" if (n + 1) % period else "full_attention"
        for n in range(config["num_hidden_layers"])
    ]
    types = stacks.layer_types(config, default)
    return {
        "intermediate_dim": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "activation": config["hidden_activation"],
        "gated": True,
        "residual": "sandwich",
        "norm": _norm(config),
        "key_dim": config["head_dim"],
        "num_key_value_heads": config["num_key_value_heads"],
        "use_bias": False,
        "score": scores.ScaledDot(config["query_pre_attn_scalar"] ** -0.5),
        "pattern": stacks.window_by_type(config, types, n, config["sliding_window"]),
        "position": position(types[n]),
        **options,
    }


def _norm(config):
    return RMSNorm(config["rms_norm_eps"], offset=1.0)


def _gemma2(config, n):
    cap, size = config["attn_logit_softcapping"], config["head_dim"]
    return _block(config, n, 2, lambda kind: rope.rotary(config, size), logit_soft_cap=cap)


def _gemma3(config, n):
    def position(kind):
        return rope.rotary_by_type(config, config["head_dim"], _BASES, ["full_attention"])[kind]

    period = config["sliding_window_pattern"]
    return _block(config, n, period, position, qk_norm=_norm(config))


def _gemma(config, n):
    return {**llama.attention(config), "norm": _norm(config)}


def _further(config):
    cap = config.get("final_logit_softcapping")
    return {"embeddings": {"scale": None}, "logits": {"soft_cap": cap}}


ARCHITECTURES = {
    "gemma": llama.architecture(
        {
            **llama.STACK,
            **rope.fields(8192),
            "num_key_value_heads": count(16),
            "head_dim": count(256),
            # "gelu" is its approximation, which the first files do not say.
            "hidden_act": Field(str, "gelu_pytorch_tanh", {**ACTIVATIONS, "gelu": "gelu_tanh"}),
            "tie_word_embeddings": read(True),
            "attention_bias": only(False),
            "use_bidirectional_attention": only(None, False),
            **ignored("not read beside `hidden_act`", "hidden_activation"),
        },
        _gemma,
        further=_further,
    ),
    "gemma2": llama.architecture(
        {
            **_STACK,
            **rope.fields(8192),
            "attn_logit_softcapping": read(50.0, float | None),
            "final_logit_softcapping": read(30.0, float | None),
        },
        _gemma2,
        _TENSORS,
        _further,
    ),
    "gemma3_text": llama.architecture(
        {
            **_STACK,
            **rope.fields_by_type(131072, _BASES),
            "sliding_window_pattern": count(6),
            "final_logit_softcapping": read(None, float | None),
            **ignored("not read for this model", "attn_logit_softcapping _sliding_window_pattern"),
        },
        _gemma3,
        _TENSORS,
        _further,
    ),
}
