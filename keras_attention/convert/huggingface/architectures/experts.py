"""Experts beside Llama's parts: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, gpt-oss and DeepSeek-V3."""

import numpy as np

from keras_attention import positions
from keras_attention.convert.huggingface import entries, fields, rope, stacks
from keras_attention.convert.huggingface.architectures import llamas
from keras_attention.convert.huggingface.entries import Entry, part
from keras_attention.layers.blocks.feed_forward import MixtureOfExperts
from keras_attention.layers.latent_attention import MultiHeadLatentAttention

_EXPERTS = fields.fixed(output_router_logits=False)
_GATED = "gate_proj up_proj down_proj"


def mixture(config, **options):
    """The options of a block of gated experts, by the fields of how many and how large they are."""
    options = {"activation": config["hidden_act"], "use_bias": False, "gated": True, **options}
    names = "num_local_experts", "num_experts_per_tok", "moe_intermediate_size intermediate_size"
    layer = MixtureOfExperts(*(stacks.first(config, x) for x in names), name="experts", **options)
    return {"intermediate_dim": None, "gated": False, "feed_forward": layer}


def qwen3(config, n, **options):
    """Some layers have one network in the place of experts, which have further `options`."""
    if n in (config["mlp_only_layers"] or ()) or (n + 1) % config["decoder_sparse_step"]:
        return {}
    return mixture(config, normalize_weights=config["norm_topk_prob"], **options)


def _qwen2(config, n):
    shared, near = config["shared_expert_intermediate_size"], config["use_sliding_window"]
    first, size = config["max_window_layers"], config["sliding_window"] if near else None
    pattern = stacks.window_by_type(config, n, size, lambda n: near and n < first and not n % 2)
    options = qwen3(config, n, shared_dim=shared, use_shared_gate=True)
    return {**options, "use_bias": "qkv" if config["qkv_bias"] else False, "pattern": pattern}


MANY = _EXPERTS | fields.defaults(num_local_experts=fields.same_as("num_experts"))
MANY |= fields.defaults(norm_topk_prob=False)
_QWEN = llamas.stack(32768, decoder_sparse_step=1) | MANY | llamas.WINDOWS | fields.off("mlp_bias")
_QWEN |= fields.defaults(mlp_only_layers=fields.read(None, list | None))
_OF_EACH = {"mlp.gate": "feed_forward.router", "mlp.experts": entries.experts(_GATED)}
# With a network that all tokens use, which has a gate.
SHARED = llamas.GATED | _OF_EACH
SHARED |= entries.network(f"mlp.shared_expert. {_GATED}", "feed_forward.shared")
SHARED["mlp.shared_expert_gate"] = "feed_forward.shared_gate"


# gpt-oss has sinks, and windows in every other layer

# The positions of files that name none.
_YARN = dict(rope_type="yarn", factor=32.0, original_max_position_embeddings=4096, truncate=False)


@entries.layout
def _in_turn(name, owner, *roles):
    """Two projections of all experts, whose outputs take turns."""
    variables = tuple(part(owner, f"feed_forward.{role}") for role in roles)

    def join(arrays):
        return np.stack(arrays, axis=-1).reshape(*arrays[0].shape[:-1], -1)

    return [Entry(name, variables, lambda x: [x[..., ::2], x[..., 1::2]], join)]


# DeepSeek-V3 has latent attention, and experts in groups beside one that all tokens use

