"""`sample`: tokens drawn from the model's distribution, sharpened and cut in several ways."""

from __future__ import annotations

import math
from collections.abc import Sequence

import keras

from keras_attention import shapes
from keras_attention.backend import backend
from keras_attention.generation.one_by_one import generate
from keras_attention.generation.results import Generated
from keras_attention.generation.steps import Step, Steps
from keras_attention.hints import Seed, Tensor, Tensors

ops = keras.ops

# Logits that far below the best have a probability of 0 in float32.
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
) -> Generated:
    r"""Tokens drawn from softmax(logits / temperature), of which unlikely ones may be cut.

    In this order, with what is cut at −inf and the rest brought to a sum of 1 again:

    1. `repetition_penalty` θ: the logit l of a token that the row has generated already becomes
       l / θ where it is positive, and l · θ where not (Keskar et al. 2019, section 4.1, where it
       is l / θ; a negative one would become more likely).
    2. `temperature` T: l / T.
    3. `top_k`: the k most likely tokens stay (Fan et al. 2018, section 5.4).
    4. `top_p`: of these, the fewest most likely ones whose probabilities sum to p at least
       (Holtzman et al. 2020, section 3.1), and any that are as likely as the last of them.
    5. `min_p`: those with at least min_p times the probability of the best (Nguyen et al. 2024,
       section 3).

    The most likely token always stays. `log_probabilities` and `scores` are those of the model's
    own distribution, softmax(logits), before all of this.

    Args:
        step, tokens, cache, memory, max_tokens, stop_tokens, pad_token: as in `greedy`.
        temperature: above 0; below 1 sharpens. For the limit of 0 see `greedy`.
        top_k: None or how many tokens stay.
        top_p: None or the probability that stays, in (0, 1].
        min_p: None or a share of the best token's probability, in (0, 1].
        repetition_penalty: above 0; 1 for none. Tokens given count as not generated.
        seed: an integer, with which the same call gives the same tokens again, a
            `keras.random.SeedGenerator`, which goes on from call to call, or None for Keras's own
            (not in a function compiled by JAX).

    Returns:
        `Generated(tokens, lengths, log_probabilities, scores)` of shapes (B, max_tokens), (B,),
        (B, max_tokens), (B,), as `greedy`.

    Raises:
        ValueError, TypeError: an argument, or what `step` returns, is not as described; see
            `greedy` on logits that are NaN.

    Example:

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
    steps = Steps(
        step,
        tokens,
        cache,
        memory,
        max_tokens=max_tokens,
        stop_tokens=stop_tokens,
        pad_token=pad_token,
    )
    shapes.check_number("temperature", temperature, above=0)
    shapes.check_number("repetition_penalty", repetition_penalty, above=0)
    if top_k is not None:
        shapes.check_count("top_k", top_k)
    _check_share("top_p", top_p)
    _check_share("min_p", min_p)
    # All that the loop needs at once: inside of it, nothing can be drawn.
    numbers = backend.uniform((max_tokens, 2, steps.rows), seed)

    def choose(t, logits, history, lengths):
        if repetition_penalty != 1:
            logits = _penalized(logits, history, lengths, repetition_penalty)
        # The best first at 0: a small temperature can then not make two of them infinite.
        # And float32 has nothing much smaller to divide by.
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
        place = _drawn(masses, ops.take(numbers, t, axis=0))
        return place if candidates is None else _element(candidates, place)

    return generate(steps, choose, max_tokens, pad_token)


def _check_share(name, value):
    if value is not None and not (shapes.is_number(value) and 0 < value <= 1):
        raise ValueError(f"`{name}` must be None or a number in (0, 1]. Received: {name}={value!r}")


def _penalized(logits, history, lengths, penalty):
    """Logits of the tokens that each row has generated, made less likely."""
    rows, steps = ops.shape(logits)[0], history.shape[0]
    written = ops.arange(steps, dtype="int32")[None] < lengths[:, None]
    # What is not written may be padding that is no token.
    token = ops.where(written, ops.transpose(history), 0)
    row = ops.broadcast_to(ops.arange(rows, dtype="int32")[:, None], ops.shape(token))
    pairs = ops.reshape(ops.stack([row, token], axis=-1), (-1, 2))
    times = ops.scatter(pairs, ops.reshape(ops.cast(written, "float32"), (-1,)), ops.shape(logits))
    changed = ops.where(logits > 0, logits / penalty, logits * penalty)
    return ops.where(times > 0, changed, logits)


def _least_of_nucleus(logits, top_p):
    """The least logit of the smallest set of probability `top_p`, (B, 1), by bisection.

    Logits are relative to the best, at most 0. Sorting a vocabulary takes many times longer.
    """
    masses = ops.exp(logits)
    wanted = top_p * ops.sum(masses, axis=-1, keepdims=True)

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        inside = ops.sum(ops.where(logits >= middle, masses, 0.0), axis=-1, keepdims=True)
        enough = inside >= wanted
        return ops.where(enough, middle, low), ops.where(enough, high, middle)

    # 104 / 2³² is less than what sets two probabilities of float32 apart.
    best = ops.zeros_like(wanted)
    return ops.fori_loop(0, 32, halve, (best + LOWEST, best))[0]


def _drawn(masses, numbers):
    """Places (B,), each as likely as its share of the masses (B, V); two numbers for each row.

    First one of about √V blocks, then one of its places: sums over all of V, one for each place,
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
    """Places (B,) by one number in [0, 1) for each row: where the sum of masses exceeds it."""
    sums = ops.cumsum(masses, axis=-1)
    possible = masses > 0
    above = ops.logical_and(possible, sums > number[:, None] * sums[:, -1:])
    places = ops.arange(masses.shape[-1], dtype="int32")[None]
    first = ops.min(ops.where(above, places, masses.shape[-1]), axis=-1)
    # Rounding may leave none above; a place without mass must not be drawn even then.
    return ops.minimum(first, ops.max(ops.where(possible, places, 0), axis=-1))


def _element(rows, place):
    return ops.take_along_axis(rows, place[:, None], axis=1)[:, 0]
