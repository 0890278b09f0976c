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
from keras_attention import feature_maps, generation, patterns, positions, scores
from keras_attention.layers.blocks import window_attention
from keras_attention.layers.blocks.block_sparse_attention import BlockSparseAttention
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
PIXELS, PATCHES = (
    np.random.default_rng(0).normal(size=size).astype("float32")
    for size in ((2, 4, 8, 3), (2, 2, 4, WIDTH))
)
# The right half of the second image is padding.
PIXELS[1, :, 4:] = PATCHES[1, :, 2:] = 0


def of_layer(cls, *args, **options):
    """A case of one layer over a sequence."""

    def model():
        x = keras.Input((None, WIDTH))
        return keras.Model(x, cls(*args, **options)(keras.layers.Masking()(x)))

    return model, (VECTORS,)


def merged_patches():
    """The mask of pixels becomes one of patches, which becomes one of merged patches."""
    images = keras.Input((4, 8, 3))
    patches = ka.PatchEmbedding(2, 5, flatten=False)(keras.layers.Masking()(images))
    return keras.Model(images, ka.PatchMerging()(patches))


def pooled_patches():
    """The mask of patches in a sequence becomes one of merged patches, for a layer of Keras."""
    patches = keras.Input((8, WIDTH))
    merged = ka.PatchMerging((2, 4))(keras.layers.Masking()(patches))
    return keras.Model(patches, keras.layers.GlobalAveragePooling1D()(merged))


LONGFORMER = {
    "output_shape": 5, "use_gate": True, "normalization": "sigmoid", "score": "cosine",
    "dropout": 0.4, "seed": 3, "logit_soft_cap": 5.0, "qk_norm": "rms", "clip_qkv": 1.5,
    "scores_regularizer": "entropy", "num_key_value_heads": 1, "kernel_initializer": "he_normal",
    "bias_initializer": "ones", "kernel_regularizer": keras.regularizers.L2(0.01),
    "bias_regularizer": keras.regularizers.L1(0.01), "position": "alibi", "use_bias": False,
    "activity_regularizer": keras.regularizers.L2(0.02),
    "kernel_constraint": keras.constraints.NonNeg(),
    "bias_constraint": keras.constraints.MaxNorm(3),
}  # fmt: skip
SPARSE = {"attention_axes": 1, **LONGFORMER}
for name in ("normalization", "score", "scores_regularizer"):
    del SPARSE[name]
BLOCKS = {name: x for name, x in LONGFORMER.items() if name != "position"} | {"value_dim": 3}
BIG_BIRD = (
    patterns.BigBird(14, 2, 1)
    | patterns.BigBird(10, 1, 2, seed=3)
    | (patterns.Block(2, 1) & patterns.Global(1, 3))
    | patterns.RandomBlocks(8, 1, 1, distance=2, ends=1)
)
WINDOWED = LONGFORMER | {"output_shape": 8, "value_dim": 3, "shift": 1}


def of_grid(**options):
    """A case of windows of a padded grid."""

    def model():
        x = keras.Input((2, 3, WIDTH))
        windows = window_attention.WindowAttention(2, 4, 2, **options)
        return keras.Model(x, windows(window_attention.Padding(2)(x)))

    return model, (PATCHES[:, :, :3],)


def slots(**options):
    """A case of slots of an attention, over a grid of two by two cells, or one of three and one."""
    return of_layer(ka.SelfAttention, 2, 4, **options)


def read_by_latents():
    """A block of Perceiver IO, whose output has nothing of the query."""
    x = keras.Input((None, WIDTH))
    options = {"cross_attention": True, "self_attention": False, "query_residual": False}
    block = ka.TransformerBlock(16, 2, value_dim=3, norm={"context": "layer"}, **options)
    return keras.Model(x, block(x, keras.layers.Masking()(x)))


def normed_after_merging():
    patches = keras.Input((2, 4, WIDTH))
    return keras.Model(patches, ka.PatchMerging(norm_after=True)(patches))


def handed_on():
    """A layer that adds the values of another one to its own."""
    x = keras.Input((None, WIDTH))
    first, second = ka.MultiHeadAttention(2, 4), ka.MultiHeadAttention(2, 4, reuse="value_residual")
    y, heads = first(keras.layers.Masking()(x), return_key_value=True)
    return keras.Model(x, second(y, key_value=heads))


def of_stack(stack):
    """A case of a stack whose last block has the keys and values of the first."""

    def model():
        x = keras.Input((None, WIDTH))
        blocks = [ka.TransformerBlock(16, 2, reuse=reuse) for reuse in (None, None, "key_value")]
        return keras.Model(x, stack(blocks, sources=[None, None, 0])(keras.layers.Masking()(x)))

    return model, (VECTORS,)


