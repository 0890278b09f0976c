"""`beam_search`: the most likely of many parallel hypotheses."""

from __future__ import annotations

import typing
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_attention.backend import backend
from keras_attention.core.hints import Tensor, Tensors
from keras_attention.generation.constraints import NONE, Constraints
from keras_attention.generation.loop import Generated, Step, Steps, check_found, normalized
from keras_attention.sequences import shapes


def beam_search(
    step: Step,
    tokens: Tensor,
    cache: Tensors,
    memory: Tensors | None = None,
    *,
    num_beams: int,
    max_tokens: int,
    length_penalty: float = 0.6,
    length_rule: str = "wu",
    stopping: str = "exact",
    num_return: int | None = 1,
    stop_tokens: Sequence[int] = (),
    pad_token: int = 0,
    constraints: Constraints | None = None,
    prompt: Tensor | None = None,
) -> Generated:
    r"""The hypotheses with the best scores that beam search finds, best first.

    The score of a hypothesis y of |y| tokens, stop token included, is (Wu et al. 2016,
    equation 14, without coverage)

        s(y) = Σ_t log p(y_t | y_<t) / lp(|y|),    lp(n) = ((5 + n) / 6)^α

    or, with `length_rule="power"`, lp(n) = n^α (that of `transformers`).

    In each step, the continuations of all live beams are ranked by their sums. Those among the
    first `num_beams` that end with a stop token are finished and compete by their scores to be
    returned; the first `num_beams` that do not are the live beams of the next step. Beams still
    live after `max_tokens` compete as they are.

    A row is done when no live beam can beat its worst stored hypothesis. Sums only fall and lp
    only grows, so a live beam's score will be at most its sum / lp(max_tokens): stopping there
    changes no result (unless a positive `sequence_bias` raises sums). `stopping` has ways to be
    done earlier, which change results. Properties:

    - With as many beams as there are continuations in any step (V^max_tokens always suffices), it
      is exhaustive search.
    - With `num_beams=1, length_penalty=0`, it is `greedy`.
    - `num_return` changes how many hypotheses are returned, not their order.

    Args:
        step: as in `greedy`, on R = B · `num_beams` rows, the beams of a row being adjacent.
        tokens, max_tokens, stop_tokens, pad_token, constraints, prompt: as in `greedy`.
        cache: as in `greedy`, with B rows. Beams start with copies of a row, and after each step
            get the rows of the beams that they continue.
        memory: as in `greedy`, with B rows, which are repeated once and never reordered.
        num_beams: number of live beams per row.
        length_penalty: α of at least 0; 0 compares sums, which favors short hypotheses. 0.6 is
            the value of Vaswani et al. (2017, section 6.1).
        length_rule: "wu" or "power", the function lp.
        stopping: "exact", as above; "first", when a row has `num_beams` finished hypotheses; or
            "estimate", when the best live beam, were it finished now, would not beat the worst of
            these. In `transformers` they are `early_stopping="never"`, `True` and `False`.
        num_return: N, the number of hypotheses to return per row, at most `num_beams`; or None for
            the best one in the shapes of `greedy`, without an axis of hypotheses.

    Returns:
        `Generated(tokens, lengths, log_probabilities, scores)` of shapes (B, N, max_tokens),
        (B, N), (B, N, max_tokens), (B, N), best first; with `num_return=None`, of shapes
        (B, max_tokens), (B,), (B, max_tokens), (B,). Scores are s(y). If fewer than N hypotheses
        are possible, the rest is empty, with a score of −inf.

    Raises:
        ValueError, TypeError: an argument, or the result of `step`, is not as described; see
            `greedy` on NaN logits.

    >>> import keras
    >>> from keras_attention import generation
    >>> table = keras.ops.log([[0.1, 0.5, 0.4], [0.3, 0.4, 0.3], [0.9, 0.05, 0.05]])
    >>> def step(tokens, cache):
    ...     return keras.ops.take(table, tokens, axis=0), cache
    >>> found = generation.beam_search(step, [0], (), num_beams=2, max_tokens=2, length_penalty=0)
    >>> print(keras.ops.convert_to_numpy(found.tokens))  # 0.4 · 0.9, where greedy finds 0.5 · 0.4
    [[[2 0]]]
    """
    given = locals()
    shapes.check_count("num_beams", num_beams)
    alone = num_return is None
    num_return = 1 if num_return is None else num_return
    shapes.check_count("num_return", num_return)
    if num_return > num_beams:
        raise ValueError(
            "`num_return` must be at most `num_beams`. "
            f"Received: num_return={num_return}, num_beams={num_beams}"
        )
    shapes.check_number("length_penalty", length_penalty, minimum=0)
    shapes.check_choice("length_rule", length_rule, ("wu", "power"))
    shapes.check_choice("stopping", stopping, ("exact", "first", "estimate"))
    # The exact bound holds for the hypotheses that are returned, the others for all beams.
    stored = num_return if stopping == "exact" else num_beams
    steps = Steps(given, copies=num_beams)
    # Rounded identically everywhere, so that a score can equal its bound, and never exceed it.
    lengths = np.arange(max_tokens + 1.0)
    bases = (5 + lengths) / 6 if length_rule == "wu" else np.maximum(lengths, 1)
    with np.errstate(over="ignore"):
        penalties = (bases**length_penalty).astype("float32")
    if not np.isfinite(penalties).all():
        raise ValueError(
            "`length_penalty` must be a number whose lp(`max_tokens`), as `length_rule` defines "
            f"it, is finite. Received: length_penalty={length_penalty}, max_tokens={max_tokens}"
        )
    penalties = penalties.tolist()
    candidates = num_beams * (1 + len(steps.stop_tokens))

    def penalty(n):
        return ops.take(ops.convert_to_tensor(penalties, dtype="float32"), n)

    def undone(t, live, finished):
        """Which rows have a live beam that may beat a finished one, (B,)."""
        best, worst = live.scores[:, 0], finished.scores[:, -1]
        if stopping == "first":
            return ops.logical_and(best > NONE, worst == NONE)
        return best / (penalties[-1] if stopping == "exact" else penalty(t)) > worst

    def undecided(t, tokens, leaves, live, finished, going, lost):
        return ops.logical_and(t < max_tokens, ops.any(going))

    def advance(constants, t, tokens, leaves, live, finished, going, lost):
        memory, prompt = constants
        logits, leaves = steps(ops.reshape(tokens, (-1,)), leaves, memory)
        log_probs, unknown = _log_probs(t, logits, live, steps.rules, prompt)
        # The live beams of a row that is done change nothing.
        lost = ops.logical_or(lost, ops.logical_and(unknown, going))
        live, parents, tokens = _continued(live, t, log_probs, candidates)
        if steps.stop_tokens:
            stops = steps.stops(tokens)
            ends = ops.logical_and(stops, ops.arange(tokens.shape[1]) < num_beams)
            ends = ops.logical_and(ends, going[:, None])
            scores = ops.where(ends, live.scores / penalty(t + 1), NONE)
            finished = _best(finished, live._replace(scores=scores), stored)
            _, indices = ops.top_k(ops.where(stops, NONE, live.scores), num_beams)
            stops, parents, tokens, *live = _at((stops, parents, tokens, *live), indices)
            live = _Beams(*live)
            # With a small vocabulary there may be fewer continuations than beams.
            live = live._replace(scores=ops.where(stops, NONE, live.scores))
        rows = ops.reshape(_flat(parents, num_beams), (-1,))
        leaves = tuple(ops.take(leaf, rows, axis=0) for leaf in leaves)
        # After the last step live beams compete in the rows that were not done before it.
        goes_on = ops.logical_or(t + 1 == max_tokens, undone(t + 1, live, finished))
        going = ops.logical_and(going, goes_on)
        return t + 1, tokens, leaves, live, finished, going, lost

    # All beams of a row start alike, so only the first of them counts.
    first = ops.where(ops.arange(num_beams) == 0, 0.0, NONE)
    live = _empty(steps.rows, num_beams, max_tokens, pad_token)
    start = (
        ops.convert_to_tensor(0, dtype="int32"),
        ops.repeat(ops.expand_dims(steps.tokens, -1), num_beams, axis=1),
        steps.leaves,
        live._replace(scores=ops.broadcast_to(first, (steps.rows, num_beams))),
        _empty(steps.rows, stored, max_tokens, pad_token),
        ops.ones((steps.rows,), dtype="bool"),
        ops.zeros((steps.rows,), dtype="bool"),
    )
    constants = (steps.memory, steps.prompt)
    *_, live, finished, going, lost = backend.while_loop(undecided, advance, start, constants)

    # Live beams of the other rows are incomplete hypotheses, or of no interest any more.
    scores = ops.where(going[:, None], live.scores / penalties[-1], NONE)
    found = _best(finished, live._replace(scores=scores), num_return)
    none = found.scores == NONE
    scores = ops.where(lost[:, None], float("nan"), found.scores)
    check_found(scores)
    found = Generated(
        ops.where(none[..., None], pad_token, found.tokens),
        ops.where(none, 0, found.lengths),
        ops.where(none[..., None], 0.0, found.log_probs),
        scores,
    )
    return Generated(*(array[:, 0] for array in found)) if alone else found


