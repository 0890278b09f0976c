"""Where the text of the example comes from, and what is said of files that are none."""

import gzip
import sys
import types

import pytest

from examples import network
from examples.language_model import data, sample
from tests.examples.language_model.runs import main

pytest.importorskip("filelock", reason="the example needs the extra `examples`")


def missing(path):
    pass


def folder(path):
    path.mkdir()


def empty(path):
    path.write_text(" \n")


def latin_1(path):
    path.write_bytes("Ein Hund.\nEin Bär.".encode("latin-1"))


def cut_short(path):
    path.write_bytes(gzip.compress(b"A dog. " * 100)[:-10])


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (missing, "text.txt", "cannot be read: No such file"),
        (folder, "text.txt", "is no regular file"),
        (empty, "text.txt", "text.txt is empty"),
        (latin_1, "text.txt", "is not UTF-8 text: invalid continuation byte in line 2"),
        (cut_short, "text.txt.gz", "is damaged or no gzip file"),
    ],
)
def test_a_file_that_is_no_text_is_one_line(make, name, message, tmp_path, capsys):
    make(tmp_path / name)
    output = tmp_path / "run"
    assert main("--data", tmp_path / name, "--output", output) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err
    assert err.count("\n") == 1 and not output.exists()


def test_a_text_is_split_by_its_characters(tmp_path):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(("é" * 90 + "x" * 10).encode()))
    found = data.load(path)
    assert found.name == "text.txt.gz (file)" and not found.warning
    assert found.train == "é" * 90 and found.validation == "x" * 10


def test_the_sample_is_reproducible_and_loud():
    found = data.load(sample=True)
    assert found.text == sample.generate() and found.text != sample.generate(seed=1)
    assert "MADE-UP" in found.warning and "--sample" in found.warning


class FakeBuilder:
    """Stands in for TensorFlow Datasets' builder of tiny_shakespeare."""

    prepared = True

    def is_prepared(self):
        return self.prepared

    def download_and_prepare(self):
        raise AssertionError("the download must not start when the host does not answer")

    def as_dataset(self, split, batch_size):
        return {"text": [f"{split}. ".encode()]}


def test_tensorflow_datasets_come_before_the_sample(monkeypatch):
    def builder(name, **options):
        assert name == "tiny_shakespeare"
        return FakeBuilder()

    module = types.SimpleNamespace(builder=builder, as_numpy=lambda rows: rows)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    found = data.load()
    assert found.name == data.TINY_SHAKESPEARE and found.text == "train. validation. test. "

    def refuse(address, timeout):
        raise OSError("un\nreachable")

    monkeypatch.setattr(FakeBuilder, "prepared", False)
    monkeypatch.setattr(network.socket, "create_connection", refuse)
    monkeypatch.setattr(network.urllib.request, "getproxies", dict)
    assert "OSError: un reachable" in data.load().warning
