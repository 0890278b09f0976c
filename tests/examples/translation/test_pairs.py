"""The pairs of sentences: their files, and the sample."""

import gzip
import shutil
from pathlib import Path

import pytest

from examples import pairs, shared
from examples.shared import UsageError

pytestmark = pytest.mark.any_backend


PAIRS = shared.DATA / "pairs"


def test_languages_choose_the_files():
    facts, there = pairs.load(PAIRS, "de", "en")
    assert facts == {"dataset": "pairs (folder)", "languages": ["de", "en"]}
    assert there == {part: sides[::-1] for part, sides in pairs.load(PAIRS)[1].items()}
    with pytest.raises(UsageError, match=r"has none of train\.fr\.gz"):
        pairs.load(PAIRS, target="fr")
    with pytest.raises(UsageError, match="are both 'en'"):
        pairs.load(PAIRS, target="en")


def test_gzipped_files_and_strange_ends_of_lines(tmp_path):
    folder = Path(shutil.copytree(PAIRS, tmp_path / "pairs"))
    english = (folder / "val.en").read_text(encoding="utf-8").splitlines()
    # U+0085 and U+2028 occur inside of sentences; a byte-order mark and \r\n belong to none.
    english[0] = "A\u0085man\u2028sits."
    data = gzip.compress("\r\n".join(english).encode("utf-8-sig"))
    (folder / "val.en.gz").write_bytes(data)
    german = (folder / "val.de").read_text(encoding="utf-8").splitlines()
    assert pairs.load(folder)[1]["validation"] == [english, german]


def test_the_sample_translates_each_sentence_once():
    parts = pairs.load(sample=True)[1]
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
