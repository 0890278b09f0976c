"""Every relation, of every entry, in every place."""

import keras
import pytest

from tests.contract import places, registry, relations, relations_of_layers

# All layers in all places.
pytestmark = pytest.mark.folder

RELATIONS = {**relations.RELATIONS, **relations_of_layers.RELATIONS}
# What the code around a layer can break, of its slots too. Blocks are in every stack, too.
OF_SLOTS = ("rows", "padding", "tokens", "pairs", "masks", "pieces", "future", "memory")
OF_SLOTS += ("weights", "packed", "refusals")
AROUND = {
    "block": ("padding", "tokens", "pairs", "masks", "pieces", "weights"),
    "stack": tuple(RELATIONS),
    "context": tuple(RELATIONS),
    "cell": tuple(RELATIONS),
}
LONG = "refusals", "dtypes", "program", "gradients", "saved"
AROUND["alone"] = ALONE = tuple(RELATIONS)
if keras.config.backend() == "jax":
    # Each call of other shapes is a program, and takes long to compile.
    few = "rows", "future", "memory"
    AROUND |= {"block": (), "stack": few, "context": (*few, "padding"), "cell": few}
    ALONE = tuple(relation for relation in RELATIONS if relation not in LONG)


def cases():
    """Those of one subject follow one another, as they look at the same results."""
    for entry in registry.ENTRIES.values():
        for place in places.PLACES:
            for relation, check in RELATIONS.items():
                fits = relation in AROUND[place] and places.fits(entry, place)
                if entry.of_slot:
                    fits &= relation in (ALONE if place == "alone" else OF_SLOTS)
                if fits and check.applies(entry, place):
                    yield param(relation, place, entry)


def param(relation, place, entry):
    # On TensorFlow, as slow ones: around layers there are two thirds of all, and these of slots
    # take a third of the time of the rest.
    marks = [pytest.mark.ci] * (place != "alone" or (entry.of_slot and relation in LONG))
    return pytest.param(relation, place, entry, id=f"{entry}-{place}-{relation}", marks=marks)


@pytest.mark.parametrize(("relation", "place", "entry"), cases())
def test_relation(relation, place, entry):
    RELATIONS[relation](entry, place)
