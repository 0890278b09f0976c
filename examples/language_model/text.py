"""From a text to token numbers and back: characters, subwords, or those of a folder of weights.

Each kind has `FILE`, the name of the file that `save` writes and `load` reads, `vocabulary_size`,
`encode` and `decode`.
"""

import json
from pathlib import Path

import numpy as np

from examples.errors import UsageError

# What a decoded text ends with while the last character lacks some of its bytes.
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# As many tokens before a new one are decoded with it: its text can depend on them.
DECODED_BEFORE = 16


class Characters:
    """Every character that a text has is a token, in the order of Unicode."""

    FILE = "characters.json"

    def __init__(self, characters):
        self.characters = characters
        self._points = _code_points(characters)

    @classmethod
    def learn(cls, text):
        points = np.unique(_code_points(text))
        return cls("".join(map(chr, points.tolist())))

    @classmethod
    def load(cls, path):
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def save(self, path):
        path.write_text(json.dumps(self.characters) + "\n", encoding="utf-8")

    @property
    def vocabulary_size(self):
        return len(self.characters)

    def encode(self, text):
        """Token numbers, int32.

        Raises:
            UsageError: a character is not among them.
        """
        points = _code_points(text)
        tokens = np.searchsorted(self._points, points).clip(max=len(self._points) - 1)
        unknown = points[self._points[tokens] != points]
        if len(unknown):
            raise UsageError(f"The model has never seen the character {chr(unknown[0])!r}.")
        return tokens.astype("int32")

    def decode(self, tokens):
        return "".join(self.characters[token] for token in tokens)


def _code_points(text):
    return np.frombuffer(text.encode("utf-32-le"), "uint32")


class Subwords:
    """A SentencePiece model with spaces and ends of lines among its pieces."""

    FILE = "tokenizer.spm"

    def __init__(self, proto):
        import sentencepiece

        self.proto = proto
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=proto)

    @classmethod
    def learn(cls, text, vocabulary_size):
        from examples.translation.text import learn_tokenizer

        lines = [line for line in text.split("\n") if line.strip()]
        proto = learn_tokenizer(
            lines,
            vocabulary_size,
            user_defined_symbols=["\n"],
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
        )
        return cls(proto)

    @classmethod
    def load(cls, path):
        return cls(path.read_bytes())

    def save(self, path):
        path.write_bytes(self.proto)

    @property
    def vocabulary_size(self):
        return self._processor.vocab_size()

    def encode(self, text):
        # SentencePiece has no piece for a null, and would give one number for each of its bytes.
        lines = text.replace("\0", " ").splitlines(keepends=True)
        tokens = [token for line in self._processor.encode(lines) for token in line]
        return np.array(tokens, "int32")

    def decode(self, tokens):
        return self._processor.decode([int(token) for token in tokens])


class Pretrained:
    """What `tokenizer.json` in a folder of Hugging Face's format says, without special tokens."""

    FILE = "tokenizer.json"

    def __init__(self, content):
        import tokenizers

        self.content = content
        self._tokenizer = tokenizers.Tokenizer.from_str(content)

    @classmethod
    def load(cls, path):
        return cls(path.read_text(encoding="utf-8"))

    def save(self, path):
        path.write_text(self.content, encoding="utf-8")

    @property
    def vocabulary_size(self):
        return self._tokenizer.get_vocab_size()

    def encode(self, text):
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, "int32")

    def decode(self, tokens):
        return self._tokenizer.decode([int(token) for token in tokens])


def load(kind, folder):
    """The tokens of a folder, a `kind` of the three.

    Raises:
        UsageError: the file is missing or damaged.
    """
    path = Path(folder) / kind.FILE
    try:
        return kind.load(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except ImportError:
        raise
    except Exception as error:  # The packages have no class of their own for damaged files.
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{path} is damaged: {reason}") from None


KINDS = {"characters": Characters, "subwords": Subwords, "pretrained": Pretrained}


def pieces(tokens, numbers):
    """The text of token numbers as they come: yields a string, often, for each.

    A character whose bytes are several tokens comes with the last of them.

    Args:
        tokens: one of the three kinds.
        numbers: an iterator of token numbers.
    """
    before, waiting = [], []
    for number in numbers:
        waiting.append(number)
        known = tokens.decode(before)
        text = tokens.decode([*before, *waiting])
        if not text.endswith(INCOMPLETE):
            yield text[len(known) :]
            before, waiting = [*before, *waiting][-DECODED_BEFORE:], []
    if waiting:
        yield tokens.decode([*before, *waiting])[len(tokens.decode(before)) :]
