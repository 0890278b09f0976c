"""Folders that the tests of a session share."""

import pathlib
import re

import keras
import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A function of a class of `transformers` and the fields of its configuration: a `Folder`."""
    from tests.convert.huggingface.models import write

    made = {}

    def get(model_class, change=None, **fields):
        key = model_class.__name__, change, repr(sorted(fields.items()))
        if key not in made:
            path = tmp_path_factory.mktemp(model_class.__name__)
            made[key] = write(path, model_class, fields, **({"change": change} if change else {}))
        return made[key]

    return get


@pytest.fixture(scope="session")
def fresh():
    """A process that reads the files of a session's models, without the extras."""
    from tests.fresh_process import Reader

    with Reader() as reader:
        yield reader


@pytest.fixture
def measured(record_property):
    """A function of a model and its figures, which `table.py` reads from a file of JUnit."""

    def record(model, **figures):
        kind = model.metadata["huggingface"]["model_type"]
        for name, figure in figures.items():
            record_property(f"{kind} {name}", figure)

    return record


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of PyTorch would wait for one another longer than they compute."""
    torch = pytest.importorskip("torch")
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


def pytest_collection_modifyitems(items):
    """Only PyTorch, beside which `transformers` runs anyway, generates and saves by default."""
    here = pathlib.Path(__file__).parent
    for item in items:
        long = re.search(r"greedy|beams|saved|training", item.name)
        if here in item.path.parents and keras.config.backend() != "torch" and long:
            item.add_marker(pytest.mark.slow)
