"""Every public layer, model and slot, made with the smallest arguments.

An `Entry` is a name and a function that makes a layer. Classes come from `__all__`, and required
arguments from one table by their names, so that a new class is here at once, or fails for want of
a number. What else differs between entries is asked of them: a symbolic call that a layer refuses
says that it does not take an argument.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable

import keras
import numpy as np

import keras_attention as ka
from keras_attention import alignments, feature_maps, normalizations, patterns, positions, scores
from keras_attention.layers.base import BaseAttention
from keras_attention.sequences import masks

# Rows, tokens, tokens of a row alone, features; queries or keys of another sequence, its features.
B, T, N, D, S, E = 8, 7, 4, 8, 3, 6
VOCABULARY = 20
GRID = {"grid": (2, 3), "prefix": 1}  # T cells.

# Required arguments of constructors, by name.
ARGUMENTS = {
    "num_heads": 2,
    "key_dim": 4,
    "intermediate_dim": 12,
    "max_length": 2 * T,
    "max_distance": 2,
    "rank": 3,
    "units": 3,
    "window": 2,
    "neighbors": 1,
    "rate": 2,
    "left": 2,
    "right": 1,
    "length": 2,
    "size": 3,
    "count": 1,
    "grid": GRID["grid"],
    "num_landmarks": 2,
    "num_queries": 3,
    "num_inducing_points": 3,
    "num_slots": 3,
    "num_experts": 4,
    "top_k": 2,
    "k": 2,
    "rope_dim": 2,
    "latent_dim": 5,
    "dim": D,
    "vocabulary_size": VOCABULARY,
    "patch_size": (1, 2),
    "score": "additive",
    "cell": lambda: keras.layers.GRUCell(E),
    "attention": lambda: ka.MultiHeadAttention(2, 4, score="additive"),
    "blocks": lambda: blocks(),
    "tokens": lambda: ka.ScaledEmbedding(VOCABULARY, D, scale=1),
}
HEADS, BUCKETS = {"num_heads": 2, "key_dim": 4}, {"num_buckets": 8, "max_distance": 6}
BLOCKS = "block_size", "stride", "selected_size", "num_selected", "window", "num_near"
# Further or other arguments of some classes. Draws and ties are of no use here.
GIVEN = {
    **dict.fromkeys((ka.Attention, ka.HardAttention, ka.LocalAttention, ka.SelfAttention), HEADS),
    **dict.fromkeys((ka.AtrousSelfAttention, ka.LocalSelfAttention, ka.SparseSelfAttention), HEADS),
    ka.SlotAttention: {"initial": "learned"},
    # Of four blocks, three are chosen: the first, a query's own, and one of two.
    ka.NativeSparseAttention: dict(zip(BLOCKS, (2, 1, 2, 3, 2, 1), strict=True)),
    ka.PatchMerging: {"size": (1, 2), "grid": None},
    ka.LearnedGridEmbedding: GRID,
    ka.SinCosGridEmbedding: GRID,
    ka.AttentionRNN: {"cell": lambda: cell(), "return_sequences": True},
    ka.Embeddings: {"positions": lambda: ka.LearnedPositionEmbedding(2 * T)},
    ka.Encoder: {"embeddings": lambda: made(ka.Embeddings)},
    ka.Decoder: {
        "blocks": lambda: blocks(causal=True),
        "embeddings": lambda: made(ka.Embeddings),
        "logits": lambda: ka.Logits(VOCABULARY),
    },
    ka.EncoderDecoder: {
        "encoder": lambda: made(ka.Encoder),
        "decoder": lambda: ka.Decoder(
            blocks(causal=True, cross_attention=True),
            made(ka.Embeddings),
            logits=ka.Logits(VOCABULARY),
        ),
    },
    ka.Logits: {"tied": False},
    patterns.Global: {"length": 1},
    patterns.RandomBlocks: {"length": 2 * T, "size": 2},
    patterns.BigBird: {"length": 2 * T, "size": 1},
    patterns.GridWindow: {**GRID, "size": (2, 2)},
    patterns.Neighborhood: {**GRID, "size": (1, 3)},
    patterns.Axial: GRID,
    positions.AxialRotary: GRID,
    positions.MixedRotary: GRID,
    positions.GridRelativeBias: GRID,
    positions.ContinuousGridBias: {**GRID, "units": 4},
    positions.RelativeBias: BUCKETS,
    positions.Disentangled: BUCKETS,
    positions.CoPE: {"max_position": 3},
    positions.FIRE: {"units": 4, "threshold": 3.0},
    positions.TransformerXL: {"dim": 6},
    positions.Rotary: {"max_wavelength": 30.0},
    positions.XPos: {"max_wavelength": 30.0},
}
ABSTRACT = [patterns.And, patterns.Or, patterns.Not, patterns.Span, patterns.Groups]


def made(cls, **given):
    """A layer or slot with the smallest arguments, and those given."""
    chosen = dict(GIVEN.get(cls, {}))
    for name, parameter in inspect.signature(cls).parameters.items():
        required = (
            parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        )
        if required and name not in chosen:
            chosen[name] = ARGUMENTS[name]
    return cls(**{name: fresh(value) for name, value in {**chosen, **given}.items()})


def fresh(value):
    """A value of the tables: layers and slots are functions there, so that each is made anew."""
    return value() if inspect.isfunction(value) or isinstance(value, functools.partial) else value


def blocks(**given):
    """Two blocks of different mechanisms."""
    return [
        made(ka.TransformerBlock, position="rotary", **given),
        made(ka.TransformerBlock, pattern=patterns.SlidingWindow(2, 1), **given),
    ]


def reusing():
    """A block, and others that take keys and values of it."""
    given = {"position": "rotary", "causal": True, "num_key_value_heads": 1}
    takes = None, "value", "value_residual", "key_value"
    return [made(ka.TransformerBlock, reuse=reuse, **given) for reuse in takes]


def cell(attention=None, **given):
    attention = attention or ka.MultiHeadAttention(2, 4)
    return ka.AttentionCell(keras.layers.GRUCell(D), attention, **given)


def aligned(alignment):
    return made(ka.AttentionCell, alignment=made(alignment))


@dataclasses.dataclass(frozen=True)
class Entry:
    """A way to make a layer."""

    name: str
    cls: type
    given: tuple = ()
    # What is called with the tokens under test, (layer, x, **given); None for `layer(x, **given)`.
    call: Callable | None = None
    ids: bool = False
    # The mechanism of the second block of a stack, where it is not one of `places.SECOND`.
    second: "Entry | None" = None

    def __str__(self):
        return self.name

    def make(self, **given):
        return made(self.cls, **{**dict(self.given), **given})

    @property
    def mechanism(self):
        """Whether it attends from tokens to tokens, so that blocks and cells take it."""
        return issubclass(self.cls, BaseAttention) and self.call is None

    @property
    def of_slot(self):
        """Whether it is a slot, in a layer that another entry has without it."""
        return self.name.split("-")[0] in SLOTS

    @functools.cached_property
    def traits(self):
        """What it takes of a call, and whether it is made otherwise for a causal one."""
        return Traits(self)


class Traits:
    """Which arguments an entry takes, by symbolic calls of a layer of its own."""

    def __init__(self, entry):
        self._entry, self._layer = entry, entry.make()
        self._x = keras.KerasTensor((B, T), "int32") if entry.ids else keras.KerasTensor((B, T, D))
        if entry.call is None:
            self._layer(self._x)
        self.positions = self.takes(positions=np.arange(T, dtype="int32"))
        self.segment_ids = self.takes(segment_ids=np.zeros((B, T), "int32"))
        self.attention_mask = self.takes(attention_mask=np.ones((B, T, T), bool))
        self.scores = self.takes(return_attention_scores=True)
        self.use_causal_mask = self.takes(use_causal_mask=True)
        self.causal_argument = "causal" in inspect.signature(entry.cls).parameters
        position = getattr(self._layer, "position", None)
        # Cells of a grid, which stay where they are.
        slots = [value for _, value in entry.given if isinstance(value, functools.partial)]
        classes = [entry.cls, *(x for slot in slots for x in slot.args)]
        self.cells = any("grid" in inspect.signature(cls).parameters for cls in classes)
        # Of "dynamic" and "longrope", whose length is counted from the first real token.
        self.length = getattr(position, "needs_length", False)
        self.crosses = entry.mechanism and self._crosses()
        # AttentionRNN-steps and others see no later tokens as they are.
        self.may_be_causal = (
            (self.use_causal_mask or self.causal_argument or entry.call in (of_steps, of_target))
            and entry.call is not from_context
        ) or (entry.cls is ka.Decoder and entry.call is None)

    def takes(self, **given):
        """Whether a symbolic call with an argument is no error."""
        (name,) = given
        if (
            self._entry.call is not None
            or name not in inspect.signature(self._layer.call).parameters
        ):
            return False
        try:
            self._layer.compute_output_spec(self._x, **given)
        except (ValueError, TypeError):
            return False
        return True

    def _crosses(self):
        """Whether it attends from one sequence to another of another length."""
        try:
            of_queries(self._entry.make(), keras.KerasTensor((1, T, D)))
        except ValueError:
            return False
        return True


# Calls of layers that take other arguments than the tokens under test, made of those.


def same(x, *shape, ids=False):
    """The same numbers for every row of x."""
    rng = np.random.default_rng(7)
    one = rng.integers(1, VOCABULARY, shape) if ids else rng.normal(size=shape)
    one = keras.ops.convert_to_tensor(one[None].astype("int32" if ids else "float32"))
    return keras.ops.repeat(one, x.shape[0], axis=0)


def of_queries(layer, x, **given):
    """Tokens that others attend to."""
    return layer(same(x, S, D), x, **given)


def of_rnn(layer, x, **given):
    return layer(same(x, S, E), x, **given)


def of_steps(layer, x, **given):
    return layer(x, same(x, S, E), **given)


def of_cell(layer, x, **given):
    """A cell in Keras's own layer."""
    rnn = keras.layers.RNN(layer, return_sequences=True, dtype=layer.dtype_policy)
    return rnn(same(x, S, E), initial_state=layer.initial_state(x), **given)


