"""`Shaw` with embeddings of values: its equations, tables in float32, and what may share it."""

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
    "with values of another size": (2, {"value_dim": V}),
    "a table a head": (9, {"per_head": True}),
    "grouped heads": (2, {"per_head": True, "num_key_value_heads": 2}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_the_equations_between_its_projections(name):
    distance, options = LAYERS[name]
    layer = ka.RelativePositionAttention(4, K, distance, **options)
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
    _, weights = layer(x, return_attention_scores=True)
    _, expected = expected_of(layer, x, x)
    assert expected[0, 0, 0].max() > 1.5 * expected[0, 0, 0].min()
    close(numpy(weights), expected, 2**-8)


def test_one_object_may_serve_layers_of_equal_sizes_and_no_others():
    shaw, x = ka.positions.Shaw(2), random(B, T, D)
    first, second = (ka.SelfAttention(2, 4, position=shaw) for _ in range(2))
    first(x)
    weights = shaw.weights
    second(x)
    assert [id(w) for w in shaw.weights] == [id(w) for w in weights]
    with pytest.raises(ValueError, match=r"Shaw.*built for key_dim=4.*key_dim=6"):
        ka.SelfAttention(2, 6, value_dim=4, position=shaw)(x)
    own = ka.positions.Shaw(2, per_head=True)
    ka.SelfAttention(2, 4, position=own)(x)
    with pytest.raises(ValueError, match=r"Shaw.*built for num_heads=2.*num_heads=4"):
        ka.SelfAttention(4, 4, position=own)(x)


def test_a_config_of_0_1_0_that_was_not_built_is_not_built():
    position = ka.positions.Shaw(2)
    position.build_from_config({"value_size": None})
    assert not position.built


@pytest.mark.ci
@pytest.mark.parametrize("position", ["disentangled", "shaw"])
def test_lengths_unknown_in_a_graph_may_be_zero(position):
    made = ka.positions.Shaw(2) if position == "shaw" else ka.positions.Disentangled(8, 6)
    layer = ka.MultiHeadAttention(2, 4, position=made)
    for known in (None, 1):
        query, value = keras.Input((known, D)), keras.Input((None, D))
        model = keras.Model([query, value], layer(query, value, return_attention_scores=True))
        for queries, keys in ((1, 0), (1, S), (T, S), (0, S), (0, 0), (T, 0)):
            if known in (None, queries):
                given = [random(B, queries, D), random(B, keys, D)]
                found, weights = model.predict(given, verbose=0)
                assert found.shape == (B, queries, D) and np.isfinite(found).all()
                assert weights.shape == (B, 2, queries, keys)
        model = keras.Model([query, value], layer(query, value))
        assert np.isfinite(model.predict([random(B, 1, D), random(B, 0, D)], verbose=0)).all()
