"""The table of `docs/models.md`, from what the tests of this folder measure on each backend.

    KERAS_BACKEND=jax python -m pytest tests/convert/huggingface -m "" --junitxml=jax.xml
    python -m tests.convert.huggingface.table tensorflow.xml jax.xml torch.xml

Each cell is of tests that passed: the largest of their figures, for each file unless all are equal.
"""

import sys
from xml.etree import ElementTree

from keras_attention.convert.huggingface.architectures import ARCHITECTURES

# Figures of tests, and what heads them.
COLUMNS = {
    "states": "states",
    "logits": "logits",
    "tokens": "greedy tokens",
    "beams": "beams",
    "saved": "`.keras`",
    "back": "written back",
}


def figures(path):
    """Of each architecture and column, the largest figure in a file of JUnit."""
    root = ElementTree.parse(path).getroot()
    failed = [case for kind in ("failure", "error") for case in root.iter(kind)]
    if failed:
        raise SystemExit(f"{path}: {len(failed)} tests failed")
    found = {}
    for given in root.iter("property"):
        key = tuple(given.get("name").split())
        found[key] = max(float(given.get("value")), found.get(key, 0.0))
    return found


def cell(values):
    """The figures of the files."""
    texts = ["–" if x is None else _text(x) for x in values]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def _text(figure):
    return f"{figure:.0f}" if figure == int(figure) else f"{figure:.1e}".replace("e-0", "e-")


def table(paths):
    """The lines of the table."""
    measured = [figures(path) for path in paths]
    yield "| `model_type` | " + " | ".join(COLUMNS.values()) + " |"
    yield "| --- |" + " --- |" * len(COLUMNS)
    for kind in ARCHITECTURES:
        cells = [cell([found.get((kind, column)) for found in measured]) for column in COLUMNS]
        yield f"| `{kind}` | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print("\n".join(table(sys.argv[1:])))
