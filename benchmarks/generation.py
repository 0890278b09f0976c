"""What generating costs: `python -m benchmarks.generation`.

An encoder-decoder of keras_attention, decoded with caches by `generation`, against one of KerasHub
of the same size, decoded as in its tutorial on translation: the whole model anew for each token.
Both in one run, taking turns; also a training step of both, four beams against KerasHub's greedy
search, and many tokens against few. Weights are random and no token stops a row, so that every row
is as long as can be.
"""

import dataclasses

import keras
import numpy as np

from benchmarks import runner
from examples import translation
from keras_attention import generation

ops = keras.ops


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of both models and of what they read and write."""

    layers: int = 2
    dim: int = 256
    intermediate_dim: int = 1024
    heads: int = 4
    vocabulary: int = 8000
    batch: int = 16
    source: int = 32
    tokens: int = 64
    longest: int = 512
    trained: int = 64


SMALL = Size(1, 16, 32, 2, 50, batch=2, source=5, tokens=4, longest=8, trained=4)


def ours(size):
    """A built model of keras_attention."""
    sizes = {"layers": size.layers, "dim": size.dim, "intermediate_dim": size.intermediate_dim}
    given = {"num_heads": size.heads, "dropout": 0.1, "positions": "sin-cos"}
    return translation.transformer(size.vocabulary, **sizes, **given)


def theirs(size):
    """A model of KerasHub's layers, put together as in its tutorial."""
    import keras_hub

    def embedded(tokens):
        return keras_hub.layers.TokenAndPositionEmbedding(
            size.vocabulary, max(size.source, size.tokens), size.dim, mask_zero=True
        )(tokens)

    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    x = embedded(source)
    for _ in range(size.layers):
        x = keras_hub.layers.TransformerEncoder(size.intermediate_dim, size.heads, dropout=0.1)(x)
    y = embedded(target)
    for _ in range(size.layers):
        y = keras_hub.layers.TransformerDecoder(size.intermediate_dim, size.heads, dropout=0.1)(
            y, x
        )
    return keras.Model([source, target], keras.layers.Dense(size.vocabulary)(y))


def our_search(model, size, tokens, beams=None):
    """A function that writes `tokens` tokens for each source sentence."""

    def found(source):
        start = model.start(source, ops.ones((size.batch, 1), "int32"), tokens)
        if beams is None:
            return generation.greedy(model.step, *start, max_tokens=tokens).tokens
        given = {"num_beams": beams, "max_tokens": tokens}
        return generation.beam_search(model.step, *start, **given).tokens

    search, source = generation.compiled(found, model), sentences(size, size.source)
    return lambda: ops.convert_to_numpy(search(source))


def their_search(model, size):
    """The same as KerasHub's tutorial does it."""
    import keras_hub

    source = ops.convert_to_tensor(sentences(size, size.source))
    prompt = np.zeros((size.batch, size.tokens + 1), "int32")
    prompt[:, 0] = 1
    sampler = keras_hub.samplers.GreedySampler()

    def following(prompt, cache, index):
        # In the tutorial the prompt is as long as the longest target, and so read whole.
        logits = model([source, prompt[:, : size.tokens]])
        return logits[:, index - 1, :], None, cache

    return lambda: ops.convert_to_numpy(sampler(following, ops.convert_to_tensor(prompt), index=1))


def training(model, size):
    """A function that makes one training step."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # XLA made a step of the translation example slower on CPUs.
    model.compile("adam", loss, jit_compile=keras.config.backend() == "jax")
    rng = np.random.default_rng(0)
    shape = 3, size.trained, size.source
    source, target, labels = rng.integers(1, size.vocabulary, shape).astype("int32")
    return lambda: model.train_on_batch([source, target], labels)


def sentences(size, length):
    """Tokens (batch, length) without padding."""
    rng = np.random.default_rng(0)
    return rng.integers(1, size.vocabulary, (size.batch, length)).astype("int32")


ROWS = {
    "greedy": "{tokens} tokens",
    "beams": "4 beams, against greedy",
    "longer": "{longest} tokens, against our {tokens}",
    "training": "step",
}


def rows(names, options):
    size = size_of(options)
    mine, other = ours(size), theirs(size)
    greedy, as_taught = our_search(mine, size, size.tokens), their_search(other, size)
    sides = {
        "greedy": (greedy, as_taught),
        "beams": (our_search(mine, size, size.tokens, beams=4), as_taught),
        "longer": (our_search(mine, size, size.longest), greedy),
        "training": (training(mine, size), training(other, size)),
    }
    for name in names:
        yield name, ROWS[name].format(**dataclasses.asdict(size)), *sides[name]


def size_of(options):
    return SMALL if options.small else Size()


def main():
    def about(options):
        return {"size": dataclasses.asdict(size_of(options))}

    runner.compare(__doc__, ROWS, rows, about)


if __name__ == "__main__":
    main()
