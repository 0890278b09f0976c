"""Tokens: what is decoded is what was encoded, also piece by piece."""

import numpy as np
import pytest

from examples.errors import UsageError
from examples.language_model import sample, text

STRANGE = "  Where?\n\n\tZoë läuft für 5 €;  日本 🙂\nA\u00a0B "


def kinds():
    yield text.Characters.learn(STRANGE)
    pytest.importorskip("sentencepiece", reason="subwords need it")
    yield text.Subwords.learn(sample.generate(100), 400)


def test_what_is_decoded_is_what_was_encoded(tmp_path):
    for tokens in kinds():
        numbers = tokens.encode(STRANGE)
        assert numbers.dtype == "int32" and numbers.max() < tokens.vocabulary_size
        assert tokens.decode(numbers) == STRANGE
        tokens.save(tmp_path / tokens.FILE)
        loaded = text.load(type(tokens), tmp_path)
        assert (loaded.encode(STRANGE) == numbers).all()


def test_pieces_make_up_the_text():
    for tokens in kinds():
        numbers = tokens.encode(STRANGE * 3).tolist()
        found = list(text.pieces(tokens, iter(numbers)))
        assert "".join(found) == STRANGE * 3
        # A character comes whole, whatever the number of its tokens.
        assert not any(text.INCOMPLETE in piece for piece in found) and found.count("🙂") == 3
        # What is cut in the middle of one is not lost.
        assert text.INCOMPLETE in "".join(text.pieces(tokens, iter([*numbers, *_half(tokens)])))


def _half(tokens):
    """The first token of a character, or one that stands for it."""
    if isinstance(tokens, text.Characters):
        tokens.characters += text.INCOMPLETE
        return [tokens.vocabulary_size - 1]
    return tokens.encode("🙂")[-4:-3]


def test_subwords_are_longer_than_characters():
    pytest.importorskip("sentencepiece", reason="subwords need it")
    written = sample.generate(100)
    tokens = text.Subwords.learn(written, 500)
    assert len(tokens.encode(written)) < 0.6 * len(written)


def test_characters_are_all_of_the_text_and_no_others():
    tokens = text.Characters.learn("banana\n")
    assert tokens.characters == "\nabn"
    np.testing.assert_array_equal(tokens.encode("nab"), [3, 1, 2])
    for unknown in ("c", "z", "日"):
        with pytest.raises(UsageError, match=f"never seen the character '{unknown}'"):
            tokens.encode(f"a{unknown}b")


@pytest.mark.parametrize("kind", text.KINDS.values())
def test_a_damaged_file_is_one_line(kind, tmp_path):
    pytest.importorskip("sentencepiece", reason="subwords need it")
    pytest.importorskip("tokenizers", reason="tokens of folders need it")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        text.load(kind, tmp_path)
    (tmp_path / kind.FILE).write_text("{no")
    with pytest.raises(UsageError, match="is damaged: ") as caught:
        text.load(kind, tmp_path)
    assert "\n" not in str(caught.value)
