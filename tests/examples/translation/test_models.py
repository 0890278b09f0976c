"""The models of the translation example: steps, padding, masks, files."""

import importlib.util
import json
import zipfile

import keras
import numpy as np
import pytest

if not all(map(importlib.util.find_spec, ("sentencepiece", "sacrebleu", "sacremoses"))):
    pytest.skip("the example needs the extra `translation`", allow_module_level=True)

from examples import model_files
from examples.translation import command as translation
from examples.translation import data as translation_data
from examples.translation import models as translation_models
from examples.translation import prediction as translation_prediction
from examples.translation import recipes as translation_recipes
from examples.translation import sample as translation_sample
from examples.translation import text
from keras_attention import masks
from tests.examples.translation.runs import array


def tiny(name, tokenizer_model, positions=None):
    recipe = translation_recipes.RECIPES[name]
    return translation_models.build(recipe, tokenizer_model, 0.2, True, positions)


@pytest.mark.parametrize(
    "name, positions",
    [
        *((name, None) for name in translation.MODELS),
        *(("transformer", p) for p in ("rotary", "sin-cos")),
    ],
)
def test_steps_are_the_training_graph(name, positions, tokenizer, tokenizer_model, tmp_path):
    model = tiny(name, tokenizer_model, positions)
    english, german = translation_sample.generate(3, 5)
    pairs = text.encode_pairs(tokenizer, translation_data.Pairs(english, german))
    (source, given), _ = text.Batch(np.arange(3), 16, 16).arrays(pairs)
    whole = array(model((source, given)))
    cache, memory = model.start(keras.ops.convert_to_tensor(source), 16)
    shortest = min(len(row) for row in pairs.target) + 1
    for place in range(3):
        logits, cache = model.step(keras.ops.convert_to_tensor(given[:, place]), cache, memory)
        np.testing.assert_allclose(array(logits), whole[:, place], atol=2e-5)
    assert shortest > 3 and np.abs(whole[:, 1] - whole[:, 2]).max() > 1e-2

    # And the file holds all of it, subwords included.
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(array(loaded((source, given))), whole, atol=1e-6)
    assert text.encode(loaded.tokenizer, german) == pairs.target


@pytest.mark.slow
@pytest.mark.parametrize("extra", [1, 5])
@pytest.mark.parametrize(
    "name, positions",
    [("transformer", p) for p in translation.POSITIONS] + [("bahdanau", None), ("luong", None)],
)
def test_padding_changes_nothing_and_gets_no_weight(name, positions, extra, tokenizer_model):
    model = tiny(name, tokenizer_model, positions)
    source = np.array([[5, 6, 7, 8, 3], [9, 5, 3, 0, 0]], "int32")
    given = np.array([[2, 7, 9, 11], [2, 8, 0, 0]], "int32")
    real = given != 0

    def pad(tokens):
        return np.pad(tokens, [(0, 0), (0, extra)])

    outputs = array(model((source, given)))
    padded = array(model((pad(source), pad(given))))
    np.testing.assert_allclose(padded[:, :4][real], outputs[real], atol=1e-5)
    # The second row's sentence alone is as long as it is.
    alone = array(model((source[1:, :3], given[1:, :2])))
    np.testing.assert_allclose(outputs[1, :2], alone[0], atol=1e-5)

    weights = array(model.alignments(pad(source), pad(given)))
    assert weights.shape == (2, 4 + extra, 5 + extra)
    np.testing.assert_allclose(weights[:, :4].sum(-1)[real], 1, atol=1e-5)
    for row, length in enumerate((5, 3)):
        tokens = real[row].sum()
        assert (weights[row, :tokens, :length] > 0).all()
        assert (weights[row, :tokens, length:] == 0).all()

    # Decoding step by step, from a padded sentence.
    steps = [model.start(keras.ops.convert_to_tensor(x), 6) for x in (source, pad(source))]
    for token in ([2, 2], [7, 8]):
        logits = []
        for number, (cache, memory) in enumerate(steps):
            said, cache = model.step(keras.ops.convert_to_tensor(token), cache, memory)
            steps[number] = cache, memory
            logits.append(array(said))
        np.testing.assert_allclose(logits[1], logits[0], atol=1e-5)


