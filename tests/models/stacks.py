"""Stacks for tests, with random weights."""

import numpy as np

import keras_attention as ka
from tests.arrays import numpy
from tests.compiled import compiled

VOCABULARY, D, H = 20, 12, 3


def output(model, *inputs):
    """What a built model gives for its one input or its list of two."""
    return numpy(compiled(lambda *x: model(list(x) if len(x) > 1 else x[0]), *inputs))


def randomize(model, seed=0):
    rng = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(size=weight.shape) / 2)
    return model


def embeddings(tokens=None, **kwargs):
    tokens = tokens or ka.ScaledEmbedding(VOCABULARY, D, mask_zero=True, scale=1)
    return ka.Embeddings(tokens, **kwargs)


def encoder(tokens=None, **kwargs):
    """Two sorts of position: a table that is added, and one of distances that blocks share."""
    table = ka.positions.RelativeBias(num_buckets=8, max_distance=8)
    blocks = [ka.TransformerBlock(16, H, position=table, score="dot") for _ in range(2)]
    learned = ka.LearnedPositionEmbedding(16)
    return ka.Encoder(blocks, embeddings(tokens, positions=learned), **kwargs)


def language_model():
    """Windows and wavelengths that change from block to block, as in Gemma 3."""
    blocks = [
        ka.TransformerBlock(
            16,
            H,
            causal=True,
            pattern=pattern,
            position=ka.positions.Rotary(max_wavelength=wavelength),
            key_dim=6,
            residual="sandwich",
            norm=ka.RMSNorm(offset=1.0),
            qk_norm=ka.RMSNorm(offset=1.0),
            use_bias=False,
            gated=True,
            activation="gelu_tanh",
        )
        for pattern, wavelength in ((ka.patterns.SlidingWindow(3, 0), 100), (None, 10000))
    ]
    logits = ka.Logits(VOCABULARY, soft_cap=3.0)
    return ka.Decoder(blocks, embeddings(), ka.RMSNorm(offset=1.0), logits)


def translator():
    tokens = ka.ScaledEmbedding(VOCABULARY, D, mask_zero=True)
    blocks = [ka.TransformerBlock(16, H, causal=True, cross_attention=True) for _ in range(2)]
    decoder = ka.Decoder(
        blocks,
        embeddings(tokens, positions=ka.LearnedPositionEmbedding(16), norm=ka.RMSNorm()),
        logits=ka.Logits(VOCABULARY, tied=False, use_bias=True),
    )
    return ka.EncoderDecoder(encoder(tokens), decoder)


IDS = np.array([[3, 5, 2, 9, 4], [7, 8, 1, 0, 0]], "int32")
LEFT = np.array([[3, 5, 2, 9, 4], [0, 0, 7, 8, 1]], "int32")
TARGET = np.array([[1, 6, 3], [1, 2, 0]], "int32")
MODELS = {
    "encoder": (encoder, IDS),
    "decoder": (language_model, IDS),
    "both": (translator, [IDS, TARGET]),
}


def made(name):
    """A model with random weights, and inputs."""
    make, inputs = MODELS[name]
    model = make()
    model.build([x.shape for x in inputs] if isinstance(inputs, list) else inputs.shape)
    return randomize(model), inputs
