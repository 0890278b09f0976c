"""Folders: files of weights, what published ones have beside a model, and folders written anew."""

import json
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_attention import convert
from keras_attention.convert.huggingface.architecture import Others
from keras_attention.convert.huggingface.architectures import ARCHITECTURES
from keras_attention.convert.huggingface.config import Config
from tests.convert.huggingface import models
from tests.convert.huggingface.models import (
    IDS,
    TOLERANCE,
    case,
    numpy,
    torch,
    transformers,
    without,
)


@pytest.fixture
def made(folder):
    """A function of a case: its `Folder`."""

    def get(name):
        cls, fields = case(name)
        return folder(cls, **fields)

    return get


@pytest.fixture
def llama(made):
    return made("llama")


def ours(model):
    return numpy(model([IDS, IDS]) if hasattr(model, "decoder") else model(IDS))


def same(model, other):
    np.testing.assert_array_equal(ours(model), ours(other))


def theirs(model):
    return models.call(model, input_ids=IDS)


# Reading


def test_files_of_half_precision(tmp_path):
    for kind in ("llama", "gpt_oss", "mixtral", "nemotron"):
        for half in (torch.bfloat16, torch.float16):
            cls, fields = case(kind)
            path = tmp_path / f"{kind} {half}"
            models.write(path, cls, fields, change=lambda model, half=half: model.to(half))
            # Every number of half precision is one of float32: nothing is rounded.
            model = cls.from_pretrained(path, dtype=torch.float32).eval()
            found = convert.from_huggingface(path)(IDS)
            assert models.difference(found, theirs(model).logits) <= TOLERANCE


@pytest.mark.parametrize(
    ("policy", "name"),
    [(None, "torch_dtype"), ("bfloat16", "dtype"), ("mixed_bfloat16", "torch_dtype")],
)
def test_the_dtype_is_that_of_the_weights(llama, policy, name, tmp_path):
    half = {"dtype": None, "torch_dtype": None, name: "float16"}
    model = convert.from_huggingface(llama.copied(tmp_path / "source", **half).path, dtype=policy)
    stored = "bfloat16" if policy == "bfloat16" else "float32"
    # The rest, such as norms, is stored as Keras's layers store it.
    assert {str(keras.backend.standardize_dtype(w.dtype)) for w in model.weights} == {stored}
    largest = np.abs(ours(model).astype("float32") - ours(llama.ours)).max()
    assert 0 < largest < 0.2 or (policy is None and not largest)
    again = models.through_a_file(model, tmp_path)
    same(again, model)
    convert.to_huggingface(again, tmp_path / "written")
    values = json.loads((tmp_path / "written" / "config.json").read_text(encoding="utf-8"))
    assert {values.get(x) for x in ("dtype", "torch_dtype")} == {None, stored}
    assert again.metadata["huggingface"][name] == "float16"
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "written").eval()
    assert loaded.dtype == getattr(torch, stored)
    found = convert.from_huggingface(tmp_path / "written")(IDS)
    assert models.difference(found, theirs(loaded.float()).logits) <= TOLERANCE


def test_names_of_the_first_files_of_gpt2(made, tmp_path):
    """A model with a head has names without a prefix, as a base model has."""
    new = made("gpt2")
    tensors = models.stored(new.path)
    bare = {name.removeprefix("transformer."): x for name, x in tensors.items()}
    same(new.copied(tmp_path, without=tensors, tensors=bare).ours, new.ours)


def test_names_of_the_first_files_of_bert(made, tmp_path):
    """Norms with the names of TensorFlow 1, and buffers."""
    new = made("BertModel")
    tensors, old = models.stored(new.path), {"embeddings.position_ids": np.arange(40)[None]}
    for name, tensor in tensors.items():
        for after, before in (("weight", "gamma"), ("bias", "beta")):
            name = name.replace(f"LayerNorm.{after}", f"LayerNorm.{before}")
        old[name] = tensor
    same(new.copied(tmp_path, without=tensors, tensors=old).ours, new.ours)


@pytest.mark.parametrize("name", ["llama", "bert", "BertForSequenceClassification", "gpt_neox"])
def test_stacks_without_a_head(name, made, tmp_path):
    """In files of models with a head, which may be put on by hand: docs/fine_tuning.md."""
    base = made(name).theirs.base_model
    expected = theirs(base).last_hidden_state
    found = [convert.from_huggingface(made(name).path, head=False)]
    for classes in (None, [], [type(base).__name__]):
        found.append(made(name).copied(tmp_path / str(classes), architectures=classes).ours)
    for model in found:
        assert model.logits is None
        assert models.difference(model(IDS), expected) <= TOLERANCE
    convert.to_huggingface(model, tmp_path / "ours")
    prefix = f"{made(name).theirs.base_model_prefix}."
    assert not any(x.startswith(prefix) for x in models.stored(tmp_path / "ours"))
    loaded = type(base).from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    assert models.difference(theirs(loaded).last_hidden_state, expected) <= TOLERANCE
    same(convert.from_huggingface(tmp_path / "ours"), model)


