"""What published folders have beside the tensors of a model, and folders that are written anew."""

import json
import re

import keras
import numpy as np
import pytest

from keras_attention import convert
from keras_attention.convert.huggingface.architecture import Others
from keras_attention.convert.huggingface.architectures import ARCHITECTURES
from tests.convert.huggingface import folders
from tests.convert.huggingface.folders import numpy, tokens, torch, transformers
from tests.convert.huggingface.sequences import SIZES as SEQUENCE_SIZES
from tests.convert.huggingface.test_decoders import GPT2, LLAMA

IDS = tokens((2, 5))
BART = {
    **dict(vocab_size=50, d_model=16, max_position_embeddings=32),
    **{f"{side}_{x}": 1 for side in ("encoder", "decoder") for x in ("layers",)},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 8 for side in ("encoder", "decoder")},
}


@pytest.fixture
def llama(folder):
    return folder(transformers.LlamaForCausalLM, **LLAMA)


def with_tensors(source, path, without=(), **tensors):
    """A copy of a folder with other tensors too, of these names with "/" for "."."""
    from safetensors.numpy import save_file

    copy = folders.copied(source, path)
    found = {n: x for n, x in folders.tensors(source.path).items() if n not in without}
    found |= {name.replace("/", "."): x for name, x in tensors.items()}
    save_file(found, copy.path / "model.safetensors")
    return copy


def outputs(model, kind):
    return numpy(model([IDS, IDS]) if kind in ("bart", "t5") else model(IDS))


PUBLISHED = {
    "llama": [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.1.self_attn.rotary_emb.cos_cached",
        "model.rotary_emb.inv_freq",
    ],
    "gpt2": ["h.0.attn.bias", "transformer.h.1.attn.masked_bias"],
    "bert": ["bert.embeddings.position_ids", "bert.embeddings.token_type_ids"],
    "bart": ["model.encoder.version", "decoder.version"],
}
MADE = {
    "llama": (transformers.LlamaForCausalLM, LLAMA),
    "gpt2": (transformers.GPT2LMHeadModel, GPT2),
    "bert": (transformers.BertForMaskedLM, SEQUENCE_SIZES),
    "bart": (transformers.BartForConditionalGeneration, BART),
}
TABLES = {
    "gpt2": ("transformer.wte.weight", "lm_head.weight"),
    "bert": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    "bart": ("model.shared.weight", "model.encoder.embed_tokens.weight"),
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_buffers_of_published_files_are_not_read(kind, folder, tmp_path):
    made = folder(MADE[kind][0], **MADE[kind][1])
    extra = {name.replace(".", "/"): np.ones(3, "int64") for name in PUBLISHED[kind]}
    found = with_tensors(made, tmp_path, **extra)
    np.testing.assert_array_equal(outputs(found.ours, kind), outputs(made.ours, kind))


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("mistral", "model.layers.3.self_attn.rotary_emb.inv_freq"),
        ("qwen2", "layers.3.self_attn.rotary_emb.inv_freq"),
        ("phi", "model.layers.3.self_attn.rotary_emb.inv_freq"),
        ("phi3", "model.layers.3.self_attn.rotary_emb.inv_freq"),
        ("gemma3_text", "model.rotary_emb_local.inv_freq"),
        ("gpt_neox", "gpt_neox.layers.3.attention.rotary_emb.inv_freq"),
        ("gpt_neox", "gpt_neox.layers.3.attention.masked_bias"),
        ("falcon", "transformer.h.3.self_attention.rotary_emb.inv_freq"),
        ("falcon", "transformer.h.3.self_attention.maybe_rotary.inv_freq"),
        ("modernbert", "model.layers.3.attn.rotary_emb.inv_freq"),
        ("opt", "model.decoder.version"),
        ("whisper", "model.encoder.version"),
        ("clip_text_model", "text_model.embeddings.position_ids"),
        ("clip_vision_model", "vision_model.embeddings.position_ids"),
        ("xlm-roberta", "roberta.embeddings.position_ids"),
        ("distilbert", "distilbert.embeddings.position_ids"),
        ("albert", "albert.embeddings.position_ids"),
        ("deberta-v2", "deberta.embeddings.position_ids"),
        ("vit", "vit.pooler.dense.weight"),
    ],
)
def test_names_that_are_not_read(kind, name):
    architecture = ARCHITECTURES[kind]
    others = Others(architecture, None, architecture.prefix, False)
    assert others.unread(name)
    assert not others.unread(f"{architecture.prefix}other.{name}.other")


