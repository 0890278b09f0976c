"""Folders in Hugging Face's format, whose models examples train further: `--pretrained`."""

import zlib
from pathlib import Path

from examples.errors import UsageError

CONFIG = "config.json"
# The fields of configurations that say how many positions there are.
LENGTHS = ("max_position_embeddings", "n_positions")


def check_folder(folder, tokens):
    """The first of the files `tokens` that a folder has. Does not import Keras.

    Raises:
        UsageError: it has none, or no configuration, or is no folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UsageError(f"--pretrained {folder} is not a directory.")
    for names in ((CONFIG,), tokens):
        found = [name for name in names if (folder / name).is_file()]
        if not found:
            raise UsageError(
                f"--pretrained {folder} has no {' or '.join(names)}: it must be a folder that "
                "`transformers` wrote, with the tokenizer."
            )
    return found[0]


def checksum(folder, tokens):
    """Of all that a model and its `tokens`, the name of a file, are made of."""
    folder, value = Path(folder), 0
    for path in [folder / CONFIG, folder / tokens, *sorted(folder.glob("*.safetensors"))]:
        with path.open("rb") as file:
            while block := file.read(2**24):
                value = zlib.crc32(block, value)
    return value


def load(folder):
    """The model of a folder.

    Raises:
        UsageError: it cannot be read.
    """
    from keras_attention import convert

    try:
        return convert.from_huggingface(folder)
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"--pretrained {folder} cannot be read: {reason}") from error


def check_sizes(model, folder, vocabulary_size, length, option):
    """Checks that a model takes so many different tokens, and so many at once.

    Args:
        model: an `Encoder` or a `Decoder` of `load`.
        folder: its folder.
        vocabulary_size: of the tokenizer.
        length: the value of the option of this name.
        option: such as "context".

    Raises:
        UsageError: it does not.
    """
    config = model.metadata["huggingface"]
    given = [config[name] for name in LENGTHS if name in config]
    # RoBERTa's table has rows of no position, which its configuration counts.
    table = getattr(model.embeddings.positions, "max_length", None)
    longest = min(given if table is None else [*given, table], default=length)
    if length > longest:
        raise UsageError(
            f"--pretrained {folder} is for at most {longest} tokens: give such a --{option}, "
            f"received {length}."
        )
    known = model.embeddings.tokens.vocabulary_size
    if vocabulary_size > known:
        raise UsageError(
            f"The tokenizer of {folder} has {vocabulary_size:,} tokens, and the model beside it "
            f"{known:,}."
        )
