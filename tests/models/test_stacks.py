"""`Encoder`, `Decoder` and `Embeddings`, beside models of `transformers` in tests/convert."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.sequences import masks
from tests.arrays import numpy, wide
from tests.definition import softmax
from tests.models.stacks import Nothing, randomize

IDS = np.array([[3, 5, 2, 9, 4], [7, 8, 1, 0, 0]], "int32")
D = 12


@pytest.mark.parametrize("alone", [True, False])
def test_features_of_positions_that_are_added(alone):
    """The norm and the projection get them too."""
    tokens = ka.ScaledEmbedding(20, 4, mask_zero=True, scale=1)
    positions = ka.SinCosPositionEmbedding(dim=3, merge_mode="concat")
    after = [] if alone else [keras.layers.LayerNormalization(), keras.layers.Dense(D)]
    parts = dict(zip(("norm", "projection"), after, strict=False))
    model = ka.Embeddings(tokens, positions, **parts)
    model.build((None, 5))
    found, x = model(IDS), tokens(IDS)
    for part in (positions, *after):
        x = part(x)
    np.testing.assert_allclose(numpy(found), numpy(x), atol=1e-6)
    symbols = keras.Input((None,), dtype="int32")
    assert model(symbols).shape == (None, None, x.shape[-1])
    assert ka.Encoder([ka.TransformerBlock(12, 1)], model)(symbols).shape[-1] == x.shape[-1]


def test_a_block_that_is_listed_twice_has_its_weights_once():
    block = ka.TransformerBlock(16, 3)
    once, twice = ka.Encoder([block]), ka.Encoder([block, block])
    x = np.random.default_rng(0).normal(size=(2, 4, D)).astype("float32")
    np.testing.assert_allclose(numpy(twice(x)), numpy(once(once(x))), atol=1e-5)
    assert len(twice.weights) == len(once.weights)


@pytest.mark.parametrize("pairs", [False, True])
def test_global_tokens_of_each_row(pairs, tmp_path):
    """Those of a row alone, whether rows are compacted or have masks of pairs; from a file too."""
    layers = [ka.LongformerAttention(2, 6, 1, max_global=2) for _ in range(2)]
    blocks = [ka.TransformerBlock(16, 3, attention=layer) for layer in layers]
    embeddings = ka.Embeddings(ka.ScaledEmbedding(20, D), ka.LearnedPositionEmbedding(9))
    symbols = [keras.Input((None,), dtype=dtype) for dtype in ("int32", "bool", "bool")]
    ids, real, chosen = symbols
    more = {"attention_mask": np.ones((7, 7), bool)} if pairs else {}
    encoder = ka.Encoder(blocks, embeddings)
    model = keras.Model(symbols, encoder(ids, mask=real, global_mask=chosen, **more))
    randomize(encoder)
    ids = np.array([[3, 5, 2, 9, 4, 7, 6], [7, 0, 8, 1, 2, 0, 5], [1, 2, 3, 4, 5, 6, 7]], "int32")
    chosen = np.isin(ids, [4, 5]) & [[True], [True], [False]]
    model.save(tmp_path / "model.keras")
    found = numpy(keras.saving.load_model(tmp_path / "model.keras")([ids, ids > 0, chosen]))
    for row, at in enumerate(ids > 0):
        expected = encoder(ids[row : row + 1, at], global_mask=chosen[row : row + 1, at])
        np.testing.assert_allclose(found[row : row + 1, at], numpy(expected), atol=1e-5)
    assert np.abs(numpy(encoder(ids[:1])) - found[:1]).max() > 0.1


class Short(ka.Encoder):
    """A subclass whose call has fewer arguments."""

    def call(self, x, mask=None, training=None):
        return super().call(x, mask=mask, training=training)


def test_a_subclass_with_fewer_arguments_in_a_functional_model():
    symbols = keras.Input((None, D))
    whole = keras.Model(symbols, Short([ka.TransformerBlock(12, 2)])(symbols))
    assert whole.output_shape == (None, None, D)


def test_logits_of_the_last_columns(monkeypatch):
    """Those of the whole call, with their mask; a prompt is read without any."""
    embeddings, real = ka.Embeddings(ka.ScaledEmbedding(20, D)), IDS > 0
    reader = ka.TransformerBlock(16, 3, causal=True, cross_attention=True)
    decoder = ka.Decoder([reader], embeddings, keras.layers.LayerNormalization(), ka.Logits(20))
    model = ka.EncoderDecoder(ka.Encoder([ka.TransformerBlock(16, 3)], embeddings), decoder)
    given, symbols = {"source_mask": real, "target_mask": real}, keras.Input((5,), dtype="int32")
    whole = numpy(model([IDS, IDS], **given))
    truth = keras.Input((5,), dtype="bool")
    for keep in (0, 1, 3, 9):
        found, first = model([IDS, IDS], **given, logits_to_keep=keep), max(5 - keep, 0)
        np.testing.assert_allclose(numpy(found), whole[:, first:], atol=1e-6)
        np.testing.assert_array_equal(numpy(masks.implicit(found)), real[:, first:])
        made = model([symbols, symbols], target_mask=truth, logits_to_keep=keep)
        carried = masks.implicit(made).shape
        assert (made.shape, carried) == ((None, 5 - first, 20), (None, 5 - first))
    # Prompts of 5 and 3 tokens, padded on the left; then three more, of which one is none.
    prompt, more = np.array([IDS[0], np.roll(IDS[1], 2)]), np.array([[4, 6, 8], [5, 0, 7]])
    with monkeypatch.context() as patch:
        patch.setattr(ka.Logits, "call", lambda *given: pytest.fail("logits of a prompt"))
        last, cache, memory = model.start(IDS, prompt, 4, real, target_mask=prompt > 0)
    tokens = np.concatenate([numpy(last)[:, None], more], 1)
    # Three tokens are read, and taken back.
    guess = model.steps(tokens[:, 1:], model.grow_cache(cache, 9), memory)[1]
    cache = model.cut_cache(guess, cache[0]["index"])
    found, _ = model.steps(tokens, cache, memory, mask=tokens > 0)
    every = np.concatenate([prompt, more], 1)
    expected = numpy(model([IDS, every], source_mask=real, target_mask=every > 0))[:, -4:]
    np.testing.assert_allclose(numpy(found)[tokens > 0], expected[tokens > 0], atol=1e-5)


@pytest.mark.ci
def test_rows_of_a_prompt_may_be_traced():
    embeddings = ka.Embeddings(ka.ScaledEmbedding(20, D, mask_zero=True))
    model = ka.Decoder([ka.TransformerBlock(16, 3, causal=True)], embeddings, logits=ka.Logits(20))
    model.build(IDS.shape)

    def last(tokens):
        return model.start([[tokens[0], tokens[1], 3]], 2)[0], model.start([tokens], 2)[0]

    found = ka.generation.compiled(last, model)(np.array([1, 2, 4], "int32"))
    assert [int(token) for (token,) in map(numpy, found)] == [3, 4]


@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
@pytest.mark.parametrize("causal", [True, False])
def test_logits_of_whole_rows(pooling, causal, tmp_path):
    """Of real tokens, wherever padding is; in a functional model too, which has no mask after."""
    cls = ka.Decoder if causal else ka.Encoder
    logits = ka.Logits(3, tied=False, use_bias=True, pooling=pooling)
    tokens = ka.ScaledEmbedding(20, D)
    model = cls([ka.TransformerBlock(16, 3, causal=causal)], ka.Embeddings(tokens), logits=logits)
    states = cls(model.blocks, model.embeddings)
    mask = np.array([[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]], bool)
    ids = np.array([*IDS, IDS[0]])
    found = model(ids, mask=mask)
    for row in range(2):
        x = numpy(states(ids[row : row + 1, mask[row]]))[0]
        x = {"first": x[0], "last": x[-1]}.get(pooling, x.mean(axis=0))
        expected = x @ numpy(logits.dense.kernel) + numpy(logits.dense.bias)
        np.testing.assert_allclose(numpy(found)[row], expected, atol=1e-5)
    np.testing.assert_allclose(numpy(found)[2], numpy(logits.dense.bias), atol=1e-6)
    np.testing.assert_allclose(numpy(model(ids))[0], numpy(found)[0], atol=1e-5)
    assert getattr(found, "_keras_mask", None) is None
    symbols, real = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="bool")
    whole = keras.Model([symbols, real], model(symbols, mask=real))
    assert whole.output_shape == (None, 3) and model.compute_output_shape((2, 5)) == (2, 3)
    whole.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    whole.train_on_batch([ids, mask], np.array([0, 1, 2]))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numpy(loaded(ids, mask=mask)), numpy(model(ids, mask=mask)), 1e-6)


def test_a_text_goes_on_from_a_cache():
    """Of one row that all begin with, and of rows that were read before, which outgrow it."""
    window = ka.patterns.SlidingWindow(2, 0)
    blocks = [ka.TransformerBlock(16, 3, causal=True, pattern=x) for x in (None, window)]
    embeddings = ka.Embeddings(ka.ScaledEmbedding(20, D), ka.LearnedPositionEmbedding(9))
    model = ka.Decoder(blocks, embeddings, logits=ka.Logits(20))
    model.build((None, None))
    randomize(model)
    text = np.array([[3, 5, 2, 9, 4, 6, 1, 8, 7], [3, 5, 2, 1, 1, 7, 9, 8, 2]], "int32")
    whole = numpy(model(text))
    _, cache = model(text[:1, :3], cache=model.make_cache(1, 3))
    for first, end in ((3, 5), (5, 9)):
        last, cache = model.start(text[:, first:end], max_tokens=1, cache=cache)
        np.testing.assert_array_equal(numpy(last), text[:, end - 1])
        logits, cache = model.step(last, cache)
        np.testing.assert_allclose(numpy(logits), whole[:, end - 1], atol=1e-4)
    assert cache[0]["key"].shape[2] == 9
    with pytest.raises(ValueError, match="a prompt of 1 tokens after 9 of a cache"):
        model.start(text[:, :1], max_tokens=1, cache=cache)


# What the blocks after the first take, and of which; how many of the first have a window.
REUSES = {
    "Brandon et al. 2024": (["key_value", None, "key_value"], [0, None, 2], 0),
    "Sun et al. 2024": ([None, None, "key_value"], [None, None, 2], 2),
    "Zhou et al. 2024, ResFormer": (["value_residual", "value_residual"], [0, 0], 0),
    "Zhou et al. 2024, SVFormer": (["value", "value"], [0, 0], 0),
}


def of_blocks(model, x):
    """Causal attentions with residuals: V'_n = λ₁ V_n + λ₂ V_m, or K_m and V_m of a block m."""
    handed, ages = [], np.subtract.outer(np.arange(x.shape[1]), np.arange(x.shape[1]))
    for block, source in zip(model.blocks, model.sources, strict=True):
        layer, y = block.attention, x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-5)
        w = {v.path.split("/", 2)[-1]: wide(v) for v in layer.weights}
        w = {name.rsplit("attention/", 1)[-1]: v for name, v in w.items()}
        y = y * wide(block.attention_norm.scale)
        query, key, value = (
            y @ w[kernel].reshape(D, -1) if kernel in w else None
            for kernel in ("query/kernel", "key/kernel", "value/kernel")
        )
        if source is not None:
            of_key, of_value = handed[source]
            key = of_key if key is None else key
            of_own, of_other = w.get("value_scales", (0.0, 1.0))
            value = of_other * of_value + (0.0 if value is None else of_own * value)
        handed.append((key, value))
        query, key, value = (z.reshape(*z.shape[:2], -1, 4) for z in (query, key, value))
        scores = np.einsum("bthk,bsk->bhts", query, key[:, :, 0]) / 2
        seen = (ages >= 0) & (ages < (x.shape[1] if block.pattern is None else 3))
        weights = softmax(np.where(seen, scores, -np.inf))
        found = np.einsum("bhts,bsv->bthv", weights, value[:, :, 0])
        x = x + np.tensordot(found, w["attention_output/kernel"], 2)
    return x