def of_images(layer, x, **given):
    """Tokens as a column of patches of two pixels."""
    mask = masks.implicit(x)
    image = keras.ops.reshape(x, (*x.shape[:2], 2, D // 2))
    if mask is not None:
        masks.carry(image, keras.ops.repeat(mask[..., None], 2, axis=-1))
    return layer(image, **given)


def of_pointer(layer, x, **given):
    """Probabilities (B, T, S) of the tokens that are pointed at."""
    return keras.ops.swapaxes(keras.ops.softmax(of_queries(layer, x, **given)), 1, 2)


def of_generator(layer, x, **given):
    # Weights and logits are those of layers, which have none of what padding holds.
    made = masks.clear(x, masks.implicit(x))
    weights, logits = keras.ops.softmax(made[..., :S]), keras.ops.tile(made, (1, 1, 3))
    return layer(x, logits[..., :VOCABULARY], weights, same(x, S, ids=True))


def of_reward(layer, x, **given):
    return layer(x[..., 0], keras.ops.sum(x, axis=(1, 2)), **given)[..., None]


def of_context(layer, x, **given):
    """A block that attends to a context too."""
    return layer(x, same(x, S, E), **given)


def from_context(layer, x, **given):
    """The context of a block is under test."""
    return of_queries(layer, x, **given)


def of_source(model, x, **given):
    return model([x, same(x, S, ids=True)], **given)


def of_target(model, x, **given):
    return model([same(x, S, ids=True), x], **given)


CALLS = {
    ka.AttentionRNN: of_rnn,
    ka.AttentionCell: of_cell,
    ka.PatchEmbedding: of_images,
    ka.PatchMerging: of_images,
    ka.PointerHead: of_pointer,
    ka.PointerGenerator: of_generator,
    ka.ReinforceLoss: of_reward,
    ka.EncoderDecoder: of_source,
}
# The argument of these calls that has the mask of the tokens under test.
MASKS = {
    of_queries: "value_mask",
    of_rnn: "memory_mask",
    of_steps: "mask",
    of_cell: None,
    of_images: None,
    of_pointer: "memory_mask",
    of_generator: None,
    of_reward: None,
    of_context: "mask",
    from_context: "context_mask",
    of_source: "source_mask",
    of_target: "target_mask",
}
# Functions with steps, where rounding decides.
STEPS = {
    "HardAttention",
    "normalization-Hard",
    "normalization-TopK",
    "alignment-Monotonic",
    "alignment-MoChA",
    "ReinforceLoss",
}
# A bias of all keys shifts the scores of a query alike, which softmax cannot see.
WITHOUT_GRADIENT = ("key/bias",)
RECURRENT = {ka.AttentionCell, ka.AttentionRNN, ka.SlotAttention}
# Nor does a score see what it does not compare.
UNUSED = {
    "score-KeyOnly": ("query/kernel", "query/bias"),
    "score-Location": ("key/kernel",),
    "NystromAttention-Location": ("key/kernel",),
}
# Which have no cache of a context.
NO_MEMORY = {
    "LinformerAttention",
    "LinformerAttention-shared",
    "LongformerAttention",
    "LongformerAttention-global",
    "NystromAttention",
    "NystromAttention-Location",
}
# What attends to sums or to later tokens, or draws, is refused by a cell.
NO_CELL = NO_MEMORY | {
    "HardAttention",
    "LinearAttention",
    "feature_map-EluFeatures",
    "feature_map-RandomFeatures",
    "feature_map-ReluFeatures",
    "normalization-Hard",
}
# Whose last tokens see the first ones alone.
FIRST_TOKENS = {"pattern-BigBird", "pattern-Global", "pattern-RandomBlocks"}
IDS = {ka.ScaledEmbedding, ka.Embeddings, ka.Encoder, ka.Decoder, ka.EncoderDecoder}
# Slots, and the layer and argument that each is tried in.
SLOTS = {
    "score": (scores, scores.Score, ka.MultiHeadAttention),
    "normalization": (normalizations, normalizations.Normalization, ka.MultiHeadAttention),
    "pattern": (patterns, patterns.Pattern, ka.MultiHeadAttention),
    "position": (positions, positions.Position, ka.MultiHeadAttention),
    "feature_map": (feature_maps, scores.Score, ka.LinearAttention),
    "alignment": (alignments, alignments.Alignment, ka.AttentionRNN),
}


def public(module, base):
    """The public classes of a module that can be made."""
    found = [getattr(module, name) for name in sorted(module.__all__)]
    found = [x for x in found if isinstance(x, type) and issubclass(x, base)]
    return [x for x in found if x is not base and x not in ABSTRACT]


def variant(name, cls, call=None, **given):
    return Entry(name, cls, tuple(given.items()), call or CALLS.get(cls), cls in IDS)


def rotary(scaling, **given):
    given = {"original_max_length": 3, **given}
    return lambda: positions.Rotary(30.0, scaling=scaling, **given)


def _entries():
    for cls in public(ka, keras.layers.Layer):
        # A norm of heads, which are no tokens, has its equation.
        if cls is not ka.HeadNorm:
            yield variant(cls.__name__, cls)
    for slot, (module, base, layer) in SLOTS.items():
        for cls in public(module, base):
            name, given = f"{slot}-{cls.__name__}", {slot: functools.partial(made, cls)}
            if slot == "alignment":
                given = {"cell": functools.partial(aligned, cls), "return_sequences": True}
            yield variant(name, layer, **given)
    scalings = {
        "linear": rotary("linear", factor=2.0),
        "dynamic": rotary("dynamic", factor=2.0),
        "yarn": rotary("yarn", factor=2.0),
        "llama3": rotary("llama3", factor=2.0),
        "longrope": rotary("longrope", short_factors=[1.0, 1.5], long_factors=[2.0, 3.0]),
    }
    attention, block = ka.MultiHeadAttention, ka.TransformerBlock
    for name, position in scalings.items():
        yield variant(f"position-Rotary-{name}", attention, position=position)
    yield variant(
        "pattern-or", attention, pattern=patterns.Prefix(1) | patterns.SlidingWindow(1, 0)
    )
    yield variant("pattern-not", attention, pattern=~patterns.Dilated(3))
    cosine = functools.partial(made, scores.Cosine, scale=2.0, max_scale=3.0)
    yield variant("CoPE-cosine", attention, position="cope", score=cosine, use_bias="qvo")
    cells = functools.partial(made, positions.GridRelativeBias, decomposed=True)
    yield variant("GridRelativeBias-decomposed", attention, position=cells)
    yield variant("LocalAttention-predictive", ka.LocalAttention, mode="predictive", window=1)
    yield variant("Attention-raw", ka.Attention, num_heads=1, key_dim=None)
    yield variant("NystromAttention-convolved", ka.NystromAttention, conv_kernel_size=3)
    location = functools.partial(made, scores.Location)
    yield variant("NystromAttention-Location", ka.NystromAttention, score=location)
    yield variant(
        "GatedDeltaNet-convolved", ka.GatedDeltaNet, conv_kernel_size=3, num_key_heads=1,
        max_rate=2.0, epsilon=1e-6, use_decay="features", decay_rank=2, gate_activation="sigmoid",
    )  # fmt: skip
    yield variant(
        "LinformerAttention-shared", ka.LinformerAttention, sharing="key_value",
        scores_regularizer="entropy",
    )  # fmt: skip
    yield variant("LongformerAttention-global", ka.LongformerAttention, num_global=2)
    yield variant(
        "every-option", attention, num_key_value_heads=1, qk_norm="rms", logit_soft_cap=2.0,
        use_sink=True, clip_qkv=1.5, use_gate=True, position="rotary", scores_regularizer="entropy",
        value_norm="rms",
    )  # fmt: skip
    yield variant("TransformerBlock-cross", block, of_context, cross_attention=True, residual="pre")
    yield variant(
        "TransformerBlock-context", block, from_context, cross_attention=True, value_dim=3,
        norm=lambda: {"context": "layer"}, query_residual=False,
    )  # fmt: skip
    stack = {
        "blocks": functools.partial(blocks, causal=True, cross_attention=True),
        "embeddings": None,
        "logits": None,
    }
    yield Entry("Decoder-context", ka.Decoder, tuple(stack.items()), from_context)
    yield variant("Decoder-reuse", ka.Decoder, blocks=reusing, sources=(None, 0, 0, 0))
    yield variant("AttentionRNN-steps", ka.AttentionRNN, of_steps, return_state=True)
    yield variant("EncoderDecoder-target", ka.EncoderDecoder, of_target)


ENTRIES = {entry.name: entry for entry in _entries()}
MECHANISMS = {name: entry for name, entry in ENTRIES.items() if entry.mechanism}
