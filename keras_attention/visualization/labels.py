"""Inputs of the figures: weights of layers and heads, and the words on both sides."""

import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

# Words, None in place of those that are padding; one list, or lists by the names of layers.
Words: TypeAlias = Iterable[str | bytes | None]
Tokens: TypeAlias = Words | Mapping[str, Words | None]

_SHOWN = str.maketrans("\n\r\t", "↵↵⇥")


class Layer(NamedTuple):
    """Weights (H, T, S) of a layer, and T and S words, or None without words."""

    name: str
    weights: np.ndarray
    queries: list | None
    keys: list | None
    # The share (H, T) of a query's weights that is on omitted keys, or None if none are.
    others: np.ndarray | None
    # Whether the queries are learned, and have no words.
    pools: bool


class Scores(dict):
    """Weights by the names of layers, of which an error lists all; 0.1.0's names are found too."""

    def __missing__(self, name):
        renamed = str(name).replace("context_attention", "cross_attention")
        if renamed in self:
            return self[renamed]
        raise KeyError(f"no layer {name!r} was called. Received scores of: {', '.join(self)}")


def read(scores, query_tokens=None, key_tokens=None):
    """The `Layer`s of the arguments of `plot_attention`, without positions whose word is None."""
    layers = []
    for name, weights in _named(scores).items():
        weights = _three_axes(name, weights)
        queries = _words("query_tokens", query_tokens, name)
        keys = _words("key_tokens", key_tokens, name)
        _, rows, columns = weights.shape
        if queries is not None and keys is None and len(queries) == columns:
            # Words that are not queries are the keys of learned queries.
            queries, keys = (queries if rows == columns else None), queries
        _check_count("query_tokens", queries, name, rows)
        _check_count("key_tokens", keys, name, columns)
        pools = queries is None and keys is not None and (rows == 1 or key_tokens is None)
        if queries is not None:
            weights = weights[:, _real(queries)]
        others = None
        if keys is not None and None in keys:
            total = np.abs(weights).sum(axis=-1, dtype="float64")
            weights = weights[..., _real(keys)]
            kept = np.abs(weights).sum(axis=-1, dtype="float64")
            others = 1 - np.divide(kept, total, out=np.ones_like(total), where=total > 0)
            others = np.clip(others, 0, 1)
        label = visible(name) if name else ""
        layers.append(Layer(label, weights, _shown(queries), _shown(keys), others, pools))
    return layers


def _real(words):
    return [index for index, word in enumerate(words) if word is not None]


def _named(scores):
    """Arrays by the names of their layers; one array has the name ""."""
    if isinstance(scores, Mapping):
        named = {str(name): weights for name, weights in scores.items()}
    elif isinstance(scores, (list, tuple)) and all(np.ndim(layer) > 2 for layer in scores):
        named = {f"layer {number}": layer for number, layer in enumerate(scores, 1)}
    else:
        named = {"": scores}
    if not named:
        raise ValueError(f"`scores` must have a layer at least. Received: {scores!r}")
    return named


def _three_axes(name, weights):
    """Weights (H, T, S) of (T, S), (H, T, S) or (1, H, T, S)."""
    of = f" of {name!r}" if name else ""
    weights = array(weights, of)
    if not 2 <= weights.ndim <= 4 or 0 in weights.shape:
        raise ValueError(
            f"`scores`{of} must be (queries, keys), (heads, queries, keys), or that with a batch "
            f"of one before it. Received: shape {weights.shape}"
        )
    if weights.ndim == 4 and len(weights) != 1:
        raise ValueError(
            f"A picture shows one row of a batch. Pass `weights[:1]` of each layer for the first, "
            f"or collect the scores of one row. Received: `scores`{of} of shape {weights.shape}"
        )
    weights = weights.reshape((-1, *weights.shape[-2:]))
    if not np.isfinite(weights).all():
        raise ValueError(
            f"`scores`{of} must be finite. Received: numbers from {weights.min()} to "
            f"{weights.max()}"
        )
    return weights


def array(weights, of, name="scores"):
    """Weights of any backend, on any device and in any dtype, in float32."""
    if hasattr(weights, "detach"):
        # From PyTorch, which has dtypes that NumPy lacks.
        weights = weights.detach().cpu().float()
    try:
        return np.asarray(weights).astype("float32")
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`{name}`{of} must be an array of numbers. Received: {type(weights).__name__}, "
            f"which is none: {error}"
        ) from error


def _words(argument, tokens, name):
    if isinstance(tokens, Mapping):
        former = name.replace("cross_attention", "context_attention")
        name = former if former in tokens and name not in tokens else name
        if name not in tokens:
            raise ValueError(
                f"`{argument}` by layer must name each layer of `scores`. Received no {name!r}"
            )
        tokens = tokens[name]
    if tokens is None:
        return None
    if isinstance(tokens, (str, bytes)):
        raise TypeError(f"`{argument}` must be a list of words. Received: {tokens!r}")
    # Words of TensorFlow are bytes.
    texts = (x.decode("utf-8", "replace") if isinstance(x, bytes) else x for x in tokens)
    return [None if text is None else str(text) for text in texts]


def _check_count(argument, tokens, name, count):
    if tokens is not None and (len(tokens) != count or not _real(tokens)):
        raise ValueError(
            f"`{argument}` must have a word for each of {count} positions, or None for padding, "
            "which is then left out. "
            f"Received: {len(_real(tokens))} words of {len(tokens)}"
            + (f" for {name!r}" if name else "")
        )


def _shown(words):
    return words and [visible(word) for word in words if word is not None]


def visible(word):
    r"""A word with invisible characters marked.

    Spaces at an end become ␣, line breaks ↵, other control characters, directional marks and
    lone surrogates their code, `\u202e`; an empty word becomes ∅.

    >>> visible(" the"), visible(""), visible("a\u202eb")
    ('␣the', '∅', 'a\\u202eb')
    """
    inner, start = word.strip(" "), len(word) - len(word.lstrip(" "))
    end = len(word) - len(inner) - start
    return "␣" * start + "".join(map(_visible, inner.translate(_SHOWN))) + "␣" * end or "∅"


def _visible(character):
    # Joiners are kept: Persian, Hindi and emoji sequences need them.
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp", "Cn")
    if hidden and character not in "\u200c\u200d":
        return f"\\u{ord(character):04x}"
    return character
