"""Local, atrous and sparse self-attention: dense attention under a mask written as loops."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention import (
    AtrousSelfAttention,
    LocalSelfAttention,
    SelfAttention,
    SparseSelfAttention,
    patterns,
)
from tests.arrays import close, random, run
from tests.arrays import wide as numpy
from tests.gradients import gradients

B, T, D = 2, 11, 8
ON_JAX = keras.backend.backend() == "jax"


def loops(length, attends, causal):
    """The mask (T, T) of a rule on two positions."""
    mask = np.zeros((length, length), bool)
    for i in range(length):
        for j in range(length):
            mask[i, j] = attends(i, j) and (j <= i or not causal)
    return mask


# Name: the layer, and the rule of the table in docs/design.md, in other words than its patterns.
PRESETS = {
    "local": (
        lambda **kwargs: LocalSelfAttention(2, 4, neighbors=2, **kwargs),
        lambda i, j: j in (i - 2, i - 1, i, i + 1, i + 2),
    ),
    "local, every third": (
        lambda **kwargs: LocalSelfAttention(2, 4, neighbors=2, rate=3, **kwargs),
        lambda i, j: j in (i - 6, i - 3, i, i + 3, i + 6),
    ),
    "local, beyond the ends": (
        lambda **kwargs: LocalSelfAttention(2, 4, neighbors=50, **kwargs),
        lambda i, j: True,
    ),
    "atrous": (
        lambda **kwargs: AtrousSelfAttention(2, 4, rate=3, **kwargs),
        lambda i, j: i % 3 == j % 3,
    ),
    "atrous, beyond the ends": (
        lambda **kwargs: AtrousSelfAttention(2, 4, rate=40, **kwargs),
        lambda i, j: i == j,
    ),
    "sparse": (
        lambda **kwargs: SparseSelfAttention(2, 4, rate=3, **kwargs),
        lambda i, j: i % 3 == j % 3 or j in (i - 2, i - 1, i, i + 1, i + 2),
    ),
    "sparse, every one": (
        lambda **kwargs: SparseSelfAttention(2, 4, rate=1, **kwargs),
        lambda i, j: True,
    ),
}
PADDING = np.array([[True] * T, [True] * 4 + [False] * 3 + [True] * 2 + [False] * 2])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_dense_attention_under_its_mask(name, causal):
    make, attends = PRESETS[name]
    layer, dense = make(causal=causal, use_bias=True), SelfAttention(2, 4, use_bias=True)
    for each in (layer, dense):
        each.build((B, T, D))
    dense.set_weights(layer.get_weights())
    mask = loops(T, attends, causal)

    def both(x):
        given = {"return_attention_scores": True}
        ours = [*layer(x, **given), *layer(x, query_mask=PADDING, **given), layer(x[:, :2])]
        return [
            *ours,
            *dense(x, attention_mask=mask, **given),
            *dense(x, attention_mask=mask, query_mask=PADDING, **given),
            dense(x[:, :2], attention_mask=mask[:2, :2]),
        ]

    answers = run(both, random(B, T, D))
    for found, expected in zip(answers[:5], answers[5:], strict=True):
        close(found, expected)
    allowed = mask & PADDING[:, :, None] & PADDING[:, None]
    for weights, seen in ((answers[1], mask), (answers[3], allowed[:, None])):
        np.testing.assert_array_equal(weights > 0, np.broadcast_to(seen, weights.shape))
    assert (answers[2][~PADDING] == 0).all()


@pytest.mark.parametrize("name", ["local, every third", "atrous", "sparse"])
def test_a_pattern_of_the_users_and_a_causal_call_count_too(name):
    make, attends = PRESETS[name]
    layer = make(pattern=~patterns.Prefix(2) | patterns.Dilated(5))
    layer.build((B, T, D))

    def weights(x):
        given = {"return_attention_scores": True}
        return layer(x, **given)[1], layer(x, use_causal_mask=True, **given)[1]

    found = run(weights, random(B, T, D))
    for answer, causal in zip(found, (False, True), strict=True):
        mask = loops(T, lambda i, j: attends(i, j) and (j >= 2 or (i - j) % 5 == 0), causal)
        np.testing.assert_array_equal(answer > 0, np.broadcast_to(mask, answer.shape))


@pytest.mark.parametrize("name", PRESETS)
def test_only_the_keys_that_are_seen_get_gradients(name):
    make, attends = PRESETS[name]
    layer = make(causal=True)
    layer.build((1, T, D))
    i = 7
    (gradient,) = gradients(lambda x: keras.ops.square(layer(x)[:, i]), [random(1, T, D)])
    seen = loops(T, attends, True)[i]
    assert (gradient[0, ~seen] == 0).all()
    assert (np.abs(gradient[0, seen]).max(axis=-1) > 0).all()


def test_positions_of_a_call_move_the_window():
    layer = LocalSelfAttention(2, 4, neighbors=1)
    x, at = random(B, T, D), np.array([[*range(5), *range(20, 26)], [*range(10), 100]])
    _, weights = layer(x, positions=at, return_attention_scores=True)
    near = np.abs(at[:, :, None] - at[:, None]) <= 1
    np.testing.assert_array_equal(numpy(weights) > 0, np.broadcast_to(near[:, None], weights.shape))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_loads_from_its_config(name, tmp_path):
    make, _ = PRESETS[name]
    x = keras.Input((None, D))
    layer = make(causal=True, pattern=~patterns.Prefix(1))
    model = keras.Model(x, layer(x))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    found, expected = run(lambda x: [loaded(x), model(x)], random(B, T, D))
    close(found, expected, 1e-6)
    config = loaded.get_layer(layer.name).get_config()
    for argument in ("neighbors", "rate", "causal"):
        assert config.get(argument) == layer.get_config().get(argument)


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, None])
def test_sizes_must_be_counts(bad):
    for make, name in (
        (lambda: LocalSelfAttention(2, 4, neighbors=bad), "neighbors"),
        (lambda: LocalSelfAttention(2, 4, neighbors=1, rate=bad), "rate"),
        (lambda: AtrousSelfAttention(2, 4, rate=bad), "rate"),
        (lambda: SparseSelfAttention(2, 4, rate=bad), "rate"),
    ):
        with pytest.raises(ValueError, match=f"argument `{name}`"):
            make()


def test_a_second_sequence_is_refused():
    for make, _ in PRESETS.values():
        with pytest.raises(ValueError, match="takes one sequence"):
            make()(random(B, T, D), random(B, 5, D))


# Properties. One length for all examples, so that JAX compiles each layer once.

QUICK = settings(max_examples=15, deadline=None, database=None)
COMPILED = {}


def compiled(name, causal):
    """A function of inputs and a mask, which every example of a preset shares."""
    if (name, causal) not in COMPILED:
        keras.utils.set_random_seed(1)
        layer = PRESETS[name][0](causal=causal)
        layer.build((1, T, D))

        def call(x, mask):
            return layer(x, query_mask=mask)

        if ON_JAX:
            import jax

            call = jax.jit(call)
        COMPILED[name, causal] = call
    return COMPILED[name, causal]


def answer(name, causal, x, mask=None):
    mask = np.ones(x.shape[:2], bool) if mask is None else mask
    tensors = map(keras.ops.convert_to_tensor, (x, mask))
    return numpy(compiled(name, causal)(*tensors))


@given(st.sampled_from(sorted(PRESETS)), st.integers(0, T - 2), st.integers(0, 2**31))
@QUICK
def test_nothing_after_a_position_changes_it(name, t, seed):
    x = random(1, T, D, seed=seed)
    changed = x.copy()
    changed[:, t + 1 :] = 100 * random(1, T - t - 1, D, seed=seed + 1)
    before, after = answer(name, True, x), answer(name, True, changed)
    np.testing.assert_array_equal(after[:, : t + 1], before[:, : t + 1])
    assert np.abs(after[:, t + 1 :] - before[:, t + 1 :]).max() > 1e-3


@given(
    st.sampled_from(sorted(PRESETS)),
    st.booleans(),
    st.integers(1, T),
    st.integers(0, T),
    st.integers(0, 2**31),
)
@QUICK
def test_padding_on_either_side_changes_nothing(name, causal, length, before, seed):
    before = min(before, T - length)
    x = random(1, length, D, seed=seed)
    answers = []
    for start in (0, before):
        padded, mask = 100 * random(1, T, D, seed=seed + 1 + start), np.zeros((1, T), bool)
        padded[:, start : start + length] = x
        mask[:, start : start + length] = True
        found = answer(name, causal, padded, mask)
        assert (found[~mask] == 0).all()
        answers.append(found[:, start : start + length])
    close(*answers)
    assert np.abs(answers[0]).max() > 1e-3


@given(st.sampled_from(sorted(PRESETS)), st.booleans(), st.integers(0, T - 1), st.integers(0, 99))
@QUICK
def test_a_key_that_is_not_seen_changes_nothing(name, causal, j, seed):
    x = random(1, T, D, seed=seed)
    changed = x.copy()
    changed[:, j] += 50
    before, after = answer(name, causal, x), answer(name, causal, changed)
    seen = loops(T, PRESETS[name][1], causal)[:, j]
    np.testing.assert_array_equal(after[:, ~seen], before[:, ~seen])
    assert (np.abs(after - before)[0, seen].max(axis=-1) > 0).all()
