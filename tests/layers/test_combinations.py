"""Every score with every normalization, pattern and position: all that is allowed works, all that
is not is refused by name. What is built in enters by itself."""

import itertools

import keras
import numpy as np
import pytest

from keras_attention import (
    Attention,
    HardAttention,
    MultiHeadAttention,
    RelativePositionAttention,
    SelfAttention,
    normalizations,
    patterns,
    positions,
    scores,
)
from tests import definition
from tests.arrays import random
from tests.gradients import gradients
from tests.signatures import signature

B, T, S, H, G, K, V = 2, 3, 5, 4, 2, 4, 6
BACKEND = keras.backend.backend()

# What arguments without a default are given.
REQUIRED = {"rank": 3, "max_length": 2 * S, "units": 3, "max_distance": 2, "k": 2}


def made(cls):
    parameters = signature(cls).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return cls(**{name: REQUIRED[name] for name in needed})


SCORES = dict(scores.BUILTIN)
NORMALIZATIONS = dict(normalizations.BUILTIN)
POSITIONS = {"none": None, **positions.BUILTIN, "shaw": positions.Shaw}
PATTERNS = {
    "none": None,
    "causal": patterns.Causal(),
    "window of a prefix": patterns.SlidingWindow(1, 2) | patterns.Prefix(1),
    "no diagonal": ~patterns.Dilated(2) & patterns.Causal(),
}


def fits(score, position):
    """Whether a position may go with a score, by the classes themselves."""
    allowed = None if POSITIONS[position] is None else POSITIONS[position].scores
    return allowed is None or issubclass(SCORES[score], allowed)


PAIRS = list(itertools.product(SCORES, POSITIONS))
# Scores with positions in all ways, and with each of them one of the patterns and normalizations,
# by turns, so that every two of these meet as well. Softmax is always there to compare with.
OTHERS = [name for name in NORMALIZATIONS if name != "softmax"]
ALLOWED = [
    (score, position, list(PATTERNS)[i % len(PATTERNS)], OTHERS[i // len(PATTERNS) % len(OTHERS)])
    for i, (score, position) in enumerate(pair for pair in PAIRS if fits(*pair))
]


def with_something_new(cases):
    """The cases that have a score, position, pattern or normalization which none before has."""
    seen = set()
    for case in cases:
        if not seen.issuperset(enumerate(case)):
            seen.update(enumerate(case))
            yield case


# JAX compiles every one of them anew.
CHOSEN = list(with_something_new(ALLOWED)) if BACKEND == "jax" else ALLOWED


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor), "float64")


def run(function, *arrays):
    """What `function` returns. JAX compiles it as a whole, not one operation at a time."""
    tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
    if BACKEND == "jax":
        import jax

        function = jax.jit(function)
    return [numpy(found) for found in function(*tensors)]


def allowed_by(pattern):
    mask = np.ones((T, S), bool)
    if PATTERNS[pattern] is not None:
        for i, j in np.ndindex(T, S):
            mask[i, j] = {
                "causal": j <= i,
                "window of a prefix": i - 1 <= j <= i + 2 or j < 1,
                "no diagonal": (i - j) % 2 == 1 and j <= i,
            }[pattern]
    return mask


PADDING = np.array([[True] * S, [True, False, True, True, False]])


def layers_of(make, score, position, pattern, normalization, **given):
    """A layer with softmax and one with `normalization`, with the same random weights."""
    found = {}
    for name in ("softmax", normalization):
        layer = make(
            H, K, V, score=made(SCORES[score]), normalization=made(NORMALIZATIONS[name]),
            pattern=PATTERNS[pattern],
            position=None if POSITIONS[position] is None else made(POSITIONS[position]), **given,
        )  # fmt: skip
        layer.build((B, T, 8), (B, S, 8))
        # All but the α of heads, which stays that of the definition.
        own = layer.normalization.variables if name == "adaptive_entmax" else []
        weights = [v for v in layer.trainable_variables if not any(v is one for one in own)]
        for seed, variable in enumerate(weights):
            variable.assign(random(*variable.shape, seed=seed) / 2)
        found[name] = layer
    return found


