"""The suite's own options: a limit for the time of a file, and a share of the cases."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.share import OF_RELATIONS, RELATIONS, chosen

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


def run(tmp_path, *options, before="", seed=0):
    """What a run of `FILE` in a process of its own prints, and its exit status."""
    (tmp_path / "test_file.py").write_text(before + FILE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    folder\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.timing", "-p", "tests.share", "-v"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT), "FUZZ_SEED": str(seed)}
    found = subprocess.run(
        [*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    return found.stdout, found.returncode


def test_a_file_that_takes_too_long_fails(tmp_path):
    printed, status = run(tmp_path, "--file-limit", "0.1")
    assert status == 1
    assert "7 passed" in printed and "FAILED test_file.py takes 0 s" in printed
    printed, status = run(tmp_path, "--file-limit", "100")
    assert status == 0
    assert "Processor seconds: 0, of which test_file.py 0; the longest" in printed


def test_a_folder_may_take_longer(tmp_path):
    before = "import pytest\npytestmark = pytest.mark.folder\n"
    assert run(tmp_path, "--file-limit", "0.1", before=before)[1] == 0


CASES = [f"test_cases[{n}]" for n in range(6)]


@pytest.mark.parametrize("share, most", [(1, 6), (3, 2), (4, 2), (10, 1)])
def test_a_share_of_the_cases(share, most):
    names = [*CASES, "test_alone"]
    found = [chosen(names, share, shift) for shift in range(share)]
    assert sorted(name for share in found for name in share) == sorted(names)
    assert max(len(share & {*CASES}) for share in found) == most


def passed(printed, file):
    """The cases of a file that passed."""
    lines = [line.split() for line in printed.splitlines() if " PASSED" in line]
    return {name for name, *_ in lines if name.startswith(file)}


def test_all_cases_run_but_of_relations_one_in_four(tmp_path):
    relations = tmp_path / RELATIONS / "test_relations.py"
    relations.parent.mkdir(parents=True)
    relations.write_text(FILE)
    printed = [run(tmp_path, seed=seed)[0] for seed in range(OF_RELATIONS)]
    assert [len(passed(x, "test_file.py")) for x in printed] == [7] * OF_RELATIONS
    found = [passed(x, RELATIONS) for x in printed]
    assert sum(map(len, found)) == len(set.union(*found)) == 7
    assert len(passed(run(tmp_path, "--share", "1")[0], RELATIONS)) == 7
