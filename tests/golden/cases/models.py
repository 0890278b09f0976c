"""Cases of models: mixed precision, decoding, optimizers, losses, shared and custom slots."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import generation, losses, patterns, positions, schedules, scores
from tests.golden.cases.case import (
    CASES,
    SCORES,
    TABLE,
    VOCABULARY,
    WIDTH,
    Case,
    S,
    T,
    of_layer,
    symbols,
    vectors,
)
from tests.golden.cases.custom_slots import own_slots

ops = keras.ops

IDS = np.array([[1, 5, 3, 7], [2, 9, 0, 0]], "int32")


def classifier(dtype=None):
    ids = keras.Input((None,), dtype="int32")
    x = ka.ScaledEmbedding(VOCABULARY, WIDTH, mask_zero=True, dtype=dtype, **TABLE)(ids)
    x = ka.SinCosPositionEmbedding(dtype=dtype)(x)
    for normalize_first in (False, True):
        x = ka.TransformerBlock(16, 2, normalize_first=normalize_first, dtype=dtype)(x)
    x = ka.AttentionPooling(num_heads=2, key_dim=4, dtype=dtype)(x)
    return keras.Model(ids, keras.layers.Dense(3, dtype="float32")(x))


def embedded():
    ids = keras.Input((None,), dtype="int32")
    return keras.Model(ids, ka.ScaledEmbedding(VOCABULARY, WIDTH)(ids))


CASES["embedding"] = Case(embedded, (IDS,))
CASES["classifier"] = Case(classifier, (IDS,))
# The last layer gives float32 of what was computed in half precision.
CASES["classifier-mixed_bfloat16"] = Case(
    lambda: classifier(dtype="mixed_bfloat16"), (IDS,), tolerance=0.03
)
CASES["classifier-mixed_float16"] = Case(
    lambda: classifier(dtype="mixed_float16"), (IDS,), tolerance=4e-3
)

for dtype in ("mixed_bfloat16", "mixed_float16", "float16"):
    of_layer(
        f"dtype-{dtype}",
        lambda dtype=dtype: ka.MultiHeadAttention(2, 4, position=positions.Shaw(2), dtype=dtype),
        8,
        6,
        **SCORES,
    )


def language_model():
    """A model of the next token: tied embeddings, blocks of two kinds, cached decoding."""
    ids = keras.Input((None,), dtype="int32")
    embedding = ka.ScaledEmbedding(VOCABULARY, WIDTH, mask_zero=True, name="embedding")
    x = ka.SinCosPositionEmbedding(name="positions")(embedding(ids))
    x = ka.TransformerBlock(16, 2, causal=True, name="block_0")(x)
    x = ka.TransformerBlock(
        16, 2, causal=True, normalize_first=True, norm="rms", gated=True, num_key_value_heads=1,
        position="rotary", pattern=patterns.SlidingWindow(2, 0), name="block_1",
    )(x)  # fmt: skip
    return keras.Model(ids, embedding(x, reverse=True))


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


CASES["language_model"] = Case(
    language_model, (np.array([[1, 5, 3, 7], [2, 9, 4, 10]], "int32"),), decoded
)


def translator():
    source, target = symbols(6, 8)
    block = ka.TransformerBlock(
        16, 2, causal=True, cross_attention=True, score="general", name="block"
    )
    return keras.Model([source, target], block(target, keras.layers.Masking(name="seen")(source)))


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


CASES["translator"] = Case(translator, vectors(6, 8, lengths=(S, T)), translated)


def compiled(schedule, loss):
    """With a loss, a schedule and the state of an optimizer from this package and Keras."""
    model = language_model()
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9)
    model.compile(optimizer, loss)
    optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(8)
    for variable in optimizer.variables[2:]:
        variable.assign(rng.normal(size=variable.shape).astype("float32"))
    optimizer.iterations.assign(7)
    return model


def with_optimizer(model, inputs):
    ids, targets = inputs
    logits = model(ids)
    state = [ops.mean(ops.abs(variable)) for variable in model.optimizer.variables[2:]]
    rate = model.optimizer.learning_rate
    return [logits, model.loss(targets, logits), rate, *state]


for name, schedule, loss in (
    ("", lambda: schedules.InverseSquareRoot(8, 10), losses.SmoothedCrossentropy),
    (
        "-options",
        lambda: schedules.InverseSquareRoot(8, 10, scale=2.0),
        lambda: losses.SmoothedCrossentropy(0.2, ignore=-1, reduction="sum", name="smoothed"),
    ),
):
    CASES[f"compiled{name}"] = Case(
        lambda schedule=schedule, loss=loss: compiled(schedule(), loss()),
        (IDS, np.array([[5, 3, 7, -1 if name else 0], [9, 1, 0, 0]], "int32")),
        with_optimizer,
    )


def reinforced(**arguments):
    x, reward = keras.Input((None, WIDTH)), keras.Input((1,))
    query = keras.layers.GlobalAveragePooling1D(keepdims=True)(x)
    seen, choice = ka.HardAttention(2, 4, gradient="reinforce")(query, x)
    return keras.Model([x, reward], [seen, ka.ReinforceLoss(**arguments)(choice, reward)])


for name, arguments in {
    "": {},
    "-options": {"factor": 0.5, "momentum": 0.8, "entropy_factor": 0.1},
}.items():
    CASES[f"reinforced{name}"] = Case(
        lambda arguments=arguments: reinforced(**arguments),
        (*vectors(WIDTH), np.array([[0.5], [-1.0]], "float32")),
    )


def shared():
    """One table of positions and one score in three layers."""
    inputs = x = keras.Input((None, WIDTH))
    table, score = positions.RelativeBias(8, 16), scores.General()
    for _ in range(3):
        x = ka.MultiHeadAttention(2, 4, position=table, score=score)(x)
    return keras.Model(inputs, x)


CASES["shared_slots"] = Case(shared, vectors(WIDTH))


of_layer("own_slots", lambda: ka.Attention(2, 4, **own_slots()), 8, 6, **SCORES)
of_layer("own_slots-block", lambda: ka.TransformerBlock(16, 2, **own_slots()))


def nested():
    inputs = keras.Input((None, WIDTH))
    inner = keras.Model(inputs, ka.TransformerBlock(16, 2)(inputs), name="inner")
    outer = keras.Input((None, WIDTH))
    return keras.Model(outer, ka.ClassToken()(inner(outer)))


CASES["nested"] = Case(nested, vectors(WIDTH))
CASES["sequential"] = Case(
    lambda: keras.Sequential(
        [keras.Input((None, WIDTH)), ka.SelfAttention(2, 4, causal=True), ka.AttentionPooling()]
    ),
    vectors(WIDTH),
)
