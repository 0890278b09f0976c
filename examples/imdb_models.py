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
        build: from word numbers (B, max_length) and their count to probabilities (B, 1).
        optimizer: from the number of all training steps to an optimizer.
        window: which words of a long review are kept, and where a short one is padded.
        vocabulary_size, max_length, batch_size, epochs: what the options of these names default to.
        loss: of the probabilities.
    """

    build: Callable
    optimizer: Callable
    window: Callable
    vocabulary_size: int
    max_length: int
    batch_size: int
    epochs: int
    loss: str = "binary_crossentropy"


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


def build_best(ids, vocabulary_size):
    """Words and hashed pairs of words, summed up by a learned query."""
    word = keras.layers.Embedding(vocabulary_size, 16, mask_zero=True, name="embedding")(ids)
    pair = keras.layers.Embedding(PAIR_BUCKETS, 4, name="pair_embedding")(hashed_pairs(ids))
    x = keras.layers.Concatenate(name="features")([word, pair])
    x = keras.layers.Dropout(0.3, name="feature_dropout")(x)
    x = keras_attention.AttentionPooling(name="attention")(x)
    return probability(x)


PAIR_BUCKETS = 2**18


def hashed_pairs(ids):
    """A number below `PAIR_BUCKETS` for each word and the one before it; 0 at padding."""
    previous = ops.pad(ids[:, :-1], ((0, 0), (1, 0)))
    # The multiplier keeps the product of a word number and itself within int32.
    hashed = 1 + ops.mod(ids * 31_337 + previous, PAIR_BUCKETS - 1)
    return hashed * ops.cast(ops.not_equal(ids, imdb_text.PADDING), "int32")


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
            keras.optimizers.schedules.PolynomialDecay(3e-3, steps, 1.5e-4)
        ),
        window=imdb_text.both_ends,
        vocabulary_size=30_000,
        max_length=400,
        batch_size=64,
        epochs=5,
    ),
}
