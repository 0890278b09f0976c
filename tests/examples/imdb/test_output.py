"""What is there in the folder of a run is not overwritten."""

import json
import os
import shutil

import pytest

from examples.errors import UsageError
from examples.imdb import command as imdb_classification
from examples.run_directory import RunDirectory
from tests.examples.imdb.runs import TINY, contents, figures, foreign_figures, main, unfinished


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", 4], "epochs is 3 there and 4 now"),
        (["--epochs", 3, "--seed", 5], "seed is 0 there and 5 now"),
        (["--epochs", 3, "--positions"], "model is 'post' there and 'post-positions' now"),
        (["--epochs", 3, "--limit", 8], "limit is None there and 8 now"),
    ],
)
def test_other_settings_are_refused(folder, finished, capsys, arguments, message):
    before = contents(finished)
    assert main(*TINY, *arguments, "--data-dir", folder, "--output", finished) == 2
    assert message in capsys.readouterr().err
    assert contents(finished) == before


def test_other_data_is_refused(folder, finished, tmp_path, capsys):
    output, data = tmp_path / "run", tmp_path / "aclImdb"
    shutil.copytree(finished, output)
    unfinished(output)
    (output / "checkpoint-3.keras").write_text("")
    shutil.copytree(folder, data)
    next((data / "train" / "pos").iterdir()).write_text("Something else.")
    assert main(*TINY, "--epochs", 3, "--data-dir", data, "--output", output) == 2
    assert "data is [" in capsys.readouterr().err


def test_finished_run_answers_before_data_are_read(finished, capsys):
    assert main(*TINY, "--epochs", 3, "--data-dir", "nowhere", "--output", finished) == 0
    assert "finished already" in capsys.readouterr().out


def test_another_kind_of_data_is_refused_before_it_is_read(finished, tmp_path, capsys):
    output = tmp_path / "run"
    shutil.copytree(finished, output)
    command = [*TINY, "--epochs", 3, "--output", output]
    assert main(*command, "--sample") == 2
    assert "data_source is 'folder' there and 'sample' now" in capsys.readouterr().err
    assert main(*command) == 2
    assert "and 'TensorFlow Datasets' now" in capsys.readouterr().err
    said = figures(output)
    del said["settings"]["data_source"]
    (output / "figures.json").write_text(json.dumps(said))
    assert main(*command, "--sample") == 0


def a_file(path):
    path.write_text("mine")


def below_a_file(path):
    path.parent.write_text("mine")


def foreign_files(path):
    path.mkdir(parents=True)
    (path / "model.keras").write_text("mine")


def damaged_figures(path):
    path.mkdir(parents=True)
    (path / "figures.json").write_text('{"program": "exam')


def lost_checkpoint(path):
    path.mkdir(parents=True)
    said = {
        "program": imdb_classification.PROGRAM,
        "settings": {},
        "finished": False,
        "epochs": [{}, {}],
    }
    (path / "figures.json").write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("occupy", "message"),
    [
        (a_file, "is a file"),
        (below_a_file, "cannot be written"),
        (foreign_files, "is not a run of examples.imdb_classification: it holds model.keras"),
        (foreign_figures, "is of another program"),
        (damaged_figures, "is not JSON"),
        (lost_checkpoint, "checkpoint-2.keras is missing"),
    ],
)
def test_unusable_output(folder, tmp_path, capsys, occupy, message):
    output = tmp_path / "runs"
    if occupy is below_a_file:
        output = output / "run"
    occupy(output)
    before = contents(output)
    assert main(*TINY, "--data-dir", folder, "--output", output) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert contents(output) == before


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_read_only_output(folder, tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert main("--data-dir", folder, "--output", tmp_path / "run") == 2
    assert "cannot be written" in capsys.readouterr().err


def test_failed_write_leaves_the_old_file(tmp_path):
    run = RunDirectory(tmp_path / "run", "program")
    run.begin({"seed": 0})
    before = contents(run.path)["figures.json"]

    def fail(path):
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(UsageError, match="disk full"):
        run.write("figures.json", fail)
    assert contents(run.path)["figures.json"] == before
    run.close()
    RunDirectory(run.path, "program").begin({"seed": 0})
