"""The loop of `greedy` and `sample`: one token per row and step."""

from keras import ops

from keras_attention.backend import backend
from keras_attention.generation.results import Generated
from keras_attention.generation.rules import NONE
from keras_attention.generation.steps import check_found, normalized


def generate(steps, choose, max_tokens, pad_token, *numbers):
    """Steps until every row has a stop token or `max_tokens` tokens.

    `choose(t, logits, history, lengths, *numbers)` returns the tokens (B,) of step `t`, from
    float32 logits (B, V), the tokens so far, (max_tokens, B), their number, (B,), and `numbers`,
    arrays for the whole loop.
    """

    def unfinished(t, tokens, leaves, finished, *_):
        return ops.logical_and(t < max_tokens, ops.logical_not(ops.all(finished)))

    def advance(constants, t, tokens, leaves, finished, lengths, history, log_probs):
        memory, prompt, numbers = constants
        logits, leaves = steps(tokens, leaves, memory)
        allowed = logits
        if steps.rules is not None:
            allowed = steps.rules(t, logits, ops.transpose(history), prompt)
        # A finished row keeps stepping, with tokens that are always in the vocabulary.
        tokens = ops.cast(choose(t, allowed, history, lengths, *numbers), "int32")
        logits, norm = normalized(logits)
        log_prob = (ops.take_along_axis(logits, tokens[:, None], axis=1) - norm)[:, 0]
        stuck = norm[:, 0] == NONE
        if steps.rules is not None:
            stuck = ops.logical_or(stuck, ops.max(allowed, axis=-1) == NONE)
            known = ops.logical_not(ops.isnan(norm[:, 0]))
            certain = ops.logical_and(steps.rules.forced(t), known)
            log_prob = ops.where(certain, 0.0, log_prob)
        log_prob = ops.where(finished, 0.0, ops.where(stuck, NONE, log_prob))
        finished = ops.logical_or(finished, stuck)
        at = (t, ops.zeros_like(t))
        history = ops.slice_update(history, at, ops.where(finished, pad_token, tokens)[None])
        log_probs = ops.slice_update(log_probs, at, log_prob[None])
        lengths = lengths + ops.cast(ops.logical_not(finished), "int32")
        finished = ops.logical_or(finished, steps.stops(tokens))
        return t + 1, tokens, leaves, finished, lengths, history, log_probs

    # Steps are on axis 0, so that each step writes contiguous memory.
    start = (
        ops.convert_to_tensor(0, dtype="int32"),
        steps.tokens,
        steps.leaves,
        ops.zeros((steps.rows,), dtype="bool"),
        ops.zeros((steps.rows,), dtype="int32"),
        ops.full((max_tokens, steps.rows), pad_token, dtype="int32"),
        ops.zeros((max_tokens, steps.rows), dtype="float32"),
    )
    constants = (steps.memory, steps.prompt, numbers)
    *_, lengths, history, log_probs = backend.while_loop(unfinished, advance, start, constants)
    scores = ops.sum(log_probs, axis=0)
    check_found(scores)
    return Generated(ops.transpose(history), lengths, ops.transpose(log_probs), scores)
