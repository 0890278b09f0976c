"""Decoding in any pieces, of rows of any length with padding anywhere, is one causal pass."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import keras_attention as ka
from keras_attention import patterns, positions
from tests.arrays import numpy
from tests.fuzz import campaign
from tests.fuzz.configurations import BACKEND, HEADS, PATTERNS, SCORES, Random, Short, fill, maybe
from tests.fuzz.test_layers import POSITIONS

FEATURES = 8
CACHED = {
    **POSITIONS,
    "yarn": lambda: positions.Rotary(scaling="yarn", factor=4.0, original_max_length=4),
}


@dataclasses.dataclass(frozen=True, repr=False)
class Text(Short):
    """A layer, the tokens of a few rows, and the pieces that they come in."""

    layer: str = "MultiHeadAttention"
    heads: tuple = (2, 2)
    batch: int = 2
    pieces: tuple = (3, 1, 2)
    score: str = "scaled_dot"
    normalization: str = "softmax"
    pattern: object = None
    position: str = "none"
    qk_norm: object = False
    soft_cap: float | None = None
    sink: bool = False
    # The rate of real tokens; None for no mask.
    real: float | None = None
    spare: int = 0
    memory: bool = False
    seed: int = 0


TEXTS = st.builds(
    Text,
    layer=st.sampled_from(["Attention", "MultiHeadAttention", "SelfAttention", "TransformerBlock"]),
    heads=st.sampled_from([heads for heads in HEADS if FEATURES % heads[0] == 0]),
    batch=st.sampled_from([2, 1]),
    pieces=st.lists(st.sampled_from([1, 1, 2, 3, 5]), min_size=1, max_size=5).map(tuple),
    score=st.sampled_from(
        ["scaled_dot"] * 6 + [name for name in SCORES if name not in ("location",)]
    ),
    normalization=st.sampled_from(["softmax"] * 4 + ["sigmoid", "sparsemax"]),
    pattern=st.one_of(
        maybe(PATTERNS),
        # Rings.
        st.builds(patterns.SlidingWindow, st.integers(0, 4), st.integers(0, 2)),
        st.builds(patterns.Block, st.integers(1, 5)),
    ),
    position=st.sampled_from(list(CACHED)),
    qk_norm=st.sampled_from([False, False, "rms", "layer"]),
    soft_cap=st.sampled_from([None, None, 2.0]),
    sink=st.booleans(),
    real=st.sampled_from([None, 0.7, 0.3]),
    spare=st.sampled_from([0, 0, 3]),
    memory=st.booleans(),
    seed=st.integers(0, 2**16),
)


def made(text):
    """The layer, causal."""
    t = text
    options = {
        "score": SCORES[t.score](),
        "normalization": t.normalization,
        "pattern": t.pattern,
        "position": CACHED[t.position](),
        "num_key_value_heads": t.heads[1],
        "qk_norm": t.qk_norm,
        "logit_soft_cap": t.soft_cap,
        "use_sink": t.sink and t.normalization == "softmax",
    }
    try:
        if t.layer == "TransformerBlock":
            return ka.TransformerBlock(
                6, t.heads[0], causal=True, cross_attention=t.memory, **options
            )
        if t.layer == "SelfAttention":
            options["causal"] = True
        return getattr(ka, t.layer)(t.heads[0], 4, 3, **options)
    except ValueError as error:
        hypothesis.assume("supports only these scores" not in str(error))
        raise


def ready(function):
    """JAX would compile each operation of each piece."""
    if BACKEND != "jax":
        return function
    import jax

    return jax.jit(function)


def check(text):
    t, random = text, Random(text.seed)
    layer = made(t)
    block = t.layer == "TransformerBlock"
    length = sum(t.pieces)
    x = random.normal(t.batch, length, FEATURES)
    context = random.normal(t.batch, 4, FEATURES) if block and t.memory else None
    layer.build(x.shape, *(() if context is None else (context.shape,)))
    fill(layer, random)
    real = np.ones((t.batch, length), bool)
    if t.real is not None:
        real = random.some(t.real, t.batch, length)
    kept = None if context is None else random.some(0.7, t.batch, 4)

    # The whole: each row's real tokens, without gaps, at the front.
    order = np.argsort(~real, axis=1, kind="stable")
    packed = np.take_along_axis(x, order[..., None], axis=1)
    lengths = real.sum(axis=1, keepdims=True)
    there = np.arange(length) < lengths
    given = {"mask" if block else "query_mask": there}
    if block and context is not None:
        given.update(context=context, context_mask=kept)
    elif not block:
        given["use_causal_mask"] = True
    whole = numpy(ready(lambda x: layer(x, **given))(packed))
    expected = np.zeros_like(whole)
    np.put_along_axis(expected, order[..., None], whole, axis=1)

    cache = layer.make_cache(t.batch, max(1, int(lengths.max())) + t.spare)
    memory = None if context is None else layer.cache_context(context, kept)

    def step(x, mask, cache, memory):
        name = "mask" if block else "query_mask"
        further = {} if memory is None else {"context": memory}
        if t.real is not None:
            further[name] = mask
        return layer(x, cache=cache, **further)

    step, outputs, start = ready(step), [], 0
    for size in t.pieces:
        at = slice(start, start + size)
        output, cache = step(x[:, at], real[:, at], cache, memory)
        outputs.append(numpy(output))
        start += size
    found = np.concatenate(outputs, axis=1)
    np.testing.assert_array_equal(numpy(cache["index"]), lengths[:, 0])
    bound = 5e-5 * max(1.0, np.abs(expected[real]).max(initial=0.0))
    np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=bound)
    if not block:
        assert (found[~real] == 0).all()


@pytest.mark.ci
@campaign.few(tensorflow=15, jax=4, torch=30)
@hypothesis.given(TEXTS)
def test_caches(text):
    check(text)


@pytest.mark.slow
def test_caches_for_long():
    campaign.many(check, TEXTS)
