"""gpt-oss: experts, sinks, and windows in every other layer."""

import numpy as np

from keras_attention.convert.huggingface import parts
from keras_attention.convert.huggingface.tensors import Entry
from keras_attention.layers.mixture_of_experts import MixtureOfExperts
from keras_attention.layers.rms_norm import RMSNorm
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

MODEL_TYPES = ("gpt_oss",)
PREFIX = "model."


def model(config, dtype):
    """The `Decoder` of a configuration."""
    epsilon = config.get("rms_norm_eps", 1e-5)
    heads, count = config["num_attention_heads"], config["num_hidden_layers"]
    chosen = config["num_experts_per_tok"]
    config.require("experts_per_token", None, chosen)
    config.require("hidden_act", "silu", default="silu")
    config.require("attention_bias", True, default=True)
    # The slope of `quick_gelu`.
    config.require("swiglu_alpha", 1.702, default=1.702)
    config.require("output_router_logits", False, default=False)
    config.ignore("attention_dropout", "router_aux_loss_coef", "max_position_embeddings")
    config.ignore("initial_context_length")
    types = ["full_attention" if n % 2 else "sliding_attention" for n in range(count)]

    def experts():
        return MixtureOfExperts(
            config["num_local_experts"],
            chosen,
            config["intermediate_size"],
            activation="quick_gelu",
            gated=True,
            limit=config.get("swiglu_limit", 7.0),
            offset=1.0,
            name="experts",
            dtype=dtype,
        )

    blocks = [
        TransformerBlock(
            None,
            heads,
            causal=True,
            residual="pre",
            norm="rms",
            layer_norm_epsilon=epsilon,
            key_dim=config["head_dim"],
            num_key_value_heads=config["num_key_value_heads"],
            use_sink=True,
            pattern=window,
            position=parts.rotary(config),
            feed_forward=experts(),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n, window in enumerate(parts.windows(config, types))
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
