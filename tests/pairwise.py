"""Parameters of a test of independent options: every pair of them, not every combination."""

import keras
from allpairspy import AllPairs

BACKENDS = ("tensorflow", "jax", "torch")


def pairwise(*axes):
    """Combinations of options, of which every two meet, on some backend.

    The backend is one more axis: every option is tested on every backend, and the three together
    have all pairs.

    Args:
        *axes: the options of each parameter, in order.
    """
    counts = [range(len(options)) for options in (*axes, BACKENDS)]
    here = BACKENDS.index(keras.config.backend())
    for *chosen, backend in AllPairs(counts):
        if backend == here:
            yield tuple(options[index] for options, index in zip(axes, chosen, strict=True))
