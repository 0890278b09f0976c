"""Swin: stages of blocks in windows, every second of which is shifted, with merged patches between.

Each stage is an `Encoder`, whose tokens are those of the stage before it. A classifier has one
vector of logits, of the mean of all patches. Images have the size of `image_size`, and the windows
divide the grids of all stages, as in published models.
"""

import functools

import keras

from keras_attention import patterns, positions
from keras_attention.convert.huggingface import entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.architectures import vit
from keras_attention.convert.huggingface.fields import count, ignored, only, read
from keras_attention.layers.grid_embedding import LearnedGridEmbedding
from keras_attention.layers.patch_merging import PatchMerging
from keras_attention.models import Embeddings, Encoder, Logits

FIELDS = {
    **fields.COMMON,
    **fields.LABELS,
    "image_size": read(224, int | list),
    "patch_size": read(4, int | list),
    "num_channels": count(3),
    "embed_dim": count(96),
    "depths": read((2, 2, 6, 2), list),
    "num_heads": read((3, 6, 12, 24), list),
    "num_attention_heads": fields.same_as("num_heads"),
    "window_size": count(7),
    "mlp_ratio": read(4.0),
    "hidden_act": fields.activation("gelu"),
    "layer_norm_eps": read(1e-5),
    "qkv_bias": only(True),
    "use_absolute_embeddings": read(False),
    **ignored("follows from others", "hidden_size num_layers num_hidden_layers"),
    **ignored(
        "of training, a decoder and feature maps",
        """
        drop_path_rate encoder_stride path_norm stage_names out_features out_indices _out_features
        _out_indices
        """,
    ),
}


def _make(config):
    logits, grid = None, vit.grid(config)
    if stacks.has_head(config, ["SwinModel"], "SwinForImageClassification"):
        mean = keras.layers.GlobalAveragePooling1D(keepdims=True, name="mean")
        options = {"use_bias": True, "transform": mean, "name": "classifier"}
        logits = Logits(stacks.labels(config), tied=False, **options)
    tokens = keras.Sequential(
        # Norms beside the blocks have PyTorch's epsilon, whatever the configuration says.
        [*vit.patches(config, config["embed_dim"]), stacks.layer_norm(1e-5)],
        name="tokens",
    )
    absolute = config["use_absolute_embeddings"]
    table = LearnedGridEmbedding(grid, name="positions") if absolute else None
    embeddings, stages = Embeddings(tokens, table, name="embeddings"), list(_stages(config, grid))
    for n, (blocks, grid) in enumerate(stages[:-1]):
        stage = Encoder(blocks, embeddings, name=f"stage_{n}")
        tokens = keras.Sequential([stage, PatchMerging(grid, name="merging")], name="tokens")
        embeddings = Embeddings(tokens, name="embeddings")
    norm = stacks.layer_norm(config["layer_norm_eps"], "final_norm")
    return Encoder(stages[-1][0], embeddings, norm, logits)


def _stages(config, grid):
    """The blocks of each stage, and its grid."""
    depths, heads, window = config["depths"], config["num_heads"], config["window_size"]
    counts = all(isinstance(x, int) and x > 0 for x in (*depths, *heads))
    if not (counts and 0 < len(depths) <= len(heads)):
        raise ValueError(
            f"'depths' of `{config.where}` must be positive integers, and 'num_heads' as many. "
            f"Received: {depths} and {heads}"
        )
    for n, depth in enumerate(depths):
        last = n == len(depths) - 1
        if any(side % window or (side % 2 and not last) or not side for side in grid):
            raise ValueError(
                f"'window_size' of `{config.where}` must divide the grid of patches of each stage, "
                f"and 2 that of each but the last. Received: {window}, for a grid of {grid}"
            )
        yield stacks.blocks(depth, functools.partial(_block, config, n, grid)), grid
        grid = tuple(side // 2 for side in grid)


def _block(config, stage, grid, number):
    """The options of a block."""
    window, dim = config["window_size"], config["embed_dim"] * 2**stage
    # There is nothing to shift where a window is as long as the grid.
    shift = window // 2 if number % 2 and min(grid) > window else 0
    return {
        "intermediate_dim": int(config["mlp_ratio"] * dim),
        "num_heads": config["num_heads"][stage],
        "activation": config["hidden_act"],
        "layer_norm_epsilon": config["layer_norm_eps"],
        "residual": "pre",
        "pattern": patterns.GridWindow(grid, window, shift),
        "position": positions.GridRelativeBias(grid, window),
    }


# Names of tensors

_BLOCK = {
    "layernorm_before": "attention_norm",
    **entries.attention("attention.", "self.query self.key self.value output.dense"),
    "attention.self.relative_position_bias_table": "attention.position.embeddings",
    "layernorm_after": "feed_forward_norm",
    "intermediate.dense": "feed_forward.intermediate_dense",
    "output.dense": "feed_forward.output_dense",
}
_PATCHES = {
    "patch_embeddings.projection": entries.convolution("tokens.layers.0"),
    "norm": "tokens.layers.2",
    "position_embeddings": entries.axes("positions.embeddings", 3),
}
_MERGING = {"norm": "norm", "reduction": "dense"}


def _encoders(model):
    """The stages, from the first to the last, which is the model."""
    first = model.embeddings.tokens.layers[0]
    return [*(_encoders(first) if isinstance(first, Encoder) else []), model]


def _embeddings(name, model):
    return entries.of(_PATCHES, _encoders(model)[0].embeddings, f"{name}.")


def _layers(name, model):
    found = []
    for n, stage in enumerate(_encoders(model)):
        if n:
            merging = stage.embeddings.tokens.layers[1]
            found += entries.of(_MERGING, merging, f"{name}.{n - 1}.downsample.")
        found += entries.of({"blocks": entries.blocks(_BLOCK)}, stage, f"{name}.{n}.")
    return found


ARCHITECTURES = {
    "swin": Architecture(
        FIELDS,
        _make,
        {"embeddings": _embeddings, "encoder.layers": _layers, "layernorm": "final_norm"},
        prefix="swin.",
        head={"classifier": "logits.dense"},
        unread={
            r"(.*\.)?relative_position_index": "rows of the table, which the sizes say",
            r"embeddings\.mask_token": "of training with hidden patches",
        },
        input_shape=vit.input_shape,
    ),
}
