"""PyTorch, where it is installed."""

import pytest


@pytest.fixture
def torch():
    return pytest.importorskip("torch")
