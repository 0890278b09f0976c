"""Relative positions of Shaw et al. 2018, against loops over the pairs of equations 3 and 4."""

import keras
import numpy as np
import pytest

from keras_attention import (
    Attention,
    MultiHeadAttention,
    RelativePositionAttention,
    SelfAttention,
    patterns,
    positions,
)
from keras_attention.kernels import relative
from keras_attention.spec import Positions
from tests import definition, problems
from tests.gradients import gradients, weight_gradients

B, T, S, H, K, V, D = 2, 4, 6, 2, 4, 5, 8

ON_JAX = keras.backend.backend() == "jax"
# JAX has float64 only after its x64 mode was switched on for the process.
WIDEST, CLOSE = ("float32", 1e-5) if ON_JAX else ("float64", 1e-11)


def random(*shape, seed=0, dtype=WIDEST):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")), "float64")


def widest(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor), "float64")


def close(found, expected, tolerance=CLOSE):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def defined(query, key, value, of_keys, of_values=None, i=None, j=None, mask=True):
    """Output (B, T, H, V) and weights (B, H, T, S), a pair at a time."""
    query, key, value, of_keys = (np.asarray(x, "float64") for x in (query, key, value, of_keys))
    batch, queries, heads, size = query.shape
    keys, k = key.shape[1], of_keys.shape[1] // 2
    i = np.broadcast_to(np.arange(queries) if i is None else i, (batch, queries))
    j = np.broadcast_to(np.arange(keys) if j is None else j, (batch, keys))
    mask = np.broadcast_to(mask, (batch, heads, queries, keys))
    output = np.zeros((batch, queries, heads, value.shape[-1]))
    weights = np.zeros(mask.shape)
    for b, h, t in np.ndindex(batch, heads, queries):
        allowed = np.flatnonzero(mask[b, h, t])
        if allowed.size == 0:
            continue
        row = {s: min(max(int(j[b, s] - i[b, t]), -k), k) + k for s in allowed}
        # Where there is one table, it is that of all heads.
        a_k = of_keys[h % len(of_keys)]
        scores = [query[b, t, h] @ (key[b, s, h] + a_k[row[s]]) / np.sqrt(size) for s in allowed]
        for s, weight in zip(allowed, definition.normalize(scores), strict=True):
            weights[b, h, t, s] = weight
            a_v = 0 if of_values is None else of_values[h % len(of_values)][row[s]]
            output[b, t, h] += weight * (value[b, s, h] + a_v)
    return output, weights


def heads(queries=T, keys=S, batch=B):
    """Query, key and value."""
    return (
        random(batch, queries, H, K, seed=1),
        random(batch, keys, H, K, seed=2),
        random(batch, keys, H, V, seed=3),
    )


def tables(k, per_head=False):
    count = H if per_head else 1
    return 2 * random(count, 2 * k + 1, K, seed=4), random(count, 2 * k + 1, V, seed=5)


def run(function, *arrays):
    """What `function` returns. JAX compiles it as a whole, not one operation at a time."""
    tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
    if ON_JAX:
        import jax

        function = jax.jit(function)
    return [widest(found) for found in function(*tensors)]


def attend(query, key, value, of_keys, of_values=None, **given):
    """Output and weights of the kernel."""

    def call(*arrays):
        attended = problems.attend(
            *arrays[:3],
            scale=query.shape[-1] ** -0.5,
            relative_keys=arrays[3],
            relative_values=None if of_values is None else arrays[4],
            return_weights=True,
            **given,
        )
        return attended.output, attended.weights

    return run(call, query, key, value, of_keys, *([] if of_values is None else [of_values]))


def integers(array):
    return keras.ops.convert_to_tensor(np.asarray(array, "int32"))


# Values


