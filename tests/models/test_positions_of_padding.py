"""Positions of padded rows: stacks count real tokens, layers count places, caches real tokens."""

import keras
import numpy as np
import pytest

from keras_attention import (
    AttentionCell,
    AttentionRNN,
    Decoder,
    Embeddings,
    Encoder,
    EncoderDecoder,
    LearnedPositionEmbedding,
    LinformerAttention,
    Logits,
    LongformerAttention,
    MultiHeadAttention,
    MultiHeadLatentAttention,
    NystromAttention,
    Retention,
    ScaledEmbedding,
    SelfAttention,
    TransformerBlock,
    masks,
    patterns,
    positions,
    scores,
)
from keras_attention.visualization import collect_attention
from tests.arrays import numpy
from tests.compiled import compiled
from tests.gradients import gradients
from tests.models.stacks import randomize

VOCABULARY, D, T = 20, 8, 9
# The same five real tokens, with padding on either side and between them.
REAL = np.array(
    [[0, 0, 0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 1, 0, 0, 1, 1]], bool
)
SIDES = {"left": REAL[:1], "right": REAL[1:2], "between": REAL[2:]}
ALONE = np.array([[3, 7, 2, 9, 4]], "int32")
N = ALONE.shape[1]
ROPE = {"max_wavelength": 30.0}


def padded(row, mask, value=0):
    """The elements of (1, N, …) in rows of a mask (B, T), others having a value."""
    found = np.full((*mask.shape, *row.shape[2:]), value, row.dtype)
    for into, real in zip(found, mask, strict=True):
        into[real] = row[0]
    return found


# Padding is a token like others, told from them by the mask alone.
IDS = padded(ALONE, REAL, 5)


def longrope(dim=None):
    scaling = {"short_factors": [1.0, 1.5], "long_factors": [2.0, 3.0], "original_max_length": 6}
    return positions.Rotary(dim=dim, scaling="longrope", **scaling, **ROPE)


def dynamic(dim=None, length=N):
    return positions.Rotary(
        dim=dim, scaling="dynamic", factor=2.0, original_max_length=length, **ROPE
    )


def dynamic_from_2(dim=None):
    return dynamic(dim, 2)


SLOTS = {
    "rotary": lambda: {"position": positions.Rotary(**ROPE)},
    "longrope": lambda: {"position": longrope()},
    "dynamic": lambda: {"position": dynamic()},
    "alibi": lambda: {"position": "alibi"},
    "relative_bias": lambda: {"position": positions.RelativeBias(8, 6)},
    "shaw": lambda: {"position": positions.Shaw(3)},
    "disentangled": lambda: {"position": positions.Disentangled(8, 6)},
    "window": lambda: {"pattern": patterns.SlidingWindow(2, 1)},
    "rate": lambda: {"pattern": patterns.Dilated(2)},
    "block": lambda: {"pattern": patterns.Block(2), "position": positions.Rotary(**ROPE)},
    "prefix": lambda: {"pattern": patterns.Prefix(2) | patterns.SlidingWindow(1, 1)},
    "none": dict,
}
# A block of each, in few models, since each is compiled.
PAIRS = [
    ("rotary", "shaw"),
    ("longrope", "relative_bias"),
    # Caches refuse "dynamic" in a block before others, where prompts with padding may be longer.
    ("alibi", "dynamic"),
    ("disentangled", "prefix"),
    ("window", "rate"),
    ("block", "none"),
]


def stack(kind, slots, **block):
    blocks = [TransformerBlock(12, 2, residual="pre", **SLOTS[slot](), **block) for slot in slots]
    learned = LearnedPositionEmbedding(T) if "none" in slots else None
    embeddings = Embeddings(ScaledEmbedding(VOCABULARY, D, scale=1), learned)
    return kind(blocks, embeddings, logits=Logits(VOCABULARY))


def decoder(slots):
    model = stack(Decoder, slots, causal=True)
    model.build((None, None))
    return randomize(model)


