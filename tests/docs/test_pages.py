"""Pages can be read: short paragraphs with few figures, and tables of results that are current."""

import re
import runpy
from pathlib import Path

import pytest

from benchmarks.pages import pages, replaced

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
    if page.parent.name != "source"
]
WORDS, FIGURES = 110, 4

pytestmark = pytest.mark.any_backend

# What is no paragraph: code, comments, front matter, tables, headings and pictures.
LEFT_OUT = re.compile(
    r"^(?:```+|~~~+).*?^(?:```+|~~~+)$|^ *```.*?^ *```$|<!--.*?-->|\A---\n.*?\n---\n|\$\$.*?\$\$",
    re.MULTILINE | re.DOTALL,
)
ITEM = re.compile(r"^ *(?:[-*]|\d+\.|:) +", re.MULTILINE)
# Code, links' targets, citations, shapes, versions and sizes with a letter (T80) are no figures.
NO_FIGURES = re.compile(
    r"`[^`]*`|\]\([^)]*\)|\b(?:19|20)\d\d\b|\((?:\w+, ?)+\w*\)|"
    r"\b(?:Keras|TensorFlow|JAX|PyTorch|Python|NumPy|CUDA|transformers|version|Hub) [\d.]+"
)
FIGURE = re.compile(r"(?<![\w.^])[−-]?\d[\d.,]*(?:[eE]-?\d+)?")


def paragraphs(text):
    """The paragraphs and items of lists of a page, as a reader sees them."""
    text = LEFT_OUT.sub("\n", text)
    for part in re.split(r"\n(?:[ \t]*\n)+", text.strip("\n")):
        if part.startswith("    ") and not ITEM.match(part):
            continue  # code
        for item in ITEM.split(part):
            lines = [line.strip() for line in item.splitlines()]
            kept = [
                line for line in lines if not line.startswith(("#", "|", "![", "<", ":::", "==="))
            ]
            if words := " ".join(kept).strip():
                yield words


def words(paragraph):
    return len(re.sub(r"\]\([^)]*\)", "]", paragraph).split())


def figures(paragraph):
    return FIGURE.findall(NO_FIGURES.sub(" ", paragraph))


def hard_to_read(page):
    """The paragraphs of a page that are too long, or have too many figures."""
    return [
        (words(paragraph), len(figures(paragraph)), paragraph[:60])
        for paragraph in paragraphs(page.read_text(encoding="utf-8"))
        if words(paragraph) > WORDS or len(figures(paragraph)) > FIGURES
    ]


def test_paragraphs_and_figures_are_found():
    page = "# 1\n\nIt is 0.5 to\n0.9 at T80, `3`.\n\n- one\n- two 2\n\n| 1 | 2 |\n\n```\n1\n```\n"
    found = list(paragraphs(page))
    assert found == ["It is 0.5 to 0.9 at T80, `3`.", "one", "two 2"]
    assert [len(figures(paragraph)) for paragraph in found] == [2, 0, 1]
    assert words(found[0]) == 8


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_a_page_can_be_read(page):
    assert not hard_to_read(page)


def test_all_pages_can_be_read_in_a_day():
    every = (page.read_text(encoding="utf-8") for page in DOCS.glob("**/*.md"))
    assert sum(len(text.split()) for text in every) <= 48_000
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    assert len(newest.splitlines()) <= 80


def test_tables_of_results_are_what_the_files_say():
    assert DOCS / "measured.md" in pages()
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert replaced(text) == text, f"{page.name}: run `python -m benchmarks.pages`"


def test_the_plot_of_settings_is_what_the_files_say(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "pictures")
    drawn = (DOCS / "pictures" / "benchmarks_settings.svg").read_text(encoding="utf-8")
    drawing = runpy.run_path(str(DOCS / "pictures" / "benchmarks.py"))
    assert drawing["settings"]() == drawn, "run `python docs/pictures/benchmarks.py`"
