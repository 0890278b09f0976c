"""The `config.json` of published models, at the size of two layers.

`published.json` has their fields as their authors published them, by the name of the model, without
labels of more than a few classes and with lists for two layers. Nothing but sizes is changed here.
Those after Pegasus are from memory of these files, and from what others quote of them.
"""

import copy
import json
import pathlib

import keras
import pytest

from keras_attention import convert
from keras_attention.convert.huggingface.config import Config
from tests.convert.huggingface import fields, models
from tests.convert.huggingface.fields import TABLES, Family
from tests.convert.huggingface.models import transformers

PUBLISHED = json.loads(
    (pathlib.Path(__file__).parent / "published.json").read_text(encoding="utf-8")
)
SIZES = {
    **dict(vocab_size=50, decoder_vocab_size=50, hidden_size=64, intermediate_size=32),
    **dict(num_hidden_layers=2, num_attention_heads=4, head_dim=16, num_kv_heads=2, n_embd=64),
    **dict(n_embed=64, n_head=4, n_heads=4, n_layer=2, n_layers=2, d_model=64, d_kv=16, d_ff=32),
    **dict(num_layers=2, num_decoder_layers=2, num_heads=4, dim=64, hidden_dim=32, ffn_dim=32),
    **dict(embedding_size=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4),
    **dict(decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, num_local_experts=4),
    **dict(num_experts_per_tok=2, experts_per_token=2, num_experts=4, moe_intermediate_size=24),
    **dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8),
    **dict(linear_value_head_dim=8, full_attention_interval=2),
    **dict(
        shared_expert_intermediate_size=24,
        n_routed_experts=4,
        kv_lora_rank=12,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
    ),
    **dict(v_head_dim=8, rotary_dim=8, image_size=8, patch_size=4, num_channels=2, num_mel_bins=5),
    **dict(max_source_positions=6, max_target_positions=20, projection_dim=24),
}
# Older names of classes.
NAMES = {"MPTForCausalLM": "MptForCausalLM"}
TOWERS = [name for name, x in PUBLISHED.items() if x["model_type"] in ("clip", "siglip")]
on_torch = pytest.mark.skipif(keras.config.backend() != "torch", reason="read alike everywhere")


def scaled(values):
    """The fields with small sizes; ratios of heads stay one, equal, or neither."""
    found = {}
    for name, value in copy.deepcopy(values).items():
        if isinstance(value, dict) and name.startswith(("text_config", "vision_config")):
            # Which are those of their class where they are not there.
            sizes = {"vision_config_dict": "image_size"}.get(name, "")
            if values["model_type"] == "siglip":
                sizes = "hidden_size intermediate_size num_hidden_layers num_attention_heads"
                sizes += " image_size patch_size" if name == "vision_config" else " vocab_size"
            found[name] = scaled({**value, **dict.fromkeys(sizes.split(), 0)})
        elif name in SIZES and value is not None:
            found[name] = SIZES[name]
        elif name.endswith("token_id") and isinstance(value, int):
            found[name] = min(value, 49)
        else:
            found[name] = value
    keys, heads = values.get("num_key_value_heads"), values.get("num_attention_heads")
    if keys is not None:
        found["num_key_value_heads"] = {1: 1, heads: 4}.get(keys, 2)
    if values.get("word_embed_proj_dim"):
        equal = values["word_embed_proj_dim"] == values["hidden_size"]
        found["word_embed_proj_dim"] = 64 if equal else 32
    return found


def class_of(values):
    """The class of `transformers`."""
    if not values.get("architectures"):
        config = transformers.CONFIG_MAPPING[values["model_type"]]
        return transformers.MODEL_MAPPING[config]
    name = values["architectures"][0]
    return getattr(transformers, NAMES.get(name, name))


def test_there_are_many_of_all_kinds():
    assert len(PUBLISHED) >= 40
    kinds = {values["model_type"] for values in PUBLISHED.values()} - {"clip", "siglip"}
    others = {"deit", "dinov2", "swin", "swinv2", "clip_text_model", "clip_vision_model"}
    others |= {"siglip_text_model", "siglip_vision_model"}
    assert TABLES.keys() - kinds == others


@pytest.mark.any_backend
@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in TOWERS])
def test_no_field_is_refused(name):
    values = PUBLISHED[name]
    Config(values, TABLES[values["model_type"]])


@on_torch
@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in TOWERS])
def test_it_computes_what_theirs_does(name, tmp_path):
    values = scaled(PUBLISHED[name])
    given = {k: v for k, v in values.items() if k not in ("model_type", *fields.TYPES)}
    Family(tmp_path, class_of(values), given, values)


@on_torch
@pytest.mark.parametrize("part", ["text", "vision"])
@pytest.mark.parametrize("name", TOWERS)
def test_a_tower_computes_what_theirs_does(name, part, tmp_path):
    values = scaled(PUBLISHED[name])
    given = {k: v for k, v in values.items() if k != "model_type"}
    model = models.write(tmp_path, class_of(values), given).theirs
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    ours = convert.from_huggingface(tmp_path, part=part)
    pixels = models.tensor(models.normal(3, 3, 8, 8))
    if values["model_type"] == "siglip":
        # Of a text, the last token's.
        ids = models.tokens((3, 9))
        feed = {"input_ids": models.tensor(ids)} if part == "text" else {"pixel_values": pixels}
        of_part = getattr(model, "get_text_features" if part == "text" else "get_image_features")
        expected = of_part(**feed).pooler_output
        found = ours(ids if part == "text" else models.numpy(pixels).transpose(0, 2, 3, 1))[:, -1]
    elif part == "text":
        ids = models.tokens((3, 9))
        states = models.call(model.text_model, input_ids=ids).last_hidden_state
        expected, found = model.text_projection(states), ours(ids)
    else:
        expected = model.get_image_features(pixels).pooler_output
        found = ours(models.numpy(pixels).transpose(0, 2, 3, 1))[:, 0]
    assert models.difference(found, expected) <= models.TOLERANCE
