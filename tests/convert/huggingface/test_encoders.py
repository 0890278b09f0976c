"""Encoders of `transformers`, and ours with their weights."""

import keras
import numpy as np
import pytest

from keras_attention import convert
from tests.arrays import numpy
from tests.convert.huggingface.sequences import (
    LEFT,
    RIGHT,
    SIZES,
    additive,
    assert_close,
    ids,
    outputs,
    pair,
    random_pairs,
    read_back,
    rewritten,
    states_and_logits,
    tensor,
)

DISTILBERT = {
    **dict(vocab_size=50, dim=16, hidden_dim=24, n_layers=2, n_heads=4),
    **dict(max_position_embeddings=40),
}
MPNET = {**SIZES, "pad_token_id": 1}
ROBERTA = {**SIZES, "type_vocab_size": 1, "pad_token_id": 1}
# Windows of two and of four tokens on either side.
LONGFORMER = {**ROBERTA, "attention_window": [4, 8]}
# Two groups of layers for three: the first is used twice.
ALBERT = {**SIZES, "embedding_size": 6, "num_hidden_layers": 3, "num_hidden_groups": 2}
# A window of one token on either side, and shorter wavelengths, in the second and third layers.
MODERN = {**SIZES, "num_hidden_layers": 4, "local_attention": 2}
MODERN |= dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id"), 0)
MODERN |= dict.fromkeys(("cls_token_id", "sep_token_id"), 0)
# Distances of 1 and 2 have a row each, those of 3 to 5 share one: the texts have some of 6 too.
DEBERTA = {
    **SIZES,
    **dict(type_vocab_size=0, position_biased_input=False, relative_attention=True),
    **dict(position_buckets=4, max_relative_positions=6, norm_rel_ebd="layer_norm"),
    **dict(pos_att_type="p2c|c2p", share_att_key=True),
}
# A row for each distance, absolute positions, and token types.
PLAIN_DEBERTA = {
    **DEBERTA,
    **dict(type_vocab_size=2, position_biased_input=True, position_buckets=-1),
    **dict(max_relative_positions=4, norm_rel_ebd="none", hidden_act="gelu_new"),
}
# What comes after a comma tells models of one class apart.
MODELS = {
    "BertModel": SIZES,
    "BertForMaskedLM": {**SIZES, "hidden_act": "gelu_new"},
    "BertForPreTraining": SIZES,
    "RobertaModel": ROBERTA,
    "RobertaForMaskedLM": ROBERTA,
    "XLMRobertaForMaskedLM": ROBERTA,
    "CamembertForMaskedLM": ROBERTA,
    "LongformerModel": LONGFORMER,
    "LongformerForMaskedLM": {**ROBERTA, "attention_window": 4},
    "LongformerForSequenceClassification": {**LONGFORMER, "num_labels": 3},
    "AlbertModel": ALBERT,
    "AlbertForMaskedLM": ALBERT,
    "ModernBertModel": MODERN,
    "ModernBertForMaskedLM": {**MODERN, "norm_bias": True, "classifier_bias": True},
    "BertForSequenceClassification": {**SIZES, "num_labels": 3},
    "RobertaForSequenceClassification": {**ROBERTA, "num_labels": 3},
    "DistilBertForSequenceClassification": {**DISTILBERT, "num_labels": 3},
    "DebertaV2Model": DEBERTA,
    "DebertaV2ForMaskedLM": PLAIN_DEBERTA,
    "DebertaV2ForMaskedLM, version 3": {**DEBERTA, "legacy": False},
    "DebertaV2ForSequenceClassification": {**DEBERTA, "num_labels": 3, "pooler_hidden_act": "tanh"},
    "ElectraModel": {**SIZES, "embedding_size": 8},
    "ElectraForMaskedLM": {**SIZES, "embedding_size": 8},
    "ElectraForPreTraining": {**SIZES, "embedding_size": 16},
    "ElectraForSequenceClassification": {**SIZES, "embedding_size": 8, "num_labels": 3},
    "MPNetModel": MPNET,
    "MPNetForMaskedLM": MPNET,
    "MPNetForSequenceClassification": {**MPNET, "num_labels": 3},
    "DistilBertModel": DISTILBERT,
    "DistilBertForMaskedLM": {**DISTILBERT, "activation": "relu"},
}
CLASSIFIERS = [name for name in MODELS if name.endswith("Classification")]
IDS = ids(0, *RIGHT.shape)
TYPES = np.random.default_rng(1).integers(0, 2, IDS.shape).astype("int32")
WITH_TYPES = {"BertModel", "BertForMaskedLM", "BertForPreTraining", "AlbertModel"}
WITH_TYPES |= {
    "ElectraModel",
    "ElectraForMaskedLM",
    "AlbertForMaskedLM",
    "BertForSequenceClassification",
    "DebertaV2ForMaskedLM",
}
# These have no argument for positions, but distances only, or tokens that they count.
WITHOUT_POSITIONS = ("DistilBert", "ModernBert", "Roberta", "XLMRoberta", "Camembert", "MPNet")
WITHOUT_POSITIONS += ("Longformer",)