def check_all(layers, pattern, symmetric):
    """Checks of what all of these layers give, computed in one go, and their gradients."""
    query, value = random(B, T, 8), random(B, S, 8, seed=1)
    moved = np.array([2, 0, 4, 1, 3])
    call = {"return_attention_scores": True}
    parts = 2 + symmetric

    def answers(query, value):
        found = []
        for layer in layers.values():
            found += layer(query, value, value_mask=PADDING, **call)
            if symmetric:
                there = keras.ops.take(value, moved, axis=1)
                found.append(layer(query, there, value_mask=PADDING[:, moved], **call)[1])
        return found

    def loss(query, value):
        # In training, as a hard choice at inference has no gradient.
        layer = list(layers.values())[1]
        return keras.ops.square(layer(query, value, value_mask=PADDING, training=True))

    found = run(answers, query, value)
    allowed = allowed_by(pattern) & PADDING[:, None, None]
    allowed = np.broadcast_to(allowed, (B, H, T, S))
    for index, name in enumerate(layers):
        output, weights, *permuted = found[parts * index : parts * (index + 1)]
        assert np.isfinite(output).all() and np.isfinite(weights).all(), name
        assert (weights[~allowed] == 0).all(), name
        assert (weights >= 0).all() and (weights <= 1 + 1e-6).all(), name
        sums, has_keys = weights.sum(axis=-1), allowed.any(axis=-1)
        if name == "sigmoid":
            assert (weights[allowed] > 0).all()
        else:
            np.testing.assert_allclose(sums, has_keys, atol=1e-5, err_msg=name)
        dead = ~has_keys.any(axis=1)
        assert (output[dead] == 0).all() and np.abs(output).max() > 0.01, name
        if symmetric:
            np.testing.assert_allclose(permuted[0], weights[..., moved], atol=1e-5, err_msg=name)
    # One set of scores is behind all of them: softmax gives it but for a constant.
    softmax = found[1]
    for index, name in enumerate(layers):
        weights = found[parts * index + 1]
        for b, h, t in np.ndindex(B, H, T):
            seen = allowed[b, h, t]
            if not seen.any() or name == "sigmoid" or (softmax[b, h, t, seen] < 1e-5).any():
                continue
            logs = list(np.log(softmax[b, h, t, seen]))
            expected = definition.normalize(logs, name)
            np.testing.assert_allclose(weights[b, h, t, seen], expected, atol=1e-3, err_msg=name)
    of_query, of_value = gradients(loss, [query, value])
    assert np.isfinite(of_query).all() and np.isfinite(of_value).all()
    assert np.abs(of_value).max() > 1e-4 and (of_value[~PADDING] == 0).all()


@pytest.mark.parametrize("score, position, pattern, normalization", CHOSEN)
def test_every_allowed_combination_works_in_attention(score, position, pattern, normalization):
    layers = layers_of(Attention, score, position, pattern, normalization)
    # A score by positions does not follow the keys as they move.
    symmetric = position == pattern == "none" and score != "location"
    check_all(layers, pattern, symmetric)


@pytest.mark.slow
@pytest.mark.parametrize("score, position", [pair for pair in PAIRS if fits(*pair)])
def test_the_whole_product_of_what_is_allowed_works(score, position):
    for pattern, normalization in itertools.product(PATTERNS, OTHERS):
        layers = layers_of(Attention, score, position, pattern, normalization)
        check_all(layers, pattern, position == pattern == "none" and score != "location")


@pytest.mark.parametrize("score, position, pattern, normalization", CHOSEN[::5])
def test_a_sample_of_combinations_works_in_grouped_heads(score, position, pattern, normalization):
    given = {"num_key_value_heads": G, "qk_norm": "rms", "logit_soft_cap": 3.0}
    layers = layers_of(MultiHeadAttention, score, position, pattern, normalization, **given)
    check_all(layers, pattern, False)