def assert_alone(found, expected, mask=REAL):
    """Compares the real tokens of each row with those of the row alone."""
    for row, real in zip(numpy(found), mask, strict=True):
        np.testing.assert_allclose(row[real], numpy(expected)[0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("slots", PAIRS, ids="-".join)
def test_calls_and_steps_give_the_logits_of_the_row_alone(slots):
    model = decoder(slots)
    # Rows that end with a real token.
    rows = REAL[:, -1]

    def run(alone, ids, mask):
        last, cache = model.start(ids[rows], 1, mask=mask[rows])
        output = model(ids, mask=mask)
        carried = masks.implicit(output)
        # A mask of pairs stays in the order of the batch.
        pairs = model(ids, mask=mask, attention_mask=np.ones((T, T), bool))
        return model(alone), output, pairs, carried, model.step(last, cache)[0]

    expected, output, pairs, carried, step = compiled(run, ALONE, IDS, REAL)
    assert_alone(output, expected)
    assert_alone(pairs, expected)
    assert (numpy(carried) == REAL).all()
    assert_alone(numpy(step)[:, None], numpy(expected)[:, -1:], np.ones((rows.sum(), 1), bool))


def test_an_encoder_and_the_decoder_that_attends_to_it():
    encoder = stack(Encoder, ["relative_bias"])
    decoder = stack(Decoder, ["longrope"], causal=True, cross_attention=True)
    model = EncoderDecoder(encoder, decoder)
    model.build([(None, None), (None, None)])
    randomize(model)
    target = ALONE[:, ::-1].copy()

    def run(ids, targets, mask, target, alone):
        both = model([ids, targets], source_mask=mask, target_mask=mask)
        of_source = model([ids, keras.ops.repeat(target, 3, axis=0)], source_mask=mask)
        return both, of_source, model([alone, target])

    both, of_source, expected = compiled(run, IDS, padded(target, REAL), REAL, target, ALONE)
    assert_alone(both, expected)
    assert_alone(of_source, expected, np.ones((3, N), bool))


def test_values_and_gradients_of_vectors_that_stay_in_their_order():
    """Vectors instead of tokens; padding has NaN; a gradient is where its token is."""
    model = Encoder([TransformerBlock(12, 2, position="alibi")])
    x = np.random.default_rng(0).normal(size=(1, N, D)).astype("float32")
    model.build(x.shape)
    randomize(model)
    given, weights = padded(x, REAL, np.nan), np.arange(N * D, dtype="float32").reshape(1, N, D)
    (expected,) = gradients(lambda x: model(x) * keras.ops.array(weights), [x])
    mask, weights = keras.ops.array(REAL), keras.ops.array(padded(weights, REAL))
    (found,) = gradients(lambda x: model(x, mask=mask) * weights, [given])
    assert_alone(found, expected)
    assert (found[~REAL] == 0).all()


def test_positions_of_the_caller_are_used_as_they_are():
    model = decoder(["rotary"])
    order = np.arange(T, dtype="int32")

    def run(ids, mask, alone):
        return (
            model(ids, mask=mask, positions=order),
            model(alone, positions=order[REAL[2]]),
        )

    found, expected = compiled(run, IDS[2:], REAL[2:], ALONE)
    assert_alone(found, expected, REAL[2:])


@pytest.mark.skipif(keras.config.backend() == "jax", reason="each operation is compiled: 15 s")
def test_collected_scores_are_in_the_order_of_the_tokens():
    model = decoder(["relative_bias"])
    found = collect_attention(model, IDS, mask=REAL)
    alone = collect_attention(model, ALONE)
    assert len(found) == len(alone) == 1
    for weights, expected in zip(found.values(), alone.values(), strict=True):
        for row, real in zip(weights, REAL, strict=True):
            np.testing.assert_allclose(row[:, real][:, :, real], expected[0], atol=1e-5)


# What depends on the order of tokens by more than a position or a pattern.

ORDERED = {
    "location": lambda: {"score": scores.Location(T)},
    "linformer": lambda: {"attention": LinformerAttention(2, 4, T, 3)},
    "nystrom": lambda: {"attention": NystromAttention(2, 4, 2, conv_kernel_size=3)},
    "retention": lambda: {"attention": Retention(2, 4)},
    "longformer": lambda: {"attention": LongformerAttention(2, 4, 1, num_global=2)},
}


def encoder(name, **second):
    """Blocks of a kind of attention and of plain attention, which has weights."""
    blocks = [TransformerBlock(12, 2, **ORDERED[name]()), TransformerBlock(12, 2, **second)]
    model = Encoder(blocks, Embeddings(ScaledEmbedding(VOCABULARY, D, scale=1)))
    model.build((None, None))
    return randomize(model)


@pytest.mark.parametrize("name", ORDERED)
def test_attention_that_depends_on_the_order_of_tokens(name):
    model = encoder(name)
    output, expected = compiled(
        lambda ids, mask, alone: (model(ids, mask=mask), model(alone)), IDS, REAL, ALONE
    )
    assert_alone(output, expected)


@pytest.mark.parametrize("second", [None, "rotary"])
@pytest.mark.parametrize("name", ["location", "longformer"])
def test_arrays_of_pairs_follow_tokens_that_are_put_in_order(name, second):
    model = encoder(name, position=second)
    rng = np.random.default_rng(0)
    pairs = rng.random((1, N, N)) < 0.7
    texts = rng.integers(0, 2, (1, N)).astype("int32")
    wide = np.zeros((3, T, T), bool)
    for row, real in zip(wide, REAL, strict=True):
        row[np.ix_(real, real)] = pairs[0]

    def run(ids, mask, wide, numbers, alone, pairs, texts):
        return (
            (model(ids, mask=mask, attention_mask=wide), REAL),
            (model(ids, mask=mask, attention_mask=wide[:, None]), REAL),
            (model(ids[2:], mask=mask[2:], attention_mask=wide[2]), REAL[2:]),
            model(alone, attention_mask=pairs),
            (model(ids, mask=mask, segment_ids=numbers), REAL),
            (model(ids, mask=mask, segment_ids=(numbers, numbers)), REAL),
            model(alone, segment_ids=texts),
        )

    *of_pairs, by_pairs, of_texts, of_both, by_texts = compiled(
        run, *(IDS, REAL, wide, padded(texts, REAL), ALONE, pairs, texts)
    )
    for found, mask in of_pairs:
        assert_alone(found, by_pairs, numpy(mask))
    for found, mask in (of_texts, of_both):
        assert_alone(found, by_texts, numpy(mask))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((T,), r"must be \(T, S\)"),
        ((2, T), "An `attention_mask` of two axes is"),
        ((T + 2, T + 2), "An `attention_mask` of two axes is"),
        ((T, T + 2), "Lengths of the mask and of `key` must be equal"),
        ((2, T, T), "Batch sizes of the mask and of `query` must be equal"),
    ],
)
def test_masks_of_pairs_of_other_shapes_are_refused_whether_rows_are_put_in_order(shape, message):
    model = encoder("longformer")
    for mask in (None, REAL):
        with pytest.raises(ValueError, match=message):
            model(IDS, mask=mask, attention_mask=np.ones(shape, bool))


