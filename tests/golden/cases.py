"""A small model for each layer and option: those that files of releases have, and new ones.

What is in a release's archive is a case for ever: the next release writes the same models again.
What is new has a case here, until the release that writes its first files.
"""

import functools
import pathlib
import tarfile

import keras
import numpy as np

import keras_attention as ka
from keras_attention import generation
from tests.compiled import Program
from tests.golden import custom_slots  # noqa: F401, which files name

ops = keras.ops

FOLDER = pathlib.Path(__file__).parent
ARCHIVES = sorted(
    FOLDER.glob("*/*.tar.xz"),
    # "0.10.1" is after "0.9.0".
    key=lambda path: (*map(int, path.parent.name.split(".")), path.name),
)
# What a file is named by: `<case>.keras` is the model.
MODEL, WEIGHTS, ANSWERS = ".keras", ".weights.h5", ".npz"
# Python has filters since 3.11.4.
FILTER = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


@functools.cache
def names(path):
    """The cases of an archive, in order."""
    with tarfile.open(path) as archive:
        found = archive.getnames()
    return [name.removesuffix(MODEL) for name in found if name.endswith(MODEL)]


# What is stored beside a model, and compared when it is loaded.


def drawn(model, inputs):
    """What the model gives, and its losses where it has some."""
    # A `Sequential` has no `input`, and takes one.
    inputs = inputs if isinstance(getattr(model, "input", None), list) else inputs[0]
    found = keras.tree.flatten(model(inputs))
    return found + ([sum(model.losses)] if model.losses else [])


@functools.lru_cache(maxsize=1)
def program(model):
    return Program(functools.partial(drawn, model), model)


def outputs(model, inputs):
    """The same of a model that draws nothing: on JAX, one program for all its calls."""
    return program(model)(inputs)


def decoded(model, inputs):
    """The logits of all tokens at once, those of pieces with a cache, and a greedy continuation."""
    embedding, add_positions = model.get_layer("embedding"), model.get_layer("positions")
    blocks = [model.get_layer(f"block_{n}") for n in range(2)]

    def read(ids, caches):
        x, after = add_positions(embedding(ids), start_index=caches[0]["index"]), []
        for block, cache in zip(blocks, caches, strict=True):
            x, cache = block(x, cache=cache)
            after.append(cache)
        return embedding(x, reverse=True), after

    def step(tokens, caches):
        logits, caches = read(tokens[:, None], caches)
        return logits[:, 0], caches

    ids = ops.convert_to_tensor(inputs[0])
    start = [block.make_cache(ids.shape[0], 8) for block in blocks]
    found, caches = [model(ids)], start
    for piece in (ids[:, :2], ids[:, 2:3], ids[:, 3:]):
        logits, caches = read(piece, caches)
        found.append(logits)
    _, caches = read(ids[:, :-1], start)
    answer = generation.greedy(step, ids[:, -1], caches, max_tokens=4)
    return [*found, answer.tokens, answer.log_probabilities]


def translated(model, inputs):
    """The output of all positions at once, and of each in turn, with a cache and a context."""
    source, target = (ops.convert_to_tensor(array) for array in inputs)
    block = model.get_layer("block")
    memory = block.cache_context(model.get_layer("seen")(source))
    found, cache = [model([source, target])], block.make_cache(target.shape[0], target.shape[1])
    for index in range(target.shape[1]):
        output, cache = block(target[:, index : index + 1], memory, cache=cache)
        found.append(output)
    return found


def with_optimizer(model, inputs):
    """The logits, the loss, and the optimizer's rate and state."""
    ids, targets = inputs
    logits = model(ids)
    state = [ops.mean(ops.abs(variable)) for variable in model.optimizer.variables[2:]]
    rate = model.optimizer.learning_rate
    return [logits, model.loss(targets, logits), rate, *state]


RUN = {
    "slot_attention": drawn,
    "slot_attention-all": drawn,
    "language_model": decoded,
    "translator": translated,
    "compiled": with_optimizer,
    "compiled-options": with_optimizer,
}

# New ones


WIDTH = 8
# All but the first row end in zeros, to be masked.
VECTORS = np.random.default_rng(1).normal(size=(2, 4, WIDTH)).astype("float32")
VECTORS[1:, 2:] = 0


def of_layer(cls, *args, **options):
    """A case of one layer over a sequence."""

    def model():
        x = keras.Input((None, WIDTH))
        return keras.Model(x, cls(*args, **options)(keras.layers.Masking()(x)))

    return model, (VECTORS,)


# Functions that make a model, and what it is called with.
NEW: dict = {
    f"{cls.__name__}-value_norm": of_layer(cls, *sizes, value_norm="rms")
    for cls, *sizes in (
        (ka.MultiHeadAttention, 2, 4),
        (ka.TransformerBlock, 16, 2),
        (ka.DifferentialAttention, 2, 4),
        (ka.LinformerAttention, 2, 4, 4, 2),
        (ka.LongformerAttention, 2, 4, 1),
        (ka.NativeSparseAttention, 2, 4),
        (ka.NystromAttention, 2, 4, 2),
    )
}
