"""Adapters in the format of `peft`: read, merged, trained on and written, beside their definition.

The definition is `with_adapter`: of each pair in a file, `scale · B A` is added to the weight of
the module of that name in a model of `transformers`.
"""

import copy
import json
import re

import numpy as np
import pytest

import keras_attention
from keras_attention import convert, enable_lora
from tests.convert.huggingface import models
from tests.convert.huggingface.models import IDS, TOLERANCE, case, torch

START = "base_model.model."
ALL = keras_attention.lora.PROJECTIONS
LINEAR = (torch.nn.Linear, models.transformers.pytorch_utils.Conv1D, torch.nn.Embedding)
# Of a case: a pattern of the names of modules with a pair, of those that are there as a whole, and
# fields of `adapter_config.json`. Modules of experts have a pair for each of two parameters.
ROWS: dict = {
    "llama": (r".*", "", dict(use_rslora=True, rank_pattern={"layers.1.self_attn.[qk]_proj": 5})),
    "gpt2": (r".*\.(c_\w+|wpe)", r".*\.ln_1", dict(fan_in_fan_out=True, bias="all")),
    "phi3": (r".*_proj|lm_head", "", dict(alpha_pattern={"qkv_proj": 3.5, "up_proj": 7.0})),
    "gpt_neox": (r".*(query_key_value|dense)", "", {}),
    "falcon": (r".*(query_key_value|dense)", "", {}),
    "deepseek_v3": (r".*_proj.*|.*\.experts", "", dict(rank_pattern={"o_proj": 1})),
    "mixtral": (r".*\.experts", "", dict(target_parameters=["gate_up_proj", "down_proj"])),
    "gpt_oss": (r".*\.experts|.*\.[kv]_proj", "", {}),
    "BertForSequenceClassification": (r".*\.(query|value)", "classifier", dict(bias="lora_only")),
    "ModernBertForTokenClassification": (r".*(Wqkv|Wi)", "classifier|head.*", {}),
    "t5, 1.1": (r".*\.(q|v|wi_\d|wo)", "", {}),
}
# Rows without experts and embeddings, which Keras has no adapters for.
DENSE = {"phi3", "gpt_neox", "falcon", "BertForSequenceClassification", "t5, 1.1"}


def write(theirs, path, modules, whole="", seed=0, **config):
    """Writes an adapter of random numbers for a model of `transformers`."""
    random, tensors = np.random.default_rng(seed), {}
    values = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": modules, **config}

    def normal(*shape):
        return random.normal(size=shape, scale=0.25).astype("float32")

    for name, module in theirs.named_modules():
        rank = matched(values, "rank_pattern", name, values["r"])
        if re.fullmatch(modules, name) and isinstance(module, LINEAR):
            outputs, inputs = module.weight.shape
            if isinstance(module, models.transformers.pytorch_utils.Conv1D):
                outputs, inputs = inputs, outputs
            pair = ("lora_A.weight", rank, inputs), ("lora_B.weight", outputs, rank)
            if isinstance(module, torch.nn.Embedding):
                pair = ("lora_embedding_A", rank, outputs), ("lora_embedding_B", inputs, rank)
            tensors |= {f"{START}{name}.{key}": normal(*shape) for key, *shape in pair}
        elif re.fullmatch(modules, name) and hasattr(module, "gate_up_proj"):
            # The first is within the second.
            for inner, parameter in ((".base_layer", module.gate_up_proj), ("", module.down_proj)):
                count, outputs, inputs = parameter.shape
                if theirs.config.model_type == "gpt_oss":
                    outputs, inputs = inputs, outputs
                start = f"{START}{name}{inner}"
                tensors[f"{start}.lora_A.weight"] = normal(count * rank, inputs)
                tensors[f"{start}.lora_B.weight"] = normal(outputs, count * rank)
        for key, parameter in module.named_parameters(recurse=False):
            biased = key == "bias" and values.get("bias", "none") != "none"
            if (whole and re.fullmatch(whole, name)) or (biased and re.fullmatch(modules, name)):
                tensors[f"{START}{name}.{key}"] = normal(*parameter.shape)
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps(values), encoding="utf-8")
    models.save(path, tensors)
    (path / "model.safetensors").rename(path / "adapter_model.safetensors")
    return path


def matched(values, pattern, name, default):
    for key, value in (values.get(pattern) or {}).items():
        if re.fullmatch(rf"(.*\.)?({key})", name):
            return value
    return default


def with_adapter(theirs, *paths):
    """A model of `transformers` with the adapters of folders in its weights."""
    theirs = copy.deepcopy(theirs)
    modules = dict(theirs.named_modules())
    for path in paths:
        values = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = {key: models.tensor(x) for key, x in models.stored(path).items()}
        for key, first in tensors.items():
            name, _, kind = key.removeprefix(START).removesuffix(".weight").rpartition(".")
            if kind in ("lora_B", "lora_embedding_B"):
                continue
            if kind not in ("lora_A", "lora_embedding_A"):
                theirs.get_parameter(key.removeprefix(START)).data.copy_(first)
                continue
            second = tensors[key.replace("_A", "_B")]
            rank = matched(values, "rank_pattern", name, values["r"])
            scale = matched(values, "alpha_pattern", name, values["lora_alpha"])
            scale /= rank**0.5 if values.get("use_rslora") else rank
            module = modules[name.removesuffix(".base_layer")]
            if hasattr(module, "gate_up_proj"):
                inner = name.endswith(".base_layer")
                weight = module.gate_up_proj if inner else module.down_proj
                a = first.reshape(len(weight), rank, -1)
                b = second.reshape(-1, rank, len(weight)).permute(2, 0, 1)
                change = b @ a
                change = change.mT if theirs.config.model_type == "gpt_oss" else change
            else:
                weight, change = module.weight, second @ first
                change = change if isinstance(module, torch.nn.Linear) else change.T
            weight.data.add_(scale * change)
    return theirs


