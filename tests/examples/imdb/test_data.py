"""Where the reviews of the example come from, and what is said of damaged ones."""

import shutil
import sys
import types

import numpy as np
import pytest

from examples import network
from examples.errors import UsageError
from examples.imdb import data as imdb_data
from tests.examples.imdb.runs import TINY, figures, main


def only_pos(root):
    shutil.rmtree(root / "train" / "neg")


def no_train(root):
    shutil.rmtree(root / "train")


def no_reviews(root):
    for path in (root / "test" / "pos").iterdir():
        path.unlink()


def latin_1(root):
    (root / "train" / "pos" / "900_8.txt").write_bytes("Amélie".encode("latin-1"))


def cut_short(root):
    (root / "train" / "pos" / "900_8.txt").write_text("")


def mixed_up(root):
    (root / "train" / "pos" / "900_2.txt").write_text("Dull.")


def test_is_train(root):
    shutil.rmtree(root / "test")
    shutil.copytree(root / "train", root / "test")


test_is_train.__test__ = False  # A way to break a folder, not a test.


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "is not a directory"),
        (only_pos, "has no train/neg"),
        (no_train, "has no train/neg"),
        (no_reviews, "holds no reviews"),
        (latin_1, "900_8.txt is not UTF-8"),
        (cut_short, "900_8.txt is empty"),
        (mixed_up, "900_2.txt is in the wrong folder"),
        (test_is_train, "same reviews in train and in test"),
    ],
)
def test_damaged_folder(folder, tmp_path, capsys, damage, message):
    data = tmp_path / "aclImdb"
    shutil.copytree(folder, data)
    damage(data)
    assert main("--data-dir", data, "--output", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") <= 2
    assert not (tmp_path / "run").exists()


def test_folder_above_is_guessed(folder):
    with pytest.raises(UsageError, match="Did you mean "):
        imdb_data.from_folder(folder.parent)


def test_partial_set_is_told(folder):
    dataset = imdb_data.from_folder(folder)
    assert "NOT THE FULL SET" in dataset.warning
    for split in ("train", "test"):
        for name in ("pos", "neg"):
            count = len(list((folder / split / name).iterdir()))
            assert f"{split}/{name} {count}" in dataset.warning
    assert not dataset.is_full_imdb


def test_full_set_is_known_by_its_counts():
    reviews = imdb_data.Reviews(["a"] * 25_000, np.arange(25_000) % 2)
    lopsided = imdb_data.Reviews(["a"] * 25_000, np.arange(25_000) % 3 % 2)
    assert imdb_data.Dataset(imdb_data.FOLDER, reviews, reviews).is_full_imdb
    assert not imdb_data.Dataset(imdb_data.FOLDER, reviews, lopsided).is_full_imdb
    assert not imdb_data.Dataset(imdb_data.SAMPLE, reviews, reviews).is_full_imdb


def test_fallback_says_so(tmp_path, capsys, monkeypatch):
    def fail():
        raise ConnectionError("no route to\nhost")

    monkeypatch.setattr(imdb_data, "from_tensorflow_datasets", fail)
    output = tmp_path / "run"
    assert main(*TINY, "--epochs", 1, "--limit", 64, "--output", output) == 0
    out, err = capsys.readouterr()
    assert "THIS IS NOT IMDB" in err and "ConnectionError: no route to host" in err
    assert "embedded sample (not IMDB), limited to 64: 64 training and 64 test reviews" in out
    said = figures(output)
    assert said["dataset"] == "embedded sample (not IMDB)" and not said["full_imdb"]


class FakeBuilder:
    """Stands in for TensorFlow Datasets' builder of imdb_reviews."""

    def __init__(self, prepared):
        self.prepared = prepared

    def is_prepared(self):
        return self.prepared

    def download_and_prepare(self):
        raise AssertionError("the download must not start when the host does not answer")

    def as_dataset(self, split, batch_size):
        text = {"train": "Schön!", "test": "Dull."}[split]
        return {"text": np.array([text.encode()], object), "label": np.array([1])}


def fake_tfds(monkeypatch, prepared):
    module = types.SimpleNamespace(
        builder=lambda name, **kwargs: FakeBuilder(prepared), as_numpy=lambda rows: rows
    )
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)


def test_tensorflow_datasets_come_before_the_sample(folder, monkeypatch):
    fake_tfds(monkeypatch, prepared=True)
    dataset = imdb_data.load()
    assert dataset.source == "imdb_reviews (TensorFlow Datasets)"
    assert dataset.train.texts == ["Schön!"] and dataset.test.texts == ["Dull."]
    assert imdb_data.load(folder).source == "imdb (aclImdb folder)"


def test_no_network_is_found_out_before_the_download(monkeypatch):
    def refuse(address, timeout):
        raise OSError("unreachable")

    fake_tfds(monkeypatch, prepared=False)
    monkeypatch.setattr(network.urllib.request, "getproxies", dict)
    monkeypatch.setattr(network.socket, "create_connection", refuse)
    dataset = imdb_data.load()
    assert dataset.source == imdb_data.SAMPLE and "OSError: unreachable" in dataset.warning


def test_limit_and_split():
    reviews = imdb_data.Reviews(list("abcdefghij"), np.array([0] * 7 + [1] * 3))
    limited = reviews.limited(4, seed=0)
    assert limited.labels.tolist() == [0, 0, 1, 1]
    assert limited.texts == reviews.limited(4, seed=0).texts
    rest, held_out = reviews.split(0.2, seed=0)
    assert len(held_out) == 2 and sorted(rest.texts + held_out.texts) == reviews.texts


def test_neighbors_are_held_out_together():
    reviews = imdb_data.Reviews([str(i) for i in range(1000)], np.arange(1000) % 2)
    _, held_out = reviews.split(0.2, seed=0)
    numbers = sorted(int(text) for text in held_out.texts)
    assert len(numbers) == 200
    assert all(number // 10 * 10 + i in numbers for number in numbers for i in range(10))
