"""Decoders of GPT's kind: GPT-2, GPT-J, GPT-NeoX (Pythia), Falcon, BLOOM, MPT, OPT, Phi 1 and 2.

Most have LayerNorms, biases, and a feed-forward network without a gate.
"""

import keras

from keras_attention import positions, scores
from keras_attention.convert.huggingface import architecture, entries, fields, rope, stacks
from keras_attention.convert.huggingface.stacks import language_model
from keras_attention.layers.multi_head_attention import MultiHeadAttention

_GPT = (
    fields.COMMON
    | fields.renamed("n_embd n_layer n_head")
    | fields.needs("vocab_size")
    | fields.nullable(n_inner=None)
    | fields.defaults(activation_function="gelu_new", layer_norm_epsilon=1e-5)
    | fields.SUMMARY
)


def _gpt2(config, n):
    scale = stacks.head_size(config) ** -0.5 if config["scale_attn_weights"] else 1.0
    by_layer = config["scale_attn_by_inverse_layer_idx"]
    return {"score": scores.ScaledDot(scale / (n + 1) if by_layer else scale)}


def _gptj(config, n):
    """Its attention has no biases."""
    heads, size = config["n_head"], stacks.head_size(config)
    rotary = positions.Rotary(dim=config["rotary_dim"], layout="interleaved")
    attention = MultiHeadAttention(heads, size, use_bias=False, position=rotary, name="attention")
    return {"attention": attention}


def _falcon(config, n):
    """7B has one head of keys, 40B groups of heads, and others neither."""
    grouped, heads = config["new_decoder_architecture"], config["num_attention_heads"]
    if grouped:
        config.require("parallel_attn", True)
    elif not config["multi_query"]:
        config.require("num_kv_heads", None, heads)
    norms = config.require("num_ln_in_parallel_attn", None, 1, *((2,) if grouped else ()))
    norm = {} if grouped and norms != 1 else {"feed_forward": "shared"}
    one = config["multi_query"] and not grouped
    return {
        "residual": "parallel" if config["parallel_attn"] else "pre",
        "norm": norm if config["parallel_attn"] else "layer",
        "num_key_value_heads": 1 if one else config["num_kv_heads"] or heads,
    }


def _falcon_norms(name, block):
    names = "ln_attn ln_mlp"
    if block.attention_norm is block.feed_forward_norm:
        names = "input_layernorm"
    elif block.residual == "pre":
        names = "input_layernorm post_attention_layernorm"
    return entries.of(entries.norms(names), block, name)


def _mpt(config, n):
    given = config["attn_config"]
    return {
        "norm": stacks.norm(config, center=False),
        "score": scores.ScaledDot(given["softmax_scale"]),
        "position": positions.ALiBi(float(given["alibi_bias_max"])),
        "clip_qkv": given["clip_qkv"] or None,
    }


_MPT_ATTENTION = (
    fields.COMMON
    # The value that `transformers` uses of the last: it does not read this field.
    | fields.fixed(alibi=True, attn_type="multihead_attention", alibi_bias_max=8)
    | fields.fixed(qk_ln=False, prefix_lm=False, attn_uses_sequence_id=False)
    # Of the first 0 and null mean no limit.
    | fields.each("clip_qkv softmax_scale", fields.read(None, float | None))
    | fields.ignored("of the program that runs the model", "attn_impl")
)


def _opt_further(config):
    """The embeddings of 350m are smaller than its blocks, and projected on both sides."""
    size, length = config["hidden_size"], config["max_position_embeddings"]
    tokens = config["word_embed_proj_dim"] or size
    if not (config.architecture or "").endswith("LM"):
        # Without its head, our model would return the states before the projection.
        config.require("word_embed_proj_dim", size, None)
    into, out_of = (
        None if tokens == size else keras.layers.Dense(features, use_bias=False, name=name)
        for features, name in ((size, "project_in"), (tokens, "project_out"))
    )
    given = {"size": tokens, "positions": stacks.positions(length), "token_projection": into}
    normed = config["do_layer_norm_before"] and not config["_remove_final_layer_norm"]
    norm = stacks.layer_norm(1e-5, "final_norm") if normed else None
    return {"embeddings": given, "final_norm": norm, "logits": {"transform": out_of}}