@pytest.mark.any_backend
def test_weights_are_read():
    """No pattern is so wide that it leaves a weight out."""
    for architecture in ARCHITECTURES.values():
        others = Others(architecture, None, architecture.prefix, False)
        for name in ("h.0.attn.c_attn.bias", "layers.0.attention.dense.bias", "norm.weight"):
            assert not others.unread(architecture.prefix + name)


@pytest.mark.any_backend
def test_all_that_transformers_leaves_out():
    """The patterns of the classes of `transformers` for what their own older files have."""
    names = {
        "bart": ("BartModel", "model.encoder.version"),
        "gpt2": ("GPT2Model", "transformer.h.0.crossattention.bias"),
        "gpt_neox": ("GPTNeoXModel", "gpt_neox.layers.0.attention.masked_bias"),
        "deberta-v2": ("DebertaV2ForMaskedLM", "deberta.embeddings.position_embeddings.weight"),
        "t5": (
            "T5ForConditionalGeneration",
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
        ),
    }
    for kind, (cls, name) in names.items():
        theirs = getattr(transformers, cls)
        patterns = set()
        for owner in theirs.__mro__:
            patterns |= set(getattr(owner, "_keys_to_ignore_on_load_unexpected", None) or ())
        assert any(re.search(x, name) for x in patterns), (kind, patterns)
        architecture = ARCHITECTURES[kind]
        assert Others(architecture, None, architecture.prefix, False).unread(name), name


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_under_either_name(kind, folder, tmp_path):
    made = folder(MADE[kind][0], **MADE[kind][1])
    first, second = TABLES[kind]
    table = folders.tensors(made.path)[first]
    both = with_tensors(made, tmp_path / "both", **{second.replace(".", "/"): table})
    other = {second.replace(".", "/"): table}
    one = with_tensors(made, tmp_path / "one", without=[first], **other)
    for found in (both, one):
        np.testing.assert_array_equal(outputs(found.ours, kind), outputs(made.ours, kind))
    other = {second.replace(".", "/"): table + 1}
    with pytest.raises(ValueError, match=f"'{re.escape(second)}' and '.*' must be equal"):
        _ = with_tensors(made, tmp_path / "untied", **other).ours


def test_a_base_model_in_files_of_one_with_a_head(folder, tmp_path):
    made = folder(transformers.BertForMaskedLM, **SEQUENCE_SIZES)
    found = folders.copied(made, tmp_path, architectures=["BertModel"]).ours
    theirs = transformers.BertModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(IDS).long()).last_hidden_state
    assert found.logits is None
    assert folders.difference(found(IDS), expected) <= 1e-4


def test_zeros_that_files_lack(folder, tmp_path):
    made = folder(*[MADE["bart"][0]], **BART)
    bias = "final_logits_bias"
    found = with_tensors(made, tmp_path, without=[bias])
    assert not numpy(found.ours.decoder.logits.bias).any()


# Writing

STALE = (
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model-00001-of-00002.bin",
    "pytorch_model.bin.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
)
KEPT = ("tokenizer.json", "generation_config.json", "model-notes.md", "best.safetensors")


def test_nothing_of_a_former_model_stays(llama, tmp_path, monkeypatch):
    llama.theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    model = convert.from_huggingface(tmp_path)
    for name in (*STALE[1:], *KEPT):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    model.weights[0].assign(model.weights[0] + 1)
    # The fields are in a dictionary of Keras's, which knows the model: it is not copied.
    monkeypatch.setattr(keras.Layer, "__reduce__", None)
    convert.to_huggingface(model, tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"config.json", "model.safetensors", *KEPT}
    again = convert.from_huggingface(tmp_path)
    np.testing.assert_array_equal(numpy(again(IDS)), numpy(model(IDS)))


