"""Decoders some of whose layers attend through a state, and others to all tokens: Qwen3-Next."""

import numpy as np

from keras_attention.convert.huggingface import entries, fields, rope, stacks
from keras_attention.convert.huggingface.architectures import experts, llamas
from keras_attention.convert.huggingface.entries import Entry
from keras_attention.layers.blocks.norms import RMSNorm
from keras_attention.layers.linear_time.gated_states import GatedDeltaNet
from keras_attention.layers.multi_head_attention import MultiHeadAttention

_FIELDS = (
    llamas.stack(
        32768, partial_rotary_factor=0.25, decoder_sparse_step=1, hidden_act=fields.only("silu")
    )
    | experts.MANY
    | llamas.TYPES
    | fields.defaults(num_key_value_heads=2, head_dim=256, attention_bias=False)
    | fields.defaults(linear_num_key_heads=16, linear_num_value_heads=32)
    | fields.defaults(linear_key_head_dim=128, linear_value_head_dim=128)
    | fields.defaults(linear_conv_kernel_dim=fields.read(4, least=2), full_attention_interval=4)
    | fields.defaults(mlp_only_layers=fields.read(None, list | None), norm_topk_prob=True)
    | fields.defaults(moe_intermediate_size=512, num_experts=512, num_experts_per_tok=10)
    | fields.defaults(shared_expert_intermediate_size=512)
    | fields.off("mlp_bias use_sliding_window sliding_window")
)


def _block(config, n):
    """The norms multiply by 1 + weight, but for those of the outputs of a delta net."""
    linear = stacks.layer_types(config, other="linear_attention")[n] == "linear_attention"
    shared = {"shared_dim": config["shared_expert_intermediate_size"], "use_shared_gate": True}
    return {
        "norm": _norm(config),
        "use_bias": False,
        "attention": (_delta_net if linear else _gated_attention)(config),
        **experts.qwen3(config, n, **shared),
    }


def _norm(config, offset=1.0):
    return RMSNorm(config["rms_norm_eps"], offset=offset)


def _delta_net(config):
    keys, values = (config[f"linear_num_{role}_heads"] for role in ("key", "value"))
    if values % keys:
        config.refuse("linear_num_value_heads", f"a multiple of {keys} key heads", values)
    return GatedDeltaNet(
        values,
        config["linear_key_head_dim"],
        config["linear_value_head_dim"],
        num_key_heads=keys,
        conv_kernel_size=config["linear_conv_kernel_dim"],
        epsilon=1e-6,
        head_norm=_norm(config, offset=0.0),
        use_bias=False,
        name="attention",
    )


def _gated_attention(config):
    size = stacks.head_size(config)
    return MultiHeadAttention(
        config["num_attention_heads"],
        size,
        num_key_value_heads=config["num_key_value_heads"],
        use_bias=config["attention_bias"],
        use_gate=True,
        qk_norm=_norm(config),
        position=rope.rotary(config, size, fraction="partial_rotary_factor"),
        name="attention",
    )


@entries.layout
def _convolutions(name, owner, path):
    """The kernels of queries, keys and values, (size, H, K), in one tensor (features, 1, size)."""
    kernels = entries.part(owner, path)
    ends = np.cumsum([np.prod(kernel.shape[1:]) for kernel in kernels])[:-1]

    def join(arrays):
        return np.concatenate([x.reshape(len(x), -1) for x in arrays], axis=1).T[:, None]

    return [Entry(name, tuple(kernels), lambda x: np.split(x[:, 0].T, ends, axis=1), join)]


# Heads take turns: in each key head, what is of its values too.
_GATED_ATTENTION = llamas.ATTENTION | {
    "self_attn.q_proj": entries.by_head(
        "attention.num_heads", ("attention.query_dense", "attention._gate_dense")
    )
}
_DELTA_NET = {
    "linear_attn.in_proj_qkvz": entries.by_head(
        "attention.num_key_heads", (*entries.HEADS, "attention._gate_dense")
    ),
    "linear_attn.in_proj_ba": entries.by_head(
        "attention.num_key_heads", ("attention._rate_dense", "attention._decay_dense")
    ),
    "linear_attn.conv1d.weight": _convolutions("attention.conv_kernels"),
    "linear_attn.A_log": "attention.decay_scale",
    "linear_attn.dt_bias": "attention.decay_bias",
    "linear_attn.norm": "attention.head_norm_layer",
    "linear_attn.out_proj": "attention.output_dense",
}


def _attention(name, block):
    linear = isinstance(block.attention, GatedDeltaNet)
    return entries.of(_DELTA_NET if linear else _GATED_ATTENTION, block, name)


ARCHITECTURES = {
    "qwen3_next": llamas.llama(
        _FIELDS,
        _block,
        {"": _attention, **llamas.NORMS, **experts.SHARED},
        unread={r"mtp\..*": "of layers that predict further tokens"},
    ),
}
