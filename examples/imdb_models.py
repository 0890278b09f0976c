"""The models of `imdb_classification`, from numbers to the probability of "positive".

All mask padding. `predict` shows the weights of the layer named "attention", or, of the model
`attention`, what each word adds to the logit.
"""

import numpy as np

from examples.later import imdb_ngrams, keras, keras_attention, texts

NEAR = 2  # To each side, the words that change what a word says.
NGRAMS = "wide", "ngrams"  # Beside words these read n-grams of 1, 2 and 3 words.


def attention(size, length):
    """One query weighs what each word says; what that is depends on the words around it.

    A block reads a word among its neighbors, and its output scales the features of the word's own
    vector, between 0 and 2. What is summed is linear in them: the logit is
    Σ weight · evidence + bias.
    """
    ids = keras.Input((None,), dtype="int32", name="ids")
    mask = keras.ops.not_equal(ids, 0)
    words = keras_attention.ScaledEmbedding(
        size, 64, embeddings_initializer="uniform", name="words"
    )(ids)
    words = keras.layers.Dropout(0.3, (None, None, 1))(words)
    x = keras.layers.Dropout(0.2)(keras_attention.LearnedPositionEmbedding(length)(words))
    near = keras_attention.patterns.SlidingWindow(NEAR, NEAR)
    x = keras_attention.TransformerBlock(128, 2, residual="pre", pattern=near)(x, mask=mask)
    x = keras.layers.LayerNormalization()(x)
    scale = keras.layers.Dense(64, "tanh", kernel_initializer="zeros", name="scale")(x)
    # In training half of the words have no context: a word learns to speak for itself.
    scale = keras.layers.Dropout(0.5, (None, None, 1))(scale)
    x = keras.layers.Multiply(name="context")([words, 1.0 + scale])
    x, _ = keras_attention.AttentionPooling(name="attention")(
        x, mask=mask, return_attention_scores=True
    )
    x = keras.layers.Dropout(0.5)(x)
    logit = keras.layers.Dense(1, dtype="float32", name="evidence")(x)
    output = keras.layers.Activation("sigmoid", dtype="float32", name="probability")(logit)
    return keras.Model(ids, output, name="classifier")


def contributions(classifier, numbers):
    """What each word of a row adds to the logit of the model `attention`, and the bias."""
    layers = [classifier.get_layer(name).output for name in ("context", "attention")]
    states, (_, weights) = keras.Model(classifier.input, layers).predict_on_batch(numbers)
    kernel, bias = classifier.get_layer("evidence").get_weights()
    return weights[0, 0, 0] * (states[0].astype("float32") @ kernel)[:, 0], float(bias[0])


def wide(size, ngrams, length):
    """Wide and deep (Cheng et al. 2016): one query sums up the words of a block and n-grams."""
    ids = keras.Input((None, 4), dtype="int32", name="ids")
    mask = keras.ops.not_equal(ids[..., 0], 0)
    x = keras.layers.Embedding(size, 64, name="words")(ids[..., 0])
    x = keras.layers.Dropout(0.3, (None, None, 1))(x)
    x = keras.layers.Dropout(0.2)(keras_attention.LearnedPositionEmbedding(length)(x))
    x = keras_attention.TransformerBlock(128, 4, residual="pre")(x, mask=mask)
    pooling = keras_attention.AttentionPooling(name="attention")
    x, weights = pooling(x, mask=mask, return_attention_scores=True)
    x = keras.layers.Dropout(0.5)(keras.layers.LayerNormalization()(x))
    deep = keras.layers.Dense(1, dtype="float32", name="deep")(x)
    evidence = imdb_ngrams.evidence(ids[..., 1:], ngrams)
    evidence = keras.ops.matmul(keras.ops.cast(weights[:, 0], "float32"), evidence)
    # Twice, so that weights of n-grams learn faster than others.
    logit = keras.ops.add(deep, imdb_ngrams.total(2 * evidence[:, 0], mask))
    output = keras.layers.Activation("sigmoid", dtype="float32", name="probability")(logit)
    return keras.Model(ids, output, name="classifier")


def post(ids, size, positions):
    """The model of the post "A Brief Reading of 'Attention is All You Need'", with a mask."""
    x = keras.layers.Embedding(size, 128, mask_zero=True, name="embedding")(ids)
    if positions:
        x = keras_attention.SinCosPositionEmbedding(128)(x)
    x = keras_attention.Attention(8, 16, name="attention")([x, x, x])
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.layers.Dropout(0.5)(x)


def build(settings, size, ngrams=0, folder_model=None):
    """The classifier of so many words and n-grams, or of the model of a folder."""
    if settings["model"] == "ngrams":
        return imdb_ngrams.build(size, ngrams)
    if settings["model"] == "attention":
        return attention(size, settings["max_length"])
    if settings["model"] == "wide":
        return wide(size, ngrams, settings["max_length"])
    ids = keras.Input((None,), dtype="int32", name="ids")
    if folder_model:
        x = keras.layers.Dropout(0.1)(texts.summary(ids, folder_model, settings["lora"]))
    else:
        x = post(ids, size, settings["model"] == "post-positions")
    # In float32: bfloat16 cannot tell 0.996 from 1.
    x = keras.layers.Dense(1, "sigmoid", dtype="float32", name="probability")(x)
    return keras.Model(ids, x, name="classifier")


def weights(classifier, numbers):
    """The weights of the words of a row, which sum to 1."""
    scores = keras_attention.visualization.collect_attention(classifier, numbers).items()
    (found,) = (found[0] for name, found in scores if name.startswith("attention"))
    found = np.asarray(found, "float32").sum(axis=(0, 1))
    return found / found.sum()
