"""Time and memory of attention, ours against Keras's: `python -m benchmarks.attention`.

One run measures a list of rows (`--list` names them, `--rows` chooses) on the backend that
KERAS_BACKEND names, and prints them as a Markdown table.

- "forward" is a layer compiled as the backend does (tf.function, jax.jit; PyTorch runs eagerly,
  without gradients). "training step" is the gradient of sum(output²) by the input and all weights,
  compiled likewise. With "XLA", TensorFlow compiles with `jit_compile=True`; JAX always does, and
  PyTorch does not have it. "two-block model" is `train_on_batch` of a Keras model, with SGD and the
  mean squared error. Numbers are float32 unless a row says otherwise.
- Time: both sides have the same weights and inputs, are compiled and warmed up, and then take
  turns, a burst of calls each, so that a machine that slows down slows both. Quoted are medians of
  wall-clock time and the ratio of these medians. With dropout off, the two must also agree.
- Memory: the peak growth of a process of its own over its peak once it had run the same on a short
  sequence: of resident memory, or on a GPU of the memory in use there. GB are 10⁹ bytes. Compiling
  counts where the backend compiles anew for a new length. The milliseconds of these rows are those
  of that process, the two sides one after the other, not in turns: a rough guide.
- Limit: what the row's matrix products would take at the rate of one large product of the same
  dtype, measured just before the row. Each row's distance to it is "ours / limit". It counts
  projections, scores and weighted sums; a training step as three times the forward pass; causal
  attention as half; a window by the keys that it sees; padding as if it were real. Recomputing
  scores in the backward pass, as a layer that saves memory must, is not counted, nor is reading
  memory, which is what bounds decoding.

Bars and aims are for TensorFlow on two cores of a CPU. On other backends and machines, the same
rows are a report. Figures of a machine that others share are noisy: the JSON file has quartiles and
processor time beside each median, and a ratio near its bar wants a second run.

`--gpu` measures rows for a GPU instead (made for JAX: XLA, bfloat16, then float32). They run on a
CPU too, which says nothing about a GPU. `--small` shrinks everything, and runs one row of each
kind, GPU rows included, only to see that it runs: its figures mean nothing.
"""

import argparse
import collections
import dataclasses
import datetime
import fnmatch
import functools
import gc
import json
import math
import os
import pathlib
import platform
import re
import resource
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Processes that measure memory find a GPU that this one has not taken whole.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import keras
import numpy as np

import keras_attention

ops = keras.ops
BACKEND = keras.backend.backend()

SHORT = 16  # the length that a process has run before its memory is measured
BURST = 0.05  # seconds of calls that make one sample of time
ROUNDS = 5  # at least this many, however long they take


# What is measured


@dataclasses.dataclass(frozen=True)
class Case:
    """The sizes of an attention, and what is done with it."""

    batch: int
    length: int
    features: int
    heads: int
    training: bool = True
    padding: bool = False
    causal: bool = False
    dropout: float = 0.0
    window: int | None = None  # keys seen to either side
    max_distance: int | None = None
    dtype: str = "float32"
    xla: bool = False

    @property
    def key_dim(self):
        return self.features // self.heads

    @property
    def policy(self):
        return self.dtype if self.dtype == "float32" else f"mixed_{self.dtype}"

    def describe(self):
        window = self.window and f"SlidingWindow({self.window}, {self.window})"
        parts = [
            f"B{self.batch} T{self.length} D{self.features} H{self.heads}",
            "training step" if self.training else "forward",
            self.padding and "padding mask",
            self.causal and "causal",
            self.dropout and f"dropout {self.dropout}",
            window,
            self.max_distance and f"Shaw k={self.max_distance}",
            self.dtype != "float32" and self.dtype,
            self.xla and "XLA",
        ]
        return ", ".join(part for part in parts if part)

    def gflop(self, projections=4):
        """Of the matrix products, in 10⁹ operations."""
        tokens = self.batch * self.length
        seen = self.length if self.window is None else min(self.length, 2 * self.window + 1)
        seen = seen / 2 if self.causal else seen
        if self.max_distance is not None:
            seen += 2 * self.max_distance + 1
        forward = 2 * projections * tokens * self.features**2 + 4 * tokens * seen * self.features
        return forward * (3 if self.training else 1) / 1e9


