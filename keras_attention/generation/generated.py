"""`Generated`: what functions of generation return."""

from __future__ import annotations

from typing import NamedTuple

from keras_attention.core.hints import Tensor, Tensors


class _Generated(NamedTuple):
    tokens: Tensor
    lengths: Tensor
    log_probabilities: Tensor
    scores: Tensor


class Generated(_Generated):
    """Generated tokens and their probabilities under the model.

    With `beam_search(num_return=N)` each has a second axis (B, N, …) for the N hypotheses of a row,
    best first. N is 1 by default, and `num_return=None` omits the axis.

    Args:
        tokens: (B, max_tokens) int32, stop token included; `pad_token` follows it.
        lengths: (B,) int32, the number of generated tokens, stop token included.
        log_probabilities: (B, max_tokens) float32, log p(token | all before it) of each token under
            the model's own distribution, softmax(logits); 0 for padding, but −inf for the first
            padding of a row in which all tokens were forbidden.
        scores: (B,) float32, the sum of `log_probabilities`; for `beam_search` that sum divided by
            the length penalty, −inf if there is no hypothesis.

    It has an attribute beside the four fields, `cache`, from which a text goes on: of a step
    function, the cache after the last step, which has read all tokens but the last one, also in
    rows that had ended before; of `beam_search`, the cache before the first step; of a model's
    `generate`, what its next call takes as `cache`. A program of your own (`tf.function`,
    `jax.jit`) does not return it; `compiled` does.

    >>> import keras
    >>> from keras_attention import generation
    >>> def step(tokens, cache):                            # token 1 after any other
    ...     return keras.ops.one_hot(keras.ops.ones_like(tokens), 3), cache
    >>> found = generation.greedy(step, [0, 2], (), max_tokens=2)
    >>> found._fields
    ('tokens', 'lengths', 'log_probabilities', 'scores')
    >>> keras.ops.convert_to_numpy(found.tokens)
    array([[1, 1],
           [1, 1]], dtype=int32)
    """

    cache: Tensors = ()


def inside(nested):
    """Each `Generated` in a structure of dictionaries and sequences, in an order of their names."""
    if isinstance(nested, Generated):
        return [nested]
    if isinstance(nested, dict):
        # A program may have put them in another order.
        nested = [x for _, x in sorted(nested.items(), key=lambda item: str(item[0]))]
    parts = nested if isinstance(nested, (list, tuple)) else ()
    return [found for part in parts for found in inside(part)]
