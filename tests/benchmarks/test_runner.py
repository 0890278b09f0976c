"""What programs of benchmarks share: files of results, sides in turns, and processes."""

import json

import pytest

from benchmarks import runner

pytestmark = pytest.mark.any_backend


@pytest.fixture
def options(monkeypatch, tmp_path):
    path = str(tmp_path / "report.json")
    monkeypatch.setattr("sys.argv", ["program", "--small", "--output", path])
    return runner.parsed("What it is.", rows=["one"])


def test_each_row_is_a_line_and_runs_add_to_a_file(options, capsys):
    first = [{"name": "a", "of": {"ms": 1.5}}, {"name": "b", "of": {"ms": 2.0}}]
    runner.report(first, options, str, "| head |", size=3)
    said = capsys.readouterr().out
    assert "| head |" in said and str(first[1]) in said and "these figures mean nothing" in said
    again = {"name": "a", "of": {"ms": 0.5}}
    found = runner.report([again], options, str, identity=("name",), size=4)
    assert found["rows"] == [first[1], again]
    assert runner.read(options.output) == found
    lines = options.output.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 + len(found) + 1 + 2
    assert json.loads(lines[-3]) == again


@pytest.mark.parametrize("path", sorted(runner.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_have_rows_each_on_a_line(path):
    report = runner.read(path)
    rows = report.get("rows", report.get("epochs"))
    assert rows and all(isinstance(row, dict) for row in rows)
    lists = [value for value in report.values() if isinstance(value, list) and value]
    lines = sum(1 + len(value) for value in lists if isinstance(value[0], dict))
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2 + len(report) + lines


def test_sides_take_turns(options, capsys):
    order = []
    sides = (lambda: order.append("ours")), (lambda: order.append("other"))
    runner.turns(lambda name, options: (f"work of {name}", *sides), options, about="this")
    (row,) = runner.read(options.output)["rows"]
    assert row["speedup"] == row["other"]["ms"] / row["ours"]["ms"]
    assert row["ours"]["samples"] == options.repeats == 2
    assert row["work"] == "work of one" and order[:4] == ["ours"] * 2 + ["other"] * 2
    turns = [who for who, before in zip(order[4:], order[3:], strict=False) if who != before]
    assert turns == ["ours", "other"] * 2


def test_a_row_that_is_not_there_is_named(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["program", "--rows", "o*,one,two"])
    with pytest.raises(SystemExit):
        runner.parsed("What it is.", rows=["one", "other"])
    assert "no row is named 'two'" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["program", "--rows", "o*,one"])
    assert runner.parsed("What it is.", rows=["one", "other"]).rows == ["one", "other"]


def test_a_process_answers_or_its_error_is_raised():
    size = {"batch": 1, "features": 8, "heads": 2, "max_distance": 2}
    given = ["plain attention", "forward", size]
    found = runner.growth("shaw_memory", "run", [*given, 16], [*given, 32])
    assert found["MiB"] >= 0 and found["ms"] > 0
    given[0] = "nothing"
    with pytest.raises(RuntimeError, match="KeyError: 'nothing'"):
        runner.growth("shaw_memory", "run", [*given, 16], [*given, 32])
