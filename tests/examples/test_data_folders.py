"""Data folders of the examples that hold pipes, devices, links, huge files and other encodings: one
clear line for each, in no time."""

import gzip
import os
import threading

import pytest

from examples import text_files
from examples.errors import UsageError
from examples.translation import data as translation_data

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Pipes and links are POSIX's.")
LIMITS = {translation_data: "LARGEST"}


@pytest.fixture
def folders(tmp_path):
    """A data folder for each module, and the file in it that is to be spoiled."""
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    for part in ("train", "val", "test"):
        for language, line in (("en", "A dog."), ("de", "Ein Hund.")):
            (pairs / f"{part}.{language}").write_text(f"{line} {part}\n")
    return {
        translation_data: (pairs, pairs / "val.de"),
    }


def ended(function):
    """What a function raised, or None. It has ten seconds."""
    found = []

    def run():
        try:
            function()
            found.append(None)
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert found, "It hangs."
    return found[0]


def pipe(path):
    os.mkfifo(path)


def link_to_a_pipe(path):
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def device(path):
    path.symlink_to("/dev/zero")


def nothing_there(path):
    path.symlink_to("nowhere")


def itself(path):
    path.symlink_to(path.name)


def folder(path):
    path.mkdir()


def huge(path):
    path.touch()
    os.truncate(path, 2**40)


def utf_16(path):
    path.write_text("A dull film.\n", encoding="utf-16")


def zeros_of_a_disk(path):
    path.write_bytes(b"ok\n\xff\xfe\x00")


@pytest.mark.parametrize("module", LIMITS)
@pytest.mark.parametrize(
    "spoil, message",
    [
        (pipe, "it is no regular file"),
        (link_to_a_pipe, "it is no regular file"),
        (device, "it is no regular file"),
        (folder, "it is no regular file"),
        (nothing_there, "No such file"),
        (itself, "symbolic links"),
        (huge, "it holds more than 1,000 bytes"),
        (utf_16, "is not UTF-8 text"),
        (zeros_of_a_disk, "is not UTF-8 text: invalid start byte in line 2"),
    ],
)
def test_a_file_that_is_no_text_is_one_clear_error(folders, module, spoil, message, monkeypatch):
    monkeypatch.setattr(module, LIMITS[module], 1000)
    root, path = folders[module]
    load = {
        translation_data: lambda: translation_data.from_folder(root, "en", "de"),
    }[module]
    assert ended(load) is None
    path.unlink()
    spoil(path)
    error = ended(load)
    assert isinstance(error, UsageError), error
    assert message in str(error) and str(path) in str(error) and "\n" not in str(error)


def test_links_to_texts_are_followed(folders):
    root, path = folders[translation_data]
    path.rename(path.with_name("there"))
    path.symlink_to("there")
    found = translation_data.from_folder(root, "en", "de")
    assert found.validation.target == ["Ein Hund. val"]


def test_what_unpacks_to_a_huge_file_is_refused(tmp_path):
    path = tmp_path / "train.en.gz"
    with gzip.open(path, "wb") as file:
        file.write(bytes(10**6))
    assert path.stat().st_size < 2000
    assert len(text_files.read(path, 10**6)) == 10**6
    with pytest.raises(UsageError, match="it holds more than 999,999 bytes"):
        text_files.read(path, 10**6 - 1)
