"""Models that the translation example of 0.1.0 trained load for ever, and can be trained further.

TensorFlow wrote each file after three steps of training with dropout. `answers.npz` has a batch,
and for each file the outputs and alignments of it, and the trainable weights one after another, in
the order that the optimizer's state has.
"""

import tarfile
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.examples.translation import former  # noqa: F401

# Python has filters since 3.11.4.
FILTER = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
ARCHIVE = Path(__file__).parent / "golden" / "0.1.0.tar.xz"
STEPS = 3


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, **FILTER)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sin-cos", "shaw", "rotary", "bahdanau", "luong"])
def test_trained_models_of_0_1_0_load(name, folder):
    model = keras.models.load_model(folder / f"{name}.keras")
    with np.load(folder / "answers.npz") as answers:
        batch = answers["source"], answers["given"]
        # What is said after padding means nothing.
        real = batch[1] != 0
        outputs = keras.ops.convert_to_numpy(model(batch))
        np.testing.assert_allclose(outputs[real], answers[f"{name}/outputs"][real], atol=1e-5)
        weights = [keras.ops.convert_to_numpy(x).ravel() for x in model.trainable_variables]
        np.testing.assert_array_equal(np.concatenate(weights), answers[f"{name}/weights"])
    assert int(model.optimizer.iterations) == STEPS

    # A program of one step takes longer than the step.
    model.run_eagerly = True
    target = np.array([[7, 9, 11, 3], [8, 3, 0, 0]])
    model.train_on_batch(batch, target)
    assert int(model.optimizer.iterations) == STEPS + 1
    model.save(folder / "again.keras")
    again = keras.models.load_model(folder / "again.keras")
    np.testing.assert_allclose(again(batch), model(batch), atol=1e-6)