def logits(theirs):
    given = {"input_ids": IDS}
    if theirs.config.is_encoder_decoder:
        given["decoder_input_ids"] = IDS
    return models.call(theirs, **given).logits


def ours(model):
    return models.numpy(model([IDS, IDS] if hasattr(model, "decoder") else IDS))


def differ(model, theirs):
    return models.difference(ours(model), logits(theirs))


@pytest.fixture
def made(folder):
    def get(name):
        cls, fields = case(name)
        return folder(cls, **fields)

    return get


@pytest.mark.parametrize("name", ROWS)
def test_an_adapter_is_merged(name, made, tmp_path):
    """And another after it; a file of the sum has no adapter."""
    new, (modules, whole, config) = made(name), ROWS[name]
    paths = [
        write(new.theirs, tmp_path / f"{n}", modules, whole, seed=n, **config) for n in range(2)
    ]
    model = convert.from_huggingface(new.path)
    for count, path in enumerate(paths, 1):
        convert.load_adapter(model, path)
        expected = with_adapter(new.theirs, *paths[:count])
        assert differ(model, expected) <= TOLERANCE
        assert models.difference(ours(model), logits(new.theirs)) > 0.01


@pytest.mark.parametrize("name", sorted(DENSE))
def test_an_adapter_is_trained_on(name, made, tmp_path):
    new, (modules, whole, config) = made(name), ROWS[name]
    modules = modules.replace("|lm_head", "") if name == "phi3" else modules
    path = write(new.theirs, tmp_path / "adapter", modules, whole, **config)
    model = convert.from_huggingface(new.path)
    convert.load_adapter(model, path, merge=False)
    assert differ(model, with_adapter(new.theirs, path)) <= TOLERANCE
    trained = [x.name for x in model.trainable_variables]
    assert set(trained) - {"kernel", "bias"} == {"lora_kernel_a", "lora_kernel_b"}
    # Written anew, and read by both.
    convert.save_adapter(model, tmp_path / "again")
    assert differ(model, with_adapter(new.theirs, tmp_path / "again")) <= TOLERANCE
    back = convert.from_huggingface(new.path)
    convert.load_adapter(back, tmp_path / "again")
    np.testing.assert_allclose(ours(back), ours(model), atol=TOLERANCE)
    convert.to_huggingface(model, tmp_path / "merged")
    np.testing.assert_allclose(
        ours(convert.from_huggingface(tmp_path / "merged")), ours(model), atol=TOLERANCE
    )


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi3", "deepseek_v3", "bert"])
def test_adapters_are_written(name, made, tmp_path):
    """Those of `enable_lora`, whose heads have a matrix each."""
    new = made(name)
    model = convert.from_huggingface(new.path)
    enable_lora(model, 2, alpha=3, projections=ALL)
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(random.normal(size=variable.shape, scale=0.3))
    convert.save_adapter(model, tmp_path / "adapter", base="of/nobody")
    values = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert values["base_model_name_or_path"] == "of/nobody" and values["modules_to_save"] is None
    assert values["task_type"] == (None if name == "bert" else "CAUSAL_LM")
    modules = dict(new.theirs.named_modules())
    assert all(isinstance(modules[x], LINEAR) for x in values["target_modules"])
    assert differ(model, with_adapter(new.theirs, tmp_path / "adapter")) <= TOLERANCE
    back = convert.from_huggingface(new.path)
    convert.load_adapter(back, tmp_path / "adapter")
    np.testing.assert_allclose(ours(back), ours(model), atol=TOLERANCE)


def test_tied_tables_of_an_adapter(made, tmp_path):
    """A pair of both at once; and files with both names, as `peft` writes it beside new tokens."""
    new = made("gpt2")
    path = write(new.theirs, tmp_path / "pair", r".*wte", ensure_weight_tying=True)
    model = convert.from_huggingface(new.path)
    convert.load_adapter(model, path)
    assert differ(model, with_adapter(new.theirs, path)) <= TOLERANCE
    path = write(new.theirs, tmp_path / "adapter", r".*c_fc", r".*wte|lm_head")
    file = path / "adapter_model.safetensors"
    tensors = models.stored(path)
    table = tensors[f"{START}transformer.wte.weight"]
    for other, tied in ((table, True), (table + 1, False)):
        tensors[f"{START}lm_head.base_layer.weight"] = other
        tensors.pop(f"{START}lm_head.weight", None)
        models.save(path, tensors)
        (path / "model.safetensors").rename(file)
        model = convert.from_huggingface(new.path)
        if tied:
            convert.load_adapter(model, path)
            np.testing.assert_array_equal(models.numpy(model.embeddings.table), table)
        else:
            with pytest.raises(ValueError, match="equal to its second names"):
                convert.load_adapter(model, path)


def test_a_decoder_of_states_has_adapters(made, tmp_path):
    """Of the folder of a causal language model, without its head."""
    new = made("llama")
    path = write(new.theirs, tmp_path / "adapter", r".*q_proj|.*embed_tokens")
    model = convert.from_huggingface(new.path, head=False)
    assert model.logits is None
    convert.load_adapter(model, path)
    expected = with_adapter(new.theirs, path).base_model
    found = models.call(expected, input_ids=IDS).last_hidden_state
    assert models.difference(model(IDS), found) <= TOLERANCE
