"""`Shaw` and `RelativePositionAttention`: their equations, tables and what may share them."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests import definition
from tests.arrays import close, numpy, random, run, wide

B, T, S, K, V, D = 2, 4, 6, 4, 5, 8


def projected(layer, x, name):
    """Heads that a layer's projection makes of `x`, in float64, from its weights."""
    kernel, *bias = map(wide, getattr(layer, f"{name}_dense").weights)
    size = layer.value_dim if name == "value" else layer.key_dim
    flat = x @ kernel.reshape(len(kernel), -1) + (bias[0].reshape(-1) if bias else 0.0)
    return flat.reshape(*x.shape[:2], -1, size)


def expected_of(layer, query, value, i=None, mask=True):
    """Heads and weights by the equations of Shaw et al. (2018), from the weights of a layer."""
    q, k, v = (
        projected(layer, x, name)
        for x, name in ((query, "query"), (value, "key"), (value, "value"))
    )
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    i = np.broadcast_to(np.arange(query.shape[1]) if i is None else i, query.shape[:2])
    distance = np.arange(value.shape[1]) - i[..., None]
    offsets = {}
    for name, weight in zip(("key", "value"), layer.position.weights, strict=False):
        far = weight.shape[1] // 2
        # Where there is one table, it is that of all heads.
        rows = wide(weight)[:, np.clip(distance, -far, far) + far]
        offsets[f"{name}_offsets"] = np.moveaxis(rows, 0, 1)
    return definition.attend(q, k, v, mask=mask, **offsets)


LAYERS = {
    "RelativePositionAttention": lambda **kwargs: ka.RelativePositionAttention(4, K, 2, **kwargs),
    "without values": lambda **kwargs: ka.RelativePositionAttention(
        4, K, 2, use_values=False, **kwargs
    ),
    "a table a head": lambda **kwargs: ka.RelativePositionAttention(
        4, K, 9, per_head=True, **kwargs
    ),
    "with values of another size": lambda **kwargs: ka.RelativePositionAttention(
        4, K, 2, value_dim=V, **kwargs
    ),
    "grouped heads": lambda **kwargs: ka.RelativePositionAttention(
        4, K, 2, per_head=True, num_key_value_heads=2, **kwargs
    ),
    "one key head": lambda **kwargs: ka.Attention(
        4, K, position=ka.positions.Shaw(2), num_key_value_heads=1, **kwargs
    ),
    "MultiHeadAttention": lambda **kwargs: ka.MultiHeadAttention(
        4, K, position=ka.positions.Shaw(3), **kwargs
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_the_equations_between_its_projections(name):
    layer = LAYERS[name]()
    query, value = random(B, T, D), random(B, S, D, seed=1)
    padding = np.arange(S) < np.array([[S], [2]])
    at = [[3, 1, 0, 8], [2, 3, 4, 5]]
    calls = [
        ({"value_mask": padding}, {"mask": padding[:, None, None]}),
        ({"positions": (np.array(at), None)}, {"i": at}),
        ({"use_causal_mask": True}, {"mask": np.tri(T, S, dtype=bool)}),
    ]
    layer.build(query.shape, value.shape)

    def answers(query, value):
        return [
            answer
            for call, _ in calls
            for answer in layer(query, value, return_attention_scores=True, **call)
        ]

    found = run(answers, query, value)
    for output, weights, (_, means) in zip(found[::2], found[1::2], calls, strict=True):
        expected, expected_weights = expected_of(layer, query, value, **means)
        close(weights, expected_weights)
        if name == "MultiHeadAttention":
            kernel, bias = map(numpy, layer.output_dense.weights)
            expected = np.einsum("bthv,hvd->btd", expected, kernel) + bias
        close(output, expected.reshape(*output.shape))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_tables_are_read_in_float32_in_mixed_precision(policy):
    layer = ka.RelativePositionAttention(1, 1, 3, use_values=False, dtype=policy)
    x = np.ones((1, T, 1), "float32")
    layer.build(x.shape)
    # As bfloat16 or float16 hold them, these rows are one.
    table = 1024 + 0.25 * np.arange(7.0).reshape(1, 7, 1)
    layer.set_weights(
        [table if w.shape == table.shape else np.ones(w.shape) for w in layer.weights]
    )
    output, weights = layer(x, return_attention_scores=True)
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    assert all(keras.backend.standardize_dtype(w.dtype) == "float32" for w in layer.weights)
    _, expected = expected_of(layer, x, x)
    assert expected[0, 0, 0].max() > 1.5 * expected[0, 0, 0].min()
    close(numpy(weights), expected, 2**-8)


@pytest.mark.ci
@pytest.mark.parametrize("jit_compile", [False, True])
def test_lengths_may_be_unknown_in_a_compiled_model(jit_compile):
    on_jax = keras.backend.backend() == "jax"
    if keras.backend.backend() == ("torch" if jit_compile else "jax"):
        pytest.skip("torch.compile takes minutes, and so does JAX without compiling.")
    query, value = keras.Input((None, D)), keras.Input((None, D))
    at = keras.Input((None,), dtype="int32")
    plain, placed = LAYERS["a table a head"](), LAYERS["a table a head"]()
    model = keras.Model(
        [query, value, at], [plain(query, value), placed(query, value, positions=(at, None))]
    )
    placed.set_weights(plain.get_weights())
    model.compile("sgd", "mse", jit_compile=jit_compile)
    for queries, keys in [(T, S)] + [(S, T)] * (on_jax or not jit_compile):
        x, y = (random(B, n, D, seed=n) for n in (queries, keys))
        positions_of_queries = np.tile(np.arange(queries)[::-1].astype("int32"), (B, 1))
        found = model.predict([x, y, positions_of_queries], verbose=0)
        for answer, i in zip(found, (None, positions_of_queries), strict=True):
            close(answer, expected_of(plain, x, y, i)[0].reshape(answer.shape))
    if jit_compile and not on_jax:
        return
    before = placed.position.get_weights()
    model.fit([x, y, positions_of_queries], [f + 1 for f in found], verbose=0, batch_size=B)
    for old, new in zip(before, placed.position.get_weights(), strict=True):
        assert np.isfinite(new).all() and np.abs(new - old).max() > 0


def test_one_object_may_serve_layers_of_equal_sizes_and_no_others():
    shaw = ka.positions.Shaw(2)
    x = random(B, T, D)
    first, second = (ka.SelfAttention(2, 4, position=shaw) for _ in range(2))
    first(x)
    weights = shaw.weights
    second(x)
    assert [id(w) for w in shaw.weights] == [id(w) for w in weights]
    with pytest.raises(ValueError, match=r"Shaw.*built for key_dim=4.*key_dim=6"):
        ka.SelfAttention(2, 6, value_dim=4, position=shaw)(x)
    with pytest.raises(ValueError, match=r"Shaw.*built for value_dim=4.*value_dim=6"):
        ka.SelfAttention(2, 4, value_dim=6, position=shaw)(x)
    own = ka.positions.Shaw(2, per_head=True)
    ka.SelfAttention(2, 4, position=own)(x)
    with pytest.raises(ValueError, match=r"Shaw.*built for num_heads=2.*num_heads=4"):
        ka.SelfAttention(4, 4, position=own)(x)


def test_a_config_of_0_1_0_that_was_not_built_is_not_built():
    position = ka.positions.Shaw(2)
    position.build_from_config({"value_size": None})
    assert not position.built
