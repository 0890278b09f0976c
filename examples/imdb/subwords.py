"""From raw reviews to the tokens of a folder in Hugging Face's format. Nothing here imports Keras.

0 is padding, as in `text.py`, so each number is one more than the token's.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from examples.errors import UsageError
from examples.imdb.text import kept


def _tokenizer_json(content):
    """The number of tokens of `tokenizer.json`, and its function from a text to token numbers."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    # The file may have those of the model's training.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return max(tokenizer.get_vocab().values()) + 1, lambda text: tokenizer.encode(text).ids


def _sentencepiece_model(content):
    """The same of a SentencePiece model; its token of the beginning, if any, comes first."""
    import sentencepiece

    tokenizer = sentencepiece.SentencePieceProcessor(model_proto=content)
    first = [tokenizer.bos_id()] if tokenizer.bos_id() >= 0 else []
    return tokenizer.vocab_size(), lambda text: first + tokenizer.encode(text)


class Reader(NamedTuple):
    """What reads a file, and the package that it needs."""

    read: Callable
    package: str


# By the names of files, the first of which that a folder has is read. SentencePiece models of other
# names are not: texts or tokens need changes that these do not contain (ALBERT, XLM-R).
READERS = {
    "tokenizer.json": Reader(_tokenizer_json, "tokenizers"),
    "tokenizer.model": Reader(_sentencepiece_model, "sentencepiece"),
}


def file_of(folder):
    """The file of `READERS` that a folder has, by its name."""
    return next((name for name in READERS if (Path(folder) / name).is_file()), next(iter(READERS)))


class Encoder:
    """From texts to numbers, with the special tokens that the folder's model begins and ends with.

    Args:
        file: a name among `READERS`.
        content: what the file contains.
        max_length: how many tokens of a text are kept: those at both ends.
    """

    def __init__(self, file, content, max_length):
        self.file = file
        self.content = content
        self.max_length = max_length
        self.vocabulary_size, self._tokens = READERS[file].read(content)

    def __call__(self, text):
        """The numbers of a text, (T,); of one without tokens, that of the first token."""
        tokens = self._tokens(text.replace("<br />", " ")) or [0]
        return np.array(kept(tokens, self.max_length, "both_ends"), "int32") + 1

    def save(self, path):
        """Writes the file again."""
        Path(path).write_bytes(self.content)

    @classmethod
    def load(cls, folder, max_length):
        """The encoder of a folder, or of a run on it.

        Raises:
            UsageError: the file is missing or damaged.
        """
        path = Path(folder) / file_of(folder)
        try:
            return cls(path.name, path.read_bytes(), max_length)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
        except ImportError:
            raise
        except Exception as error:  # The packages have no class of their own for damaged files.
            reason = " ".join(str(error).split())[:200]
            raise UsageError(f"{path} is damaged: {reason}") from None
