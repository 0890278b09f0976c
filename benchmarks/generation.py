"""What generating costs: `python -m benchmarks.generation`.

An encoder-decoder of keras_attention, decoded with caches by `generation`, against one of KerasHub
of the same size, decoded as in its tutorial on translation: the whole model anew for each token.
Both in one run, taking turns; also a training step of both, four beams against KerasHub's greedy
search, and many tokens against few. Weights are random and no token stops a row, so that every row
is as long as can be.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from benchmarks.attention.measuring import in_turns
from benchmarks.attention.report import preamble, surroundings
from examples.translation.models import Transformer
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
    model = Transformer(
        size.vocabulary,
        layers=size.layers,
        dim=size.dim,
        intermediate_dim=size.intermediate_dim,
        num_heads=size.heads,
        dropout=0.1,
    )
    model.build()
    return model


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
        cache, memory = model.start(source, tokens)
        first = ops.ones((size.batch,), "int32")
        if beams is None:
            return generation.greedy(model.step, first, cache, memory, max_tokens=tokens).tokens
        return generation.beam_search(
            model.step, first, cache, memory, num_beams=beams, max_tokens=tokens
        ).tokens

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
    arrays = [
        rng.integers(1, size.vocabulary, (size.trained, length)).astype("int32")
        for length in (size.source, size.source, size.source)
    ]
    return lambda: model.train_on_batch(arrays[:2], arrays[2])


def sentences(size, length):
    """Tokens (batch, length) without padding."""
    rng = np.random.default_rng(0)
    return rng.integers(1, size.vocabulary, (size.batch, length)).astype("int32")


def rows(size):
    """Of each row by name: what it is, its two sides, and what their ratio should be at least."""
    mine, other = ours(size), theirs(size)
    greedy, as_taught = our_search(mine, size, size.tokens), their_search(other, size)
    beams = our_search(mine, size, size.tokens, beams=4)
    many = our_search(mine, size, size.longest)
    return {
        "greedy": (f"{size.tokens} tokens", greedy, as_taught, 20),
        "beams": ("4 beams, against greedy", beams, as_taught, 5),
        "longer": (f"{size.longest} tokens, against our {size.tokens}", many, greedy, 0.1),
        "training": ("step", training(mine, size), training(other, size), 1.18),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--rows", default="greedy,beams,longer,training", help="only these")
    parser.add_argument("--seconds", type=float, default=30, help="for each row")
    parser.add_argument("--repeats", type=int, default=21, help="bursts of each side of a row")
    parser.add_argument("--output", type=pathlib.Path, help="a JSON file for the figures")
    options = parser.parse_args()
    size = SMALL if options.small else Size()
    report = {**surroundings(options), "size": dataclasses.asdict(size), "rows": {}}
    print(preamble(report), "\n", size, "\n")
    print(
        "| row | what | ours | other | other / ours | aim |\n| --- | --- | --- | --- | --- | --- |"
    )
    every = rows(size)
    unknown = [name for name in options.rows.split(",") if name not in every]
    if unknown:
        parser.error(f"no row is named {unknown[0]!r}; there are {', '.join(every)}")
    for name in options.rows.split(","):
        what, first, second, aim = every[name]
        samples = in_turns({"ours": first, "other": second}, options.repeats, options.seconds)
        times = {
            who: statistics.median(wall for wall, _ in found) for who, found in samples.items()
        }
        ratio = times["other"] / times["ours"]
        report["rows"][name] = {
            **times,
            "ratio": ratio,
            "aim": aim,
            "samples": len(samples["ours"]),
        }
        print(
            f"| {name} | {what} | {times['ours']:.4g} ms | {times['other']:.4g} ms "
            f"| {ratio:.3g} | {aim} |",
            flush=True,
        )
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
