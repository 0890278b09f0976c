"""The example program `examples.translation`, from its command line to its files."""

import gzip
import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("the example needs Keras on TensorFlow", allow_module_level=True)
if not all(map(importlib.util.find_spec, ("keras_hub", "sacrebleu"))):
    pytest.skip("the example needs keras-nlp and sacrebleu", allow_module_level=True)

import sacrebleu

from examples import (
    translation,
    translation_data,
    translation_models,
    translation_prediction,
    translation_recipes,
    translation_sample,
)
from examples import translation_text as text
from examples.errors import UsageError
from examples.run_directory import RunDirectory

ROOT = Path(__file__).parents[1]
SIZES = {"train": (400, 0), "val": (20, 1), "test_2016_flickr": (20, 2)}
TINY = ["--small", "--vocabulary-size", "500", "--batch-tokens", "512", "--beams", "2"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of 400 + 20 + 20 made-up pairs."""
    root = tmp_path_factory.mktemp("data") / "pairs"
    root.mkdir()
    for part, (count, seed) in SIZES.items():
        for language, sentences in zip(
            ("en", "de"), translation_sample.generate(count, seed), strict=True
        ):
            write(root, f"{part}.{language}.gz", sentences)
    return root


def write(root, name, sentences):
    data = "".join(f"{sentence}\n" for sentence in sentences).encode("utf-8")
    (root / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def lines(root, name):
    return gzip.decompress((root / name).read_bytes()).decode("utf-8").splitlines()


@pytest.fixture
def broken(folder, tmp_path):
    """A copy of the folder, to be damaged."""
    root = tmp_path / "pairs"
    root.mkdir()
    for path in folder.iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    return root


@pytest.fixture(scope="session")
def tokenizer_model():
    sentences = [*translation_sample.generate(400, 0)[0], *translation_sample.generate(400, 0)[1]]
    return text.learn_tokenizer(sentences, 500)


@pytest.fixture(scope="session")
def tokenizer(tokenizer_model):
    return text.make_tokenizer(tokenizer_model)


def main(*arguments):
    return translation.main([str(argument) for argument in arguments])


def figures(output):
    return json.loads((output / "figures.json").read_text(encoding="utf-8"))


def curves(output):
    """What each epoch gave, without the time that it took."""
    timed = ("seconds", "tokens_per_second")
    return [
        {name: value for name, value in epoch.items() if name not in timed}
        for epoch in figures(output)["epochs"]
    ]


# Data


def no_such_folder(root):
    for path in root.iterdir():
        path.unlink()
    root.rmdir()


def unequal(root):
    write(root, "train.de.gz", lines(root, "train.de.gz")[:-1])


def empty(root):
    write(root, "val.de.gz", [])


def empty_line(root):
    write(root, "val.de.gz", ["Ein Hund.", " ", *lines(root, "val.de.gz")[2:]])


def latin_1(root):
    data = "\n".join(["Ein Hund.", "Ein Bär.", *lines(root, "val.de.gz")[2:]]).encode("latin-1")
    (root / "val.de.gz").write_bytes(gzip.compress(data))


def no_gzip(root):
    (root / "train.en.gz").write_bytes(b"A dog.\n")


def cut_short(root):
    (root / "train.en.gz").write_bytes((root / "train.en.gz").read_bytes()[:-20])


def missing(root):
    (root / "test_2016_flickr.de.gz").unlink()


def untranslated(root):
    write(root, "train.de.gz", lines(root, "train.en.gz"))


def shuffled(root):
    order = np.random.default_rng(0).permutation(SIZES["train"][0])
    german = lines(root, "train.de.gz")
    write(root, "train.de.gz", [german[place] for place in order])


def same_parts(root):
    for language in ("en", "de"):
        write(root, f"test_2016_flickr.{language}.gz", lines(root, f"train.{language}.gz"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_such_folder, "is not a directory"),
        (unequal, "train.en.gz has 400 lines and {}/train.de.gz has 399"),
        (empty, "val.de.gz is empty"),
        (empty_line, "val.de.gz has no sentence in line 2"),
        (latin_1, "val.de.gz is not UTF-8 text: invalid continuation byte in line 2"),
        (no_gzip, "train.en.gz is damaged or no gzip file: Not a gzipped file"),
        (cut_short, "train.en.gz is damaged or no gzip file"),
        (missing, "has no test_2016_flickr.de[.gz] or test.de[.gz]. It holds test_2016_flickr.en"),
        (untranslated, "hold the same sentences"),
        (shuffled, "do not seem to belong together"),
        (same_parts, "holds the same sentences in train and test"),
    ],
)
def test_damaged_folder(broken, tmp_path, capsys, damage, message):
    damage(broken)
    output = tmp_path / "run"
    assert main("--data-dir", broken, "--output", output) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message.format(broken) in err
    assert len(err.splitlines()) == 1 and not output.exists()


def test_languages_choose_the_files(folder, broken, capsys):
    there = translation_data.load(folder, "de", "en")
    back = translation_data.load(folder)
    assert there.languages == ("de", "en") and there.train.source == back.train.target
    for arguments, message in (
        (["--target", "fr"], "has no train.fr[.gz]"),
        (["--target", "en"], "are both 'en'"),
    ):
        assert main("--data-dir", broken, *arguments) == 2
        assert message in capsys.readouterr().err


def test_plain_files_and_strange_ends_of_lines(folder, tmp_path):
    expected = translation_data.load(folder)
    for path in folder.iterdir():
        write(tmp_path, path.name.removesuffix(".gz"), lines(folder, path.name))
    # U+0085 and U+2028 stand inside of sentences; a byte-order mark and \r\n belong to none.
    english = ["A\u0085man\u2028sits.", *expected.validation.source[1:]]
    (tmp_path / "val.en").write_bytes("\r\n".join(english).encode("utf-8-sig"))
    found = translation_data.load(tmp_path)
    assert found.train == expected.train and found.test == expected.test
    assert found.validation.source == english


def test_fallback_says_so(monkeypatch):
    def fail(source, target):
        raise ConnectionError(f"no route\nto {source} {target}")

    monkeypatch.setattr(translation_data, "from_tensorflow_datasets", fail)
    dataset = translation_data.load()
    assert "MADE-UP" in dataset.warning and "ConnectionError: no route to pt en" in dataset.warning
    assert dataset.name == "embedded sample (made-up sentences)"


class FakeBuilder:
    """Stands in for TensorFlow Datasets' builder of ted_hrlr_translate."""

    def __init__(self, name):
        self.name = name

    def is_prepared(self):
        return self.name == "ted_hrlr_translate/pt_to_en"

    def download_and_prepare(self):
        raise AssertionError("the download must not start when the host does not answer")

    def as_dataset(self, split, batch_size):
        rows = {"pt": [f"olá {split}", " "], "en": [f"hello {split}", "nothing"]}
        return {name: [row.encode() for row in texts] for name, texts in rows.items()}


def test_tensorflow_datasets_come_before_the_sample(monkeypatch):
    module = types.SimpleNamespace(
        builder=lambda name, **kwargs: FakeBuilder(name), as_numpy=lambda rows: rows
    )
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    dataset = translation_data.load()
    assert dataset.name == "ted_hrlr_translate (TensorFlow Datasets)"
    assert dataset.train == translation_data.Pairs(["olá train"], ["hello train"])

    def refuse(address, timeout):
        raise OSError("unreachable")

    monkeypatch.setattr(translation_data.socket, "create_connection", refuse)
    monkeypatch.setattr(translation_data.urllib.request, "getproxies", dict)
    assert "OSError: unreachable" in translation_data.load(source="az", target="en").warning


def test_sample_is_reproducible_and_has_endings():
    pairs = translation_sample.generate(500, 3)
    assert pairs == translation_sample.generate(500, 3) != translation_sample.generate(500, 4)
    translations = dict(zip(*pairs, strict=True))
    for english, german in translations.items():
        assert ("Two" in english) == ("Zwei" in german)
        assert not ("Ein " in german and "Frau " in german)
    limited = translation_data.Pairs(*pairs).limited(20, 0)
    assert len(limited) == 20 and all(
        translations[e] == g for e, g in zip(limited.source, limited.target, strict=True)
    )


# Subwords and batches


STRANGE = [
    "Zoë läuft für 5 € durch die Straße.",
    "日本 🙂",
    "A\u00a0B",
    "<s> ▁ </s>",
    "x" * 300,
    "",
]


def test_what_is_decoded_is_what_was_encoded(tokenizer):
    sentences = [*translation_sample.generate(50, 9)[1], *STRANGE[:3], *STRANGE[4:]]
    assert text.decode(tokenizer, text.encode(tokenizer, sentences)) == sentences
    rows = text.encode(tokenizer, STRANGE)
    assert all(token > text.STOP for row in rows for token in row)
    stopped = [[*row, text.STOP, 77, text.PADDING] for row in text.encode(tokenizer, sentences)]
    assert text.decode(tokenizer, stopped) == sentences
    assert text.decode(tokenizer, text.encode(tokenizer, ["a\0b", " a   b "])) == ["a b", "a b"]


def test_small_texts_have_small_vocabularies():
    tokenizer = text.make_tokenizer(text.learn_tokenizer(["ein hund", "a dog"], 6000))
    assert tokenizer.vocabulary_size() < 400
    with pytest.raises(UsageError, match="No vocabulary of 100 subwords"):
        text.learn_tokenizer(["ein hund", "a dog"], 100)


def test_every_pair_is_in_one_batch_of_its_length():
    lengths = np.random.default_rng(0).integers(2, 60, size=500)
    found = text.buckets(lengths, np.arange(500), batch_tokens=256)
    assert sorted(place for part, _ in found for place in part) == list(range(500))
    assert {length for _, length in found} <= set(text.LENGTHS)
    for place, (part, length) in enumerate(found):
        assert lengths[part].max() <= length
        full = len(part) == text.rows_of(length, 256)
        assert full or place == len(found) - 1


def test_batches_of_training_are_full_and_depend_on_the_seed():
    lengths = np.random.default_rng(0).integers(2, 100, size=300)
    pairs = text.EncodedPairs([[5]] * 300, [[6]] * 300, lengths)
    found = text.training_batches(pairs, 256, np.random.default_rng(1))
    again = text.training_batches(pairs, 256, np.random.default_rng(1))
    other = text.training_batches(pairs, 256, np.random.default_rng(2))
    assert all(len(part) == text.rows_of(length, 256) for part, length in found)
    seen = {int(place) for part, _ in found for place in part}
    assert seen == set(np.flatnonzero(lengths <= text.LENGTHS[-1]).tolist())
    same = [np.array_equal(a, b) for (a, _), (b, _) in zip(found, again, strict=True)]
    assert all(same) and any(
        not np.array_equal(a, b) for (a, _), (b, _) in zip(found, other, strict=False)
    )


def test_a_batch_is_shifted_by_one():
    pairs = text.EncodedPairs([[5, 6]], [[7, 8, 9]], np.array([4]))
    (source, given), wanted = text.batch(pairs, [0], 6, rows=2)
    assert source.tolist() == [[5, 6, 3, 0, 0, 0], [0] * 6]
    assert given.tolist() == [[2, 7, 8, 9, 0, 0], [0] * 6]
    assert wanted.tolist() == [[7, 8, 9, 3, 0, 0], [0] * 6]


# Models


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
    (source, given), _ = text.batch(pairs, range(3), 16, rows=3)
    whole = np.asarray(model((source, given)))
    cache, memory = model.start(keras.ops.convert_to_tensor(source), 16)
    shortest = min(len(row) for row in pairs.target) + 1
    for place in range(3):
        logits, cache = model.step(keras.ops.convert_to_tensor(given[:, place]), cache, memory)
        np.testing.assert_allclose(logits, whole[:, place], atol=2e-5)
    assert shortest > 3 and np.abs(whole[:, 1] - whole[:, 2]).max() > 1e-2

    # And the file holds all of it, subwords included.
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded((source, given)), whole, atol=1e-6)
    assert text.encode(loaded.tokenizer, german) == pairs.target

    weights = np.asarray(model.alignments(source[:, :9], given[:, :5]))
    assert weights.shape == (3, 5, 9)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert np.abs(weights[source[:, None, :9].repeat(5, 1) == 0]).max(initial=0) == 0