class _Beams(typing.NamedTuple):
    """N hypotheses in each row: (B, N), (B, N), (B, N, max_tokens), (B, N, max_tokens)."""

    # Sums of log-probabilities, divided by lp once finished.
    scores: typing.Any
    lengths: typing.Any
    tokens: typing.Any
    log_probs: typing.Any


def _empty(rows, count, max_tokens, pad_token):
    return _Beams(
        ops.full((rows, count), NONE, dtype="float32"),
        ops.zeros((rows, count), dtype="int32"),
        ops.full((rows, count, max_tokens), pad_token, dtype="int32"),
        ops.zeros((rows, count, max_tokens), dtype="float32"),
    )


def _log_probs(t, logits, live, rules, prompt):
    """Log-probabilities (B, N, V), −inf if impossible, and which rows have none, (B,)."""
    num_beams, vocabulary = live.scores.shape[1], logits.shape[1]
    logits, norm = normalized(logits)
    log_probs = logits - norm
    if rules is not None:
        history = ops.reshape(live.tokens, (-1, live.tokens.shape[2]))
        log_probs = rules(t, log_probs, history, prompt)
    log_probs = ops.reshape(log_probs, (-1, num_beams, vocabulary))
    norm = ops.reshape(norm, (-1, num_beams, 1))
    alive = ops.expand_dims(live.scores > NONE, -1)
    lost = ops.any(ops.logical_and(alive, ops.isnan(norm)), axis=(1, 2))
    # `norm` is −inf where the beam has no continuation, and NaN where it is lost.
    goes_on = ops.logical_and(alive, norm > NONE)
    return ops.where(goes_on, log_probs, NONE), lost


