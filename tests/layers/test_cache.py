"""What a cache is, beside `tests/contract`: arrays and dtype, its end, sizes that are not known."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns, positions
from keras_attention.layers import kv_cache
from keras_attention.sequences import masks
from tests.arrays import built, close, numpy, random
from tests.compiled import program, quick
from tests.gradients import weight_gradients
from tests.problems import on_tensorflow

B, T, D, H = 3, 9, 16, 4
X = random(B, T, D)
WINDOW = patterns.SlidingWindow(2, 0)
REAL = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0]], bool)


def heads(**kwargs):
    return built(ka.MultiHeadAttention(H, 8, value_dim=6, **kwargs), X.shape)


def step_of(layer):
    return quick(lambda x, cache: layer(x, cache=cache))


def whole_of(layer):
    return quick(lambda x: layer(x, use_causal_mask=True))


def pieces(x, sizes):
    return [x[:, end - size : end] for size, end in zip(sizes, np.cumsum(sizes), strict=True)]


def decoded(step, x, sizes, cache):
    """The outputs of `x` in pieces of these sizes, side by side, and the last cache."""
    outputs = []
    for piece in pieces(x, sizes):
        output, cache = step(piece, cache)
        outputs.append(output)
    return keras.ops.concatenate(outputs, axis=1), cache


def agree(found, expected, tolerance=2e-5):
    close(found, expected, tolerance)


def test_what_make_cache_gives():
    def shapes(cache):
        return {name: tuple(array.shape) for name, array in cache.items()}

    cache = ka.MultiHeadAttention(H, 8, value_dim=6, num_key_value_heads=2).make_cache(5, 7)
    assert shapes(cache) == {"key": (5, 2, 7, 8), "value": (5, 2, 7, 6), "index": (5,)}
    assert keras.backend.standardize_dtype(cache["index"].dtype) == "int32"
    window = ka.MultiHeadAttention(H, 8, sliding_window=4)
    assert [shapes(window.make_cache(5, n))["key"][2] for n in (7, 3)] == [4, 3]
    np.testing.assert_array_equal(
        numpy(kv_cache.stored_positions(keras.ops.convert_to_tensor([0, 2, 4, 9]), 4)),
        [[-4, -3, -2, -1], [0, 1, -2, -1], [0, 1, 2, 3], [8, 5, 6, 7]],
    )


def test_log_probabilities_stand_before_the_cache():
    layer = built(ka.HardAttention(2, 4, gradient="reinforce"), X.shape)
    output, chosen, cache = layer(X, cache=layer.make_cache(B, T))
    for found, expected in zip((output, chosen), layer(X, use_causal_mask=True), strict=True):
        agree(found, expected)
    np.testing.assert_array_equal(numpy(cache["index"]), T)


def test_a_cache_keeps_its_own_dtype():
    layer = heads(position="rotary")
    start = layer.make_cache(B, T, dtype="float16")
    output, cache = decoded(step_of(layer), X, [3, 1, 5], start)
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    assert keras.backend.standardize_dtype(cache["value"].dtype) == "float16"
    agree(output, whole_of(layer)(X), 2e-2)
    exact = heads(dtype="mixed_bfloat16")
    cache = exact(X, cache=exact.make_cache(B, T, dtype="float32"))[1]
    assert keras.backend.standardize_dtype(cache["key"].dtype) == "float32"


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (ka.MultiHeadAttention, {"position": "rotary", "num_key_value_heads": 2}),
        (ka.MultiHeadAttention, {"position": "alibi", "pattern": WINDOW, "use_sink": True}),
        (ka.MultiHeadLatentAttention, {"rope_dim": 4, "latent_dim": 16}),
        (ka.DifferentialAttention, {}),
        (ka.NativeSparseAttention, {"block_size": 2, "stride": 1, "num_selected": 3}),
    ],
)
def test_a_cache_of_int8_has_a_scale_by_head_and_token_and_is_nearly_equal(make, options):
    layer = built(make(H, 8, **options), X.shape)
    wide, start = (layer.make_cache(B, 12, dtype, spare=2) for dtype in ("bfloat16", "int8"))
    dtypes = {name: keras.backend.standardize_dtype(x.dtype) for name, x in start.items()}
    for name in {"key", "value"} & wide.keys():
        assert (dtypes[name], dtypes[f"{name}_scale"]) == ("int8", "bfloat16")
        assert tuple(start[name].shape) == tuple(wide[name].shape)
        assert tuple(start[f"{name}_scale"].shape) == (*wide[name].shape[:-1], 1)
    step = step_of(layer)
    output, cache = decoded(step, X[:, :7], [3, 1, 3], start)
    # One that has been cut, after others, and that has grown.
    cache = layer.cut_cache(step(-X[:, :2], cache)[1], 7)
    last, cache = decoded(step, X[:, 7:], [1, 1], layer.grow_cache(cache, 14, spare=2))
    expected = numpy(whole_of(layer)(X))
    found = np.concatenate([numpy(output), numpy(last)], axis=1)
    assert 0 < np.abs(found - expected).max() < 0.04 * np.abs(expected).max()


def test_a_number_of_int8_is_within_half_a_step():
    rows = random(2, 5, 3, 64) * np.float32([[[[1e-6], [1.0], [1e6]]]])
    rows[0, 0, 0] = 0
    arrays = {"key": (3, 8, 64)}
    cache = kv_cache.append(kv_cache.make(2, arrays, "int8"), rows, None)
    found = numpy(kv_cache.read(cache, "float32")[1])[:, :5]
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    assert (np.abs(found - rows) <= largest / 126.5 / 2 * 1.01).all()


def test_a_model_keeps_the_dtypes_of_its_caches():
    # A state has float32, whatever the model computes in.
    blocks = [
        ka.TransformerBlock(16, 2, causal=True, dtype="mixed_bfloat16", **options)
        for options in ({}, {"attention": ka.Retention(2, 4, dtype="mixed_bfloat16")})
    ]
    embeddings = ka.Embeddings(ka.ScaledEmbedding(9, 8, dtype="mixed_bfloat16"))
    model = ka.Decoder(blocks, embeddings, logits=ka.Logits(9), dtype="mixed_bfloat16")
    prompt = np.array([[3, 5, 2]], "int32")
    for given, expected in (("int8", ["int8", "bfloat16"]), ("float32", ["float32"])):
        last, cache = model.start(prompt, max_tokens=3, cache_dtype=given)
        _, after = model.step(last, cache)
        for caches in (cache, after):
            found = [keras.backend.standardize_dtype(x.dtype) for x in caches[0].values()]
            assert [x for x in dict.fromkeys(found) if x != "int32"] == expected
            assert keras.backend.standardize_dtype(caches[1]["state"].dtype) == "float32"


def test_a_call_leaves_the_cache_that_it_was_given():
    layer = heads()
    step = step_of(layer)
    cache = step(X[:, :3], layer.make_cache(B, T))[1]
    before = {name: numpy(array).copy() for name, array in cache.items()}
    first, again = (step(X[:, 3:4], cache)[0] for _ in range(2))
    for name, array in cache.items():
        np.testing.assert_array_equal(numpy(array), before[name])
    agree(again, first, 0)


@pytest.mark.parametrize("pattern", [None, WINDOW])
def test_dynamic_scaling_is_of_the_tokens_so_far(pattern):
    # It depends on the last position, so that each token changes what was rotated before.
    rotary = positions.Rotary(scaling="dynamic", factor=3.0, original_max_length=3)
    layer = heads(position=rotary, pattern=pattern)
    step, whole = step_of(layer), whole_of(layer)
    cache, at = layer.make_cache(B, 2 * T), 0
    for size in (2, 1, 1, 3):
        output, cache = step(X[:, at : at + size], cache)
        at += size
        agree(output, whole(X[:, :at])[:, -size:])


def test_a_window_goes_on_beyond_the_length():
    layer, x = heads(pattern=WINDOW, position="rotary"), random(B, 40, D)
    output, cache = decoded(step_of(layer), x, [1] * 8 + [30, 2], layer.make_cache(B, 5))
    assert cache["key"].shape[2] == 3
    agree(output, whole_of(layer)(x))


def test_gradients_pass_through_a_cache():
    layer = heads(pattern=patterns.SlidingWindow(3, 0), position="rotary")

    def in_pieces(x):
        return decoded(
            lambda x, cache: layer(x, cache=cache), x, [2, 1, 6], layer.make_cache(B, T)
        )[0]

    (found, of_x), (expected, of_x_at_once) = (
        weight_gradients(layer, lambda x, call=call: keras.ops.square(call(x)), [X])
        for call in (in_pieces, lambda x: layer(x, use_causal_mask=True))
    )
    for gradient, other in zip([*found, *of_x], [*expected, *of_x_at_once], strict=True):
        np.testing.assert_allclose(gradient, other, atol=1e-5 * np.abs(other).max() + 1e-4)


def test_memory_of_other_keys_heeds_the_masks_that_tensors_carry():
    values, keys = random(B, 7, 6, seed=1), random(B, 7, 4, seed=2)
    layer = built(ka.MultiHeadAttention(H, 8), X.shape, values.shape, keys.shape)
    carried = (np.arange(7) < np.array([[7], [3], [0]])) & (np.arange(7) != 1)
    value = masks.carry(*map(keras.ops.convert_to_tensor, (values, carried)))
    here = np.broadcast_to(np.arange(7) != 0, (B, 7))
    memory = layer.cache_context(value, keys, key_mask=here)
    np.testing.assert_array_equal(numpy(memory["mask"]), here & carried)
    agree(layer(X, cache=memory)[0], layer(X, value, keys, key_mask=here))
    assert masks.implicit(value) is not None


# Its end


@pytest.mark.parametrize("sizes", [[T + 1], [T, 1], [T - 1, 2]])
def test_more_tokens_than_slots_are_an_error(sizes):
    layer = heads()
    *first, last = pieces(random(B, T + 1, D), sizes)
    cache = layer.make_cache(B, T)
    for piece in first:
        _, cache = layer(piece, cache=cache)
    with pytest.raises(ValueError, match=f"has {T} entries.*tokens up to {T + 1} in a row"):
        layer(last, cache=cache)
    # What is padding needs no slot.
    layer(last, query_mask=np.zeros(last.shape[:2], bool), cache=cache)


@pytest.mark.parametrize("pattern", [None, patterns.SlidingWindow(T + 2, 0)])
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch runs eagerly")
def test_rows_that_overflow_are_nan_where_nothing_can_be_raised(pattern):
    layer = heads(pattern=pattern, use_bias=False)
    cache = layer(X, query_mask=np.arange(T) < [[T], [T - 1], [2]], cache=layer.make_cache(B, T))[1]

    def two(x, cache):
        return decoded(lambda x, cache: layer(x, cache=cache), x, [1, 1], cache)[0]

    found = numpy(program(two, jit_compile=True)(X[:, :2], cache))
    expected = [[True, True], [False, True], [False, False]]
    np.testing.assert_array_equal(np.isnan(found).all(-1), expected)
    np.testing.assert_array_equal(np.isnan(found).any(-1), expected)


# Tokens that are taken back, beside the relation of pieces


@pytest.mark.parametrize(
    ("spare", "steps", "lost"),
    [
        # A ring of 3 without spare entries has all its tokens, until one is overwritten.
        (0, (3, -2), False),
        (0, (9, -9), False),
        (0, (4, -1), True),
        # With 2 it knows how many tokens it has had, however few it was cut to.
        (2, (9, -3), False),
        (2, (9, -4), True),
        (2, (9, -2, 1, -2), False),
        (2, (9, -2, 1, -3), True),
        (2, (9, -9, 6, -2), False),
    ],
)
def test_a_ring_is_cut_as_far_as_its_entries_reach(spare, steps, lost):
    layer, text = heads(pattern=WINDOW, position="rotary"), random(B, 0, D)
    cache, step = layer.make_cache(B, 20, spare=spare), step_of(layer)
    for seed, count in enumerate(steps):
        before, length = cache, text.shape[1] + count
        if count > 0:
            text = np.concatenate([text, random(B, count, D, seed=seed)], axis=1)
            cache = step(text[:, -count:], cache)[1]
        else:
            text, last = text[:, :length], count is steps[-1]
            cache = None if lost and last else layer.cut_cache(cache, length)
    x = random(B, 2, D, seed=9)
    expected = whole_of(layer)(np.concatenate([text, x], axis=1))[:, -2:]
    if lost:
        with pytest.raises(ValueError, match="and later tokens took"):
            layer.cut_cache(before, length)
        expected = np.full(expected.shape, np.nan)
    else:
        agree(step(x, cache)[0], expected)
    if keras.backend.backend() != "torch":  # which runs eagerly
        # One row is cut.
        lengths = np.array([length, 20, 20])
        cut = program(lambda cache, lengths: layer.cut_cache(cache, lengths))(before, lengths)
        agree(step(x, cut)[0][:1, :1], expected[:1, :1])


def test_a_cache_grows():
    layer = heads(position="rotary")
    cache = layer.grow_cache(step_of(layer)(X[:, :4], layer.make_cache(B, 4))[1], T)
    agree(step_of(layer)(X[:, 4:], cache)[0], whole_of(layer)(X)[:, 4:])
    # Shorter than the window, a cache has all tokens; as long, it needs no more entries.
    layer = heads(pattern=WINDOW)
    grown = [layer.grow_cache(layer.make_cache(B, n), T, spare=1) for n in (1, 3)]
    assert [x["key"].shape[2] for x in grown] == [4, 3]
    assert ["reached" in x for x in grown] == [True, False]
    cache = step_of(layer)(X[:, :1], layer.make_cache(B, 1))[1]
    cache = step_of(layer)(X[:, 1:7], layer.grow_cache(cache, T, spare=1))[1]
    output = step_of(layer)(X[:, 5:], layer.cut_cache(cache, 5))[0]
    agree(output, whole_of(layer)(X)[:, 5:])


@pytest.mark.parametrize(
    ("make", "options", "dtype"),
    [
        (ka.MultiHeadAttention, {"position": "alibi", "num_key_value_heads": 2}, "float32"),
        (ka.MultiHeadLatentAttention, {"rope_dim": 4, "latent_dim": 16}, "int8"),
        (ka.DifferentialAttention, {}, "float32"),
        (ka.MultiHeadAttention, {"use_sink": True}, "int8"),
        (ka.MultiHeadAttention, {"normalization": "sparsemax"}, "float32"),
    ],
)
def test_a_beginning_is_stored_once(make, options, dtype, monkeypatch):
    monkeypatch.setattr(kv_cache, "SHARED_MULTIPLE", 4)
    layer = built(make(H, 8, **options), X.shape)
    one = layer(X[:1, :5], cache=layer.make_cache(1, 5, dtype))[1]
    each = keras.tree.map_structure(lambda x: keras.ops.repeat(x, B, axis=0), one)
    caches = [layer.grow_cache(x, T) for x in (layer.repeat_cache(one, B), each)]
    shared = not {"use_sink", "normalization"} & options.keys()
    assert ["shared_key" in cache for cache in caches] == [shared, False]

    @quick
    def decode(cache):
        output, cache = layer(X[:, 5:8], cache=cache, query_mask=REAL)
        after = layer.cut_cache(layer(X[:, :1], cache=cache)[1], cache["index"])
        last, weights, _ = layer(X[:, 8:], cache=after, return_attention_scores=True)
        return masks.clear(output, REAL), last, weights

    (*found, weights), (*expected, wider) = map(decode, caches)
    for pair in zip(found, expected, strict=True):
        agree(*pair)
    agree(weights, numpy(wider)[..., : weights.shape[-1]])


# Sizes that are not known


@on_tensorflow
@pytest.mark.parametrize("pattern", [pytest.param(None, marks=pytest.mark.ci), WINDOW])
def test_a_batch_and_a_length_that_are_not_known(pattern):
    import tensorflow as tf

    layer = heads(pattern=pattern, position="rotary")
    sizes = [tf.TensorSpec((None, None, D)), tf.TensorSpec((None, None))]

    @tf.function(autograph=False, input_signature=sizes)
    def run(x, first):
        cache = layer.make_cache(tf.shape(x)[0], T)
        _, cache = layer(x, query_mask=first > 0, cache=cache)
        return layer(x, query_mask=first < 1, cache=cache)[0]

    expected = layer(X, use_causal_mask=True)
    for rows, size in ((B, 4), (1, 8)):
        first = np.broadcast_to(np.arange(T) < size, (rows, T)).astype("float32")
        agree(run(X[:rows], first)[:, size:], expected[:rows, size:])


@on_tensorflow
@pytest.mark.parametrize("slots", [T, 4])
def test_a_window_and_slots_that_are_not_known(slots):
    import tensorflow as tf

    # As a cache of its own makes it, and one that is shorter than the window.
    layer = heads(pattern=patterns.SlidingWindow(T - 1, 0), position="rotary")
    cache = layer.make_cache(B, slots)
    sizes = {"key": (None, H, None, 8), "value": (None, H, None, 6), "index": (None,)}
    spec = {name: tf.TensorSpec(shape, cache[name].dtype) for name, shape in sizes.items()}
    step = tf.function(
        lambda x, cache: layer(x, cache=cache), [tf.TensorSpec((None, None, D)), spec], False
    )
    found, expected = (
        numpy(decoded(step, X[:, :6], [3, 1, 2], cache)[0]),
        layer(X, use_causal_mask=True),
    )
    agree(found[:, : min(slots, 6)], expected[:, : min(slots, 6)])
    assert slots == T or np.isnan(found[:, slots:]).all()


# Where JAX has int64, which sums of int32 then are, and float64


@pytest.fixture(name="x64")
def _x64():
    if keras.backend.backend() != "jax":
        pytest.skip("an option of JAX")
    import jax

    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize(("position", "pattern"), [("rotary", None), ("relative_bias", WINDOW)])
def test_a_text_with_padding_in_pieces_is_the_text_at_once(position, pattern, x64):
    layer = heads(position=position, pattern=pattern)
    mask = np.array([[1, 1, 1, 0, 0, 1, 1, 0, 1]] * B, bool)
    step = quick(lambda x, mask, cache: layer(x, cache=cache, query_mask=mask))
    cache, outputs = layer.make_cache(B, T), []
    for x, here in zip(pieces(X, [4, 1, 4]), pieces(mask, [4, 1, 4]), strict=True):
        output, cache = step(x, here, cache)
        outputs.append(output)
    assert str(cache["index"].dtype) == "int32"
    agree(keras.ops.concatenate(outputs, axis=1)[:, mask[0]], whole_of(layer)(X[:, mask[0]]))


SECTIONS = {"axes": [0, 1, 1, 2], "diagonal": True}


@pytest.mark.parametrize(
    "position",
    ["rotary", positions.AxialRotary((1, 16, 16), **SECTIONS), positions.MixedRotary((99, 9))],
)
def test_tokens_in_pieces_may_have_positions(position):
    """A token, an image of 2 by 2 and four tokens, through blocks with positions and without."""
    own = {"num_heads": 2, "causal": True, "key_dim": 8}
    blocks = [
        ka.TransformerBlock(32, position=position, **own),
        ka.TransformerBlock(32, **own),
        ka.TransformerBlock(32, position=position, reuse="key_value", **own),
    ]
    model = built(ka.Decoder(blocks, sources=[None, None, 0]), X.shape)
    mask = np.array([[1, 1, 1, 0, 0, 1, 1, 0, 1], [0] + [1] * 8, [1] * 9], bool)
    at = np.array([0, 256, 257, 272, 273, 512, 768, 1024, 1280], "int32")
    at = np.stack([at, at + 256, 3 * np.arange(T)])
    expected = quick(lambda x: model(x, mask=mask, positions=at))(X)
    step = quick(lambda x, mask, at, cache: model(x, mask=mask, positions=at, cache=cache))
    cache, outputs = model.make_cache(B, T), []
    for given in zip(*(pieces(x, [4, 1, 4]) for x in (X, mask, at)), strict=True):
        output, cache = step(*given, cache)
        outputs.append(output)
    agree(keras.ops.concatenate(outputs, axis=1)[mask], expected[mask])


def test_a_norm_of_float64_is_computed_in_it(x64):
    x = X.astype("float64")
    expected = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(ka.RMSNorm(dtype="float64")(x), expected, rtol=1e-12)
