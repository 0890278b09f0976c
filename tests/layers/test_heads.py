"""Grouped heads, QK-norm, soft caps, sinks and biases, against NumPy and against full heads."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, MultiHeadAttention, SelfAttention, ops, scores
from tests import definition
from tests.gradients import gradients, weight_gradients

B, T, S, H, G, K, V, D = 2, 3, 5, 4, 2, 4, 6, 8
ON_JAX = keras.backend.backend() == "jax"


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")), "float64")


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def run(function, *arrays):
    """What `function` returns. JAX compiles it as a whole, not one operation at a time."""
    tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
    if ON_JAX:
        import jax

        function = jax.jit(function)
    return [numpy(found) for found in function(*tensors)]


def randomize(layer, *shapes):
    """The layer, built, with random values for all weights, so that biases and scales count."""
    layer.build(*shapes)
    for seed, variable in enumerate(layer.trainable_variables):
        variable.assign(random(*variable.shape, seed=seed) / 2 + ("scale" in variable.name))
    return layer


def arrays(groups=G):
    return (
        2 * random(B, T, H, K, seed=1),
        random(B, S, groups, K, seed=2),
        random(B, S, groups, V, seed=3),
    )


def in_full(array):
    """Each key head once for every query head of its group, which stand in a row."""
    return np.repeat(array, H // array.shape[2], axis=2)


def mask():
    allowed = np.random.default_rng(4).random((B, H, T, S)) < 0.6
    allowed[0, 1, 2] = allowed[1] = False
    return allowed


def attend(**given):
    return lambda query, key, value: ops.attend(
        query, key, value, return_attention_scores=True, **given
    )


# Grouped heads


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"mask": mask(), "bias": random(1, H, T, S, seed=5)},
        {"pattern": "causal", "normalization": "sigmoid"},
        {"mask": mask(), "normalization": "sparsemax", "score": "cosine"},
        {"logit_soft_cap": 1.5, "sink": random(H, seed=6)},
    ],
    ids=["plain", "mask and bias", "sigmoid", "cosine and sparsemax", "cap and sink"],
)
def test_a_group_is_its_key_and_value_heads_repeated(given, groups):
    query, key, value = arrays(groups)
    found = run(attend(**given), query, key, value)
    expected = run(attend(**given), query, in_full(key), in_full(value))
    assert found[0].shape == (B, T, H, V) and found[1].shape == (B, H, T, S)
    for answer, correct in zip(found, expected, strict=True):
        close(answer, correct)
        assert np.abs(correct).max() > 0.1


def test_groups_are_the_definition():
    query, key, value = arrays()
    found = run(attend(mask=mask()), query, key, value)
    expected = definition.attend(query, in_full(key), in_full(value), mask=mask())
    for answer, correct in zip(found, expected, strict=True):
        close(answer, correct)
    assert (found[0][~mask().any(axis=-1).transpose(0, 2, 1)] == 0).all()


def test_gradients_of_a_group_are_the_sums_of_those_of_its_heads():
    query, key, value = arrays()

    def total(query, key, value):
        output, weights = attend(mask=mask())(query, key, value)
        return [keras.ops.square(output), keras.ops.power(weights, 3)]

    found = gradients(total, [query, key, value])
    expected = gradients(total, [query, in_full(key), in_full(value)])
    close(found[0], expected[0])
    for of_group, of_heads in zip(found[1:], expected[1:], strict=True):
        close(of_group, of_heads.reshape(B, S, G, H // G, -1).sum(axis=3), 1e-4)
        assert (of_group[1] == 0).all()


def in_full_layer(layer, query, value):
    """A layer with a key head for each query head, and the weights of the grouped `layer`."""
    config = {**layer.get_config(), "num_key_value_heads": None, "name": "in_full"}
    config["score"] = type(layer.score).from_config(layer.score.get_config())
    full = type(layer).from_config(config)
    full.build(query.shape, value.shape)
    for variable, grouped in zip(full.variables, layer.variables, strict=True):
        array = numpy(grouped)
        if array.shape != tuple(variable.shape):
            (axis,) = (
                i
                for i, (a, b) in enumerate(zip(array.shape, variable.shape, strict=True))
                if a != b
            )
            if array.shape[axis] == G:
                array = np.repeat(array, H // G, axis=axis)
            else:  # Heads and features share an axis, the heads being the slower.
                split = array.reshape(*array.shape[:axis], G, -1, *array.shape[axis + 1 :])
                array = np.repeat(split, H // G, axis=axis).reshape(variable.shape)
        variable.assign(array)
    return full


def grouped_scores():
    """Those that work between heads, by name."""
    made = {}
    for name, cls in scores.BUILTIN.items():
        made[name] = {
            "reduced_rank": lambda cls=cls: cls(3),
            "location": lambda cls=cls: cls(S),
        }.get(name, cls)
    return made


@pytest.mark.parametrize(
    "make, name",
    [
        *((Attention, name) for name in grouped_scores()),
        (MultiHeadAttention, "scaled_dot"),
        (MultiHeadAttention, "concat"),
    ],
)
def test_a_grouped_layer_is_a_full_one_with_repeated_weights(make, name):
    query, value = random(B, T, D), random(B, S, 5, seed=1)
    layer = make(H, K, V, num_key_value_heads=G, score=grouped_scores()[name](), use_bias=True)
    randomize(layer, query.shape, value.shape)
    assert layer.key_dense.kernel.shape[-1] in (K, G * K)
    full = in_full_layer(layer, query, value)
    assert full.count_params() > layer.count_params()
    call = {"return_attention_scores": True, "use_causal_mask": True}

    def both(query, value):
        return [*layer(query, value, **call), *full(query, value, **call)]

    output, weights, expected, expected_weights = run(both, query, value)
    close(weights, expected_weights)
    close(output, expected)
    assert weights[0].std() > 0.01 and np.abs(output).max() > 0.1


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_heads_are_those_of_keras(groups):
    ours = MultiHeadAttention(H, K, num_key_value_heads=groups)
    theirs = keras.layers.GroupQueryAttention(K, H, groups)
    query, value = random(B, T, D), random(B, S, D, seed=1)
    randomize(ours, query.shape, value.shape)
    theirs.build(query.shape, value.shape)
    assert [w.shape for w in ours.weights] == [w.shape for w in theirs.weights]
    theirs.set_weights(ours.get_weights())
    allowed = np.tri(T, S, 1, dtype=bool)[None].repeat(B, axis=0)
    call = {"attention_mask": allowed, "return_attention_scores": True}

    def both(query, value):
        return [*ours(query, value, **call), *theirs(query, value, **call)]

    output, weights, expected, expected_weights = run(both, query, value)
    close(output, expected)
    close(weights, expected_weights)


@pytest.mark.parametrize("make", [Attention, MultiHeadAttention, SelfAttention])
@pytest.mark.parametrize("groups", [3, 8])
def test_groups_must_divide_the_heads(make, groups):
    with pytest.raises(ValueError, match=rf"num_key_value_heads={groups}, num_heads=4"):
        make(4, 8, num_key_value_heads=groups)


@pytest.mark.parametrize("groups", [0, -2, 2.0, True])
def test_groups_must_be_counted(groups):
    with pytest.raises(ValueError, match="num_key_value_heads"):
        Attention(4, 8, num_key_value_heads=groups)


def test_heads_that_do_not_divide_are_an_error_of_the_function():
    query, key, value = arrays()
    with pytest.raises(ValueError, match=r"divide them.*query=4, key=3"):
        ops.attend(query, random(B, S, 3, K), random(B, S, 3, V))
    with pytest.raises(ValueError, match=r"Numbers of heads.*key=2.*value=4"):
        ops.attend(query, key, in_full(value))
    with pytest.raises(ValueError, match=r"divide them.*query=4, key=8"):
        ops.attend(query, np.repeat(key, 4, axis=2), np.repeat(value, 4, axis=2))


# QK-norm


def normed(x, kind, gamma):
    x = x.astype("float64")
    if kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True)) * gamma


def heads_of(layer, x, name):
    """Heads (B, T, heads, features) that a projection makes, in float64."""
    kernel, bias = (np.asarray(w, "float64") for w in getattr(layer, f"{name}_dense").get_weights())
    size = layer.value_dim if name == "value" else layer.key_dim
    return (x @ kernel.reshape(x.shape[-1], -1) + bias.ravel()).reshape(*x.shape[:2], -1, size)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("make", [Attention, MultiHeadAttention])
def test_qk_norm_bounds_what_is_compared(make, kind):
    query, value = random(B, T, D), random(B, S, D, seed=1)
    layer = make(H, K, V, qk_norm=kind, use_bias=True, num_key_value_heads=G)
    randomize(layer, query.shape, value.shape)
    query_scale, key_scale = layer._query_norm.get_weights()[0], layer._key_norm.get_weights()[0]
    assert query_scale.shape == key_scale.shape == (K,) and np.abs(query_scale - 1).max() > 0.1
    _, weights = run(lambda *x: layer(*x, return_attention_scores=True), query, value)
    q = normed(heads_of(layer, query, "query"), kind, query_scale)
    k = normed(heads_of(layer, value, "key"), kind, key_scale)
    v = heads_of(layer, value, "value")
    close(weights, definition.attend(q, in_full(k), in_full(v))[1], 1e-3)


def test_qk_norm_of_raw_inputs_ignores_their_size():
    layer = Attention(qk_norm="rms", score="dot")
    query, value = random(B, T, D), random(B, S, D, seed=1)
    layer.build(query.shape, value.shape)
    call = {"return_attention_scores": True}

    def both(query, value):
        return layer(query, value, **call)[1], layer(100 * query, 100 * value, **call)[1]

    # RMSNorm adds an epsilon to the squares.
    close(*run(both, query, value), 1e-4)
    assert len(layer.trainable_variables) == 2


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_qk_norm_has_finite_gradients_at_zero_and_of_huge_heads(kind):
    layer = Attention(H, K, qk_norm=kind)
    query, value = random(B, T, D), random(B, S, D, seed=1)
    query[0], query[1] = 0.0, 1e15 * query[1]
    layer.build(query.shape, value.shape)
    found, of_inputs = weight_gradients(
        layer, lambda *x: keras.ops.square(layer(*x)), [query, value]
    )
    assert all(np.isfinite(gradient).all() for gradient in found + of_inputs)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_qk_norm_is_right_in_mixed_precision(policy):
    query, value = random(B, T, D), random(B, S, D, seed=1)
    wide = randomize(Attention(H, K, qk_norm="rms"), query.shape, value.shape)
    layer = Attention(H, K, qk_norm="rms", dtype=policy)
    layer.build(query.shape, value.shape)
    layer.set_weights(wide.get_weights())
    large = 300 if policy == "mixed_float16" else 1e4
    # The squares of the heads are beyond float16.
    close(numpy(layer(large * query, large * value)) / large, numpy(wide(query, value)), 0.05)


@pytest.mark.parametrize("kind", [True, "l2", None, 0, 1])
def test_an_unknown_qk_norm_is_an_error(kind):
    with pytest.raises(ValueError, match="`qk_norm` must be one of"):
        Attention(2, 4, qk_norm=kind)


# Soft caps


def test_a_soft_cap_bends_scores_before_the_bias():
    query, key, value = arrays(H)
    bias, cap = 3 * random(B, H, T, S, seed=5), 0.8
    found = run(attend(logit_soft_cap=cap, bias=bias, mask=mask()), query, key, value)
    raw = np.einsum("bthk,bshk->bhts", query.astype("float64"), key) / np.sqrt(K)
    assert np.abs(raw).max() > 2 * cap
    nothing = np.zeros((B, T, H, 1)), np.zeros((B, S, H, 1)), value
    expected = definition.attend(*nothing, bias=cap * np.tanh(raw / cap) + bias, mask=mask())
    for answer, correct in zip(found, expected, strict=True):
        close(answer, correct)


def test_a_soft_cap_holds_for_every_score_and_in_layers():
    layer = Attention(H, K, logit_soft_cap=0.3, score="general")
    x = 20 * random(B, T, D)
    layer.build(x.shape)
    (weights,) = run(lambda x: [layer(x, return_attention_scores=True)[1]], x)
    # Scores within ±0.3 leave no weight larger than another by more than e^0.6.
    assert (weights.max(axis=-1) / weights.min(axis=-1) <= np.exp(0.6) + 1e-4).all()
    assert (weights.max(axis=-1) / weights.min(axis=-1)).max() > 1.5


@pytest.mark.parametrize("cap", [0, -1.0, float("inf"), float("nan"), True, "50"])
def test_a_soft_cap_must_be_positive(cap):
    query, key, value = arrays()
    with pytest.raises(ValueError, match="`logit_soft_cap` must be a finite number above 0"):
        Attention(2, 4, logit_soft_cap=cap)
    with pytest.raises(ValueError, match="`logit_soft_cap` must be a finite number above 0"):
        ops.attend(query, key, value, logit_soft_cap=cap)


# Sinks


def with_sink(query, key, value, sink, mask=True, bias=0.0):
    """A softmax with one more score, whose share is lost."""
    query, key, value = (x.astype("float64") for x in (query, key, value))
    powers = np.exp(np.einsum("bthk,bshk->bhts", query, key) / np.sqrt(K) + bias) * mask
    weights = powers / (powers.sum(axis=-1, keepdims=True) + np.exp(sink)[:, None, None])
    return np.einsum("bhts,bshv->bthv", weights, value), weights


def test_a_sink_takes_its_share_and_gives_nothing():
    query, key, value = arrays(H)
    sink = random(H, seed=6)
    found = run(attend(sink=sink, mask=mask()), query, key, value)
    for answer, correct in zip(found, with_sink(query, key, value, sink, mask()), strict=True):
        close(answer, correct)
    reached = mask().any(axis=-1)
    assert (found[1].sum(axis=-1) < 1).all() and (found[1].sum(axis=-1)[reached] > 0).all()
    assert (found[0][~reached.transpose(0, 2, 1)] == 0).all() and (found[1][~reached] == 0).all()


def test_a_sink_is_a_key_whose_value_is_zero():
    query, key, value = arrays(H)
    sink = random(H, seed=6)
    more_keys = np.concatenate([key, np.zeros((B, 1, H, K), "float32")], axis=1)
    more_values = np.concatenate([value, np.zeros((B, 1, H, V), "float32")], axis=1)
    bias = np.zeros((1, H, T, S + 1), "float32")
    bias[..., -1] = sink[:, None]
    output, weights = run(attend(sink=sink), query, key, value)
    expected, expected_weights = run(attend(bias=bias), query, more_keys, more_values)
    close(output, expected)
    close(weights, expected_weights[..., :-1])


def test_gradients_of_a_sink_are_those_of_differences():
    inputs = [*arrays(H), random(H, seed=6)]
    bias = random(1, H, T, S, seed=7)
    of_output, of_weights = random(B, T, H, V, seed=8), random(B, H, T, S, seed=9)
    cotangents = [keras.ops.convert_to_tensor(array) for array in (of_output, of_weights)]

    def ours(query, key, value, sink):
        answers = ops.attend(
            query, key, value, sink=sink, bias=bias, mask=mask(), return_attention_scores=True
        )
        return [a * c for a, c in zip(answers, cotangents, strict=True)]

    def theirs(query, key, value, sink):
        output, weights = with_sink(query, key, value, sink, mask(), bias)
        return (output * of_output).sum() + (weights * of_weights).sum()

    found = gradients(ours, inputs)
    for gradient, correct in zip(found, definition.gradients(theirs, inputs), strict=True):
        assert np.abs(correct).max() > 0.01
        close(gradient, correct, 2e-4)


@pytest.mark.parametrize("height", [1e30, -1e30, 3e38, -3e38])
def test_a_sink_of_any_height_is_finite(height):
    query, key, value = arrays(H)
    sink = np.full((H,), height, "float32")
    output, weights = run(attend(sink=sink), query, key, value)
    close(weights.sum(axis=-1), np.full((B, H, T), float(height < 0)))
    assert np.isfinite(output).all()
    found = gradients(
        lambda *x: keras.ops.square(ops.attend(*x[:3], sink=x[3])), [*arrays(H), sink]
    )
    assert all(np.isfinite(gradient).all() for gradient in found)


@pytest.mark.parametrize("make", [Attention, MultiHeadAttention])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_layer_learns_its_sinks(make, policy):
    layer = make(H, K, use_sink=True, num_key_value_heads=G, dtype=policy)
    x = random(B, T, D)
    layer.build(x.shape)
    assert layer.sink.shape == (H,)
    assert keras.backend.standardize_dtype(layer.sink.dtype) == "float32"
    found, _ = weight_gradients(layer, lambda: keras.ops.square(layer(x)))
    (place,) = (i for i, v in enumerate(layer.trainable_variables) if v is layer.sink)
    assert (np.abs(found[place]) > 0).all()
    layer.sink.assign(np.full((H,), 1e4))
    output, weights = layer(x, return_attention_scores=True)
    assert (numpy(weights) == 0).all()
    assert (numpy(output) == 0).all()


# Biases of a call


def alibi(heads=H, queries=T, keys=S):
    """A slope a head, by hand."""
    distance = np.abs(np.arange(queries)[:, None] - np.arange(keys))
    return (-(2.0 ** -np.arange(1, heads + 1))[:, None, None] * distance).astype("float32")


@pytest.mark.parametrize("shape", [(T, S), (B, T, S), (B, 1, T, S), (B, H, T, S), (1, H, 1, S)])
@pytest.mark.parametrize("make", [Attention, MultiHeadAttention])
def test_a_bias_of_a_call_is_added_to_the_scores(make, shape):
    layer = randomize(make(H, K, V, use_bias=True), (B, T, D), (B, S, D))
    query, value, bias = random(B, T, D), random(B, S, D, seed=1), 2 * random(*shape, seed=2)
    _, weights = run(
        lambda *x: layer(*x[:2], attention_bias=x[2], return_attention_scores=True),
        query,
        value,
        bias,
    )
    q, k, v = (
        heads_of(layer, x, n) for x, n in ((query, "query"), (value, "key"), (value, "value"))
    )
    full = bias[:, None] if len(shape) == 3 else bias
    close(weights, definition.attend(q, k, v, bias=full)[1])


def test_slopes_by_hand_are_alibi():
    x = random(B, T, D)
    layer = randomize(SelfAttention(8, K), x.shape)
    placed = randomize(SelfAttention(8, K, position="alibi"), x.shape)
    placed.set_weights(layer.get_weights())
    # Head h of 8 has the slope 2^-h.
    bias = alibi(8, T, T)[None]

    def both(x):
        return layer(x, attention_bias=bias, use_causal_mask=True), placed(x, use_causal_mask=True)

    close(*run(both, x))


def test_a_bias_counts_together_with_a_position_and_a_mask():
    layer = SelfAttention(position="alibi")
    x, bias = random(B, T, D), random(B, T, T, seed=1)
    padding = np.array([[True, True, True], [True, False, True]])
    _, weights = layer(
        x, value_mask=padding, attention_bias=bias, use_causal_mask=True,
        return_attention_scores=True,
    )  # fmt: skip
    total = bias[:, None] - 2.0**-8 * np.abs(np.arange(T)[:, None] - np.arange(T))
    allowed = np.tri(T, dtype=bool) & padding[:, None, None]
    x = x[:, :, None]
    close(numpy(weights), definition.attend(x, x, x, bias=total, mask=allowed)[1])


def test_a_bias_may_be_an_input_of_a_model():
    for make in (Attention, MultiHeadAttention):
        query, value = keras.Input((None, D)), keras.Input((None, D))
        bias = keras.Input((H, None, None))
        layer = make(H, K)
        model = keras.Model([query, value, bias], layer(query, value, attention_bias=bias))
        arrays = [random(B, T, D), random(B, S, D, seed=1), random(B, H, T, S, seed=2)]
        found = model.predict(arrays, verbose=0)
        close(found, numpy(layer(*arrays[:2], attention_bias=arrays[2])))
        assert np.abs(found - numpy(layer(*arrays[:2]))).max() > 1e-3


@pytest.mark.parametrize("shape", [(S,), (1, B, H, T, S)])
def test_a_bias_needs_an_axis_for_queries_and_one_for_keys(shape):
    with pytest.raises(ValueError, match=r"`attention_bias` must be \(T, S\)"):
        Attention()(random(B, T, D), random(B, S, D), attention_bias=random(*shape))


def test_a_bias_gets_its_gradient_and_none_where_it_is_masked():
    layer = Attention(H, K)
    query, value, bias = random(B, T, D), random(B, S, D, seed=1), random(B, H, T, S, seed=2)
    layer.build(query.shape, value.shape)
    (gradient,) = gradients(
        lambda bias: keras.ops.square(
            layer(query, value, attention_bias=bias, attention_mask=mask())
        ),
        [bias],
    )
    assert (gradient[~mask()] == 0).all() and np.abs(gradient[mask()]).max() > 1e-3


def test_a_bias_is_not_rounded_in_mixed_precision():
    layer = Attention(dtype="mixed_bfloat16")
    x = np.zeros((1, T, D), "float32")
    # In bfloat16 these are one number.
    bias = np.broadcast_to(1024 + 0.5 * np.arange(T), (T, T)).astype("float32")
    _, weights = layer(x, attention_bias=bias, return_attention_scores=True)
    powers = np.exp(0.5 * np.arange(T))
    close(numpy(weights)[0, 0, 0], powers / powers.sum(), 0.01)


@pytest.mark.parametrize("shape", [(5, 1), (2, 1, 1, 1), (1, 5, 1, 1), (2, 5, 1, 1), (2, 1, 5)])
def test_a_bias_of_any_shape_is_its_broadcast(shape):
    """Keras's `add` on TensorFlow takes one long axis for the features, whichever it is."""
    heads = [
        np.random.default_rng(i).normal(size=(2, 5, 5, 3)).astype("float32") for i in (1, 2, 3)
    ]
    bias = np.random.default_rng(4).normal(size=shape).astype("float32")
    full = bias if bias.ndim == 4 else bias[:, None] if bias.ndim == 3 else bias[None, None]
    given = {"normalization": "sigmoid"}
    expected = ops.attend(*heads, bias=np.broadcast_to(full, (2, 5, 5, 5)).copy(), **given)
    found = ops.attend(*heads, bias=full, **given)
    np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-5, atol=1e-6)
    layer = Attention(5, 3, normalization="sigmoid")
    x = heads[0][:, :, 0]
    expected = layer(x, attention_bias=np.broadcast_to(full, (2, 5, 5, 5)).copy())
    np.testing.assert_allclose(
        numpy(layer(x, attention_bias=bias)), numpy(expected), rtol=1e-5, atol=1e-6
    )
