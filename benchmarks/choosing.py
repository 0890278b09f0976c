"""Which mechanism suits which task: quality, time and memory of small models of equal width.

    KERAS_BACKEND=jax python -m benchmarks.choosing copy lists reviews --data-dir aclImdb

- `copy`: 64 random symbols are read and repeated; the accuracy is that of repeated symbols.
- `lists`: the value of nested lists, `[MAX 2 9 [MIN 4 7] 0]`, one of ten (Nangia & Bowman 2018).
- `reviews`: whether a review of IMDB is positive, from 2,000 bytes (Tay et al. 2021).

All models are two blocks of 64 features and 4 heads on learned positions, trained with the same
batches. Each runs in a process of its own. CPU seconds are those of all cores; memory is how much
the peak grows in training. With `--times 24` only so many steps are taken, for their time and
memory, in rows of their own. A JSON file that is there already is added to.
"""

import dataclasses
import math
import pathlib
import time
from collections.abc import Callable

import keras
import numpy as np

import keras_attention as ka
from benchmarks import runner

WIDTH, HEADS, SIZE, BLOCKS = 64, 4, 16, 2
NEAR, FIRST = 32, 4  # A window to either side, and tokens that see all and are seen by all.
RANK = 64  # Keys of a low-rank mechanism, whatever the length.


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned: `draw(rng, count)` gives rows of ids (count, T), and labels.

    `draw_test(rng, count)` gives several such, those of each length; without it, they are drawn.
    """

    draw: Callable
    length: int
    vocabulary: int
    classes: int
    steps: int
    batch: int = 16
    test: int = 2000
    causal: bool = False
    draw_test: Callable | None = None


def draw_copies(rng, count):
    """Symbols from 1 on, 0, and the same symbols, of which each is to be predicted."""
    symbols = rng.integers(1, 32, (count, 64))
    rows = np.concatenate([symbols, np.zeros((count, 1), int), symbols], axis=1)
    return rows[:, :-1], symbols


OPERATORS = {
    "MAX": max,
    "MIN": min,
    "MED": lambda x: int(np.median(x)),
    "SM": lambda x: sum(x) % 10,
}
# 0 is padding; digits are 1 to 10.
LIST_TOKENS = {name: 11 + i for i, name in enumerate([*OPERATORS, "]"])}


def draw_lists(rng, count, longest=64, depth=3):
    """The tokens of nested lists, and their values."""

    def make(depth):
        if depth == 0 or rng.random() < 0.5:
            digit = int(rng.integers(10))
            return [1 + digit], digit
        name = list(OPERATORS)[rng.integers(len(OPERATORS))]
        parts = [make(depth - 1) for _ in range(rng.integers(2, 6))]
        tokens = [token for part, _ in parts for token in part]
        value = OPERATORS[name]([value for _, value in parts])
        return [LIST_TOKENS[name], *tokens, LIST_TOKENS["]"]], value

    rows, labels = np.zeros((count, longest), int), np.zeros(count, int)
    for i in range(count):
        tokens = []
        while not 8 <= len(tokens) <= longest:
            tokens, labels[i] = make(depth)
        rows[i, : len(tokens)] = tokens
    return rows, labels


class Reviews:
    """Bytes of the reviews of a folder, the training ones drawn with replacement.

    Rows of a batch have similar lengths, and together 16,000 bytes with padding.
    """

    lengths = 500, 1000, 1500, 2000

    def __init__(self, folder):
        from examples.imdb_reviews import from_folder

        _, train, test = from_folder(pathlib.Path(folder))
        self.train, self.test = map(self._rows, (train, test))

    def _rows(self, reviews):
        """For each of `lengths`, the rows that fit into it and into none before, and labels."""
        found = [np.frombuffer(t.encode("utf-8")[:2000], "uint8") for t in reviews.texts]
        group = np.searchsorted(self.lengths, [len(row) for row in found])
        parts = []
        for i, length in enumerate(self.lengths):
            chosen = np.flatnonzero(group == i)
            rows = np.zeros((len(chosen), length), int)
            for row, j in zip(rows, chosen, strict=True):
                row[: len(found[j])] = found[j]
            parts.append((rows, np.asarray(reviews.labels)[chosen]))
        return parts

    def draw(self, rng, count):
        """A batch of one length, in which each review is as likely as any other."""
        size = count * self.lengths[-1] // np.array(self.lengths)
        batches = [len(rows) for rows, _ in self.train] / size
        i = rng.choice(len(size), p=batches / batches.sum())
        rows, labels = self.train[i]
        chosen = rng.integers(len(rows), size=size[i])
        return rows[chosen], labels[chosen]

    def draw_test(self, rng, count):
        """`count` reviews of the test set, those of each length together."""
        share = count / sum(len(rows) for rows, _ in self.test)
        for rows, labels in self.test:
            chosen = rng.permutation(len(rows))[: math.ceil(share * len(rows))]
            if len(chosen):
                yield rows[chosen], labels[chosen]


TASKS = {
    "copy": Task(draw_copies, 128, 32, 32, steps=1500, test=256, causal=True),
    "lists": Task(draw_lists, 64, 16, 10, steps=4000),
    "reviews": Task(lambda *_: None, 2000, 256, 2, steps=1500, batch=8),
}


def attention(**options):
    return lambda length, causal: ka.MultiHeadAttention(
        HEADS, SIZE, pattern=pattern(causal), **options
    )


def pattern(causal):
    return "causal" if causal else None


def window(length, causal):
    near = ka.patterns.SlidingWindow(NEAR, 0 if causal else NEAR)
    return ka.MultiHeadAttention(HEADS, SIZE, pattern=near)


def window_and_more(blocks=False):
    """A window and the first tokens, and with `blocks` random blocks."""

    def layer(length, causal):
        seen = ka.patterns.SlidingWindow(NEAR, NEAR) | ka.patterns.Global(FIRST)
        if blocks:
            # In blocks of 16, as many on average as there are of the window.
            seen = seen | ka.patterns.RandomBlocks(length, 16, 3)
        seen = seen & ka.patterns.Causal() if causal else seen
        return ka.MultiHeadAttention(HEADS, SIZE, pattern=seen)

    return layer


# These have no order, and so no `copy`.
UNORDERED = "linformer", "nystrom"
# Those that read in one direction only do so in every task.
MECHANISMS = {
    "softmax": attention(),
    "softmax, rotary": attention(position="rotary"),
    "sigmoid": attention(normalization="sigmoid"),
    "entmax": attention(normalization="entmax"),
    "differential": lambda length, causal: ka.DifferentialAttention(
        HEADS // 2, SIZE, depth=1, pattern=pattern(causal)
    ),
    "window": window,
    "window, global": window_and_more(),
    "window, global, random": window_and_more(blocks=True),
    "linformer": lambda length, causal: ka.LinformerAttention(HEADS, SIZE, length, RANK),
    "nystrom": lambda length, causal: ka.NystromAttention(HEADS, SIZE, RANK),
    "linear": lambda length, causal: ka.LinearAttention(HEADS, SIZE, causal=causal),
    "linear, FAVOR+": lambda length, causal: ka.LinearAttention(
        HEADS, SIZE, causal=causal, feature_map="favor"
    ),
    "retention": lambda length, causal: ka.Retention(HEADS, SIZE),
    "gated linear": lambda length, causal: ka.GatedLinearAttention(HEADS, SIZE),
    "gated linear, convolved": lambda length, causal: ka.GatedLinearAttention(
        HEADS, SIZE, conv_kernel_size=4
    ),
    "gated delta": lambda length, causal: ka.GatedDeltaNet(HEADS, SIZE),
    "gated delta, convolved": lambda length, causal: ka.GatedDeltaNet(
        HEADS, SIZE, conv_kernel_size=4
    ),
    "none": lambda length, causal: None,
}


def build(task, make):
    """The model of a task; `make` None leaves attention out, and only the last pooling attends."""
    ids = keras.Input((None,), dtype="int32")
    mask = None if task.causal else keras.ops.not_equal(ids, 0)
    x = keras.layers.Embedding(task.vocabulary, WIDTH)(ids)
    x = ka.LearnedPositionEmbedding(task.length)(x)
    for _ in range(BLOCKS):
        layer = make(task.length, task.causal)
        if layer is not None:
            x = x + layer(keras.layers.LayerNormalization()(x), query_mask=mask)
        x = x + ka.FeedForward(4 * WIDTH)(keras.layers.LayerNormalization()(x))
    x = keras.layers.LayerNormalization()(x)
    x = x[:, 64:] if task.causal else ka.AttentionPooling()(x, mask=mask)
    return keras.Model(ids, keras.layers.Dense(task.classes, "softmax")(x))


def measure(name, mechanism, seed, folder, small=False, times=None):
    """Trains a model of a task and tests it, or takes so many steps."""
    task = TASKS[name]
    if name == "reviews":
        reviews = Reviews(folder)
        task = dataclasses.replace(task, draw=reviews.draw, draw_test=reviews.draw_test)
    if small:
        task = dataclasses.replace(task, steps=4, batch=2, test=4)
    if times is not None:
        task = dataclasses.replace(task, steps=times)
    keras.utils.set_random_seed(seed)
    rng = np.random.default_rng(seed)
    model = build(task, MECHANISMS[mechanism])
    schedule = keras.optimizers.schedules.CosineDecay(
        1e-4, task.steps, warmup_target=2e-3, warmup_steps=task.steps // 10
    )
    jit = keras.backend.backend() != "torch"
    optimizer = keras.optimizers.Adam(schedule, clipnorm=1.0)
    loss = "sparse_categorical_crossentropy"
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=jit)
    spent = []

    def train():
        for _ in range(task.steps):
            batch = task.draw(rng, task.batch)
            start = time.process_time()
            model.train_on_batch(*batch)
            spent.append(time.process_time() - start)

    grown, _ = runner.growth(lambda: None, train)
    # The median, as the first steps of each length compile.
    found = {
        "cpu_ms": 1000 * float(np.median(spent)),
        "mib": grown,
        "weights": model.count_params(),
        "steps": task.steps,
        "seed": seed,
    }
    if times is not None:
        return found
    rng = np.random.default_rng(10_000 + seed)
    tests = task.draw_test(rng, task.test) if task.draw_test else [task.draw(rng, task.test)]
    right = count = 0
    for rows, labels in tests:
        _, accuracy = model.evaluate(rows, labels, batch_size=task.batch, verbose=0)
        right, count = right + accuracy * len(rows), count + len(rows)
    return {"accuracy": right / count, **found}


def rows(options):
    for task in options.tasks:
        for mechanism in options.mechanisms:
            if TASKS[task].causal and mechanism in UNORDERED:
                continue
            given = task, mechanism, options.seed, options.data_dir, options.small, options.times
            found = runner.in_a_process("choosing", "measure", *given)
            yield {"task": task, "mechanism": mechanism, **found}


def main():
    parser = runner.parser(__doc__)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--mechanisms", nargs="*", choices=MECHANISMS, default=list(MECHANISMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", metavar="DIR", help="an unpacked aclImdb folder")
    parser.add_argument("--times", type=int, metavar="STEPS", help="take so many, and no test")
    options = runner.parsed(parser)
    if "reviews" in options.tasks and not options.data_dir:
        parser.error("reviews needs --data-dir")
    runner.report(rows(options), options, str, identity=("task", "mechanism", "seed", "steps"))


if __name__ == "__main__":
    main()
