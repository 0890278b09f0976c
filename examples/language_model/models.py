"""The model: a `keras_attention.Decoder` of pre-norm blocks, or one of a folder; its optimizer."""

import keras

import keras_attention
from examples import pretrained
from examples.errors import UsageError
from keras_attention import positions

# Of nanoGPT, for all recipes.
BETA_2, WEIGHT_DECAY, CLIP_NORM, LAST_RATE = 0.99, 0.1, 1.0, 0.1
# What each name adds to the embeddings, and what it makes in each block.
POSITIONS = {
    "rotary": (None, positions.Rotary),
    "learned": (keras_attention.LearnedPositionEmbedding, None),
    "sin-cos": (lambda context: keras_attention.SinCosPositionEmbedding(), None),
    "alibi": (None, positions.ALiBi),
}


def build(vocabulary_size, settings):
    """A new model of the sizes in `settings`, built.

    Raises:
        UsageError: `heads` does not divide `dim`.
    """
    dim, heads, dropout = (settings[name] for name in ("dim", "heads", "dropout"))
    if dim % heads:
        raise UsageError(f"--dim must be a multiple of --heads, received {dim} and {heads}.")
    if dim // heads % 2 and settings["positions"] == "rotary":
        raise UsageError(
            "--positions rotary needs an even number of features per head, received "
            f"--dim {dim} / --heads {heads} = {dim // heads}."
        )
    added, in_block = POSITIONS[settings["positions"]]
    model = keras_attention.Decoder(
        [
            keras_attention.TransformerBlock(
                intermediate_dim=4 * dim,
                num_heads=heads,
                dropout=dropout,
                activation="gelu",
                residual="pre",
                causal=True,
                position=in_block and in_block(),
                use_bias=False,
                name=f"block_{n}",
            )
            for n in range(settings["layers"])
        ],
        keras_attention.Embeddings(
            keras_attention.ScaledEmbedding(vocabulary_size, dim),
            added and added(settings["context"]),
            dropout=dropout,
        ),
        final_norm=keras.layers.LayerNormalization(),
        logits=keras_attention.Logits(vocabulary_size),
    )
    model.build((None, None))
    return model


def from_folder(folder, vocabulary_size, context):
    """The model of a folder of Hugging Face's format, for so many tokens and such windows.

    Raises:
        UsageError: the folder cannot be read, or its model is not a language model for this.
    """
    model = pretrained.load(folder)
    if not isinstance(model, keras_attention.Decoder) or model.logits is None:
        raise UsageError(f"--pretrained {folder} has no decoder with logits of tokens.")
    pretrained.check_sizes(model, folder, vocabulary_size, context, "context")
    return model


def compile_model(model, settings):
    """Readies the model for training; the state of an optimizer that was loaded with it is kept."""
    steps = settings["steps"]
    # Where all is short, so is the warmup.
    warmup = min(settings["warmup_steps"], max(1, steps // 4))
    rate = settings["learning_rate"]
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(
            rate / warmup,
            max(1, steps - warmup),
            alpha=LAST_RATE,
            warmup_target=rate,
            warmup_steps=warmup,
        ),
        weight_decay=WEIGHT_DECAY,
        beta_2=BETA_2,
        global_clipnorm=CLIP_NORM,
    )
    # A file of an optimizer does not have these names, so each process makes its own.
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta", "scale"])
    optimizer.build(model.trainable_variables)
    if model.compiled:
        for variable, saved in zip(optimizer.variables, model.optimizer.variables, strict=True):
            variable.assign(saved)
    model.compile(
        optimizer,
        keras_attention.losses.SmoothedCrossentropy(0.0, ignore_class=None),
        jit_compile=settings["jit"] or keras.backend.backend() == "jax",
    )