# `prepare(case)` gives a function that runs once, waits, and returns a tuple of arrays, the first
# of which two sides that compute the same agree on.
Contestant = collections.namedtuple("Contestant", "label prepare")


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    work: str
    ours: tuple  # (contestant, case)
    other: tuple | None
    gflop: float
    bar: float | None = None
    aim: float | None = None
    figure: str = "time"  # or "memory"
    judged: str = "ratio"  # ours / other; or "GB", ours alone
    same: bool = True  # whether both compute the same
    heavy: bool = False  # whether the other is measured only when asked for

    @property
    def sides(self):
        return {"ours": self.ours, **({"other": self.other} if self.other else {})}

    @property
    def dtype(self):
        return self.ours[1].dtype


# Backends: how a layer is compiled, and what is known of the device


def _on_tensorflow(call, layer, inputs, case):
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # or it warns of as many functions as there are rows
    weights = [weight.value for weight in layer.trainable_variables]

    @tf.function(jit_compile=case.xla, autograph=False)
    def run(*inputs):
        if not case.training:
            return (call(*inputs),)
        with tf.GradientTape() as tape:
            tape.watch(inputs[0])
            total = tf.reduce_sum(tf.square(tf.cast(call(*inputs), "float32")))
        return tape.gradient(total, [inputs[0], *weights])

    def wait():
        outcome = run(*inputs)
        tf.test.experimental.sync_devices()
        return outcome

    return wait


def _on_jax(call, layer, inputs, case):
    import jax

    weights = [weight.value for weight in layer.trainable_variables]
    state = [variable.value for variable in layer.non_trainable_variables]

    def forward(x, weights, state, *others):
        pairs = zip(layer.trainable_variables, weights, strict=True)
        states = zip(layer.non_trainable_variables, state, strict=True)
        with keras.StatelessScope(state_mapping=[*pairs, *states]):
            return call(x, *others)

    def total(*arguments):
        return (forward(*arguments).astype("float32") ** 2).sum()

    run = jax.jit(jax.grad(total, (0, 1)) if case.training else lambda *given: (forward(*given),))
    return lambda: jax.block_until_ready(run(inputs[0], weights, state, *inputs[1:]))


def _on_torch(call, layer, inputs, case):
    import torch

    weights = [weight.value for weight in layer.trainable_variables]

    def run():
        if not case.training:
            with torch.no_grad():
                return (call(*inputs),)
        x = inputs[0].detach().requires_grad_()
        total = call(x, *inputs[1:]).float().square().sum()
        return torch.autograd.grad(total, [x, *weights])

    def wait():
        outcome = run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return outcome

    return wait


def compiled(call, layer, inputs, case):
    """A function that runs `call` of the inputs, or its gradients, once, and waits."""
    on = {"tensorflow": _on_tensorflow, "jax": _on_jax, "torch": _on_torch}
    return on[BACKEND](call, layer, inputs, case)


