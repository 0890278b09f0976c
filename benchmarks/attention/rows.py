"""The rows: which sizes, and against what."""

import dataclasses

from benchmarks.attention.backends import BACKEND
from benchmarks.attention.cases import Case, Row
from benchmarks.attention.contestants import (
    OUR_MODEL,
    OURS,
    SHAW,
    THEIR_MODEL,
    THEIRS,
    decoding_contestant,
    reading_contestant,
)


def shrunk(case):
    """A case that takes milliseconds."""
    return dataclasses.replace(
        case,
        batch=min(case.batch, 2),
        length=max(16, case.length // 32),
        features=case.features // 8,
        window=case.window and max(1, case.window // 8),
        max_distance=case.max_distance and max(1, case.max_distance // 4),
    )


def against_keras(name, case, **options):
    """A row of our layer against Keras's."""
    return Row(name, case.describe(), (OURS, case), (THEIRS, case), **options)


# Batch, length, features, heads.
SIZES = {"short": (32, 80, 128, 8), "medium": (8, 512, 512, 8), "long": (1, 4096, 512, 8)}
# Training steps with what most models have, forward passes, and numbers of bfloat16.
WORKS = {
    "forward": {"training": False},
    "training": {},
    "padding": {"padding": True},
    "causal": {"causal": True},
    "dropout": {"dropout": 0.1},
    "bias": {"bias": True},
    "all-three": {"padding": True, "causal": True, "dropout": 0.1},
    "bfloat16-forward": {"training": False, "dtype": "bfloat16"},
    "bfloat16-training": {"dtype": "bfloat16"},
}
WITH_XLA = ("forward", "training")
PARTS = {1024: (1, 1024, 128, 8), 2048: (1, 2048, 256, 4)}


def layer_rows(size):
    for name, sizes in SIZES.items():
        for work, given in WORKS.items():
            yield against_keras(f"{name}-{work}", size(Case(*sizes, **given)))
            if BACKEND == "tensorflow" and work in WITH_XLA:
                yield against_keras(f"{name}-{work}-xla", size(Case(*sizes, **given, xla=True)))


def model_rows(size):
    """The same attention within a model."""
    for name, sizes in SIZES.items():
        for xla in (False, True) if BACKEND == "tensorflow" else (False,):
            case = size(Case(*sizes, xla=xla))
            work = f"two-block model: {case.describe()}"
            end = "-xla" if xla else ""
            yield Row(f"{name}-model{end}", work, (OUR_MODEL, case), (THEIR_MODEL, case))


def long_rows(size):
    masked = size(Case(1, 16384, 256, 4, padding=True, causal=True, dropout=0.1))
    yield against_keras("masked-memory", masked, figure="memory", heavy=True)
    longest = size(Case(1, 32768, 256, 4))
    yield against_keras("longest-memory", longest, figure="memory", heavy=True)
    near, far = (size(Case(1, length, 256, 4, window=128)) for length in (8192, 65536))
    yield against_keras("window-training", near)
    yield against_keras("window-memory", near, figure="memory")
    work = f"{far.describe()}, against T{near.length}"
    yield Row("window-growth", work, (OURS, far), (OURS, near), same=False)


def position_rows(size):
    """Against ours without; Shaw's embeddings against Keras's layer without."""
    for position in ("alibi", "relative_bias", "rotary"):
        for length, sizes in PARTS.items():
            plain = size(Case(*sizes))
            case = dataclasses.replace(plain, position=position)
            work = f"{case.describe()}, against ours without"
            yield Row(f"{position}-{length}", work, (OURS, case), (OURS, plain), same=False)
    for length, sizes in PARTS.items():
        case = size(Case(*sizes, max_distance=16))
        plain = dataclasses.replace(case, max_distance=None)
        work = f"{case.describe()}, against Keras's plain attention"
        yield Row(f"shaw-{length}", work, (SHAW, case), (THEIRS, plain), same=False)


def decoding_rows(size, dtype="float32"):
    case = size(Case(16, 8192, 512, 8, training=False, dtype=dtype))
    work = f"one token over a cache of {case.length}, B{case.batch} H{case.heads} K{case.key_dim}"
    many = decoding_contestant(f"ops.attend, {case.heads} key and value heads", case.heads), case
    one = decoding_contestant("ops.attend, 1 key and value head", 1), case
    yield Row("decoding", f"{work}, multi-query against multi-head", one, many, same=False)
    reading = reading_contestant("the largest number in it", case.heads), case
    yield Row("decoding-reading", f"{work}, against reading it", many, reading, same=False)


OVER_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
FARTHEST_FOR_KERAS = 8192


def over_rows(size, small):
    """What the plot shows: a training step as of the row `masked-memory`, over the length."""
    for length in OVER_LENGTHS[1:3] if small else OVER_LENGTHS:
        case = size(Case(1, length, 256, 4, padding=True, causal=True, dropout=0.1))
        heavy = length > FARTHEST_FOR_KERAS
        yield against_keras(f"over-{length}", case, figure="memory", heavy=heavy)


def rows(small):
    """All rows by name, in groups: "table", and "over" for the plot."""
    size = shrunk if small else lambda case: case
    table = [
        row
        for group in (layer_rows, long_rows, position_rows, decoding_rows, model_rows)
        for row in group(size)
    ]
    groups = {"table": table, "over": over_rows(size, small)}
    return {group: {row.name: row for row in found} for group, found in groups.items()}
