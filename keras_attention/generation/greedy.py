"""`greedy`: the most likely token, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from keras import ops

from keras_attention.generation.constraints import Constraints
from keras_attention.generation.loop import Generated, Step, Steps, generate
from keras_attention.hints import Tensor, Tensors


def greedy(
    step: Step,
    tokens: Tensor,
    cache: Tensors,
    memory: Tensors | None = None,
    *,
    max_tokens: int,
    stop_tokens: Sequence[int] = (),
    pad_token: int = 0,
    constraints: Constraints | None = None,
    prompt: Tensor | None = None,
) -> Generated:
    r"""The most likely token in each step, y_t = argmax_y p(y | y_<t); of equals, the first.

    One loop, which ends when every row has generated a stop token; sizes are fixed, so that it
    compiles to one program (see `compiled`).

    Args:
        step: `logits, cache = step(tokens, cache)`, or `step(tokens, cache, memory)` when `memory`
            is given: from the latest token of each row, (R,) int32, to the logits (R, V) of the
            next one, in any float dtype. The returned cache has the structure, shapes
            and dtypes of its input. It runs inside a loop: it must not draw
            random numbers or assign to variables. The logits of forbidden tokens are −inf.
            A row in which all are forbidden ends there, with a log-probability and a score of −inf.
        tokens: (B,) integers, the last given token of each row: a start token, or the last of the
            prompt, whose other tokens are already in the cache.
        cache: any nested structure of tensors, rows on axis 0, such as the caches of a Transformer
            or the states of a recurrent cell; `()` for none.
        memory: any nested structure of tensors, rows on axis 0, that no step changes, such as the
            output of an encoder.
        max_tokens: the maximum number of tokens to generate.
        stop_tokens: a tuple of tokens, any of which ends its row.
        pad_token: fills rows after a stop token; need not be in the vocabulary.
        constraints: None, or `Constraints`: forbidden and forced tokens, and penalties.
        prompt: (B, T) integers, the text before the first generated token, `tokens` being its last
            column, and −1 where a row has padding. Only `constraints` read it.

    Returns:
        `Generated(tokens, lengths, log_probabilities, scores)` of shapes (B, max_tokens), (B,),
        (B, max_tokens), (B,). Log-probabilities are computed in float32. The result of a row does
        not depend on the others.

    Raises:
        ValueError, TypeError: an argument, or the result of `step`, is not as described. NaN
            logits, as from a cache with too few entries, raise at the end, also in
            functions compiled by `compiled`; in other programs, the row's score is NaN.

    Example:

    >>> import keras
    >>> from keras_attention import generation
    >>> table = keras.ops.roll(keras.ops.eye(4), 1, axis=1)  # 1 comes after 0, and so on
    >>> def step(tokens, cache):
    ...     return keras.ops.take(table, tokens, axis=0), cache
    >>> found = generation.greedy(step, [0, 2], (), max_tokens=5, stop_tokens=(3,))
    >>> print(keras.ops.convert_to_numpy(found.tokens))
    [[1 2 3 0 0]
     [3 0 0 0 0]]
    >>> print(keras.ops.convert_to_numpy(found.lengths))
    [3 1]
    """
    return generate(Steps(locals()), _best, max_tokens, pad_token)


def _best(t, logits, history, lengths):
    # `argmax` is several times slower under XLA on CPUs, and `top_k` is slower too, and on
    # PyTorch not always the first of equals.
    last = logits.shape[-1] - 1
    best = logits >= ops.max(logits, axis=-1, keepdims=True)
    return ops.min(ops.where(best, ops.arange(last + 1, dtype="int32"), last), axis=-1)
