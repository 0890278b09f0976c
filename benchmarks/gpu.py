"""Attention on a GPU, checked and then timed: `python -m benchmarks.gpu`.

First every kernel against `reference`: outputs and gradients, float32 and bfloat16, with masks,
windows and caches. Then times: of the attention alone against PyTorch's
`scaled_dot_product_attention`, of layers against Keras's, and of training steps of two blocks.
Products of float32 have TensorFloat-32's 10 bits on JAX, unless
`JAX_DEFAULT_MATMUL_PRECISION=highest`.

`--tiles` measures instead how many scores a tile should have: training steps in bfloat16 of
problems that no fused kernel takes.
"""

import contextlib
import functools
import itertools
import json
import sys

import keras
import numpy as np

import keras_attention
from benchmarks import decoder_block, runner
from benchmarks.attention import APART, BFLOAT16, LONG, MODELS, XLA, each, made, report, size
from benchmarks.backends import BACKEND, compiled, gpu, on_torch
from benchmarks.contestants import Case, Contestant
from keras_attention import kernels, patterns
from keras_attention.backend import backend
from keras_attention.kernels.tiles import strategies

ops = keras.ops

LENGTHS = {2048: 8, 8192: 2, 512: 16, 32768: 1}  # with so many sequences
# The largest distance from `reference` in float32, relative to its norm. A GPU may multiply float32
# with fewer bits.
FARTHEST = {"float32": 5e-3, "bfloat16": 2e-2}


# Correctness


@contextlib.contextmanager
def where_it_can():
    """In this block it is no error that a kernel cannot do what it is given."""
    try:
        yield
    except ValueError as error:
        if "cannot do this" not in str(error):
            raise


