"""The suite's own options: a limit for the time of a file, and a share of the cases."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.share import chosen

pytestmark = pytest.mark.any_backend
ROOT = Path(__file__).parent.parent
FILE = """
import time
import pytest

@pytest.mark.parametrize("n", range(6))
def test_cases(n):
    pass

def test_alone():
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
"""


def run(tmp_path, *options):
    """What a run of `FILE` in a process of its own prints, and its exit status."""
    (tmp_path / "test_file.py").write_text(FILE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    folder\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.timing"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    return found.stdout, found.returncode


def test_a_file_that_takes_too_long_fails(tmp_path):
    printed, status = run(tmp_path, "--file-limit", "0.1")
    assert status == 1
    assert "7 passed" in printed and "FAILED test_file.py takes 0 s" in printed
    assert "Processor seconds: 0, of which test_file.py 0; the longest" in printed


CASES = [f"test_cases[{n}]" for n in range(6)]


@pytest.mark.parametrize("share, most", [(1, 6), (3, 2), (4, 2), (10, 1)])
def test_a_share_of_the_cases(share, most):
    names = [*CASES, "test_alone"]
    found = [chosen(names, share, shift) for shift in range(share)]
    assert sorted(name for share in found for name in share) == sorted(names)
    assert max(len(share & {*CASES}) for share in found) == most
