"""Which mechanism suits which task: quality, time and memory of small models of equal width.

    KERAS_BACKEND=jax python -m benchmarks.choosing copy lists reviews images --data-dir aclImdb

- `copy`: 64 random symbols are read and repeated; the accuracy is that of repeated symbols.
- `lists`: the value of nested lists, `[MAX 2 9 [MIN 4 7] 0]`, one of ten (Nangia & Bowman 2018).
- `reviews`: whether a review of IMDB is positive, from 2,000 bytes (Tay et al. 2021).
- `images`: the class of an image of CIFAR-10 from its 256 patches of 2 by 2 pixels.

All models are two blocks of 64 features and 4 heads on learned positions, trained with the same
batches. Each runs in a process of its own. CPU seconds are those of all cores; memory is how much
the peak grows in training. With `--times 24` only so many steps are taken, for their time and
memory, in rows of their own. A JSON file that is there already is added to.
"""

import dataclasses
import functools
import itertools
import math
import pathlib
import sys
import time
from collections.abc import Callable

import keras
import numpy as np

import keras_attention as ka
from benchmarks import runner
from keras_attention.patterns import Causal, Global, RandomBlocks, SlidingWindow

WIDTH, HEADS, SIZE, BLOCKS = 64, 4, 16, 2
NEAR, FIRST = 32, 4  # A window to either side, and tokens that see all and are seen by all.
RANK = 64  # Keys of a low-rank mechanism, whatever the length.


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned: `draw(rng, count)` gives rows of ids (count, T), or images, and labels.

    `draw_test(rng, count)` gives several such, those of each length; without it, they are drawn.
    """

    draw: Callable | None
    length: int
    vocabulary: int
    classes: int
    steps: int
    batch: int = 16
    test: int = 2000
    causal: bool = False
    draw_test: Callable | None = None
    image: tuple | None = None  # the height, width and channels


def draw_copies(rng, count):
    """Symbols from 1 on, 0, and the same symbols, of which each is to be predicted."""
    symbols = rng.integers(1, 32, (count, 64))
    rows = np.concatenate([symbols, np.zeros((count, 1), int), symbols], axis=1)
    return rows[:, :-1], symbols


OPERATORS = [max, min, lambda x: int(np.median(x)), lambda x: sum(x) % 10]
DIGIT, OPERATOR, END = 1, 11, 15  # The first numbers of these tokens; 0 is padding.


def draw_lists(rng, count, longest=64, depth=3):
    """The tokens of nested lists, and their values."""

    def make(depth):
        if depth == 0 or rng.random() < 0.5:
            digit = int(rng.integers(10))
            return [DIGIT + digit], digit
        operator = rng.integers(len(OPERATORS))
        parts = [make(depth - 1) for _ in range(rng.integers(2, 6))]
        tokens = [token for part, _ in parts for token in part]
        value = OPERATORS[operator]([value for _, value in parts])
        return [OPERATOR + operator, *tokens, END], value

    rows, labels = np.zeros((count, longest), int), np.zeros(count, int)
    for i in range(count):
        tokens = []
        while not 8 <= len(tokens) <= longest:
            tokens, labels[i] = make(depth)
        rows[i, : len(tokens)] = tokens
    return rows, labels


LENGTHS = 500, 1000, 1500, 2000  # of reviews in bytes: those of a batch have similar ones


def by_length(reviews):
    """For each of LENGTHS, the rows of bytes that fit into it and into none before, and labels."""
    found = [np.frombuffer(text.encode("utf-8")[:2000], "uint8") for text in reviews.texts]
    group = np.searchsorted(LENGTHS, [len(row) for row in found])
    parts = []
    for i, length in enumerate(LENGTHS):
        chosen = np.flatnonzero(group == i)
        rows = np.zeros((len(chosen), length), int)
        for row, j in zip(rows, chosen, strict=True):
            row[: len(found[j])] = found[j]
        parts.append((rows, np.asarray(reviews.labels)[chosen]))
    return parts


def draw_reviews(parts, rng, count):
    """A batch of one length and as many bytes as any, in which all reviews are equally likely."""
    size = count * LENGTHS[-1] // np.array(LENGTHS)
    batches = [len(rows) for rows, _ in parts] / size
    i = rng.choice(len(size), p=batches / batches.sum())
    rows, labels = parts[i]
    chosen = rng.integers(len(rows), size=size[i])
    return rows[chosen], labels[chosen]


def tested_reviews(parts, rng, count):
    """`count` reviews, those of each length together."""
    share = count / sum(len(rows) for rows, _ in parts)
    for rows, labels in parts:
        chosen = rng.permutation(len(rows))[: math.ceil(share * len(rows))]
        if len(chosen):
            yield rows[chosen], labels[chosen]


def draw_rows(inputs, labels, rng, count):
    chosen = rng.choice(len(inputs), min(count, len(inputs)), replace=False)
    return inputs[chosen], labels[chosen]


PATCH = 2  # pixels to a side of those that are a token of an image

TASKS = {
    "copy": Task(draw_copies, 128, 32, 32, steps=1500, test=256, causal=True),
    "lists": Task(draw_lists, 64, 16, 10, steps=4000),
    "reviews": Task(None, 2000, 256, 2, steps=1500, batch=8),
    "images": Task(None, 256, 0, 10, steps=3000, batch=8, test=10_000),
}


def with_reviews(task, folder):
    """The task with the reviews of a folder."""
    from examples.imdb_reviews import from_folder

    _, *sets = from_folder(pathlib.Path(folder))
    draw, draw_test = map(functools.partial, (draw_reviews, tested_reviews), map(by_length, sets))
    return dataclasses.replace(task, draw=draw, draw_test=draw_test)


def with_images(task, name):
    """The task with the images of a data set, or of a folder."""
    from examples.image_classification import load_images

    *parts, classes, _ = load_images(name)
    sets = [(images.astype("float32") / 127.5 - 1, labels) for images, labels in parts]
    draw, tested = (functools.partial(draw_rows, *rows) for rows in sets)
    height, width, channels = sets[0][0].shape[1:]
    return dataclasses.replace(
        task,
        draw=draw,
        draw_test=lambda *how: [tested(*how)],
        image=(height, width, channels),
        length=(height // PATCH) * (width // PATCH),
        classes=len(classes),
    )


WITH = {"reviews": with_reviews, "images": with_images}


def attention(pattern=None, make=ka.MultiHeadAttention, heads=HEADS, **options):
    """A layer of weights of pairs: `pattern(length, causal)`, by default of all, or before."""

    def layer(length, causal):
        seen = pattern(length, causal) if pattern else "causal" if causal else None
        return make(heads, SIZE, pattern=seen, **options)

    return layer


def one_way(make, **options):
    """A layer that reads in one direction, in every task."""
    return lambda length, causal: make(HEADS, SIZE, **options)


def linear(**options):
    return lambda length, causal: ka.LinearAttention(HEADS, SIZE, causal=causal, **options)


def near(length, causal):
    return SlidingWindow(NEAR, 0 if causal else NEAR)


def near_and_first(length, causal, blocks=False):
    seen = SlidingWindow(NEAR, NEAR) | Global(FIRST)
    if blocks:
        # In blocks of 16, as many on average as there are of the window.
        seen = seen | RandomBlocks(length, 16, 3)
    return seen & Causal() if causal else seen


# These have no order, and so no `copy`.
UNORDERED = "linformer", "nystrom"
CONVOLVED = {"conv_kernel_size": 4}
SELECTED = {"block_size": 8, "stride": 4, "selected_size": 16, "num_selected": 4, "window": NEAR}
MECHANISMS = {
    "softmax": attention(),
    "softmax, rotary": attention(position="rotary"),
    "sigmoid": attention(normalization="sigmoid"),
    "entmax": attention(normalization="entmax"),
    "differential": attention(make=ka.DifferentialAttention, heads=HEADS // 2, depth=1),
    "window": attention(near),
    "window, global": attention(near_and_first),
    "window, global, random": attention(functools.partial(near_and_first, blocks=True)),
    "native sparse": one_way(ka.NativeSparseAttention, **SELECTED),
    "linformer": lambda length, causal: ka.LinformerAttention(HEADS, SIZE, length, RANK),
    "nystrom": lambda length, causal: ka.NystromAttention(HEADS, SIZE, RANK),
    "linear": linear(),
    "linear, FAVOR+": linear(feature_map="favor"),
    "retention": one_way(ka.Retention),
    "gated linear": one_way(ka.GatedLinearAttention),
    "gated linear, convolved": one_way(ka.GatedLinearAttention, **CONVOLVED),
    "gated delta": one_way(ka.GatedDeltaNet),
    "gated delta, convolved": one_way(ka.GatedDeltaNet, **CONVOLVED),
    "gated delta by feature, convolved": one_way(
        ka.GatedDeltaNet, use_decay="features", **CONVOLVED
    ),
    "none": lambda length, causal: None,
}


def build(task, make):
    """The model of a task; `make` None leaves attention out, and only the last pooling attends."""
    if task.image:
        inputs, mask = keras.Input(task.image), None
        x = ka.PatchEmbedding(PATCH, WIDTH, data_format="channels_last")(inputs)
    else:
        inputs = keras.Input((None,), dtype="int32")
        mask = None if task.causal else keras.ops.not_equal(inputs, 0)
        x = keras.layers.Embedding(task.vocabulary, WIDTH)(inputs)
    x = ka.LearnedPositionEmbedding(task.length)(x)
    for _ in range(BLOCKS):
        layer = make(task.length, task.causal)
        if layer is not None:
            x = x + layer(keras.layers.LayerNormalization()(x), query_mask=mask)
        x = x + ka.FeedForward(4 * WIDTH)(keras.layers.LayerNormalization()(x))
    x = keras.layers.LayerNormalization()(x)
    x = x[:, 64:] if task.causal else ka.AttentionPooling()(x, mask=mask)
    return keras.Model(inputs, keras.layers.Dense(task.classes, "softmax")(x))


def measure(name, mechanism, seed, data, small, times):
    """Trains a model of a task and tests it, or takes so many steps."""
    task = WITH[name](TASKS[name], data) if name in WITH else TASKS[name]
    changes = {"steps": 4, "batch": 2, "test": 4} if small else {}
    changes |= {} if times is None else {"steps": times}
    task = dataclasses.replace(task, **changes)
    keras.utils.set_random_seed(seed)
    rng = np.random.default_rng(seed)
    model = build(task, MECHANISMS[mechanism])
    schedule = keras.optimizers.schedules.CosineDecay(
        1e-4, task.steps, warmup_target=2e-3, warmup_steps=task.steps // 10
    )
    optimizer, loss = (
        keras.optimizers.Adam(schedule, clipnorm=1.0),
        "sparse_categorical_crossentropy",
    )
    jit = keras.backend.backend() != "torch"
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=jit)
    spent, before = [], runner.peak()
    for _ in range(task.steps):
        batch = task.draw(rng, task.batch)
        start = time.process_time()
        model.train_on_batch(*batch)
        spent.append(time.process_time() - start)
    # The median, as the first steps of each length compile.
    found = {
        "cpu_ms": 1000 * float(np.median(spent)),
        "weights": model.count_params(),
        "steps": task.steps,
        "seed": seed,
    }
    if not task.image:  # Reading images takes more memory than training, and so hides that.
        found["mib"] = runner.peak() - before
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
    data = {"reviews": options.data_dir, "images": options.images}
    for task, mechanism in itertools.product(options.tasks, options.mechanisms):
        if not (TASKS[task].causal and mechanism in UNORDERED):
            how = options.seed, data.get(task), options.small, options.times
            found = runner.in_a_process("choosing", "measure", task, mechanism, *how)
            yield {"task": task, "mechanism": mechanism, **found}


def main():
    arguments = {
        "tasks": {"nargs": "+", "choices": TASKS},
        "--mechanisms": {"nargs": "*", "choices": MECHANISMS, "default": list(MECHANISMS)},
        "--seed": {"type": int, "default": 0},
        "--data-dir": {"metavar": "DIR", "help": "an unpacked aclImdb folder"},
        "--images": {"default": "cifar10", "help": "a name of TensorFlow Datasets, or a folder"},
        "--times": {"type": int, "metavar": "STEPS", "help": "take so many, and no test"},
    }
    options = runner.parsed(__doc__, arguments)
    if "reviews" in options.tasks and not options.data_dir:
        sys.exit("reviews needs --data-dir")
    runner.report(rows(options), options, identity=("task", "mechanism", "seed", "steps"))


if __name__ == "__main__":
    main()
