"""The command line of `examples.language_model`, and what it needs."""

import ast
import subprocess
import sys
import types

import keras
import pytest

from examples.language_model import command
from examples.run_directory import RunDirectory
from tests.examples.language_model.runs import ROOT, main

pytest.importorskip("filelock", reason="the example needs the extra `examples`")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--preset", "other"],
        ["--tokens", "words"],
        ["--vocabulary-size", "10"],
        ["--context", "1"],
        ["--steps", "0"],
        ["--dropout", "1"],
        ["--learning-rate", "0"],
        ["--positions", "none"],
        ["--data", "x", "--sample"],
        ["generate"],
        ["generate", "runs/language-model"],
        ["generate", "runs/language-model", "Hello", "--temperature", "-1"],
        ["generate", "runs/language-model", "Hello", "--top-k", "0"],
    ],
    ids=" ".join,
)
def test_wrong_command_line(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(*arguments)
    assert exit_.value.code == 2 and "usage: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocabulary-size", 500], "--vocabulary-size is for --tokens subwords"),
        (["--steps", 300], "must be a multiple of --measure-every, received 300 and 250"),
        (["--pretrained", "{}", "--layers", 2], "--layers cannot be given with --pretrained"),
        (["--pretrained", "{}", "--tokens", "subwords"], "--tokens cannot be given with"),
        (["--pretrained", "{}", "--vocabulary-size", 500], "--vocabulary-size cannot be given"),
        (["--pretrained", "{}", "--preset", "small"], "--preset cannot be given with"),
        (["--pretrained", "{}/none"], "is not a directory"),
        (["--pretrained", "{}"], "has no config.json"),
    ],
)
def test_options_that_contradict_one_another_are_one_line(arguments, message, tmp_path, capsys):
    arguments = [str(part).format(tmp_path) for part in arguments]
    output = tmp_path / "run"
    assert main("--sample", *arguments, "--output", output) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err
    assert err.count("\n") == 1 and not output.exists()


def test_steps_below_those_between_two_measurements():
    settings = command.settings_of(command._parse_train(["--steps", "7"]))
    assert settings["measure_every"] == settings["steps"] == 7


@pytest.mark.parametrize("kind", command.PACKAGES)
def test_a_missing_package_is_named_with_all_others(kind, monkeypatch, tmp_path, capsys):
    with RunDirectory(tmp_path / "run", command.PROGRAM) as run:
        run.begin({"tokens": kind})
        run.finish()

    def fail(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(command, "importlib", types.SimpleNamespace(import_module=fail))
    assert main("generate", tmp_path / "run", "A man.") == 2
    err = capsys.readouterr().err
    packages = " ".join(("filelock", "matplotlib", *command.PACKAGES[kind]))
    assert "No module named 'keras'" in err and err.endswith(f"pip install {packages}\n")
    assert err.count("\n") == 1


def test_what_is_imported_is_what_is_named():
    imported = set()
    for path in ROOT.glob("examples/language_model/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.split(".")[0])
    # One source of texts among others.
    given = {"keras", "numpy", "keras_attention", "examples", "tensorflow_datasets"}
    needed = {name for packages in command.PACKAGES.values() for name in packages}
    # What `convert` imports.
    found = imported - given - sys.stdlib_module_names
    assert found | {"safetensors"} == needed | {"matplotlib"}
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    extras = setup[setup.index("EXAMPLES = [") : setup.index("setup(")]
    assert all(f'"{package}' in extras and package in command.__doc__ for package in needed)


def test_a_mistake_needs_no_keras():
    program = (
        "import sys\n"
        "from examples.language_model import main\n"
        "assert main(['--sample', '--vocabulary-size', '500']) == 2\n"
        "assert main(['generate', 'nowhere', 'x']) == 2\n"
        "packages = {'keras', 'keras_attention', 'tensorflow', 'jax', 'torch', 'sentencepiece'}\n"
        "print(packages & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n" and done.stderr.count("\n") == 2


def test_generate_without_a_usable_model(tmp_path, capsys):
    def error(*arguments):
        assert main("generate", *arguments) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ") and err.count("\n") == 1
        return err

    folder = tmp_path / "run"
    assert "figures.json cannot be read" in error(folder, "Hello")
    run = RunDirectory(folder, command.PROGRAM)
    run.begin({"tokens": "characters", "context": 8})
    assert "is not finished (0 epochs so far)" in error(folder, "Hello")
    run.finish()
    run.close()
    assert "The prompt is empty" in error(folder, "")
    assert "is a folder, and was given as a prompt" in error(folder, folder)
    assert "model.keras cannot be read: No such file" in error(folder, "Hello")
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save(folder / "model.keras")
    assert "it is a Sequential" in error(folder, "Hello")
    (folder / "model.keras").write_bytes(bytes(1000))
    assert "model.keras holds zeros" in error(folder, "Hello")
