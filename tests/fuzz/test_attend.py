"""`ops.attend` in any configuration: outputs, weights and gradients against float64 NumPy."""

import contextlib

import hypothesis
import keras
import numpy as np
import pytest

from keras_attention import ops, patterns
from tests import definition
from tests.fuzz import campaign
from tests.fuzz.configurations import (
    BACKEND,
    DTYPES,
    PROBLEMS,
    ROUNDING,
    SCORES,
    Problem,
    Random,
    check_slope,
    close,
    defined_pattern,
    defined_score,
    fill,
    rounded,
)
from tests.gradients import gradients
from tests.problems import blocks_of, in_a_graph


def differentiate(problem, function, arrays):
    """The gradients of a function of named tensors; `arrays` are (axes, array) by name."""
    tensors = []
    for name, (_, array) in arrays.items():
        wide = "float64" if problem.dtype == "float64" else "float32"
        dtype = wide if name.startswith("upstream") else problem.dtype
        tensors.append(keras.ops.cast(keras.ops.convert_to_tensor(array), dtype))

    def named(*tensors):
        return function(dict(zip(arrays, tensors, strict=True)))

    if BACKEND != "tensorflow" or problem.mode == "eager":
        found = gradients(named, tensors)
    else:
        axes = [axes for axes, _ in arrays.values()]
        found = of_unknown_sizes(problem, named, tensors, axes)
    return dict(zip(arrays, (np.asarray(x, "float64") for x in found), strict=True))


def of_unknown_sizes(problem, function, tensors, axes):
    """As `gradients`, in a graph that knows neither batch size nor lengths, or compiled by XLA."""
    import tensorflow as tf

    xla = problem.mode == "xla"
    # This kernel is for one query, and has to know.
    unknown = "" if xla else "BS" if problem.kernel == "one_query" else "BTS"
    signature = [
        tf.TensorSpec(
            [None if axis in unknown else n for axis, n in zip(letters, x.shape, strict=True)],
            x.dtype,
        )
        for letters, x in zip(axes, tensors, strict=True)
    ]
    return in_a_graph(function, tensors, input_signature=[signature], jit_compile=xla)


