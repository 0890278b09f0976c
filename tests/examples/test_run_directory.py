"""The folder of a run, its lock, and the model files that are loaded from it."""

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import keras
import pytest

from examples import model_files, run_directory, startup
from examples.errors import UsageError
from examples.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
PROGRAM = "examples.test"


def python(code, *arguments, **options):
    """A process that runs `code` in this checkout."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


# The lock

HOLD = """
import sys, time
from examples.run_directory import RunDirectory
run = RunDirectory(sys.argv[1], "examples.test")
run.begin({"seed": 0})
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def held(tmp_path):
    """A folder that another process is writing to, and the process."""
    process = python(HOLD, tmp_path / "run")
    assert process.stdout.readline() == "locked\n", process.stderr.read()
    yield tmp_path / "run", process
    process.kill()
    process.wait()


def test_a_second_run_in_a_folder_is_refused(held):
    path, _ = held
    before = sorted(path.iterdir())
    with pytest.raises(UsageError, match=f"Another process is writing to --output {path}"):
        RunDirectory(path, PROGRAM)
    assert sorted(path.iterdir()) == before


def test_a_killed_process_holds_no_lock(held):
    path, process = held
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert (path / ".lock").exists()
    with RunDirectory(path, PROGRAM) as run:
        run.begin({"seed": 0})
        with pytest.raises(UsageError, match="Another process"):
            RunDirectory(path, PROGRAM)
    assert [file.name for file in path.iterdir()] == ["figures.json"]


RACE = """
import sys
from examples.errors import UsageError
from examples.run_directory import RunDirectory
inside = 0
for _ in range(200):
    try:
        with RunDirectory(sys.argv[1], "examples.test"):
            open(sys.argv[2], "x").close()
            import os
            os.unlink(sys.argv[2])
            inside += 1
    except UsageError as error:
        assert "Another process" in str(error) or "cannot be written" in str(error), error
print(inside)
"""


def test_removing_the_lock_file_lets_nobody_in_twice(tmp_path):
    processes = [python(RACE, tmp_path / "run", tmp_path / "inside") for _ in range(3)]
    answers = [process.communicate(timeout=120) for process in processes]
    # `open(…, "x")` raises where another process is inside.
    assert all(process.returncode == 0 for process in processes), answers
    assert sum(int(out) for out, _ in answers) > 0


# The folder


def test_a_run_that_wrote_nothing_leaves_nothing(tmp_path):
    with RunDirectory(tmp_path / "a" / "b", PROGRAM):
        assert (tmp_path / "a" / "b").is_dir()
    assert not (tmp_path / "a").exists()
    (tmp_path / "there").mkdir()
    RunDirectory(tmp_path / "there", PROGRAM).close()
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize("output", ["{}/file/run", "/proc/run", "{}/" + "x" * 300])
def test_an_output_that_cannot_be_written_fails_at_once(tmp_path, output):
    if output.startswith("/proc") and not Path("/proc").is_dir():
        pytest.skip("this system has no /proc")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written: "):
        RunDirectory(output.format(tmp_path), PROGRAM)


