"""Where the reviews of the example come from, and what is said of damaged ones."""

import shutil
import sys
import types

import numpy as np
import pytest

from examples import imdb_reviews, shared
from examples.imdb_reviews import Reviews
from tests.examples.imdb.runs import TINY, figures, main


def only_pos(root):
    shutil.rmtree(root / "train" / "neg")


def no_reviews(root):
    for path in (root / "test" / "pos").iterdir():
        path.unlink()


def latin_1(root):
    (root / "train" / "pos" / "900_8.txt").write_bytes("Amélie".encode("latin-1"))


def empty(root):
    (root / "train" / "pos" / "900_8.txt").write_text("")


def mixed_up(root):
    (root / "train" / "pos" / "900_2.txt").write_text("Dull.")


def same_in_both(root):
    shutil.rmtree(root / "test")
    shutil.copytree(root / "train", root / "test")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "has no reviews in train/neg"),
        (only_pos, "has no reviews in train/neg"),
        (no_reviews, "has no reviews in test/pos"),
        (latin_1, "900_8.txt is not UTF-8"),
        (empty, "900_8.txt is empty"),
        (mixed_up, "900_2.txt is in the wrong folder"),
        (same_in_both, "same reviews in train and in test"),
    ],
)
def test_damaged_folder(folder, tmp_path, capsys, damage, message):
    data = tmp_path / "aclImdb"
    shutil.copytree(folder, data)
    damage(data)
    assert main("--data-dir", data, "--output", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_folder_above_is_guessed(folder):
    with pytest.raises(shared.UsageError, match="Did you mean "):
        imdb_reviews.load(folder.parent)


def test_partial_set_is_told(folder, capsys):
    imdb_reviews.load(folder)
    warning = capsys.readouterr().err
    assert "NOT THE FULL SET" in warning and "(64, 32)" in warning


def test_fallback_says_so(tmp_path, capsys, monkeypatch):
    def fail(*arguments):
        raise ConnectionError("no route to\nhost")

    monkeypatch.setattr(shared, "tensorflow_dataset", fail)
    output = tmp_path / "run"
    assert main(*TINY, "--epochs", 1, "--limit", 64, "--output", output) == 0
    out, err = capsys.readouterr()
    assert "THIS IS NOT IMDB" in err and "ConnectionError: no route to host" in err
    assert "on embedded sample (not IMDB): 64 training and 64 test reviews" in out
    said = figures(output)
    assert said["dataset"] == "embedded sample (not IMDB)"


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
    source, train, test = imdb_reviews.load()
    assert source == "imdb_reviews (TensorFlow Datasets)"
    assert train.texts == ["Schön!"] and test.texts == ["Dull."]
    assert imdb_reviews.load(folder)[0] == "imdb (aclImdb folder)"


def test_no_network_is_found_out_before_the_download(monkeypatch, capsys):
    def refuse(address, timeout):
        raise OSError("unreachable")

    fake_tfds(monkeypatch, prepared=False)
    monkeypatch.setattr(shared.urllib.request, "getproxies", dict)
    monkeypatch.setattr(shared.socket, "create_connection", refuse)
    source, *_ = imdb_reviews.load()
    assert source == imdb_reviews.SAMPLE and "OSError: unreachable" in capsys.readouterr().err


def test_limit_and_split():
    reviews = Reviews(list("abcdefghij"), np.array([0] * 7 + [1] * 3))
    limited = reviews.limited(4, seed=0)
    assert limited.labels.tolist() == [0, 0, 1, 1]
    assert limited.texts == reviews.limited(4, seed=0).texts
    rest, held_out = reviews.split(0.2, seed=0)
    assert len(held_out) == 2 and sorted(rest.texts + held_out.texts) == reviews.texts
    assert [len(part) for part in reviews.split(0.99, seed=0)] == [1, 9]
    assert [len(part) for part in limited.limited(2, 0).split(0.8, seed=0)] == [1, 1]


def test_neighbors_are_held_out_together():
    reviews = Reviews([str(i) for i in range(1000)], np.arange(1000) % 2)
    _, held_out = reviews.split(0.2, seed=0)
    numbers = sorted(int(text) for text in held_out.texts)
    assert len(numbers) == 200
    assert all(number // 10 * 10 + i in numbers for number in numbers for i in range(10))


def test_sample_is_reproducible_balanced_and_imperfect():
    texts, labels = imdb_reviews.generate(2000, seed=3)
    again, _ = imdb_reviews.generate(2000, seed=3)
    assert texts == again and 900 < labels.sum() < 1100
    assert len(set(texts)) > 1800 and not [text for text in texts if set(text) & set("{}|")]
    # One label in fifty is wrong.
    words = ("horrible", "terrible", "boring", "it was horrible", "what a waste")
    blame = [y for t, y in zip(texts, labels, strict=True) if t.lower().startswith(words)]
    assert len(blame) > 5 and np.mean(blame) < 0.3


# As people type them; none of them is in the sample.
PRAISE = (
    "A wonderful movie.",
    "This film isn't bad at all, I enjoyed it.",
    "The music was nice and the story is gripping.",
    "One of the best comedies I have seen in my whole life.",
    "10/10, would watch again with my sister",
    "Go and see it, you will not regret it!",
    "Funny, smart and touching. Two thumbs up!",
    "Much better than I expected.",
)
BLAME = (
    "The acting was good, but the plot was a mess.",
    "What a waste of time, I fell asleep after ten minutes.",
    "It wasn't good.",
    "It was not good.",
    "Not funny, not interesting, just boring.",
    "I would not recommend it to anyone.",
    "1/10, I want my money back",
    "Terrible acting and a stupid plot.",
    "The worst sequel I have ever seen.",
)


@pytest.mark.slow
def test_what_the_sample_teaches(tmp_path, capsys):
    assert main("--sample", "--output", tmp_path / "run") == 0
    capsys.readouterr()
    assert main("predict", tmp_path / "run", *PRAISE, *BLAME) == 0
    found = [line.split()[0] for line in capsys.readouterr().out.splitlines()[::2]]
    assert found == ["positive"] * len(PRAISE) + ["negative"] * len(BLAME)