def test_positions_have_names():
    assert (*translation_models.IN_BLOCKS, "sin-cos") == translation.POSITIONS
    assert translation_recipes.RECIPES["transformer"].positions == translation.POSITIONS[0]


def test_positions_know_the_order_of_words(tokenizer_model):
    source, given = np.array([[5, 6, 7, 8]]), np.array([[2]])
    for positions in translation.POSITIONS:
        model = tiny("transformer", tokenizer_model, positions)
        after, turned = model((source, given)), model((source[:, ::-1], given))
        # Without positions a reversed sentence would be the same to the decoder.
        assert np.abs(np.asarray(after) - np.asarray(turned)).max() > 1e-3, positions


# The program


@pytest.fixture(scope="session")
def finished(folder, tmp_path_factory):
    """The output of an uninterrupted run of two epochs."""
    output = tmp_path_factory.mktemp("runs") / "finished"
    assert main(*TINY, "--epochs", "2", "--data-dir", folder, "--output", output) == 0
    return output


@pytest.mark.slow
def test_the_run_leaves_what_it_says(folder, finished):
    said = figures(finished)
    assert said["finished"] and said["sizes"] == {"train": 400, "validation": 20, "test": 20}
    assert {path.name for path in finished.iterdir()} == {
        "alignment.png",
        "curves.png",
        "figures.json",
        "model.keras",
        "test.txt",
        "tokenizer.spm",
    }
    translations = (finished / "test.txt").read_text(encoding="utf-8").split("\n")[:-1]
    wanted = lines(folder, "test_2016_flickr.de.gz")
    score = sacrebleu.corpus_bleu(translations, [wanted]).score
    np.testing.assert_allclose(said["test_bleu"], score)
    model = translation_prediction.load(finished, "examples.translation")
    greedily = translation_prediction.Translate(model, 1)(lines(folder, "test_2016_flickr.en.gz"))
    score = sacrebleu.corpus_bleu(greedily, [wanted]).score
    np.testing.assert_allclose(said["test_greedy_bleu"], score)
    assert said["bleu_signature"].startswith("nrefs:1|case:mixed|")
    losses = [epoch["train_loss"] for epoch in said["epochs"]]
    assert losses[1] < losses[0] and all(epoch["tokens_per_second"] for epoch in said["epochs"])


