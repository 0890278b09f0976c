"""The blockwise kernel with numbers near the largest of a dtype."""

import numpy as np
import pytest

from tests.kernels.blockwise_problems import BLOCKS, problem
from tests.problems import (
    B,
    S,
    answers,
    inputs,
    slow,
    some,
)

HUGE = {"float32": 1e30, "float16": 6e4, "bfloat16": 1e30}


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("shaw", "float32"),
        ("all masks", "float16"),
        slow("shaw", "float16"),
        slow("shaw", "bfloat16"),
        slow("all masks", "float32"),
        slow("all masks", "bfloat16"),
        *(slow(name, dtype) for name in ("plain", "causal") for dtype in HUGE),
    ],
)
def test_huge_inputs_give_finite_outputs_and_gradients_that_are_numbers(name, dtype):
    arrays, rest = problem(name)
    # Values are not: gradients are products of values and keys, which would be infinite in float32
    # by the definition too, and sums of such are no numbers.
    huge = {
        n: array if "value" in n else np.sign(array) * HUGE[dtype] for n, array in arrays.items()
    }
    with BLOCKS["keys"]():
        found = answers("blockwise", huge, rest, dtype)
    assert np.isfinite(found["output"]).all()
    assert np.abs(found["output"]).max() > 0.1
    for n, array in found.items():
        assert not np.isnan(array).any(), n


@pytest.mark.parametrize("dtype", ["float32", "float16", slow("bfloat16")])
def test_huge_values_give_finite_outputs_and_gradients(dtype):
    arrays, rest = problem("causal")
    arrays["value"] = np.sign(arrays["value"]) * HUGE[dtype]
    with BLOCKS["keys"]():
        found = answers("blockwise", arrays, rest, dtype)
    # The gradients of query and key are as large as float16 has no number for.
    for n in ("output", "value") if dtype == "float16" else found:
        assert np.isfinite(found[n]).all()
    assert np.abs(found["output"]).max() > 0.1 * HUGE[dtype]
    assert not any(np.isnan(array).any() for array in found.values())


def test_what_masked_keys_hold_changes_nothing():
    arrays, kept = inputs(), some(B, S, seed=9)
    rest = {"mask": kept[:, None, None]}
    with BLOCKS["keys"]():
        expected = answers("blockwise", arrays, rest)
        for name in ("key", "value"):
            arrays[name] = np.where(kept[..., None, None], arrays[name], np.float32(1e30))
        found = answers("blockwise", arrays, rest)
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    for name in ("key", "value"):
        np.testing.assert_array_equal(found[name][~kept], 0.0)
