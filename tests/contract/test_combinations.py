"""Mechanisms with slots, a second mechanism, places and dtypes: pairs always, threes by a seed.

All pairs of options meet on one of the backends, by turns on another for each content of the
package, `FUZZ_SEED`. Of threes there are too many: some are drawn, by the same seed. What refuses
to be made is not there; how much that may be is part of the test.
"""

import inspect
import random

import keras
import pytest
from allpairspy import AllPairs

import keras_attention as ka
from tests.contract import places, registry, relations, rows
from tests.fuzz.campaign import SEED

# All layers in all places.
pytestmark = pytest.mark.folder

DRAWN = 24
BACKEND = keras.backend.backend()


def of_slot(slot):
    """Entries of a slot, and None."""
    found = [e for n, e in registry.MECHANISMS.items() if n.startswith(f"{slot}-")]
    return [None, *(e for e in found if not e.traits.cells and slot in dict(e.given))]


def mechanisms():
    """Those of classes, without slots."""
    found = [e for n, e in registry.MECHANISMS.items() if hasattr(ka, n.split("-")[0])]
    return [e for e in found if "score" not in dict(e.given)]


# JAX has no float64 unless it is told to.
WIDE = ["float64"] if BACKEND != "jax" else []
AXES = {
    "mechanism": mechanisms(),
    "second": [e for e in mechanisms() if e.name in (
        "MultiHeadAttention", "RelativePositionAttention", "LocalSelfAttention", "Retention",
        "GatedDeltaNet-convolved", "LinformerAttention", "NystromAttention-convolved",
        "LongformerAttention-global", "LocalAttention-predictive", "LinearAttention",
    )],
    "score": of_slot("score"),
    "position": of_slot("position"),
    "pattern": of_slot("pattern"),
    "normalization": of_slot("normalization"),
    "place": ["alone", "block", "stack"],
    "causal": [False, True],
    "dtype": ["float32", "mixed_float16", "mixed_bfloat16", *WIDE],
}  # fmt: skip
TOLERANCE = {"float32": 2e-5, "float64": 1e-6, "mixed_float16": 0.02, "mixed_bfloat16": 0.1}
refused = []


def drawn():
    draw = random.Random(SEED)
    return [tuple(draw.choice(options) for options in AXES.values()) for _ in range(DRAWN)]


def name(values):
    return "-".join(str(value) for value in values if value is not None)


def check(values):
    """Padding does not exist; pieces are the whole; what comes later is hidden."""
    of = dict(zip(AXES, values, strict=True))
    cls, given = of["mechanism"].cls, dict(of["mechanism"].given)
    if cls is ka.NystromAttention and of["score"] and of["score"].name == "score-Location":
        return  # Known; see the entry of both.
    for slot in ("score", "position", "pattern", "normalization"):
        if of[slot] is not None and slot in inspect.signature(cls).parameters:
            given.update(dict(of[slot].given))
    entry = registry.Entry(name(values), cls, tuple(given.items()), second=of["second"])
    causal = of["causal"] and of["mechanism"].traits.may_be_causal
    if causal and of["place"] == "stack" and not of["second"].traits.may_be_causal:
        causal = False
    try:
        subject = places.Subject(entry, of["place"], causal, dtype=of["dtype"]).build()
    except (ValueError, TypeError) as error:
        refused.append(str(error))
        return
    tolerance, alone = TOLERANCE[of["dtype"]], subject.alone()[0]
    word = {} if of["place"] == "stack" else {"positions": "tokens"}
    relations.agree(subject.call(rows.batch(), rows.MASK, **word)[0], alone, tolerance)
    if causal and of["dtype"].startswith("float"):
        both = [entry, of["second"]][: 1 + (of["place"] == "stack")]
        if not any(places.refuses_pieces(one, "alone") for one in both):
            relations.pieces_are_the_whole(subject, tolerance)
        relations.the_future_is_hidden(subject, tolerance)


def pairs():
    """Those of this backend: most where a program need not be compiled."""
    turns = ["tensorflow", "torch", "tensorflow", "torch", "tensorflow", "jax"]
    numbers = [range(len(options)) for options in AXES.values()]
    for number, chosen in enumerate(AllPairs(numbers)):
        if turns[(number + SEED) % len(turns)] == BACKEND:
            yield tuple(options[n] for options, n in zip(AXES.values(), chosen, strict=True))


CASES = [*pairs(), *drawn()]


@pytest.mark.parametrize("values", CASES, ids=name)
def test_combination(values):
    check(values)


def test_most_combinations_are_made():
    assert len(refused) < 0.5 * len(CASES), "\n".join(refused)
