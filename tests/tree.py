"""The tree of files in docs/design.md, made of the first line of each: `python -m tests.tree`."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "keras_attention"
PAGE = ROOT / "docs/design.md"
# The folder whose files one reads to follow a call; of others the tree has a line.
READ = "kernels"


def first_line(path):
    """What a module says of itself, without what `:` or a quote would make of it elsewhere."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    line, *rest = text.splitlines()
    if rest and rest[0]:
        line = re.match(".*(?=[,:;])", line)[0]  # The sentence goes on: what it says by then.
    return line.rstrip(".:")


def files_of(folder, indent="    "):
    """The lines of the modules of a folder, and of the folders in it."""
    width = 24 - len(indent)
    for path in sorted(folder.glob("*.py")):
        if path.stem != "__init__":
            yield f"{indent}{path.name:<{width}} {first_line(path)}"
    for path in sorted(folder.glob("*/__init__.py")):
        yield f"{indent}{path.parent.name + '/':<{width}} {first_line(path)}"
        yield from files_of(path.parent, indent + "  ")


def tree():
    """The lines of the package in the tree."""
    found = ["keras_attention/"]
    files = sorted(PACKAGE.glob("*.py"))
    folders = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))
    for path in [file for file in files if ast.get_docstring(ast.parse(file.read_text("utf-8")))]:
        found.append(f"  {path.name:<22} {first_line(path)}")
    for folder in folders:
        found.append(f"  {folder.name + '/':<22} {first_line(folder / '__init__.py')}")
        if folder.name == READ:
            found += files_of(folder)
    return "".join(f"    {line}\n" for line in found)


def replaced(page):
    """The page with the tree as the files are now."""
    start, end = "    keras_attention/\n", "    tests/ "
    return re.sub(f"(?s)^{start}.*?(?=^{end})", lambda _: tree(), page, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
