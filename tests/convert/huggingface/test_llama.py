"""Llama, Mistral, Qwen 2 and 3: what they compute, generate, save and write."""

import pytest

from tests.convert.huggingface import folders
from tests.convert.huggingface.folders import MASKS, VOCABULARY, tokens, transformers

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS = {
    "llama": (transformers.LlamaForCausalLM, {}),
    "llama with biases": (
        transformers.LlamaForCausalLM,
        {"attention_bias": True, "mlp_bias": True, "head_dim": 12, "tie_word_embeddings": True},
    ),
    "llama 3.1": (transformers.LlamaForCausalLM, {"rope_parameters": LLAMA3}),
    "llama, linear": (
        transformers.LlamaForCausalLM,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}},
    ),
    "llama, yarn": (transformers.LlamaForCausalLM, {"rope_parameters": YARN}),
    "mistral": (transformers.MistralForCausalLM, {"sliding_window": 4}),
    "qwen 2": (transformers.Qwen2ForCausalLM, {}),
    "qwen 2, windows": (
        transformers.Qwen2ForCausalLM,
        {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen 3": (transformers.Qwen3ForCausalLM, {"head_dim": 12, "tie_word_embeddings": True}),
}
each = pytest.mark.parametrize("name", MODELS)


@pytest.fixture
def made(folder, name):
    model_class, fields = MODELS[name]
    return folder(model_class, **{**SIZES, **fields})


@each
def test_states_and_logits(made, measured):
    measured(made.ours, **folders.check_decoder(made))


@each
def test_a_mask_of_pairs(made):
    folders.check_pairs(made)


@each
def test_it_is_saved(made, fresh, measured, tmp_path):
    largest = fresh.check(made.ours, tmp_path, tokens((3, 9)), mask=MASKS["left"])
    measured(made.ours, saved=largest)


@each
def test_it_is_written_back(made, measured, tmp_path):
    measured(made.ours, back=folders.check_written_back(made, tmp_path))


@each
def test_greedy_tokens(made, name, measured):
    count = 200 if name in ("llama", "qwen 2", "qwen 3") else 30
    measured(made.ours, tokens=folders.check_greedy(made, count))


@pytest.mark.parametrize("name", ["llama", "qwen 2", "qwen 3"])
def test_beams(made, measured):
    folders.check_beams(made)
    measured(made.ours, beams=4)
