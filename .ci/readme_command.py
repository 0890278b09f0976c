"""Prints one of the README's two commands: the code block under the heading that names it."""

import pathlib
import re
import sys

HEADINGS = {"run": "Run it", "test": "Test it"}

readme = pathlib.Path(__file__).parent.parent.joinpath("README.md").read_text(encoding="utf-8")
heading = HEADINGS[sys.argv[1]]
match = re.search(rf"^#+ {heading}\n.*?```(?:bash|sh)\n(.*?)```", readme, re.MULTILINE | re.DOTALL)
if match is None:
    sys.exit(f"README.md has no shell block under the heading {heading!r}")
print(match.group(1).strip())
