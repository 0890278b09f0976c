"""The models: each one from the numbers of a review to the probability that it is positive.

In each, the layer named "attention" is the one whose weights `predict` shows. All take reviews of
any length, padded with 0: masks keep padding out, so that it changes nothing.
"""

import keras
import numpy as np

import keras_attention
from examples.imdb.text import PADDING

ops = keras.ops


def build(recipe, size, log_ratios=None, attend=True):
    """The model of a recipe.

    Args:
        recipe: one of `recipes.RECIPES`.
        size: one more than the largest number of its `Encoder`.
        log_ratios: with n-grams, (size,) of `ngrams.log_ratios`.
        attend: whether the model with n-grams weighs them by attention. If not, all have the same
            weight, to see what attention is worth.
    """
    if recipe.ngrams:
        ids = keras.Input((None, 1 + recipe.ngrams), dtype="int32", name="ids")
        return keras.Model(ids, _best(ids, size, log_ratios, attend), name="classifier")
    ids = keras.Input((None,), dtype="int32", name="ids")
    if recipe.window == "last":
        return keras.Model(ids, _post(ids, size, recipe.positions), name="classifier")
    return keras.Model(ids, _transformer(ids, size), name="classifier")


def optimizer(recipe, steps):
    """The optimizer of a recipe for so many training steps."""
    if not recipe.ngrams:
        return keras.optimizers.Adam()
    # Not Adam, which moves rare n-grams as far as frequent ones: each occurrence counts the same.
    return keras.optimizers.SGD(keras.optimizers.schedules.PolynomialDecay(2.0, steps, 0.02))


def probability(features):
    """The last layer: how probable it is that the review is positive, (B, 1)."""
    # In float32 under every dtype policy: bfloat16 cannot tell 0.996 from 1.
    return keras.layers.Dense(1, "sigmoid", dtype="float32", name="probability")(features)


def _post(ids, size, positions):
    """The model of the post "A Brief Reading of 'Attention is All You Need'", with a mask."""
    x = keras.layers.Embedding(size, 128, mask_zero=True, name="embedding")(ids)
    if positions:
        x = keras_attention.SinCosPositionEmbedding(128, name="positions")(x)
    x = keras_attention.Attention(8, 16, name="attention")([x, x, x])
    x = keras.layers.GlobalAveragePooling1D(name="pooling")(x)
    x = keras.layers.Dropout(0.5, name="dropout")(x)
    return probability(x)


def _transformer(ids, size):
    """An encoder of one block, and a learned query that sums up what it gives."""
    x = keras_attention.Encoder(
        [keras_attention.TransformerBlock(128, num_heads=4, dropout=0.2, residual="pre")],
        keras_attention.Embeddings(
            keras_attention.ScaledEmbedding(size, 64, mask_zero=True),
            keras_attention.SinCosPositionEmbedding(),
            dropout=0.2,
        ),
        final_norm=keras.layers.LayerNormalization(),
        name="encoder",
    )(ids)
    x = keras_attention.AttentionPooling(name="attention")(x)
    x = keras.layers.Dropout(0.5, name="dropout")(x)
    return probability(x)


def _best(ids, size, log_ratios, attend):
    """The evidence of all n-grams, each weighed by attention, and nothing else.

    The evidence of an n-gram is a learned weight times its log-count ratio, as in a linear model of
    Naive-Bayes features (Wang & Manning 2012). There all words of a review count the same. Here
    each has an attention score: a learned number of the word plus one of its position.
    """
    words, ngrams = ids[..., 0], ids[..., 1:]
    # The mask is handed over as an argument: Keras's operations on tensors drop those they carry.
    mask = ops.not_equal(words, PADDING)
    evidence = _evidence(ngrams, size, log_ratios)
    length = ops.sum(ops.cast(mask, "float32"), axis=1, keepdims=True)
    score = _score(words, mask, size) if attend else ops.zeros_like(evidence)
    # The keys are scores already, which a query of 1 leaves as they are.
    attended = keras_attention.Attention(score="dot", dtype="float32", name="attention")(
        [ops.ones_like(score[:, :1]), evidence, score], value_mask=mask
    )
    # The mean underrates a long review, and the sum overrates it. This is between them, and equals
    # the sum at 256 words.
    total = ops.multiply(attended[:, 0], 16 * ops.sqrt(length))
    return keras.layers.Activation("sigmoid", dtype="float32", name="probability")(total)


def _evidence(ngrams, size, log_ratios):
    """The weighted log-count ratios of the n-grams that end at each word, (B, T, 1)."""
    ratio = keras.layers.Embedding(size, 1, trainable=False, dtype="float32", name="log_ratio")
    weight = keras.layers.Embedding(
        size, 1, embeddings_initializer="zeros", dtype="float32", name="weight"
    )
    evidence = ops.sum(ops.multiply(weight(ngrams), ratio(ngrams)), axis=2)
    ratio.set_weights([np.reshape(log_ratios, (size, 1))])
    return evidence


def _score(words, mask, size):
    """The score of each word and its position, (B, T, 1)."""
    word = keras.layers.Embedding(
        size, 1, embeddings_initializer="zeros", dtype="float32", name="word_score"
    )
    position = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="zeros", dtype="float32", name="position_score"
    )
    return ops.add(word(words), position(_positions(mask)))


def _positions(mask):
    """Six features of each position, (B, T, 6): how near it is to either end, at three scales."""
    count = ops.cumsum(ops.cast(mask, "float32"), axis=1)
    distances = (count - 1, count[:, -1:] - count)
    near = [ops.exp(-distance / scale) for scale in (10, 40, 160) for distance in distances]
    return 0.3 * ops.stack(near, axis=-1)
