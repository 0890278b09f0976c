"""Draws the picture of README.md by its own code: `python docs/pictures/readme.py`."""

import os
import pathlib
import re
import shutil
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

HERE = pathlib.Path(__file__).parent


def main():
    """Runs the first block, and keeps what it saves."""
    page = (HERE.parents[1] / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1]
    keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(block, {})
        shutil.copy("heads.png", HERE / "readme.png")
        os.chdir(HERE)


if __name__ == "__main__":
    main()