_DEEPSEEK = (
    llamas.stack(4096)
    | fields.nullable(num_key_value_heads=128, q_lora_rank=1536)
    | fields.defaults(head_dim=fields.count(None), kv_lora_rank=512, qk_rope_head_dim=64)
    | fields.defaults(qk_nope_head_dim=128, v_head_dim=128, moe_intermediate_size=2048, n_group=8)
    | fields.defaults(n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8)
    | fields.defaults(topk_group=4, routed_scaling_factor=2.5, norm_topk_prob=True)
    | fields.defaults(rope_interleave=True, attention_bias=False)
    | fields.defaults(num_local_experts=fields.same_as("n_routed_experts"))
    | fields.defaults(first_k_dense_replace=fields.read(3, least=0))
    # What the class has no other value for.
    | fields.fixed(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    | _EXPERTS
    | fields.ignored("of layers for further tokens", "num_nextn_predict_layers num_mtp_layers")
    | fields.ignored("the sum of two others", "qk_head_dim")
)


def _deepseek(config, n):
    heads, rotated = config["num_attention_heads"], config["qk_rope_head_dim"]
    config.require("num_key_value_heads", None, heads)
    config.require("head_dim", None, rotated)
    layout = "interleaved" if config["rope_interleave"] else "half_split"
    position = rope.rotary(config, rotated, layout=layout).get_config()
    attention = MultiHeadLatentAttention(
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
    )
    options = {"use_bias": False, "attention": attention}
    if n < config["first_k_dense_replace"]:
        return options
    experts = mixture(
        config,
        normalize_weights=config["norm_topk_prob"],
        scoring="sigmoid",
        use_correction_bias=True,
        num_groups=config["n_group"],
        top_groups=config["topk_group"],
        scale=config["routed_scaling_factor"],
        shared_dim=config["moe_intermediate_size"] * config["n_shared_experts"],
    )
    return {**options, **experts}


@entries.layout
def _rotated_first(name, owner, path, of_latent=None):
    """A projection whose rotated features, the last ones of each head, are the first of ours.

    With `of_latent`, it is that of queries of a latent, or of those of the input.
    """
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

    axes, weights = len(dense.kernel.shape) - 1, {"weight": dense.kernel, "bias": dense.bias}
    found = {kind: variable for kind, variable in weights.items() if variable is not None}
    return [Entry(f"{name}.{kind}", (x,), split, join) for kind, x in found.items()]


ARCHITECTURES = {
    "mixtral": llamas.llama(
        llamas.stack(131072, theta=1e6, rms_norm_eps=1e-5, num_key_value_heads=8)
        | _EXPERTS
        | fields.defaults(num_local_experts=8, num_experts_per_tok=2)
        | fields.defaults(num_experts=fields.same_as("num_local_experts"))
        | fields.nullable(sliding_window=None),
        lambda config, n: mixture(config),
        llamas.BRANCHES
        | {
            "block_sparse_moe.gate": "feed_forward.router",
            "block_sparse_moe.experts": entries.experts("w1 w3 w2"),
        },
    ),
    "qwen3_moe": llamas.llama(
        _QWEN
        | fields.defaults(num_key_value_heads=4, attention_bias=fields.only(False))
        | fields.defaults(moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8)
        | fields.ignored("not read", "max_window_layers"),
        lambda config, n: {**llamas.qk_normed(config, n), **qwen3(config, n)},
        llamas.BRANCHES | llamas.GATED | _OF_EACH,
    ),
    "qwen2_moe": llamas.llama(
        _QWEN
        | llamas.TYPES
        | fields.nullable(num_key_value_heads=16)
        | fields.defaults(moe_intermediate_size=1408, num_experts=60, num_experts_per_tok=4)
        | fields.defaults(shared_expert_intermediate_size=5632, qkv_bias=True)
        # 0 where windows are not used.
        | fields.defaults(sliding_window=fields.read(4096, int | None, least=0))
        | fields.defaults(max_window_layers=fields.read(28)),
        _qwen2,
        llamas.BRANCHES | SHARED,
    ),
    # Norms of queries and keys are over all heads; the weights of experts are as they are.
    "olmoe": llamas.llama(
        llamas.OLMO
        | MANY
        | fields.defaults(num_experts=64, num_experts_per_tok=8, max_position_embeddings=4096)
        # It clips what the norms return.
        | fields.fixed(clip_qkv=None),
        lambda config, n: {
            **llamas.olmo_normed(config, n),
            **mixture(config, normalize_weights=config["norm_topk_prob"]),
        },
        llamas.BRANCHES | _OF_EACH,
    ),
    "gpt_oss": llamas.llama(
        fields.LANGUAGE
        | rope.fields(131072, theta=150000.0)
        | llamas.TYPES
        | _EXPERTS
        | fields.defaults(num_local_experts=128, num_experts_per_tok=4, swiglu_limit=7.0)
        | fields.defaults(num_key_value_heads=8, head_dim=64, rms_norm_eps=1e-5)
        | fields.defaults(num_experts=fields.same_as("num_local_experts"))
        | fields.defaults(tie_word_embeddings=False)
        | fields.nullable(sliding_window=128)
        # `swiglu_alpha` is the slope of `quick_gelu`.
        | fields.fixed(hidden_act="silu", swiglu_alpha=1.702, attention_bias=True)
        | fields.ignored("not read", "experts_per_token initial_context_length"),
        lambda config, n: mixture(
            config, activation="quick_gelu", use_bias=True, limit=config["swiglu_limit"], offset=1.0
        ),
        llamas.BRANCHES
        | {
            "self_attn.sinks": "attention.sink",
            "mlp.router": "feed_forward.router",
            "mlp.experts.gate_up_proj": _in_turn("gate_kernel", "intermediate_kernel"),
            "mlp.experts.gate_up_proj_bias": _in_turn("gate_bias", "intermediate_bias"),
            "mlp.experts.down_proj": "feed_forward.output_kernel",
            "mlp.experts.down_proj_bias": "feed_forward.output_bias",
        },
        rotary={"default": _YARN},
        activation="relu",  # Of a feed-forward network, which the experts replace.
        use_sink=True,
    ),
    "deepseek_v3": llamas.llama(
        _DEEPSEEK,
        _deepseek,
        llamas.NORMS
        | llamas.GATED
        | entries.network(f"mlp.shared_experts. {_GATED}", "feed_forward.shared")
        | {
            "self_attn.q_proj": _rotated_first("attention.query_dense", of_latent=False),
            "self_attn.q_b_proj": _rotated_first("attention.query_dense", of_latent=True),
            "self_attn.q_a_proj": "attention.query_latent_dense",
            "self_attn.q_a_layernorm": "attention.query_latent_norm",
            "self_attn.kv_a_proj_with_mqa": _rotated_first("attention.latent_dense"),
            "self_attn.kv_a_layernorm": "attention.latent_norm",
            "self_attn.kv_b_proj": entries.by_head("attention.num_heads", entries.HEADS[1:]),
            "self_attn.o_proj": "attention.output_dense",
            "mlp.gate": "feed_forward.router",
            "mlp.gate.e_score_correction_bias": "feed_forward.correction_bias",
            "mlp.experts": entries.experts(_GATED),
        },
        # Of the published model; `transformers` does not read it either.
        unread={r"layers\.61\..*": "a layer that predicts a further token"},
    ),
}
