"""What other attention layers get wrong, and these must not: one group of tests for each defect.

Each was seen in Keras's layers, in KerasHub's, or reported against them. Those of masks are in
`test_peer_defects_of_masks.py`, int8 models that do not load again in `test_quantization.py`.
"""

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import (
    Attention,
    AttentionPooling,
    MultiHeadAttention,
    SelfAttention,
    TransformerBlock,
)
from tests.arrays import close, random
from tests.gradients import gradients, weight_gradients
from tests.layers.small_layers import (
    FLOATS,
    B,
    D,
    S,
    T,
    built,
    expected_attention,
    numpy,
    ops,
    randomize,
)

# 3. The path changes the answer


@pytest.mark.parametrize("dtype", FLOATS)
def test_scores_and_unused_dropout_never_change_the_output(dtype):
    """In Keras, asking for scores or setting a dropout takes another path, at inference too."""
    mask = np.array([[True] * 6, [True, False] * 3, [False] * 6, [False] * 5 + [True]])
    x, y = (ops.cast(random(B, n, D, seed=n) * 4, dtype) for n in (T, S))
    outputs, weights = [], None
    for dropout in (0.0, 0.5):
        layer = built(MultiHeadAttention(2, 4, dropout=dropout, dtype=dtype), x.shape, y.shape)
        for training in (None, False):
            call = {"attention_mask": mask, "training": training}
            output, scores = layer(x, y, return_attention_scores=True, **call)
            outputs += [output, layer(x, y, **call)]
            weights = scores if weights is None else weights
            close(numpy(scores), numpy(weights), 1e-6)
    for output in outputs[1:]:
        close(numpy(output), numpy(outputs[0]), 1e-6 if dtype == "float32" else 1e-2)


# 5. Overflow


