"""A small model of the package's layers, data for it, and its training."""

import keras
import numpy as np

from keras_attention import ScaledEmbedding, SinCosPositionEmbedding, TransformerBlock

VOCABULARY, LENGTH, ROWS, BLOCKS = 64, 24, 16, 2


def decoder(dropout=0.1, **options):
    """A decoder-only Transformer whose embedding is also its projection."""
    ids = keras.Input((None,), dtype="int32")
    embedding = ScaledEmbedding(VOCABULARY, 32, mask_zero=True, name="embedding")
    x = SinCosPositionEmbedding(name="positions")(embedding(ids))
    for n in range(BLOCKS):
        # Not ReLU, whose gradient jumps where rounding puts a unit on the other side of 0.
        options = {"activation": "gelu", **options}
        x = TransformerBlock(
            64, 8, causal=True, dropout=dropout, seed=n, name=f"block_{n}", **options
        )(x)
    return keras.Model(ids, embedding(x, reverse=True))


def texts():
    """Padded tokens (ROWS, LENGTH), and those that follow."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, VOCABULARY, (ROWS, LENGTH + 1)).astype("int32")
    # As many in each four rows: Keras takes the mean of each replica's real tokens.
    lengths = np.resize([9, 13, 20, 25], ROWS)
    tokens[np.arange(LENGTH + 1)[None] >= lengths[:, None]] = 0
    return tokens[:, :-1], tokens[:, 1:]


def trained(model, steps=10, batch_size=ROWS, **options):
    """The losses of some steps, and the weights after them."""
    model.compile(
        # Not Adam, which turns rounding into steps where the gradient is 0, as of a key's bias.
        keras.optimizers.SGD(0.3, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **options,
    )
    x, y = texts()
    history = model.fit(x, y, batch_size=batch_size, epochs=steps, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


def assert_trained_alike(found, expected, atol=1e-4):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, atol=atol)
