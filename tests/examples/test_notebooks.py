"""The notebooks in examples/notebooks run from first cell to last, small, without a network."""

import ast
import importlib.util
import json
import os
import shutil
from pathlib import Path

import keras
import pytest

FOLDER = Path(__file__).parents[2] / "examples/notebooks"
NOTEBOOKS = "imdb", "translation"


def installs(cell):
    return "install" in cell["metadata"].get("tags", ())


def test_one_line_installs_and_no_outputs_are_kept():
    paths = sorted(FOLDER.glob("*.ipynb"))
    assert [path.stem for path in paths] == [*NOTEBOOKS]
    for path in paths:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        cells = [cell for cell in cells if cell["cell_type"] == "code"]
        (line,) = [line for cell in cells if installs(cell) for line in cell["source"]]
        assert line.startswith("%pip install")
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
        for cell in cells:
            assert installs(cell) or ast.parse("".join(cell["source"]))


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the data are TensorFlow's")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs(name, tmp_path, monkeypatch):
    if os.environ.get("KERAS_ATTENTION_EXPORT") != "1" and not all(
        map(importlib.util.find_spec, ("nbclient", "nbformat", "ipykernel"))
    ):
        pytest.skip("it takes nbclient and ipykernel: pip install -e '.[notebooks]'")
    import nbclient
    import nbformat

    # Where a notebook expects to be, with room for the files that it writes.
    place = tmp_path / "examples/notebooks"
    shutil.copytree(
        FOLDER.parent, place.parent, ignore=shutil.ignore_patterns("notebooks", "__pycache__")
    )
    place.mkdir()
    root = str(FOLDER.parents[1])
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}{inherited}" if inherited else root)
    monkeypatch.setenv("NOTEBOOK_SMALL", "1")
    monkeypatch.delenv("DATA_DIR", raising=False)
    # With a backend of matplotlib set, the kernel would not show pictures in the notebook.
    monkeypatch.delenv("MPLBACKEND", raising=False)
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    notebook.cells = [cell for cell in notebook.cells if not installs(cell)]
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(place)}}
    ).execute()
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) >= 2, "a curve and a picture of attention"
    assert list(place.glob("*.keras"))
