"""The benchmark of attention: its rows, and that a run of some of them reports."""

import dataclasses
import json
import math
import sys

import numpy as np
import pytest

from benchmarks import attention, pages, runner
from benchmarks.backends import BACKEND
from benchmarks.contestants import Contestant, ops


def test_the_rows_that_pages_show_are_measured():
    stored = pages.named("attention" if BACKEND == "tensorflow" else f"attention_{BACKEND}")
    rows = attention.rows(small=False)
    assert stored.keys() - {"shaw-memory"} <= rows.keys() == attention.rows(small=True).keys()


@pytest.mark.parametrize("name", ["short-training", "short-padding", "short-bias"])
def test_both_sides_of_a_row_compute_the_same(name):
    row = attention.rows(small=True)[name]
    ours, theirs = (contestant.prepare(case)()[0] for contestant, case in row.sides.values())
    ours, theirs = (np.array(ops.convert_to_numpy(x)) for x in (ours, theirs))
    assert runner.distance(ours, theirs) < 1e-4
    assert attention.differs({"apart": runner.distance(ours, 2 * theirs)}, "float32")
    assert attention.differs({"apart": math.nan}, "float32")


def test_a_run(monkeypatch, tmp_path, capsys):
    path = tmp_path / "report.json"
    command = ["attention", "--small", "--rows", "short-forward,decod*", "--output", str(path)]
    monkeypatch.setattr(sys, "argv", command)
    assert attention.main() == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    names = [row["name"] for row in report["rows"]]
    assert names == ["short-forward", "decoding-reading", "decoding"]
    assert all(row["ours"]["ms"] > 0 and row["ratio"] > 0 for row in report["rows"])
    assert report["versions"]["keras"] and report["machine"]["cores"]
    said = capsys.readouterr().out
    assert all(runner.line(row) in said for row in report["rows"])


def test_a_side_that_fails_is_reported_and_fails_the_run(monkeypatch, capsys):
    def fail(case):
        raise MemoryError("no room")

    rows = attention.rows(small=True)
    broken = dataclasses.replace(rows["short-forward"], ours=Contestant("broken", fail))
    monkeypatch.setattr(attention, "rows", lambda small: {"short-forward": broken})
    monkeypatch.setattr(sys, "argv", ["attention", "--small"])
    assert attention.main() == 1
    assert "MemoryError: no room" in capsys.readouterr().out
