"""Where the pairs of the example come from, and what is said of damaged ones."""

import gzip
import importlib.util
import sys
import types

import numpy as np
import pytest

if not all(map(importlib.util.find_spec, ("sentencepiece", "sacrebleu", "sacremoses"))):
    pytest.skip("the example needs the extra `translation`", allow_module_level=True)

from examples import network
from examples.translation import data as translation_data
from examples.translation import sample as translation_sample
from tests.examples.translation.runs import SIZES, lines, main, write


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
    write(root, "train.de.gz", [german[index] for index in order])


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
    # U+0085 and U+2028 occur inside of sentences; a byte-order mark and \r\n belong to none.
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
    assert dataset.name == "embedded sample (synthetic sentences)"


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

    monkeypatch.setattr(network.socket, "create_connection", refuse)
    monkeypatch.setattr(network.urllib.request, "getproxies", dict)
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
