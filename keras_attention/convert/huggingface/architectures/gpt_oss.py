"""gpt-oss: experts, sinks, and windows in every other layer."""

import numpy as np

from keras_attention.convert.huggingface import buffers, parts, rope
from keras_attention.convert.huggingface.fields import (
    COMMON,
    SIZES,
    count,
    ignored,
    needed,
    only,
    read,
    same_as,
)
from keras_attention.convert.huggingface.tensors import Entry
from keras_attention.layers.mixture_of_experts import MixtureOfExperts
from keras_attention.layers.rms_norm import RMSNorm
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

PREFIX = "model."
UNREAD = buffers.ROTARY
SAME = {"embed_tokens.weight": [r"lm_head\.weight"]}
FIELDS = {
    "gpt_oss": {
        **COMMON,
        **SIZES,
        **rope.fields(131072, theta=150000.0),
        "vocab_size": needed(),
        "num_key_value_heads": count(8),
        "head_dim": count(64),
        "num_local_experts": count(128),
        "num_experts": same_as("num_local_experts"),
        "num_experts_per_tok": count(4),
        "hidden_act": only("silu"),
        # The slope of `quick_gelu`.
        "swiglu_alpha": only(1.702),
        "swiglu_limit": read(7.0),
        "rms_norm_eps": read(1e-5),
        "attention_bias": only(True),
        "sliding_window": count(128, int | None),
        "layer_types": read(None, list | None),
        "tie_word_embeddings": read(False),
        "output_router_logits": only(False),
        **ignored("of training", "router_aux_loss_coef"),
        **ignored("not read", "experts_per_token initial_context_length"),
    }
}
# Of files without any.
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


def model(config, dtype):
    """The `Decoder` of a configuration."""
    epsilon, layers = config["rms_norm_eps"], config["num_hidden_layers"]
    default = ["full_attention" if n % 2 else "sliding_attention" for n in range(layers)]
    types = parts.layer_types(config, default)

    def experts():
        return MixtureOfExperts(
            config["num_local_experts"],
            config["num_experts_per_tok"],
            config["intermediate_size"],
            activation="quick_gelu",
            gated=True,
            limit=config["swiglu_limit"],
            offset=1.0,
            name="experts",
            dtype=dtype,
        )

    blocks = [
        TransformerBlock(
            None,
            config["num_attention_heads"],
            causal=True,
            residual="pre",
            norm="rms",
            layer_norm_epsilon=epsilon,
            key_dim=config["head_dim"],
            num_key_value_heads=config["num_key_value_heads"],
            use_sink=True,
            pattern=window,
            position=rope.rotary(config, config["head_dim"], default=_YARN),
            feed_forward=experts(),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n, window in enumerate(parts.windows(config, types, config["sliding_window"]))
    ]
    return Decoder(
        blocks,
        parts.embeddings(config, dtype),
        RMSNorm(epsilon, name="final_norm", dtype=dtype),
        parts.logits(config, dtype),
        dtype=dtype,
    )


def entries(model, prefix):
    """The tensors of a model; `prefix` is what their names begin with."""
    found = [parts.plain(f"{prefix}embed_tokens.weight", model.embeddings.tokens.table)]
    for n, block in enumerate(model.blocks):
        name, experts = f"{prefix}layers.{n}", block.feed_forward
        found += [
            *parts.norm(f"{name}.input_layernorm", block.attention_norm),
            *parts.attention(f"{name}.self_attn", block.attention),
            parts.plain(f"{name}.self_attn.sinks", block.attention.sink),
            *parts.norm(f"{name}.post_attention_layernorm", block.feed_forward_norm),
            *parts.dense(f"{name}.mlp.router", experts.router),
            *_in_turn(
                f"{name}.mlp.experts.gate_up_proj",
                (experts.gate_kernel, experts.intermediate_kernel),
                (experts.gate_bias, experts.intermediate_bias),
            ),
            parts.plain(f"{name}.mlp.experts.down_proj", experts.output_kernel),
            parts.plain(f"{name}.mlp.experts.down_proj_bias", experts.output_bias),
        ]
    found += parts.norm(f"{prefix}norm", model.final_norm)
    return found + parts.head("lm_head", model)


def _in_turn(name, kernels, biases):
    """Two projections of all experts, whose outputs take turns."""
    return [
        Entry(
            given,
            variables,
            lambda x: [x[..., ::2], x[..., 1::2]],
            lambda arrays: np.stack(arrays, axis=-1).reshape(*arrays[0].shape[:-1], -1),
        )
        for given, variables in ((name, kernels), (f"{name}_bias", biases))
    ]
