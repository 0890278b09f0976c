"""Symbolic calls inside a user's own layers and models, of lengths that are known or not."""

import pytest

from tests import inside
from tests.conformance import outputs_of
from tests.layers.conformance_cases import CASES

NUMBERED = [pytest.param(n, case, id=str(case)) for n, case in enumerate(CASES)]


def shapes(result):
    return [(tuple(x.shape), x.dtype) for x in outputs_of(result)]


@pytest.mark.ci
@pytest.mark.parametrize("number, case", NUMBERED)
def test_symbolic_calls(number, case):
    """Shapes of unknown and known sizes are those of the layer alone."""
    # All unknown is what most models have.
    for n, (batch, lengths) in enumerate([inside.SIZES[0], inside.SIZES[1 + number % 3]]):
        way = inside.way_of(case, number + n)
        given = inside.symbols(case, way, batch, lengths)
        found = inside.WAYS[way](case.make(), case.listed)(*given)
        direct = shapes(case.call(case.make(), case.symbols(3 if batch else None, lengths)))
        expected = [
            ((shape[0], 2, *shape[1:]) if way == "distributed" else shape, dtype)
            for shape, dtype in direct
        ]
        assert shapes(found) == expected
