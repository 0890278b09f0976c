"""Listeners to attention: told the weights of the calls of layers, which they may scale."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

_state = threading.local()


class Listener:
    """Is told the weights of the calls of attention layers of its thread, while it listens."""

    def hears(self, layer: Any) -> bool:
        """Whether it wants the weights of a layer, which may be slower to compute with them."""
        return True

    def factor(self, layer: Any) -> Any:
        """What the weights (B, H, T, S) of the next call of a layer are multiplied by, or None."""
        return None

    def heard(self, layer: Any, scores: Any) -> None:
        """Takes the weights of a call before dropout, as `return_attention_scores` returns them."""


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """A scope in which a `Listener` is told what this thread calls."""
    outer = _listeners()
    _state.listeners = (*outer, listener)
    try:
        yield
    finally:
        _state.listeners = outer


def _listeners():
    return getattr(_state, "listeners", ())


def listens() -> bool:
    """Whether anybody listens to this thread."""
    return bool(_listeners())


def of(layer: Any) -> list[Listener]:
    """Who listens to a layer; a list that is empty nearly always."""
    found = getattr(_state, "listeners", ())
    return [x for x in found if x.hears(layer)] if found else []
