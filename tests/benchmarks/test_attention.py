"""The benchmark of attention: its rows, and that a run of some of them reports."""

import dataclasses
import json
import math
import sys

import numpy as np
import pytest

from benchmarks import pages, runner
from benchmarks.attention import command as program
from benchmarks.attention import measuring
from benchmarks.attention.backends import BACKEND
from benchmarks.attention.cases import Contestant
from benchmarks.attention.contestants import ops
from benchmarks.attention.report import line
from benchmarks.attention.rows import rows


def test_the_rows_that_pages_show_are_measured():
    shown = {f"{length}-{task}" for length in pages.LENGTHS for task in pages.TASKS}
    if BACKEND != "tensorflow":
        shown = {name for name in shown if not name.endswith("-xla")}
    assert shown <= set(rows(small=False)["table"]) == set(rows(small=True)["table"])


@pytest.mark.parametrize("name", ["short-training", "short-padding", "short-bias"])
def test_both_sides_of_a_row_compute_the_same(name):
    row = rows(small=True)["table"][name]
    ours, theirs = (contestant.prepare(case)()[0] for contestant, case in row.sides.values())
    ours, theirs = (np.array(ops.convert_to_numpy(x)) for x in (ours, theirs))
    assert runner.distance(ours, theirs) < 1e-4
    assert measuring.differs({"apart": runner.distance(ours, 2 * theirs)}, "float32")
    assert measuring.differs({"apart": math.nan}, "float32")


def test_a_run(monkeypatch, tmp_path, capsys):
    path = tmp_path / "report.json"
    command = ["attention", "--small", "--rows", "short-forward,decod*", "--output", str(path)]
    monkeypatch.setattr(sys, "argv", command)
    assert program.main() == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    assert [row["name"] for row in report["rows"]] == [
        "short-forward",
        "decoding",
        "decoding-reading",
    ]
    assert all(row["ours"]["ms"] > 0 and row["ratio"] > 0 for row in report["rows"])
    assert report["versions"]["keras"] and report["machine"]["cores"]
    said = capsys.readouterr().out
    assert all(line(row) in said for row in report["rows"])


def test_a_side_that_fails_is_reported_and_fails_the_run(monkeypatch, capsys):
    def fail(case):
        raise MemoryError("no room")

    row = rows(small=True)["table"]["short-forward"]
    broken = dataclasses.replace(row, ours=(Contestant("broken", fail), row.ours[1]))
    monkeypatch.setattr(program, "chosen", lambda options, parser: [broken])
    monkeypatch.setattr(sys, "argv", ["attention", "--small"])
    assert program.main() == 1
    assert "MemoryError: no room" in capsys.readouterr().out
