"""Where the pairs of sentences come from, and what is said of damaged ones."""

import gzip
import sys
import types

import numpy as np
import pytest

from examples import pairs, shared
from examples.shared import UsageError

pytestmark = pytest.mark.any_backend


def made_up():
    """The parts of the sample."""
    return pairs.load(sample=True)[1]


FILES = {"train": "train", "validation": "val", "test": "test_2016_flickr"}


def write(root, name, sentences):
    data = "".join(f"{sentence}\n" for sentence in sentences).encode("utf-8")
    (root / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def lines(root, name):
    return gzip.decompress((root / name).read_bytes()).decode("utf-8").splitlines()


@pytest.fixture
def folder(tmp_path):
    """A folder of the made-up pairs."""
    root = tmp_path / "pairs"
    root.mkdir()
    for part, sides in made_up().items():
        for language, sentences in zip(("en", "de"), sides, strict=True):
            write(root, f"{FILES[part]}.{language}.gz", sentences)
    return root


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


def cut_short(root):
    (root / "train.en.gz").write_bytes((root / "train.en.gz").read_bytes()[:-20])


def missing(root):
    (root / "test_2016_flickr.de.gz").unlink()


def untranslated(root):
    write(root, "train.de.gz", lines(root, "train.en.gz"))


def shuffled(root):
    german = lines(root, "train.de.gz")
    write(root, "train.de.gz", np.random.default_rng(0).permutation(german))


def same_parts(root):
    for language in ("en", "de"):
        write(root, f"test_2016_flickr.{language}.gz", lines(root, f"train.{language}.gz"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_such_folder, "is not a directory"),
        (unequal, "train.de.gz have 392 and 391 lines"),
        (empty, "val.de.gz has no sentence in line 1"),
        (empty_line, "val.de.gz has no sentence in line 2"),
        (latin_1, "val.de.gz .* invalid continuation byte in line 2"),
        (cut_short, "train.en.gz cannot be read: it is damaged or no gzip file"),
        (missing, "has none of test_2016_flickr.de.gz, test_2016_flickr.de, test.de.gz, test.de"),
        (untranslated, "are no translations of each other"),
        (shuffled, "are no translations of each other"),
        (same_parts, "holds the same sentences in train and another part"),
    ],
)
def test_damaged_folder(folder, damage, message):
    damage(folder)
    with pytest.raises(UsageError, match=message) as error:
        pairs.load(folder)
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


def test_languages_choose_the_files(folder):
    facts, there = pairs.load(folder, "de", "en")
    assert facts == {"dataset": "pairs (folder)", "languages": ["de", "en"]}
    assert there == {part: sides[::-1] for part, sides in pairs.load(folder)[1].items()}
    with pytest.raises(UsageError, match=r"has none of train\.fr\.gz"):
        pairs.load(folder, target="fr")
    with pytest.raises(UsageError, match="are both 'en'"):
        pairs.load(folder, target="en")


def test_plain_files_and_strange_ends_of_lines(folder):
    english = lines(folder, "val.en.gz")
    # U+0085 and U+2028 occur inside of sentences; a byte-order mark and \r\n belong to none.
    english[0] = "A\u0085man\u2028sits."
    (folder / "val.en.gz").unlink()
    (folder / "val.en").write_bytes("\r\n".join(english).encode("utf-8-sig"))
    assert pairs.load(folder)[1]["validation"] == [english, lines(folder, "val.de.gz")]


def test_the_fallback_says_so(monkeypatch, capsys):
    def fail(name, host):
        raise ConnectionError(f"no route\nto {name} at {host}")

    monkeypatch.setattr(shared, "tensorflow_dataset", fail)
    facts, parts = pairs.load()
    said = capsys.readouterr().err
    assert "THIS IS NOT ted_hrlr_translate/pt_to_en" in said and "ConnectionError: no route" in said
    assert facts["dataset"] == "embedded sample (synthetic)"
    assert parts == pairs.load(sample=True)[1] and "--sample" in capsys.readouterr().err


def test_tensorflow_datasets_come_before_the_sample(monkeypatch):
    class Builder:
        def __init__(self, name, **options):
            assert name == "ted_hrlr_translate/pt_to_en"

        def is_prepared(self):
            return True

        def as_dataset(self, split, batch_size):
            return {"pt": [f"olá {split}".encode()], "en": [f"hello {split}".encode()]}

    module = types.SimpleNamespace(builder=Builder, as_numpy=lambda rows: rows)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    facts, parts = pairs.load()
    assert facts["dataset"] == "ted_hrlr_translate/pt_to_en (TensorFlow Datasets)"
    assert parts["train"] == [["olá train"], ["hello train"]]


def test_the_sample_translates_each_sentence_once():
    parts = made_up()
    english, german = (
        [text for sides in parts.values() for text in sides[side]] for side in range(2)
    )
    assert len(set(english)) == len(set(german)) == len(english) == 432
    for one, other in zip(english, german, strict=True):
        assert ("man" in one.split()) == ("Mann" in other.split())
    few = pairs.limited(parts, 20, seed=0)
    assert all(len(side) == 20 for sides in few.values() for side in sides)
    assert pairs.limited(parts, None, seed=0) == parts
    same, other = pairs.limited(parts, 20, seed=0), pairs.limited(parts, 20, seed=1)
    assert pairs.summary(few) == pairs.summary(same) != pairs.summary(other)
