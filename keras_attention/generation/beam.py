"""`beam_search`: the most likely of many parallel hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_attention.core.hints import Tensor, Tensors
from keras_attention.generation.generated import Generated
from keras_attention.generation.rules import NONE, Rule, apply
from keras_attention.generation.sampling import flat
from keras_attention.generation.search import (
    Ends,
    Search,
    Step,
    list_settings,
    normalized,
    text_of,
)
from keras_attention.sequences import shapes


def beam_search(
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
        renormalize: whether log-probabilities are normalized again after `constraints` changed
            them, so that those of the tokens that remain sum to 1 (`renormalize_logits` of
            `transformers`).

    Returns:
        A `Generated` of shapes (B, N, max_tokens), (B, N), (B, N, max_tokens), (B, N), best first;
        with `num_return=None`, of shapes (B, max_tokens), (B,), (B, max_tokens), (B,). Scores are
        s(y). If fewer than N hypotheses are possible, the rest is empty, with a score of −inf.

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
    ends = Ends(max_tokens, stop_tokens, pad_token, constraints)
    return Search(Beams(**settings), ends, step).found(tokens, cache, memory, prompt)


class Searched(NamedTuple):
    """What the loop of a beam search carries beside counts, caches and states of rules."""

    tokens: Any
    live: Any
    finished: Any
    # Which rows are not done, and which are lost: their logits are no numbers.
    going: Any
    lost: Any


class Beams:
    """The strategy of `beam_search`, whose settings it checks."""

    rules: tuple[Rule, ...] = ()

    def __init__(
        self,
        num_beams: int,
        length_penalty: float = 0.6,
        length_rule: str = "wu",
        stopping: str = "exact",
        num_return: int | None = 1,
        renormalize: bool = False,
    ):
        self.num_beams = self.copies = shapes.check_count("num_beams", num_beams)
        self.alone = num_return is None
        self.num_return = 1 if self.alone else shapes.check_count("num_return", num_return)
        if self.num_return > num_beams:
            raise ValueError(
                "`num_return` must be at most `num_beams`. "
                f"Received: num_return={num_return}, num_beams={num_beams}"
            )
        self.length_penalty = shapes.check_number("length_penalty", length_penalty, minimum=0)
        self.length_rule = shapes.check_choice("length_rule", length_rule, ("wu", "power"))
        self.stopping = shapes.check_choice("stopping", stopping, ("exact", "first", "estimate"))
        self.renormalize = shapes.check_flag("renormalize", renormalize)
        # The exact bound holds for the hypotheses that are returned, the others for all beams.
        self.stored = self.num_return if stopping == "exact" else num_beams
        self.form = "beams", tuple(sorted(vars(self).items()))

    def settings(self, rows):
        return {}

    def constants(self, settings, max_tokens):
        # Rounded identically everywhere, so that a score can equal its bound, and never exceed it.
        lengths = np.arange(max_tokens + 1.0)
        bases = (5 + lengths) / 6 if self.length_rule == "wu" else np.maximum(lengths, 1)
        with np.errstate(over="ignore"):
            penalties = (bases**self.length_penalty).astype("float32")
        if not np.isfinite(penalties).all():
            raise ValueError(
                "`length_penalty` must be a number whose lp(`max_tokens`), as `length_rule` "
                f"defines it, is finite. Received: length_penalty={self.length_penalty}, "
                f"max_tokens={max_tokens}"
            )
        return {"penalties": ops.convert_to_tensor(penalties)}

    def begin(self, ends, tokens, limits, rows):
        # All beams of a row start alike, so only the first of them counts.
        first = ops.where(ops.arange(self.num_beams) == 0, 0.0, NONE)
        live = _empty(rows, self.num_beams, ends.max_tokens, ends.pad_token)
        return Searched(
            ops.repeat(ops.expand_dims(tokens, -1), self.num_beams, axis=1),
            live._replace(scores=ops.broadcast_to(first, (rows, self.num_beams))),
            _empty(rows, self.stored, ends.max_tokens, ends.pad_token),
            limits > 0,
            ops.zeros((rows,), dtype="bool"),
        )

    def going(self, constants, carried):
        more = carried.count < constants["limits"][:: self.num_beams]
        return ops.any(ops.logical_and(carried.chosen.going, more))

    def last(self, carried):
        return ops.reshape(carried.chosen.tokens, (-1,))

    def unfinished(self, carried):
        return ops.repeat(carried.chosen.going, self.num_beams, axis=0)

    def _undone(self, count, limits, penalties, live, finished):
        """Which rows have a live beam that may beat a finished one, (B,)."""
        best, worst = live.scores[:, 0], finished.scores[:, -1]
        if self.stopping == "first":
            return ops.logical_and(best > NONE, worst == NONE)
        at = limits if self.stopping == "exact" else count
        return best / ops.take(penalties, at) > worst

    def advance(self, ends, constants, carried, logits):
        num_beams, (count, _, states, chosen) = self.num_beams, carried
        _, live, finished, going, lost = chosen
        given = constants["limits"], constants.get("prompt"), ends.stops
        lengths = ops.broadcast_to(count, (ops.shape(logits)[0],))
        text = text_of(flat(live.tokens), lengths, *given)
        log_probs, unknown = self._log_probs(logits, live, ends.rules, text, states)
        limits = constants["limits"][::num_beams]
        # The live beams of a row that is done change nothing.
        active = ops.logical_and(going, count < limits)
        lost = ops.logical_or(lost, ops.logical_and(unknown, active))
        size = num_beams * (1 + len(ends.stops))
        new, parents, tokens, indices = _continued(live, count, log_probs, size)
        if ends.stops:
            every = ops.arange(logits.shape[1], dtype="int32")
            stops = ends.stopping(text, ops.broadcast_to(every, ops.shape(logits)))
            stops = ops.reshape(stops, (-1, num_beams * logits.shape[1]))
            stops = ops.take_along_axis(stops, indices, axis=1)
            ending = ops.logical_and(stops, ops.arange(tokens.shape[1]) < num_beams)
            ending = ops.logical_and(ending, active[:, None])
            penalty = ops.take(constants["penalties"], count + 1)
            scores = ops.where(ending, new.scores / penalty, NONE)
            finished = _best(finished, new._replace(scores=scores), self.stored)
            _, indices = ops.top_k(ops.where(stops, NONE, new.scores), num_beams)
            stops, parents, tokens, *new = _at((stops, parents, tokens, *new), indices)
            new = _Beams(*new)
            # With a small vocabulary there may be fewer continuations than beams.
            new = new._replace(scores=ops.where(stops, NONE, new.scores))
        if ends.limits is not None:
            # A row that has as many tokens as it may keeps its live beams for the result.
            kept = (
                ops.where(ops.reshape(active, (-1, *[1] * (len(x.shape) - 1))), x, y)
                for x, y in zip(new, live, strict=True)
            )
            new = _Beams(*kept)
        # After the last step live beams compete in the rows that were not done before it.
        undone = self._undone(count + 1, limits, constants["penalties"], new, finished)
        goes_on = ops.logical_or(count + 1 >= limits, undone)
        going = ops.logical_and(going, goes_on)
        rows = ops.reshape(_flat(parents, num_beams), (-1,))
        states = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), states)
        states = ends.next_states(states, ops.reshape(tokens, (-1,)))
        return rows, states, Searched(tokens, new, finished, going, lost)

    def _log_probs(self, logits, live, rules, text, states):
        """Log-probabilities (B, N, V), −inf if impossible, and which rows have none, (B,)."""
        logits, norm = normalized(logits)
        log_probs = logits - norm
        if rules:
            log_probs = apply(rules, log_probs, text, states)
            if self.renormalize:
                changed, rest = normalized(log_probs)
                log_probs = ops.where(rest > NONE, changed - rest, log_probs)
        log_probs = ops.reshape(log_probs, (-1, self.num_beams, logits.shape[1]))
        norm = ops.reshape(norm, (-1, self.num_beams, 1))
        alive = ops.expand_dims(live.scores > NONE, -1)
        lost = ops.any(ops.logical_and(alive, ops.isnan(norm)), axis=(1, 2))
        # `norm` is −inf where the beam has no continuation, and NaN where it is lost.
        goes_on = ops.logical_and(alive, norm > NONE)
        return ops.where(goes_on, log_probs, NONE), lost

    def result(self, ends, constants, carried):
        chosen, limits = carried.chosen, constants["limits"][:: self.num_beams]
        # Live beams of the other rows are incomplete hypotheses, or of no interest any more.
        penalty = ops.take(constants["penalties"], limits)[:, None]
        scores = ops.where(chosen.going[:, None], chosen.live.scores / penalty, NONE)
        live = chosen.live._replace(scores=scores)
        found = _best(chosen.finished, live, self.num_return)
        none = found.scores == NONE
        found = Generated(
            ops.where(none[..., None], ends.pad_token, found.tokens),
            ops.where(none, 0, found.lengths),
            ops.where(none[..., None], 0.0, found.log_probs),
            ops.where(chosen.lost[:, None], float("nan"), found.scores),
        )
        return Generated(*(array[:, 0] for array in found)) if self.alone else found


class _Beams(NamedTuple):
    """N hypotheses in each row: (B, N), (B, N), (B, N, max_tokens), (B, N, max_tokens)."""

    # Sums of log-probabilities, divided by lp once finished.
    scores: Any
    lengths: Any
    tokens: Any
    log_probs: Any


def _empty(rows, count, max_tokens, pad_token):
    return _Beams(
        ops.full((rows, count), NONE, dtype="float32"),
        ops.zeros((rows, count), dtype="int32"),
        ops.full((rows, count, max_tokens), pad_token, dtype="int32"),
        ops.zeros((rows, count, max_tokens), dtype="float32"),
    )


def _continued(live, t, log_probs, count):
    """The best `count` continuations by a token, or all, and their beams, tokens and indices."""
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
    return continued, parents, tokens, indices


def _best(first, second, count):
    """The best `count` beams of two sets; among equals, those of the first."""
    both = [ops.concatenate(pair, axis=1) for pair in zip(first, second, strict=True)]
    return _Beams(*_at(both, ops.top_k(both[0], count)[1]))


def _at(arrays, indices):
    """The elements of arrays (B, N, …) at indices (B, K) of their rows: (B, K, …)."""
    at = _flat(indices, arrays[0].shape[1])
    taken = [ops.take(flat(x), at, axis=0) for x in arrays]
    # For a batch of no rows, JAX's `take` gives other axes.
    return [
        ops.reshape(y, (-1, indices.shape[1], *x.shape[2:]))
        for y, x in zip(taken, arrays, strict=True)
    ]


def _flat(indices, count):
    """Indices (B, K) into the `count` elements of each row, as indices into all rows."""
    first = count * ops.arange(ops.shape(indices)[0], dtype="int32")
    return ops.cast(indices, "int32") + ops.expand_dims(first, -1)


list_settings(beam_search, Beams)
