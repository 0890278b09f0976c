"""Patterns of grids: each against its definition on coordinates, pair by pair, and its promises."""

import numpy as np
import pytest

from keras_attention.patterns import Axial, Causal, GridWindow, Neighborhood
from tests.test_patterns import check, evaluated

pytestmark = pytest.mark.any_backend

EVERY = [
    GridWindow((4, 6), 2), GridWindow((4, 6), 2, 1), GridWindow((5, 7), (3, 4), (1, 2), prefix=2),
    GridWindow((6,), 3, 1), GridWindow((2, 2, 4), 2, (1, 0, 1)), GridWindow((4, 4), 4, 2),
    Neighborhood((10, 9), 3), Neighborhood((9, 7), (5, 7)), Neighborhood((5, 5), 5, prefix=1),
    Neighborhood((3, 9, 4), 3), Neighborhood((70,), 5), Neighborhood((43, 6), (7, 3)),
    Neighborhood((9, 3, 3), (7, 3, 3)), Neighborhood((10, 9), (4, 6)), Neighborhood((5,), 5, 1, 1),
    Neighborhood((8, 7), 3, dilation=2), Neighborhood((9, 70), (2, 3), 1, (3, 5)), Axial((5, 4), 0),
    Axial((5, 4), -1, 2), Axial((3, 4, 2), 1), Axial((2, 3, 2)), Axial((4, 5), prefix=1),
    Axial((7,)),
]  # fmt: skip
every_pattern = pytest.mark.parametrize("pattern", EVERY, ids=map(repr, EVERY))


@every_pattern
def test_pairs_are_those_of_the_definition_and_promises_are_kept(pattern):
    length = np.prod(pattern.grid) + pattern.prefix
    # Positions after the grid are those of a next one.
    check(pattern, *[np.arange(length + 7)] * 2)
    span = pattern.span()
    assert (span.left is None) == (span.right is None) == bool(pattern.prefix)
    for part in pattern.parts():
        for each in (part, part & Causal()) if part.groups() is not None else ():
            check_groups(each.groups(), evaluated(each, *[np.arange(length)] * 2))


def check_groups(groups, seen):
    length = len(seen)
    assert groups.length == length
    real = groups.queries[groups.queries >= 0]
    assert sorted(real) == list(range(groups.prefix, length))
    covered = np.zeros(seen.shape, bool)
    covered[: groups.prefix] = covered[:, : groups.prefix] = True
    at = np.stack(np.unravel_index(np.arange(length - groups.prefix), groups.grid), -1)
    offsets = []
    for queries, keys in zip(groups.queries, groups.keys, strict=True):
        both = (queries >= 0)[:, None] & (keys >= 0)
        pairs = np.broadcast_arrays(queries[:, None], keys)
        covered[pairs[0][both], pairs[1][both]] = True
        both[both] = seen[pairs[0][both], pairs[1][both]]
        offsets.append((both, at[keys - groups.prefix] - at[queries - groups.prefix][:, None]))
    assert (covered >= seen).all()
    assert not groups.exact or (covered == seen).all()
    if groups.alike is not None:
        _, expected = offsets[groups.alike]
        assert all((found == expected)[both].all() for both, found in offsets)


@pytest.mark.parametrize("others, most", [((), 140), ((1,), 90), ((1, 1), 45)])
@pytest.mark.parametrize("size", [3, 4, 5, 6, 7, 13])
def test_groups_of_neighborhoods_cover_axes_of_any_length(size, others, most):
    """The last of its boxes too, which has what the others leave."""
    for length in range(size, most):
        pattern = Neighborhood((length, *others), (size, *others))
        first = np.clip(np.arange(length) - size // 2, 0, length - size)[:, None]
        keys = np.arange(length)
        check_groups(pattern.groups(), (keys >= first) & (keys < first + size))
