"""The command line of `examples.translation`, and what it needs."""

import ast
import importlib.util
import os
import subprocess
import sys
import types

import keras
import pytest

if not all(map(importlib.util.find_spec, ("sentencepiece", "sacrebleu", "sacremoses"))):
    pytest.skip("the example needs the extra `translation`", allow_module_level=True)

from examples.run_directory import RunDirectory
from examples.translation import command as translation
from tests.examples.translation.runs import ROOT, main


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "other"],
        ["--epochs", "0"],
        ["--vocabulary-size", "10"],
        ["--dropout", "1"],
        ["--positions", "none"],
        ["--learning-rate", "0"],
        ["--schedule", "constant"],
        ["--data-dir", "x", "--sample"],
        ["translate"],
        ["translate", "runs/translation-transformer"],
        ["translate", "runs/translation-transformer", "Hello.", "--beams", "0"],
    ],
    ids=" ".join,
)
def test_wrong_command_line(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(*arguments)
    assert exit_.value.code == 2 and "usage: " in capsys.readouterr().err


def test_positions_of_recurrent_models_are_refused(tmp_path, capsys):
    assert main("--model", "luong", "--positions", "shaw", "--output", tmp_path / "x") == 2
    assert "--positions is for the transformer" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["--sample"], ["translate", "{}", "A man."]])
def test_a_missing_package_is_named_with_all_others(command, monkeypatch, tmp_path, capsys):
    with RunDirectory(tmp_path / "run", translation.PROGRAM) as run:
        run.begin({})
        run.finish()
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save(
        tmp_path / "run" / "model.keras"
    )

    def fail(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(translation, "importlib", types.SimpleNamespace(import_module=fail))
    assert main(*(part.format(tmp_path / "run") for part in command)) == 2
    err = capsys.readouterr().err
    assert "No module named 'keras'" in err and err.count("\n") == 1
    assert "pip install filelock sentencepiece sacrebleu sacremoses matplotlib" in err


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="it is TensorFlow")
def test_other_backends_need_no_tensorflow(tmp_path):
    program = (
        "import sys\n"
        "for name in ('tensorflow', 'tensorflow_text', 'tensorflow_datasets', 'keras_hub'):\n"
        "    sys.modules[name] = None\n"
        "from examples.translation import training, text\n"
        "proto = text.learn_tokenizer(['ein hund', 'a dog'], 400)\n"
        "tokenizer = text.SentencePieceTokenizer(proto)\n"
        "print(text.decode(tokenizer, text.encode(tokenizer, ['a dog'])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['a dog']\n"


def test_what_is_imported_is_what_is_named():
    imported = set()
    for path in [*ROOT.glob("examples/translation/*.py"), ROOT / "examples/run_directory.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.split(".")[0])
    # The backend, and one source of sentences among others.
    given = {"keras", "numpy", "keras_attention", "examples", "tensorflow", "tensorflow_datasets"}
    assert imported - given - sys.stdlib_module_names == set(translation.PACKAGES)
    assert f"pip install {' '.join(translation.PACKAGES)}\n" in translation.__doc__
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    extras = setup[setup.index("EXAMPLES = [") : setup.index("setup(")]
    assert all(f'"{package}' in extras for package in translation.PACKAGES)


def test_another_kind_of_data_is_refused_before_it_is_read(tmp_path, capsys):
    with RunDirectory(tmp_path / "run", translation.PROGRAM) as run:
        run.begin({"data_source": "sample"})
        run.finish()
    assert main("--data-dir", "nowhere", "--output", tmp_path / "run") == 2
    assert "data_source is 'sample' there and 'folder' now" in capsys.readouterr().err


def test_translate_without_a_usable_model(tmp_path, capsys):
    assert main("translate", tmp_path / "nowhere", "Hello.") == 2
    assert "figures.json cannot be read" in capsys.readouterr().err
    run = RunDirectory(tmp_path / "run", translation.PROGRAM)
    run.begin({})
    assert main("translate", tmp_path / "run", "Hello.") == 2
    assert "is not finished (0 epochs so far)" in capsys.readouterr().err
    run.finish()
    run.close()
    assert main("translate", tmp_path / "run", "Hello.") == 2
    assert "model.keras cannot be read: No such file" in capsys.readouterr().err
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.save(tmp_path / "run" / "model.keras")
    assert main("translate", tmp_path / "run", "Hello.") == 2
    assert "it is a Sequential" in capsys.readouterr().err
    assert main("translate", tmp_path / "run" / "model.keras", "Hello.") == 2
    assert f"Give the folder that it is in: {tmp_path / 'run'}" in capsys.readouterr().err
    assert main("translate", tmp_path / "run", "Hello.", tmp_path / "run") == 2
    assert "is a folder, and was given as a sentence" in capsys.readouterr().err
    (tmp_path / "run" / "model.keras").write_bytes(bytes(1000))
    assert main("translate", tmp_path / "run", "Hello.") == 2
    assert "model.keras holds zeros" in capsys.readouterr().err