def gpu():
    """The GPU's name, and the most bytes that this process has had in use there; or None."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        found = tf.config.list_physical_devices("GPU")
        if found:
            name = tf.config.experimental.get_device_details(found[0]).get("device_name", "GPU")
            return name, tf.config.experimental.get_memory_info("GPU:0")["peak"]
    elif BACKEND == "jax":
        import jax

        device = jax.local_devices()[0]
        if device.platform == "gpu":
            return device.device_kind, device.memory_stats()["peak_bytes_in_use"]
    elif BACKEND == "torch":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()
    return None


# Who is measured


def seeded(layer):
    """Gives a built layer or model the weights that any other of its shapes gets."""
    rng = np.random.default_rng(1)
    for weight in layer.trainable_variables:
        if len(weight.shape) > 1:  # those with one axis start equal, at 0 or 1
            weight.assign(0.05 * rng.standard_normal(weight.shape, dtype="float32"))
    return layer


def sequence(case):
    shape = (case.batch, case.length, case.features)
    return np.random.default_rng(0).standard_normal(shape, dtype="float32")


def layer_contestant(label, make, call):
    """A layer: `make(case)`, and `call(layer, case, x, mask)`, where a mask may be None."""

    def prepare(case):
        layer = make(case)
        x = ops.convert_to_tensor(sequence(case), dtype=case.dtype)
        mask = np.arange(case.length) < np.linspace(0.75, 1, case.batch)[:, None] * case.length
        inputs = (x, ops.convert_to_tensor(mask)) if case.padding else (x,)
        symbols = [
            keras.Input(
                given.shape[1:], case.batch, dtype=keras.backend.standardize_dtype(given.dtype)
            )
            for given in inputs
        ]
        call(layer, case, *symbols)  # builds it

        def run(x, mask=None):
            return call(layer, case, x, mask)

        return compiled(run, seeded(layer), inputs, case)

    return Contestant(label, prepare)


def _our_layer(case):
    window = case.window
    return keras_attention.MultiHeadAttention(
        case.heads,
        case.key_dim,
        dropout=case.dropout,
        pattern=None if window is None else keras_attention.patterns.SlidingWindow(window, window),
        dtype=case.policy,
    )


def _our_call(layer, case, x, mask=None):
    return layer(x, key_mask=mask, use_causal_mask=case.causal, training=case.training)


def _their_layer(case):
    return keras.layers.MultiHeadAttention(
        case.heads,
        case.key_dim,
        dropout=case.dropout,
        sliding_window=None if case.window is None else case.window + 1,
        dtype=case.policy,
    )


def _their_call(layer, case, x, mask=None):
    mask = None if mask is None else mask[:, None, :]
    return layer(x, x, attention_mask=mask, use_causal_mask=case.causal, training=case.training)


OURS = layer_contestant("keras_attention.MultiHeadAttention", _our_layer, _our_call)
THEIRS = layer_contestant("keras.layers.MultiHeadAttention", _their_layer, _their_call)
PLAIN = layer_contestant(
    "keras_attention.Attention",
    lambda case: keras_attention.Attention(case.heads, case.key_dim, dtype=case.policy),
    _our_call,
)
SHAW = layer_contestant(
    "keras_attention.RelativePositionAttention",
    lambda case: keras_attention.RelativePositionAttention(
        case.heads, case.key_dim, case.max_distance, dtype=case.policy
    ),
    _our_call,
)


def model_contestant(label, block):
    """A model of two blocks: `block(case, x)` of a symbolic x."""

    def prepare(case):
        symbol = keras.Input((case.length, case.features))
        model = seeded(keras.Model(symbol, block(case, block(case, symbol))))
        model.compile("sgd", "mse", jit_compile=case.xla or BACKEND == "jax")
        x = sequence(case)
        return lambda: (model.train_on_batch(x, x),)

    return Contestant(label, prepare)


def _our_block(case, x):
    return keras_attention.TransformerBlock(4 * case.features, case.heads)(x)


def _their_block(case, x):
    attended = keras.layers.MultiHeadAttention(case.heads, case.key_dim)(x, x)
    x = keras.layers.LayerNormalization(epsilon=1e-5)(keras.layers.add([x, attended]))
    y = keras.layers.Dense(4 * case.features, activation="relu")(x)
    y = keras.layers.Dense(case.features)(y)
    return keras.layers.LayerNormalization(epsilon=1e-5)(keras.layers.add([x, y]))


OUR_MODEL = model_contestant("model of keras_attention.TransformerBlock", _our_block)
THEIR_MODEL = model_contestant("model of keras.layers", _their_block)


class NoWeights(keras.layers.Layer):
    """A function as a layer, to be compiled as layers are."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, *arrays):
        return self.function(*arrays)


def decoding_contestant(label, groups):
    """The attention of one new token over a cache of `case.length`, its own key included."""

    def attend(query, key, value):
        # As a cache holds them: heads before slots.
        turned = (ops.transpose(array, (0, 2, 1, 3)) for array in (key, value))
        offset = key.shape[2] - 1
        return keras_attention.ops.attend(query, *turned, offset=offset, pattern="causal")

    def prepare(case):
        rng = np.random.default_rng(0)
        inputs = [
            ops.convert_to_tensor(
                rng.standard_normal((case.batch, *shape, case.key_dim), dtype="float32")
            )
            for shape in [(1, case.heads), (groups, case.length), (groups, case.length)]
        ]
        layer = NoWeights(attend)
        return compiled(layer, layer, inputs, case)

    return Contestant(label, prepare)


@functools.cache
def product(dtype, size):
    """A function that multiplies two square matrices."""
    x = np.random.default_rng(0).standard_normal((size, size), dtype="float32")
    inputs = [ops.convert_to_tensor(x, dtype=dtype) for _ in range(2)]
    layer = NoWeights(ops.matmul)
    # Not by the layer's call, which would cast bfloat16 to the layer's float32.
    return compiled(layer.function, layer, inputs, Case(1, size, size, 1, training=False))


