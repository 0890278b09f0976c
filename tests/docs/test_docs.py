"""The documentation: every public name has an example and an entry; pictures are current."""

import inspect
import os
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import keras_attention
from keras_attention.convert.huggingface.architectures import ARCHITECTURES
from tests.convert.huggingface.table import FAMILIES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("**/*.md"))]
FENCES = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
LINKS = re.compile(r"\]\(\s*([^)\s#]*)#?([^)\s]*)\)")
ENTRIES = re.compile(r"^::: keras_attention\.([\w.]+)$", re.MULTILINE)


def public_names():
    """Every public class and function, by its name after the package's."""
    found = {}
    for name in keras_attention.__all__:
        thing = getattr(keras_attention, name)
        if inspect.ismodule(thing):
            found |= {f"{name}.{other}": getattr(thing, other) for other in thing.__all__}
        else:
            found[name] = thing
    return {name: thing for name, thing in found.items() if callable(thing)}


def entries():
    """Every name that a page of the API shows."""
    pages = (page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("api/*.md")))
    return [name for page in pages for name in ENTRIES.findall(page)]


def test_every_public_name_has_an_example():
    for name, thing in public_names().items():
        assert ">>> " in inspect.getdoc(thing), name


def test_every_public_name_has_one_entry_in_the_reference():
    assert sorted(entries()) == sorted(public_names())


def anchors(page):
    """The names of a page's headings, as a repository's pages and MkDocs make them."""
    text = FENCES.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# MkDocs checks the pages of the site; this, those outside of it, and that all can be read without.
def test_links_lead_somewhere():
    for page in PAGES:
        for link, anchor in LINKS.findall(FENCES.sub("", page.read_text(encoding="utf-8"))):
            if link.startswith(("https://", "http://")):
                continue
            target = (page.parent / link).resolve() if link else page
            assert target.is_file(), (page, link)
            if anchor and not anchor.startswith("keras_attention."):
                assert anchor in anchors(target), f"{page}: {link}#{anchor}"


def module_of(path):
    """What a module that is in no package has."""
    return types.SimpleNamespace(**runpy.run_path(str(path)))


def drawing():
    return module_of(DOCS / "pictures" / "patterns.py")


def seen_in(svg, drawing):
    """Booleans (T, S): which cells of a picture are blue."""
    outlines = re.search(rf'fill="{drawing.SEEN}" d="([^"]*)"', svg)[1]
    seen = np.zeros((drawing.LENGTH, drawing.LENGTH), bool)
    for key, query in re.findall(r"M(\d+) (\d+)h", outlines):
        seen[int(query) // drawing.STEP, int(key) // drawing.STEP] = True
    return seen


def test_the_pictures_of_patterns_are_what_patterns_answer():
    draw = drawing()
    pictures = {path.stem.removeprefix("pattern_") for path in DOCS.glob("pictures/pattern_*.svg")}
    assert pictures == set(draw.SHOWN)
    for name, pattern in draw.SHOWN.items():
        svg = (DOCS / "pictures" / f"pattern_{name}.svg").read_text(encoding="utf-8")
        np.testing.assert_array_equal(seen_in(svg, draw), draw.answers(pattern), err_msg=name)


def test_every_built_in_pattern_is_drawn():
    drawn = {type(pattern).__name__ for pattern in drawing().SHOWN.values()}
    patterns = keras_attention.patterns
    built_in = {
        name
        for name in patterns.__all__
        if inspect.isclass(cls := getattr(patterns, name))
        and issubclass(cls, patterns.Pattern)
        and cls is not patterns.Pattern
    }
    assert drawn == built_in


BROWSER = os.environ.get("KERAS_ATTENTION_BROWSER") == "1"
# The page and the tables that are wider than they may be. On a phone, tables that compare many
# things may scroll; those of mechanisms and the page itself may not.
TOO_WIDE = """() => [document.documentElement,
        ...document.querySelectorAll(
            innerWidth > 1000 ? "table" : ".mechanisms table, .packages table")]
    .filter((element) => element.scrollWidth > element.clientWidth + 1
        || element.getBoundingClientRect().right > innerWidth + 1)
    .map((element) => element.innerText.slice(0, 60))"""


# Fences that MkDocs shows as text, with all that follows, since it reads no second word.
UNREAD = re.compile(r"^\s*```+\w+ \S.*$", re.MULTILINE)


def test_the_site_reads_every_fence():
    hook = module_of(DOCS / "tools" / "github.py")
    for page in PAGES:
        text = hook.on_page_markdown(page.read_text(encoding="utf-8"), None, None, None)
        assert not UNREAD.findall(text), page


# What newcomers type into the search box, and the page that comes first.
SEARCHED = {
    "pad": "masks",
    "mask": "masks",
    "relative positions": "positions",
    "positional encoding": "positions",
    "beam search": "generation",
    "load Llama": "models",
    "LSTM with attention": ("recurrent", "images_and_time_series"),
    "plot attention": "visualization",
    "images": "images_and_time_series",
    "time series": ("images_and_time_series", "time_series"),
    "fine-tune BERT": "fine_tuning",
    "token classification": "fine_tuning",
    "replace layers": "replacing_layers",
    "long sequences": "long_sequences",
    "save": "saving",
    "export onnx": "exporting",
    "cross-attention": "getting_started",
    "attention weights": "visualization",
    "windows": "patterns",
    "slow": "long_sequences",
    "out of memory": "long_sequences",
    "gpu": "gpu",
    "flash attention": "gpu",
    "cite": "stability",
    "cache": "caches",
    "tfa.seq2seq": "tfa",
    "which words mattered": ("visualization", "imdb", "getting_started"),
}
FOUND = """() => document.querySelector(".md-search-result__item a")?.getAttribute("href")"""
in_a_browser = pytest.mark.skipif(not BROWSER, reason="opens the site in a browser, on request")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium")
        yield browser
        browser.close()


@in_a_browser
def test_no_page_or_table_of_the_site_is_cut_off(site, browser):
    pages = [page.relative_to(DOCS).with_suffix(".html") for page in sorted(DOCS.glob("**/*.md"))]
    found = {}
    for width in (1280, 390):
        view = browser.new_page(viewport={"width": width, "height": 900})
        for page in pages:
            view.goto((site / page).as_uri())
            if wide := view.evaluate(TOO_WIDE):
                found[width, str(page)] = wide
    assert not found


@in_a_browser
def test_the_search_box_finds_pages(site, browser):
    view = browser.new_page(viewport={"width": 1280, "height": 900})
    wrong = {}
    for words, pages in SEARCHED.items():
        view.goto((site / "index.html").as_uri())
        view.click("input.md-search__input")
        view.type("input.md-search__input", words)
        view.wait_for_selector(".md-search-result__item a")
        view.wait_for_timeout(500)  # The list changes until the last letter was searched for.
        first = Path(re.split("[?#]", view.evaluate(FOUND))[0]).stem
        if first not in ((pages,) if isinstance(pages, str) else pages):
            wrong[words] = first
    assert not wrong


def test_the_citation_is_of_this_version():
    version = keras_attention.__version__.partition(".dev")[0]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_every_architecture_of_hugging_face_is_in_the_table():
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| (`[\w-]+`.*?) \| \d\.\de-\d \|", page, re.MULTILINE)
    assert rows == [
        ", ".join(f"`{name}`" for name in names.split()) for names in FAMILIES.values()
    ], "see tests/convert/huggingface/table.py"
    assert sorted(" ".join(FAMILIES.values()).split()) == sorted(ARCHITECTURES)
