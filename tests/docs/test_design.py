"""ARCHITECTURE.md is true: its walk-throughs run outside of the package, and its tree is there."""

import re

from keras_attention import kernels
from tests import tree
from tests.doctests import BLOCK, ROOT, programs

PAGE = ROOT / "ARCHITECTURE.md"


def test_the_walk_throughs_run(monkeypatch):
    # A block that fails leaves its kernel in this copy.
    monkeypatch.setattr(kernels, "KERNELS", list(kernels.KERNELS))
    page = list(programs(PAGE))
    # A kernel, a recurrence, a cache layout, a preset, a relation.
    assert len(page) == 5
    for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        assert len([line for line in block.splitlines() if line]) <= 40, block
    names = {"__name__": "__main__"}
    for _, program in page:
        exec(program, names)


def listed():
    """The paths beside the package's: in the folder of the line, or in the one that it is about."""
    text = PAGE.read_text(encoding="utf-8").split("## Where things are")[1].split("\n\n## ")[0]
    text = text[text.index("    tests/") :]
    folders, found = {0: ROOT}, set()
    for spaces, line in re.findall(r"^    ( *)(\S.*)$", text, re.MULTILINE):
        names = re.findall(r"[\w./]+(?:\.py|/)(?=[\s,:]|$)", line)
        folder = folders[len(spaces)]
        folders[len(spaces) + 2] = about = folder / names[0]
        found |= {about / name if (about / name).exists() else folder / name for name in names}
    return found


def test_the_tree_is_there():
    assert ROOT / "tests/conformance.py" in listed()
    assert not [path for path in listed() if not path.exists()]


def test_the_tree_says_what_files_say_of_themselves():
    page = PAGE.read_text(encoding="utf-8")
    assert "    keras_attention/\n" in page
    assert tree.replaced(page) == page, "run `python -m tests.tree`"
