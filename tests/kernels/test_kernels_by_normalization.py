"""Each kernel with each normalization and kind of pattern: the reference, or a refusal.

Kernels that merge results over different keys need the lse of softmax, which no other has.
"""

import numpy as np
import pytest

from keras_attention import normalizations, ops, patterns
from keras_attention.kernels import KERNELS
from keras_attention.kernels.tiles import strategies
from tests.arrays import numpy, random
from tests.kernels.banded_problems import short_sequences

T = 60
NEAR = patterns.SlidingWindow(4, 3)
NORMALIZATIONS = {
    "softmax": "softmax",
    "sigmoid": "sigmoid",
    "sparsemax": "sparsemax",
    "entmax": normalizations.Entmax(1.3),
    "top_k": normalizations.TopK(3),
}
PATTERNS = {
    "window": NEAR,
    "window, global": NEAR | patterns.Global(3),
    "window, prefix": patterns.SlidingWindow(5, 0) | patterns.Prefix(4),
    "strided": patterns.Strided(6),
    "window, random": NEAR | patterns.RandomBlocks(T, 6, 2),
    "window, global, random": NEAR | patterns.Global(3) | patterns.RandomBlocks(T, 6, 2),
    "axial": patterns.Axial((6, 10)),
    "neighborhood": patterns.Neighborhood((6, 10), 3),
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_kernels_give_the_reference_or_refuse(normalization, pattern):
    arrays = [2 * random(2, T, 2, 4, seed=seed) for seed in range(3)]
    given = {"normalization": NORMALIZATIONS[normalization], "pattern": PATTERNS[pattern]}
    expected = numpy(ops.attend(*arrays, kernel="reference", **given))
    computed = []
    for kernel in ("auto", *(kernel.name for kernel in KERNELS if kernel.name != "reference")):
        with short_sequences(), strategies.using(few=0):
            try:
                found = ops.attend(*arrays, kernel=kernel, **given)
            except ValueError:
                continue
        computed.append(kernel)
        np.testing.assert_allclose(numpy(found), expected, atol=1e-4, err_msg=kernel)
    assert {"auto", "blockwise"} <= set(computed)
