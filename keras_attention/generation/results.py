"""What every way of generating returns."""

import typing


class Generated(typing.NamedTuple):
    """Generated tokens and how likely the model finds them.

    With `beam_search` each has a second axis (B, N, …) for the N hypotheses of a row, best first.

    Args:
        tokens: (B, max_tokens) int32. The stop token is among them; `pad_token` follows it.
        lengths: (B,) int32, how many tokens were generated, the stop token among them.
        log_probabilities: (B, max_tokens) float32, log p(token | all before it) of each token under
            the model's own distribution, softmax(logits); 0 for padding.
        scores: (B,) float32, the sum of `log_probabilities`; for `beam_search` that sum divided by
            the length penalty.
    """

    tokens: typing.Any
    lengths: typing.Any
    log_probabilities: typing.Any
    scores: typing.Any