_BIASED = {"further": lambda config: {"logits": {"use_bias": True}}}
# Of models whose branches have one norm.
_PARALLEL = {"residual": "parallel", "norm": {"feed_forward": "shared"}}
_GPT2 = entries.block("ln_1 ln_2", "attn. c_attn c_proj", "mlp. c_fc c_proj")
_NEOX_ROPE = rope.fields(2048)
del _NEOX_ROPE["partial_rotary_factor"]
# The names of both norms in BLOOM and GPT-NeoX, and of what is in their feed-forward networks.
_NORMS, _NETWORK = "input_layernorm post_attention_layernorm", "mlp. dense_h_to_4h dense_4h_to_h"
_BY_HEAD = entries.by_head("attention.num_heads")
ARCHITECTURES = {
    "gpt2": language_model(
        _GPT
        | fields.renamed("n_positions", "max_position_embeddings")
        | fields.defaults(scale_attn_weights=True, tie_word_embeddings=True)
        | fields.defaults(scale_attn_by_inverse_layer_idx=False)
        | fields.ignored("the order of a product and a cast", "reorder_and_upcast_attn")
        | fields.ignored("an older name of `n_positions`, which is not read", "n_ctx")
        | fields.ignored("of GPT, and not read", "n_special predict_special_tokens"),
        "transformer. wte h ln_f",
        # Its matrices are stored as (inputs, outputs).
        {name: entries.transposed(what) for name, what in _GPT2.items()},
        _gpt2,
        further=lambda config: {
            "embeddings": {"positions": stacks.positions(config["n_positions"])}
        },
        others={"wpe.weight": "embeddings.positions.embeddings"},
        unread=architecture.causal(r"(attn|crossattention)"),
    ),
    "gptj": language_model(
        _GPT
        | fields.defaults(rotary_dim=64, tie_word_embeddings=False)
        # `transformers` computes this whatever the fields contain.
        | fields.each("rotary scale_attn_weights", fields.only(True, None))
        | fields.ignored("positions are computed", "n_positions max_position_embeddings"),
        "transformer. wte h ln_f",
        entries.block("ln_1", "attn. q_proj k_proj v_proj out_proj", "mlp. fc_in fc_out"),
        _gptj,
        unread=architecture.causal("attn"),
        **_PARALLEL,
        **_BIASED,
    ),
    "gpt_neox": language_model(
        fields.LANGUAGE
        | _NEOX_ROPE
        | fields.defaults(rotary_emb_base=10000.0, rotary_pct=0.25, layer_norm_eps=1e-5)
        | fields.defaults(use_parallel_residual=True, tie_word_embeddings=False, hidden_act="gelu")
        | fields.fixed(attention_bias=True),
        "gpt_neox. embed_in layers final_layer_norm",
        entries.block(_NORMS, "attention. query_key_value dense", _NETWORK, _BY_HEAD),
        lambda config, n: {"residual": "parallel" if config["use_parallel_residual"] else "pre"},
        rotary={"fraction": "rotary_pct", "base": "rotary_emb_base"},
        head="embed_out",
        unread=architecture.causal("attention"),
    ),
    "phi": language_model(
        fields.LANGUAGE
        | rope.fields(2048)
        | fields.defaults(partial_rotary_factor=0.5, layer_norm_eps=1e-5, qk_layernorm=False)
        | fields.defaults(tie_word_embeddings=False, hidden_act="gelu_new")
        | fields.nullable(num_key_value_heads=None),
        "model. embed_tokens layers final_layernorm",
        entries.block("input_layernorm", "self_attn. q_proj k_proj v_proj dense", "mlp. fc1 fc2")
        | entries.qk_norms("self_attn. q_layernorm k_layernorm"),
        lambda config, n: {"qk_norm": stacks.norm(config) if config["qk_layernorm"] else False},
        rotary={"fraction": "partial_rotary_factor"},
        **_PARALLEL,
        **_BIASED,
    ),
    "falcon": language_model(
        fields.COMMON
        | rope.fields(2048)
        | fields.needs("vocab_size hidden_size num_hidden_layers num_attention_heads")
        | fields.defaults(n_embed=fields.same_as("hidden_size"), activation="gelu", bias=False)
        | fields.defaults(layer_norm_epsilon=1e-5, new_decoder_architecture=False)
        | fields.defaults(multi_query=True, parallel_attn=True, tie_word_embeddings=True)
        | fields.fixed(ff_factor=(4, None))
        | fields.nullable(num_kv_heads=None, ffn_hidden_size=None, num_ln_in_parallel_attn=None)
        # Its own code rounds the penalties of ALiBi to bfloat16.
        | fields.fixed(alibi=False)
        | fields.off("apply_residual_connection_post_layernorm")
        # When it returns them, its code loses the causal mask that PyTorch's kernel applies.
        | fields.off("output_attentions"),
        "transformer. word_embeddings h ln_f",
        {"": _falcon_norms}
        | entries.attention(
            "self_attention. query_key_value dense",
            heads=entries.by_head("attention.num_key_value_heads"),
        )
        | entries.network(_NETWORK),
        _falcon,
    ),
    "bloom": language_model(
        fields.COMMON
        | fields.renamed("n_layer n_head", "num_hidden_layers num_attention_heads")
        | fields.needs("vocab_size hidden_size")
        # The name in older files.
        | fields.defaults(n_embed=fields.same_as("hidden_size"))
        | fields.defaults(layer_norm_epsilon=1e-5, tie_word_embeddings=True)
        # The last with `pretraining_tp` above 1 sums parts of products, without the biases.
        | fields.fixed(apply_residual_connection_post_layernorm=False, slow_but_exact=False)
        | fields.ignored("not read", "n_inner seq_length"),
        "transformer. word_embeddings h ln_f",
        entries.block(_NORMS, "self_attention. query_key_value dense", _NETWORK, _BY_HEAD),
        further=lambda config: {"embeddings": {"norm": stacks.norm(config)}},
        others={"word_embeddings_layernorm": "embeddings.norm"},
        activation="gelu_tanh",
        position="alibi",
    ),
    "mpt": language_model(
        fields.COMMON
        | fields.renamed("d_model n_layers n_heads")
        | fields.needs("vocab_size")
        | fields.defaults(attn_config=fields.part(_MPT_ATTENTION), layer_norm_epsilon=1e-5)
        | fields.defaults(tie_word_embeddings=True)
        # `transformers` computes this whatever the fields contain.
        | fields.fixed(expansion_ratio=4, no_bias=True, logit_scale=None)
        | fields.fixed(norm_type="low_precision_layernorm")
        | fields.ignored("of texts that are longer, which are computed here", "max_seq_len")
        | fields.ignored("of the program that trained it", "verbose init_device init_config")
        | fields.ignored("of the gradient of embeddings", "embedding_fraction")
        | fields.ignored("of models without ALiBi", "learned_pos_emb"),
        "transformer. wte blocks norm_f",
        entries.block("norm_1 norm_2", "attn. Wqkv out_proj", "ffn. up_proj down_proj"),
        _mpt,
        activation="gelu",
        use_bias=False,
    ),
    "opt": language_model(
        fields.COMMON
        | fields.needs("vocab_size hidden_size ffn_dim num_hidden_layers num_attention_heads")
        | fields.needs("max_position_embeddings")
        | fields.nullable(word_embed_proj_dim=None)
        | fields.defaults(activation_function="relu", do_layer_norm_before=True, enable_bias=True)
        | fields.defaults(_remove_final_layer_norm=False, tie_word_embeddings=True)
        | fields.fixed(layer_norm_elementwise_affine=True),
        "model. decoder.embed_tokens decoder.layers decoder.final_layer_norm",
        entries.block(
            "self_attn_layer_norm final_layer_norm",
            "self_attn. q_proj k_proj v_proj out_proj",
            "fc1 fc2",
        ),
        lambda config, n: {"residual": "pre" if config["do_layer_norm_before"] else "post"},
        further=_opt_further,
        others={
            # Two rows of the table are before that of position 0.
            "decoder.embed_positions.weight": entries.rows("embeddings.positions.embeddings", 2),
            "decoder.project_in": "embeddings.token_projection",
            "decoder.project_out": "logits.transform",
        },
    ),
}
