"""The tree of folders in ARCHITECTURE.md, of the first line of each: `python -m tests.tree`."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "keras_attention"
PAGE = ROOT / "ARCHITECTURE.md"


def first_line(path):
    """What a module says of itself, without what `:` or a quote would make of it elsewhere."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    line, *rest = text.splitlines()
    if rest and rest[0]:
        line = re.match(".*(?=[,:;])", line)[0]  # The sentence goes on: what it says by then.
    return line.rstrip(".:")


def tree():
    """The lines of the package in the tree: its folders, not what is in these."""
    lines = ["keras_attention/"]
    for path in sorted(PACKAGE.glob("*/__init__.py")):
        lines.append(f"  {path.parent.name + '/':<22} {first_line(path)}")
    return "".join(f"    {line}\n" for line in lines)


def replaced(page):
    """The page with the tree as the files are now."""
    start, end = "    keras_attention/\n", "    tests/ "
    return re.sub(f"(?s)^{start}.*?(?=^{end})", lambda _: tree(), page, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