ENDS = ("SequenceClassification", "TokenClassification", "QuestionAnswering")


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", models.FAMILIES)
def test_heads_have_the_tensors_of_theirs(kind):
    """Of each class that `transformers` has for a family of texts, or it is refused."""
    name, given = models.FAMILIES[kind]
    architecture, base = ARCHITECTURES[kind], re.sub(r"For[A-Z]\w+$|Model$|LMHead\w+$", "", name)
    for end in ENDS:
        found = (getattr(transformers, f"{base}{x}For{end}", None) for x in ("", "Text"))
        cls = next((x for x in found if x and x.config_class.model_type == kind), None)
        if cls is None or kind in models.PAIRS:
            continue
        architecture = architecture.of_class(cls.__name__)
        with torch.device("meta"):
            theirs = {k: v.shape for k, v in cls(cls.config_class(**given)).state_dict().items()}
        values = {**cls.config_class(**given).to_dict(), "architectures": [cls.__name__]}
        values |= {"model_type": kind, "dtype": None}
        config = Config(values, architecture.fields)
        try:
            model = architecture.model(config, None)
        except ValueError as error:
            assert cls.__name__ == "BigBirdForQuestionAnswering", error
            assert "no other head" in str(error)
            continue
        model.build(architecture.input_shape(config))
        ours = {x.name: x.shape() for x in architecture.entries(model, architecture.prefix)}
        heads = {x for x in theirs if not x.startswith(architecture.prefix)}
        assert heads == {x for x in ours if not x.startswith(architecture.prefix)}, cls
        assert all(ours[x] == tuple(theirs[x]) for x in heads), cls


def test_labels_of_a_classifier(folder, tmp_path):
    """Their names are in the model's fields, its file, and the folder written back."""
    cls, fields = case("BertForTokenClassification")
    labels = {0: "O", 1: "B-PER", 2: "I-PER"}
    fields = {**without("num_labels", fields), "id2label": labels}
    new = folder(cls, **fields)
    model = models.through_a_file(new.ours, tmp_path)
    found = model.metadata["huggingface"]["id2label"]
    assert {int(n): label for n, label in found.items()} == labels
    convert.to_huggingface(model, tmp_path / "back")
    assert cls.from_pretrained(tmp_path / "back").config.id2label == labels


# What published folders have beside the tensors of a model

PUBLISHED = {
    "llama": [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.1.self_attn.rotary_emb.cos_cached",
        "model.rotary_emb.inv_freq",
    ],
    "gpt2": ["h.0.attn.bias", "transformer.h.1.attn.masked_bias"],
    "bert": ["bert.embeddings.position_ids", "bert.embeddings.token_type_ids"],
    "bart": ["model.encoder.version", "decoder.version"],
    "marian": ["model.encoder.version"],
}
TABLES = {
    "gpt2": ("transformer.wte.weight", "lm_head.weight"),
    "bert": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    "bart": ("model.shared.weight", "model.encoder.embed_tokens.weight"),
    "marian": ("model.shared.weight", "lm_head.weight"),
}
UNREAD = {
    kind: "layers.3.self_attn.rotary_emb.inv_freq"
    for kind, architecture in ARCHITECTURES.items()
    if "rope_parameters" in architecture.fields
}
UNREAD |= {
    "gemma3_text": "model.rotary_emb_local.inv_freq",
    "falcon": "transformer.h.3.self_attention.maybe_rotary.inv_freq",
    "opt": "model.decoder.version",
    "whisper": "model.encoder.version",
    "clip_text_model": "text_model.embeddings.position_ids",
    "clip_vision_model": "vision_model.embeddings.position_ids",
    "xlm-roberta": "roberta.embeddings.position_ids",
    "distilbert": "distilbert.embeddings.position_ids",
    "albert": "albert.embeddings.position_ids",
    "vit": "vit.pooler.dense.weight",
}
# Of which the classes of `transformers` have patterns, for what their own older files have.
THEIRS = {
    "bart": ("BartModel", "model.encoder.version"),
    "gpt2": ("GPT2Model", "transformer.h.0.crossattention.bias"),
    "gpt_neox": ("GPTNeoXModel", "gpt_neox.layers.0.attention.masked_bias"),
    "deberta-v2": ("DebertaV2ForMaskedLM", "deberta.embeddings.position_embeddings.weight"),
    "t5": (
        "T5ForConditionalGeneration",
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    ),
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_what_is_beside_a_model(kind, made, tmp_path):
    """Buffers are not read, and a table may have either name."""
    new = made(kind)
    extra = {name: np.ones(3, "int64") for name in PUBLISHED[kind]}
    same(new.copied(tmp_path / "buffers", tensors=extra).ours, new.ours)
    if kind not in TABLES:
        return
    first, second = TABLES[kind]
    table = models.stored(new.path)[first]
    same(new.copied(tmp_path / "both", tensors={second: table}).ours, new.ours)
    same(new.copied(tmp_path / "one", [first], {second: table}).ours, new.ours)
    with pytest.raises(ValueError, match=f"'{re.escape(second)}' and '.*' must be equal"):
        _ = new.copied(tmp_path / "untied", tensors={second: table + 1}).ours


@pytest.mark.any_backend
def test_names_that_are_not_read():
    for kind, name in [*UNREAD.items(), *((kind, name) for kind, (_, name) in THEIRS.items())]:
        architecture = ARCHITECTURES[kind]
        others = Others(architecture, None, architecture.prefix, False)
        assert others.unread(name), name
        assert not others.unread(f"{architecture.prefix}other.{name}.other")
    for cls, name in THEIRS.values():
        patterns = set()
        for owner in getattr(transformers, cls).__mro__:
            patterns |= set(getattr(owner, "_keys_to_ignore_on_load_unexpected", None) or ())
        assert any(re.search(x, name) for x in patterns), (cls, patterns)
    # No pattern is so wide that it leaves a weight out.
    for architecture in ARCHITECTURES.values():
        others = Others(architecture, None, architecture.prefix, False)
        for name in ("h.0.attn.c_attn.bias", "layers.0.attention.dense.bias", "norm.weight"):
            assert not others.unread(architecture.prefix + name)


def test_zeros_that_files_lack(made, tmp_path):
    found = made("bart").copied(tmp_path, without=["final_logits_bias"])
    assert not numpy(found.ours.decoder.logits.bias).any()


# Writing

STALE = (
    *("pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"),
    *("tf_model.h5", "flax_model.msgpack"),
)
KEPT = ("tokenizer.json", "generation_config.json", "model-notes.md", "best.safetensors")


def test_nothing_of_a_former_model_stays(llama, tmp_path, monkeypatch):
    llama.theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    model = convert.from_huggingface(tmp_path)
    same(model, llama.ours)
    for name in (*STALE, *KEPT):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    model.weights[0].assign(model.weights[0] + 1)
    # The fields are in a dictionary of Keras's, which knows the model: it is not copied.
    monkeypatch.setattr(keras.Layer, "__reduce__", None)
    convert.to_huggingface(model, tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"config.json", "model.safetensors", *KEPT}
    same(convert.from_huggingface(tmp_path), model)


def test_a_single_file_is_read_rather_than_several(llama, tmp_path):
    """As `transformers` does, which leaves them there when it saves a model in fewer files."""
    found = llama.copied(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "other.safetensors"}}), encoding="utf-8")
    same(found.ours, llama.ours)


