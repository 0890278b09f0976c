"""The benchmark of attention: its arithmetic, its rows, and that a run of two of them reports."""

import dataclasses
import json
import math
import sys

import numpy as np
import pytest

from benchmarks import runner
from benchmarks.attention import command as program
from benchmarks.attention import measuring
from benchmarks.attention.cases import Case, Contestant
from benchmarks.attention.contestants import ops
from benchmarks.attention.report import COLUMNS, line
from benchmarks.attention.rows import rows

CASE = Case(2, 64, 32, 4, training=False)
FOUND = {"ms": 2.0, "quartiles_ms": [1.0, 3.0], "samples": 3}


def test_operations_of_the_products():
    tokens, projections = 2 * 64, 4 * 2 * 32 * 32
    everything = tokens * (projections + 4 * 64 * 32) / 1e9
    assert CASE.gflop() == pytest.approx(everything)
    training = dataclasses.replace(CASE, training=True)
    assert training.gflop() == pytest.approx(3 * everything)
    causal = dataclasses.replace(CASE, causal=True)
    assert causal.gflop() == pytest.approx(tokens * (projections + 4 * 32 * 32) / 1e9)
    window = dataclasses.replace(CASE, window=3)
    assert window.gflop() == pytest.approx(tokens * (projections + 4 * 7 * 32) / 1e9)


@pytest.mark.parametrize(
    ("judged", "said"), [(0.5, "aim"), (0.8, "bar"), (0.9, "missed"), (None, "not measured")]
)
def test_what_a_row_has_reached(judged, said):
    assert measuring.reached(judged, 0.8, 0.5) == said
    assert measuring.reached(judged, None, None) is None


@pytest.mark.parametrize("small", [False, True])
def test_rows_have_names_of_their_own(small):
    groups = rows(small)
    named = [name for group in groups.values() for name in group]
    assert len(named) == len(set(named))
    for group in groups.values():
        for name, row in group.items():
            assert row.name == name and row.gflop > 0
            assert len(line(as_reported(row)).split(" | ")) == len(COLUMNS)


def as_reported(row):
    figures = ("name", "work", "judged", "bar", "aim", "gflop")
    nothing = dict.fromkeys(("reached", "ratio", "limit_ms", "over_limit"))
    return {**{key: getattr(row, key) for key in figures}, **nothing, "ours": FOUND}


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

    broken = dataclasses.replace(
        rows(small=True)["table"]["short-forward"], ours=(Contestant("broken", fail), CASE)
    )
    monkeypatch.setattr(program, "chosen", lambda options, parser: [broken])
    monkeypatch.setattr(sys, "argv", ["attention", "--small"])
    assert program.main() == 1
    assert "MemoryError: no room" in capsys.readouterr().out