def rate(dtype, small):
    """10⁹ operations a second of a large matrix product, as it goes now."""
    size = 256 if small else 8192 if gpu() else 2048
    run = product(dtype, size)
    run()
    return 2 * size**3 / statistics.median(milliseconds(run, ROUNDS)) / 1e6


# The rows


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
    "short": ((32, 80, 128, 8), (0.85, 0.60), (0.90, 0.70)),
    "medium": ((8, 512, 512, 8), (0.90, 0.80), (0.90, 0.80)),
    "long": ((1, 4096, 512, 8), (0.85, 0.70), (0.80, 0.65)),
}
XLA_BAR = (0.75, 0.60)


def plain_rows(size, xla):
    for name, (sizes, *bars) in PLAIN_SIZES.items():
        for training, bar in zip((False, True), bars, strict=True):
            case = size(Case(*sizes, training=training, xla=xla))
            step = "training" if training else "forward"
            suffix = "-xla" if xla else ""
            yield against_keras(f"{name}-{step}{suffix}", case, *(XLA_BAR if xla else bar))


def model_rows(size, xla):
    """The same attention within a model, where the rest of the model dilutes the ratio: no bar."""
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
        )


def memory_rows(size):
    masked = size(Case(1, 16384, 256, 4, padding=True, causal=True, dropout=0.1))
    memory = {"figure": "memory", "judged": "GB", "heavy": True}
    yield against_keras("masked-memory", masked, 0.8, 0.5, **memory)
    yield against_keras("longest-memory", size(Case(1, 32768, 256, 4)), 1.5, 1.0, **memory)


def window_rows(size):
    near = size(Case(1, 8192, 256, 4, window=128))
    far = size(Case(1, 65536, 256, 4, window=128))
    yield against_keras("window-training", near, 0.15, 0.10)
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
    case = size(Case(1, 2048, 256, 4, max_distance=16))
    plain = dataclasses.replace(case, max_distance=None)
    row = Row(
        "shaw-training",
        f"{case.describe()}, against plain attention",
        (SHAW, case),
        (PLAIN, plain),
        case.gflop(projections=3),
        1.5,
        1.2,
        same=False,
    )
    yield row
    # A process that grew by less never held an array (T, S, key_dim).
    table = case.length**2 * case.key_dim * 4 / 1e9
    yield dataclasses.replace(
        row, name="shaw-memory", figure="memory", judged="GB", bar=table, aim=None
    )


def decoding_rows(size):
    case = size(Case(16, 8192, 512, 8, training=False))
    yield Row(
        "decoding",
        f"one token over a cache of {case.length}, B{case.batch} H{case.heads} K{case.key_dim}, "
        "multi-query against multi-head",
        (decoding_contestant("ops.attend, 1 key and value head", 1), case),
        (decoding_contestant(f"ops.attend, {case.heads} of them", case.heads), case),
        4 * case.batch * case.length * case.features / 1e9,
        0.5,
        0.25,
        same=False,
    )


GPU_BATCHES = {1024: 8, 8192: 1, 32768: 1}
GPU_WORK = {
    "padding": {"padding": True, "dropout": 0.1},
    "causal": {"causal": True},
    "window": {"window": 1023},  # sliding_window=1024
    "shaw": {"max_distance": 32},
}


def gpu_rows(size):
    for dtype in ("bfloat16", "float32"):
        for length in GPU_BATCHES:
            for work, options in GPU_WORK.items():
                case = size(Case(GPU_BATCHES[length], length, 512, 8, dtype=dtype, **options))
                row = against_keras(f"gpu-{dtype}-{work}-{length}", case)
                if work == "shaw":
                    row = dataclasses.replace(
                        row,
                        work=f"{case.describe()}, against plain attention",
                        ours=(SHAW, case),
                        other=(PLAIN, dataclasses.replace(case, max_distance=None)),
                        gflop=case.gflop(projections=3),
                        same=False,
                    )
                yield row
                yield dataclasses.replace(row, name=f"{row.name}-memory", figure="memory")


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
    """All rows by name, in groups: "cpu", "gpu", and "over" for the plot."""
    size = shrunk if small else lambda case: case
    cpu = [
        *plain_rows(size, xla=False),
        *(plain_rows(size, xla=True) if BACKEND == "tensorflow" else ()),
        *memory_rows(size),
        *window_rows(size),
        *shaw_rows(size),
        *decoding_rows(size),
        *model_rows(size, xla=False),
        *(model_rows(size, xla=True) if BACKEND == "tensorflow" else ()),
    ]
    groups = {"cpu": cpu, "gpu": gpu_rows(size), "over": over_rows(size, small)}
    return {group: {row.name: row for row in found} for group, found in groups.items()}


