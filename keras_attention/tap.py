"""Listeners to attention: told the weights of the calls of layers, which they may scale."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

# The listeners to this thread. No context variable, which PyTorch's compiler cannot read.
_state = threading.local()


class Listener:
    """Is told the weights of the calls of some layers of its thread, and may scale them.

    Args:
        names: those of the layers, by their `id`.
        add: a function of the name of a layer and of its weights.
        factor: a function of the name of a layer, whose result is that of the method.
    """

    def __init__(self, names, add, factor):
        self._names, self._add, self._factor = names, add, factor

    def hears(self, layer: Any) -> bool:
        """Whether it wants the weights of a layer, which may be slower to compute with them."""
        return id(layer) in self._names

    def factor(self, layer: Any) -> Any:
        """What the weights (B, H, T, S) of the next call of a layer are multiplied by, or None."""
        return self._factor(self._names[id(layer)])

    def heard(self, layer: Any, scores: Any) -> None:
        """Takes the weights of a call before dropout, as `return_attention_scores` returns them."""
        self._add(self._names[id(layer)], scores)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """A scope in which a `Listener` is told what this thread calls."""
    outer = getattr(_state, "listeners", ())
    _state.listeners = (*outer, listener)
    try:
        yield
    finally:
        _state.listeners = outer


def listens() -> bool:
    """Whether anybody listens to this thread."""
    return bool(getattr(_state, "listeners", ()))


def of(layer: Any) -> list[Listener]:
    """Who listens to a layer; a list that is empty nearly always."""
    listeners = getattr(_state, "listeners", ())
    return [x for x in listeners if x.hears(layer)] if listeners else []
