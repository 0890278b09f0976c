"""gpt-oss: experts, sinks, and windows in every other layer."""

import numpy as np

from keras_attention.convert.huggingface import fields, rope, stacks
from keras_attention.convert.huggingface.architectures import llama
from keras_attention.convert.huggingface.entries import Entry, part
from keras_attention.convert.huggingface.fields import count, ignored, only, read, same_as
from keras_attention.layers.mixture_of_experts import MixtureOfExperts

FIELDS = {
    **fields.LANGUAGE,
    **rope.fields(131072, theta=150000.0),
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
# The positions of files that name none.
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


def _block(config, n):
    layers = range(config["num_hidden_layers"])
    default = ["full_attention" if n % 2 else "sliding_attention" for n in layers]
    types = stacks.layer_types(config, default)
    return {
        "intermediate_dim": None,
        "num_heads": config["num_attention_heads"],
        "norm": "rms",
        "layer_norm_epsilon": config["rms_norm_eps"],
        "key_dim": config["head_dim"],
        "num_key_value_heads": config["num_key_value_heads"],
        "use_sink": True,
        "pattern": stacks.window_by_type(config, types, n, config["sliding_window"]),
        "position": rope.rotary(config, config["head_dim"], default=_YARN),
        "feed_forward": MixtureOfExperts(
            config["num_local_experts"],
            config["num_experts_per_tok"],
            config["intermediate_size"],
            activation="quick_gelu",
            gated=True,
            limit=config["swiglu_limit"],
            offset=1.0,
            name="experts",
        ),
    }


def _in_turn(*paths):
    """Two projections of all experts, whose outputs take turns."""
    return lambda name, owner: [
        Entry(
            name,
            tuple(part(owner, path) for path in paths),
            lambda x: [x[..., ::2], x[..., 1::2]],
            lambda arrays: np.stack(arrays, axis=-1).reshape(*arrays[0].shape[:-1], -1),
        )
    ]


ARCHITECTURES = {
    "gpt_oss": llama.architecture(
        FIELDS,
        _block,
        {
            **llama.NORMS,
            **llama.ATTENTION,
            "self_attn.sinks": "attention.sink",
            "mlp.router": "feed_forward.router",
            "mlp.experts.gate_up_proj": _in_turn(
                "feed_forward.gate_kernel", "feed_forward.intermediate_kernel"
            ),
            "mlp.experts.gate_up_proj_bias": _in_turn(
                "feed_forward.gate_bias", "feed_forward.intermediate_bias"
            ),
            "mlp.experts.down_proj": "feed_forward.output_kernel",
            "mlp.experts.down_proj_bias": "feed_forward.output_bias",
        },
    )
}
