"""What `examples.imdb_classification predict` prints for texts."""

import ast
import os
import shutil
import subprocess
import sys

import keras
import pytest

import keras_attention
from examples.imdb import models as imdb_models
from examples.imdb import prediction as imdb_prediction
from examples.imdb import recipes as imdb_recipes
from examples.imdb import text as imdb_text
from tests.examples.imdb.runs import (
    ROOT,
    TEXTS,
    foreign_figures,
    main,
    saved,
    small_model,
    unfinished,
)


def test_predict(finished, capsys):
    not_utf_8 = b"Am\xe9lie dull".decode("utf-8", "surrogateescape")
    texts = ["The plot was superb, zyxxy.", "dull " * 20_000, not_utf_8, "", "?!", "zyxxy xyzzy"]
    assert main("predict", finished, *texts) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(texts)
    for line in lines[:6:2]:
        label, probability = line.split()[:2]
        assert label == ("positive" if float(probability) >= 0.5 else "negative")
    assert "zyxxy (unknown) " in lines[1] and "superb " in lines[1]
    assert lines[3].strip() == "attended most: dull 100.0%"
    assert all(line.startswith("no label ") for line in lines[6::2])
    assert [line.strip() for line in lines[7::2]] == [
        "it has no words", "it has no words", "the model knows none of its words",
    ]  # fmt: skip


@pytest.mark.parametrize("name", imdb_recipes.RECIPES)
def test_percentages_sum_to_100(name):
    predictor = imdb_prediction.Predictor(*small_model(name))
    for prediction in predictor([*TEXTS, "the superb plot was not all dull at " * 30 + "zyxxy"]):
        assert sum(weight for _, weight, _ in prediction.attended) == pytest.approx(1, abs=1e-5)
        shown = imdb_prediction.report(prediction).partition("attended most: ")[2]
        percentages = [float(part.split()[-1].rstrip("%")) for part in shown.split("%, ")]
        assert sum(percentages) == pytest.approx(100, abs=0.5)


@pytest.mark.parametrize("name", imdb_recipes.RECIPES)
def test_punctuation_is_no_word(name):
    predictor = imdb_prediction.Predictor(*small_model(name))
    # `best` has seen commas.
    for text, reason in (
        (",", "it has no words"),
        ("_ ?! ,", "it has no words"),
        ("zyxxy,", "the model knows none of its words"),
    ):
        (prediction,) = predictor([text])
        assert imdb_prediction.report(prediction) == f'no label  "{text}"\n    {reason}'
    (prediction,) = predictor(["superb,"])
    assert prediction.label is not None


def test_attended_words_have_the_weights_of_the_layer(finished):
    predictor = imdb_prediction.Predictor(*saved(finished))
    text = "The plot was superb and the plot was honest, nobody could call the villain dull, superb"
    (prediction,) = predictor([text])
    classifier, encode = saved(finished)
    ids = encode(text)[None]
    assert prediction.probability == pytest.approx(
        float(classifier.predict_on_batch(ids)[0, 0]), abs=1e-6
    )
    # The last 12 of 16 words fill the model's input.
    kept = imdb_text.tokens(text)[-12:]
    assert {word for word, _, _ in prediction.attended} == set(kept)
    weights = [weight for _, weight, _ in prediction.attended]
    assert sum(weights) == pytest.approx(1.0, abs=1e-5) and weights == sorted(weights)[::-1]

    x = classifier.get_layer("embedding")(ids)
    _, scores = classifier.get_layer("attention")([x, x, x], return_attention_scores=True)
    per_place = keras.ops.convert_to_numpy(scores)[0].mean(axis=(0, 1))
    for word, weight, _ in prediction.attended:
        indices = [index for index, other in enumerate(kept) if other == word]
        assert weight == pytest.approx(per_place[indices].sum(), rel=1e-4)


