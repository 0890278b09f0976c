"""The pages of docs/migration that have no old package in NumPy, and their index."""

import pytest

from tests.docs.migration.pages import FOLDER
from tests.doctests import BLOCK


def test_the_page_of_torch_runs_with_torch():
    pytest.importorskip("torch")
    text = (FOLDER / "torch.md").read_text(encoding="utf-8")
    exec("\n".join(BLOCK.findall(text.replace("```python no-run", "```python"))), {})


def test_every_page_is_in_the_index():
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    for path in FOLDER.glob("*.md"):
        assert path.name == "index.md" or f"]({path.name})" in index