@pytest.mark.parametrize("score", SCORES)
def test_keys_that_move_take_their_weights_along(score):
    if score == "location":
        pytest.skip("It is a score by positions.")
    layer = Attention(score=made(SCORES[score]))
    query, value, moved = random(B, T, 8), random(B, S, 8, seed=1), np.array([2, 0, 4, 1, 3])
    layer.build(query.shape, value.shape)
    call = {"return_attention_scores": True}
    output, weights, same, there = run(
        lambda q, v: [*layer(q, v, **call), *layer(q, keras.ops.take(v, moved, axis=1), **call)],
        query,
        value,
    )
    np.testing.assert_allclose(there, weights[..., moved], atol=1e-6)
    np.testing.assert_allclose(same, output, atol=1e-5)


def test_nothing_is_left_out_of_what_is_tried():
    assert len(ALLOWED) > 30
    for index, names in enumerate((SCORES, POSITIONS, PATTERNS, OTHERS)):
        assert {case[index] for case in CHOSEN} == set(names)


# What is refused


@pytest.mark.parametrize("score, position", [pair for pair in PAIRS if not fits(*pair)])
def test_a_position_and_a_score_that_do_not_fit_are_refused_by_name(score, position):
    names = f"{POSITIONS[position].__name__}.*{SCORES[score].__name__}"
    for make in (Attention, MultiHeadAttention, SelfAttention):
        with pytest.raises(ValueError, match=names):
            make(H, K, score=made(SCORES[score]), position=made(POSITIONS[position]))
    if position == "shaw":
        with pytest.raises(ValueError, match=names):
            RelativePositionAttention(H, K, 2, score=made(SCORES[score]))


def test_some_combinations_are_refused():
    # Or the test above would test nothing.
    refused = [pair for pair in PAIRS if not fits(*pair)]
    assert ("additive", "rotary") in refused and ("cosine", "shaw") in refused
    assert ("cosine", "rotary") not in refused and ("additive", "alibi") not in refused


@pytest.mark.parametrize("name", [name for name in NORMALIZATIONS if name != "softmax"])
def test_a_sink_is_part_of_a_softmax_only(name):
    normalization = made(NORMALIZATIONS[name])
    names = f"`use_sink=True` needs normalization='softmax'.*{type(normalization).__name__}"
    for make in (Attention, MultiHeadAttention, SelfAttention):
        with pytest.raises(ValueError, match=names):
            make(H, K, use_sink=True, normalization=normalization)
    if name == "hard":
        for gradient in normalizations.GRADIENTS:
            with pytest.raises(TypeError, match="HardAttention does not accept `use_sink`"):
                HardAttention(H, K, gradient=gradient, use_sink=True)


@pytest.mark.parametrize("make", [Attention, MultiHeadAttention, SelfAttention])
def test_a_choice_that_returns_its_probability_needs_hard_attention(make):
    normalization = normalizations.Hard(gradient="reinforce")
    with pytest.raises(ValueError, match=rf"reinforce.*`HardAttention.*{make.__name__}"):
        make(H, K, normalization=normalization)
    assert HardAttention(H, K, gradient="reinforce").normalization == normalization


@pytest.mark.parametrize(
    "slot, value",
    [
        ("score", "softmax"),
        ("normalization", "dot"),
        ("pattern", "rotary"),
        ("position", "causal"),
    ],
)
def test_a_name_of_another_slot_is_refused(slot, value):
    with pytest.raises(ValueError, match=f"Unknown {slot} '{value}'"):
        Attention(H, K, **{slot: value})
    objects = {"softmax": normalizations.Softmax, "dot": scores.Dot, "rotary": positions.Rotary,
               "causal": patterns.Causal}  # fmt: skip
    with pytest.raises(TypeError, match=f"`{slot}` must be"):
        Attention(H, K, **{slot: objects[value]()})
