"""Every relation, of every entry, in every place."""

import pytest

from tests.contract import places, registry, relations, relations_of_layers
from tests.contract.known import KNOWN

# All layers in all places.
pytestmark = pytest.mark.folder

RELATIONS = {**relations.RELATIONS, **relations_of_layers.RELATIONS}


def cases():
    """Those of one subject follow one another, as they look at the same results."""
    for entry in registry.ENTRIES.values():
        for place in places.PLACES:
            for relation, check in RELATIONS.items():
                if places.fits(entry, place) and check.applies(entry, place):
                    yield param(relation, place, entry)


def param(relation, place, entry):
    reason = KNOWN.get((relation, place, entry.name))
    marks = pytest.mark.xfail(reason=reason, strict=True) if reason else ()
    name = f"{entry}-{place}-{relation}"
    return pytest.param(relation, place, entry, id=name, marks=marks)


@pytest.mark.parametrize(("relation", "place", "entry"), cases())
def test_relation(relation, place, entry):
    RELATIONS[relation](entry, place)
