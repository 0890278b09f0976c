"""The pairs of sentences: their files, and the sample."""

import gzip

import pytest

from examples import pairs
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
