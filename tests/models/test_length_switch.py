"""Stacks whose positions change beyond a length: "longrope" reads the text again."""

import contextlib

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import numpy

ORIGINAL = 6
IDS = np.random.default_rng(1).integers(1, 20, (2, 5)).astype("int32")
PADDING = 0, 2
MASK = np.array([[n >= padding for n in range(5)] for padding in PADDING])
LONG = {"short_factors": [1.0, 1.5], "long_factors": [3.0, 9.0], "factor": 4.0}


def decoder(scaling="longrope", layers=2):
    keras.utils.set_random_seed(0)
    options = {"scaling": scaling, "original_max_length": ORIGINAL}
    rotary = ka.positions.Rotary(100.0, **options, **(LONG if scaling == "longrope" else {}))
    blocks = [
        ka.TransformerBlock(16, 2, causal=True, residual="pre", position=rotary)
        for _ in range(layers)
    ]
    model = ka.Decoder(blocks, ka.Embeddings(ka.ScaledEmbedding(20, 8)), logits=ka.Logits(20))
    model.build((None, None))
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if len(weight.shape) > 1:
            weight.assign(rng.normal(0, 2 / weight.shape[-1] ** 0.5, weight.shape))
    return model


@pytest.fixture(scope="module")
def model():
    return decoder()


@pytest.mark.ci
def test_steps_are_calls_with_the_whole_text(model):
    """In one program: rows pass the length in different steps. Beyond it all calls are alike."""

    def continued(ids, mask):
        last, cache = model.start(ids, max_tokens=7, mask=mask)
        return ka.generation.greedy(model.step, last, cache, max_tokens=7)

    is_torch = keras.config.backend() == "torch"
    with pytest.warns(UserWarning, match="step") if is_torch else contextlib.nullcontext():
        found = numpy(ka.generation.compiled(continued, model)(IDS, MASK).tokens)
    whole = np.concatenate([IDS, found], axis=1)
    for row, padding in enumerate(PADDING):
        # Without its padding.
        text = np.pad(whole[row, padding:], (0, padding))[None]
        logits = numpy(model(text[:, :ORIGINAL]))[0], numpy(model(text))[0]
        assert np.abs(logits[0][1:] - logits[1][1:ORIGINAL]).max() > 0.1
        short, long = (x.argmax(-1) for x in logits)
        length = IDS.shape[1] - padding
        expected = [(short if t < ORIGINAL else long)[t] for t in range(length - 1, length + 6)]
        np.testing.assert_array_equal(found[row], expected)


@pytest.mark.ci
def test_a_cache_that_is_cut_below_the_length_is_read_again(model):
    """Once, in the next step; and above it, of longer texts, not at all."""
    text = np.random.default_rng(2).integers(1, 20, (2, 12)).astype("int32")
    cache = model.grow_cache(model.make_cache(2, ORIGINAL + 1), 12)
    _, cache = model(text[:, ::-1], cache=cache)
    _, cache = model(text[:, :5], cache=model.cut_cache(cache, 0))
    _, cache = model(text[:, 5:9], cache=cache)
    for length, end in ((4, 5), (5, 8), (7, 8)):
        cache = model.cut_cache(cache, length)
        output, cache = model(text[:, length:end], cache=cache)
        expected = numpy(model(text[:, :end]))[:, length:]
        np.testing.assert_allclose(numpy(output), expected, atol=1e-4)


@pytest.mark.any_backend
def test_tokens_are_stored_only_where_they_are_read_again(model):
    assert len(model.make_cache(2, ORIGINAL)) == 2
    assert len(model.make_cache(2, ORIGINAL + 1)) == 3
    assert len(decoder(layers=1).make_cache(2, 12)) == 1


@pytest.mark.any_backend
def test_dynamic_is_refused_beyond_its_length():
    model = decoder("dynamic")
    assert len(model.make_cache(2, ORIGINAL)) == 2
    with pytest.raises(ValueError, match=r"'dynamic' must have at most `original_max_length`=6"):
        model.start(IDS[:, :3], max_tokens=ORIGINAL - 1)
    # A single block computes all of a cached key that the length changes.
    assert len(decoder("dynamic", layers=1).make_cache(2, 12)) == 1