def given(name, mask):
    """The inputs of the original, and ours."""
    padding, times = MODELS[name].get("pad_token_id", 0), (len(mask) // len(IDS), 1)
    tokens = np.where(mask, np.tile(IDS, times), padding).astype("int32")
    theirs = {"input_ids": tokens, "attention_mask": mask.astype("int32")}
    ours = {"mask": mask}
    if name in WITH_TYPES:
        theirs["token_type_ids"] = ours["types"] = np.tile(TYPES, times)
    if not name.startswith(WITHOUT_POSITIONS):
        theirs["position_ids"] = np.maximum(np.cumsum(mask, axis=1) - 1, 0).astype("int32")
    if name.startswith("Longformer"):
        theirs["global_attention_mask"] = (mask & (np.cumsum(mask, axis=1) == 1)).astype("int32")
    return theirs, tokens, ours


def output(original, name, theirs):
    """Hidden states or logits."""
    found = outputs(original, **theirs)
    if name.endswith("Model"):
        return found.last_hidden_state
    if name == "ElectraForPreTraining":
        return found.logits[..., None]
    return found.prediction_logits if name.endswith("PreTraining") else found.logits


@pytest.mark.parametrize("name", MODELS)
def test_states_and_logits(name, pairs, measured):
    mask = RIGHT if name in CLASSIFIERS else np.concatenate([RIGHT, LEFT])
    if name.startswith("DistilBert") and name not in CLASSIFIERS:
        # The original counts padding: what it gives for each row alone.
        rows_alone(name, pairs)
        mask = RIGHT
    theirs, tokens, ours = given(name, mask)
    both = pairs(name)
    states, logits = states_and_logits(both.ours, tokens, **ours)
    expected = outputs(both.original.base_model, **theirs).last_hidden_state
    measured(both.ours, states=assert_close(states, expected, mask))
    if logits is not None:
        expected = output(both.original, name, theirs)
        # Of a classifier, those of the first token.
        given_logits = (logits[:, 0], expected) if name in CLASSIFIERS else (logits, expected, mask)
        measured(both.ours, logits=assert_close(*given_logits))


def rows_alone(name, pairs):
    both = pairs(name)
    _, tokens, ours = given(name, LEFT)
    found = both.ours(tokens, **ours)
    for row, mask in enumerate(LEFT):
        alone = {"input_ids": tokens[row : row + 1, mask]}
        assert_close(found[row : row + 1, int((~mask).sum()) :], output(both.original, name, alone))


@pytest.mark.parametrize("name", MODELS)
def test_saved_and_written_back(name, pairs, fresh, measured, tmp_path):
    theirs, tokens, ours = given(name, RIGHT)
    both = pairs(name)
    saved = fresh.check(both.ours, tmp_path, tokens, **ours)
    back = output(read_back(both.ours, both.original, tmp_path / "back"), name, theirs)
    real = None if name in CLASSIFIERS else RIGHT
    back = assert_close(back, output(both.original, name, theirs), real, tolerance=1e-6)
    measured(both.ours, saved=saved, back=back)


# DeBERTa's original multiplies the embeddings by the mask; Longformer's takes none of pairs.
NO_PAIRS = "DebertaV2Model", "LongformerModel"


@pytest.mark.parametrize(
    "name", [name for name in MODELS if name.endswith("Model") and name not in NO_PAIRS]
)
def test_a_mask_of_pairs(name, pairs):
    both, allowed = pairs(name), random_pairs(*IDS.shape)
    mask = tensor(additive(allowed))
    if name.startswith("ModernBert"):
        near = np.abs(np.subtract.outer(np.arange(7), np.arange(7))) <= 1
        mask = {"full_attention": mask, "sliding_attention": tensor(additive(allowed & near))}
    expected = outputs(both.original, input_ids=IDS, attention_mask=mask)
    assert_close(both.ours(IDS, attention_mask=allowed), expected.last_hidden_state)


def test_names_of_the_first_files_of_bert(tmp_path):
    """Norms with the names of TensorFlow 1, a pooler, and buffers."""
    from safetensors.numpy import load_file, save_file

    both = pair(tmp_path / "new", "BertModel", SIZES)
    folder = rewritten(tmp_path / "new", tmp_path / "old", gradient_checkpointing=False)
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): x
        for name, x in load_file(folder / "model.safetensors").items()
    }
    tensors["embeddings.position_ids"] = np.arange(40)[None]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    found = convert.from_huggingface(folder)(IDS, mask=RIGHT)
    np.testing.assert_array_equal(numpy(found), numpy(both.ours(IDS, mask=RIGHT)))


def test_modernbert_of_version_4(pairs, tmp_path):
    both = pairs("ModernBertModel")
    folder = rewritten(
        both.folder,
        tmp_path / "old",
        rope_parameters=None,
        layer_types=None,
        global_rope_theta=160000.0,
        local_rope_theta=10000.0,
        global_attn_every_n_layers=3,
        position_embedding_type="absolute",
    )
    found = convert.from_huggingface(folder)(IDS, mask=RIGHT)
    np.testing.assert_array_equal(numpy(found), numpy(both.ours(IDS, mask=RIGHT)))


def test_a_head_of_another_task_is_put_on_by_hand(tmp_path):
    """As docs/fine_tuning.md shows it."""
    import transformers
    from safetensors.numpy import load_file

    config = transformers.BertConfig(**SIZES, num_labels=5)
    original = transformers.BertForTokenClassification(config).eval()
    original.save_pretrained(tmp_path / "tokens")
    with pytest.raises(ValueError, match="BertForTokenClassification"):
        convert.from_huggingface(tmp_path / "tokens")
    folder = rewritten(tmp_path / "tokens", tmp_path / "base", architectures=["BertModel"])
    encoder = convert.from_huggingface(folder)
    head = keras.layers.Dense(5)
    head.build((None, None, SIZES["hidden_size"]))
    tensors = load_file(folder / "model.safetensors")
    head.set_weights([tensors["classifier.weight"].T, tensors["classifier.bias"]])
    theirs, tokens, ours = given("BertModel", RIGHT)
    expected = outputs(original, **theirs).logits
    assert_close(head(encoder(tokens, **ours)), expected, RIGHT)