# Functions that make a model, and what it is called with.
NEW = {
    "reuse-values": (handed_on, (VECTORS,)),
    "reuse-encoder": of_stack(ka.Encoder),
    "reuse-decoder": of_stack(ka.Decoder),
    "neighborhood-dilated": slots(pattern=patterns.Neighborhood((2, 2), 1, dilation=2)),
    "cosine-learned": slots(score=scores.Cosine(2.0, max_scale=3.0)),
    "grid_bias-decomposed": slots(position=positions.GridRelativeBias((2, 2), decomposed=True)),
    "continuous_bias": slots(position=positions.ContinuousGridBias((2, 2))),
    "continuous_bias-all": slots(
        position=positions.ContinuousGridBias((1, 3), (1, 2), 1, (1, 3), units=4, max_bias=8.0)
    ),
    "axial-alternating": slots(
        position=positions.AxialRotary((2, 2), axes="alternating", normalized=True)
    ),
    "axial-diagonal": slots(position=positions.AxialRotary((2, 2), axes=[0, 1], diagonal=True)),
    "transformer_xl-clipped": slots(position=positions.TransformerXL(max_distance=2)),
    "disentangled-single": slots(
        position=positions.Disentangled(4, 4, terms=("c2p",), own_projections=True)
    ),
    "block-perceiver": (read_by_latents, (VECTORS,)),
    "patch_merging-after": (normed_after_merging, (PATCHES,)),
    "gated_delta-published": of_layer(
        *(ka.GatedDeltaNet, 4, 4),
        num_key_heads=2,
        max_rate=2.0,
        epsilon=1e-6,
        use_decay="features",
        decay_rank=2,
        gate_activation="sigmoid",
    ),
    "linear-redrawn": of_layer(
        ka.LinearAttention, 2, 4, feature_map=feature_maps.RandomFeatures(6, redraw_every=5)
    ),
    "linear-relu": of_layer(ka.LinearAttention, 2, 4, feature_map="relu"),
    "linear-relu-all": of_layer(
        ka.LinearAttention, 2, 4, feature_map=feature_maps.ReluFeatures(6, 1, 5, epsilon=0.1)
    ),
    "nystrom-one_scale": of_layer(ka.NystromAttention, 2, 4, 3, initial_scale="batch"),
    "windows-fixed": of_grid(fixed_shift=True),
    "slot_attention-biased": of_layer(
        ka.SlotAttention, 2, WIDTH, 8, initial="learned", use_bias=True
    ),
    "gated_linear-convolved": of_layer(
        ka.GatedLinearAttention, 2, 4, conv_kernel_size=3, num_key_value_heads=1
    ),
    "gated_delta-convolved": of_layer(ka.GatedDeltaNet, 2, 4, conv_kernel_size=4),
    "longformer": of_layer(ka.LongformerAttention, 2, 4, 1),
    "longformer-all": of_layer(ka.LongformerAttention, 2, 4, 1, 2, 3, **LONGFORMER),
    "longformer-chosen": of_layer(ka.LongformerAttention, 2, 4, 1, max_global=3),
    "big_bird": slots(pattern=BIG_BIRD),
    "block_sparse": of_layer(BlockSparseAttention, 2, 4, 1, 1, use_sink=True),
    "block_sparse-all": of_layer(BlockSparseAttention, 2, 4, 1, 2, **BLOCKS),
    "longformer-sink": of_layer(ka.LongformerAttention, 2, 4, 1, use_sink=True),
    "native_sparse": of_layer(ka.NativeSparseAttention, 2, 4),
    "native_sparse-all": of_layer(ka.NativeSparseAttention, 2, 4, 3, 2, 1, 2, 3, 2, 1, **SPARSE),
    "logits-pooled": of_layer(ka.Logits, 3, False, pooling="mean"),
    "heads-normed": of_layer(ka.SelfAttention, 2, 4, qk_norm=ka.HeadNorm()),
    "heads-normed-together": of_layer(
        ka.SelfAttention, 2, 4, qk_norm=ka.HeadNorm("layer", together=True, epsilon=0.01)
    ),
    "experts-gated-shared": of_layer(
        ka.MixtureOfExperts, 4, 2, 8, shared_dim=4, use_shared_gate=True
    ),
    "windows": of_grid(use_sink=True),
    "windows-all": of_grid(**WINDOWED),
    "block-wide": of_layer(ka.TransformerBlock, 16, 2, wide_residual=True),
    "feed_forward-wide": of_layer(ka.FeedForward, 16, wide_output=True),
    "sines-shifted": of_layer(ka.SinCosPositionEmbedding, shift=2),
    "patches-masked": (merged_patches, (PIXELS,)),
    "patch_merging-masked": (pooled_patches, (PATCHES.reshape(2, 8, WIDTH),)),
}
