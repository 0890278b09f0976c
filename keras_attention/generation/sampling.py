"""`greedy` and `sample`: one token per row and step, the most likely one or one that is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence

from keras import ops

from keras_attention.backend import backend
from keras_attention.core.hints import Seed, Tensor, Tensors
from keras_attention.generation.constraints import NO_TOKEN, Constraints, penalized
from keras_attention.generation.loop import Generated, Step, Steps, generate
from keras_attention.sequences import shapes


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


# Logits this far below the best have a probability of 0 in float32.
LOWEST = -104.0


def sample(
    step: Step,
    tokens: Tensor,
    cache: Tensors,
    memory: Tensors | None = None,
    *,
    max_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: Seed = None,
    stop_tokens: Sequence[int] = (),
    pad_token: int = 0,
    constraints: Constraints | None = None,
    prompt: Tensor | None = None,
) -> Generated:
    r"""Tokens drawn from softmax(logits / temperature), optionally without unlikely ones.

    The steps, in this order, set removed tokens to −inf and renormalize the rest:

    1. `repetition_penalty` θ: the logit l of a token already generated in the row becomes
       l / θ if it is positive, and l · θ if not (Keskar et al. 2019, section 4.1, have
       l / θ, which makes a negative one more likely).
    2. `temperature` T: l / T.
    3. `top_k`: keeps the k most likely tokens (Fan et al. 2018, section 5.4).
    4. `top_p`: keeps the fewest most likely ones whose probabilities sum to at least p
       (Holtzman et al. 2020, section 3.1), and any that are as likely as the last of them.
    5. `min_p`: keeps those with at least min_p times the probability of the best (Nguyen et al.
       2024, section 3).

    The most likely token is always kept. `log_probabilities` and `scores` are those of the model's
    own distribution, softmax(logits), before these steps.

    Args:
        step, tokens, cache, memory, max_tokens, stop_tokens, pad_token, constraints, prompt: as in
            `greedy`. Constraints come before all steps above.
        temperature: above 0; below 1 sharpens. For the limit of 0 see `greedy`.
        top_k: None or the number of tokens to keep.
        top_p: None or the probability to keep, in (0, 1].
        min_p: None or a share of the best token's probability, in (0, 1].
        repetition_penalty: above 0; 1 for none. The prompt is not penalized; that of `constraints`
            penalizes it too.
        seed: an integer, with which the same call gives the same tokens, a
            `keras.random.SeedGenerator`, which advances from call to call, or None for Keras's own
            (not in a function compiled by JAX).

    Returns:
        `Generated(tokens, lengths, log_probabilities, scores)` of shapes (B, max_tokens), (B,),
        (B, max_tokens), (B,), as in `greedy`.

    Raises:
        ValueError, TypeError: an argument, or the result of `step`, is not as described; see
            `greedy` on NaN logits.

    >>> import keras
    >>> from keras_attention import generation
    >>> def step(tokens, cache):
    ...     return keras.ops.zeros((tokens.shape[0], 10)), cache
    >>> found = generation.sample(step, [0, 0], (), max_tokens=4, top_k=3, seed=1)
    >>> found.tokens.shape
    (2, 4)
    >>> int(keras.ops.max(found.tokens)) < 10
    True
    """
    steps = Steps(locals())
    shapes.check_positive("temperature", temperature)
    shapes.check_positive("repetition_penalty", repetition_penalty)
    shapes.check_optional_count("top_k", top_k)
    _check_share("top_p", top_p)
    _check_share("min_p", min_p)
    # All numbers of the loop at once, since none can be drawn inside it.
    numbers = backend.uniform((max_tokens, 2, steps.rows), seed)

    def choose(t, logits, history, lengths, numbers):
        if repetition_penalty != 1:
            written = ops.arange(max_tokens, dtype="int32") < lengths[:, None]
            text = ops.where(written, ops.transpose(history), NO_TOKEN)
            logits = penalized(logits, text, repetition_penalty)
        # The best is 0 first, so a small temperature cannot make two of them infinite.
        # And float32 has no much smaller divisor.
        logits = (logits - ops.max(logits, axis=-1, keepdims=True)) / max(temperature, 1e-30)
        candidates = None
        if top_k is not None:
            logits, candidates = ops.top_k(logits, min(top_k, logits.shape[-1]))
        least = LOWEST
        if top_p is not None and top_p < 1:
            least = _least_of_nucleus(logits, top_p)
        if min_p is not None:
            least = ops.maximum(least, math.log(min_p))
        masses = ops.where(logits >= least, ops.exp(logits), 0.0)
        index = _drawn(masses, ops.take(numbers, t, axis=0))
        if candidates is None:
            return index
        return ops.take_along_axis(candidates, index[:, None], axis=1)[:, 0]

    return generate(steps, choose, max_tokens, pad_token, numbers)


def _check_share(name, value):
    if value is not None and not (shapes.is_number(value) and 0 < value <= 1):
        raise ValueError(f"`{name}` must be None or a number in (0, 1]. Received: {name}={value!r}")


def _least_of_nucleus(logits, top_p):
    """The least logit of the smallest set of probability `top_p`, (B, 1), by bisection.

    Logits are relative to the best, at most 0. Sorting a vocabulary takes many times longer.
    """
    masses = ops.exp(logits)
    total = ops.sum(masses, axis=-1, keepdims=True)
    # The smaller part is summed: the rounding of the larger may exceed the smaller.
    small = shapes.is_number(top_p) and top_p < 0.5
    wanted, most = top_p * total, (1 - top_p) * total

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        summed = logits >= middle if small else logits < middle
        part = ops.sum(ops.where(summed, masses, 0.0), axis=-1, keepdims=True)
        enough = part >= wanted if small else part <= most
        return ops.where(enough, middle, low), ops.where(enough, high, middle)

    # 104 / 2³² is less than the difference of two probabilities in float32.
    best = ops.zeros_like(wanted)
    return ops.fori_loop(0, 32, halve, (best + LOWEST, best))[0]


def _drawn(masses, numbers):
    """Indices (B,), drawn in proportion to the masses (B, V) with two numbers per row.

    First one of about √V blocks, then an index within it: cumulative sums over all of V
    would take longer than the rest of a step.
    """
    size = masses.shape[-1]
    width = math.isqrt(size - 1) + 1
    count = -(-size // width)
    masses = ops.pad(masses, ((0, 0), (0, count * width - size)))
    blocks = ops.reshape(masses, (-1, count, width))
    block = _drawn_at_once(ops.sum(blocks, axis=-1), numbers[0])
    inside = ops.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return block * width + _drawn_at_once(inside, numbers[1])


def _drawn_at_once(masses, number):
    """Indices (B,) by one number in [0, 1) per row: where the cumulative mass exceeds it."""
    sums = ops.cumsum(masses, axis=-1)
    possible = masses > 0
    above = ops.logical_and(possible, sums > number[:, None] * sums[:, -1:])
    indices = ops.arange(masses.shape[-1], dtype="int32")[None]
    first = ops.min(ops.where(above, indices, masses.shape[-1]), axis=-1)
    # Rounding may leave none above; an index without mass must not be drawn even then.
    return ops.minimum(first, ops.max(ops.where(possible, indices, 0), axis=-1))
