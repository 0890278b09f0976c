"""`TransformerBlock`: its equations, by hand from its weights, and what it must not see."""

import keras
import numpy as np
import pytest

from keras_attention import MultiHeadAttention, TransformerBlock, masks, patterns

B, T, D, HIDDEN, H = 3, 5, 8, 16, 2


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X = random(B, T, D)


def made(**kwargs):
    """A block with random weights, biases and norms included."""
    block = TransformerBlock(HIDDEN, H, **kwargs)
    block.build(X.shape)
    for seed, weight in enumerate(block.trainable_weights):
        weight.assign(random(*weight.shape, seed=seed) / 2)
    return block


def norm(x, layer, epsilon):
    """Layer normalization (Ba et al. 2016), in NumPy."""
    gamma, beta = (numpy(weight) for weight in layer.trainable_weights)
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def feed_forward(x, layer, gated):
    """ReLU(x W_1 + b_1) W_2 + b_2, or gated, in NumPy."""
    weights = [numpy(weight) for weight in layer.trainable_weights]
    pairs = [(weights[i], weights[i + 1]) for i in range(0, len(weights), 2)]
    outputs = [x @ kernel + bias for kernel, bias in pairs[:-1]]
    hidden = np.maximum(outputs[0], 0) * (outputs[1] if gated else 1)
    return hidden @ pairs[-1][0] + pairs[-1][1]


def by_hand(block, x, **attention):
    """The block as its docstring writes it, with the attention layer's own answer."""

    def attend(x):
        return numpy(block.attention(x.astype("float32"), **attention)).astype("float64")

    def feed(x):
        return feed_forward(x, block.feed_forward, block.gated)

    def first(x):
        return norm(x, block.attention_norm, block.layer_norm_epsilon)

    def second(x):
        return norm(x, block.feed_forward_norm, block.layer_norm_epsilon)

    if block.normalize_first:
        x = x + attend(first(x))
        return x + feed(second(x))
    x = first(x + attend(x))
    return second(x + feed(x))


# Equations


@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_block_is_its_equations(normalize_first, gated, causal):
    block = made(
        normalize_first=normalize_first, gated=gated, causal=causal, layer_norm_epsilon=0.1
    )
    expected = by_hand(block, X, use_causal_mask=causal)
    np.testing.assert_allclose(numpy(block(X)), expected, rtol=1e-4, atol=1e-4)


def test_the_two_orders_differ():
    assert np.abs(numpy(made()(X)) - numpy(made(normalize_first=True)(X))).max() > 0.1


