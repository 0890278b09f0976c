"""`stream`: the tokens of a search as they are drawn."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attention.core.hints import Tensor, Tensors
from keras_attention.generation.beam import Beams
from keras_attention.generation.generated import Generated
from keras_attention.generation.programs import compiled
from keras_attention.generation.sampling import Greedy, Sampling
from keras_attention.generation.search import Ends, Search, Step
from keras_attention.sequences import shapes

STRATEGIES: dict[str, type] = {"greedy": Greedy, "sample": Sampling, "beam_search": Beams}
# Settings of every function, which are no strategy's.
ENDS = ("stop_tokens", "pad_token", "constraints")


def chosen(method: str, max_tokens: int | Tensor, settings: dict[str, Any]) -> tuple[Any, Ends]:
    """The strategy and the `Ends` of a method's name and the settings of its function."""
    shapes.check_choice("method", method, tuple(STRATEGIES))
    own = {name: x for name, x in settings.items() if name not in ENDS}
    known = inspect.signature(STRATEGIES[method]).parameters
    if unknown := sorted(own.keys() - known):
        raise TypeError(
            f"Settings of method={method!r} are {[*known, *ENDS]}. Received also: {unknown}"
        )
    ends = Ends(max_tokens, **{name: x for name, x in settings.items() if name in ENDS})
    return STRATEGIES[method](**own), ends


class Stream:
    """An iterator over the tokens of rows, which come as they are drawn.

    Each item is `(tokens, finished)`, arrays of NumPy (B,): the next token of each row, `pad_token`
    after its end, and whether the row has ended, with this token or before. It ends when all rows
    have. To stop it, stop asking.

    Attributes:
        result: the `Generated` of the tokens so far, the first items of the arrays that the
            function with all tokens at once returns, with their cache.

    >>> import keras
    >>> from keras_attention import generation
    >>> def step(tokens, cache):
    ...     return keras.ops.one_hot(tokens + 1, 9), cache
    >>> stream = generation.stream(step, [0], (), max_tokens=6)
    >>> [next(stream)[0].tolist() for _ in range(3)]
    [[1], [2], [3]]
    >>> stream.result.tokens.shape
    (1, 6)
    """

    def __init__(
        self,
        search: Search,
        begin: Callable[[], Any],
        go_on: Callable[..., Any],
        result: Callable[..., Generated],
        most: int,
        rows: int | None = None,
    ):
        self._search, self._begin, self._go_on, self._result = search, begin, go_on, result
        self._most, self._rows, self._items = most, rows, self._run()
        # Constants, and what is carried, once it has begun.
        self._loop: Any = None

    def _run(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        size, made, going = 1, 0, True
        while going and made < self._search.ends.max_tokens:
            if self._loop is None:
                self._loop = self._begin()
            constants, carried = self._loop
            # The first comes at once, and later ones are so many that their programs take longer
            # than what is between them.
            until = ops.convert_to_tensor(made + size, dtype="int32")
            carried = self._go_on(constants, carried, until)
            self._loop, size = (constants, carried), min(2 * size, self._most)
            written = keras.tree.map_structure(ops.convert_to_numpy, carried.chosen)
            if np.isnan(written.log_probs[:-1]).any():
                self.result  # Raises.  # noqa: B018
            count = int(carried.count)
            for at in range(made, count):
                ended = written.finished & (written.lengths <= at + 1)
                yield written.history[at][: self._rows], ended[: self._rows]
            made, going = count, not written.finished.all()

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return self

    def __next__(self) -> tuple[np.ndarray, np.ndarray]:
        return next(self._items)

    @property
    def result(self) -> Generated:
        if self._loop is None:
            self._loop = self._begin()
        return self._result(*self._loop)


def stream(
    step: Step,
    tokens: Tensor,
    cache: Tensors,
    memory: Tensors | None = None,
    *,
    max_tokens: int | Tensor,
    method: str = "greedy",
    layer: keras.Layer | None = None,
    prompt: Tensor | None = None,
    chunk: int = 8,
    **settings: Any,
) -> Stream:
    """The tokens of `greedy` or `sample` as they are drawn: the same ones, one after the other.

    Args:
        step, tokens, cache, memory, max_tokens, prompt: as in `greedy`.
        method: "greedy" or "sample".
        layer: the built `keras.Layer`, or model, that `step` calls, as in `compiled`: the first
            token, and several steps at a time after it, are one program. Without it steps run one
            by one, outside of programs.
        chunk: how many steps at most are made at a time. Tokens of one chunk come together.
        **settings: those of `greedy` or `sample`.

    Returns:
        A `Stream`, an iterator of `(tokens, finished)`, arrays (B,), whose attribute `result` is
        the `Generated` so far.

    Raises:
        ValueError, TypeError: as `greedy` or `sample`, some of them when the first token is asked
            for; or `method` is another.

    >>> import keras
    >>> from keras_attention import generation
    >>> table = keras.ops.roll(keras.ops.eye(4), 1, axis=1)  # 1 comes after 0, and so on
    >>> def step(tokens, cache):
    ...     return keras.ops.take(table, tokens, axis=0), cache
    >>> for tokens, finished in generation.stream(
    ...     step, [0, 2], (), max_tokens=9, stop_tokens=(3,)
    ... ):
    ...     print(tokens, finished)
    [1 3] [False  True]
    [2 0] [False  True]
    [3 0] [ True  True]
    """
    shapes.check_choice("method", method, ("greedy", "sample"))
    search = Search(*chosen(method, max_tokens, settings), step)
    chunk = shapes.check_count("chunk", chunk)
    arrays = search.arrays(tokens, cache, memory, prompt)
    loop = search.begin, functools.partial(search.go_on, by_steps=layer is None), search.result
    begin, on, result = loop if layer is None else (compiled(x, layer) for x in loop)
    return Stream(search, functools.partial(begin, arrays), on, result, chunk)