def test_a_pair_of_lists_of_numbers_of_texts():
    model = encoder("longformer")
    texts = padded(np.array([[0, 0, 1, 1, 1]], "int32"), REAL)
    found = model(IDS, mask=REAL, segment_ids=(texts.tolist(), texts.tolist()))
    expected = model(IDS, mask=REAL, segment_ids=texts)
    np.testing.assert_allclose(numpy(found), numpy(expected), atol=1e-6)


def test_weights_beside_a_block_that_attends_to_a_context_alone():
    context, x = np.ones((3, 2, D), "float32"), np.ones((3, T, D), "float32")
    cross = {"cross_attention": True, "self_attention": False}
    both = {"cross_attention": True, "position": "alibi"}
    model = Decoder([TransformerBlock(12, 2, **cross), TransformerBlock(12, 2, **both)])
    model(x, context, mask=REAL)
    assert len(collect_attention(model, x, context=context, mask=REAL)) == 3


@pytest.mark.skipif(keras.config.backend() == "jax", reason="each operation is compiled: 15 s")
@pytest.mark.parametrize("name", ORDERED)
def test_weights_are_those_of_the_model_after_such_attention(name):
    model = encoder(name)
    rows = slice(1, 2) if name == "longformer" else slice(3)
    found = collect_attention(model, IDS[rows], mask=REAL[rows])
    alone = collect_attention(model, ALONE)
    assert len(found) == len(alone) > 0
    for weights, expected in zip(found.values(), alone.values(), strict=True):
        for row, real in zip(weights, REAL[rows], strict=True):
            np.testing.assert_allclose(row[:, real][:, :, real], expected[0], atol=1e-5)


# Layers and blocks count places, unless they are given positions.