@pytest.mark.parametrize(
    "slots",
    [
        {"score": "cosine"},
        {"normalization": "sigmoid"},
        {"pattern": patterns.SlidingWindow(1, 0)},
    ],
    ids=lambda slots: next(iter(slots)),
)
def test_slots_are_those_of_its_attention(slots):
    block = made(**slots)
    alone = MultiHeadAttention(H, D // H, **slots)
    alone.build(X.shape)
    alone.set_weights(block.attention.get_weights())
    _, expected = alone(X, return_attention_scores=True)
    output, scores = block(X, return_attention_scores=True)
    np.testing.assert_allclose(numpy(scores), numpy(expected), rtol=1e-5, atol=1e-6)
    assert np.abs(numpy(output) - numpy(made()(X))).max() > 1e-3


@pytest.mark.parametrize("normalize_first", [False, True])
def test_asking_for_scores_changes_no_output(normalize_first):
    block = made(normalize_first=normalize_first, causal=True)
    output, scores = block(X, return_attention_scores=True)
    np.testing.assert_allclose(numpy(output), numpy(block(X)), rtol=1e-5, atol=1e-5)
    assert scores.shape == (B, H, T, T)
    np.testing.assert_allclose(numpy(scores).sum(-1), 1.0, rtol=1e-5)
    assert (numpy(scores)[..., ~np.tril(np.ones((T, T), bool))] == 0).all()


# What a position may see


@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_causal_block_does_not_see_the_future(at, normalize_first):
    block = made(causal=True, normalize_first=normalize_first)
    changed = X.copy()
    changed[:, at] += random(B, D, seed=9)
    difference = np.abs(numpy(block(changed)) - numpy(block(X))).max(axis=(0, 2))
    np.testing.assert_array_equal(difference[:at], 0.0)
    assert (difference[at:] > 1e-3).all()


def test_a_block_that_is_not_causal_sees_all():
    block = made()
    changed = X.copy()
    changed[:, 4] += 1
    assert (np.abs(numpy(block(changed)) - numpy(block(X))).max(axis=(0, 2)) > 1e-3).all()


@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("left, right", [(2, 0), (0, 2), (1, 1)])
def test_padding_on_either_side_changes_nothing(left, right, causal, normalize_first):
    block = made(causal=causal, normalize_first=normalize_first)
    expected = numpy(block(X))
    padded = np.pad(X, ((0, 0), (left, right), (0, 0)), constant_values=7.0)
    mask = np.pad(np.ones((B, T), bool), ((0, 0), (left, right)))
    output = numpy(block(padded, mask=mask))
    np.testing.assert_allclose(output[mask].reshape(X.shape), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_masks_carried_and_passed_count_together(normalize_first):
    block = made(normalize_first=normalize_first)
    carried = np.arange(T) < np.array([[5], [4], [3]])
    passed = np.arange(T) > np.array([[0], [1], [0]])

    def carry(mask):
        return masks.carry(keras.ops.convert_to_tensor(X), keras.ops.convert_to_tensor(mask))

    expected = numpy(block(X, mask=carried & passed))
    output = block(carry(carried), mask=passed)
    np.testing.assert_allclose(numpy(output), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(numpy(masks.implicit(output)), carried & passed)
    np.testing.assert_allclose(
        numpy(block(carry(carried & passed))), expected, rtol=1e-5, atol=1e-6
    )
    assert np.abs(numpy(block(X, mask=carried)) - expected)[carried & passed].max() > 1e-3


def test_attention_mask_and_causal_hold_together():
    allowed = np.random.default_rng(3).random((B, T, T)) < 0.5
    allowed[..., 0] = True
    _, scores = made(causal=True)(X, attention_mask=allowed, return_attention_scores=True)
    seen = np.broadcast_to((allowed & np.tril(np.ones((T, T), bool)))[:, None], scores.shape)
    np.testing.assert_array_equal(numpy(scores) > 0, seen)


# Training


def test_dropout_is_only_in_training_and_scores_are_before_it():
    block, plain = made(dropout=0.5, seed=1), made()
    np.testing.assert_array_equal(numpy(block(X)), numpy(plain(X)))
    trained, scores = block(X, training=True, return_attention_scores=True)
    assert np.abs(numpy(trained) - numpy(plain(X))).max() > 0.1
    _, expected = plain(X, return_attention_scores=True)
    np.testing.assert_allclose(numpy(scores), numpy(expected), rtol=1e-6, atol=1e-7)
    assert np.abs(numpy(block(X, training=True)) - numpy(trained)).max() > 0.1


def test_dropout_is_on_each_branch():
    # In pre-norm a branch that is dropped leaves the input as it was.
    block = made(dropout=0.9, seed=1, normalize_first=True)
    kept = numpy(block(X, training=True)) == X
    assert 0.6 < kept.mean() < 1.0


def test_projections_start_apart():
    block = TransformerBlock(HIDDEN, H, kernel_initializer=keras.initializers.GlorotUniform())
    block.build(X.shape)
    dense = block.attention.query_dense, block.attention.key_dense, block.attention.value_dense
    kernels = [numpy(layer.kernel) for layer in dense]
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert np.abs(kernels[first] - kernels[second]).max() > 0.1
