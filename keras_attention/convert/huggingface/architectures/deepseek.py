"""DeepSeek-V3: latent attention, and experts in groups beside one that all tokens use."""

import dataclasses

import numpy as np

from keras_attention import positions
from keras_attention.convert.huggingface import entries, rope
from keras_attention.convert.huggingface.architectures import llama
from keras_attention.convert.huggingface.entries import Entry, part
from keras_attention.convert.huggingface.fields import count, ignored, only, read, same_as
from keras_attention.layers.latent_attention import MultiHeadLatentAttention
from keras_attention.layers.mixture_of_experts import MixtureOfExperts

FIELDS = {
    **llama.STACK,
    **rope.fields(4096),
    "num_key_value_heads": count(128, int | None),
    "head_dim": count(None),
    "moe_intermediate_size": count(2048),
    "n_shared_experts": count(1),
    "n_routed_experts": count(256),
    "num_local_experts": same_as("n_routed_experts"),
    "routed_scaling_factor": read(2.5),
    "kv_lora_rank": count(512),
    "q_lora_rank": count(1536, int | None),
    "qk_rope_head_dim": count(64),
    "qk_nope_head_dim": count(128),
    "v_head_dim": count(128),
    "n_group": count(8),
    "topk_group": count(4),
    "num_experts_per_tok": count(8),
    "first_k_dense_replace": read(3, least=0),
    "norm_topk_prob": read(True),
    "rope_interleave": read(True),
    "attention_bias": read(False),
    "output_router_logits": only(False),
    # What the class has no other value for.
    "scoring_func": only("sigmoid"),
    "topk_method": only("noaux_tc"),
    "moe_layer_freq": only(1),
    **ignored("of training", "aux_loss_alpha seq_aux ep_size"),
    **ignored("of layers that predict further tokens", "num_nextn_predict_layers num_mtp_layers"),
    **ignored("the sum of two others", "qk_head_dim"),
}


def _block(config, n):
    heads, rotated = config["num_attention_heads"], config["qk_rope_head_dim"]
    config.require("num_key_value_heads", None, heads)
    config.require("head_dim", None, rotated)
    layout = "interleaved" if config["rope_interleave"] else "half_split"
    position = rope.rotary(config, rotated, layout=layout).get_config()
    options = {
        "intermediate_dim": config["intermediate_size"],
        "num_heads": heads,
        "activation": config["hidden_act"],
        "gated": True,
        "use_bias": False,
        "norm": "rms",
        "layer_norm_epsilon": config["rms_norm_eps"],
        "attention": MultiHeadLatentAttention(
            heads,
            config["qk_nope_head_dim"],
            rotated,
            config["kv_lora_rank"],
            config["v_head_dim"],
            config["q_lora_rank"],
            rope.scale(config, config["qk_nope_head_dim"] + rotated),
            positions.Rotary(**{**position, "dim": rotated}),
            use_bias=config["attention_bias"],
            name="attention",
        ),
    }
    if n < config["first_k_dense_replace"]:
        return options
    mixture = MixtureOfExperts(
        config["n_routed_experts"],
        config["num_experts_per_tok"],
        config["moe_intermediate_size"],
        config["hidden_act"],
        gated=True,
        use_bias=False,
        normalize_weights=config["norm_topk_prob"],
        scoring="sigmoid",
        use_correction_bias=True,
        num_groups=config["n_group"],
        top_groups=config["topk_group"],
        scale=config["routed_scaling_factor"],
        shared_dim=config["moe_intermediate_size"] * config["n_shared_experts"],
        name="experts",
    )
    return {**options, "intermediate_dim": None, "gated": False, "feed_forward": mixture}


def _rotated_first(path, of_latent=None):
    """A projection whose rotated features, the last ones of each head, are the first of ours.

    With `of_latent`, it is that of queries of a latent, or of those of the input.
    """

    def find(name, owner):
        attention, dense = owner.attention, part(owner, path)
        if of_latent is not None and of_latent != (attention.query_latent_dim is not None):
            return []
        size, rotated = dense.kernel.shape[-1], attention.rope_dim

        def split(x):
            heads = x.reshape(-1, size, *x.shape[1:])
            return [np.roll(np.moveaxis(heads, (0, 1), (-2, -1)), rotated, axis=-1)]

        def join(arrays):
            heads = np.roll(arrays[0], -rotated, axis=-1)
            return heads.reshape(*heads.shape[: heads.ndim - axes], -1).T

        axes = len(dense.kernel.shape) - 1
        found = [Entry(f"{name}.weight", (dense.kernel,), split, join)]
        if dense.bias is not None:
            found.append(Entry(f"{name}.bias", (dense.bias,), split, join))
        return found

    return find


_SHARED = {
    f"mlp.shared_experts.{name}": f"feed_forward.shared.{layer}"
    for name, layer in (
        ("gate_proj", "gate_dense"),
        ("up_proj", "intermediate_dense"),
        ("down_proj", "output_dense"),
    )
}
_V3 = llama.architecture(
    FIELDS,
    _block,
    {
        **llama.NORMS,
        **llama.GATED,
        "self_attn.q_proj": _rotated_first("attention.query_dense", of_latent=False),
        "self_attn.q_b_proj": _rotated_first("attention.query_dense", of_latent=True),
        "self_attn.q_a_proj": "attention.query_latent_dense",
        "self_attn.q_a_layernorm": "attention.query_latent_norm",
        "self_attn.kv_a_proj_with_mqa": _rotated_first("attention.latent_dense"),
        "self_attn.kv_a_layernorm": "attention.latent_norm",
        "self_attn.kv_b_proj": entries.by_head(
            "attention.num_heads", ("attention.key_dense", "attention.value_dense")
        ),
        "self_attn.o_proj": "attention.output_dense",
        "mlp.gate": "feed_forward.router",
        "mlp.gate.e_score_correction_bias": "feed_forward.correction_bias",
        "mlp.experts": entries.experts(
            gate="gate_proj", intermediate="up_proj", output="down_proj"
        ),
        **_SHARED,
    },
)
# Of the published model; `transformers` does not read it either.
_FURTHER = {r"layers\.61\..*": "a layer that predicts a further token"}
ARCHITECTURES = {
    "deepseek_v3": dataclasses.replace(_V3, unread={**_V3.unread, **_FURTHER}),
}