def problems(length):
    """By name: arguments of `ops.attend`, of 2 sequences and 4 heads; also "queries", "groups"."""
    padding = (np.arange(length) < np.array([[length], [length // 2]]))[:, None, None]
    bias = np.random.default_rng(0).standard_normal((1, 4, length, length), dtype="float32")
    segments = np.repeat(np.arange(4), length // 4)[None].repeat(2, 0).astype("int32")
    gaps = (np.arange(length) % 3 > 0)[None, None, None]
    near, chunk = length // 16, length // 8
    causal, before = {"pattern": "causal"}, {"pattern": patterns.SlidingWindow(near, 0)}
    left, grouped = {"mask": padding[..., ::-1]}, {**causal, "groups": 2}
    rotary = {"position": "rotary"}
    return {
        "plain": {},
        "padding": {"mask": padding},
        "causal": causal,
        "window": {"pattern": patterns.SlidingWindow(near, near)},
        "bias": {"bias": bias},
        "segments": {**causal, "segment_ids": (segments, segments)},
        "soft cap": {"logit_soft_cap": 5.0},
        "grouped heads": grouped,
        "grouped heads, rotary, causal, padded on the left": {**grouped, **left, **rotary},
        "gaps": {"mask": gaps},
        "causal, gaps": {**causal, "mask": gaps},
        "causal window": before,
        "causal window, padded on the left": {**left, **before},
        "ALiBi": {**causal, "position": "alibi"},
        "one token, cache": {**grouped, "queries": 1, "offset": length - 1},
        "chunk, cache": {**causal, "queries": chunk, "offset": length - chunk},
    }


def answers(kernel, arrays, upstream, options):
    """The output, and the gradients of query, key and value."""

    attend = functools.partial(keras_attention.ops.attend, kernel=kernel, **options)
    output, pull = backend.vjp(attend, arrays)
    found = [output, *pull(ops.cast(upstream, output.dtype))]
    return [ops.convert_to_numpy(ops.cast(x, "float32")) for x in found]


def checked(length, dtypes, size=64):
    """A dictionary for each kernel, problem and dtype: how far it is from `reference`."""
    rng = np.random.default_rng(1)
    for dtype, (name, options) in itertools.product(dtypes, problems(length).items()):
        options = dict(options)
        queries, groups = options.pop("queries", length), options.pop("groups", 4)
        shapes = [(2, queries, 4, size), *[(2, length, groups, size)] * 2]
        drawn = [rng.standard_normal(shape, dtype="float32") for shape in (*shapes, shapes[0])]
        *arrays, upstream = map(ops.convert_to_tensor, drawn)
        arrays = [ops.cast(array, dtype) for array in arrays]
        # The definition of the same numbers, in float32.
        exact = [ops.cast(array, "float32") for array in arrays]
        expected = answers("reference", exact, upstream, options)
        for kernel in ("auto", *(kernel.name for kernel in kernels.KERNELS)):
            with where_it_can():
                found = answers(kernel, arrays, upstream, options)
                apart = max(map(runner.distance, found, expected))
                row = {"kernel": kernel, "problem": name, "dtype": dtype, "apart": apart}
                yield {**row, "agrees": bool(apart < FARTHEST[dtype])}


# Times


def heads_of(case):
    """Query, key and value in one array, so that all three have a gradient."""
    return case.normal(3, case.batch, case.length, case.heads, case.key_dim)


def attending(case, **options):
    """Attention alone, forward or with its gradients."""

    def attend(heads):
        return keras_attention.ops.attend(*(heads[n] for n in range(3)), **options)

    return compiled(attend, [heads_of(case)], training=case.training, xla=case.xla)


def torch_alone(case):
    import torch

    heads = torch.tensor(ops.convert_to_numpy(ops.cast(heads_of(case), "float32")))
    heads = heads.to("cuda" if torch.cuda.is_available() else "cpu", getattr(torch, case.dtype))

    def attend(heads):
        sides = (part.transpose(1, 2) for part in heads)
        return torch.nn.functional.scaled_dot_product_attention(*sides, is_causal=case.causal)

    run = on_torch(attend, [], [heads], case.training)
    # On other backends too, the result is an array.
    return lambda: (run()[0].flatten()[:1].float().cpu().numpy(),)


LLAMA = {
    "ours": Contestant("keras_attention", lambda case: decoder_block.ours(case, case.policy)[1]),
    "other": Contestant("keras_hub", lambda case: decoder_block.hub(case, case.policy)),
    **APART,
}
ALONE = {
    "ours": Contestant("ops.attend", lambda case: attending(case, mask=case.mask[:, None, None])),
    "other": Contestant("torch scaled_dot_product_attention, without padding", torch_alone),
    **APART,
}
LAYER = {**BFLOAT16, **XLA}
CAUSAL = {**LAYER, "causal": True}
LEFT = {**CAUSAL, "padding": "left"}
GROUPED = {**CAUSAL, "position": "rotary", "key_heads": 2}
PADDED = {"padding": True}
# Training steps by names with a length, the most telling first. Keras's layer has no positions.
ROWS = {
    "block-{}": ("Llama's block, padded on the left, bfloat16", LEFT, LLAMA),
    "causal-rotary-grouped-{}": ("causal, rotary, grouped heads, bfloat16", GROUPED, APART),
    "causal-window-{}": ("a window of 128 keys before, bfloat16", {**CAUSAL, "window": 127}, {}),
    "alibi-{}": ("causal, ALiBi, bfloat16", {**CAUSAL, "position": "alibi"}, APART),
    "padded-left-{}": ("causal, padded on the left, bfloat16", LEFT, APART),
    "layer-{}-plain": ("training step, bfloat16", LAYER, {}),
    "layer-{}-padding-dropout": (
        "training step, padding mask, dropout 0.1, bfloat16",
        *({**LAYER, **PADDED, "dropout": 0.1}, {}),
    ),
    "layer-{}-window": ("a window of 2047 keys, bfloat16", {**LAYER, "window": 1023}, {}),
    "alone-bfloat16-{}-training": ("attention alone, bfloat16", {**PADDED, **BFLOAT16}, ALONE),
    "alone-float32-{}-training": ("attention alone", PADDED, ALONE),
}
QUICK = (
    *("alone-bfloat16-512-training", "layer-512-window", "model"),
    *("causal-rotary-grouped-512", "causal-window-512", "padded-left-512", "block-512"),
)


def rows(small):
    """All rows by name."""
    sized, sizes = size(small), {n: (batch, n, 512, 8) for n, batch in LENGTHS.items()}
    tokens = {name: work for name, work in LONG.items() if name.startswith("decoding")}
    model = {"model": ("two-block model", XLA, MODELS, sizes[2048])}
    found = *made(ROWS, sizes, sized), *each(tokens, sized, **BFLOAT16), *each(model, sized)
    return {row.name: row for row in found}


# Tiles

TILED = {
    "dropout": {"dropout": 0.1, "seed": 1},
    "ALiBi, causal": {"position": "alibi", "pattern": "causal"},
    "window of 128 on both sides": {"pattern": patterns.SlidingWindow(128, 128)},
}
SCORES = tuple(2**power for power in range(21, 28, 2))


def tiled(case, scores, options):
    """A training step with tiles of so many scores."""
    run = attending(case, **options)

    def step():
        # Read when the step is compiled, and by PyTorch in each call.
        with strategies.using(scores=scores):
            return run()

    step()
    return step


def tile_rows(options):
    lengths = {64: 2} if options.small else {2048: 8, 8192: 2}
    kinds = itertools.product(lengths.items(), TILED.items(), ("blockwise", "banded"))
    for (length, batch), (problem, given), kernel in kinds:
        case, given = Case(batch, length, 512, 8, dtype="bfloat16"), {**given, "kernel": kernel}
        with where_it_can():
            runs = {scores: tiled(case, scores, given) for scores in SCORES}
            times = runner.in_turns(runs, options.repeats, options.seconds)
            row = {"problem": problem, "length": length, "batch": batch}
            yield {**row, "kernel": kernel, "times": times}


def main():
    options = runner.parsed(
        __doc__,
        {
            "--check": {"default": ",".join(FARTHEST), "help": "dtypes of kernels, or none"},
            "--tiles": runner.flag("by the scores of a tile instead"),
        },
        rows(small=False),
        QUICK,
        seconds=3,
    )
    if not (gpu() or options.small):
        sys.exit(f"{BACKEND} sees no GPU; --small shows on a CPU that this program runs")
    if options.tiles:
        runner.report(tile_rows(options), options)
        return 0
    dtypes = [name for name in FARTHEST if name in options.check.split(",")]
    checks = list(checked(64 if options.small else 1024, dtypes))
    wrong = [row for row in checks if not row["agrees"]]
    print(f"{len(checks)} comparisons with `reference`, {len(wrong)} apart.")
    farthest = sorted(checks, key=lambda row: row["apart"] / FARTHEST[row["dtype"]])[-1:]
    for row in wrong or farthest:
        print("APART:" if wrong else "The farthest:", json.dumps(row))
    every = rows(options.small)
    _, failed = report([every[name] for name in options.rows], options, kernels=checks)
    return int(bool(wrong) or failed)


if __name__ == "__main__":
    sys.exit(main())