# Measuring


def milliseconds(run, repeats, seconds=math.inf):
    """Of each call, wall clock: one at least, then until `seconds` are spent."""
    times, started = [], time.perf_counter()
    while not times or (len(times) < repeats and time.perf_counter() - started < seconds):
        before = time.perf_counter()
        run()
        times.append((time.perf_counter() - before) * 1000)
    return times


def in_turns(runs, repeats, seconds):
    """(wall, processor) milliseconds a call of each of `runs`, burst by burst, taking turns."""
    calls = {
        who: math.ceil(BURST / max(milliseconds(run, 1)[0] / 1000, 1e-6))
        for who, run in runs.items()
    }
    samples, started = {who: [] for who in runs}, time.perf_counter()
    for turn in range(repeats):
        if turn >= ROUNDS and time.perf_counter() - started > seconds:
            break
        for who, run in runs.items():
            wall, processor = time.perf_counter(), time.process_time()
            for _ in range(calls[who]):
                run()
            spent = time.perf_counter() - wall, time.process_time() - processor
            samples[who].append([part / calls[who] * 1000 for part in spent])
    return samples


def summary(times):
    """Median and quartiles."""
    quartiles = np.quantile(times, (0.25, 0.75))
    return {
        "ms": statistics.median(times),
        "quartiles_ms": [float(quartile) for quartile in quartiles],
        "samples": len(times),
    }


def measure_time(row, options):
    """The sides of a time row: figures, or an "error"; and how far "apart" their results are."""
    runs, first, found = {}, {}, {}
    for who, (contestant, case) in row.sides.items():
        try:
            run = contestant.prepare(case)
            first[who] = np.array(ops.convert_to_numpy(ops.cast(run()[0], "float32")))
            run()
            runs[who] = run
        except Exception as error:  # out of memory, most likely: the other rows go on
            found[who] = {"error": brief(error)}
    if row.same and not row.ours[1].dropout and len(first) == 2:
        found["apart"] = distance(*first.values())
    del first
    for who, samples in in_turns(runs, options.repeats, options.seconds).items():
        wall, processor = zip(*samples, strict=True)
        found[who] = {**summary(wall), "processor_ms": statistics.median(processor)}
    return found