def test_a_single_file_is_read_rather_than_several(llama, tmp_path):
    """As `transformers` does, which leaves them there when it saves a model in fewer files."""
    llama.theirs.save_pretrained(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "other.safetensors"}}), encoding="utf-8")
    found = convert.from_huggingface(tmp_path)
    np.testing.assert_array_equal(numpy(found(IDS)), numpy(llama.ours(IDS)))


@pytest.mark.any_backend
def test_an_error_halfway_leaves_the_folder(llama, tmp_path, monkeypatch):
    llama.theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(arrays, path, metadata):
        path.write_bytes(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    with pytest.raises(OSError, match="full"):
        convert.to_huggingface(llama.ours, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("policy", [None, "bfloat16"])
@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_the_dtype_is_that_of_the_weights(llama, policy, name, tmp_path):
    half = {"dtype": None, "torch_dtype": None, name: "float16"}
    source = folders.copied(llama, tmp_path / "source", **half)
    model = convert.from_huggingface(source.path, dtype=policy)
    convert.to_huggingface(model, tmp_path / "written")
    values = json.loads((tmp_path / "written" / "config.json").read_text(encoding="utf-8"))
    assert {values.get(x) for x in ("dtype", "torch_dtype")} == {None, policy or "float32"}
    assert model.metadata["huggingface"][name] == "float16"
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "written").eval()
    assert loaded.dtype == getattr(torch, policy or "float32")
    with torch.no_grad():
        found = loaded.float()(torch.tensor(IDS).long()).logits
    expected = model if policy is None else convert.from_huggingface(tmp_path / "written")
    assert folders.difference(expected(IDS), found) <= 1e-4


# Configurations of other models

OTHERS = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 77.0},
    **dict(rms_norm_eps=0.3, num_attention_heads=2, num_hidden_layers=1, vocab_size=51),
    **dict(hidden_act="relu", tie_word_embeddings=True, architectures=None, attention_bias=True),
}


@pytest.mark.any_backend
@pytest.mark.parametrize("name", OTHERS)
def test_a_configuration_of_another_model(llama, name, tmp_path):
    known = llama.ours.metadata["huggingface"]
    with pytest.raises(ValueError, match=name):
        convert.to_huggingface(llama.ours, tmp_path / "new", {**known, name: OTHERS[name]})
    assert not (tmp_path / "new").exists()


# Of a model with all options of a Llama, their tensors are those of another too.
ALIKE = {"llama", "mistral", "phi3", "smollm3"}


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", [*sorted(ARCHITECTURES.keys() - ALIKE), "clip", ["llama"], None])
def test_a_configuration_of_another_architecture(llama, kind, tmp_path):
    known = llama.ours.metadata["huggingface"]
    for fields in ({**known, "model_type": kind}, {"model_type": kind}):
        with pytest.raises(ValueError, match=r"config|`part`"):
            convert.to_huggingface(llama.ours, tmp_path, fields)


@pytest.mark.any_backend
def test_a_model_that_is_of_another_architecture_too(llama, tmp_path):
    known = llama.ours.metadata["huggingface"]
    fields = {**known, "model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    convert.to_huggingface(llama.ours, tmp_path, {**fields, "sliding_window": None})
    loaded = transformers.MistralForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        found = loaded(torch.tensor(IDS).long()).logits
    assert folders.difference(llama.ours(IDS), found) <= 1e-4


@pytest.mark.any_backend
def test_what_is_no_matter_of_the_model(llama, tmp_path):
    """Rates of dropout, dtypes and settings of generation are the caller's."""
    known = llama.ours.metadata["huggingface"]
    fields = {**known, "attention_dropout": 0.3, "eos_token_id": 7, "dtype": "float16"}
    convert.to_huggingface(llama.ours, tmp_path, fields)
    values = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert values == {**fields, "dtype": "float32"}
