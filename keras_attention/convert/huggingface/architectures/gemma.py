"""Gemma 1 and 2, and the text model of Gemma 3."""

from keras_attention import scores
from keras_attention.convert.huggingface import fields, rope, stacks
from keras_attention.convert.huggingface.architectures import llamas
from keras_attention.layers.blocks.norms import RMSNorm

_BASES = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}
_STACK = {
    **fields.LANGUAGE,
    **fields.defaults(num_key_value_heads=4, head_dim=256, query_pre_attn_scalar=256),
    **fields.defaults(rms_norm_eps=1e-6, tie_word_embeddings=True),
    **fields.nullable(sliding_window=4096),
    **llamas.TYPES,
    "hidden_activation": fields.activation("gelu_pytorch_tanh"),
    **fields.fixed(attention_bias=False),
    **fields.off("use_bidirectional_attention"),
    **fields.ignored("not read beside `hidden_activation`", "hidden_act"),
    **fields.ignored("not read beside `sliding_window`", "sliding_window_size"),
}
_TENSORS = {
    "input_layernorm": "attention_norm",
    **llamas.ATTENTION,
    "post_attention_layernorm": "attention_output_norm",
    "pre_feedforward_layernorm": "feed_forward_norm",
    **llamas.GATED,
    "post_feedforward_layernorm": "feed_forward_output_norm",
}


def _block(config, **options):
    return llamas.block(config, norm=_norm(config), **options)


def _norm(config):
    return RMSNorm(config["rms_norm_eps"], offset=1.0)


def _later(config, pattern, **options):
    """The options of a block of Gemma 2 or 3."""
    score = scores.ScaledDot(config["query_pre_attn_scalar"] ** -0.5)
    return _block(config, residual="sandwich", score=score, pattern=pattern, **options)


def _window(config, n, period):
    """Of files without types of layers, the last of a period sees all."""
    return stacks.window_by_type(config, n, config["sliding_window"], lambda n: (n + 1) % period)


def _gemma3(config, n):
    window = _window(config, n, config["sliding_window_pattern"])
    found = rope.rotary_by_type(config, config["head_dim"], _BASES, ["full_attention"])
    position = found["full_attention" if window is None else "sliding_attention"]
    return _later(config, window, position=position, qk_norm=_norm(config))


def _further(config):
    cap = config.get("final_logit_softcapping")
    return {"embeddings": {"scale": None}, "logits": {"soft_cap": cap}}


ARCHITECTURES = {
    "gemma": llamas.llama(
        {
            **llamas.stack(8192),
            **fields.defaults(num_key_value_heads=16, head_dim=256, tie_word_embeddings=True),
            # "gelu" is its approximation, which the first files do not say.
            "hidden_act": fields.activation("gelu_pytorch_tanh", gelu="gelu_tanh"),
            **fields.fixed(attention_bias=False),
            "use_bidirectional_attention": fields.only(None, False),
            **fields.ignored("not read beside `hidden_act`", "hidden_activation"),
        },
        lambda config, n: _block(config),
        further=_further,
    ),
    "gemma2": llamas.llama(
        {
            **_STACK,
            **rope.fields(8192),
            **fields.nullable(attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
        },
        lambda config, n: _later(
            config, _window(config, n, 2), logit_soft_cap=config["attn_logit_softcapping"]
        ),
        _TENSORS,
        _further,
    ),
    "gemma3_text": llamas.llama(
        {
            **_STACK,
            **rope.fields_by_type(131072, _BASES),
            **fields.defaults(sliding_window_pattern=6),
            "final_logit_softcapping": fields.read(None, float | None),
            **fields.ignored("not read", "attn_logit_softcapping _sliding_window_pattern"),
        },
        _gemma3,
        _TENSORS,
        _further,
    ),
}