@pytest.mark.slow
def test_interrupted_run_resumes_to_the_same_figures(
    folder, finished, tmp_path, monkeypatch, capsys
):
    output = tmp_path / "run"
    command = [*TINY, "--epochs", 2, "--data-dir", folder, "--output", output]
    finish_epoch = RunDirectory.finish_epoch

    def interrupt(run, model, epoch):
        if len(run.epochs) == 1:
            raise KeyboardInterrupt
        finish_epoch(run, model, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "finish_epoch", interrupt)
        assert main(*command) == 130
    assert curves(output) == curves(finished)[:1]
    assert main(*command) == 0
    assert "Resuming after epoch 1" in capsys.readouterr().out
    assert curves(output) == curves(finished)
    assert (output / "test.txt").read_bytes() == (finished / "test.txt").read_bytes()


@pytest.mark.slow
def test_a_fresh_process_translates(folder, finished, tmp_path):
    english = lines(folder, "test_2016_flickr.en.gz")[:3]
    picture = tmp_path / "alignment.png"
    command = [sys.executable, "-m", "examples.translation", "translate", str(finished), *english]
    done = subprocess.run(
        [*command, "--beams", "2", "--picture", str(picture)],
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = (finished / "test.txt").read_text(encoding="utf-8").split("\n")[:3]
    assert done.stdout.split("\n")[:-1] == expected
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_other_settings_and_finished_runs(folder, finished, capsys):
    command = [*TINY, "--data-dir", folder, "--output", finished]
    assert main(*command, "--epochs", 3) == 2
    assert "epochs is 2 there and 3 now" in capsys.readouterr().err
    assert main(*command, "--epochs", 2, "--target", "de") == 0
    assert "finished already" in capsys.readouterr().out
    assert main(*command, "--epochs", 2, "--source", "de", "--target", "en") == 2
    assert "languages is ['en', 'de'] there" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bahdanau", "luong"])
def test_recurrent_models_run(folder, tmp_path, name):
    output = tmp_path / name
    command = [*TINY, "--limit", 60, "--epochs", 1, "--data-dir", folder, "--output", output]
    assert main(*command, "--model", name) == 0
    assert figures(output)["finished"] and (output / "alignment.png").exists()


# The command line


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "other"],
        ["--epochs", "0"],
        ["--vocabulary-size", "10"],
        ["--dropout", "1"],
        ["--positions", "none"],
        ["--data-dir", "x", "--sample"],
        ["translate"],
        ["translate", "runs/translation-transformer"],
        ["translate", "runs/translation-transformer", "Hello.", "--beams", "0"],
    ],
    ids=" ".join,
)
def test_wrong_command_line(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(*arguments)
    assert exit_.value.code == 2 and "usage: " in capsys.readouterr().err


def test_positions_of_recurrent_models_are_refused(tmp_path, capsys):
    assert main("--model", "luong", "--positions", "shaw", "--output", tmp_path / "x") == 2
    assert "--positions is for the transformer" in capsys.readouterr().err


def test_other_backend_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert main("--sample") == 2
    assert "Set KERAS_BACKEND=tensorflow" in capsys.readouterr().err


def test_translate_without_a_usable_model(tmp_path, capsys):
    assert main("translate", tmp_path / "nowhere", "Hello.") == 2
    assert "figures.json cannot be read" in capsys.readouterr().err
    run = RunDirectory(tmp_path / "run", translation.PROGRAM)
    run.begin({})
    assert main("translate", tmp_path / "run", "Hello.") == 2
    assert "is not finished (0 epochs so far)" in capsys.readouterr().err
    run.finish()
    run.close()
    assert main("translate", tmp_path / "run", "Hello.") == 2
    assert "model.keras cannot be read: No such file" in capsys.readouterr().err
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.save(tmp_path / "run" / "model.keras")
    assert main("translate", tmp_path / "run", "Hello.") == 2
    assert "it is a Sequential" in capsys.readouterr().err