def check(problem):
    p, random = problem, Random(problem.seed)
    # The definition has a score for each place, the layer for each position.
    hypothesis.assume(p.score != "location" or p.key_positions is None)
    heads, groups = p.heads
    arrays = {
        "query": ("BTHK", p.size * random.normal(*p.sizes("BTHK"))),
        "key": ("BSGK", p.size * random.normal(*p.sizes("BSGK"))),
        "value": ("BSGV", random.normal(*p.sizes("BSGV"))),
    }
    if p.bias:
        arrays["bias"] = (p.bias, random.normal(*p.sizes(p.bias)))
    softmax = p.normalization == "softmax"
    if p.sink and softmax:
        arrays["sink"] = ("H", random.normal(heads))
    arrays = {name: (axes, rounded(array, p.dtype)) for name, (axes, array) in arrays.items()}
    # What an output is multiplied by has the output for its gradient.
    arrays["upstream"] = "BTHV", random.normal(*p.sizes("BTHV")).astype("float64")
    if p.with_scores:
        arrays["upstream of scores"] = "BHTS", random.normal(*p.sizes("BHTS")).astype("float64")

    score = SCORES[p.score]()
    if not isinstance(score, str):
        score.build((p.batch, p.queries, heads, p.key_dim), (p.batch, p.keys, groups, p.key_dim))
        fill(score, random)
    mask = None if p.mask is None else random.some(p.allowed, *p.sizes(p.mask))
    if p.garbage is not None and p.mask in ("B11S", "B1T1"):
        # What padding holds reaches nothing.
        padding = ~(mask[:, 0, 0] if p.mask == "B11S" else mask[:, 0, :, 0])
        for name in ("key", "value") if p.mask == "B11S" else ("query",):
            arrays[name][1][padding] = p.garbage
    segments = None
    if p.segments:
        segments = tuple(random.integers(0, 2, p.batch, n) for n in (p.queries, p.keys))
    at, offset = given_positions(random, p.query_positions, p.sizes), p.offset
    if at is not None:
        offset = 0
    elif offset == "B":
        offset = random.integers(-4, 12, p.batch)
    key_at = given_positions(random, p.key_positions, p.sizes)
    given = {
        "mask": mask,
        "pattern": p.pattern,
        "score": score,
        "normalization": p.normalization,
        "offset": offset,
        "logit_soft_cap": p.soft_cap,
        "query_positions": at,
        "key_positions": key_at,
        "segment_ids": segments,
        "return_attention_scores": p.with_scores,
    }

    # The definition.
    i = np.arange(p.queries) + np.reshape(offset, (-1, 1)) if at is None else at
    i = np.broadcast_to(i, (p.batch, p.queries))
    j = np.broadcast_to(np.arange(p.keys) if key_at is None else key_at, (p.batch, p.keys))
    allowed = np.broadcast_to(defined_pattern(p.pattern, i, j), p.sizes("BHTS")).copy()
    if mask is not None:
        allowed &= mask[:, None] if p.mask == "BTS" else mask
    if segments is not None:
        allowed &= (segments[0][:, :, None] == segments[1][:, None])[:, None]

    def defined(values):
        return definition.attend(
            values["query"],
            np.repeat(values["key"], heads // groups, axis=2),
            np.repeat(values["value"], heads // groups, axis=2),
            **defined_score(score, heads),
            bias=values.get("bias", 0.0),
            mask=allowed,
            normalization=p.normalization,
            soft_cap=p.soft_cap,
            sink=values.get("sink"),
        )

    def loss(*values):
        values = dict(zip(arrays, values, strict=True))
        upstream = [values[n] for n in ("upstream", "upstream of scores") if n in values]
        return sum((x * u).sum() for x, u in zip(defined(values), upstream, strict=False))

    values = {name: array for name, (_, array) in arrays.items()}
    output, weights = defined(values)

    # Ours.
    def attended(tensors):
        tensors = dict(tensors)
        upstream = [tensors.pop(n) for n in ("upstream", "upstream of scores") if n in tensors]
        found = ops.attend(**tensors, **given, kernel=kernel)
        found = found if p.with_scores else (found,)
        return [keras.ops.cast(x, u.dtype) * u for x, u in zip(found, upstream, strict=True)]

    plain = {n: a.astype("float32") for n, a in values.items() if not n.startswith("upstream")}
    kernel = possible(p, {**plain, **given})
    context = contextlib.nullcontext() if p.blocks is None else blocks_of(*p.blocks)
    with context:
        found = differentiate(p, attended, arrays)
    close(found["upstream"], output, ROUNDING[p.dtype], "output")
    if p.with_scores:
        close(found["upstream of scores"], weights, ROUNDING[p.dtype], "scores")
    unseen = ~allowed.any(axis=-1).transpose(0, 2, 1)
    assert (found["upstream"][unseen] == 0).all()
    if "hard" in p.normalization:
        return
    # The slope is a difference quotient, with fewer digits than float64.
    tolerance = max(ROUNDING[p.dtype], 1e-8)
    check_slope(loss, list(values.values()), [found[n] for n in arrays], random, tolerance)


def given_positions(random, axes, sizes):
    return None if axes is None else random.integers(0, 12, *sizes(axes))


def possible(problem, arguments):
    """The kernel of a problem, or "auto" where it cannot do this."""
    if problem.kernel == "auto":
        return "auto"
    try:
        ops.explain(**arguments, kernel=problem.kernel)
    except ValueError as error:
        assert "cannot do this" in str(error)
        return "auto"
    return problem.kernel


ROWS = [
    *(Problem(heads=(4, 2), score=name, mask="BHTS", with_scores=True) for name in SCORES),
    Problem(soft_cap=2.0, size=3.0, bias="BHTS", mask="BHTS"),
    # Neither one over the root of 3 nor 1.1 is a number of float32.
    *(
        Problem(queries=n, key_dim=3, soft_cap=1.1, dtype=DTYPES[-3], kernel=kernel)
        for n in (1, 5)
        for kernel in ("reference", "blockwise", "auto")
    ),
    # What was found by chance.
    Problem(keys=0, score="cosine"),
    Problem(mask="B11S", allowed=0.5, garbage=np.nan),
    Problem(mask="B1T1", allowed=0.5, garbage=np.nan),
    Problem(keys=1, bias="BHTS", sink=True, dtype=DTYPES[-3], key_dim=6, size=3.0),
    Problem(key_dim=130, value_dim=130, pattern=patterns.Causal()),
    Problem(key_dim=130, value_dim=129, mask="B11S", blocks=(2, 3), sink=True),
    Problem(key_dim=130, value_dim=130, dtype="bfloat16", kernel="fused"),
    Problem(keys=0, normalization="hard", mode="graph"),
    Problem(queries=1, kernel="one_query", mode="graph"),
    Problem(batch=1, queries=0, keys=0, heads=(2, 1), score="additive"),
]
# Tiles where no size is known, and what has none.
NEAR = patterns.SlidingWindow(3, 0)
UNKNOWN = [
    Problem(mode="graph", heads=(4, 2), mask="BHTS", bias="BHTS", blocks=(2, 3), segments=True),
    *(
        Problem(b, t, s, (4, 2), pattern=NEAR, offset=5, blocks=(2, 3), mode="graph")
        for b, t, s in ((2, 9, 9), (2, 6, 1), (2, 0, 4), (2, 4, 0), (2, 0, 0), (0, 5, 6))
    ),
]
ROWS += [pytest.param(problem, marks=pytest.mark.ci) for problem in UNKNOWN]


@pytest.mark.parametrize("problem", ROWS, ids=str)
def test_rows(problem):
    check(problem)


@pytest.mark.ci
@campaign.few(tensorflow=40, jax=8, torch=60)
@hypothesis.given(PROBLEMS)
def test_attend(problem):
    check(problem)


@pytest.mark.slow
def test_attend_for_long():
    campaign.many(check, PROBLEMS)