@pytest.mark.parametrize("slot", ["block", "longrope", "shaw", "window"])
def test_a_block_counts_places_and_its_cache_real_tokens(slot):
    block = TransformerBlock(12, 2, causal=True, **SLOTS[slot]())
    x = np.random.default_rng(0).normal(size=(1, N, D)).astype("float32")
    block.build(x.shape)
    counted = np.maximum(np.cumsum(REAL, axis=1) - 1, 0).astype("int32")
    places = np.flatnonzero(REAL[2]).astype("int32")
    # The length of a row is from its first real token.
    places = places - places[0] if slot == "longrope" else places

    def run(given, mask, x):
        cached, _ = block(given, mask=mask, cache=block.make_cache(3, N))
        by_positions = block(given, mask=mask, positions=counted)
        return block(given, mask=mask), by_positions, cached, block(x), block(x, positions=places)

    plain, by_positions, cached, alone, apart = compiled(run, padded(x, REAL), REAL, x)
    assert_alone(by_positions, alone)
    assert_alone(cached, alone)
    # `Block` depends on more than distances.
    distances = slice(1 if slot == "block" else 0, 2)
    assert_alone(numpy(plain)[distances], alone, REAL[distances])
    assert_alone(numpy(plain)[2:], apart, REAL[2:])


@pytest.mark.parametrize("position", [longrope, dynamic, dynamic_from_2])
def test_the_length_of_a_row_is_that_of_its_real_tokens(position):
    layer = SelfAttention(2, 4, position=position())
    grid = MultiHeadAttention(2, 4, position=position(), attention_axes=(1, 2))
    x = np.random.default_rng(0).normal(size=(1, N, D)).astype("float32")
    cells = x[:, :4].reshape(1, 2, 2, D)
    layer.build(x.shape)
    grid.build(cells.shape, cells.shape)
    mask = REAL[:2]
    # Two rows of a grid, and two of padding.
    wide = np.pad(cells, ((0, 0), (0, 2), (0, 0), (0, 0)))
    rows = np.repeat([[[True], [True], [False], [False]]], 2, axis=2)

    def run(x, given, mask, cells, wide, rows):
        return layer(x), layer(given, mask=mask), grid(cells), grid(wide, query_mask=rows)

    expected, found, of_cells, of_wide = compiled(run, x, padded(x, mask), mask, cells, wide, rows)
    assert_alone(found, expected, mask)
    np.testing.assert_allclose(numpy(of_wide)[:, :2], numpy(of_cells), atol=1e-5)


def retained(position, x, mask):
    """A sequence through retention."""
    layer = Retention(2, 4, position=position)
    layer.build(x.shape)
    return lambda x, mask: layer(x, query_mask=mask)


def from_context(position, x, mask):
    """Queries to a cached context, of heads or latent."""
    made = {
        "heads": MultiHeadAttention(2, 4, position=position),
        "latent": MultiHeadLatentAttention(2, 4, 4, 8, position=position),
    }
    for layer in made.values():
        layer.build(x.shape, x.shape)

    def call(x, mask):
        query, found = x[:, :2] * 0 + 0.5, []
        for layer in made.values():
            memory = layer.cache_context(x, key_mask=mask)
            found.append(layer(query, cache=memory)[0])
        return keras.ops.concatenate(found, axis=1)

    return call


def of_cell(position, x, mask):
    """Steps that attend to a memory."""
    attention = MultiHeadAttention(2, 4, position=position)
    layer = AttentionRNN(AttentionCell(keras.layers.GRUCell(6), attention), return_sequences=True)
    layer.build((None, 2, D), x.shape)
    return lambda x, mask: layer(x[:, :2] * 0 + 0.5, x, memory_mask=mask)


@pytest.mark.parametrize("position", [longrope, dynamic, dynamic_from_2])
@pytest.mark.parametrize("road", [retained, from_context, of_cell])
def test_the_length_of_a_row_is_the_same_on_other_roads(road, position):
    x = np.random.default_rng(0).normal(size=(1, N, D)).astype("float32")
    # Queries of their own count from the first key, real or not.
    mask = REAL[:2] if road is retained else REAL[1:2]
    run = road(position(4), x, mask)
    expected, found = compiled(
        lambda x, all_real, given, mask: (run(x, all_real), run(given, mask)),
        *(x, np.ones((1, N), bool), padded(x, mask, 3), mask),
    )
    if road is retained:
        assert_alone(found, expected, mask)
    else:
        np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-5, atol=1e-5)
