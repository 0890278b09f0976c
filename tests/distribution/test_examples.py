"""`--devices` of the examples: curves as on one device."""

import importlib.util

import keras
import numpy as np
import pytest

from examples import imdb_classification as imdb
from tests.examples.conftest import figures

TRANSLATES = all(map(importlib.util.find_spec, ("tokenizers", "sacrebleu")))

BACKEND = keras.config.backend()
shares = pytest.mark.skipif(BACKEND == "torch", reason="Keras has no distribution on PyTorch")


@pytest.mark.skipif(BACKEND != "torch", reason="Keras has distribution here")
def test_pytorch_is_refused_before_anything_is_read(tmp_path, capsys):
    assert imdb.main(["--sample", "--devices", 2, "--output", tmp_path / "run"]) == 2
    assert "docs/scaling.md is on PyTorch" in capsys.readouterr().err


@shares
def test_imdb_classification(tmp_path, capsys):
    options = ["--sample", "--limit", 90, "--epochs", 1, "--model", "post"]
    options += ["--vocabulary-size", 200, "--max-length", 12]
    for devices in (1, 2):
        output = tmp_path / str(devices)
        assert imdb.main([*options, "--devices", devices, "--output", output]) == 0
    one, two = (figures(tmp_path / str(devices))["epochs"][0] for devices in (1, 2))
    # The last batch is of reviews that the devices share, some of them twice.
    assert one["loss"] == pytest.approx(two["loss"], rel=0.02)
    assert one["val_loss"] == pytest.approx(two["val_loss"], rel=0.02)


@shares
@pytest.mark.skipif(not TRANSLATES, reason="the example needs the extra `translation`")
@pytest.mark.parametrize("model_parallel", [1, 2])
def test_translation(tmp_path, model_parallel, monkeypatch):
    from examples import translation

    # Translating compiles for long, and is tested without devices.
    monkeypatch.setattr(translation, "translator", lambda *_: lambda sentences: sentences)
    monkeypatch.setattr(translation, "LENGTHS", np.array([24, 64]))

    if BACKEND == "tensorflow":
        pytest.skip("TensorFlow's sums over virtual devices of two programs may get mixed up")
    many = 4
    options = ["--sample", "--small", "--epochs", 2, "--limit", 60, "--dropout", 0, "--beams", 1]
    curves = []
    for devices, of_them in ((many, model_parallel), (1, 1)):
        output = tmp_path / str(devices)
        more = ["--devices", devices, "--model-parallel", of_them, "--output", output]
        assert translation.main([str(option) for option in (*options, *more)]) == 0
        curves.append(figures(output)["epochs"])
    for one, other in zip(*curves, strict=True):
        # Rows that are repeated, for the devices to share, count too.
        np.testing.assert_allclose(one["loss"], other["loss"], rtol=2e-2)
        np.testing.assert_allclose(one["val_loss"], other["val_loss"], rtol=2e-2)


@shares
@pytest.mark.skipif(not TRANSLATES, reason="the example needs the extra `translation`")
@pytest.mark.parametrize("options", [("--devices", 99), ("--devices", 4, "--model-parallel", 3)])
def test_devices_that_are_not_there_are_an_error(options, tmp_path, capsys):
    from examples import translation

    arguments = ["--sample", "--limit", 60, "--output", tmp_path / "x", *options]
    assert translation.main([str(argument) for argument in arguments]) == 2
    assert f"--devices {options[1]}" in capsys.readouterr().err