@pytest.mark.parametrize(
    "queries, keys, k, per_head, use_values",
    [
        (5, 5, 2, False, True),
        (5, 5, 2, True, False),
        (5, 5, 9, True, True),
        (3, 6, 2, True, True),
        (6, 3, 2, False, True),
        (1, 5, 3, False, True),
        (5, 1, 1, True, True),
    ],
)
def test_the_kernel_is_equations_3_and_4(queries, keys, k, per_head, use_values):
    arrays = [*heads(queries, keys), *tables(k, per_head)][: 5 if use_values else 4]
    for found, expected in zip(attend(*arrays), defined(*arrays), strict=True):
        close(found, expected)


# Name: what the kernel is given, and the positions that this means.
PLACES = {
    "from 0": ({}, None, None),
    "offset": ({"offset": 3}, 3 + np.arange(T), None),
    "negative offset": ({"offset": -2}, np.arange(T) - 2, None),
    "offset in a tensor": ({"offset": np.array(5)}, 5 + np.arange(T), None),
    "offset of each row": (
        {"offset": np.array([2, -1])},
        np.arange(T) + np.array([[2], [-1]]),
        None,
    ),
    "positions of queries": ({"query_positions": [7, 0, 3, 3]}, [7, 0, 3, 3], None),
    "positions of keys": ({"key_positions": [5, 4, 3, 2, 1, 0]}, None, [5, 4, 3, 2, 1, 0]),
    "positions of each row": (
        {
            "query_positions": [[0, 1, 2, 3], [9, 2, -4, 0]],
            "key_positions": [[-2, -1, 0, 1, 2, 3], [40, 0, 1, 0, -9, 2]],
        },
        [[0, 1, 2, 3], [9, 2, -4, 0]],
        [[-2, -1, 0, 1, 2, 3], [40, 0, 1, 0, -9, 2]],
    ),
}


def as_tensors(given):
    return {n: x if isinstance(x, int) else integers(x) for n, x in given.items()}


@pytest.mark.parametrize("kind", PLACES)
def test_queries_and_keys_may_stand_anywhere(kind):
    given, i, j = PLACES[kind]
    arrays = *heads(), *tables(2, per_head="each row" in kind)
    found = attend(*arrays, **as_tensors(given))
    for answer, expected in zip(found, defined(*arrays, i=i, j=j), strict=True):
        close(answer, expected)
    if kind != "from 0":
        assert np.abs(found[0] - defined(*arrays)[0]).max() > 0.01


def allowed():
    """Any keys of the first sequence but none for one of its queries; none of the second's."""
    mask = np.random.default_rng(7).random((B, H, T, S)) < 0.6
    mask[0, 0, 1] = mask[1] = False
    return mask


@pytest.mark.parametrize("kind", ["offset", "positions of each row"])
def test_masks_and_patterns_count_and_a_query_without_keys_gets_zeros(kind):
    given, i, j = PLACES[kind]
    arrays = *heads(), *tables(2)
    found = attend(
        *arrays,
        mask=keras.ops.convert_to_tensor(allowed()),
        pattern=patterns.Causal(),
        **as_tensors(given),
    )
    at = np.broadcast_to(np.arange(T) if i is None else i, (B, T))[:, None, :, None]
    keys_at = np.broadcast_to(np.arange(S) if j is None else j, (B, S))[:, None, None]
    mask = allowed() & (keys_at <= at)
    for answer, expected in zip(found, defined(*arrays, i=i, j=j, mask=mask), strict=True):
        close(answer, expected)
    empty = ~mask.any(axis=-1)
    assert empty.any() and not empty.all()
    assert (found[0][empty.transpose(0, 2, 1)] == 0).all()
    assert (found[1][~mask] == 0).all()


