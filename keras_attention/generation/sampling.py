"""`greedy` and `sample`: one token per row and step, the most likely one or one that is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from keras import ops

from keras_attention.backend import backend
from keras_attention.core.hints import Seed, Tensor, Tensors
from keras_attention.generation import random, rules
from keras_attention.generation.generated import Generated
from keras_attention.generation.rules import NONE, Penalty, Rule
from keras_attention.generation.search import (
    Ends,
    Search,
    Step,
    list_settings,
    normalized,
    text_of,
)
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
    constraints: Rule | Sequence[Rule] | None = None,
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
        max_tokens: the maximum number of tokens to generate, or integers (B,), one for each row.
        stop_tokens: a tuple of tokens, and of sequences of tokens as tuples, any of which ends its
            row where the generated tokens end with it.
        pad_token: fills rows after a stop token; need not be in the vocabulary.
        constraints: None, or rules: `Constraints`, which has forbidden and forced tokens and
            penalties, other rules such as `Penalty` and `LengthDecay` or your own `Rule`, or the
            sum or a list of several.
        prompt: (B, T) integers, the text before the first generated token, `tokens` being its last
            column, and −1 where a row has padding. Only `constraints` read it.

    Returns:
        `Generated(tokens, lengths, log_probabilities, scores, cache)` of shapes (B, max_tokens),
        (B,), (B, max_tokens), (B,). Log-probabilities are computed in float32. The result of a row
        does not depend on the others.

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
    ends = Ends(max_tokens, stop_tokens, pad_token, constraints)
    return Search(Greedy(), ends, step).found(tokens, cache, memory, prompt)


def sample(
    step: Step,
    tokens: Tensor,
    cache: Tensors,
    memory: Tensors | None = None,
    *,
    max_tokens: int | Tensor,
    stop_tokens: Sequence[int] = (),
    pad_token: int = 0,
    constraints: Rule | Sequence[Rule] | None = None,
    prompt: Tensor | None = None,
    **settings: Any,
) -> Generated:
    r"""Tokens drawn from softmax(logits / temperature), optionally without unlikely ones.

    The steps, in this order, set removed tokens to −inf and renormalize the rest:

    1. `repetition_penalty` θ: the logit l of a token already generated in the row becomes
       l / θ if it is positive, and l · θ if not (Keskar et al. 2019, section 4.1, have
       l / θ, which makes a negative one more likely).
    2. `temperature` T: l / T.
    3. `top_k`: keeps the k most likely tokens (Fan et al. 2018, section 5.4).
    4. `top_p`: keeps the fewest most likely ones whose probabilities sum to at least p
       (Holtzman et al. 2020, section 3.1), the first among equals.
    5. `min_p`: keeps those with at least min_p times the probability of the best (Nguyen et al.
       2024, section 3).
    6. `typical_p`: keeps the fewest whose probabilities sum to at least p, first those whose
       information −log p is nearest to its mean, the entropy (Meister et al. 2023, section 4).

    At least one token is always kept. `log_probabilities` and `scores` are those of the model's
    own distribution, softmax(logits), before these steps.

    Args:
        step, tokens, cache, memory, max_tokens, stop_tokens, pad_token, constraints, prompt: as in
            `greedy`. Constraints come before all steps above.
        temperature: above 0; below 1 sharpens. For the limit of 0 see `greedy`.
        top_k: None or the number of tokens to keep.
        top_p: None or the probability to keep, in (0, 1].
        min_p: None or a share of the best token's probability, in (0, 1].
        typical_p: None or the probability to keep, in (0, 1].
        repetition_penalty: above 0; 1 for none. The prompt is not penalized; that of `constraints`
            penalizes it too.
        seed: an integer, with which the same call gives the same tokens, a
            `keras.random.SeedGenerator`, which advances from call to call, or None for Keras's own
            (not in a function compiled by JAX). Integers (B,) are one seed for each row.

    `temperature`, `top_p`, `min_p` and `typical_p` may be numbers (B,), one for each row. The
    random numbers of a row depend on the seed, on its index (with one seed for all) and on how many
    tokens it has: not on other rows, nor on `max_tokens`. Texts of one seed are the same on all
    backends, as far as rounding lets them.

    Returns:
        A `Generated` of shapes (B, max_tokens), (B,), (B, max_tokens), (B,), as in `greedy`.

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
    ends = Ends(max_tokens, stop_tokens, pad_token, constraints)
    return Search(Sampling(**settings), ends, step).found(tokens, cache, memory, prompt)


