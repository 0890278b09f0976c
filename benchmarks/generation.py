"""What generating costs: `python -m benchmarks.generation`.

An encoder-decoder of keras_attention, decoded with caches by `generation`, against one of KerasHub
of the same size, decoded as in its tutorial on translation: the whole model anew for each token.
Both in one run, taking turns; also a training step of both, four beams against KerasHub's greedy
search, and many tokens against few. Weights are random and no token stops a row, so that every row
is as long as can be.
"""

import types

import keras
import numpy as np

from benchmarks import runner
from benchmarks.models import search, step
from examples import translation

ops = keras.ops

# Of both models and of what they read and write.
SIZE = {
    **dict(layers=2, dim=256, intermediate_dim=1024, heads=4, vocabulary=8000),
    **dict(batch=16, source=32, tokens=64, longest=512, trained=64),
}
SMALL = dict(zip(SIZE, (1, 16, 32, 2, 50, 2, 5, 4, 8, 4), strict=True))


def ours(size):
    """A built model of keras_attention."""
    sizes = {"layers": size.layers, "dim": size.dim, "intermediate_dim": size.intermediate_dim}
    given = {"num_heads": size.heads, "dropout": 0.1, "positions": "sin-cos"}
    return translation.transformer(size.vocabulary, **sizes, **given)


def theirs(size):
    """A model of KerasHub's layers, put together as in its tutorial."""
    from keras_hub import layers

    def embedded(tokens):
        longest = max(size.source, size.tokens)
        sizes = size.vocabulary, longest, size.dim
        return layers.TokenAndPositionEmbedding(*sizes, mask_zero=True)(tokens)

    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    sizes = size.intermediate_dim, size.heads
    x = embedded(source)
    for _ in range(size.layers):
        x = layers.TransformerEncoder(*sizes, dropout=0.1)(x)
    y = embedded(target)
    for _ in range(size.layers):
        y = layers.TransformerDecoder(*sizes, dropout=0.1)(y, x)
    return keras.Model([source, target], keras.layers.Dense(size.vocabulary)(y))


def tokens(size, *shape):
    """Sentences without padding."""
    return np.random.default_rng(0).integers(1, size.vocabulary, shape).astype("int32")


def our_search(model, size, count, beams=None):
    """A function that writes `count` tokens for each source sentence."""
    start = ops.ones((size.batch, 1), "int32")
    return search(model, [tokens(size, size.batch, size.source), start], count, beams)


def their_search(model, size):
    """The same as KerasHub's tutorial does it."""
    import keras_hub

    source = ops.convert_to_tensor(tokens(size, size.batch, size.source))
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
    source, target, labels = tokens(size, 3, size.trained, size.source)
    # XLA made a step of the translation example slower on CPUs.
    return step(model, [source, target], labels, keras.config.backend() == "jax", "adam")


def main():
    options = runner.parsed(__doc__, rows=("greedy", "beams", "longer", "training"))
    size = types.SimpleNamespace(**(SMALL if options.small else SIZE))
    mine, other = ours(size), theirs(size)
    greedy, as_taught = our_search(mine, size, size.tokens), their_search(other, size)
    beams, longer = our_search(mine, size, size.tokens, 4), our_search(mine, size, size.longest)
    rows = {
        "greedy": (f"{size.tokens} tokens", greedy, as_taught),
        "beams": ("4 beams, against greedy", beams, as_taught),
        "longer": (f"{size.longest} tokens, against our {size.tokens}", longer, greedy),
        "training": ("step", training(mine, size), training(other, size)),
    }
    runner.turns(lambda name, _: rows[name], options, size=vars(size))


if __name__ == "__main__":
    main()
