"""Decoder-only models: what they compute, generate, save and write."""

import pytest

from tests.convert.huggingface import folders
from tests.convert.huggingface.folders import MASKS, VOCABULARY, tokens, transformers

SIZES = {
    "vocab_size": VOCABULARY,
    **dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4),
    **dict(max_position_embeddings=512),
}
LLAMA = {**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False}
LLAMA3 = {
    **dict(rope_type="llama3", rope_theta=1000.0, factor=4.0, low_freq_factor=1.0),
    **dict(high_freq_factor=4.0, original_max_position_embeddings=16),
}
YARN = {
    **dict(rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=16)
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
OPT = {**SIZES, "ffn_dim": 48, "intermediate_size": None}
# Six heads: their slopes are not one power of another.
BLOOM = {"vocab_size": VOCABULARY, "hidden_size": 36, "n_layer": 2, "n_head": 6}
MPT = {"vocab_size": VOCABULARY, "d_model": 36, "n_layers": 2, "n_heads": 6}
FALCON = {**SIZES, "intermediate_size": None, "ffn_hidden_size": 48}
NEOX = {**SIZES, "hidden_size": 64}
GEMMA = {
    **SIZES,
    **dict(num_hidden_layers=3, num_key_value_heads=2, head_dim=12, query_pre_attn_scalar=20),
    **dict(sliding_window=4),
}
LONG = {
    **dict(rope_type="longrope", rope_theta=1000.0, short_factor=[1.0, 1.5, 2.0, 2.5]),
    **dict(long_factor=[2.0, 3.0, 5.0, 7.0]),
}
PHI3 = {**SIZES, "num_key_value_heads": 2, "pad_token_id": 0}
OSS = {
    **SIZES,
    **dict(num_key_value_heads=2, head_dim=12, sliding_window=4, num_local_experts=8),
    **dict(num_experts_per_tok=3, swiglu_limit=0.7),
}
GROUPS = {**SIZES, "num_key_value_heads": 2, "pad_token_id": 0}
MIXTURE = {**GROUPS, "num_experts_per_tok": 2}
DEEPSEEK = {
    **SIZES,
    **dict(num_key_value_heads=4, pad_token_id=0, moe_intermediate_size=12, n_routed_experts=8),
    **dict(num_experts_per_tok=3, n_group=4, topk_group=2, kv_lora_rank=12, qk_nope_head_dim=6),
    **dict(qk_rope_head_dim=4, v_head_dim=5),
}
MSCALE = {
    **dict(rope_type="yarn", rope_theta=1000.0, factor=4.0, mscale=1.0, mscale_all_dim=0.7),
    **dict(original_max_position_embeddings=16),
}
MODELS = {
    "llama": (transformers.LlamaForCausalLM, LLAMA),
    "llama with biases": (
        transformers.LlamaForCausalLM,
        {
            **LLAMA,
            **dict(attention_bias=True, mlp_bias=True, head_dim=12, tie_word_embeddings=True),
        },
    ),
    "llama 3.1": (transformers.LlamaForCausalLM, {**LLAMA, "rope_parameters": LLAMA3}),
    "llama, linear": (
        transformers.LlamaForCausalLM,
        {**LLAMA, "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}},
    ),
    "llama, yarn": (transformers.LlamaForCausalLM, {**LLAMA, "rope_parameters": YARN}),
    "mistral": (transformers.MistralForCausalLM, {**LLAMA, "sliding_window": 4}),
    "qwen 2": (transformers.Qwen2ForCausalLM, LLAMA),
    "qwen 2, windows": (
        transformers.Qwen2ForCausalLM,
        {**LLAMA, "sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen 3": (
        transformers.Qwen3ForCausalLM,
        {**LLAMA, "head_dim": 12, "tie_word_embeddings": True},
    ),
    "gpt2": (transformers.GPT2LMHeadModel, GPT2),
    "gpt2, other options": (
        transformers.GPT2LMHeadModel,
        {
            **GPT2,
            **dict(scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False, n_inner=24),
            **dict(activation_function="relu", tie_word_embeddings=False),
        },
    ),
    "opt": (transformers.OPTForCausalLM, OPT),
    "opt, other options": (
        transformers.OPTForCausalLM,
        {**OPT, "enable_bias": False, "do_layer_norm_before": False},
    ),
    "opt, 350m": (
        transformers.OPTForCausalLM,
        {**OPT, "word_embed_proj_dim": 20, "do_layer_norm_before": False},
    ),
    "gpt_neox": (transformers.GPTNeoXForCausalLM, NEOX),
    "gpt_neox, other options": (
        transformers.GPTNeoXForCausalLM,
        {**NEOX, "use_parallel_residual": False, "tie_word_embeddings": True},
    ),
    "phi": (transformers.PhiForCausalLM, SIZES),
    "phi, tied": (transformers.PhiForCausalLM, {**SIZES, "tie_word_embeddings": True}),
    "phi, other options": (
        transformers.PhiForCausalLM,
        {**SIZES, "qk_layernorm": True, "num_key_value_heads": 2},
    ),
    "falcon": (transformers.FalconForCausalLM, FALCON),
    "falcon, groups": (
        transformers.FalconForCausalLM,
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "falcon, groups and one norm": (
        transformers.FalconForCausalLM,
        {
            **FALCON,
            **dict(new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1),
        },
    ),
    "falcon, neither": (
        transformers.FalconForCausalLM,
        {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "bloom": (transformers.BloomForCausalLM, BLOOM),
    "mpt": (transformers.MptForCausalLM, MPT),
    "mpt, clipped": (transformers.MptForCausalLM, {**MPT, "attn_config": {"clip_qkv": 0.5}}),
    "gemma 2": (transformers.Gemma2ForCausalLM, GEMMA),
    "gemma 2, other options": (
        transformers.Gemma2ForCausalLM,
        {
            **GEMMA,
            "tie_word_embeddings": False,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gemma 3": (
        transformers.Gemma3ForCausalLM,
        {**GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "gpt-oss": (transformers.GptOssForCausalLM, OSS),
    "gemma 1": (transformers.GemmaForCausalLM, {**GROUPS, "head_dim": 12}),
    "starcoder2": (transformers.Starcoder2ForCausalLM, {**GROUPS, "sliding_window": 4}),
    "starcoder2, other options": (
        transformers.Starcoder2ForCausalLM,
        {**GROUPS, "use_bias": False, "tie_word_embeddings": False},
    ),
    "cohere": (transformers.CohereForCausalLM, GROUPS),
    # Windows where there are no positions: in the second layer of three.
    "smollm3": (
        transformers.SmolLM3ForCausalLM,
        {
            **GROUPS,
            **dict(num_hidden_layers=3, no_rope_layer_interval=2, use_sliding_window=True),
            **dict(sliding_window=4),
        },
    ),
    "glm4": (transformers.Glm4ForCausalLM, {**GROUPS, "head_dim": 12}),
    "nemotron": (transformers.NemotronForCausalLM, GROUPS),
    "gptj": (transformers.GPTJForCausalLM, {**GPT2, "rotary_dim": 4}),
    "gptj, tied": (
        transformers.GPTJForCausalLM,
        {**GPT2, "rotary_dim": 4, "tie_word_embeddings": True},
    ),
    # A layer without experts before one with them.
    "deepseek": (
        transformers.DeepseekV3ForCausalLM,
        {**DEEPSEEK, "q_lora_rank": 10, "rope_parameters": MSCALE, "first_k_dense_replace": 1},
    ),
    "deepseek, other options": (
        transformers.DeepseekV3ForCausalLM,
        {
            **DEEPSEEK,
            **dict(q_lora_rank=None, rope_interleave=False, attention_bias=True),
            **dict(norm_topk_prob=False, n_group=1, topk_group=1, first_k_dense_replace=0),
            **dict(n_shared_experts=2),
        },
    ),
    "mixtral": (
        transformers.MixtralForCausalLM,
        {**MIXTURE, "num_local_experts": 5, "sliding_window": 4},
    ),
    # A layer without experts before one with them.
    "qwen3-moe": (
        transformers.Qwen3MoeForCausalLM,
        {
            **MIXTURE,
            **dict(head_dim=12, num_experts=5, moe_intermediate_size=20, decoder_sparse_step=2),
        },
    ),
    "qwen3-moe, other options": (
        transformers.Qwen3MoeForCausalLM,
        {
            **MIXTURE,
            **dict(head_dim=12, num_experts=5, moe_intermediate_size=20, norm_topk_prob=True),
            **dict(use_sliding_window=True, sliding_window=4),
        },
    ),
    "phi 3": (transformers.Phi3ForCausalLM, {**PHI3, "sliding_window": 4}),
    # Of rows that are all shorter than the length of training, and of rows all longer.
    "phi 3, short": (
        transformers.Phi3ForCausalLM,
        {**PHI3, "rope_parameters": LONG, "original_max_position_embeddings": 128},
    ),
    "phi 3, long": (
        transformers.Phi3ForCausalLM,
        {**PHI3, "rope_parameters": LONG, "original_max_position_embeddings": 3},
    ),
}
# Of which more is generated.
SEARCHED = ("gpt2", "llama", "qwen 2", "qwen 3")
# Those that take no positions.
BY_DISTANCE = ("bloom", "mpt", "mpt, clipped")
each = pytest.mark.parametrize("name", MODELS)


@pytest.fixture
def made(folder, name):
    model_class, fields = MODELS[name]
    fields = {field: value for field, value in fields.items() if value is not None}
    return folder(model_class, **fields)


@each
def test_states_and_logits(made, name, measured):
    measured(made.ours, **folders.check_decoder(made, by_positions=name not in BY_DISTANCE))


# One mask of pairs is all that BLOOM takes, and it has distances in it.
@pytest.mark.parametrize("name", [name for name in MODELS if name != "bloom"])
def test_a_mask_of_pairs(made, name):
    folders.check_pairs(made, by_positions=name not in BY_DISTANCE)


@each
def test_it_is_saved(made, fresh, measured, tmp_path):
    largest = fresh.check(made.ours, tmp_path, tokens((3, 9)), mask=MASKS["left"])
    measured(made.ours, saved=largest)


@each
def test_it_is_written_back(made, name, measured, tmp_path):
    rows = {"model.decoder.embed_positions.weight": 2} if name.startswith("opt") else {}
    # Its norms have 1 + w.
    tolerance = 1e-6 if name == "nemotron" else 0.0
    found = folders.check_written_back(made, tmp_path, unread_rows=rows, tolerance=tolerance)
    measured(made.ours, back=found)


@each
def test_greedy_tokens(made, name, measured):
    count = 200 if name in SEARCHED else 30
    measured(made.ours, tokens=folders.check_greedy(made, count))


@pytest.mark.parametrize("name", SEARCHED)
def test_beams(made, measured):
    folders.check_beams(made)
    measured(made.ours, beams=4)