@pytest.mark.parametrize("queries, keys, k, offset", [(4, 6, 2, 0), (6, 4, 9, 3), (1, 7, 3, 6)])
def test_shifting_diagonals_is_looking_up_pairs(queries, keys, k, offset):
    query = heads(queries, keys)[0].transpose(0, 2, 1, 3)
    weights = random(B, H, queries, keys, seed=6)
    of_keys, of_values = tables(k, per_head=True)

    def both(query, weights, of_keys, of_values):
        at = offset + keras.ops.arange(queries, dtype="int32")
        ways = Positions.of(queries, keys, offset=offset), Positions.of(queries, keys, at)
        assert [way.consecutive for way in ways] == [True, False]
        return [
            answer
            for way in ways
            for answer in (
                relative.scores(query, of_keys, keys, way),
                relative.values(weights, of_values, way),
            )
        ]

    scores, values, looked_up, summed = run(both, query, weights, of_keys, of_values)
    assert scores.shape == (B, H, queries, keys) and values.shape == (B, H, queries, V)
    close(scores, looked_up)
    close(values, summed)


def test_only_distances_count():
    arrays = *heads(), *tables(3)
    at, keys_at = np.array([[0, 2, 3, 9], [1, 1, 0, 5]]), np.arange(S)

    def answers(*arrays):
        def attend(**given):
            return problems.attend(
                *arrays[:3], relative_keys=arrays[3], relative_values=arrays[4], **given
            ).output

        starts = [
            {"query_positions": at + start, "key_positions": keys_at + start} for start in (0, 1000)
        ]
        return [attend(**as_tensors(start)) for start in starts] + [
            attend(offset=offset) for offset in (50, 5000, -50)
        ]

    here, there, far, farther, before = run(answers, *arrays)
    close(here, there)
    # And of those beyond k, only the side.
    close(far, farther)
    assert np.abs(before - far).max() > 0.01


def test_dropout_drops_a_value_and_its_distance_together():
    # Values that are unit vectors show each weight by key; those of the table, by distance.
    query, key, _ = heads(T, T)
    by_key = np.broadcast_to(np.eye(T)[None, :, None], (B, T, H, T)).astype(WIDEST)
    by_distance = np.eye(2 * T - 1)[None].astype(WIDEST)
    of_keys, nothing = tables(T - 1)[0], np.zeros((1, 2 * T - 1, T), WIDEST)

    def both(query, key, of_keys, *values):
        return [
            problems.attend(
                query, key, value, relative_keys=of_keys, relative_values=of_values,
                dropout=0.5, seed=3,
            ).output
            for value, of_values in (values[:2], values[2:])
        ]  # fmt: skip

    zeros = np.zeros((B, T, H, 2 * T - 1), WIDEST)
    first, second = run(both, query, key, of_keys, by_key, nothing, zeros, by_distance)
    assert (first == 0).any()
    for t in range(T):
        close(second[:, t, :, T - 1 - t : 2 * T - 1 - t], first[:, t])


# Gradients


@pytest.mark.parametrize(
    "kind, per_head", [("from 0", False), ("offset", True), ("positions of each row", True)]
)
def test_gradients_are_those_of_the_equations(kind, per_head):
    given, i, j = PLACES[kind]
    mask = allowed()
    inputs = [*heads(), *tables(2, per_head)]
    of_output, of_weights = random(B, T, H, V, seed=8), random(B, H, T, S, seed=9)
    cotangents = [keras.ops.convert_to_tensor(x) for x in (of_output, of_weights)]

    def ours(query, key, value, of_keys, of_values):
        found = problems.attend(
            query, key, value, scale=K**-0.5, relative_keys=of_keys, relative_values=of_values,
            mask=keras.ops.convert_to_tensor(mask), return_weights=True, **as_tensors(given),
        )  # fmt: skip
        return [found.output * cotangents[0], found.weights * cotangents[1]]

    def theirs(*arrays):
        output, weights = defined(*arrays, i=i, j=j, mask=mask)
        return (output * of_output).sum() + (weights * of_weights).sum()

    found = gradients(ours, inputs)
    names = ("query", "key", "value", "of_keys", "of_values")
    for name, gradient, correct in zip(
        names, found, definition.gradients(theirs, inputs), strict=True
    ):
        assert np.abs(correct).max() > 0.01
        tolerance = 2e-4 if ON_JAX else 1e-7
        np.testing.assert_allclose(gradient, correct, rtol=tolerance, atol=tolerance, err_msg=name)
    assert (found[0][~mask.any(axis=-1).transpose(0, 2, 1)] == 0).all()
    assert (found[1][1] == 0).all() and (found[2][1] == 0).all()