def brief(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def distance(x, y):
    return float(np.linalg.norm(x - y) / max(np.linalg.norm(y), 1e-30))


def differs(found, dtype):
    """Whether the two sides, which should have computed the same, did not."""
    # A GPU may multiply float32 with fewer bits.
    exact = dtype == "float32" and not gpu()
    return not found.get("apart", 0) < (1e-3 if exact else 0.1)


def peak_bytes():
    """The most memory that this process has held so far, on the GPU if there is one."""
    found = gpu()
    if found:
        return found[1]
    status = pathlib.Path("/proc/self/status")
    high = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    if high:
        # Not `ru_maxrss`: on Linux a process inherits that from the one which started it.
        return int(high[1]) * 1024
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def grown(contestant, case):
    """How many GB this process grows by, once it has run at a short length; and its time then."""
    contestant.prepare(dataclasses.replace(case, length=SHORT))()
    before = peak_bytes()
    run = contestant.prepare(case)
    run()
    size = peak_bytes() - before
    return {"GB": size / 1e9, **summary(milliseconds(run, ROUNDS, seconds=5))}


def measure_memory(row, options):
    """The sides of a memory row, each measured in a process of its own."""
    found = {}
    for who in row.sides:
        if who == "other" and row.heavy and not options.keras_too:
            continue
        try:
            found[who] = in_a_process(row.name, who, options.small)
        except Exception as error:
            found[who] = {"error": brief(error)}
    return found


def in_a_process(name, who, small):
    command = [sys.executable, "-m", "benchmarks.attention", "--measure", name, who]
    done = subprocess.run(command + ["--small"] * small, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [""]
        raise RuntimeError(f"exit {done.returncode}: {said[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def measured(row, options):
    """A row as the report has it."""
    speed = rate(row.dtype, options.small)
    found = (measure_time if row.figure == "time" else measure_memory)(row, options)
    gc.collect()
    ours, other = found.get("ours", {}), found.get("other", {})
    key = "ms" if row.figure == "time" else "GB"
    ratio = ours[key] / other[key] if key in ours and other.get(key, 0) > 0 else None
    limit = row.gflop / speed * 1000
    judged = ratio if row.judged == "ratio" else ours.get("GB")
    verdict = None if options.small else reached(judged, row.bar, row.aim)
    return {
        "name": row.name,
        "work": row.work,
        "figure": row.figure,
        "layer": row.ours[0].label,
        "against": row.other[0].label if row.other else None,
        **found,
        "ratio": ratio,
        "judged": row.judged,
        "bar": row.bar,
        "aim": row.aim,
        "reached": "differs" if differs(found, row.dtype) else verdict,
        "gflop": row.gflop,
        "product_gflops": speed,
        "limit_ms": limit,
        "over_limit": ours["ms"] / limit if "ms" in ours else None,
    }


def reached(judged, bar, aim):
    if bar is None:
        return None
    if judged is None:
        return "not measured"
    return "aim" if aim is not None and judged <= aim else "bar" if judged <= bar else "missed"


# Reporting


COLUMNS = (
    "row",
    "work",
    "ours",
    "other",
    "ratio",
    "bar",
    "aim",
    "reached",
    "GFLOP",
    "limit ms",
    "ours / limit",
)


def header():
    return f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}"


def line(result):
    """A row as a line of the table."""

    def side(who):
        found = result.get(who)
        if found is None:
            return ""
        if "error" in found:
            return found["error"].replace("|", "/")
        time_taken = f"{found['ms']:.4g} ms"
        return f"{found['GB']:.3f} GB, {time_taken}" if "GB" in found else time_taken

    def number(value, unit=""):
        return "" if value is None else f"{value:.3g}{unit}"

    unit = " GB" if result["judged"] == "GB" else ""
    cells = [
        result["name"],
        result["work"],
        side("ours"),
        side("other"),
        number(result["ratio"]),
        number(result["bar"], unit),
        number(result["aim"], unit),
        result["reached"] or "",
        number(result["gflop"]),
        number(result["limit_ms"]),
        number(result["over_limit"]),
    ]
    return f"| {' | '.join(cells)} |"


SETTINGS = ("TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "XLA_FLAGS")


def surroundings(options):
    """Versions and the machine."""
    found = gpu()
    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "backend": BACKEND,
        "versions": {
            "python": platform.python_version(),
            "keras": keras.__version__,
            BACKEND: __import__(BACKEND).__version__,
            "numpy": np.__version__,
            "keras_attention": keras_attention.__version__,
        },
        "machine": {
            "cores": len(affinity(0)),
            "architecture": platform.machine(),
            "processor": processor(),
            "device": found[0] if found else "CPU",
        },
        # What changes the speed of TensorFlow's products; unset is its own choice.
        "environment": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        "small": options.small,
        "repeats": options.repeats,
        "seconds": options.seconds,
    }


def processor():
    """The processor's name, where the system tells."""
    path = pathlib.Path("/proc/cpuinfo")
    named = re.search(r"model name\s*:\s*(.*)", path.read_text()) if path.exists() else None
    return named[1] if named else platform.processor()


def preamble(report):
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    machine = report["machine"]
    text = (
        f"{report['date']}, {report['backend']}: {versions}. {machine['device']}; "
        f"{machine['cores']} cores, {machine['architecture']}, {machine['processor']}."
    )
    text += "".join(f" {name}={value}." for name, value in report["environment"].items())
    return text + (" Small sizes: these figures mean nothing." if report["small"] else "")


def saved_by_a_block(results):
    """What each block of a model saves, beside what the layer alone does: lines of Markdown."""

    def saved(result):
        sides = [result.get(who, {}).get("ms") for who in ("ours", "other")]
        return None if None in sides else sides[1] - sides[0]

    named = {result["name"]: result for result in results}
    for name, result in named.items():
        alone = named.get(name.replace("-model", "-training"))
        if "-model" in name and alone and None not in (saved(result), saved(alone)):
            yield (
                f"- {name}: {saved(result) / 2:.3g} ms less a block than Keras's; "
                f"the layer alone, {saved(alone):.3g} ms less."
            )


def series(options):
    """What the plot shows: memory and time over the length, from processes of their own."""
    found = []
    for row in rows(options.small)["over"].values():
        result = measured(row, options)
        found.append(
            {
                "length": row.ours[1].length,
                "limit_ms": result["limit_ms"],
                **{who: result[who] for who in row.sides if who in result},
            }
        )
        print(f"{row.name}: {row.work}", file=sys.stderr)
    return found


def plot(report, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = report["series"]
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for panel, key, label in zip(panels, ("ms", "GB"), ("milliseconds", "GB"), strict=True):
        for who, name in (("ours", "keras_attention"), ("other", "keras.layers")):
            shown = [(p["length"], p[who][key]) for p in points if key in p.get(who, {})]
            if shown:
                panel.plot(*zip(*shown, strict=True), "o-", label=name)
        if key == "ms":
            limit = [(p["length"], p["limit_ms"]) for p in points]
            panel.plot(*zip(*limit, strict=True), "k--", label="matrix products alone")
        panel.set(xscale="log", yscale="log", xlabel="T", ylabel=label)
        panel.set_xticks([p["length"] for p in points], [str(p["length"]) for p in points])
        panel.minorticks_off()
        panel.legend()
    small = " (small: means nothing)" if report["small"] else ""
    figure.suptitle(
        "Training step, padding mask, causal, dropout 0.1, D256 H4, "
        f"{report['backend']}, {report['machine']['device']}{small}"
    )
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


# Rows that run the same code as others, at sizes that --small makes alike.
ALIKE = re.compile(
    "medium-|long-(forward|model)|.*-forward-xla|(?!masked).*-memory"
    "|gpu-.*-(8192|32768)|gpu-float32-[^p]|gpu-bfloat16-(causal|window)"
)


def chosen(options, parser):
    """The rows that the command line asks for."""
    groups = rows(options.small)
    if options.rows is None and options.small:
        named = {**groups["cpu"], **groups["gpu"]}
        return [row for name, row in named.items() if not ALIKE.match(name)]
    if options.rows is None:
        return list(groups["gpu" if options.gpu else "cpu"].values())
    every, picked = {**groups["cpu"], **groups["gpu"]}, {}
    for pattern in filter(None, options.rows.split(",")):
        names = fnmatch.filter(every, pattern)
        if not names:
            parser.error(f"no row is named {pattern!r}; see --list")
        picked |= {name: every[name] for name in names}
    return list(picked.values())


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", metavar="NAME,...", help="only these; * and ? are wildcards")
    parser.add_argument("--list", action="store_true", help="the names of the rows, and no figure")
    parser.add_argument("--gpu", action="store_true", help="the rows for a GPU instead")
    parser.add_argument("--repeats", type=int, default=21, help="bursts of each side of a row")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30,
        help=f"stop a row's bursts after this long, but not before {ROUNDS}",
    )
    parser.add_argument(
        "--keras-too", action="store_true", help="Keras even where it takes over 13 GB"
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument(
        "--output", type=pathlib.Path, help="a JSON file for the figures; Markdown goes beside it"
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        help="measure time and memory over T, and draw them here (only this: --rows '')",
    )
    parser.add_argument(
        "--measure", nargs=2, metavar=("ROW", "WHO"), help="one side of one row, as JSON"
    )
    options = parser.parse_args()
    if options.small:
        options.repeats, options.seconds = 2, 0.2
    return options, parser


def main():
    options, parser = arguments()
    if options.measure:
        name, who = options.measure
        every = {k: row for group in rows(options.small).values() for k, row in group.items()}
        print(json.dumps(grown(*every[name].sides[who])))
        return 0
    picked = chosen(options, parser)
    if options.list:
        print("\n".join(f"{row.name:32} {row.work}" for row in picked))
        return 0
    if options.gpu and not gpu():
        print("No GPU was found: these rows run on the CPU.", file=sys.stderr)
    report = surroundings(options)
    lines = [preamble(report), "", header()]
    print("\n".join(lines), flush=True)
    report["rows"] = []
    for row in picked:
        report["rows"].append(measured(row, options))
        lines.append(line(report["rows"][-1]))
        print(lines[-1], flush=True)
    notes = list(saved_by_a_block(report["rows"]))
    if notes:
        lines += ["", *notes]
        print("", *notes, sep="\n", flush=True)
    if options.plot:
        report["series"] = series(options)
        plot(report, options.plot)
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        options.output.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    failed = (
        "error" in row.get("ours", {}) or row["reached"] == "differs" for row in report["rows"]
    )
    return int(any(failed))


if __name__ == "__main__":
    sys.exit(main())
