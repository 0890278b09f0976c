"""Pointers over a memory, and copying from a source, against their equations in float64."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import generation, masks
from keras_attention.visualization import collect_attention
from tests.arrays import numpy
from tests.gradients import gradients

B, T, S, D, E = 2, 3, 5, 8, 6
RNG = np.random.default_rng(0)
QUERY = RNG.normal(size=(B, T, D)).astype("float32")
MEMORY = RNG.normal(size=(B, S, E)).astype("float32")
KEPT = np.array([[True] * S, [False, True, True, True, False]])
V, EXTRA = 7, 2
LOGITS = RNG.normal(size=(B, T, V)).astype("float32")
WEIGHTS = RNG.dirichlet(np.ones(S), (B, T)).astype("float32")
# The same token twice, tokens that are not in the vocabulary, and one that is never copied.
IDS = np.array([[3, 7, 3, 8, 0], [-1, 6, 8, 8, 1]], "int32")


def double(x):
    return np.asarray(numpy(x), "float64")


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def probabilities(logits):
    return numpy(keras.ops.softmax(logits))


def test_a_pointer_is_equation_three():
    layer = ka.PointerHead()
    found = numpy(layer(QUERY, MEMORY))
    score = layer.score
    hidden = np.tanh(
        (QUERY @ double(score.query_kernel)[0])[:, :, None]
        + (MEMORY @ double(score.key_kernel)[0])[:, None]
        + double(score.bias)[0]
    )
    np.testing.assert_allclose(found, hidden @ double(score.v)[0], atol=1e-5)


@pytest.mark.parametrize("score", ["general", "additive"])
def test_what_is_masked_has_probability_zero_and_padding_changes_nothing(score):
    layer = ka.PointerHead(score, logit_soft_cap=5.0)
    garbage = np.where(KEPT[..., None], MEMORY, np.nan).astype("float32")
    found = probabilities(layer(QUERY, garbage, memory_mask=KEPT))
    np.testing.assert_array_equal(found[1][:, ~KEPT[1]], 0.0)
    alone = probabilities(layer(QUERY[1:], MEMORY[1:, 1:4]))
    np.testing.assert_allclose(found[1:, :, 1:4], alone, rtol=1e-5)
    carried = masks.carry(keras.ops.convert_to_tensor(garbage), keras.ops.convert_to_tensor(KEPT))
    np.testing.assert_allclose(probabilities(layer(QUERY, carried)), found, rtol=1e-6)
    once = np.tril(np.ones((T, S), bool), 1)
    found = probabilities(layer(QUERY, MEMORY, attention_mask=once))
    assert (found[:, ~once] == 0).all() and (found[:, once] > 0).all()
    of_rows = probabilities(layer(QUERY, MEMORY, attention_mask=np.stack([once, once])))
    np.testing.assert_array_equal(of_rows, found)


def test_logits_are_not_collected_as_weights():
    query, memory = keras.Input((T, D)), keras.Input((S, E))
    attended = ka.Attention(2, 4, name="attention")(query, memory)
    model = keras.Model([query, memory], ka.PointerHead(name="pointer")(attended, memory))
    assert list(collect_attention(model, [QUERY, MEMORY])) == ["attention"]


def test_a_pointer_carries_the_mask_of_its_query():
    layer, real = ka.PointerHead(), np.array([[True] * T, [True, False, False]])
    output = layer(QUERY, MEMORY, query_mask=real)
    np.testing.assert_array_equal(numpy(masks.implicit(output)), real)
    np.testing.assert_allclose(numpy(output)[real], numpy(layer(QUERY, MEMORY))[real], rtol=1e-5)


def test_gradients_of_a_loss_are_finite_and_none_reaches_padding():
    layer, target = ka.PointerHead(), np.array([[0, 4, 2], [1, 2, 3]])
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(query, memory):
        return cross_entropy(target, layer(query, memory, memory_mask=KEPT))

    of_query, of_memory = gradients(loss, [QUERY, MEMORY])
    assert np.isfinite(of_query).all() and np.abs(of_query).max() > 0
    np.testing.assert_array_equal(of_memory[~KEPT], 0.0)
    assert np.abs(of_memory[KEPT]).min() > 0


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_logits_are_of_float32_in_half_precision(policy):
    full, half = (ka.PointerHead(dtype=dtype) for dtype in ("float32", policy))
    expected = numpy(full(QUERY, MEMORY))
    half(QUERY, MEMORY)
    half.set_weights(full.get_weights())
    found = half(QUERY, MEMORY, memory_mask=KEPT)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    kept = np.broadcast_to(KEPT[:, None], found.shape)
    np.testing.assert_allclose(numpy(found)[kept], expected[kept], atol=0.05)
    layer = ka.PointerGenerator(V, EXTRA, dtype=policy)
    found = layer(QUERY, LOGITS, WEIGHTS, IDS)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    # Logits that float16 does not have, and weights that are 0 there.
    full = ka.PointerGenerator(V, EXTRA)
    given = (QUERY, 1e5 * LOGITS, 1e-8 * WEIGHTS, IDS)
    expected = numpy(full(*given))
    layer.set_weights(full.get_weights())
    np.testing.assert_allclose(numpy(layer(*given)), expected, rtol=1e-2, atol=0.05)


def test_a_model_learns_to_point(tmp_path):
    """At the largest element, whose position no class of a fixed number could name."""
    elements = keras.Input((None, 1))
    hidden = keras.layers.Dense(16, "tanh")(elements)
    state = keras.layers.GlobalMaxPooling1D(keepdims=True)(hidden)
    model = keras.Model(elements, ka.PointerHead()(state, hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss)
    x = np.random.default_rng(0).uniform(-2, 2, (256, 6, 1)).astype("float32")
    y = x.argmax(1)
    first = model.evaluate(x, y, verbose=0)
    model.fit(x, y, epochs=8, verbose=0)
    assert model.evaluate(x, y, verbose=0) < 0.6 * first
    model.save(tmp_path / "pointer.keras")
    again = keras.models.load_model(tmp_path / "pointer.keras")
    assert again(x[:, :4]).shape == (256, 1, 4)
    np.testing.assert_allclose(numpy(again(x)), numpy(model(x)), rtol=1e-5)


def copying(layer, weights, kept=None):
    """Equation 9, in float64, of weights that sum to one over the tokens that may be copied."""
    dense = layer._dense
    weights = np.where((IDS >= 0)[:, None] if kept is None else kept[:, None], weights, 0.0)
    weights = weights / weights.sum(-1, keepdims=True)
    gate = 1 / (1 + np.exp(-(QUERY @ double(dense.kernel) + double(dense.bias))))
    found = np.concatenate([gate * softmax(LOGITS.astype("float64")), np.zeros((B, T, EXTRA))], -1)
    for b, s in np.ndindex(B, S):
        if IDS[b, s] >= 0:
            found[b, :, IDS[b, s]] += (1 - gate[b, :, 0]) * weights[b, :, s]
    return found


def test_copying_is_equation_nine():
    layer = ka.PointerGenerator(V, EXTRA, bias_initializer="ones")
    found = np.exp(numpy(layer(QUERY, LOGITS, WEIGHTS, IDS)))
    np.testing.assert_allclose(found, copying(layer, WEIGHTS), rtol=1e-4, atol=1e-30)
    found = np.exp(numpy(layer(QUERY, LOGITS, WEIGHTS, IDS, source_mask=KEPT)))
    np.testing.assert_allclose(found, copying(layer, WEIGHTS, KEPT), rtol=1e-4, atol=1e-30)
    heads = np.stack([WEIGHTS, 0 * WEIGHTS, 3 * WEIGHTS], 1)
    found = np.exp(numpy(layer(QUERY, LOGITS, heads, IDS)))
    np.testing.assert_allclose(found, copying(layer, WEIGHTS), rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("heads", [False, True])
def test_probabilities_sum_to_one_of_any_weights(heads):
    layer, none = ka.PointerGenerator(V, EXTRA), np.array([[True] * S, [False] * S])
    copied = np.abs(IDS)
    garbage = np.where(KEPT[:, None], WEIGHTS, np.nan)
    for weights, ids, mask in (
        (WEIGHTS, copied, KEPT),
        (garbage, copied, KEPT),
        (7 * WEIGHTS, copied, None),
        (1e-20 * WEIGHTS, IDS, None),
        (0 * WEIGHTS, copied, None),
        (WEIGHTS, copied, none),
    ):
        weights = np.stack([weights, 2 * weights], 1) if heads else weights
        found = np.exp(double(layer(QUERY, LOGITS, weights, ids, source_mask=mask)))
        np.testing.assert_allclose(found.sum(-1), 1.0, rtol=1e-5)
    # Without tokens to copy, the vocabulary's distribution.
    np.testing.assert_allclose(found[1, :, :V], softmax(double(LOGITS[1])), rtol=1e-5)


def test_logarithms_are_finite_where_probabilities_are_not():
    layer = ka.PointerGenerator(V, EXTRA)
    huge = np.where(np.arange(V) == 2, 1e4, -1e4).astype("float32") * np.ones((B, T, 1), "float32")
    one = np.eye(S, dtype="float32")[None, :T] * np.ones((B, 1, 1), "float32")
    target = np.array([[8, 5, 0], [8, 7, 1]])
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(x, logits, weights):
        return cross_entropy(target, layer(x, logits, weights, IDS))

    assert np.isfinite(numpy(layer(QUERY, huge, one, IDS))).all()
    for gradient in gradients(loss, [QUERY, huge, one]):
        assert np.isfinite(gradient).all()
    found = layer(masks.carry(keras.ops.convert_to_tensor(QUERY), KEPT[:, :T]), huge, one, IDS)
    assert masks.implicit(found) is not None


def test_copying_in_a_model_of_unknown_lengths(tmp_path):
    x, memory = keras.Input((None, D)), keras.Input((None, E))
    ids = keras.Input((None,), dtype="int32")
    attention = ka.Attention(score="general")
    context, weights = attention(x, memory, return_attention_scores=True)
    logits = keras.layers.Dense(V)(keras.layers.Concatenate()([x, context]))
    outputs = ka.PointerGenerator(V, EXTRA)(x, logits, weights, ids)
    model = keras.Model([x, memory, ids], outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss)
    given, target = [QUERY, MEMORY, IDS], np.array([[3, 7, 8], [6, 8, 1]])
    first = model.train_on_batch(given, target)
    for _ in range(10):
        last = model.train_on_batch(given, target)
    assert np.isfinite(last) and last < first
    model.save(tmp_path / "copying.keras")
    again = keras.models.load_model(tmp_path / "copying.keras")
    np.testing.assert_allclose(numpy(again(given)), numpy(model(given)), atol=1e-5)


def test_beams_of_positions_are_the_best_orders_without_repetition():
    layer, state = ka.PointerHead("general"), np.ones((B, 1, D), "float32")
    scores = numpy(layer(state, MEMORY))[:, 0]
    table = keras.ops.convert_to_tensor(MEMORY)

    def step(tokens, free, memory):
        free = keras.ops.logical_and(free, keras.ops.arange(S) != tokens[:, None])
        logits = layer(keras.ops.ones((tokens.shape[0], 1, D)), memory)[:, 0]
        return keras.ops.where(free, logits, -float("inf")), free

    first, length = np.full(B, -1, "int32"), 3
    found = generation.beam_search(
        step, first, KEPT, table, num_beams=8, max_tokens=length, length_penalty=0.0
    )
    for b in range(B):
        order = [s for s in np.argsort(-scores[b]) if KEPT[b, s]][:length]
        np.testing.assert_array_equal(numpy(found.tokens)[b, 0], order)


def test_beams_copy_what_is_not_in_the_vocabulary():
    layer = ka.PointerGenerator(V, EXTRA)
    layer(QUERY, LOGITS, WEIGHTS, IDS)
    layer._dense.bias.assign([-20.0])  # p is 0

    def step(tokens, at, ids):
        weights = keras.ops.one_hot(at, S)
        rows = tokens.shape[0]
        logits, x = keras.ops.zeros((rows, 1, V)), keras.ops.zeros((rows, 1, D))
        return layer(x, logits, weights, ids)[:, 0], at + 1

    start = np.array([[0], [1]], "int32")
    found = generation.beam_search(
        step, np.zeros(B, "int32"), start, IDS, num_beams=2, max_tokens=4, num_return=None
    )
    np.testing.assert_array_equal(numpy(found.tokens), [[3, 7, 3, 8], [6, 8, 8, 1]])


def test_no_steps_of_a_decoder():
    layer = ka.PointerGenerator(4, num_extra_tokens=2)
    arrays = [np.zeros((2, 0, n), "float32") for n in (3, 4, 5)]
    assert tuple(layer(*arrays, np.zeros((2, 5), "int32")).shape) == (2, 0, 6)
