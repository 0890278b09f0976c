"""Cases of what 0.2.0 brought: stacks, options of blocks, norms, activations, scalings."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import feature_maps, patterns, positions
from tests.golden.cases.case import CASES, PROJECTIONS, TABLE, VOCABULARY, WIDTH, Case, of_layer

IDS = np.array([[1, 5, 3, 7], [2, 9, 0, 0]], "int32")
NEW = {"since": "0.2.0"}

# Options of blocks and of their parts

for name, arguments in {
    "sandwich": {
        "residual": "sandwich", "norm": ka.RMSNorm(1e-3, offset=1.0), "key_dim": 3,
        "use_bias": False, "gated": True, "activation": "gelu_tanh",
        "qk_norm": ka.RMSNorm(1e-4, offset=1.0),
    },
    "parallel": {
        "residual": "parallel", "norm": {"feed_forward": "shared"}, "use_bias": "qkv",
        "activation": "quick_gelu",
    },
    "norms": {"norm": {"attention": None, "feed_forward": "rms"}, "activation": "relu_squared"},
    "parts": {
        "intermediate_dim": None, "attention": ka.MultiHeadAttention(2, 3),
        "feed_forward": ka.FeedForward(6),
    },
}.items():  # fmt: skip
    given = {"intermediate_dim": 16, "num_heads": 2, **arguments}
    of_layer(f"block-{name}", lambda given=given: ka.TransformerBlock(**given), **NEW)
of_layer("latent", lambda: ka.MultiHeadLatentAttention(2, 4, 2, 6), **NEW)
of_layer(
    "latent-all",
    lambda: ka.MultiHeadLatentAttention(
        2, 4, 2, 6, 3, 5, scale=0.3, position="alibi", use_bias=True
    ),
    **NEW,
)
of_layer("differential", lambda: ka.DifferentialAttention(2, 4), **NEW)
of_layer(
    "differential-all",
    lambda: ka.DifferentialAttention(
        4, 4, 6, depth=3, norm_epsilon=0.1, use_bias=True, num_key_value_heads=2
    ),
    **NEW,
)
# What both take that other layers have; a sink needs a softmax.
SHARED = {
    "output_shape": 5, "sliding_window": 2, "flash_attention": False, "use_gate": True,
    "pattern": patterns.Prefix(3), "normalization": "sigmoid", "dropout": 0.4, "seed": 3,
    "logit_soft_cap": 5.0, "scores_regularizer": "entropy", **PROJECTIONS,
}  # fmt: skip
of_layer("latent-options", lambda: ka.MultiHeadLatentAttention(2, 4, 2, 6, **SHARED), **NEW)
of_layer("latent-sink", lambda: ka.MultiHeadLatentAttention(2, 4, 2, 6, use_sink=True), **NEW)
of_layer(
    "differential-options",
    lambda: ka.DifferentialAttention(
        2, 4, score="cosine", position="alibi", attention_axes=(1,), qk_norm="rms", clip_qkv=1.5,
        **SHARED,
    ),
    **NEW,
)  # fmt: skip
of_layer("differential-sink", lambda: ka.DifferentialAttention(2, 4, use_sink=True), **NEW)
of_layer("linear-favor", lambda: ka.LinearAttention(2, 4, feature_map="favor", seed=1), **NEW)
of_layer(
    "linear-features",
    lambda: ka.LinearAttention(2, 4, feature_map=feature_maps.RandomFeatures(8, seed=1)),
    **NEW,
)
of_layer("linformer", lambda: ka.LinformerAttention(2, 4, 9, 3), 8, 6, **NEW)
LOW_RANK = {
    "output_shape": 5, "attention_axes": (1,), "use_gate": True, "normalization": "sigmoid",
    "score": "cosine", "dropout": 0.4, "seed": 3, "logit_soft_cap": 5.0, "qk_norm": "rms",
    "clip_qkv": 1.5, "scores_regularizer": "entropy", "num_key_value_heads": 1, **PROJECTIONS,
}  # fmt: skip
of_layer(
    "linformer-all",
    lambda: ka.LinformerAttention(2, 4, 9, 3, 3, sharing="heads", use_bias=False, **LOW_RANK),
    **NEW,
)
of_layer(
    "linformer-shared",
    lambda: ka.LinformerAttention(2, 4, 9, 3, sharing="key_value", use_sink=True),
    **NEW,
)
of_layer("longformer", lambda: ka.LongformerAttention(2, 4, 1), since="0.3.0")
of_layer(
    "longformer-all",
    lambda: ka.LongformerAttention(
        2, 4, 1, 2, 3, position="alibi", use_bias=False,
        **{n: x for n, x in LOW_RANK.items() if n != "attention_axes"},
    ),
    since="0.3.0",
)  # fmt: skip
of_layer("longformer-sink", lambda: ka.LongformerAttention(2, 4, 1, use_sink=True), since="0.3.0")
of_layer("nystrom", lambda: ka.NystromAttention(2, 4, 3), 8, 6, **NEW)
of_layer(
    "nystrom-all",
    lambda: ka.NystromAttention(
        2, 4, value_dim=3, num_iterations=4, conv_kernel_size=3, use_bias=False,
        **{n: x for n, x in LOW_RANK.items() if n not in (
            "normalization", "dropout", "scores_regularizer")},
    ),
    **NEW,
)  # fmt: skip
# Probabilities: beside the logits of masked positions all others would be rounding.
for name, arguments in {
    "pointer": {},
    "pointer-all": {"score": "dot", "logit_soft_cap": 2.0},
}.items():
    of_layer(
        name,
        lambda given=arguments: (
            lambda query, memory: keras.layers.Activation("softmax")(
                ka.PointerHead(**given)(query, memory)
            )
        ),
        *(8, 8),
        **NEW,
    )


def copied(**arguments):
    """A layer over states and what is copied, whose tokens are 0 and 7."""

    def outputs(x, memory):
        _, weights = ka.Attention()(x, memory, return_attention_scores=True)
        ids = 7 * keras.ops.cast(memory[..., 0] > 0, "int32")
        layer = ka.PointerGenerator(7, **arguments)
        return layer(x, keras.layers.Dense(7)(x), weights, ids)

    return outputs


of_layer("pointer_generator", copied, 8, 8, **NEW)
of_layer(
    "pointer_generator-all",
    lambda: copied(num_extra_tokens=2, kernel_initializer="ones", bias_initializer="ones"),
    *(8, 8),
    **NEW,
)
of_layer(
    "block-across",
    lambda: ka.TransformerBlock(16, 2, cross_attention=True, self_attention=False),
    8,
    6,
    **NEW,
)
of_layer("rms_norm", ka.RMSNorm, **NEW)
of_layer("rms_norm-options", lambda: ka.RMSNorm(0.1, 1.0), **NEW)
of_layer("sin_cos-interleaved", ka.SinCosPositionEmbedding, **NEW)
of_layer("sin_cos-half_split", lambda: ka.SinCosPositionEmbedding(layout="half_split"), **NEW)
of_layer("mixture_of_experts", lambda: ka.MixtureOfExperts(5, 2, 6), **NEW)
of_layer(
    "mixture_of_experts-all",
    lambda: ka.MixtureOfExperts(
        5, 2, 6, "silu", gated=True, use_bias=False, limit=2.0, offset=1.0,
        kernel_initializer="he_normal", bias_initializer="ones",
    ),
    **NEW,
)  # fmt: skip
of_layer(
    "mixture_of_experts-groups",
    lambda: ka.MixtureOfExperts(
        8, 2, 6, gated=True, scoring="sigmoid", use_correction_bias=True, num_groups=4,
        top_groups=2, scale=2.5, shared_dim=4,
    ),
    **NEW,
)  # fmt: skip
of_layer(
    "mixture_of_experts-one", lambda: ka.MixtureOfExperts(5, 1, 6, normalize_weights=False), **NEW
)
of_layer("layer_scale", ka.LayerScale, **NEW)
of_layer("layer_scale-options", lambda: ka.LayerScale(0.5), **NEW)
of_layer("learned_queries", lambda: ka.LearnedQueries(3), **NEW)
of_layer("learned_queries-all", lambda: ka.LearnedQueries(3, dim=5, initializer="ones"), **NEW)
of_layer("induced_set", lambda: ka.InducedSetAttentionBlock(16, 2, 3), **NEW)
of_layer(
    "induced_set-all",
    lambda: ka.InducedSetAttentionBlock(
        16, 2, 3, dropout=0.2, activation="gelu", layer_norm_epsilon=1e-3, norm="rms", key_dim=3,
        residual="pre", kernel_initializer="he_normal", initializer="ones",
    ),
    **NEW,
)  # fmt: skip
SLOTS = {"num_slots": 3, "dim": WIDTH, "intermediate_dim": 16}
# Drawn slots would be others in each call: here they are the second input.
of_layer("slot_attention", lambda: ka.SlotAttention(**SLOTS), WIDTH, WIDTH, **NEW)
of_layer(
    "slot_attention-all",
    lambda: ka.SlotAttention(
        **SLOTS, num_iterations=2, initial="learned", epsilon=0.1, activation="gelu",
        layer_norm_epsilon=1e-3, kernel_initializer="he_normal", seed=3,
    ),
    **NEW,
)  # fmt: skip
of_layer("grid_learned", lambda: ka.LearnedGridEmbedding((2, 2)), **NEW)
of_layer(
    "grid_learned-all",
    lambda: ka.LearnedGridEmbedding(
        (2, 2), prefix=1, size=(1, 3), interpolation="linear", dim=5, merge_mode="concat", **TABLE
    ),
    **NEW,
)
of_layer(
    "grid_sin_cos-all",
    lambda: ka.SinCosGridEmbedding((1, 3), 1, max_wavelength=100, dim=5, merge_mode="concat"),
    **NEW,
)


def of_images(name, make, *shape):
    """A case of layers over images of such a shape."""

    def model():
        images = keras.Input(shape)
        return keras.Model(images, make()(images))

    images = np.random.default_rng(0).normal(size=(2, *shape)).astype("float32")
    CASES[name] = Case(model, (images,), **NEW)


of_images("grid_sin_cos", ka.SinCosGridEmbedding, 2, 3, 8)
of_images("patches", lambda: ka.PatchEmbedding(2, 5), 4, 6, 3)
of_images(
    "patches-all",
    lambda: ka.PatchEmbedding(
        (2, 3), 6, flatten=False, use_bias=False, data_format="channels_first",
        kernel_initializer="he_normal", bias_initializer="ones",
    ),
    3, 4, 6,
)  # fmt: skip
of_layer("patch_merging", lambda: ka.PatchMerging((2, 2)), **NEW)
of_images(
    "patch_merging-all",
    lambda: ka.PatchMerging(
        dim=6, size=(2, 3), layer_norm_epsilon=1e-3, kernel_initializer="he_normal"
    ),
    4, 6, 3,
)  # fmt: skip


# Masks of patches, of 0.3.0


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


PIXELS, PATCHES = (
    np.random.default_rng(0).normal(size=size).astype("float32")
    for size in ((2, 4, 8, 3), (2, 2, 4, WIDTH))
)
# The right half of the second image is padding.
PIXELS[1, :, 4:] = PATCHES[1, :, 2:] = 0
CASES["patches-masked"] = Case(merged_patches, (PIXELS,), since="0.3.0")
CASES["patch_merging-masked"] = Case(pooled_patches, (PATCHES.reshape(2, 8, WIDTH),), since="0.3.0")

LENGTH = {"factor": 4.0, "original_max_length": 3}
for name, make in {
    "llama3": lambda: positions.Rotary(scaling="llama3", beta_fast=4.0, **LENGTH),
    "longrope": lambda: positions.Rotary(
        scaling="longrope", short_factors=[1.0, 1.5], long_factors=[2.0, 4.0], **LENGTH
    ),
}.items():
    of_layer(
        f"position-rotary-{name}",
        lambda make=make: ka.MultiHeadAttention(2, 4, position=make()),
        8,
        6,
        **NEW,
    )

# Stacks


def tokens(**kwargs):
    return ka.ScaledEmbedding(VOCABULARY, WIDTH, mask_zero=True, **kwargs)


def encoder(words=None):
    """Blocks that share a table of positions, and one that is listed twice."""
    table = positions.RelativeBias(8, 16)
    block = ka.TransformerBlock(16, 2)
    blocks = [ka.TransformerBlock(16, 2, position=table) for _ in range(2)] + [block, block]
    return ka.Encoder(blocks, ka.Embeddings(words or tokens()))


def encoder_with_all():
    transform = keras.layers.Dense(WIDTH, "gelu")
    return ka.Encoder(
        [ka.TransformerBlock(16, 2, residual="pre")],
        ka.Embeddings(
            tokens(scale=1.0),
            ka.LearnedPositionEmbedding(9),
            keras.layers.Embedding(2, WIDTH),
            keras.layers.LayerNormalization(),
            dropout=0.1,
            projection=keras.layers.Dense(WIDTH),
            token_projection=keras.layers.Dense(WIDTH),
        ),
        ka.RMSNorm(),
        ka.Logits(
            VOCABULARY, tied=False, use_bias=True, scale=0.5, soft_cap=3.0, transform=transform,
            kernel_initializer="he_normal",
        ),
        metadata={"origin": "a test"},
    )  # fmt: skip


def decoder(**blocks):
    kinds = [{"pattern": patterns.SlidingWindow(2, 0)}, {"position": "rotary"}]
    return ka.Decoder(
        [ka.TransformerBlock(16, 2, causal=True, **kind, **blocks) for kind in kinds],
        ka.Embeddings(tokens()),
        logits=ka.Logits(VOCABULARY),
    )


def decoder_with_all():
    model = decoder()
    return ka.Decoder(
        model.blocks, model.embeddings, ka.RMSNorm(), model.logits, metadata={"origin": "a test"}
    )


def translator(**kwargs):
    words = tokens()
    return ka.EncoderDecoder(
        encoder(words),
        ka.Decoder(
            [ka.TransformerBlock(16, 2, causal=True, cross_attention=True)],
            ka.Embeddings(words),
            logits=ka.Logits(VOCABULARY, use_bias=True),
        ),
        **kwargs,
    )


def of_stack(name, make, *inputs):
    """A case of a stack within a functional model."""

    def model():
        symbols = [keras.Input((None,), dtype="int32") for _ in inputs]
        return keras.Model(symbols, make()(symbols if len(inputs) > 1 else symbols[0]))

    CASES[name] = Case(model, inputs, **NEW)


of_stack("encoder", encoder, IDS)
of_stack("encoder-all", encoder_with_all, IDS)
of_stack("decoder", decoder, IDS)
of_stack("decoder-all", decoder_with_all, IDS)
of_stack("encoder_decoder", translator, IDS, IDS[:, :3])
of_stack("encoder_decoder-all", lambda: translator(metadata={"origin": "a test"}), IDS, IDS[:, :3])
of_layer("class_token-memory", lambda: ka.ClassToken(num_tokens=3), **NEW)
