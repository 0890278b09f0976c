"""`--devices` of the examples: curves as on one device."""

import importlib.util

import keras
import numpy as np
import pytest

from tests.examples.imdb import runs as imdb

TRANSLATES = all(map(importlib.util.find_spec, ("sentencepiece", "sacrebleu", "sacremoses")))

BACKEND = keras.config.backend()
shares = pytest.mark.skipif(BACKEND == "torch", reason="Keras has no distribution on PyTorch")


@pytest.mark.skipif(BACKEND != "torch", reason="Keras has distribution here")
def test_pytorch_is_refused_before_anything_is_read(tmp_path, capsys):
    assert imdb.main("--sample", "--devices", 2, "--output", tmp_path / "run") == 2
    assert "docs/scaling.md is on PyTorch" in capsys.readouterr().err


@shares
def test_imdb_classification(tmp_path, capsys):
    options = ["--sample", "--limit", 90, "--epochs", 1, *imdb.TINY]
    for devices in (1, 2):
        output = tmp_path / str(devices)
        assert imdb.main(*options, "--devices", devices, "--output", output) == 0
    one, two = (imdb.curves(tmp_path / str(devices))[0] for devices in (1, 2))
    # The last batch is of reviews that the devices share, some of them twice.
    assert one["loss"] == pytest.approx(two["loss"], rel=0.02)
    assert one["val_loss"] == pytest.approx(two["val_loss"], rel=0.02)


@shares
@pytest.mark.skipif(not TRANSLATES, reason="the example needs the extra `translation`")
@pytest.mark.parametrize("model_parallel", [1, 2])
def test_translation(tmp_path, model_parallel, monkeypatch):
    from examples.translation import training
    from tests.examples.translation import runs

    # Translating compiles for long, and is tested without devices.
    monkeypatch.setattr(training, "_finish", lambda run, *_: run.finish())

    if BACKEND == "tensorflow":
        pytest.skip("TensorFlow's sums over virtual devices of two programs may get mixed up")
    many = 4
    options = ["--sample", "--epochs", 2, "--limit", 60, "--dropout", 0, "--beams", 1]
    for devices, of_them in ((1, 1), (many, model_parallel)):
        output = tmp_path / str(devices)
        more = ["--devices", devices, "--model-parallel", of_them, "--output", output]
        assert runs.train(*options, *more) == 0
    found, expected = (runs.curves(tmp_path / str(devices)) for devices in (many, 1))
    for one, other in zip(found, expected, strict=True):
        # Rows of padding, for the devices to share, count in the mean over an epoch's batches.
        np.testing.assert_allclose(one["train_loss"], other["train_loss"], rtol=1e-2)
        np.testing.assert_allclose(one["validation_loss"], other["validation_loss"], rtol=1e-4)


@shares
@pytest.mark.parametrize("options", [("--devices", 99), ("--devices", 4, "--model-parallel", 3)])
def test_devices_that_are_not_there_are_an_error(options, tmp_path, capsys):
    if not TRANSLATES:
        pytest.skip("the example needs the extra `translation`")
    from tests.examples.translation import runs

    assert runs.main("--sample", "--limit", 60, "--output", tmp_path / "x", *options) == 2
    assert f"--devices {options[1]}" in capsys.readouterr().err
