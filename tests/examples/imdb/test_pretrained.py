"""`--pretrained`: models of folders in Hugging Face's format learn to classify reviews."""

import importlib.util

import keras
import numpy as np
import pytest

if not all(map(importlib.util.find_spec, ("tokenizers", "safetensors"))):
    pytest.skip("what reads such folders is missing", allow_module_level=True)


from examples import imdb_classification, imdb_reviews, texts, training
from tests.examples.conftest import figures
from tests.examples.imdb.folders import write_gpt2, write_tokenizer
from tests.examples.imdb.runs import main, settings_of

TEXTS = ["A superb plot.", "Dull, dull and dull! The villain is dull, and so is the hero.", "Bad"]


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    write_tokenizer(folder, imdb_reviews.generate(200, 0)[0])
    write_gpt2(folder)
    return folder


SETTINGS = settings_of("pretrained", max_length=16)


def classifier(folder, lora=None):
    model, tokenizer = texts.load_pretrained(folder, 16, "--max-length")
    return imdb_classification.build(
        {**SETTINGS, "lora": lora}, None, folder_model=model
    ), tokenizer


def batch(tokenizer, given=TEXTS):
    return texts.pad(imdb_classification.encode(tokenizer, given, SETTINGS), 16)


def numpy(variables):
    return {v.path: np.array(keras.ops.convert_to_numpy(v)) for v in variables}


@pytest.mark.parametrize("lora", [None, 2], ids=["whole", "lora"])
def test_a_step_changes_only_what_is_to_be_trained(lora, gpt2):
    model, tokenizer = classifier(gpt2, lora)
    model.compile(training.fine_tuning(1e-2, 4), "binary_crossentropy")
    # A program takes longer than all else here, but on JAX one for each operation does.
    model.run_eagerly = keras.backend.backend() != "jax"
    before = numpy(model.variables)
    for _ in range(2):  # In the first step the gradient of A is 0, since B is.
        model.train_on_batch(batch(tokenizer), np.array([[1], [0], [0]]))
    after = numpy(model.variables)
    changed = {path for path in after if np.any(after[path] != before[path])}
    changed = {path for path in changed if "seed" not in path}
    trained = {variable.path for variable in model.trainable_variables}
    # The bias of a key moves all scores of a query alike.
    unmoved = {path for path in trained - changed if "attention/key/bias" not in path}
    assert changed <= trained and not unmoved
    if lora:
        assert {path for path in trained if "lora_kernel" not in path} == {
            "probability/kernel", "probability/bias",
        }  # fmt: skip
        assert len(trained) == 2 * 2 + 2
    else:
        assert len(trained) == len([path for path in before if "seed" not in path])


def test_a_run_trains_and_saves(gpt2, folder, tmp_path):
    common = ["--max-length", 16, "--batch-size", 16, "--epochs", 2, "--data-dir", folder]
    output = tmp_path / "run"
    assert main("--pretrained", gpt2, "--lora", 2, *common, "--output", output) == 0
    assert sorted(file.name for file in output.iterdir()) == [
        "figures.json", "model.keras", "tokenizer.json",
    ]  # fmt: skip
    said = figures(output)
    assert said["settings"]["learning_rate"] == 5e-4
    # The adapters are in the kernels, whose number is that of the folder's model and the head.
    saved = keras.models.load_model(output / "model.keras")
    assert saved.count_params() == classifier(gpt2)[0].count_params()
    _, _, test = imdb_reviews.load(folder)
    found = saved.predict_on_batch(batch(texts.load_tokenizer(output), test.texts))[:, 0]
    accuracy = np.mean((found > 0.5) == test.labels)
    assert accuracy == pytest.approx(said["test_accuracy"], abs=1e-6)


def test_the_rate_of_a_whole_model(gpt2, tmp_path, monkeypatch):
    seen = []

    def stop(path, program, settings):
        seen.append(settings["learning_rate"])
        raise KeyboardInterrupt

    monkeypatch.setattr("examples.shared.Run", stop)
    for options in ((), ("--learning-rate", 0.1)):
        assert main("--pretrained", gpt2, *options, "--output", tmp_path) == 130
    assert seen == [2e-5, 0.1]


def test_texts_are_between_special_tokens_and_shortened_in_the_middle(gpt2):
    tokenizer = texts.load_tokenizer(gpt2)
    given = [" ".join(["word"] * 60), "Bad<br />plot", "Bad plot", ""]
    long, short, same, empty = imdb_classification.encode(tokenizer, given, SETTINGS)
    assert len(long) == 16 and len(short) < 16
    for numbers in (long, short):
        assert numbers[0] == 0 + 1 and numbers[-1] == 2 + 1
    np.testing.assert_array_equal(short, same)
    assert empty.tolist() == [1, 3]