def draw(
    logits: Tensor,
    temperature: float | Tensor = 1.0,
    top_k: int | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
    typical_p: float | Tensor | None = None,
    seed: Seed = None,
) -> Tensor:
    """One step of `sample`: tokens (B,) drawn from logits (B, V), for loops of your own.

    Args:
        logits: (B, V) floats; −inf is forbidden. A row of such alone gives its last token.
        temperature, top_k, top_p, min_p, typical_p, seed: as in `sample`. An integer `seed` gives
            the same tokens for the same logits: in a loop give another one in each step, or a
            `keras.random.SeedGenerator`.

    Returns:
        Tokens (B,) int32.

    Raises:
        ValueError: an argument is not as described.

    >>> import keras
    >>> from keras_attention import generation
    >>> tokens = generation.draw([[0.0, 9.0, 8.0], [5.0, 0.0, 0.0]], top_k=1, seed=0)
    >>> print(keras.ops.convert_to_numpy(tokens))
    [1 0]
    """
    logits = ops.cast(ops.convert_to_tensor(logits), "float32")
    shapes.check_rank("logits", logits, 2, "(batch, vocabulary)")
    strategy = Sampling(temperature, top_k, top_p, min_p, typical_p, seed=seed)
    constants = strategy.constants(strategy.settings(ops.shape(logits)[0]), 1)
    return strategy.choose(logits, constants, ops.zeros_like(logits[:, 0], dtype="int32"))


class Written(NamedTuple):
    """Texts of R rows, one of each: (R,) three times, and (max_tokens + 1, R) twice."""

    tokens: Any
    finished: Any
    lengths: Any
    history: Any
    log_probs: Any


class Greedy:
    """The strategy of `greedy`, and what `sample` shares with it: a row has one text."""

    # How many rows of the loop each row becomes; rules that a strategy has of its own; and what a
    # program of it depends on.
    copies = 1
    rules: tuple[Rule, ...] = ()
    form: Any = "greedy"

    def settings(self, rows):
        """Its settings as arrays, for so many rows."""
        return {}

    def constants(self, settings, max_tokens):
        """What steps read that they do not change, by name."""
        return {}

    def choose(self, logits, constants, lengths):
        """Tokens (R,) of rows that have so many already, (R,)."""
        # `argmax` is several times slower under XLA on CPUs, and `top_k` is slower too, and on
        # PyTorch not always the first of equals.
        last = logits.shape[-1] - 1
        best = logits >= ops.max(logits, axis=-1, keepdims=True)
        return ops.min(ops.where(best, ops.arange(last + 1, dtype="int32"), last), axis=-1)

    # The loop

    def begin(self, ends, tokens, limits, rows):
        return Written(
            tokens,
            limits <= 0,
            ops.zeros((rows,), dtype="int32"),
            ops.full((ends.max_tokens + 1, rows), ends.pad_token, dtype="int32"),
            ops.zeros((ends.max_tokens + 1, rows), dtype="float32"),
        )

    def going(self, constants, carried):
        return ops.logical_not(ops.all(carried.chosen.finished))

    def unfinished(self, carried):
        return ops.logical_not(carried.chosen.finished)

    def last(self, carried):
        return carried.chosen.tokens

    def advance(self, ends, constants, carried, logits):
        """Which rows are continued, None for each itself, states of rules, and the texts after."""
        chosen, active = carried.chosen, self.unfinished(carried)
        lengths, limits = chosen.lengths, constants["limits"]
        allowed, certain, text = logits, None, None
        if ends.rules or any(len(stop) > 1 for stop in ends.stops):
            given = lengths, limits, constants.get("prompt"), ends.stops
            text = text_of(ops.transpose(chosen.history), *given)
            allowed = rules.apply(ends.rules, logits, text, carried.states)
            certain = rules.forced(ends.rules, text, carried.states)
        new = ops.cast(self.choose(allowed, constants, lengths), "int32")
        logits, norm = normalized(logits)
        log_prob = (backend.take_last(logits, new[:, None]) - norm)[:, 0]
        stuck = norm[:, 0] == NONE
        if ends.rules:
            stuck = ops.logical_or(stuck, ops.max(allowed, axis=-1) == NONE)
        if certain is not None:
            known = ops.logical_not(ops.isnan(norm[:, 0]))
            log_prob = ops.where(ops.logical_and(certain, known), 0.0, log_prob)
        log_prob = ops.where(stuck, NONE, log_prob)
        ended = ops.logical_or(ends.stopping(text, new), lengths + 1 >= limits)
        ended = ops.logical_or(stuck, ended)
        going = ops.logical_and(active, ops.logical_not(stuck))
        # A row that has ended keeps stepping, with a token that is in the vocabulary.
        tokens = ops.where(going, new, chosen.tokens)
        after = Written(
            tokens,
            ops.logical_or(chosen.finished, ended),
            lengths + ops.cast(going, "int32"),
            write(chosen.history, lengths[:, None], going[:, None], new[:, None]),
            write(chosen.log_probs, lengths[:, None], active[:, None], log_prob[:, None]),
        )
        return None, ends.next_states(carried.states, tokens), after

    def result(self, ends, constants, carried):
        chosen = carried.chosen
        history, log_probs = (ops.transpose(x[:-1]) for x in chosen[3:])
        return Generated(history, chosen.lengths, log_probs, ops.sum(log_probs, axis=1))