def _continued(live, t, log_probs, count):
    """The best `count` continuations by a token, or all, with their beams and their tokens."""
    num_beams, vocabulary = log_probs.shape[1:]
    every = num_beams * vocabulary
    scores = ops.expand_dims(live.scores, -1) + log_probs
    scores, indices = ops.top_k(ops.reshape(scores, (-1, every)), min(count, every))
    indices = ops.cast(indices, "int32")
    log_probs = ops.take_along_axis(ops.reshape(log_probs, (-1, every)), indices, axis=1)
    parents, tokens = indices // vocabulary, indices % vocabulary
    lengths, history, past = _at(live[1:], parents)
    at = (ops.zeros_like(t), ops.zeros_like(t), t)
    continued = _Beams(
        scores,
        lengths + 1,
        ops.slice_update(history, at, ops.expand_dims(tokens, -1)),
        ops.slice_update(past, at, ops.expand_dims(log_probs, -1)),
    )
    return continued, parents, tokens


def _best(first, second, count):
    """The best `count` beams of two sets; among equals, those of the first."""
    both = [ops.concatenate(pair, axis=1) for pair in zip(first, second, strict=True)]
    return _Beams(*_at(both, ops.top_k(both[0], count)[1]))


def _at(arrays, indices):
    """The elements of arrays (B, N, …) at indices (B, K) of their rows: (B, K, …)."""
    flat = _flat(indices, arrays[0].shape[1])
    taken = [ops.take(ops.reshape(x, (-1, *x.shape[2:])), flat, axis=0) for x in arrays]
    # For a batch of no rows, JAX's `take` gives other axes.
    return [
        ops.reshape(y, (-1, indices.shape[1], *x.shape[2:]))
        for y, x in zip(taken, arrays, strict=True)
    ]


def _flat(indices, count):
    """Indices (B, K) into the `count` elements of each row, as indices into all rows."""
    first = count * ops.arange(ops.shape(indices)[0], dtype="int32")
    return ops.cast(indices, "int32") + ops.expand_dims(first, -1)
