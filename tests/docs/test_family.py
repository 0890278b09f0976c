"""The tables of docs/family.md: what a row names exists, is tested, and has a paper."""

import inspect
import pathlib
import re

import pytest

import keras_attention

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "family.md"
TESTS = "\n".join(
    path.read_text(encoding="utf-8")
    for path in (ROOT / "tests").rglob("*.py")
    if path != pathlib.Path(__file__)
)
PUBLIC = [keras_attention, *map(vars(keras_attention).get, keras_attention.__all__)]


def tables(kind):
    """The cells of each row of the tables of a kind."""
    text = PAGE.read_text(encoding="utf-8")
    for table in re.findall(rf'<div class="{kind}" markdown>\n(.*?)</div>', text, re.S):
        for line in [line for line in table.splitlines() if line.startswith("|")][2:]:
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def name_of(cell):
    """The name of a mechanism, without pictures, links and its equation."""
    text = re.sub(r"!\[.+?<br>", "", cell).split("<br>")[0]
    return re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text).replace("**", "")


def rows():
    """Usage and paper of each mechanism."""
    for name, usage, paper in tables("mechanisms"):
        yield pytest.param(usage, paper, id=name_of(name))


def public(name):
    assert any(hasattr(module, name) for module in PUBLIC if inspect.ismodule(module)), (
        f"{name} is not a public name"
    )


@pytest.mark.parametrize(("usage", "paper"), rows())
def test_row(usage, paper):
    code = " ".join(re.findall(r"`([^`]+)`", usage))
    assert code or "same parts" in usage
    methods = set(re.findall(r"(?:layer|block)\.(\w+)", code))
    names = set(re.findall(r"\b([A-Z][A-Za-z]\w+|[a-z_]+(?=\())", code))
    for name in names - methods - {"True", "False", "None", "layer"}:
        public(name)
    for name in names | methods | set(re.findall(r"\b([a-z_]+)=", code)):
        assert re.search(rf"\b{name}\b", TESTS), f"no test has {name}"
    for name in re.findall(r'"\w+"', code):
        assert name in TESTS, f"no test has {name}"
    # Biases are the caller's, and caches of a context are in no paper.
    own = "attention_bias" in code or "cache_context" in code
    assert own or re.search(r"\b(19|20)\d\d\b", paper) or "same parts" in usage


def test_other_packages():
    """The packages' mechanisms are ours, in the same order."""
    ours = [name_of(row[0]) for row in tables("mechanisms")]
    packages = list(tables("packages"))
    assert len(packages) == 9
    for package, *cells in packages:
        for cell in cells:
            named = cell.split("; ") if cell else []
            assert [name for name in ours if name in named] == named, package