@pytest.mark.parametrize("paper", REUSES)
def test_blocks_that_reuse_keys_and_values(paper):
    """In one call, after a beginning that all rows share, and as a functional model of blocks."""
    takes, sources, windows = REUSES[paper]
    blocks = [
        ka.TransformerBlock(
            None, 3, causal=True, residual="pre", norm={"attention": "rms", "feed_forward": None},
            feed_forward=Nothing(), num_key_value_heads=1, use_bias=False, reuse=reuse,
            pattern=ka.patterns.SlidingWindow(2, 0) if n < windows else None,
        )
        for n, reuse in enumerate([None, *takes])
    ]  # fmt: skip
    model = ka.Decoder(blocks, sources=[None, *sources])
    model.build((None, None, D))
    randomize(model)
    x = np.random.default_rng(1).normal(size=(2, 70, D)).astype("float32")
    x[1, :66] = x[0, :66]
    expected = of_blocks(model, wide(x))
    np.testing.assert_allclose(numpy(model(x)), expected, atol=2e-4)
    _, cache = model(x[:1, :66], cache=model.make_cache(1, 66))
    assert [bool(part) for part in cache] == [reuse != "key_value" for reuse in (None, *takes)]
    cache = model.grow_cache(model.repeat_cache(cache, 2), 70)
    for begin, end in ((66, 69), (69, 70)):
        found, cache = model(x[:, begin:end], cache=cache)
        np.testing.assert_allclose(numpy(found), expected[:, begin:end], atol=2e-4)
    y, handed = (symbols := keras.Input((None, D))), []
    for block, source in zip(blocks, model.sources, strict=True):
        given = {} if source is None else {"key_value": handed[source]}
        y, more = block(y, return_key_value=True, **given)
        handed.append(more)
    np.testing.assert_allclose(numpy(keras.Model(symbols, y)(x)), expected, atol=2e-4)
