"""Integers and booleans as inputs of every layer: counts, pixels, flags."""

import pytest

from tests import conformance
from tests.layers.conformance_cases import CASES
from tests.pairwise import pairwise

FLOATS = [case for case in CASES if case.float_inputs]


@pytest.mark.parametrize("case, dtype", pairwise(FLOATS, ["int32", "uint8", "bool"]), ids=str)
def test_integers_are_the_floats_that_they_are(case, dtype):
    conformance.check_integers_are_the_floats_that_they_are(case, dtype)