def test_files_of_something_else_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"is not a run of .*: it holds thesis\.tex"):
        RunDirectory(tmp_path, PROGRAM)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_settings_are_checked_as_far_as_they_are_known(tmp_path):
    with RunDirectory(tmp_path / "run", PROGRAM) as run:
        run.check({"seed": 5})
        assert not run.finished
        run.begin({"seed": 0, "sizes": (1, 2)})
        run.finish(accuracy=1.0)
    with RunDirectory(tmp_path / "run", PROGRAM) as run:
        assert run.finished and run.files() == ["figures.json"]
        run.check({"sizes": (1, 2), "data_source": "files of earlier versions lack it"})
        with pytest.raises(UsageError, match="other settings: seed is 0 there and 1 now"):
            run.check({"seed": 1})
        with pytest.raises(UsageError, match=r"sizes is \[1, 2\] there and None now"):
            run.begin({"seed": 0})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ('{"program": "other"}', "is of another program"),
        ('{"program": "examples.test", "epochs": [], "finished": 1}', "is damaged: it must have"),
    ],
)
def test_damaged_figures(tmp_path, text, message):
    (tmp_path / "figures.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        RunDirectory(tmp_path, PROGRAM)


LIGHT = """
import sys, time
start = time.perf_counter()
import importlib
status = importlib.import_module(sys.argv[1]).main(sys.argv[2:])
heavy = {"keras", "tensorflow", "jax", "torch"} & set(sys.modules)
assert not heavy, heavy
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("examples.translation", []),
        ("examples.translation", ["translate", "{}", "A dog."]),
    ],
    ids=["translation", "translate"],
)
def test_what_is_known_before_keras_is_said_without_it(tmp_path, program, arguments):
    path = tmp_path / "run"
    with RunDirectory(path, program) as run:
        run.begin({"seed": 0, "model": "other"})
        run.finish()
    arguments = [argument.format(path) for argument in arguments] or ["--output", path]
    start = time.perf_counter()
    process = python(LIGHT, program, *arguments, cwd=tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2 and err.startswith("error: ") and err.count("\n") == 1, err
    assert ("other settings" if arguments[0] == "--output" else "model.keras") in err
    # Under two seconds on an idle machine, of which the tests need not have one.
    assert time.perf_counter() - start < 20


# Model files


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(path)
    return path


def empty(path):
    path.write_bytes(b"")


def zeros(path):
    path.write_bytes(bytes(len(path.read_bytes())))


def cut_short(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def web_page(path):
    path.write_text("\n<!DOCTYPE html><title>404</title>")


def text(path):
    path.write_text("version https://git-lfs.github.com/spec/v1\n")


def missing(path):
    path.unlink()


def zeros_inside(path):
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("model.weights.h5")
    data = bytearray(path.read_bytes())
    middle = member.header_offset + 200
    data[middle : middle + 100] = bytes(100) if any(data[middle : middle + 100]) else b"x" * 100
    path.write_bytes(data)


def other_archive(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")


def no_weights(path):
    with zipfile.ZipFile(path) as archive:
        config = archive.read("config.json")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", config)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (empty, "is empty"),
        (zeros, "holds zeros"),
        (cut_short, "is cut short"),
        (web_page, "is a web page"),
        (text, "is not a Keras model"),
        (missing, "cannot be read: No such file"),
        (zeros_inside, "is damaged"),
        (other_archive, "is not a Keras model: it has no config.json"),
        (no_weights, "is not a model of this program"),
    ],
)
def test_damaged_model_files(model_file, damage, message):
    assert model_files.load(model_file).count_params() == 8
    damage(model_file)
    with pytest.raises(UsageError) as error:
        model_files.load(model_file)
    assert str(error.value).startswith(f"{model_file} ") and message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_instead_of_its_folder(model_file, tmp_path):
    with pytest.raises(UsageError, match=f"Give the folder that it is in: {tmp_path}"):
        model_files.finished_run(model_file, PROGRAM)


def test_a_folder_given_as_text_is_asked_about(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("data", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / run_directory.FIGURES).write_text("{}")
    for folder in ("run", str(tmp_path / "data"), ".", ".."):
        with pytest.raises(UsageError, match="is a folder, and was given as a sentence"):
            model_files.check_texts(["A dog.", folder], "a sentence")
    capsys.readouterr()
    # What no file could be called, and a word that happens to be the name of a folder.
    model_files.check_texts(["", "x" * 10_000, "a/b", "a\0b", "...", "data"], "a sentence")
    assert capsys.readouterr().err == "'data' is taken as a sentence, and is a folder too.\n"


# Standard error


def test_nothing_is_printed_at_the_start_unless_it_fails(capfd):
    with startup.quiet():
        os.write(2, b"cuda\n")
    assert capfd.readouterr().err == ""
    with pytest.raises(ImportError), startup.quiet():
        os.write(2, b"cuda\n")
        raise ImportError
    assert capfd.readouterr().err == "cuda\n"
    with pytest.raises(UsageError), startup.quiet():
        os.write(2, b"cuda\n")
        raise UsageError
    assert capfd.readouterr().err == ""
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "later\n"


def test_nothing_is_printed_while_a_model_loads(model_file, monkeypatch, capfd):
    # As TensorFlow does, which Keras imports to load a model, on other backends too.
    load = keras.models.load_model
    monkeypatch.setattr(
        keras.models, "load_model", lambda path: os.write(2, b"cuda\n") and load(path)
    )
    assert model_files.load(model_file).count_params() == 8
    assert capfd.readouterr().err == ""
