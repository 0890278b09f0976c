"""The tests that Keras ships for its own layer, run on ours. See `tests/keras_own_tests.py`."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_ours_passes_the_tests_that_keras_ships():
    run = subprocess.run(
        [sys.executable, "-m", "tests.keras_own_tests"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
