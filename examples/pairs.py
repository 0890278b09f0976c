"""Pairs of sentences that are translations of each other: a folder's, downloaded or made up."""

import os

import numpy as np

from examples import shared
from examples.shared import UsageError

# The names that the files of each part may have. The first that is there counts.
NAMES = {
    "train": ["train"],
    "validation": ["val", "valid", "dev"],
    "test": ["test_2016_flickr", "test"],
}


def load(data_dir=None, source=None, target=None, sample=False):
    """What `figures.json` says of the pairs, and for each part the sentences of both languages.

    They are those of the folder `data_dir`; without one `ted_hrlr_translate` of TensorFlow
    Datasets; and where that is unavailable, the folder of the sample, which it says loudly.
    """
    if data_dir:
        dataset = f"{data_dir.name} (folder)"
        return from_folder(data_dir, source or "en", target or "de", dataset)
    languages = source or "pt", target or "en"
    return shared.or_sample(
        lambda: from_tensorflow_datasets(*languages),
        lambda: from_folder(shared.DATA / "pairs", "en", "de", "embedded sample (synthetic)"),
        sample,
        f"ted_hrlr_translate/{'_to_'.join(languages)}",
        "Pass --data-dir with train.en.gz, train.de.gz, val.… and test_2016_flickr.… of Multi30k\n"
        "(https://github.com/multi30k/dataset).",
    )


def from_tensorflow_datasets(*languages):
    """`ted_hrlr_translate`. Raises whatever keeps it from being had."""
    name = f"ted_hrlr_translate/{'_to_'.join(languages)}"
    columns = shared.tensorflow_dataset(name, "www.phontron.com")
    parts = {}
    for part in NAMES:
        rows = columns(part)
        parts[part] = [[text.decode("utf-8") for text in rows[name]] for name in languages]
    return {"dataset": f"{name} (TensorFlow Datasets)", "languages": [*languages]}, parts


def from_folder(folder, source, target, dataset):
    """The pairs of a folder with a file for each language and part."""
    if not folder.is_dir():
        raise UsageError(f"--data-dir {folder} is not a directory.")
    if source == target:
        raise UsageError(f"--source and --target are both {source!r}.")
    parts = {part: read(folder, part, (source, target)) for part in NAMES}
    if parts["train"] in (parts["validation"], parts["test"]):
        raise UsageError(f"--data-dir {folder} holds the same sentences in train and another part.")
    return {"dataset": dataset, "languages": [source, target]}, parts


def read(folder, part, languages):
    """The lines of two files, as far as can be seen translations of each other."""
    sides, paths = [], []
    for language in languages:
        names = [f"{name}.{language}{end}" for name in NAMES[part] for end in (".gz", "")]
        path = next((folder / name for name in names if os.path.lexists(folder / name)), None)
        if path is None:
            raise UsageError(f"--data-dir {folder} has none of {', '.join(names)}.")
        # Not `splitlines`, which would also end lines at characters inside of sentences.
        lines = shared.read_text(path).removesuffix("\n").split("\n")
        lines = [line.removesuffix("\r") for line in lines]
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                raise UsageError(f"{path} has no sentence in line {number:,}.")
        sides.append(lines)
        paths.append(path)
    names, counts = f"{paths[0]} and {paths[1]}", [len(side) for side in sides]
    if counts[0] != counts[1]:
        raise UsageError(f"{names} have {counts[0]:,} and {counts[1]:,} lines.")
    # Long sentences have long translations: the correlation of ranks is about 0.9.
    lengths = np.array([[len(line) for line in side] for side in sides])
    varied = counts[0] >= 100 and lengths.std(axis=1).all()
    ranks = lengths.argsort(axis=1, kind="stable").argsort(axis=1)
    if sides[0] == sides[1] or (varied and np.corrcoef(ranks)[0, 1] < 0.3):
        raise UsageError(f"The lines of {names} are no translations of each other.")
    return sides


def limited(parts, limit, seed):
    """At most `limit` pairs of each part, drawn by the seed."""
    found = {}
    for part, sides in parts.items():
        order = np.random.default_rng(seed).permutation(len(sides[0]))[:limit]
        found[part] = [[side[index] for index in sorted(order)] for side in sides]
    return found


def summary(parts):
    """The numbers of pairs, and a checksum."""
    texts = (text for sides in parts.values() for side in sides for text in side)
    sizes = {part: len(sides[0]) for part, sides in parts.items()}
    return {"sizes": sizes, "checksum": shared.checksum(texts)}