@pytest.mark.any_backend
def test_an_error_halfway_leaves_the_folder(llama, tmp_path, monkeypatch):
    llama.theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(arrays, path, metadata):
        path.write_bytes(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    with pytest.raises(OSError, match="full"):
        convert.to_huggingface(llama.ours, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# Configurations of other models

OTHERS = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 77.0},
    **dict(rms_norm_eps=0.3, num_attention_heads=2, num_hidden_layers=1, vocab_size=51),
    **dict(hidden_act="relu", tie_word_embeddings=True, architectures=None, attention_bias=True),
}
# Of a model with all options of a Llama, their tensors are those of another too.
ALIKE = {"llama", "mistral", "phi3", "smollm3"}


@pytest.mark.any_backend
def test_configurations_of_other_models(llama, tmp_path):
    known = llama.ours.metadata["huggingface"]
    for name, value in OTHERS.items():
        with pytest.raises(ValueError, match=name):
            convert.to_huggingface(llama.ours, tmp_path / "new", {**known, name: value})
    for kind in [*sorted(ARCHITECTURES.keys() - ALIKE), "clip", ["llama"], None]:
        for fields in ({**known, "model_type": kind}, {"model_type": kind}):
            with pytest.raises(ValueError, match=r"config|`part`"):
                convert.to_huggingface(llama.ours, tmp_path / "new", fields)
    assert not (tmp_path / "new").exists()


@pytest.mark.any_backend
def test_what_is_no_matter_of_the_model(llama, tmp_path):
    """Rates of dropout, dtypes and settings of generation; and the fields of an equal model."""
    known = llama.ours.metadata["huggingface"]
    fields = {**known, "attention_dropout": 0.3, "eos_token_id": 7, "dtype": "float16"}
    convert.to_huggingface(llama.ours, tmp_path, fields)
    values = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert values == {**fields, "dtype": "float32"}
    fields = {**known, "model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    convert.to_huggingface(llama.ours, tmp_path, {**fields, "sliding_window": None})
    loaded = transformers.MistralForCausalLM.from_pretrained(tmp_path).eval()
    assert models.difference(llama.ours(IDS), theirs(loaded).logits) <= TOLERANCE


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
    cls, fields = case("llama")
    models.write(tmp_path, cls, {**fields, "vocab_size": 32000, "hidden_size": 512})
    command = [sys.executable, "-c", MEMORY, str(tmp_path), str(llama.path)]
    # Large arrays of their own pages: what malloc keeps for later counts as held otherwise.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stderr
    size, peak = map(float, found.stdout.split())
    assert size > 100
    assert peak <= 1.2 * size
