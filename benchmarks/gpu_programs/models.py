"""Rows of blocks, of the examples' models, of decoding, and of four devices."""

import importlib.util

import keras

import keras_attention as ka
from benchmarks import decoder_block, generation
from benchmarks.gpu_programs import steps
from benchmarks.gpu_programs.cases import Case, Row

BACKEND = keras.backend.backend()
HALF = "mixed_bfloat16"


def rows():
    yield from block_rows()
    yield from example_rows()
    yield from decoding_rows()
    if BACKEND == "jax":
        yield from mesh_rows()


# Blocks: RMSNorm, rotary, 8 heads over 2, SwiGLU, causal


def block_rows():
    for training in (True, False):
        step = "training" if training else "forward"
        case = Case(padding=True, training=training)
        size = decoder_block.Size(case.length, case.batch)
        other = None
        # KerasHub needs a part of TensorFlow.
        if importlib.util.find_spec("keras_hub") and importlib.util.find_spec("tensorflow_text"):
            other = f"KerasHub, Llama's block, {step}"
            yield Row(
                other,
                lambda size=size, case=case: steps.layer_step(
                    decoder_block.hub_block(size, HALF),
                    case,
                    lambda block, x, real: block(x, decoder_padding_mask=real),
                ),
                copies_of=case.elements,
            )
        yield Row(
            f"Llama's block, {step}",
            lambda size=size, case=case: steps.layer_step(
                decoder_block.our_block(size, HALF),
                case,
                lambda block, x, real: block(x, mask=real),
            ),
            other=other,
            copies_of=case.elements,
        )


# The examples' models, with the sizes of their recipes


def _imdb(name):
    from examples import imdb_classification as example
    from examples import imdb_ngrams

    recipe = example.RECIPES[name.removesuffix("-positions")]
    size, x = recipe["vocabulary_size"], (recipe["batch_size"], recipe["max_length"])
    if name in example.NGRAMS:
        x = (*x, 4)
    model = example.build({**recipe, "model": name}, size, ngrams=200_000)
    optimizer = imdb_ngrams.optimizer(100) if name == "ngrams" else keras.optimizers.Adam()
    # Its metric, the accuracy, would be made by the first batch.
    model.compile(optimizer, "binary_crossentropy", jit_compile=True)
    return steps.model_step(model, (x, "int32"), ((recipe["batch_size"], 1), "float32"))


def _translation(name):
    import argparse

    from examples import translation

    options = argparse.Namespace(
        model=name, seed=0, small=False, mixed_precision=False, **translation.DEFAULTS[name]
    )
    model = translation.build(6000, options)
    optimizer = translation.optimizer(options, 100)
    model.compile(optimizer, ka.losses.SmoothedCrossentropy(), jit_compile=True)
    tokens = ((32, 32), "int32")
    return steps.model_step(model, [tokens, tokens], tokens)


def _language_model(name):
    from examples import language_model

    options = language_model.PRESETS[name]
    sizes = {name: options[name] for name in ("context", "layers", "heads", "dim", "dropout")}
    model = language_model.build(4000, **sizes, positions="rotary")
    training = {name: options[name] for name in ("steps", "learning_rate", "warmup_steps")}
    language_model.compile_model(model, **training, jit=True)
    tokens = ((options["batch_size"], options["context"]), "int32")
    return steps.model_step(model, tokens, tokens)


def _squares(attention):
    from examples.square_sequences import BATCH, LEARNING_RATE, build

    model, _ = build(32, attention)
    model.compile(keras.optimizers.Adam(LEARNING_RATE), "mse", jit_compile=True)
    corners = ((BATCH, 2, 2), "float32")
    coins = ((BATCH, 1, 1), "float32")
    return steps.model_step(model, [corners, corners, coins], corners)


def example_rows():
    for example, make, names in (
        ("imdb", _imdb, ("post", "post-positions", "transformer", "ngrams")),
        ("translation", _translation, ("transformer", "bahdanau", "luong")),
        ("language_model", _language_model, ("default", "nanogpt")),
    ):
        for name in names:
            yield Row(f"example {example}, {name}", lambda make=make, name=name: make(name))
    for attention in (True, False):
        name = "with attention" if attention else "without"
        yield Row(f"example squares, {name}", lambda attention=attention: _squares(attention))


# Decoding


def _greedy():
    size = generation.Size()
    model = generation.ours(size)

    def found(source):
        cache, memory = model.start(source, size.tokens)
        first = keras.ops.ones((size.batch,), "int32")
        tokens = size.tokens
        return ka.generation.greedy(model.step, first, cache, memory, max_tokens=tokens).tokens

    return steps.search(model, found, [((size.batch, size.source), "int32")])


def _token(length=8192, batch=2):
    """One token of Llama's block, over a cache of so many."""
    size = decoder_block.Size(length, batch)
    block = decoder_block.our_block(size, HALF)
    cache = block.make_cache(batch, length)
    names = keras.tree.flatten(cache)

    def step(x, *arrays):
        y, after = block(x, cache=keras.tree.pack_sequence_as(cache, list(arrays)))
        return [y, *keras.tree.flatten(after)]

    like = [(tuple(a.shape), keras.backend.standardize_dtype(a.dtype)) for a in names]
    return steps.search(block, step, [((batch, 1, size.features), "bfloat16"), *like])


def decoding_rows():
    yield Row("greedy decoding, 64 tokens", _greedy)
    yield Row("Llama's block, one token over 8192", _token)


# Four devices


def _mesh(sizes):
    block = decoder_block.our_block(decoder_block.Size(8192, 4), HALF)
    return steps.mesh_step(block, Case(batch=4), sizes)


def mesh_rows():
    for sizes, what in (((1, 4), "heads over 4"), ((4, 1), "sequences over 4"), ((2, 2), "2 by 2")):
        yield Row(f"Llama's block, {what} devices, training", lambda sizes=sizes: _mesh(sizes))
