"""A folder in Hugging Face's format, of a tiny model with random weights."""

import json

import numpy as np
import safetensors.numpy
import tokenizers

VOCABULARY = 300


def write_tokenizer(folder, texts):
    """A tokenizer that puts each text between <s> and </s>."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        texts, vocab_size=VOCABULARY, special_tokens=["<s>", "<pad>", "</s>"], show_progress=False
    )
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_gpt2(folder):
    """A tiny GPT-2 of random weights, written without `transformers`."""
    dim, rng = 8, np.random.default_rng(0)
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2Model"],
        "vocab_size": VOCABULARY,
        "n_embd": dim,
        "n_head": 2,
        "n_layer": 1,
        "n_positions": 32,
    }
    sizes = {"wte": (VOCABULARY, dim), "wpe": (32, dim)}
    for name, inputs, outputs in (
        ("attn.c_attn", dim, 3 * dim),
        ("attn.c_proj", dim, dim),
        ("mlp.c_fc", dim, 4 * dim),
        ("mlp.c_proj", 4 * dim, dim),
    ):
        sizes[f"h.0.{name}"] = (inputs, outputs)
    tensors = {f"{name}.weight": rng.normal(size=size) / 3 for name, size in sizes.items()}
    tensors |= {f"{name}.bias": np.zeros(s[1]) for name, s in sizes.items() if name[0] == "h"}
    for name in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        tensors |= {f"{name}.weight": np.ones(dim), f"{name}.bias": np.zeros(dim)}
    tensors = {name: array.astype("float32") for name, array in tensors.items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
