"""Encoders of `transformers`, and ours with their weights."""

import numpy as np
import pytest

from tests.convert.huggingface.sequences import (
    LEFT,
    RIGHT,
    SIZES,
    assert_close,
    ids,
    outputs,
    pair,
    read_back,
    through_a_file,
)

DISTILBERT = {
    "vocab_size": 50,
    "dim": 16,
    "hidden_dim": 24,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": 40,
}
ROBERTA = {**SIZES, "type_vocab_size": 1, "pad_token_id": 1}
# Two groups of layers for three: the first is used twice.
ALBERT = {**SIZES, "embedding_size": 6, "num_hidden_layers": 3, "num_hidden_groups": 2}
# A window of one token on either side, and shorter wavelengths, in the second and third layers.
MODERN = {**SIZES, "num_hidden_layers": 4, "local_attention": 2}
MODERN |= dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id"), 0)
MODERN |= dict.fromkeys(("cls_token_id", "sep_token_id"), 0)
MODELS = {
    "BertModel": SIZES,
    "BertForMaskedLM": {**SIZES, "hidden_act": "gelu_new"},
    "BertForPreTraining": SIZES,
    "RobertaModel": ROBERTA,
    "RobertaForMaskedLM": ROBERTA,
    "XLMRobertaForMaskedLM": ROBERTA,
    "CamembertForMaskedLM": ROBERTA,
    "AlbertModel": ALBERT,
    "AlbertForMaskedLM": ALBERT,
    "ModernBertModel": MODERN,
    "ModernBertForMaskedLM": {**MODERN, "norm_bias": True, "classifier_bias": True},
    "DistilBertModel": DISTILBERT,
    "DistilBertForMaskedLM": {**DISTILBERT, "activation": "relu"},
}
IDS = ids(0, *RIGHT.shape)
TYPES = np.random.default_rng(1).integers(0, 2, IDS.shape).astype("int32")
WITH_TYPES = {"BertModel", "BertForMaskedLM", "BertForPreTraining", "AlbertModel"}
WITH_TYPES |= {"AlbertForMaskedLM"}
# These have no argument for positions, but distances only, or tokens that they count.
WITHOUT_POSITIONS = ("DistilBert", "ModernBert", "Roberta", "XLMRoberta", "Camembert")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            made[name] = pair(tmp_path_factory.mktemp(name), name, MODELS[name])
        return made[name]

    return get


def given(name, mask):
    """The inputs of the original, and ours."""
    padding = MODELS[name].get("pad_token_id", 0)
    tokens = np.where(mask, IDS, padding).astype("int32")
    theirs = {"input_ids": tokens, "attention_mask": mask.astype("int32")}
    ours = {"mask": mask}
    if name in WITH_TYPES:
        theirs["token_type_ids"] = ours["types"] = TYPES
    if not name.startswith(WITHOUT_POSITIONS):
        theirs["position_ids"] = np.maximum(np.cumsum(mask, axis=1) - 1, 0).astype("int32")
    return theirs, tokens, ours


def output(original, name, theirs):
    """Hidden states or logits."""
    found = outputs(original, **theirs)
    if name.endswith("Model"):
        return found.last_hidden_state
    return found.prediction_logits if name.endswith("PreTraining") else found.logits


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mask", [RIGHT, LEFT], ids=["right", "left"])
def test_states_and_logits(name, mask, pairs, record_property):
    if mask is LEFT and name.startswith("DistilBert"):
        # The original counts padding: what it gives for each row alone.
        return rows_alone(name, pairs)
    theirs, tokens, ours = given(name, mask)
    both = pairs(name)
    found = assert_close(both.ours(tokens, **ours), output(both.original, name, theirs), mask)
    print(f"{name}: {found:.1e}")


def rows_alone(name, pairs):
    both = pairs(name)
    _, tokens, ours = given(name, LEFT)
    found = both.ours(tokens, **ours)
    for row, mask in enumerate(LEFT):
        alone = {"input_ids": tokens[row : row + 1, mask]}
        assert_close(found[row : row + 1, int((~mask).sum()) :], output(both.original, name, alone))


@pytest.mark.parametrize("name", MODELS)
def test_saved_and_written_back(name, pairs, tmp_path):
    theirs, tokens, ours = given(name, RIGHT)
    both = pairs(name)
    loaded = through_a_file(both.ours, tmp_path)
    expected = output(both.original, name, theirs)
    assert_close(loaded(tokens, **ours), expected, RIGHT)
    back = read_back(loaded, both.original, tmp_path / "back")
    found = output(back, name, theirs)[RIGHT]
    np.testing.assert_allclose(found, expected[RIGHT], rtol=0, atol=1e-6)