def flat(array):
    """(R, N, …) as (R · N, …)."""
    return ops.reshape(array, (-1, *array.shape[2:]))


def write(history, places, here, values):
    """A history (T + 1, R) with values (R, N) at places (R, N), where these are `here`.

    Others are written into its last entry, which means nothing.
    """
    count = history.shape[0]
    at = ops.where(here, ops.minimum(places, count - 1), count - 1)
    row = ops.zeros_like(at) + ops.arange(ops.shape(at)[0], dtype="int32")[:, None]
    indices = ops.stack([flat(at), flat(row)], axis=1)
    return ops.scatter_update(history, indices, ops.cast(flat(values), history.dtype))


# Logits this far below the best have a probability of 0 in float32.
LOWEST = -104.0


class Sampling(Greedy):
    """The strategy of `sample`, whose settings it checks."""

    def __init__(
        self,
        temperature: float | Tensor | None = 1.0,
        top_k: int | None = None,
        top_p: float | Tensor | None = None,
        min_p: float | Tensor | None = None,
        typical_p: float | Tensor | None = None,
        repetition_penalty: float = 1.0,
        seed: Seed = None,
    ):
        shapes.check_positive("repetition_penalty", repetition_penalty)
        if repetition_penalty != 1:
            self.rules = (Penalty(repetition_penalty),)
        self.top_k, self.seed = shapes.check_optional_count("top_k", top_k), seed
        if not _is_of_rows(temperature):
            shapes.check_positive("temperature", temperature)
            temperature = None if temperature == 1 else temperature
        shares = {"top_p": top_p, "min_p": min_p, "typical_p": typical_p}
        for name, share in shares.items():
            _check_share(name, share)
        shares = {"temperature": temperature, **shares}
        # A share of 1 keeps all, but of the best token's probability.
        neutral = {"top_p": 1, "typical_p": 1}
        self.numbers = {
            name: x
            for name, x in shares.items()
            if x is not None and (_is_of_rows(x) or x != neutral.get(name))
        }
        self.form = "sample", self.top_k, tuple(self.numbers)

    def settings(self, rows):
        found = {}
        for name, value in self.numbers.items():
            value = ops.cast(ops.convert_to_tensor(value), "float32")
            if len(value.shape) == 1 and isinstance(rows, int):
                shapes.check_same(
                    f"Rows of `tokens` and of `{name}`", tokens=rows, given=value.shape[0]
                )
            found[name] = ops.broadcast_to(ops.reshape(value, (-1, 1)), (rows, 1))
        return found | dict(zip(("words", "rows"), random.streams(self.seed, rows), strict=True))

    def constants(self, settings, max_tokens):
        numbers = {name: settings[name] for name in self.numbers}
        # All numbers of the loop at once, which none can be drawn inside it more cheaply.
        return numbers | {"random": random.uniform(settings["words"], settings["rows"], max_tokens)}

    def choose(self, logits, constants, lengths):
        candidates = None
        # The best is 0 first, so a small temperature cannot make two of them infinite.
        logits = logits - ops.max(logits, axis=-1, keepdims=True)
        if "temperature" in constants:
            # Float32 has no much smaller divisor.
            logits = logits / ops.maximum(constants["temperature"], 1e-30)
        if self.top_k is not None:
            logits, candidates = ops.top_k(logits, min(self.top_k, logits.shape[-1]))
        masses = ops.where(logits >= LOWEST, ops.exp(logits), 0.0)
        if "top_p" in constants:
            masses = _fewest(logits, masses, constants["top_p"])
        if "min_p" in constants:
            masses = ops.where(logits >= ops.log(constants["min_p"]), masses, 0.0)
        if "typical_p" in constants:
            total = ops.sum(masses, axis=-1, keepdims=True)
            mean = ops.sum(ops.where(masses > 0, masses * logits, 0.0), axis=-1, keepdims=True)
            order = ops.where(masses > 0, -ops.abs(logits - mean / total), NONE)
            order = order - ops.max(order, axis=-1, keepdims=True)
            masses = _fewest(order, masses, constants["typical_p"])
        numbers = constants["random"]
        at = ops.minimum(lengths, numbers.shape[1] - 1)[:, None, None]
        numbers = ops.take_along_axis(numbers, ops.repeat(at, 2, axis=2), axis=1)[:, 0]
        index = _drawn(masses, numbers)
        if candidates is None:
            return index
        return ops.take_along_axis(candidates, index[:, None], axis=1)[:, 0]


list_settings(sample, Sampling)


