"""The rows: which sizes, against what, and what should be reached."""

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


def against_keras(name, case, bar=None, aim=None, **options):
    """A row of our layer against Keras's."""
    return Row(
        name, case.describe(), (OURS, case), (THEIRS, case), case.gflop(), bar, aim, **options
    )


PLAIN_SIZES = {  # batch, length, features, heads; bar and aim forward, and of a training step
    "short": ((32, 80, 128, 8), (0.95, 0.80), (0.90, 0.80)),
    "medium": ((8, 512, 512, 8), (0.97, 0.85), (0.95, 0.80)),
    "long": ((1, 4096, 512, 8), (1.00, 0.80), (0.90, 0.75)),
}
XLA_BAR = (0.95, 0.80)
OPTIONS = {
    "padding": {"padding": True},
    "causal": {"causal": True},
    "dropout": {"dropout": 0.1},
    "bias": {"bias": True},
    "all-three": {"padding": True, "causal": True, "dropout": 0.1},
}


def plain_rows(size, xla):
    for name, (sizes, *bars) in PLAIN_SIZES.items():
        for training, bar in zip((False, True), bars, strict=True):
            case = size(Case(*sizes, training=training, xla=xla))
            step = "training" if training else "forward"
            suffix = "-xla" if xla else ""
            yield against_keras(f"{name}-{step}{suffix}", case, *(XLA_BAR if xla else bar))


def option_rows(size):
    """Training steps with what most models have."""
    for name, (sizes, *_) in PLAIN_SIZES.items():
        for option, given in OPTIONS.items():
            case = size(Case(*sizes, **given))
            bar = 0.7 if (name, option) == ("long", "all-three") else 1.0
            yield against_keras(f"{name}-{option}", case, bar)


def bfloat16_rows(size):
    for name, (sizes, *_) in PLAIN_SIZES.items():
        for step in ("forward", "training"):
            case = size(Case(*sizes, training=step == "training", dtype="bfloat16"))
            yield against_keras(f"{name}-bfloat16-{step}", case, 1.0, 0.85)


def model_rows(size, xla):
    """The same attention within a model."""
    for name, (sizes, *_) in PLAIN_SIZES.items():
        case = size(Case(*sizes, xla=xla))
        # Two blocks, with a feed-forward network of 8 D² weights each.
        gflop = 2 * case.gflop(projections=4 + 8)
        yield Row(
            f"{name}-model{'-xla' if xla else ''}",
            f"two-block model: {case.describe()}",
            (OUR_MODEL, case),
            (THEIR_MODEL, case),
            gflop,
            *((None, None) if xla else (0.97, 0.85)),
        )


def memory_rows(size):
    masked = size(Case(1, 16384, 256, 4, padding=True, causal=True, dropout=0.1))
    memory = {"figure": "memory", "judged": "GB", "heavy": True}
    yield against_keras("masked-memory", masked, 0.8, 0.5, **memory)
    yield against_keras("longest-memory", size(Case(1, 32768, 256, 4)), 1.5, 1.0, **memory)


def window_rows(size):
    near = size(Case(1, 8192, 256, 4, window=128))
    far = size(Case(1, 65536, 256, 4, window=128))
    yield against_keras("window-training", near, 0.12, 0.08)
    yield against_keras("window-memory", near, 0.4, figure="memory", judged="GB")
    yield Row(
        "window-growth",
        f"{far.describe()}, against T{near.length}",
        (OURS, far),
        (OURS, near),
        far.gflop(),
        9,
        8,
        same=False,
    )


def shaw_rows(size):
    for sizes in ((1, 1024, 128, 8), (1, 2048, 256, 4)):
        case = size(Case(*sizes, max_distance=16))
        plain = dataclasses.replace(case, max_distance=None)
        row = Row(
            f"shaw-{sizes[1]}",
            f"{case.describe()}, against Keras's plain attention",
            (SHAW, case),
            (THEIRS, plain),
            case.gflop(projections=3),
            1.8,
            1.4,
            same=False,
        )
        yield row
    # A process that grew by less never held an array (T, S, key_dim).
    table = case.length**2 * case.key_dim * 4 / 1e9
    memory = {"figure": "memory", "judged": "GB", "bar": table, "aim": None}
    yield dataclasses.replace(row, name="shaw-memory", **memory)


POSITIONS = {"alibi": (1.3, 1.15), "relative_bias": (1.3, 1.15), "rotary": (1.1, None)}


def position_rows(size):
    """Against ours without."""
    for position, bars in POSITIONS.items():
        for sizes in ((1, 1024, 128, 8), (1, 2048, 256, 4)):
            plain = size(Case(*sizes))
            case = dataclasses.replace(plain, position=position)
            yield Row(
                f"{position}-{sizes[1]}",
                f"{case.describe()}, against ours without",
                (OURS, case),
                (OURS, plain),
                case.gflop(),
                *bars,
                same=False,
            )


def decoding_rows(size, dtype="float32"):
    case = size(Case(16, 8192, 512, 8, training=False, dtype=dtype))
    work = f"one token over a cache of {case.length}, B{case.batch} H{case.heads} K{case.key_dim}"
    gflop = 4 * case.batch * case.length * case.features / 1e9
    many = decoding_contestant(f"ops.attend, {case.heads} key and value heads", case.heads), case
    yield Row(
        "decoding",
        f"{work}, multi-query against multi-head",
        (decoding_contestant("ops.attend, 1 key and value head", 1), case),
        many,
        gflop,
        0.5,
        0.25,
        same=False,
    )
    reading = reading_contestant("the largest number in it", case.heads), case
    yield Row(
        "decoding-reading", f"{work}, against reading it", many, reading, gflop, 3, same=False
    )


OVER_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
FARTHEST_FOR_KERAS = 8192


def over_rows(size, small):
    """What the plot shows: a training step as of the row `masked-memory`, over the length."""
    for length in OVER_LENGTHS[1:3] if small else OVER_LENGTHS:
        case = size(Case(1, length, 256, 4, padding=True, causal=True, dropout=0.1))
        yield against_keras(
            f"over-{length}", case, figure="memory", heavy=length > FARTHEST_FOR_KERAS
        )


def rows(small):
    """All rows by name, in groups: "table", and "over" for the plot."""
    size = shrunk if small else lambda case: case
    table = [
        *plain_rows(size, xla=False),
        *(plain_rows(size, xla=True) if BACKEND == "tensorflow" else ()),
        *option_rows(size),
        *bfloat16_rows(size),
        *memory_rows(size),
        *window_rows(size),
        *shaw_rows(size),
        *position_rows(size),
        *decoding_rows(size),
        *model_rows(size, xla=False),
        *(model_rows(size, xla=True) if BACKEND == "tensorflow" else ()),
    ]
    groups = {"table": table, "over": over_rows(size, small)}
    return {group: {row.name: row for row in found} for group, found in groups.items()}
