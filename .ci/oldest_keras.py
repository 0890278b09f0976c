"""Prints the requirement that installs the oldest Keras which setup.py admits."""

import pathlib
import re

setup = pathlib.Path(__file__).parent.parent.joinpath("setup.py").read_text(encoding="utf-8")
print("keras==" + re.search(r'"keras>=([\d.]+)"', setup).group(1) + ".*")