@pytest.mark.slow
def test_padding_changes_no_translation(tokenizer_model, monkeypatch):
    model = tiny("transformer", tokenizer_model)
    # A new model hardly looks at the sentences, and translates all alike.
    for variable in model.decoder[0].trainable_variables:
        if "context_attention/value" in variable.path:
            variable.assign(20 * variable)
    # Nor does it end any before it has said something.
    table = model.embedding.embeddings
    table.assign(np.where(np.arange(table.shape[0])[:, None] == text.STOP, 0, array(table)))
    english, _ = translation_sample.generate(3, 5)
    monkeypatch.setattr(translation_prediction, "_most", lambda length: 10)
    found = []
    longest = max(map(len, text.encode(model.tokenizer, english))) + 1
    for length in (longest, longest + 40):
        monkeypatch.setattr(text, "SEARCH_LENGTHS", (length,))
        found.append(translation_prediction.Translate(model, beams=3, rows=2)(english))
    assert found[0] == found[1] and len(set(found[0])) > 1


@pytest.mark.parametrize("name", translation.MODELS)
def test_masks_are_kept_through_every_layer(name, tokenizer_model, monkeypatch):
    model = tiny(name, tokenizer_model)
    source = np.array([[5, 6, 3, 0]], "int32")
    given = np.array([[2, 7, 9, 0, 0, 0]], "int32")
    seen, call = [], keras.layers.Layer.__call__

    def spy(layer, *args, **kwargs):
        output = call(layer, *args, **kwargs)
        first = output[0] if isinstance(output, (list, tuple)) else output
        if len(first.shape) == 3:
            seen.append((layer, first.shape[1], masks.implicit(first)))
        return output

    children = [layer for layer in model.layers if layer is not model.tokenizer]
    monkeypatch.setattr(keras.layers.Layer, "__call__", spy)
    model((source, given), training=True)
    for child in children:
        found = [(length, mask) for layer, length, mask in seen if layer is child]
        assert found or child.name == "bridge", child.name
        for length, mask in found:
            tokens = source if length == 4 else given
            assert mask is not None and (array(mask) == (tokens != 0)).all(), child.name


def test_files_of_earlier_versions_load(tokenizer_model, tmp_path):
    model = tiny("transformer", tokenizer_model)
    model.save(tmp_path / "model.keras")
    inputs = np.array([[5, 6, 3]]), np.array([[2, 7]])
    # The first had KerasHub's layer of this name, and said nothing of what they need. The others
    # name the module as it was then.
    with (
        zipfile.ZipFile(tmp_path / "model.keras") as new,
        zipfile.ZipFile(tmp_path / "old.keras", "w") as old,
    ):
        assert "assets/layers/sentence_piece_tokenizer/vocabulary.spm" in new.namelist()
        for member in new.namelist():
            data = new.read(member)
            if member == "config.json":
                config = json.loads(data)
                assert "sentencepiece" in config["config"].pop("needs")
                config["module"] = "examples.translation_models"
                data = json.dumps(config)
            old.writestr(member, data)
    loaded = model_files.load(tmp_path / "old.keras")
    np.testing.assert_allclose(array(loaded(inputs)), array(model(inputs)), atol=1e-6)
    assert loaded.tokenizer.proto == tokenizer_model
    assert importlib.import_module("examples.translation_models").Transformer is type(model)


@pytest.mark.parametrize("schedule", translation.SCHEDULES)
def test_schedules_rise_to_the_rate_and_fall(schedule):
    optimizer = translation_models.optimizer(2e-3, 100, schedule, 1000)
    rates = [float(optimizer._learning_rate(step)) for step in (1, 50, 100, 500, 1000)]
    np.testing.assert_allclose(rates[2], 2e-3, rtol=1e-4)
    assert rates[0] < rates[1] < rates[2] > rates[3] > rates[4]
    assert (rates[4] < 1e-6) == (schedule == "cosine")


def test_positions_have_names():
    assert (*translation_models.IN_BLOCKS, "sin-cos") == translation.POSITIONS
    assert translation_recipes.RECIPES["transformer"].positions == translation.POSITIONS[0]


def test_positions_know_the_order_of_words(tokenizer_model):
    source, given = np.array([[5, 6, 7, 8]]), np.array([[2]])
    for positions in translation.POSITIONS:
        model = tiny("transformer", tokenizer_model, positions)
        after, turned = model((source, given)), model((source[:, ::-1], given))
        # Without positions a reversed sentence would be the same to the decoder.
        assert np.abs(array(after) - array(turned)).max() > 1e-3, positions


def test_the_loss_of_evaluation_is_of_sentences(tokenizer_model):
    model = tiny("luong", tokenizer_model)
    logits = keras.random.normal((2, 3, 7), seed=0)
    wanted = np.array([[4, 5, 3], [6, 3, 0]])
    chosen = array(keras.ops.log_softmax(logits))[[0, 0, 0, 1, 1], [0, 1, 2, 0, 1], [4, 5, 3, 6, 3]]
    loss = model.compute_loss(y=keras.ops.convert_to_tensor(wanted), y_pred=logits, training=False)
    np.testing.assert_allclose(float(loss), -chosen.sum() / 2, rtol=1e-5)
