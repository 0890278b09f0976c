"""The blockwise kernel against the reference: arguments drawn by chance."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention import positions
from tests.problems import (
    BACKEND,
    PATTERNS,
    blocks_of,
    compare,
    inputs,
    integers,
    random,
    some,
)

# JAX compiles each case anew.
EXAMPLES = {"tensorflow": 3, "jax": 2, "torch": 10}[BACKEND]


SIDES = st.integers(0, 1)


@st.composite
def problems(draw, longest):
    """Arrays and other arguments of `answers`, with all things beside one another."""
    batch, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    heads = groups * draw(st.integers(1, 2))
    queries, keys = draw(st.integers(1, longest)), draw(st.integers(1, longest))
    arrays = inputs(batch, queries, keys, heads, groups, draw(st.sampled_from([1, 4])), 3)

    def pairs():
        whole = zip((batch, heads, queries, keys), (draw(SIDES) for _ in range(4)), strict=True)
        return [size if there else 1 for size, there in whole]

    rest = {"logit_soft_cap": draw(st.sampled_from([None, 2.0]))}
    rest["mask"] = [
        some(*pairs(), rate=draw(st.sampled_from([0.0, 0.3, 0.8])), seed=n)
        for n in range(draw(st.integers(0, 2)))
    ]
    rest["pattern"] = draw(st.one_of(st.none(), PATTERNS))
    where = draw(st.sampled_from(["from 0", "from 0", "offset", "rows", "query", "both"]))
    if where == "offset":
        rest["offset"] = draw(st.integers(-20, 50))
    elif where == "rows":
        rest["offset"] = integers(-20, 50, batch)
    elif where in ("query", "both"):
        rest["query_positions"] = integers(0, 40, batch, queries)
        if where == "both":
            rest["key_positions"] = integers(0, 40, keys)
    if draw(st.booleans()):
        arrays["bias"] = random(*pairs(), seed=5)
    if draw(st.booleans()):
        arrays["sink"] = random(heads, seed=6)
    size = 2 * draw(st.integers(0, 4)) + 1
    if draw(st.booleans()):
        shape = draw(st.sampled_from([1, heads])), size, arrays["query"].shape[3]
        arrays["relative_keys"] = random(*shape, seed=7)
    if draw(st.booleans()):
        arrays["relative_values"] = random(draw(st.sampled_from([1, heads])), size, 3, seed=8)
    if draw(st.booleans()):
        rest["between"] = positions.ALiBi().bias_between(heads)
    return arrays, rest


CUTS = st.integers(7, 20), st.integers(7, 20), st.sampled_from([100, 10**4, 10**6])


def check(case, rows, columns, elements):
    arrays, rest = case
    with blocks_of(rows, columns, elements):
        compare("blockwise", arrays, rest)


@settings(deadline=None, max_examples=EXAMPLES, derandomize=True)
@given(problems(20), *CUTS)
def test_all_things_beside_one_another_are_those_of_the_reference(case, rows, columns, elements):
    check(case, rows, columns, elements)


@pytest.mark.slow
@settings(deadline=None, max_examples=10 * EXAMPLES)
@given(problems(40), *CUTS)
def test_many_more_things_beside_one_another(case, rows, columns, elements):
    check(case, rows, columns, elements)