def _is_of_rows(value):
    return shapes.is_array(value) or isinstance(value, (list, tuple))


def _check_share(name, value):
    if _is_of_rows(value):
        array = ops.convert_to_tensor(value)
        values = shapes.visible_values(array)
        inside = values is None or ((values > 0) & (values <= 1)).all()
        is_share = len(array.shape) == 1 and inside
    else:
        is_share = value is None or (shapes.is_number(value) and 0 < value <= 1)
    if not is_share:
        raise ValueError(
            f"`{name}` must be None or a number in (0, 1], or such numbers (B,). "
            f"Received: {name}={value!r}"
        )


def _fewest(order, masses, share):
    """The masses (B, V) of the fewest tokens that have a share (B, 1) of all; 0 for others.

    Those of the largest `order`, which is at most 0, come first, and the first among equals. By
    bisection: sorting a vocabulary takes many times longer.
    """
    total = ops.sum(masses, axis=-1, keepdims=True)
    # The smaller part is summed: the rounding of the larger may exceed the smaller.
    small = share < 0.5
    wanted, most = share * total, (1 - share) * total

    def part(bound):
        summed = ops.equal(order >= bound, small)
        return ops.sum(ops.where(summed, masses, 0.0), axis=-1, keepdims=True)

    def enough(part):
        return ops.where(small, part >= wanted, part <= most)

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        is_enough = enough(part(middle))
        return ops.where(is_enough, middle, low), ops.where(is_enough, high, middle)

    # 104 / 2³² is less than the difference of two probabilities in float32.
    best = ops.zeros_like(wanted)
    low, high = ops.fori_loop(0, 32, halve, (best + LOWEST, best))
    # Bisection never tried 0, which the best have.
    above = ops.logical_and(order >= high, high < 0)
    equal = ops.logical_and(ops.logical_and(order >= low, ops.logical_not(above)), masses > 0)
    count = ops.sum(ops.cast(equal, "float32"), axis=-1, keepdims=True)
    each = ops.sum(ops.where(equal, masses, 0.0), axis=-1, keepdims=True)
    each = ops.maximum(each, 1e-37) / ops.maximum(count, 1.0)
    kept = ops.sum(ops.where(above, masses, 0.0), axis=-1, keepdims=True)
    needed = ops.where(
        small, ops.ceil((wanted - kept) / each), count - ops.floor((most - part(low)) / each)
    )
    last = _place(equal, ops.clip(needed, 1.0, ops.maximum(count, 1.0)))
    first = ops.arange(order.shape[-1], dtype="int32") <= last
    return ops.where(ops.logical_or(above, ops.logical_and(equal, first)), masses, 0.0)


def _blocks(array):
    """(B, V) as about √V blocks of as many, (B, C, W), with zeros after the last.

    Cumulative sums over all of V would take longer than the rest of a step.
    """
    size = array.shape[-1]
    width = math.isqrt(size - 1) + 1
    count = -(-size // width)
    array = ops.pad(array, ((0, 0), (0, count * width - size)))
    return ops.reshape(array, (-1, count, width))


def _place(marked, number):
    """The index (B, 1) of the marked one of this number (B, 1), from 1, in each row."""
    blocks = _blocks(ops.cast(marked, "float32"))
    sums = ops.cumsum(ops.sum(blocks, axis=-1), axis=-1)
    block = ops.sum(ops.cast(sums < number, "int32"), axis=-1, keepdims=True)
    block = ops.minimum(block, blocks.shape[1] - 1)
    before = ops.take_along_axis(ops.pad(sums, ((0, 0), (1, 0))), block, axis=1)
    inside = ops.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0]
    inside = ops.cumsum(inside, axis=-1) < number - before
    return block * blocks.shape[2] + ops.sum(ops.cast(inside, "int32"), axis=-1, keepdims=True)


def _drawn(masses, numbers):
    """Indices (B,) in proportion to masses (B, V): by numbers (B, 2), of a block and within it."""
    blocks = _blocks(masses)
    block = _drawn_at_once(ops.sum(blocks, axis=-1), numbers[:, 0])
    inside = ops.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return block * blocks.shape[2] + _drawn_at_once(inside, numbers[:, 1])


def _drawn_at_once(masses, number):
    """Indices (B,) by one number in [0, 1) per row: where the cumulative mass exceeds it."""
    sums = ops.cumsum(masses, axis=-1)
    possible = masses > 0
    above = ops.logical_and(possible, sums > number[:, None] * sums[:, -1:])
    indices = ops.arange(masses.shape[-1], dtype="int32")[None]
    first = ops.min(ops.where(above, indices, masses.shape[-1]), axis=-1)
    # Rounding may leave none above; an index without mass must not be drawn even then.
    return ops.minimum(first, ops.max(ops.where(possible, indices, 0), axis=-1))
