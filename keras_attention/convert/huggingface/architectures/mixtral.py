"""Mixtral and Qwen3-MoE: Llama and Qwen 3 with experts, each of which has its own tensors."""

from keras_attention.convert.huggingface import entries, rope, stacks
from keras_attention.convert.huggingface.architectures import llama
from keras_attention.convert.huggingface.fields import count, ignored, off, only, read, same_as
from keras_attention.layers.mixture_of_experts import MixtureOfExperts
from keras_attention.layers.rms_norm import RMSNorm

_EXPERTS = {
    **llama.STACK,
    "output_router_logits": only(False),
    **ignored("of training", "router_aux_loss_coef router_jitter_noise"),
}


def _mixture(config, experts, size, normalize=True):
    return {
        "intermediate_dim": None,
        "gated": False,
        "feed_forward": MixtureOfExperts(
            config[experts],
            config["num_experts_per_tok"],
            config[size],
            activation=config["hidden_act"],
            gated=True,
            use_bias=False,
            normalize_weights=normalize,
            name="experts",
        ),
    }


def _mixtral(config, n):
    experts = _mixture(config, "num_local_experts", "intermediate_size")
    return {**llama.windowed(config, n), **experts}


def _qwen3(config, n):
    window = config["sliding_window"] if config["use_sliding_window"] else None
    options = {
        **llama.block(config, n),
        "qk_norm": RMSNorm(config["rms_norm_eps"]),
        "pattern": stacks.window(window),
    }
    if n in (config["mlp_only_layers"] or ()) or (n + 1) % config["decoder_sparse_step"]:
        return options
    normalize = config["norm_topk_prob"]
    return {**options, **_mixture(config, "num_experts", "moe_intermediate_size", normalize)}


ARCHITECTURES = {
    "mixtral": llama.architecture(
        {
            **_EXPERTS,
            **rope.fields(131072, theta=1000000.0),
            "num_key_value_heads": count(8),
            "rms_norm_eps": read(1e-5),
            "num_local_experts": count(8),
            "num_experts": same_as("num_local_experts"),
            "num_experts_per_tok": count(2),
            "sliding_window": count(None, int | None),
        },
        _mixtral,
        {
            **llama.NORMS,
            **llama.ATTENTION,
            "block_sparse_moe.gate": "feed_forward.router",
            "block_sparse_moe.experts": entries.experts(gate="w1", intermediate="w3", output="w2"),
        },
    ),
    "qwen3_moe": llama.architecture(
        {
            **_EXPERTS,
            **rope.fields(32768),
            "num_key_value_heads": count(4),
            "head_dim": count(None, int | None),
            "moe_intermediate_size": count(768),
            "num_experts": count(128),
            "num_local_experts": same_as("num_experts"),
            "num_experts_per_tok": count(8),
            "norm_topk_prob": read(False),
            "decoder_sparse_step": count(1),
            "mlp_only_layers": read(None, list | None),
            "use_sliding_window": read(False),
            "sliding_window": count(4096, int | None),
            "attention_bias": only(False),
            **off("mlp_bias"),
            **ignored("not read", "max_window_layers"),
        },
        _qwen3,
        {
            **llama.NORMS,
            **llama.ATTENTION,
            **llama.GATED,
            "mlp.gate": "feed_forward.router",
            "mlp.experts": entries.experts(
                gate="gate_proj", intermediate="up_proj", output="down_proj"
            ),
        },
    ),
}
