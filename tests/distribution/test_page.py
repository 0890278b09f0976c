"""The blocks of `docs/scaling.md` for the backend that runs."""

import importlib.util
import pathlib
import re

import keras

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "scaling.md"


def test_the_blocks_of_the_page_run(monkeypatch, tmp_path):
    # What `torchrun` sets.
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "29571")
    backend = keras.config.backend()
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(rf"^```python(?: {backend})?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names = {"__name__": "__main__"}
    monkeypatch.chdir(tmp_path)
    try:
        for block in blocks:
            if "Orbax" in block and not importlib.util.find_spec("orbax"):
                continue
            exec(compile(block, str(PAGE), "exec"), names)
    finally:
        if backend == "jax":
            keras.distribution.set_distribution(None)
    assert len(blocks) == {"jax": 7, "tensorflow": 3, "torch": 2}[backend]