@pytest.mark.parametrize("kind", ["from 0", "positions of each row"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_tables_learn_nothing_from_queries_without_keys(dtype, kind):
    given = as_tensors(PLACES[kind][0])
    arrays = [keras.ops.cast(x, dtype) for x in heads()]

    def total(query, key, value, of_keys, of_values):
        found = problems.attend(
            query,
            key,
            value,
            relative_keys=of_keys,
            relative_values=of_values,
            mask=keras.ops.zeros((B, 1, T, S), "bool"),
            **given,
        )
        return keras.ops.square(found.output)

    for gradient in gradients(total, [*arrays, *(x.astype("float32") for x in tables(2))]):
        np.testing.assert_array_equal(gradient, 0.0)


def test_distances_that_do_not_occur_get_no_gradient():
    arrays = *heads(), *tables(9)

    def total(*arrays):
        found = problems.attend(*arrays[:3], relative_keys=arrays[3], relative_values=arrays[4])
        return keras.ops.square(found.output)

    for gradient in gradients(total, arrays)[3:]:
        occurs = np.isin(np.arange(-9, 10), np.arange(-(T - 1), S))
        assert (gradient[0, ~occurs] == 0).all()
        assert (np.abs(gradient[0, occurs]).max(axis=-1) > 0).all()


# Layers


def projected(layer, x, name):
    """Heads that a layer's projection makes of `x`, in float64, from its weights."""
    weights = [np.asarray(w, "float64") for w in getattr(layer, f"{name}_dense").get_weights()]
    kernel = weights[0].reshape(weights[0].shape[0], -1)
    bias = weights[1].reshape(-1) if len(weights) > 1 else 0.0
    size = layer.value_dim if name == "value" else layer.key_dim
    return (x @ kernel + bias).reshape(*x.shape[:2], -1, size)


def expected_of(layer, query, value, groups=1, **given):
    """Heads and weights by the equations, from the weights of a layer."""
    q, k, v = (
        projected(layer, x, name)
        for x, name in ((query, "query"), (value, "key"), (value, "value"))
    )
    k, v = np.repeat(k, groups, axis=2), np.repeat(v, groups, axis=2)
    return defined(q, k, v, *(np.asarray(t) for t in layer.position.get_weights()), **given)


LAYERS = {
    "RelativePositionAttention": lambda **kwargs: RelativePositionAttention(4, K, 2, **kwargs),
    "without values": lambda **kwargs: RelativePositionAttention(
        4, K, 2, use_values=False, **kwargs
    ),
    "a table a head": lambda **kwargs: RelativePositionAttention(4, K, 9, per_head=True, **kwargs),
    "with values of another size": lambda **kwargs: RelativePositionAttention(
        4, K, 2, value_dim=V, **kwargs
    ),
    "grouped heads": lambda **kwargs: RelativePositionAttention(
        4, K, 2, per_head=True, num_key_value_heads=2, **kwargs
    ),
    "one key head": lambda **kwargs: Attention(
        4, K, position=positions.Shaw(2), num_key_value_heads=1, **kwargs
    ),
    "MultiHeadAttention": lambda **kwargs: MultiHeadAttention(
        4, K, position=positions.Shaw(3), **kwargs
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_the_equations_between_its_projections(name):
    layer = LAYERS[name]()
    query, value = random(B, T, D, dtype="float32"), random(B, S, D, seed=1, dtype="float32")
    padding = np.arange(S) < np.array([[S], [2]])
    at = [[3, 1, 0, 8], [2, 3, 4, 5]]
    groups = 4 // (layer.num_key_value_heads or 4)
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
        expected, expected_weights = expected_of(layer, query, value, groups, **means)
        close(weights, expected_weights, 1e-5)
        if name == "MultiHeadAttention":
            kernel, bias = (np.asarray(w) for w in layer.output_dense.get_weights())
            expected = np.einsum("bthv,hvd->btd", expected, kernel) + bias
        close(output, expected.reshape(*output.shape), 1e-5)


def test_a_sequence_over_itself_counts_from_any_place():
    layer = SelfAttention(4, K, position=positions.Shaw(2))
    x = random(B, T, D, dtype="float32")
    layer.build(x.shape)
    at = [np.arange(T), np.arange(T) + 30, np.array([[0, 1, 0, 1], [4, 3, 2, 1]])]
    plain, *found = run(lambda x: [layer(x), *(layer(x, positions=i) for i in at)], x)
    for answer, i in zip([plain, *found], [at[0], *at], strict=True):
        close(answer, expected_of(layer, x, x, i=i, j=i)[0].reshape(B, T, -1), 1e-5)
    assert np.abs(found[2] - plain).max() > 1e-3


def test_a_training_step_moves_both_tables_by_finite_gradients():
    layer = RelativePositionAttention(2, K, 2, per_head=True)
    x = random(B, T, D, dtype="float32")
    layer.build(x.shape)
    found, _ = weight_gradients(layer, lambda: keras.ops.square(layer(x)))
    paths = [variable.path.split("/")[-1] for variable in layer.trainable_variables]
    assert paths.count("key_embeddings") == paths.count("value_embeddings") == 1
    for path, gradient in zip(paths, found, strict=True):
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 1e-5, path


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_tables_are_read_in_float32_in_mixed_precision(policy):
    layer = RelativePositionAttention(1, 1, 3, use_values=False, dtype=policy)
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
    ones = np.ones((1, T, 1, 1))
    _, expected = defined(ones, ones, ones, table)
    assert expected[0, 0, 0].max() > 1.5 * expected[0, 0, 0].min()
    close(numpy(weights), expected, 2**-8)


def test_huge_numbers_stay_finite_in_half_precision():
    arrays = [keras.ops.cast(np.sign(x) * 6e4, "float16") for x in heads()]
    embeddings = [1e30 * x.astype("float32") for x in tables(2)]

    def answers(*arrays):
        found = problems.attend(
            *arrays[:3], relative_keys=arrays[3], relative_values=1e-30 * arrays[4],
            mask=keras.ops.convert_to_tensor(allowed()), return_weights=True,
        )  # fmt: skip
        return [keras.ops.cast(answer, "float32") for answer in (found.output, found.weights)]

    output, weights = run(answers, *arrays, *embeddings)
    assert np.isfinite(output).all()
    close(weights.sum(axis=-1), allowed().any(axis=-1), 1e-2)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_lengths_may_be_unknown_in_a_compiled_model(jit_compile):
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
    for queries, keys in [(T, S)] + [(S, T)] * (ON_JAX or not jit_compile):
        x, y = (random(B, n, D, seed=n, dtype="float32") for n in (queries, keys))
        positions_of_queries = np.tile(np.arange(queries)[::-1].astype("int32"), (B, 1))
        found = model.predict([x, y, positions_of_queries], verbose=0)
        for answer, i in zip(found, (None, positions_of_queries), strict=True):
            close(answer, expected_of(plain, x, y, i=i)[0].reshape(answer.shape), 1e-5)
    if jit_compile and not ON_JAX:
        return
    before = placed.position.get_weights()
    model.fit([x, y, positions_of_queries], [f + 1 for f in found], verbose=0, batch_size=B)
    for old, new in zip(before, placed.position.get_weights(), strict=True):
        assert np.isfinite(new).all() and np.abs(new - old).max() > 0


@pytest.mark.parametrize("name", LAYERS)
def test_a_saved_model_loads_with_its_tables(name, tmp_path):
    x = keras.Input((None, D))
    layer = LAYERS[name](use_bias=True, dropout=0.1)
    model = keras.Model(x, layer(x))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = loaded.get_layer(layer.name)
    assert type(again) is type(layer)
    assert again.position.get_config() == layer.position.get_config()
    for weight, saved in zip(again.position.weights, layer.position.weights, strict=True):
        assert weight.name == saved.name and weight.shape == saved.shape
    array = random(B, T, D, dtype="float32")
    close(numpy(loaded(array)), numpy(model(array)), 1e-6)
    assert np.abs(numpy(model(array))).max() > 0.01


def test_one_object_may_serve_layers_of_equal_sizes_and_no_others():
    shaw = positions.Shaw(2)
    x = random(B, T, D, dtype="float32")
    first, second = (SelfAttention(2, 4, position=shaw) for _ in range(2))
    first(x)
    weights = shaw.weights
    second(x)
    assert [id(w) for w in shaw.weights] == [id(w) for w in weights]
    with pytest.raises(ValueError, match=r"Shaw.*built for key_dim=4.*key_dim=6"):
        SelfAttention(2, 6, value_dim=4, position=shaw)(x)
    with pytest.raises(ValueError, match=r"Shaw.*built for value_dim=4.*value_dim=6"):
        SelfAttention(2, 4, value_dim=6, position=shaw)(x)
    own = positions.Shaw(2, per_head=True)
    SelfAttention(2, 4, position=own)(x)
    with pytest.raises(ValueError, match=r"Shaw.*built for num_heads=2.*num_heads=4"):
        SelfAttention(4, 4, position=own)(x)


def test_tables_train_save_and_load_in_every_layer(check_in_every_layer):
    given = positions.Shaw(2), positions.Shaw(1, per_head=True), positions.Shaw(9, use_values=False)
    found = check_in_every_layer("position", *given)
    for position, shapes in zip(
        found, ([(1, 5, 4)] * 2, [(2, 3, 4)] * 2, [(1, 19, 4)]), strict=True
    ):
        assert [tuple(weight.shape) for weight in position.weights] == shapes


@pytest.mark.parametrize("max_distance", [0, -1, 1.5, True, None])
def test_the_distance_must_be_a_count(max_distance):
    for make in (
        positions.Shaw,
        lambda distance: RelativePositionAttention(2, 4, max_distance=distance),
    ):
        with pytest.raises(ValueError, match="max_distance"):
            make(max_distance)


@pytest.mark.parametrize("score", ["cosine", "general"])
def test_the_score_must_be_an_inner_product_of_the_heads(score):
    with pytest.raises(
        ValueError, match=r"Shaw supports only .*Dot or ScaledDot.*(Cosine|General)"
    ):
        RelativePositionAttention(2, 4, 2, score=score)


def test_the_position_of_the_preset_is_its_own():
    with pytest.raises(TypeError, match="position"):
        RelativePositionAttention(2, 4, 2, position="alibi")


# Memory


@pytest.mark.skipif(not ON_JAX, reason="Only JAX lists the arrays of a computation.")
@pytest.mark.parametrize("given", [{}, {"query_positions": np.arange(64)[::-1].copy()}])
def test_no_array_has_features_for_every_pair(given):
    import jax

    length, features = 64, 40
    x = random(1, length, 2, features)
    of_keys, of_values = random(1, 9, features, seed=1), random(1, 9, features, seed=2)

    def total(x, of_keys, of_values):
        found = problems.attend(
            x, x, x, relative_keys=of_keys, relative_values=of_values, **as_tensors(given)
        )
        return keras.ops.sum(keras.ops.square(found.output))

    largest = 0

    def walk(jaxpr):
        nonlocal largest
        for equation in jaxpr.eqns:
            largest = max([largest, *(int(np.prod(v.aval.shape)) for v in equation.outvars)])
            for inner in jax.core.jaxprs_in_params(equation.params):
                walk(inner)

    walk(jax.make_jaxpr(jax.grad(total, argnums=(0, 1, 2)))(x, of_keys, of_values).jaxpr)
    assert 2 * length * length <= largest < length * length * features / 4
