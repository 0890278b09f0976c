"""`examples.time_series`: windows of a series with gaps, the models, runs and forecasts."""

import argparse

import numpy as np
import pytest

from examples import time_series
from examples.shared import UsageError
from examples.time_series import MISSING, main
from tests.examples.conftest import figures

SIZES = {"context": 8, "horizon": 3, "period": 4, "window": 3, "layers": 1, "dim": 8}
OPTIONS = argparse.Namespace(**SIZES, dropout=0.0)
TINY = ["--epochs", 2, "--batch-size", 16]
TINY += [part for name, size in SIZES.items() for part in (f"--{name}", size)]


@pytest.fixture
def csv_file(tmp_path):
    path = tmp_path / "series.csv"
    time, rng = np.arange(80), np.random.default_rng(0)
    values = 0.02 * time + 3 * np.sin(np.pi * time / 2) + 0.1 * rng.normal(size=80)
    values[[20, 21, 22, 70]] = np.nan
    lines = [f"week {n},{'' if np.isnan(value) else value}" for n, value in enumerate(values)]
    path.write_text("\n".join(["time,value", *lines, ""]))
    return path


def test_what_is_read_and_what_comes():
    series = np.arange(30.0) ** 2
    series[[13, 21]] = np.nan
    times, lengths = np.array([20, 20, 28]), np.array([8, 5, 8])
    x, y, known = time_series.windows(series, times, lengths, OPTIONS, scale=2.0)
    assert x.shape == (3, 8, 5) and y.shape == (3, 3, 1)
    # Steps 12 to 19 and 20 to 27. One is missing, and of the second only five are read.
    missing = (x == MISSING).all(axis=-1)
    assert missing.astype(int).tolist() == [[0, 1] + [0] * 6, [1] * 3 + [0] * 5, [0, 1] + [0] * 6]
    np.testing.assert_allclose(x[0, -3, 0], (17**2 - 19**2) / 2)
    # A missing value of a season ago is the last one before it.
    np.testing.assert_allclose(x[0, -3, 1], ((17**2 - 12**2) - (19**2 - 15**2)) / 2)
    np.testing.assert_allclose(x[0, :, 4].max(), 2.0)
    # 20 to 22 come, of which one is missing; and two after the end of the series.
    assert known.tolist() == [[1, 0, 1], [1, 0, 1], [1, 1, 0]]
    wanted = (20**2 - (19**2 + 16**2 - 15**2)) / 2
    np.testing.assert_allclose(y[0, 0, 0], wanted)
    # Nothing of what comes is read.
    series[20:] = 0
    np.testing.assert_array_equal(
        time_series.windows(series, times[:1], lengths[:1], OPTIONS, 2.0)[0], x[:1]
    )


def test_the_naive_forecast_repeats_a_season_and_a_trend():
    time = np.arange(40)
    series = 0.5 * time + np.array([0.0, 3.0, 1.0, -2.0])[time % 4]
    times = np.arange(12, 37)
    found = time_series.naive(series, times, OPTIONS)
    np.testing.assert_allclose(found[:, 0], series[times])
    gaps = np.array([np.nan, np.nan, 1, np.nan, 2, np.nan])
    assert time_series.filled(gaps).tolist() == [1, 1, 1, 1, 2, 2]


@pytest.mark.slow
def test_a_run_forecasts(csv_file, tmp_path, capsys):
    assert main([*TINY, "--data", csv_file, "--output", tmp_path / "run"]) == 0
    assert "\nnaive: " in capsys.readouterr().out
    for kind in time_series.MODELS:
        said = figures(tmp_path / "run" / kind)
        assert said["test_error"] < 2 * said["naive_test_error"]
    assert main([*TINY, "--sample", "--output", tmp_path / "run"]) == 2
    assert "other settings: data is 'given' there and None now" in capsys.readouterr().err
    assert main(["predict", tmp_path / "run", "--data", csv_file]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step attention lstm" and len(lines) == 1 + SIZES["horizon"]
    # What is predicted is what the model has after the last value, in the series' unit.
    model, settings, scale = time_series.load(tmp_path / "run" / "lstm")
    series, _ = time_series.load_series(csv_file)
    found = time_series.forecast(series, model, settings, scale)
    assert f"{found[0]:.2f}" == lines[1].split()[2]
    with pytest.raises(UsageError, match="has 10 values, too few for a forecast"):
        time_series.forecast(series[:10], model, settings, scale)
    assert main(["predict", tmp_path, "--sample"]) == 2