@pytest.mark.parametrize("score", ["scaled_dot", "dot", "cosine"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_large_activations_do_not_overflow_in_half_precision(score, dtype):
    """Keras multiplies query and key in float16 and scales afterwards: infinities, then NaN."""
    query, key = (ops.cast(random(B, n, 2, 32, seed=n) * 300, dtype) for n in (T, S))
    value = ops.cast(random(B, S, 2, 4), dtype)
    assert np.abs(np.einsum("bthk,bshk->bhts", numpy(query), numpy(key))).max() > 1e5
    arrays = [query, key, value]
    output = numpy(keras_attention.ops.attend(*arrays, score=score))
    if score == "scaled_dot":
        expected, _ = expected_attention(*map(numpy, arrays))
        close(output, expected, 0.02)
    for array in (
        output,
        *gradients(lambda *x: keras_attention.ops.attend(*x, score=score), arrays),
    ):
        assert np.isfinite(array).all()


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
def test_large_activations_do_not_overflow_in_a_layer(policy):
    """As above, through the projections of a layer."""
    layer = built(MultiHeadAttention(2, 16, dtype=policy), (B, T, D), (B, S, D))
    x, y = random(B, T, D) * 200, random(B, S, D, seed=1) * 200
    wide = MultiHeadAttention(2, 16)
    wide.build(x.shape, y.shape)
    wide.set_weights([np.asarray(w, "float32") for w in layer.get_weights()])
    output, scores = layer(x, y, return_attention_scores=True)
    close(numpy(output), numpy(wide(x, y)), 2.0)  # of values up to thousands
    assert np.abs(numpy(output)).max() > 200
    assert np.isfinite(numpy(scores)).all()
    of_weights, of_inputs = weight_gradients(layer, lambda x: layer(x, y)[:, :1] * 1e-3, [x])
    for gradient in of_weights + of_inputs:
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_largest_numbers_of_a_dtype_are_not_nan(dtype):
    """Finite inputs of any size give finite outputs, masked or not."""
    query, key = (ops.cast(np.sign(random(B, n, 2, 4, seed=n)) * 3e38, dtype) for n in (T, S))
    value = ops.cast(random(B, S, 2, 4), dtype)
    for mask in (None, np.tril(np.ones((T, S), bool), -1)):
        output, scores = keras_attention.ops.attend(
            query, key, value, mask=mask, return_attention_scores=True
        )
        assert np.isfinite(numpy(output)).all()
        sums = np.ones(T) if mask is None else mask.any(axis=-1)
        close(numpy(scores).sum(axis=-1), np.broadcast_to(sums, (B, 2, T)), 0.01)


# 7. Decoding


def test_the_newest_query_sees_all_earlier_keys():
    """With one query and five keys, Keras's causal mask leaves the first key alone."""
    query, key, value = (random(B, 5, 2, 4, seed=i) for i in range(3))
    full, full_scores = keras_attention.ops.attend(
        query, key, value, pattern="causal", return_attention_scores=True
    )
    output, scores = keras_attention.ops.attend(
        query[:, 4:], key, value, pattern="causal", offset=4, return_attention_scores=True
    )
    assert (numpy(scores) > 0).all()
    close(numpy(scores), numpy(full_scores)[:, :, 4:])
    close(numpy(output), numpy(full)[:, 4:])
    chunk = keras_attention.ops.attend(query[:, 2:4], key, value, pattern="causal", offset=2)
    close(numpy(chunk), numpy(full)[:, 2:4])


def test_rows_decode_at_offsets_of_their_own():
    """Cached layers take one index for the whole batch."""
    query, key, value = (random(B, 5, 2, 4, seed=i) for i in range(3))
    full = numpy(keras_attention.ops.attend(query, key, value, pattern="causal"))
    newest = np.stack([query[0, 1:3], query[1, 3:5]])
    output = keras_attention.ops.attend(
        newest, key, value, pattern="causal", offset=np.array([1, 3])
    )
    close(numpy(output), np.stack([full[0, 1:3], full[1, 3:5]]))


# 9. Symbolic shapes

SHAPED = {
    "MultiHeadAttention": (lambda: MultiHeadAttention(2, 4, value_dim=3), [(T, D), (S, 5)]),
    "with a key": (lambda: MultiHeadAttention(2, 4), [(T, D), (S, 5), (S, 3)]),
    "with an output_shape": (
        lambda: MultiHeadAttention(2, 4, output_shape=(3, 2)),
        [(T, D), (S, 5)],
    ),
    "with axes": (lambda: MultiHeadAttention(2, 4, attention_axes=2), [(3, T, D), (3, S, 5)]),
    "with both axes": (lambda: MultiHeadAttention(2, 4), [(3, T, D), (2, S, 5)]),
    "Attention": (lambda: Attention(), [(T, D), (S, 5), (S, D)]),
    "projected": (lambda: Attention(2, 4, value_dim=3), [(T, D), (S, 5), (S, 3)]),
    "general": (lambda: Attention(score="general"), [(T, D), (S, 5)]),
    "SelfAttention": (lambda: SelfAttention(2, 4), [(T, D)]),
    "TransformerBlock": (lambda: TransformerBlock(16, 2), [(T, D)]),
    "AttentionPooling": (lambda: AttentionPooling(num_queries=3, num_heads=2, key_dim=4), [(S, D)]),
    "one query": (lambda: AttentionPooling(), [(S, D)]),
}


@pytest.mark.parametrize("name", SHAPED)
def test_symbolic_outputs_have_the_shapes_of_real_ones(name):
    """Keras says (T, T) of scores that are (T, S); KerasHub, one tensor where there are two."""
    make, shapes = SHAPED[name]
    layer = make()
    arrays = [random(B, *shape) for shape in shapes]
    real = layer(*arrays, return_attention_scores=True)
    alone = layer(*arrays)
    assert len(real) == 2
    unknown = [(*(None for _ in shape[:-1]), shape[-1]) for shape in shapes]
    for sizes in (shapes, unknown):
        inputs = [keras.Input(shape) for shape in sizes]
        symbolic = layer(*inputs, return_attention_scores=True)
        assert isinstance(symbolic, (tuple, list)) and len(symbolic) == 2
        single = layer(*inputs)
        assert isinstance(single, keras.KerasTensor)
        for said, is_ in zip([*symbolic, single], [*real, alone], strict=True):
            assert len(said.shape) == len(is_.shape)
            assert all(a in (None, b) for a, b in zip(said.shape, is_.shape, strict=True))
            if sizes is shapes:
                assert tuple(said.shape)[1:] == tuple(is_.shape)[1:]
            assert said.dtype == keras.backend.standardize_dtype(is_.dtype)
        inputs, given = (x if len(arrays) > 1 else x[0] for x in (inputs, arrays))
        found = keras.Model(inputs, symbolic)(given)
        for answer, expected in zip(found, real, strict=True):
            close(numpy(answer), numpy(expected))


# 11. Options that are accepted and ignored


@pytest.mark.parametrize(
    "option",
    [
        {"use_gate": True},
        {"sliding_window": 2},
        {"value_dim": 3},
        {"output_shape": 5},
        {"attention_axes": 1},
        {"use_bias": False},
        {"pattern": "causal"},
        {"score": "cosine"},
        {"normalization": "sigmoid"},
    ],
    ids=lambda option: next(iter(option)),
)
def test_an_option_has_an_effect(option):
    """KerasHub's cached attention accepts options of its parent, and ignores them."""
    x = random(B, 5, 3, D) if "attention_axes" in option else random(B, 5, D)
    plain, layer = (built(MultiHeadAttention(2, 4, **kwargs), x.shape) for kwargs in ({}, option))
    expected, found = numpy(plain(x)), numpy(layer(x))
    assert found.shape != expected.shape or np.abs(found - expected).max() > 1e-3


def test_every_weight_is_used():
    """KerasHub's cached attention allocates gate weights, and never applies them."""
    options = {"use_gate": True, "value_dim": 3, "output_shape": 5, "sliding_window": 2}
    x = random(B, 5, 3, D)
    layer = built(MultiHeadAttention(2, 4, attention_axes=1, **options), x.shape)
    assert len(layer.trainable_variables) == 10
    of_weights, _ = weight_gradients(layer, lambda: ops.square(layer(x)))
    for variable, gradient in zip(layer.trainable_variables, of_weights, strict=True):
        # Softmax leaves nothing of what a bias adds to all keys alike.
        if not variable.path.endswith("key/bias"):
            assert np.abs(gradient).max() > 1e-4, variable.path


def test_a_window_hides_the_keys_outside_it():
    """KerasHub's cached attention ignores `sliding_window`, and its flash attention lost it."""
    x, y = random(B, T, D), random(B, S, D)
    near = np.abs(np.arange(T)[:, None] - np.arange(S)) < 2
    for flash_attention in (None, True, False):
        layer = built(
            MultiHeadAttention(2, 4, sliding_window=2, flash_attention=flash_attention),
            x.shape,
            y.shape,
        )
        output, scores = layer(x, y, return_attention_scores=True)
        np.testing.assert_array_equal(numpy(scores) > 0, np.broadcast_to(near, (B, 2, T, S)))
        close(numpy(layer(x, y)), numpy(output))
        close(numpy(layer(x, y, attention_mask=near)), numpy(output))


def test_a_gate_multiplies_the_heads():
    """A gate of sigmoid(-large) shuts every head: only the output's bias is left."""
    layer = built(MultiHeadAttention(2, 4, use_gate=True), (B, T, D))
    x = random(B, T, D)
    assert np.abs(numpy(layer(x)) - numpy(layer.output_dense.bias)).max() > 1e-2
    kernel, bias = layer._gate_dense.weights
    kernel.assign(np.zeros(kernel.shape))
    bias.assign(np.full(bias.shape, -200.0))
    close(numpy(layer(x)), np.broadcast_to(numpy(layer.output_dense.bias), (B, T, D)), 1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Attention(2, 4, sliding_window=3),
        lambda: Attention(2, 4, use_gate=True),
        lambda: Attention(value_dim=4),
        lambda: Attention(use_bias=True),
        lambda: SelfAttention(2, 4, window=3),
        lambda: MultiHeadAttention(2, 4, gate=True),
        lambda: TransformerBlock(16, 2, use_gate=True),
    ],
)
def test_an_option_that_a_layer_does_not_have_is_an_error(call):
    """As above: what would have no effect is refused."""
    with pytest.raises((TypeError, ValueError)):
        call()


# 12. Lost configuration


@pytest.mark.parametrize("flash_attention", [None, True, False])
def test_flash_attention_is_in_the_config_and_never_in_the_answer(flash_attention):
    """Keras leaves it out of the config, takes False for None, and refuses dropout and scores."""
    layer = MultiHeadAttention(2, 4, flash_attention=flash_attention, dropout=0.5)
    config = layer.get_config()
    assert config["flash_attention"] is flash_attention
    again = MultiHeadAttention.from_config(config)
    assert again.get_config()["flash_attention"] is flash_attention
    x = random(B, T, D)
    plain = built(MultiHeadAttention(2, 4), x.shape)
    layer.build(x.shape)
    randomize(layer)
    output, _ = layer(x, x, return_attention_scores=True)
    close(numpy(output), numpy(plain(x, x)))


# Regressions that others had


@pytest.mark.parametrize(
    "make",
    [
        lambda: MultiHeadAttention(2, 4, dropout=0.5, seed=1, pattern="causal"),
        lambda: SelfAttention(2, 4, dropout=0.5, seed=1, causal=True),
        lambda: TransformerBlock(16, 2, dropout=0.5, seed=1, causal=True),
    ],
    ids=["MultiHeadAttention", "SelfAttention", "TransformerBlock"],
)
def test_causal_holds_with_dropout_in_training(make):
    """Keras once dropped the causal mask wherever dropout was on (keras #23038)."""
    x = random(B, S, D)
    changed = x.copy()
    changed[:, 4:] += 10

    def run(x, training=True):
        return numpy(built(make(), x.shape)(x, training=training))

    before, after = run(x), run(changed)
    close(after[:, :4], before[:, :4], 1e-6)
    assert np.abs(after[:, 4:] - before[:, 4:]).max() > 1e-2
    assert np.abs(run(x, training=False) - before).max() > 1e-2


def test_use_causal_mask_holds_with_dropout_and_a_mask_of_its_own():
    """As above, by the call's argument, alone and beside an attention mask."""
    x = random(B, S, D)
    layer = built(MultiHeadAttention(2, 4, dropout=0.5), x.shape)
    for mask in (None, np.ones((S, S), bool)):

        def early(x, mask=mask):
            return ops.square(
                layer(x, x, attention_mask=mask, use_causal_mask=True, training=True)[:, :4]
            )

        (gradient,) = gradients(early, [x])
        assert (gradient[:, 4:] == 0).all()
        assert (np.abs(gradient[:, :4]).max(axis=-1) > 0).any()
