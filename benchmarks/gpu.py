"""Attention on a GPU, checked and then timed: `python -m benchmarks.gpu`.

First every kernel against `reference`: outputs and gradients, float32 and bfloat16, with masks,
windows and caches. Then times: of the attention alone against PyTorch's
`scaled_dot_product_attention`, of layers against Keras's, and of training steps of two blocks.
It starts no row after `--budget` seconds, eight minutes: those left are named at the end. Products
of float32 have TensorFloat-32's 10 bits on JAX, unless `JAX_DEFAULT_MATMUL_PRECISION=highest`.

`--tiles` measures instead how many scores a tile should have: training steps in bfloat16 of
problems that no fused kernel takes.
"""

import json
import sys
import time

import keras
import numpy as np

import keras_attention
from benchmarks import decoder_block, runner
from benchmarks.attention.backends import BACKEND, compiled, gpu
from benchmarks.attention.cases import Case, Contestant, Row
from benchmarks.attention.contestants import OUR_MODEL, THEIR_MODEL, NoWeights
from benchmarks.attention.measuring import measured
from benchmarks.attention.report import failed, header, line
from benchmarks.attention.rows import against_keras, decoding_rows, shrunk
from keras_attention import kernels, patterns
from keras_attention.backend import backend
from keras_attention.kernels.tiles import strategies

ops = keras.ops

LENGTHS = {2048: 8, 8192: 2, 512: 16, 32768: 1}  # with so many sequences
# The largest distance from `reference` in float32, relative to its norm. A GPU may multiply float32
# with fewer bits.
FARTHEST = {"float32": 5e-3, "bfloat16": 2e-2}


# Correctness


