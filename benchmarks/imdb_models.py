"""A training step of the IMDB models, ours against Keras's: `python -m benchmarks.imdb_models`.

`post`, `wide` and `ngrams` of `examples.imdb_classification`, in their own batches and
lengths, against the same models with the layers of Keras and KerasHub, in turns. Theirs has the
mean in place of the pooling by attention of `wide`, which Keras does not have.
"""

import functools
from unittest import mock

import keras
import numpy as np

import keras_attention
from benchmarks import runner
from examples import imdb_classification as example
from examples import imdb_models, imdb_ngrams


def keras_attention_of(*sizes, score=None, **options):
    """Keras's layer with the arguments of `keras_attention.Attention`."""

    def call(inputs, value_mask=None):
        if score == "dot":
            return keras.layers.Attention(**options)(inputs, mask=[None, value_mask])
        return keras.layers.MultiHeadAttention(*sizes, **options)(*inputs)

    return call


def hub_wide(size, ngrams, length):
    """The model `wide` of KerasHub's layers."""
    import keras_hub

    ids = keras.Input((None, 4), dtype="int32")
    mask = keras.ops.not_equal(ids[..., 0], 0)
    x = keras.layers.Embedding(size, 64)(ids[..., 0])
    x = keras.layers.Dropout(0.3, (None, None, 1))(x)
    x = keras.layers.Add()([x, keras_hub.layers.SinePositionEncoding()(x)])
    x = keras.layers.Dropout(0.2)(x)
    encoder = keras_hub.layers.TransformerEncoder(128, 4, normalize_first=True)
    x = encoder(x, padding_mask=mask)
    x = keras.layers.GlobalAveragePooling1D()(x, mask=mask)
    x = keras.layers.Dropout(0.5)(keras.layers.LayerNormalization()(x))
    evidence = imdb_ngrams.evidence(ids[..., 1:], ngrams)
    evidence = keras.layers.GlobalAveragePooling1D()(evidence, mask=mask)
    logit = keras.layers.Dense(1)(x) + imdb_ngrams.total(evidence, mask)
    return keras.Model(ids, keras.layers.Activation("sigmoid")(logit))


def step(model, name, data):
    optimizer = imdb_ngrams.optimizer(1000) if name == "ngrams" else keras.optimizers.Adam()
    how = {"metrics": ["accuracy"], "jit_compile": keras.backend.backend() == "jax"}
    model.compile(optimizer, "binary_crossentropy", **how)
    return lambda: model.train_on_batch(*data)


def words(shape, size):
    """Numbers of words, as frequent as Zipf's law has them.

    How many distinct rows of a table a batch touches decides what its gradient costs.
    """
    return np.minimum(np.random.default_rng(0).zipf(1.1, shape), size - 1).astype("int32")


def reviews(name, size, batch, length):
    """Words, or words and n-grams, padded at random, and labels."""
    rng, end = np.random.default_rng(0), [4] if name in imdb_models.NGRAMS else []
    real = np.arange(length) < rng.integers(length // 2, length + 1, (batch, 1))
    ids = words((batch, length, *end), size) * real.reshape(batch, length, *[1] * len(end))
    return ids, rng.integers(0, 2, (batch, 1))


def sides(name, options):
    size, length, batch, _ = example.RECIPES[name].values()
    if options.small:
        size, length, batch = 50, 8, 2
    build = functools.partial(
        imdb_models.build, {"model": name, "max_length": length}, size, ngrams=size
    )
    ours, data = build(), reviews(name, size, batch, length)
    with (
        mock.patch.object(keras_attention, "Attention", keras_attention_of),
        mock.patch.object(imdb_ngrams, "Attention", keras_attention_of),
        mock.patch.object(imdb_models, "wide", hub_wide),
    ):
        other = build()
    both = (step(model, name, data) for model in (ours, other))
    return f"a step, B{batch} T{length}", *both


def main():
    runner.turns(sides, runner.parsed(__doc__, rows=("post", "wide", "ngrams")))


if __name__ == "__main__":
    main()
