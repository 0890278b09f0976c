"""Where the reviews of `imdb_classification` come from: a folder, a download, or a sample."""

import dataclasses
import json
import random
import re
from pathlib import Path

import numpy as np

from examples import shared
from examples.shared import UsageError

SAMPLE = "embedded sample (not IMDB)"
CLASSES = {"neg": 0, "pos": 1}
LARGEST_REVIEW = 2**20  # Bytes. The longest of IMDB's has 14 thousand.
WRONG_LABELS = 0.02  # in the sample


@dataclasses.dataclass(frozen=True)
class Reviews:
    """Texts and their labels, an array with 1 for positive."""

    texts: list
    labels: np.ndarray

    def __len__(self):
        return len(self.texts)

    def take(self, indices):
        """Some of the reviews, in the order that they have."""
        indices = np.sort(indices)
        return Reviews([self.texts[i] for i in indices], self.labels[indices])

    def limited(self, limit, seed):
        """At most `limit` reviews, half of each label, drawn by `seed`."""
        if limit is None or limit >= len(self):
            return self
        order = np.random.default_rng(seed).permutation(len(self))
        positive = self.labels[order] == 1
        drawn = [order[positive][: limit - limit // 2], order[~positive][: limit // 2]]
        return self.take(np.concatenate(drawn))

    def split(self, fraction, seed):
        """Two parts, the second with `fraction` of the reviews.

        Whole blocks of neighbors are drawn, from a hundred: reviews of one movie are adjacent in
        the folders of the set, and should not be in both parts.
        """
        blocks = np.array_split(np.arange(len(self)), min(100, len(self)))
        order = np.random.default_rng(seed).permutation(len(blocks))
        count = min(len(blocks) - 1, max(1, round(fraction * len(blocks))))
        parts = order[count:], order[:count]
        return [self.take(np.concatenate([blocks[i] for i in part])) for part in parts]

    def checksum(self):
        """Differs between two sets of reviews."""
        return shared.checksum([self.labels.astype("uint8").tobytes(), *self.texts])


def load(data_dir=None, sample=False):
    """The source, training reviews and test reviews."""
    if data_dir is not None:
        return from_folder(Path(data_dir))
    advice = "Unpack https://ai.stanford.edu/~amaas/data/sentiment/ and pass it as --data-dir."
    made = lambda: (SAMPLE, Reviews(*generate(25_000, 0)), Reviews(*generate(1000, 1)))  # noqa: E731
    return shared.or_sample(from_tensorflow_datasets, made, sample, "IMDB", advice)


def from_tensorflow_datasets():
    """The same of `imdb_reviews`. Raises whatever keeps it from being had."""
    columns = shared.tensorflow_dataset("imdb_reviews", "ai.stanford.edu")
    found = [
        Reviews([text.decode("utf-8") for text in rows["text"]], rows["label"].astype("int64"))
        for rows in map(columns, ("train", "test"))
    ]
    return "imdb_reviews (TensorFlow Datasets)", *found


def from_folder(folder):
    """The same of an unpacked aclImdb folder: {train,test}/{pos,neg}/ID_RATING.txt."""
    found = []
    for split in ("train", "test"):
        texts, labels = [], []
        for name, label in CLASSES.items():
            paths = sorted((folder / split / name).glob("*.txt"))
            if not paths:
                inner = folder / "aclImdb"
                hint = f" Did you mean {inner}?" if inner.is_dir() else ""
                raise UsageError(f"--data-dir {folder} has no reviews in {split}/{name}.{hint}")
            texts += [read_review(path, label) for path in paths]
            labels += [label] * len(paths)
        found.append(Reviews(texts, np.array(labels, "int64")))
    if found[0].texts == found[1].texts:
        raise UsageError(f"--data-dir {folder} holds the same reviews in train and in test.")
    if (counts := tuple(map(len, found))) != (25_000, 25_000):
        shared.shout(
            f"THIS IS NOT THE FULL SET, which has 25,000 training and 25,000 test reviews: it has\n"
            f"{counts}. The results of this run do not compare with those of the full set."
        )
    return "imdb (aclImdb folder)", *found


def read_review(path, label):
    """The text of a file."""
    # The name of a review tells its rating, from 1 to 10, and nothing else tells mixed-up folders.
    rating = re.fullmatch(r"\d+_(\d+)", path.stem)
    if rating and (int(rating[1]) > 5) != bool(label):
        raise UsageError(
            f"{path} is in the wrong folder: its name says that the rating is {rating[1]} of 10."
        )
    text = shared.read_text(path, LARGEST_REVIEW)
    if not text.strip():
        raise UsageError(f"{path} is empty: the folder seems to be unpacked only in part.")
    return text


def generate(count, seed):
    """So many synthetic reviews, and their labels.

    The grammar has for each name its alternatives: those of blame and of praise, or the same for
    both. In one, {name} stands for one of the same verdict, and {-name} of the opposite.
    """
    rules = json.loads(shared.read_text(shared.DATA / "reviews.json"))
    # Python's generator gives the same numbers with every version of NumPy.
    rng = random.Random(seed)

    def write(name, verdict):
        verdict = verdict != name.startswith("-")
        sides = rules[name.lstrip("-")]
        chosen = rng.choice(sides[verdict * (len(sides) - 1)])
        return re.sub(r"\{(-?\w+)\}", lambda match: write(match[1], verdict), chosen)

    labels = [rng.random() < 0.5 for _ in range(count)]
    texts = [write("review", label) + rng.choice((".", ".", "!", "", "...")) for label in labels]
    texts = [text if rng.random() < 0.1 else text[0].upper() + text[1:] for text in texts]
    wrong = [rng.random() < WRONG_LABELS for _ in range(count)]
    return texts, np.not_equal(labels, wrong).astype("int64")
