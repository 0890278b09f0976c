"""`examples.image_classification`: images, their warps, the model, runs and predictions."""

import argparse

import keras
import numpy as np
import pytest
from PIL import Image

from examples import image_classification as example
from examples.image_classification import main
from tests.examples.conftest import ran

TINY = ["--dim", 8, "--layers", 1, "--epochs", 1, "--batch-size", 16, "--patch-size", 3]
STILL = argparse.Namespace(rotate=0.0, scale=0.0, shift=0.0, mirror=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Thirty images of two classes, dark and bright, of 8 by 8 pixels and larger."""
    path, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for name, least in (("bright", 170), ("dark", 0)):
        (path / name).mkdir()
        for n in range(15):
            pixels = rng.integers(least, least + 80, (8 + n % 2, 8, 3)).astype("uint8")
            Image.fromarray(pixels).save(path / name / f"{n:02}.png")
        (path / name / "notes.txt").write_text("no image")
    return path


def test_images_of_a_folder(folder):
    (images, labels), (tested, wanted), classes, name = example.load_images(str(folder))
    assert images.shape == (24, 8, 8, 3) and tested.shape == (6, 8, 8, 3)
    assert classes == ["bright", "dark"] and name == str(folder)
    for pixels, label in ((images, labels), (tested, wanted)):
        assert ((pixels.mean(axis=(1, 2, 3)) < 128) == label).all()
    again = example.load_images(str(folder))
    np.testing.assert_array_equal(again[1][0], tested)
    assert example.load_images(str(folder), size=5)[0][0].shape == (24, 5, 5, 3)


def test_warps():
    images = np.random.default_rng(0).integers(0, 256, (3, 5, 5, 2)).astype("uint8")
    draws = np.array([[1.0, 0, 0, 0, 1]] * 3)
    np.testing.assert_allclose(example.warped(images, draws, STILL), images)
    options = argparse.Namespace(**{**vars(STILL), "mirror": True})
    np.testing.assert_allclose(example.warped(images, draws, options), images[:, :, ::-1])
    options = argparse.Namespace(**{**vars(STILL), "rotate": 90.0})
    turned = example.warped(images, draws, options)
    np.testing.assert_allclose(turned, np.rot90(images, -1, (1, 2)), atol=1e-3)
    options = argparse.Namespace(**{**vars(STILL), "shift": 0.2})
    moved = example.warped(images, np.array([[0, 0, 1.0, 0, 0]] * 3), options)
    # A fifth of five pixels, and the edge goes on.
    np.testing.assert_allclose(moved, images[:, [1, 2, 3, 4, 4]], atol=1e-3)


def test_the_weights_are_those_of_the_patches():
    options = argparse.Namespace(dim=8, layers=1, dropout=0.0, patch_size=2)
    model = example.build((7, 4, 1), ["a", "b", "c"], options)
    images = np.random.default_rng(0).integers(0, 256, (4, 7, 4, 1))
    found, weights = example.probabilities(model, images)
    assert found.shape == (4, 3) and weights.shape == (4, 3, 2)
    np.testing.assert_allclose(found.sum(axis=-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=(1, 2)), 1.0, atol=1e-5)
    # What is beyond the last whole patch is not seen.
    changed = images.copy()
    changed[:, 6] = 0
    np.testing.assert_allclose(example.probabilities(model, changed)[0], found, atol=1e-5)
    images[:, 0, 0] = 255 - images[:, 0, 0]
    assert np.abs(example.probabilities(model, images)[0] - found).max() > 1e-5


@pytest.mark.slow
def test_a_run_predicts(folder, tmp_path, capsys):
    options = [*TINY, "--data", folder, "--mirror", "--learning-rate", 0.01, "--validation"]
    try:
        said = ran(main, tmp_path / "run", *options, "--mixed-precision", files=["model.keras"])
    finally:
        keras.config.set_dtype_policy("float32")
    # Parts of the training images are held out.
    assert "of 4 images" in capsys.readouterr().out
    assert said["classes"] == ["bright", "dark"] and said["dataset"] == str(folder)
    # Files, and the images that were tested.
    files = [folder / "dark" / "00.png", folder / "bright" / "01.png"]
    picture = tmp_path / "seen.png"
    assert main(["predict", tmp_path / "run", *files, "--picture", picture]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [*map(str, files)]
    with Image.open(picture) as image:
        assert image.width > 200
    assert main(["predict", tmp_path / "run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6
    for wrong, message in (
        (["--picture", tmp_path / "seen.none"], "cannot be written"),
        ([tmp_path / "missing.png"], "cannot be read as an image"),
    ):
        assert main(["predict", tmp_path / "run", *wrong]) == 2
        assert message in capsys.readouterr().err
