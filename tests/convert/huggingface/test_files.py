"""Files of weights: several of them, other dtypes, older configurations, and their memory."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_attention import convert
from tests.convert.huggingface import folders
from tests.convert.huggingface.folders import numpy, tokens, torch, transformers
from tests.convert.huggingface.sequences import through_a_file
from tests.convert.huggingface.test_decoders import GPT2, LLAMA, LLAMA3, MODELS, OSS

IDS = tokens((3, 9))


@pytest.fixture
def llama(folder):
    return folder(transformers.LlamaForCausalLM, **LLAMA)


def test_several_files(llama, tmp_path):
    llama.theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    found = convert.from_huggingface(tmp_path)(IDS)
    np.testing.assert_array_equal(numpy(found), numpy(llama.ours(IDS)))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "options",
    [
        (transformers.LlamaForCausalLM, LLAMA),
        (transformers.GptOssForCausalLM, OSS),
        MODELS["mixtral"],
        MODELS["nemotron"],
    ],
    ids=["llama", "gpt-oss", "mixtral", "nemotron"],
)
def test_files_of_half_precision(options, name, tmp_path):
    model_class, fields = options
    half = getattr(torch, name)
    model = folders.random_model(model_class, model_class.config_class(**fields)).to(half)
    model.save_pretrained(tmp_path)
    found = convert.from_huggingface(tmp_path)
    # Every number of half precision is one of float32: nothing is rounded.
    theirs = model_class.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(IDS).long()).logits
    assert folders.difference(found(IDS), expected) <= 1e-4


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_models_of_half_precision(llama, policy, tmp_path):
    model = convert.from_huggingface(llama.path, dtype=policy)
    stored = "bfloat16" if policy == "bfloat16" else "float32"
    # The rest, such as norms, is stored as Keras's layers store it.
    assert {str(keras.backend.standardize_dtype(w.dtype)) for w in model.weights} == {stored}
    found, expected = numpy(model(IDS)).astype("float32"), numpy(llama.ours(IDS))
    assert 0 < np.abs(found - expected).max() < 0.2
    again = through_a_file(model, tmp_path)
    np.testing.assert_array_equal(numpy(again(IDS)), numpy(model(IDS)))
    convert.to_huggingface(again, tmp_path)
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        written = numpy(loaded.eval()(torch.tensor(IDS).long()).logits)
    assert np.abs(written - expected).max() < 0.2


@pytest.mark.parametrize("kind", ["default", "llama3"])
def test_a_configuration_of_version_4(folder, kind, tmp_path):
    rope = {"rope_type": "default", "rope_theta": 500.0}
    rope = {**LLAMA3, "rope_theta": 500.0} if kind == "llama3" else rope
    made = folder(transformers.LlamaForCausalLM, **LLAMA, rope_parameters=rope)
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    older = folders.copied(
        made,
        tmp_path,
        rope_parameters=None,
        rope_theta=500.0,
        rope_scaling=scaling if kind == "llama3" else None,
        dtype=None,
        torch_dtype="float32",
        transformers_version="4.40.0",
    )
    np.testing.assert_array_equal(numpy(older.ours(IDS)), numpy(made.ours(IDS)))


def test_the_configuration_of_gpt2_of_2019(folder, tmp_path):
    """Names without a prefix, masks among the tensors, fields that later ones lack."""
    from safetensors.numpy import save_file

    made = folder(transformers.GPT2LMHeadModel, **GPT2)
    kept = ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions", "model_type")
    config = {name: made.config()[name] for name in (*kept, "architectures")}
    config |= {"n_ctx": 512, "summary_type": "cls_index", "attn_pdrop": 0.1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = {n.removeprefix("transformer."): x for n, x in folders.tensors(made.path).items()}
    found["h.0.attn.bias"] = np.tril(np.ones((1, 1, 512, 512), "float32"))
    found["lm_head.weight"] = found["wte.weight"]
    save_file(found, tmp_path / "model.safetensors")
    model = convert.from_huggingface(tmp_path)
    np.testing.assert_array_equal(numpy(model(IDS)), numpy(made.ours(IDS)))


def test_a_stack_without_a_head(llama, tmp_path):
    llama.theirs.base_model.save_pretrained(tmp_path / "theirs")
    model = convert.from_huggingface(tmp_path / "theirs")
    assert model.logits is None
    convert.to_huggingface(model, tmp_path / "ours")
    loaded = transformers.LlamaModel.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    with torch.no_grad():
        expected = loaded.eval()(torch.tensor(IDS).long()).last_hidden_state
    assert folders.difference(model(IDS), expected) <= 1e-4


def run(command, **environment):
    given = {**os.environ, **environment}
    found = subprocess.run(command, capture_output=True, text=True, env=given)
    assert found.returncode == 0, found.stderr
    return found.stdout


MEMORY = """
import resource, sys, threading, time
import keras, numpy as np
from keras_attention import convert

def held():
    # Without pages of files, which the system takes back when it needs them.
    fields = dict(line.split(":") for line in open("/proc/self/status"))
    return int(fields["RssAnon"].split()[0]) / 1e3

convert.from_huggingface(sys.argv[2])
before, peak, done = held(), 0.0, False

def watch():
    global peak
    while not done:
        peak = max(peak, held())
        time.sleep(0.002)

thread = threading.Thread(target=watch)
thread.start()
model = convert.from_huggingface(sys.argv[1])
done = True
thread.join()
size = sum(w.numpy().nbytes if hasattr(w, "numpy") else w.nbytes for w in model.weights) / 1e6
print(size, peak - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_reading(tmp_path, llama):
    """Of a model that is a table of tokens and a matrix as large, for the most part."""
    sizes = {**LLAMA, "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1024}
    config = transformers.LlamaConfig(**sizes)
    folders.write(tmp_path, transformers.LlamaForCausalLM, config)
    command = [sys.executable, "-c", MEMORY, str(tmp_path), str(llama.path)]
    # Large arrays of their own pages: what malloc keeps for later counts as held otherwise.
    size, peak = map(float, run(command, MALLOC_MMAP_THRESHOLD_="1000000").split())
    print(f"{size:.0f} MB, peak {peak:.0f} MB, {peak / size:.2f}")
    assert size > 100
    assert peak <= 1.2 * size
