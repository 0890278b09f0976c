"""One batch in which every row has another padding, and what it should give.

All rows but the first and the last have the same text of N tokens, with padding on one side or
between, which holds NaN, infinity or 1e38. The first has no padding, the last no token.
"""

import numpy as np

from tests.arrays import numpy
from tests.contract.registry import VOCABULARY, B, D, N, T

SIDES = {
    "none": [1, 1, 1, 1, 1, 1, 1],
    "right": [1, 1, 1, 1, 0, 0, 0],
    "left": [0, 0, 0, 1, 1, 1, 1],
    "between": [1, 0, 0, 1, 0, 1, 1],
    "empty": [0, 0, 0, 0, 0, 0, 0],
}
ROWS = [
    ("none", 0.0),
    ("right", np.nan),
    ("right", 1e38),
    ("left", np.inf),
    ("left", np.nan),
    ("between", 1e38),
    ("between", -np.inf),
    ("empty", np.nan),
]
MASK = np.array([SIDES[side] for side, _ in ROWS], bool)
# Those of the text of N tokens, and the first row of each side.
TEXTS = range(1, B - 1)
OF_SIDE = {1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 6: 2}
# Places of the tokens of the text, by side.
PLACES = np.stack([np.flatnonzero(SIDES[side]) for side in ("right", "left", "between")])
PLACES = PLACES.astype("int32")


def numbers(*shape, ids=False, seed=0):
    rng = np.random.default_rng(seed)
    if ids:
        return rng.integers(1, VOCABULARY, shape[:-1]).astype("int32")
    return rng.normal(size=shape).astype("float32")


def text(ids=False, seed=0):
    """The text of N tokens, (3, N, D), once for each side."""
    return np.repeat(numbers(1, N, D, ids=ids, seed=seed), 3, axis=0)


def batch(ids=False, garbage=True, seed=0):
    """(B, T, D), or ids (B, T)."""
    found = numbers(B, T, D, ids=ids, seed=seed + 1)
    for row, (_, value) in enumerate(ROWS):
        if row in TEXTS:
            found[row, MASK[row]] = text(ids, seed)[0]
        found[row, ~MASK[row]] = (5 if ids else value) if garbage else 0
    return found


def randomize(layer, seed=0):
    """Moves every weight, so that none is a zero or a one."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_variables:
        weight.assign(numpy(weight) + 0.3 * rng.normal(size=weight.shape))
