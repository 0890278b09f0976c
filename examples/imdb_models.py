"""The models: each one a function from word numbers to a probability, and what it is trained with.

In each, the layer named "attention" is the one whose weights `predict` shows.
"""

import dataclasses
import functools
from collections.abc import Callable

import keras

import keras_attention
from examples import imdb_text

ops = keras.ops


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A model and its defaults.

    Attributes:
        build: from word numbers (B, max_length) and their count to probabilities (B, 1); with
            `ngrams`, from numbers (B, max_length, 1 + len(ngrams)) and a list of their counts.
        optimizer: from the number of all training steps to an optimizer.
        window: which words of a long review are kept, and where a short one is padded.
        vocabulary_size, max_length, batch_size, epochs: what the options of these names default to.
        ngrams: the lengths of the n-grams that stand beside each word.
        min_reviews: how many training reviews an n-gram must occur in.
    """

    build: Callable
    optimizer: Callable
    window: Callable
    vocabulary_size: int
    max_length: int
    batch_size: int
    epochs: int
    ngrams: tuple = ()
    min_reviews: int = 3


def adam(steps):
    """Adam as Keras makes it."""
    return keras.optimizers.Adam()


def probability(features):
    """The last layer: how probable it is that the review is positive, (B, 1)."""
    # In float32 under every dtype policy: bfloat16 cannot tell 0.996 from 1.
    return keras.layers.Dense(1, "sigmoid", dtype="float32", name="probability")(features)


def build_post(ids, vocabulary_size, positions=False):
    """The model of the post "A Brief Reading of 'Attention is All You Need'", without a mask."""
    x = keras.layers.Embedding(vocabulary_size, 128, name="embedding")(ids)
    if positions:
        x = keras_attention.SinCosPositionEmbedding(128, name="positions")(x)
    x = keras_attention.Attention(8, 16, name="attention")([x, x, x])
    x = keras.layers.GlobalAveragePooling1D(name="pooling")(x)
    x = keras.layers.Dropout(0.5, name="dropout")(x)
    return probability(x)


def build_transformer(ids, vocabulary_size):
    """Masked padding, positions, one block, and a learned query that sums up what it gives."""
    x = keras_attention.ScaledEmbedding(vocabulary_size, 64, mask_zero=True, name="embedding")(ids)
    x = keras_attention.SinCosPositionEmbedding(name="positions")(x)
    x = keras.layers.Dropout(0.2, name="embedding_dropout")(x)
    x = keras_attention.TransformerBlock(
        intermediate_dim=128, num_heads=4, dropout=0.2, normalize_first=True, name="block"
    )(x)
    x = keras.layers.LayerNormalization(name="norm")(x)
    x = keras_attention.AttentionPooling(name="attention")(x)
    x = keras.layers.Dropout(0.5, name="dropout")(x)
    return probability(x)


def build_best(ids, sizes):
    """Words, pairs and triples of words, summed up by two learned queries and by their mean.

    A linear model of n-grams is strong on long reviews (Wang & Manning 2012). This is one that
    learns which of them to listen to: small vectors of words and n-grams stand side by side, and
    attention weighs the places. Half of the words and n-grams are left out at random in training.
    """
    columns = [ids[..., i] for i in range(len(sizes))]
    word = keras.layers.Embedding(sizes[0], 16, mask_zero=True, name="embedding")(columns[0])
    parts = [_drop_places(word)]
    for order, column in enumerate(columns[1:], start=2):
        ngram = keras.layers.Embedding(
            sizes[order - 1], 2, embeddings_initializer="zeros", name=f"{order}_gram_embedding"
        )(column)
        known = ops.cast(ops.not_equal(column, 0), ngram.dtype)
        parts.append(_drop_places(ops.multiply(ngram, known[..., None])))
    x = keras.layers.Concatenate(name="features")(parts)

    # Queries that start at zero: at first, attention is the mean.
    attended = keras_attention.AttentionPooling(
        num_queries=2, score="dot", query_initializer="zeros", name="attention"
    )(x)
    mean = keras.layers.GlobalAveragePooling1D(name="mean")(x)
    pooled = keras.layers.Concatenate()([keras.layers.Flatten()(attended), mean])
    # A long review says more than its mean: the root of its length comes between mean and sum.
    length = ops.sum(ops.cast(ops.not_equal(columns[0], imdb_text.PADDING), "float32"), axis=1)
    return probability(ops.multiply(ops.cast(pooled, "float32"), ops.sqrt(length)[:, None] / 16))


def _drop_places(x, rate=0.5):
    """Sets whole places of (B, T, D) to zero in training, and leaves the others as they are."""
    # Dropout scales what it keeps, which `minimum` takes back: with half of the evidence missing in
    # training, the model is more sure of itself on whole reviews, as it should be.
    kept = keras.layers.Dropout(rate)(ops.ones_like(x[..., :1]))
    return keras.layers.Multiply()([x, ops.minimum(kept, 1)])


_POST = Recipe(
    build=build_post,
    optimizer=adam,
    window=imdb_text.last_words,
    vocabulary_size=20_000,
    max_length=80,
    batch_size=32,
    epochs=2,
)

RECIPES = {
    "post": _POST,
    "post-positions": dataclasses.replace(
        _POST, build=functools.partial(build_post, positions=True)
    ),
    "transformer": Recipe(
        build=build_transformer,
        optimizer=adam,
        window=imdb_text.both_ends,
        vocabulary_size=20_000,
        max_length=200,
        batch_size=32,
        epochs=3,
    ),
    "best": Recipe(
        build=build_best,
        optimizer=lambda steps: keras.optimizers.Adam(
            keras.optimizers.schedules.PolynomialDecay(1e-2, steps, 5e-4)
        ),
        window=imdb_text.both_ends,
        vocabulary_size=40_000,
        max_length=400,
        batch_size=64,
        epochs=3,
        ngrams=(2, 3),
    ),
}
