"""What the tests of several examples share."""

import importlib.util
import json

import numpy as np
import pytest

# Without the extra `examples` none of them runs.
NEEDED = "filelock", "tokenizers", "PIL", "sacrebleu"
if not all(map(importlib.util.find_spec, NEEDED)):
    collect_ignore_glob = ["test_[!n]*.py", "*/test_*.py"]


def figures(output):
    """What the run in a folder has written down."""
    return json.loads((output / "figures.json").read_text(encoding="utf-8"))


def ran(main, output, *arguments, files=("model.keras", "tokenizer.json")):
    """What a run wrote down that ended well, and left these files."""
    assert main([*map(str, arguments), "--output", str(output)]) == 0
    assert {path.name for path in output.iterdir()} == {"figures.json", *files}
    said = figures(output)
    assert said["finished"]
    return said


def dialogues(turns):
    """The beginning of the sample of `examples.language_model`."""
    from examples import language_model

    lines = language_model.SAMPLE.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(lines[: 6 * turns])


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "dialogues.txt"
    path.write_text(dialogues(20), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    """A tiny GPT-2 of random weights, and a tokenizer that puts texts between <s> and </s>."""
    safetensors = pytest.importorskip("safetensors.numpy")
    import tokenizers

    folder, size = tmp_path_factory.mktemp("gpt2"), 300
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    given = {"special_tokens": ["<s>", "<pad>", "</s>"], "show_progress": False}
    tokenizer.train_from_iterator([dialogues(100)], size, **given)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": size}
    config |= {"n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 32}
    (folder / "config.json").write_text(json.dumps(config))
    sizes = {"wte": (size, 8), "wpe": (32, 8)}
    sizes |= {"h.0.attn.c_attn": (8, 24), "h.0.attn.c_proj": (8, 8)}
    sizes |= {"h.0.mlp.c_fc": (8, 32), "h.0.mlp.c_proj": (32, 8)}
    rng = np.random.default_rng(0)
    tensors = {f"{name}.weight": rng.normal(size=size) / 3 for name, size in sizes.items()}
    tensors |= {f"{name}.bias": np.zeros(size[1]) for name, size in sizes.items() if "." in name}
    for name in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        tensors |= {f"{name}.weight": np.ones(8), f"{name}.bias": np.zeros(8)}
    tensors = {name: array.astype("float32") for name, array in tensors.items()}
    safetensors.save_file(tensors, folder / "model.safetensors")
    return folder