def problems(length):
    """By name: queries, key heads and arguments of `ops.attend`, of 2 sequences and 4 heads."""
    padding = (np.arange(length) < np.array([[length], [length // 2]]))[:, None, None]
    bias = np.random.default_rng(0).standard_normal((1, 4, length, length), dtype="float32")
    segments = np.repeat(np.arange(4), length // 4)[None].repeat(2, 0).astype("int32")
    gaps = (np.arange(length) % 3 > 0)[None, None, None]
    near, chunk = length // 16, length // 8
    causal, before = {"pattern": "causal"}, {"pattern": patterns.SlidingWindow(near, 0)}
    left = {**causal, "mask": padding[..., ::-1]}
    return {
        "plain": (length, 4, {}),
        "padding": (length, 4, {"mask": padding}),
        "causal": (length, 4, causal),
        "window": (length, 4, {"pattern": patterns.SlidingWindow(near, near)}),
        "bias": (length, 4, {"bias": bias}),
        "segments": (length, 4, {**causal, "segment_ids": (segments, segments)}),
        "soft cap": (length, 4, {"logit_soft_cap": 5.0}),
        "grouped heads": (length, 2, causal),
        "grouped heads, rotary, causal, padded on the left": (
            *(length, 2),
            {**left, "position": "rotary"},
        ),
        "gaps": (length, 4, {"mask": gaps}),
        "causal, gaps": (length, 4, {**causal, "mask": gaps}),
        "causal window": (length, 4, before),
        "causal window, padded on the left": (length, 4, {**left, **before}),
        "ALiBi": (length, 4, {**causal, "position": "alibi"}),
        "one token, cache": (1, 2, {**causal, "offset": length - 1}),
        "chunk, cache": (chunk, 4, {**causal, "offset": length - chunk}),
    }


def answers(kernel, arrays, upstream, options):
    """The output, and the gradients of query, key and value."""

    def attend(*arrays):
        return keras_attention.ops.attend(*arrays, kernel=kernel, **options)

    output, pull = backend.vjp(attend, arrays)
    found = [output, *pull(ops.cast(upstream, output.dtype))]
    return [ops.convert_to_numpy(ops.cast(x, "float32")) for x in found]


def checked(length, dtypes, size=64):
    """A dictionary for each kernel, problem and dtype: how far it is from `reference`."""
    rng = np.random.default_rng(1)
    for dtype, farthest in dtypes.items():
        for name, (queries, groups, options) in problems(length).items():
            options = {k: _tensors(x) for k, x in options.items()}
            shapes = [(2, queries, 4, size), *[(2, length, groups, size)] * 2]
            arrays = [
                ops.cast(rng.standard_normal(shape, dtype="float32"), dtype) for shape in shapes
            ]
            upstream = ops.convert_to_tensor(rng.standard_normal(shapes[0], dtype="float32"))
            # The definition of the same numbers, in float32.
            exact = [ops.cast(array, "float32") for array in arrays]
            expected = answers("reference", exact, upstream, options)
            for kernel in ("auto", *(kernel.name for kernel in kernels.KERNELS)):
                try:
                    found = answers(kernel, arrays, upstream, options)
                except ValueError as error:
                    if "cannot do this" not in str(error):
                        raise
                    continue
                apart = max(map(runner.distance, found, expected))
                row = {"kernel": kernel, "problem": name, "dtype": dtype, "apart": apart}
                yield {**row, "agrees": bool(apart < farthest)}


def _tensors(option):
    if isinstance(option, tuple):
        return tuple(map(ops.convert_to_tensor, option))
    return ops.convert_to_tensor(option) if isinstance(option, np.ndarray) else option


# Times


def heads_of(case):
    """Query, key and value in one array, so that all three have a gradient."""
    shape = (3, case.batch, case.length, case.heads, case.key_dim)
    return np.random.default_rng(0).standard_normal(shape, dtype="float32")


def attending(case, **options):
    """Attention alone, forward or with its gradients."""

    def attend(heads):
        return keras_attention.ops.attend(*(heads[n] for n in range(3)), **options)

    inputs = [ops.convert_to_tensor(heads_of(case), dtype=case.dtype)]
    layer = NoWeights(attend)
    # The layer's call would cast to its own dtype.
    return compiled(layer.function, layer, inputs, case)


def _attend_alone(case):
    window = case.window and patterns.SlidingWindow(case.window, case.window)
    mask = np.arange(case.length) < np.linspace(0.75, 1, case.batch)[:, None] * case.length
    mask = ops.convert_to_tensor(mask[:, None, None]) if case.padding else None
    return attending(case, mask=mask, pattern="causal" if case.causal else window)


def _torch_alone(case):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, case.dtype)
    heads = torch.tensor(heads_of(case), device=device, dtype=dtype).requires_grad_(case.training)

    def run():
        query, key, value = (part.transpose(1, 2) for part in heads)
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=case.causal
        )
        if case.training:
            (output,) = torch.autograd.grad(output.float().square().sum(), [heads])
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return (output.detach().flatten()[:1].float().cpu().numpy(),)

    return run


def against(name, work, case, ours, theirs):
    """A row of two sides of the same case, each a label and what prepares it."""
    return Row(name, work, *((Contestant(*side), case) for side in (ours, theirs)), same=False)


def _layer(make, is_keras=False, **options):
    """A layer on `case.length` tokens, with padding on the left if the case has any."""

    def prepare(case):
        layer = make(case.heads, case.key_dim, dtype=case.policy, **options)
        size = block_size(case)
        x, real = decoder_block.states(size, case.dtype, case.length), size.real
        masks = dict.fromkeys(("query_mask", "value_mask"), ops.convert_to_tensor(real))
        masks = masks if case.padding else {}
        if is_keras:
            masks["use_causal_mask"] = case.causal
        layer(x, x)
        return compiled(lambda x: layer(x, x, **masks), layer, [x], case)

    return prepare


# By name: options of our layer and of Keras's, which has no positions, and those of the case.
OPTIONS = {
    "causal-rotary-grouped": (
        {"position": "rotary", "pattern": "causal", "num_key_value_heads": 2},
        {},
        {"causal": True},
    ),
    "causal-window": (
        {"pattern": patterns.SlidingWindow(127, 0)},
        {"sliding_window": 128},
        {"causal": True},
    ),
    "alibi": ({"position": "alibi", "pattern": "causal"}, {}, {"causal": True}),
    "padded-left": ({"pattern": "causal"}, {}, {"causal": True, "padding": True}),
}


def option_rows(size):
    for length, batch in LENGTHS.items():
        for name, (options, theirs, given) in OPTIONS.items():
            case = size(Case(batch, length, 512, 8, dtype="bfloat16", xla=True, **given))
            ours = "keras_attention", _layer(keras_attention.MultiHeadAttention, **options)
            other = "keras", _layer(keras.layers.MultiHeadAttention, True, **theirs)
            yield against(f"{name}-{length}", f"{name}: {case.describe()}", case, ours, other)


def block_size(case):
    sizes = {"features": case.features, "heads": case.heads}
    if case.features < 512:
        sizes.update(intermediate=2 * case.features, key_heads=1)
    return decoder_block.Size(case.length, case.batch, **sizes)


def block_rows(size):
    """The block of Llama's kind: RMSNorm, rotary positions, 8 heads over 2, SwiGLU, causal."""

    def side(make):
        def prepare(case):
            found = make(block_size(case), "training", case.dtype, case.policy, case.xla)
            return found[1] if make is decoder_block.ours else found

        return prepare

    for length, batch in LENGTHS.items():
        case = size(Case(batch, length, 512, 8, dtype="bfloat16", causal=True, xla=True))
        work = f"Llama's block, padded on the left: {case.describe()}"
        ours = "keras_attention", side(decoder_block.ours)
        other = "keras_hub", side(decoder_block.hub)
        yield against(f"block-{length}", work, case, ours, other)


def attention_rows(size):
    other = "torch scaled_dot_product_attention, without padding", _torch_alone
    for dtype in ("bfloat16", "float32"):
        for length, batch in LENGTHS.items():
            case = size(Case(batch, length, 512, 8, padding=True, dtype=dtype))
            name, work = f"alone-{dtype}-{length}-training", f"attention alone: {case.describe()}"
            yield against(name, work, case, ("ops.attend", _attend_alone), other)


def layer_rows(size):
    works = {
        "plain": {},
        "padding-dropout": {"padding": True, "dropout": 0.1},
        "window": {"window": 1023},
    }
    for length, batch in LENGTHS.items():
        for work, options in works.items():
            case = size(Case(batch, length, 512, 8, dtype="bfloat16", xla=True, **options))
            yield against_keras(f"layer-{length}-{work}", case)


def model_rows(size):
    case = size(Case(8, 2048, 512, 8, xla=True))
    work = f"two-block model: {case.describe()}"
    yield Row("model", work, (OUR_MODEL, case), (THEIR_MODEL, case))


def rows(small):
    """All rows, the most telling first."""
    size = shrunk if small else lambda case: case
    found = [
        *block_rows(size),
        *option_rows(size),
        *layer_rows(size),
        *attention_rows(size),
        *decoding_rows(size, "bfloat16"),
        *model_rows(size),
    ]
    if not small:
        return found
    kept = (
        *("alone-bfloat16-512-training", "layer-512-window", "model"),
        *("causal-rotary-grouped-512", "causal-window-512", "padded-left-512", "block-512"),
    )
    return [row for row in found if row.name in kept]


# Tiles

TILED = {
    "dropout": {"dropout": 0.1, "seed": 1},
    "ALiBi, causal": {"position": "alibi", "pattern": "causal"},
    "window of 128 on both sides": {"pattern": patterns.SlidingWindow(128, 128)},
}
SCORES = tuple(2**power for power in range(21, 28, 2))


def tiled(case, kernel, scores, options):
    """A training step with tiles of so many scores, or None where this kernel cannot."""
    run = attending(case, kernel=kernel, **options)

    def step():
        # Read when the step is compiled, and by PyTorch in each call.
        with strategies.using(scores=scores):
            return run()

    try:
        step()
    except ValueError as error:
        if "cannot do this" not in str(error):
            raise
        return None
    return step


def tile_rows(options):
    for length, batch in ({64: 2} if options.small else {2048: 8, 8192: 2}).items():
        case = Case(batch, length, 512, 8, dtype="bfloat16")
        for problem, given in TILED.items():
            for kernel in ("blockwise", "banded"):
                runs = {scores: tiled(case, kernel, scores, given) for scores in SCORES}
                runs = {scores: run for scores, run in runs.items() if run}
                if runs:
                    times = runner.in_turns(runs, options.repeats, options.seconds)
                    row = {"problem": problem, "length": length, "batch": batch}
                    yield {**row, "kernel": kernel, "times": times}


def main():
    parser = runner.parser(__doc__, (), seconds=3)
    parser.add_argument("--check", default=",".join(FARTHEST), help="dtypes of kernels, or none")
    parser.add_argument("--budget", type=float, default=480, help="seconds; no row starts after it")
    parser.add_argument("--tiles", action="store_true", help="by the scores of a tile instead")
    options = runner.parsed(parser)
    if not (gpu() or options.small):
        parser.error(f"{BACKEND} sees no GPU; --small shows on a CPU that this program runs")
    if options.tiles:
        runner.report(tile_rows(options), options, str)
        return 0
    started = time.monotonic()
    dtypes = {name: FARTHEST[name] for name in options.check.split(",") if name != "none"}
    checks = list(checked(64 if options.small else 1024, dtypes))
    wrong = [row for row in checks if not row["agrees"]]
    print(f"{len(checks)} comparisons with `reference`, {len(wrong)} apart.")
    for dtype in dtypes:
        most = max((row["apart"], row["problem"]) for row in checks if row["dtype"] == dtype)
        print(f"Farthest in {dtype}: {most[0]:.2g} of the norm, {most[1]}.")
    for row in wrong:
        print("APART:", json.dumps(row))

    left_out = []

    def found():
        # `--rows` are the beginnings of names here.
        for row in rows(options.small):
            if not row.name.startswith(tuple(options.rows.split(","))):
                continue
            if time.monotonic() - started > options.budget:
                left_out.append(row.name)
                continue
            yield measured(row, options)

    about = {"kernels": checks, "left_out": left_out}
    report = runner.report(found(), options, line, header(), **about)
    if left_out:
        print(f"\nNo time was left for: {', '.join(left_out)}.")
    return int(bool(wrong) or failed(report["rows"]))


if __name__ == "__main__":
    sys.exit(main())
