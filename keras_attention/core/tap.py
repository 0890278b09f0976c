"""Listeners to attention: told the weights of the calls of layers, which they may scale."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class _State(threading.local):
    # No context variable, which PyTorch's compiler cannot read.
    listeners: tuple[Listener, ...] = ()


# The listeners to this thread.
state = _State()


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
    outer, state.listeners = state.listeners, (*state.listeners, listener)
    try:
        yield
    finally:
        state.listeners = outer


def of(layer: Any) -> list[Listener]:
    """Who listens to a layer."""
    return [x for x in state.listeners if x.hears(layer)]
