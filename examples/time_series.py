"""Forecasts a series with missing values: windowed attention, an LSTM and a naive forecast.

    python -m examples.time_series [--data FILE] [--context N] [--horizon N] [--period N] ...
    python -m examples.time_series predict DIR

The series is the weekly CO2 of Mauna Loa, which the package statsmodels has in its wheel, or if
that is unavailable, a small synthetic one. --data is a CSV file whose last column is the series; an
empty field is a missing value. Each model reads up to --context values and forecasts the next
--horizon, and is measured on the last fifth of the series, of which it learns nothing. An
interrupted run resumes by the same command.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np

from examples import shared
from examples.later import keras, training
from examples.later import keras_attention as ka
from examples.shared import UsageError, at_least

PROGRAM = "examples.time_series"
MODELS = "attention", "lstm"
MISSING = -1e6  # a value that was not measured, or is padding


def load_series(path=None, use_sample=False):
    """The values in their order, NaN where one is missing, and what they are."""

    def co2_of_mauna_loa():
        from statsmodels.datasets import co2

        return co2.load().data["co2"].to_numpy("float64"), "weekly CO2 of Mauna Loa (statsmodels)"

    def sample():
        return read_csv(shared.DATA / "series.csv"), "embedded sample (synthetic)"

    if path is not None:
        return read_csv(path), f"{path.name} (file)"
    advice = "pip install statsmodels has the CO2 of Mauna Loa. --data is for other series."
    return shared.or_sample(co2_of_mauna_loa, sample, use_sample, "the CO2 of Mauna Loa", advice)


def read_csv(path):
    """The last column of a file with a header."""
    try:
        rows = [row for row in csv.reader(shared.read_text(path).splitlines()) if row]
        if len({len(row) for row in rows}) > 1:
            raise ValueError("its lines have different numbers of fields")
        values = np.array([float(row[-1].strip() or "nan") for row in rows[1:]])
    except (ValueError, csv.Error) as error:
        raise UsageError(f"{path} is no CSV file with a series: {error}.") from None
    if np.isinf(values).any():
        raise UsageError(f"{path} has infinite values.")
    return values


def filled(series):
    """A series in which a missing value is the last one before it, or the first of all."""
    missing = np.isnan(series)
    known = np.where(missing, missing.argmin(), np.arange(len(series)))
    return series[np.maximum.accumulate(known)]


def naive(series, times, options):
    """The forecasts (n, horizon) that what followed a season ago follows again."""
    series, season = filled(series), options.period * -(-options.horizon // options.period)
    before = times[:, None] - season + np.arange(options.horizon)
    return series[times - 1][:, None] + series[before] - series[times - 1 - season][:, None]


def windows(series, times, lengths, options, scale):
    """What is read before some times, what comes from then on, and which of that is known.

    A step has its value and the change since a season ago, as differences from the last ones and
    divided by `scale`; the season as an angle, and how long ago it was. Only `lengths` steps are
    read: padding is masked, as missing values are. What comes is what the naive forecast lacks.
    Returns (n, context, 5), (n, horizon, 1) and (n, horizon).
    """
    ago, whole = np.arange(options.context, 0, -1), filled(series)
    index, now = times[:, None] - ago, times[:, None] - 1
    change = whole - np.roll(whole, options.period)
    value, change = ((x[index.clip(0)] - x[now]) / scale for x in (whole, change))
    angle, age = 2 * np.pi * index / options.period, ago / options.period + 0 * index
    x = np.stack([value, change, np.sin(angle), np.cos(angle), age], axis=-1)
    unread = (index < options.period) | (ago > lengths[:, None])
    x[unread | np.isnan(series[index.clip(0)])] = MISSING
    future = (times[:, None] + np.arange(options.horizon)).clip(max=len(series))
    y = (np.append(series, np.nan)[future] - naive(series, times, options)) / scale
    known = ~np.isnan(y)
    return tuple(a.astype("float32") for a in (x, np.where(known, y, 0)[..., None], known))


def build(kind, options):
    """A model from what is read (B, T, 5) to what is forecast (B, horizon, 1)."""
    series = keras.Input((None, 5))
    x = keras.layers.Masking(MISSING)(series)
    x = keras.layers.Dense(options.dim)(x)
    if kind == "attention":
        seen = ka.patterns.Causal() & ka.patterns.SlidingWindow(left=options.window, right=0)
        parts = {"dropout": options.dropout, "residual": "pre", "pattern": seen}
        for n in range(options.layers):
            x = ka.TransformerBlock(2 * options.dim, 4, name=f"block_{n}", **parts)(x)
        x = ka.AttentionPooling(name="pooling")(keras.layers.LayerNormalization()(x))
    else:
        x = keras.layers.LSTM(options.dim)(x)
    x = keras.layers.Dropout(options.dropout)(x)
    # At first the forecast is the naive one.
    x = keras.layers.Dense(options.horizon, kernel_initializer="zeros")(x)
    return keras.Model(series, keras.layers.Reshape((-1, 1))(x))


def error(found, wanted, known, scale):
    """The root of the mean squared error of what is known, in the unit of the series."""
    squares = known * np.square(found - wanted)[..., 0]
    return float(scale * np.sqrt(squares.sum() / known.sum()))


def fit(run, kind, series, name, options):
    """Trains a model on the first part of a series, and measures it on the last."""
    split, first = int(0.8 * len(series)), 2 * options.period + options.horizon
    times = np.arange(first, split - options.horizon + 1)
    tested = np.arange(split, len(series) - options.horizon + 1)
    parts = series[:split], series[split:]
    if not times.size or not tested.size or any(np.isnan(part).all() for part in parts):
        few = f"{len(series)} values for --period {options.period} --horizon {options.horizon}"
        raise UsageError(f"The series is too short, or all is missing: it has {few}.")
    trained = filled(series[:split])
    scale = float(np.std(trained[options.period :] - trained[: -options.period])) or 1.0
    run.begin({"series": shared.checksum(map(str, series))}, dataset=name, scale=scale)
    training.prepare(options)
    # Lengths differ, so that a model can forecast a series that has just begun.
    shortest, rng = min(options.horizon, options.context), np.random.default_rng(options.seed)
    lengths = rng.integers(shortest, options.context + 1, times.size)
    arrays = windows(series, times, lengths, options, scale)
    steps = -(-times.size // options.batch_size)
    with training.devices(options.devices):
        model = build(kind, options)
        batches = training.Batches(
            lambda rng: np.array_split(rng.permutation(times.size), steps),
            lambda rows: tuple(array[rows] for array in arrays),
            seed=options.seed,
            devices=options.devices,
        )
        total = options.epochs * steps
        rate = keras.optimizers.schedules.CosineDecay(options.learning_rate, total)
        adam = keras.optimizers.AdamW(rate, weight_decay=0.01, global_clipnorm=1.0)
        model.compile(adam, "mse", jit_compile=options.jit)
        model.fit(batches, **training.resuming(run, batches, options.epochs))
    whole = np.full(tested.size, options.context)
    x, y, known = windows(series, tested, whole, options, scale)
    found = model.predict(x, batch_size=tested.size, verbose=0)
    run.write(shared.MODEL, model.save)
    of_naive = error(0 * y, y, known, scale)
    run.finish(test_error=error(found, y, known, scale), naive_test_error=of_naive)


def load(folder):
    """The model of a finished run, its options, and what its values were divided by."""
    figures, model = shared.load_run(folder, PROGRAM)
    return model, argparse.Namespace(**figures["settings"]), figures["scale"]


def forecast(series, model, options, scale):
    """The values (horizon,) after a series, in its unit."""
    if len(series) < 2 * options.period + options.horizon or np.isnan(series).all():
        raise UsageError(f"The series has {len(series)} values, too few for a forecast.")
    time = np.array([len(series)])
    x, _, _ = windows(series, time, np.array([options.context]), options, scale)
    return naive(series, time, options)[0] + scale * model.predict(x, verbose=0)[0, :, 0]


def train(argv):
    """Trains both models, unless that is done, and prints how far off each forecast is."""
    parser = shared.command_line(PROGRAM, __doc__)
    shared.add_source(parser, "--data", "a CSV file with a header")
    shared.add_options(
        parser,
        ("context", at_least(1), 104, "values that are read, at most"),
        ("horizon", at_least(1), 26, "values that are forecast"),
        ("period", at_least(1), 52, "values of a season"),
        ("window", at_least(1), 26, "values before it that a value attends to"),
        ("layers", at_least(1), 2, "blocks of attention"),
        ("dim", at_least(1), 32, "features"),
        ("epochs", at_least(1), 5, "rounds over the series"),
        ("batch-size", at_least(1), 64, "windows of a step"),
        ("dropout", shared.fraction, 0.1, "rate of dropout"),
        ("learning-rate", shared.positive, 3e-3, "at the beginning"),
    )
    shared.add_training_options(parser, "runs/time-series")
    options = shared.parse(parser, argv)
    if options.dim % 4:
        raise UsageError(f"--dim must be a multiple of 4, for as many heads: {options.dim} is not.")
    series, name = load_series(options.data, options.sample)
    kind_of_data = {"data": options.data and "given", "sample": options.sample or None}
    for kind in MODELS:
        settings = vars(options) | {"model": kind, **kind_of_data, "output": None}
        with shared.Run(options.output / kind, PROGRAM, settings) as run:
            if not run.finished:
                fit(run, kind, series, name, options)
            print(f"{kind}: {run.figures['test_error']:.3f}")
    print(f"naive: {run.figures['naive_test_error']:.3f}")
    print(f"(root mean squared errors on the last fifth of: {run.figures['dataset']})")


def predict(argv):
    """Prints the forecasts after the end of a series, a line for each step."""
    parser = shared.command_line(f"{PROGRAM} predict", predict.__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --output of a finished run")
    shared.add_source(parser, "--data", "another series of the kind")
    options = shared.parse(parser, argv)
    loaded = [load(options.folder / kind) for kind in MODELS]
    series, _ = load_series(options.data, options.sample)
    found = [forecast(series, *one) for one in loaded]
    print("step", *MODELS)
    for step, values in enumerate(zip(*found, strict=True), 1):
        print(step, *(f"{value:.2f}" for value in values))


main = shared.program(train, predict=predict)

if __name__ == "__main__":
    sys.exit(main())
