"""The result of all generation functions."""

from typing import NamedTuple

from keras_attention.hints import Tensor


class Generated(NamedTuple):
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

    tokens: Tensor
    lengths: Tensor
    log_probabilities: Tensor
    scores: Tensor