def test_the_transformer_of_earlier_versions_predicts(tmp_path):
    # It was a functional model of these layers, and has the same weights now.
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras_attention.ScaledEmbedding(9, 64, mask_zero=True, name="embedding")(ids)
    x = keras_attention.SinCosPositionEmbedding(name="positions")(x)
    x = keras.layers.Dropout(0.2, name="embedding_dropout")(x)
    x = keras_attention.TransformerBlock(
        intermediate_dim=128, num_heads=4, dropout=0.2, normalize_first=True, name="block"
    )(x)
    x = keras.layers.LayerNormalization(name="norm")(x)
    x = keras_attention.AttentionPooling(name="attention")(x)
    former = keras.Model(ids, imdb_models.probability(x), name="classifier")
    former.save(tmp_path / "model.keras")
    encode = imdb_text.Encoder(["plot", "dull", "not"], 10, "both_ends")
    (prediction,) = imdb_prediction.load(tmp_path / "model.keras", encode)(["Dull, not a plot!"])
    row = encode("Dull, not a plot!")[None]
    expected = former.predict_on_batch(row)[0, 0]
    assert prediction.probability == pytest.approx(expected, abs=1e-5)

    present = imdb_models.build(imdb_recipes.RECIPES["transformer"], 9)
    table, *others = former.get_weights()
    # An `Encoder` has its blocks before its embeddings.
    present.set_weights([*others[:16], table, *others[16:]])
    assert present.predict_on_batch(row)[0, 0] == pytest.approx(expected, abs=1e-5)


def other_model(path):
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]).save(path / "model.keras")


def cut_model(path):
    file = path / "model.keras"
    file.write_bytes(file.read_bytes()[:1000])


def zeroed_model(path):
    file = path / "model.keras"
    file.write_bytes(bytes(len(file.read_bytes())))


def no_model(path):
    (path / "model.keras").unlink()


def no_words(path):
    (path / "text.npz").unlink()


def cut_words(path):
    file = path / "text.npz"
    file.write_bytes(file.read_bytes()[:-300])


def zeroed_words(path):
    file = path / "text.npz"
    file.write_bytes(bytes(len(file.read_bytes())))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (other_model, "is not a model of this program"),
        (cut_model, "is cut short"),
        (zeroed_model, "holds zeros"),
        (no_model, "cannot be read"),
        (no_words, "text.npz is missing. A run has it beside its model since version 0.2"),
        (cut_words, "text.npz is damaged"),
        (zeroed_words, "text.npz is damaged"),
        (unfinished, "is not finished"),
        (foreign_figures, "is of another program"),
        (shutil.rmtree, "cannot be read"),
    ],
)
def test_predict_without_a_usable_model(finished, tmp_path, capsys, damage, message):
    output = tmp_path / "run"
    if damage is not foreign_figures:
        shutil.copytree(finished, output)
    damage(output)
    assert main("predict", output, "Superb.") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_files_and_folders_in_the_wrong_places(finished, capsys):
    assert main("predict", finished / "model.keras", "Superb.") == 2
    assert f"Give the folder that it is in: {finished}" in capsys.readouterr().err
    assert main("predict", finished, finished) == 2
    assert "is a folder, and was given as a text" in capsys.readouterr().err


def test_nothing_is_printed_while_a_model_is_cloned(finished, monkeypatch, capfd):
    # As TensorFlow does, which Keras imports to clone a model, on other backends too.
    clone = keras.models.clone_model

    def cloned(*arguments, **options):
        os.write(2, b"cuda\n")
        return clone(*arguments, **options)

    monkeypatch.setattr(keras.models, "clone_model", cloned)
    assert main("predict", finished, "Superb.") == 0
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_predict_prints_nothing_but_the_answer(finished):
    backend = keras.backend.backend()
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    # What TensorFlow would say at its start.
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    done = subprocess.run(
        [sys.executable, "-m", "examples.imdb_classification", "predict", finished, "Superb."],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 2 and done.stderr == ""


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/imdb/[!_]*.py")), ids=lambda f: f.stem)
def test_nothing_imports_a_backend(file):
    imported = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert not imported & {"tensorflow", "jax", "torch"}
