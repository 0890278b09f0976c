"""Segments and positions of a call: packed texts are the texts alone, padding is on either side."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, MultiHeadAttention, SelfAttention, ops, patterns, positions
from tests import definition
from tests.arrays import close, random, run
from tests.arrays import wide as numpy
from tests.gradients import weight_gradients

B, D = 2, 8
ON_JAX = keras.backend.backend() == "jax"

# Two texts to a row, of other lengths in each row.
LENGTHS = ((3, 4), (5, 2))
T = 7
SEGMENTS = np.array([[1] * first + [2] * second for first, second in LENGTHS], "int32")
RESTARTING = np.array([[*range(first), *range(second)] for first, second in LENGTHS], "int32")

PLACED = {"none": None, **positions.BUILTIN, "shaw": lambda: positions.Shaw(2)}
NEAR = patterns.SlidingWindow(1, 2)


def built(layer, *shapes):
    """The layer with random weights, so that tables and biases count."""
    layer.build(*shapes)
    for seed, variable in enumerate(layer.trainable_variables):
        variable.assign(random(*variable.shape, seed=seed))
    return layer


def position(name):
    return None if PLACED[name] is None else PLACED[name]()


def alone(layer, x):
    """The two texts of the first row of packed `x`, one call each, put together again."""
    first = LENGTHS[0][0]
    return keras.ops.concatenate([layer(x[:1, :first]), layer(x[:1, first:])], axis=1)


# Packed texts


@pytest.mark.parametrize(
    "make, placed, pattern",
    [
        *((SelfAttention, name, patterns.Causal()) for name in PLACED),
        (SelfAttention, "none", None),
        (SelfAttention, "shaw", NEAR),
        (MultiHeadAttention, "rotary", NEAR),
        (MultiHeadAttention, "shaw", None),
    ],
)
def test_packed_texts_are_the_texts_alone(make, placed, pattern):
    layer = built(make(2, 4, position=position(placed), pattern=pattern), (B, T, D))
    x, cotangent = random(B, T, D), keras.ops.convert_to_tensor(random(1, T, D, seed=1))

    def packed(x):
        return layer(x, segment_ids=SEGMENTS, positions=RESTARTING)[:1]

    found, expected, unpacked = run(lambda x: [packed(x), alone(layer, x), layer(x)[:1]], x)
    close(found, expected)
    assert np.abs(unpacked - expected).max() > 0.01
    of_packed = weight_gradients(layer, lambda x: packed(x) * cotangent, [x])
    of_alone = weight_gradients(layer, lambda x: alone(layer, x) * cotangent, [x])
    for found, expected in zip(of_packed, of_alone, strict=True):
        for gradient, correct in zip(found, expected, strict=True):
            close(gradient, correct, 1e-4)


@pytest.mark.parametrize("placed", PLACED)
def test_where_a_text_stands_in_its_row_does_not_matter(placed):
    # All of these depend on distances alone, and a text's own distances are the same anywhere.
    layer = built(SelfAttention(2, 4, position=position(placed)), (B, T, D))
    x = random(B, T, D)
    found, expected = run(lambda x: [layer(x, segment_ids=SEGMENTS)[:1], alone(layer, x)], x)
    close(found, expected, 1e-4)


def test_only_equality_of_numbers_counts():
    layer = built(SelfAttention(2, 4), (B, T, D))
    x = random(B, T, D)
    renamed = np.where(SEGMENTS == 1, -7, 0)
    found, expected = run(
        lambda x: [layer(x, segment_ids=renamed), layer(x, segment_ids=SEGMENTS)], x
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8"])
def test_numbers_may_be_of_any_integer_dtype(dtype):
    x = random(B, T, D)
    found = Attention()(x, segment_ids=SEGMENTS.astype(dtype))
    close(numpy(found), numpy(Attention()(x, segment_ids=SEGMENTS)), 1e-6)


def test_segments_count_together_with_masks_and_a_query_alone_gets_zeros():
    layer = built(MultiHeadAttention(2, 4), (B, T, D))
    x, padding = random(B, T, D), np.ones((B, T), bool)
    padding[0, 3:] = False
    strange = np.tile(np.arange(T), (B, 1))
    given = {"return_attention_scores": True, "attention_mask": ~np.eye(T, dtype=bool)}
    output, weights, nothing, none = run(
        lambda x: [
            *layer(x, segment_ids=SEGMENTS, value_mask=padding, **given),
            *layer(x, segment_ids=strange, **given),
        ],
        x,
    )
    allowed = (
        (SEGMENTS[:, :, None] == SEGMENTS[:, None]) & padding[:, None] & ~np.eye(T, dtype=bool)
    )
    np.testing.assert_array_equal(weights > 0, np.broadcast_to(allowed[:, None], weights.shape))
    assert (output[0, 3:] == 0).all() and (output[1] != 0).all()
    # Each text is one token, which may not see itself.
    assert (nothing == 0).all() and (none == 0).all()


CROSS = (
    np.array([[1, 1, 2, 2, 2], [1, 2, 2, 3, 3]], "int32"),
    np.array([[1, 1, 1, 2, 2, 2, 2], [2, 2, 1, 1, 1, 1, 1]], "int32"),
)
CROSS_AT = (
    np.array([[0, 1, 0, 1, 2], [0, 0, 1, 0, 1]], "int32"),
    np.array([[0, 1, 2, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3, 4]], "int32"),
)


@pytest.mark.parametrize(
    "make, placed", [*((Attention, name) for name in PLACED), (MultiHeadAttention, "shaw")]
)
def test_a_text_attends_to_its_own_memory(make, placed):
    layer = built(make(2, 4, position=position(placed), pattern="causal"), (B, 5, D), (B, 7, D))
    query, value = random(B, 5, D), random(B, 7, D, seed=1)
    parts = [(0, 1), (0, 2), (1, 1), (1, 2)]

    def both(query, value):
        answers = [layer(query, value, segment_ids=CROSS, positions=CROSS_AT)]
        for row, text in parts:
            ours, theirs = (np.flatnonzero(ids[row] == text) for ids in CROSS)
            answers.append(
                layer(
                    query[row : row + 1, ours[0] : ours[-1] + 1],
                    value[row : row + 1, theirs[0] : theirs[-1] + 1],
                )
            )
        return answers

    together, *separately = run(both, query, value)
    for (row, text), expected in zip(parts, separately, strict=True):
        close(together[row][CROSS[0][row] == text], expected[0])
    # The third text of the second row has no memory.
    assert (together[1, 3:] == 0).all()


def test_the_function_takes_a_pair():
    query, key = random(B, 5, 2, 4), random(B, 7, 2, 4, seed=1)
    weights = numpy(ops.attend(query, key, key, segment_ids=CROSS, return_attention_scores=True)[1])
    allowed = (CROSS[0][:, :, None] == CROSS[1][:, None])[:, None]
    close(weights, definition.attend(query, key, key, mask=allowed)[1])


@pytest.mark.parametrize("placed", ["rotary", "shaw"])
def test_lengths_and_numbers_may_be_unknown_in_a_model(placed):
    ids, at = (keras.Input((None,), dtype="int32") for _ in range(2))
    words = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(10, D, mask_zero=True)(words)
    layer = MultiHeadAttention(2, 4, position=position(placed))
    y = layer(x, segment_ids=ids, positions=at, use_causal_mask=True)
    memory = Attention(2, 4)(x, y, segment_ids=(ids, ids))
    assert tuple(y.shape) == (None, None, D) and tuple(memory.shape) == (None, None, 8)
    model = keras.Model([words, ids, at], [y, memory])
    model.compile("sgd", "mse", jit_compile=ON_JAX)
    tokens = np.pad(np.random.default_rng(0).integers(1, 10, (B, T)), ((0, 0), (0, 3)))
    given = [np.pad(array, ((0, 0), (0, 3))) for array in (SEGMENTS, RESTARTING)]
    found = model.predict([tokens, *given], verbose=0)
    for part in (slice(0, 3), slice(3, 7)):
        first = [keras.ops.convert_to_tensor(array[:1, part]) for array in (tokens, *given)]
        for answer, expected in zip(found, model(first), strict=True):
            close(answer[:1, part], numpy(expected))
            assert (answer[:, T:] == 0).all()


# Padding on either side


@pytest.mark.parametrize("placed", PLACED)
def test_padding_on_the_left_is_padding_on_the_right(placed):
    pattern = patterns.Causal() & patterns.SlidingWindow(2, 0)
    layer = built(SelfAttention(2, 4, position=position(placed), pattern=pattern), (B, T, D))
    x, lengths = random(B, T, D), (4, 6)
    right, left = 50 * random(B, T, D, seed=1), 50 * random(B, T, D, seed=2)
    after, before = np.zeros((2, B, T), bool)
    for row, length in enumerate(lengths):
        right[row, :length] = left[row, T - length :] = x[row, :length]
        after[row, :length] = before[row, T - length :] = True
    at = np.cumsum(before, axis=1) - 1
    assert at.min() == -1

    def both(right, left):
        return layer(right, query_mask=after), layer(left, query_mask=before, positions=at)

    expected, found = run(both, right, left)
    assert (found[~before] == 0).all() and (expected[~after] == 0).all()
    for row, length in enumerate(lengths):
        close(found[row, T - length :], expected[row, :length])
        assert np.abs(found[row]).max() > 0.1


def test_a_cached_step_is_a_query_further_on():
    layer = built(SelfAttention(2, 4, position="rotary", causal=True), (B, T, D))
    whole = Attention(2, 4, position="rotary", pattern="causal")
    whole.build((B, T, D))
    whole.set_weights(layer.get_weights())
    x, at = random(B, T, D), np.array([[6], [3]])

    def both(x):
        newest = keras.ops.stack([x[0, 6:7], x[1, 3:4]])
        return layer(x), whole(newest, x, positions=(at, None))

    expected, found = run(both, x)
    close(found[:, 0], expected[np.arange(B), at[:, 0]])


# What is refused

X, MEMORY = random(B, T, D), random(B, 5, D)


@pytest.mark.parametrize("name", ["segment_ids", "positions"])
@pytest.mark.parametrize("make", [Attention, lambda: MultiHeadAttention(2, 4)])
@pytest.mark.parametrize(
    "inputs, given, error, message",
    [
        ((X,), SEGMENTS.astype("float32"), TypeError, "must be integers. Received dtype float32"),
        ((X,), SEGMENTS == 1, TypeError, "must be integers. Received dtype bool"),
        ((X,), SEGMENTS[..., None], ValueError, r"must be .*Received shape \(2, 7, 1\)"),
        ((X,), SEGMENTS[:, :5], ValueError, "Lengths of `query`.*query=7.*=5"),
        ((X, MEMORY), SEGMENTS, ValueError, "must be a pair, for query and key"),
        ((X, MEMORY), (SEGMENTS, SEGMENTS), ValueError, "Lengths of `value`.*value=5.*=7"),
        ((X, MEMORY), (SEGMENTS[:, :5], SEGMENTS[:, :5]), ValueError, "query=7.*=5"),
    ],
)
def test_what_does_not_fit_is_refused(make, inputs, given, error, message, name):
    with pytest.raises(error, match=f"(?s){name}.*{message}|{message}.*{name}"):
        make()(*inputs, **{name: given})


@pytest.mark.parametrize("given", [(SEGMENTS, None), (None, CROSS[0])])
def test_segments_need_both_numbers(given):
    with pytest.raises(ValueError, match="must number both queries and keys"):
        Attention()(X, MEMORY, segment_ids=given)
    query, key = X[:, :, None], MEMORY[:, :, None]
    with pytest.raises(ValueError, match="must number both queries and keys"):
        ops.attend(query, key, key, segment_ids=given)


def test_segments_need_a_row_for_each_sequence():
    with pytest.raises(ValueError, match=r"`segment_ids` must be \(B, T\)"):
        Attention()(X, segment_ids=SEGMENTS[0])


def test_what_does_not_fit_is_refused_before_the_model_runs():
    x = keras.Input((T, D))
    for name in ("segment_ids", "positions"):
        with pytest.raises(ValueError, match=f"Lengths of `query` and its {name}"):
            SelfAttention()(x, **{name: keras.Input((5,), dtype="int32")})
        with pytest.raises(TypeError, match=f"`{name}` must be integers"):
            SelfAttention()(x, **{name: keras.Input((T,))})
        with pytest.raises(ValueError, match=f"`{name}` must be a pair"):
            Attention()(x, keras.Input((T, D)), **{name: keras.Input((T,), dtype="int32")})


@pytest.mark.parametrize("name", ["segment_ids", "positions"])
def test_several_axes_of_positions_are_refused(name):
    with pytest.raises(ValueError, match=f"`{name}` needs inputs .batch, positions, features"):
        MultiHeadAttention(2, 4)(random(B, 3, T, D), **{name: SEGMENTS})


# Given as NumPy arrays, or cast to a layer's dtype, one sequence becomes two tensors.


@pytest.mark.parametrize("name", ["segment_ids", "positions"])
@pytest.mark.parametrize("way", ["arrays", "mixed precision"])
def test_one_sequence_twice_is_one_sequence(way, name):
    layer = Attention(dtype="mixed_bfloat16" if way == "mixed precision" else "float32")
    x = X if way == "arrays" else keras.ops.convert_to_tensor(X)
    for found in (layer([x, x], **{name: SEGMENTS}), layer(x, x, x, **{name: SEGMENTS})):
        close(numpy(keras.ops.cast(found, "float32")), numpy(layer(x, **{name: SEGMENTS})), 0.01)


def test_the_function_takes_positions_in_lists():
    x = keras.ops.convert_to_tensor(X[:, :2, None])
    given = {"query_positions": [5, 6], "key_positions": [0, 9]}
    _, weights = ops.attend(x, x, x, pattern="causal", return_attention_scores=True, **given)
    assert (numpy(weights)[..., 1] == 0).all()
