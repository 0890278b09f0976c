"""`attention_html`: weights as one HTML file.

`page.html`, `page.css` and `page.js` are its source. Here they become one file, with the weights in
it.
"""

import base64
import hashlib
import html
import importlib.resources
import json
import os
import pathlib
import re
import zlib

import numpy as np

from keras_attention.core.hints import Tensors
from keras_attention.visualization import labels

# Up to this many weights are stored in 16 bits each, more in 8.
FINE = 1_000_000


def attention_html(
    scores: Tensors,
    query_tokens: labels.Tokens | None,
    key_tokens: labels.Tokens | None = None,
    path: str | os.PathLike[str] | None = None,
    title: str = "Attention",
) -> str:
    """Creates a page on which readers choose a layer, a head and a word to see what it attends to.

    The page is one file, needs no network, and opens in any browser of 2023 or later. It shows the
    words on both sides and the weights between them, for each head and for the mean of all; which
    words a word attends to, and which attend to it; all pairs as a heat map; the largest weights of
    the chosen word as a table. It supports the mouse, the keyboard, screen readers, phones, dark
    mode and printing.

    Args:
        scores: weights of one head (T, S), or heads (H, T, S); or several layers of these, as a
            list or by name, as `collect_attention` returns them, optionally with a batch axis of 1.
            Contributions, gradients and the weights of a `DifferentialAttention` may be negative:
            those have a color of their own.
        query_tokens: T words. None instead of a word marks padding, which is omitted;
            the page shows how much of a word's weight is on omitted positions. If layers have
            different words, a dict of such lists by the names of the layers. None for no words:
            numbers replace them.
        key_tokens: S words, likewise; None for self-attention. A pooling layer
            needs only these, or only `query_tokens`: its queries are learned, and have no words.
        path: a file to write, or None.
        title: of the page.

    Returns:
        The HTML of the page. Words and title are shown as text, whatever they contain, and
        invisible characters in words are marked. Weights are rounded to 16 bits, relative to the
        largest of their row, so that the four digits shown are accurate to one in the last; more
        than a million weights to 8 bits, with an error of up to 0.2% of the largest of the row.

    Raises:
        ValueError, TypeError: `scores` do not have that shape, or the number of words differs.

    >>> import numpy as np
    >>> from keras_attention.visualization import attention_html
    >>> scores = np.array([[[0.9, 0.1], [0.4, 0.6]], [[0.5, 0.5], [0.0, 1.0]]])  # two heads
    >>> page = attention_html(scores, ["hello", "world"], path="attention.html")
    >>> page.startswith("<!doctype html>")
    True
    """
    layers = labels.read(scores, query_tokens, key_tokens)
    signed = any(layer.weights.min() < 0 for layer in layers)
    size = 2 if sum(layer.weights.size for layer in layers) <= FINE else 1
    kind = f"<{'i' if signed else 'u'}{size}"
    texts: list[list[str]] = []
    described, weights = [], []
    for number, layer in enumerate(layers):
        heads, queries, keys = layer.weights.shape
        described.append(
            {
                "name": layer.name,
                "heads": heads,
                "queries": _index(texts, layer.queries or _numbers(queries, layer.pools)),
                "keys": _index(texts, layer.keys or _numbers(keys)),
                "pools": layer.pools,
                # Whether a key is seen by those from its position on, among which its mean is.
                "causal": queries == keys > 1 and not np.triu(layer.weights, 1).any(),
                "others": None if layer.others is None else layer.others.round(4).tolist(),
            }
        )
        for head, table in enumerate(layer.weights):
            name = f"weights-{number}-{head}"
            weights.append(f'<script type="text/plain" id="{name}">{_packed(table, kind)}</script>')
    data = {
        "title": str(title),
        "layers": described,
        "texts": texts,
        "levels": int(np.iinfo(kind).max),
    }
    parts = {"style": _source("page.css"), "script": _source("page.js")}
    parts |= {f"{name}_hash": _hash(source) for name, source in parts.items()}
    parts |= {
        "title": html.escape(labels.visible(str(title))),
        # ASCII, and no "<" that could end the element.
        "data": json.dumps(data).replace("<", "\\u003c"),
        "weights": "\n".join(weights),
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match.group(1)], _source("page.html"))
    if path is not None:
        pathlib.Path(path).write_text(page, encoding="utf-8", newline="\n")
    return page


def _index(texts, text):
    """The index of `text` in `texts`, appended if missing."""
    if text not in texts:
        texts.append(text)
    return texts.index(text)


def _numbers(count, learned=False):
    """Names for positions without words."""
    if learned and count == 1:
        return ["learned query"]
    return [f"query {number}" if learned else str(number) for number in range(1, count + 1)]


def _packed(table, kind):
    """Weights (T, S): the largest of each row, and all relative to it, compressed, in base64."""
    largest = np.abs(table).max(axis=1, keepdims=True)
    shares = table / np.where(largest > 0, largest, 1)
    levels = np.rint(shares * np.iinfo(kind).max).astype(kind)
    packed = zlib.compress(largest.astype("<f4").tobytes() + levels.tobytes())
    return base64.b64encode(packed).decode("ascii")


def _source(name):
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(source):
    """The hash that identifies the style or the script of a page in its Content-Security-Policy."""
    return base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode("ascii")
