"""ViT, DeiT, DINOv2, Swin 1 and 2, CLIP and SigLIP: patches of images, which have colors last.

The first token is the class token, to which a classifier applies; DeiT has one of distillation
after it. The pooler is left out. Refused are a model whose logits are the mean of two classifiers,
and the classifiers of DINOv2, which apply to the mean of the patches too, as is the gated network
of its largest model. Images have any size.
"""

import functools

import keras
import numpy as np

from keras_attention import positions, scores
from keras_attention.convert.huggingface import entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.architectures import bert
from keras_attention.convert.huggingface.config import Config
from keras_attention.layers.blocks.feed_forward import FeedForward
from keras_attention.layers.blocks.norms import LayerScale, PooledNorm
from keras_attention.layers.blocks.transformer_block import TransformerBlock
from keras_attention.layers.blocks.window_attention import Padding, WindowAttention
from keras_attention.layers.embeddings.grid_embedding import LearnedGridEmbedding
from keras_attention.layers.embeddings.patches import PatchMerging
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.layers.pooling import ClassToken
from keras_attention.layers.sets import LearnedQueries
from keras_attention.models import Embeddings, Encoder, Logits

IMAGES = (
    fields.COMMON
    | fields.defaults(image_size=fields.read(224, int | list), num_channels=3, hidden_act="gelu")
    | fields.fixed(qkv_bias=True)
)
_FEATURE_MAPS = fields.ignored(
    "of feature maps", "stage_names out_features out_indices _out_features _out_indices"
)
_VIT = (
    IMAGES
    | fields.SIZES
    | fields.defaults(patch_size=fields.read(16, int | list), layer_norm_eps=1e-12)
    | fields.ignored(
        "of a pooler and a decoder, which are not read",
        "encoder_stride pooler_output_size pooler_act",
    )
)


def embeddings(config, tokens, use_bias=True, **options):
    """Patches of images as vectors, with `tokens` before them, and their positions."""
    layers = _patches(config, config["hidden_size"], use_bias)
    layers += [ClassToken(name=name) for name in reversed(tokens)]
    sizes = (_pair(config, name) for name in ("image_size", "patch_size"))
    grid = tuple(image // patch for image, patch in zip(*sizes, strict=True))
    positions = LearnedGridEmbedding(grid, prefix=len(tokens), name="positions")
    tokens = keras.Sequential(layers, name="tokens")
    return Embeddings(tokens, positions, name="embeddings", **options)


def _patches(config, dim, use_bias=True):
    """The layers that make a sequence of vectors of images."""
    size = _pair(config, "patch_size")
    options = {"use_bias": use_bias, "data_format": "channels_last", "name": "patches"}
    convolution = keras.layers.Conv2D(dim, size, size, **options)
    return [convolution, keras.layers.Reshape((-1, dim), name="sequence")]


def _pair(config, name):
    size = config[name]
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(x, int) and x > 0 for x in pair):
        config.refuse(name, "a positive integer, or two", size)
    return pair


def input_shape(config):
    """The shape of the images, which have any size."""
    _pair(config, "image_size")
    return (None, None, None, config["num_channels"])


def _like_vit(
    names,
    fields,
    tensors,
    options=lambda config: {"residual": "pre"},
    tokens=("cls_token",),
    heads=("ForImageClassification",),
    **given,
):
    """The `Architecture` of an encoder of patches, as of `bert.like_bert`.

    `options` is from a `Config` to further options of a block, and `tokens` are those before the
    patches, first to last.
    """
    prefix, name = names.split()
    projection = entries.convolution("embeddings.tokens.layers.0")

    def make(config):
        further, norm = options(config), stacks.norm(config, "final_norm")
        has_head = stacks.has_head(config, name, heads)
        logits = stacks.classifier(config, pooling="first") if has_head else None
        blocks = stacks.blocks(config, lambda n: further)
        return Encoder(blocks, embeddings(config, tokens), norm, logits)

    return Architecture(
        fields,
        make,
        {
            "embeddings.patch_embeddings.projection": projection,
            # The last is nearest to the patches.
            **{
                f"embeddings.{token}": f"embeddings.tokens.layers.{len(tokens) + 1 - n}.token"
                for n, token in enumerate(tokens)
            },
            "embeddings.position_embeddings": entries.axes("embeddings.positions.embeddings", 3),
            "encoder.layer": entries.blocks(tensors),
            "layernorm": "final_norm",
        },
        prefix=prefix,
        head={"classifier": "logits.dense"},
        input_shape=input_shape,
        # Files of this package before 0.3 have the logits of an image at each token.
        unsaid=("pooling",),
        **given,
    )


_ATTENTION = "attention. attention.query attention.key attention.value output.dense"
_NORMS, _NETWORK = "layernorm_before layernorm_after", "intermediate.dense output.dense"
_BLOCK = entries.block(_NORMS, _ATTENTION, _NETWORK)
_TWO_TOKENS = ("cls_token", "distillation_token")

# Swin: stages of blocks in windows, every second of which is shifted, with merged patches between
#
# All stages but the last are before the blocks of the model, which keep the grid of the image. A
# classifier has one vector of logits, of the mean of all patches.

_SWIN = (
    IMAGES
    | fields.defaults(patch_size=fields.read(4, int | list), embed_dim=96, window_size=7)
    | fields.defaults(depths=fields.read((2, 2, 6, 2), list), mlp_ratio=4.0, layer_norm_eps=1e-5)
    | fields.defaults(num_heads=fields.read((3, 6, 12, 24), list), use_absolute_embeddings=False)
    | fields.defaults(num_attention_heads=fields.same_as("num_heads"))
    | fields.ignored("follows from others", "hidden_size num_layers num_hidden_layers")
    | fields.ignored("of training and a decoder", "drop_path_rate encoder_stride path_norm")
    | _FEATURE_MAPS
)
# In Swin v2, norms are after branches and merged patches. The sizes of windows, and whether they
# are shifted, are those of images of the configuration, in all images.
_SWINV2 = (
    _SWIN
    | fields.defaults(pretrained_window_sizes=fields.read((0, 0, 0, 0), list))
    # Their table has a row too many: no such model runs.
    | fields.fixed(use_absolute_embeddings=False)
)


def _swin(config, second=False):
    size, rate = _pair(config, "patch_size"), config["embed_dim"]
    has_head = stacks.has_head(config, "Swinv2" if second else "Swin", ["ForImageClassification"])
    logits = stacks.classifier(config, pooling="mean") if has_head else None
    # Norms beside the blocks have PyTorch's epsilon, whatever the configuration says.
    tokens = [Padding(size, name="padding"), _patches(config, rate)[0], stacks.layer_norm(1e-5)]
    # At least one cell, where images are as small as a patch.
    grid = _cells(_pair(config, "image_size"), size, second)
    if config["use_absolute_embeddings"]:
        tokens.append(LearnedGridEmbedding(grid, name="positions"))
    *stages, last = _stages(config, grid, second)
    for n, blocks in enumerate(stages):
        merging = PatchMerging(norm_after=second, name=f"merging_{n}")
        tokens += [*blocks, Padding(2, name=f"padding_{n}"), merging]
    embeddings = Embeddings(keras.Sequential(tokens, name="tokens"), name="embeddings")
    norm = stacks.layer_norm(config["layer_norm_eps"], "final_norm")
    return Encoder(last, embeddings, norm, logits)


def _stages(config, grid, second):
    """The blocks of each stage, of which the first has this grid in images of the configuration."""
    depths, heads, window = config["depths"], config["num_heads"], config["window_size"]
    counts = all(isinstance(x, int) and x > 0 for x in (*depths, *heads))
    if not (counts and 0 < len(depths) <= len(heads)):
        wanted = "positive integers, and 'num_heads' as many"
        config.refuse("depths", wanted, f"{depths} and {heads}")
    for stage, depth in enumerate(depths):
        dim, count = config["embed_dim"] * 2**stage, heads[stage]
        options = {"intermediate_dim": int(config["mlp_ratio"] * dim), "residual": "pre"}
        size, side = window, min(grid)
        if second:
            options |= {"residual": "sandwich", "norm": {"attention": None, "feed_forward": None}}
            size, side = min(grid[0], window), grid[0]
        # As the model was trained: not where a window is as long as the grid.
        shift = window // 2 if side > window else 0
        options = stacks.block(config, num_heads=count, **options)
        yield [
            TransformerBlock(
                **options,
                attention=WindowAttention(
                    *(count, dim // count, size, shift * (n % 2)),
                    **_slots(config, stage, size, second),
                    name="attention",
                ),
                name=f"stage_{stage}_block_{n}",
            )
            for n in range(depth)
        ]
        grid = _cells(grid, (2, 2), second)


def _cells(sides, sizes, second):
    """The sides of a grid of groups of cells: whole ones, or in Swin v2 those that are full."""
    pairs = zip(sides, sizes, strict=True)
    return tuple(max(1, n // size) if second else -(-n // size) for n, size in pairs)


def _slots(config, stage, size, second):
    """What the attention of a stage has beside sizes."""
    if not second:
        return {"position": positions.GridRelativeBias((size, size))}
    count, sizes = len(config["depths"]), config["pretrained_window_sizes"]
    if sizes and (len(sizes) < count or not all(isinstance(x, int) and x >= 0 for x in sizes)):
        config.refuse("pretrained_window_sizes", f"{count} integers of at least 0", sizes)
    trained = sizes[stage] or None if sizes else None
    return {
        "position": positions.ContinuousGridBias((size, size), trained_size=trained),
        "score": scores.Cosine(10.0, max_scale=100.0),
        "use_bias": "qvo",
        "fixed_shift": True,
    }


_BOTH_SWINS = {
    **entries.attention("attention. self.query self.key self.value output.dense"),
    **entries.network(_NETWORK),
}
_SWIN_BLOCK = {
    **_BOTH_SWINS,
    **entries.norms(_NORMS),
    "attention.self.relative_position_bias_table": "attention.position.embeddings",
}
_turned = functools.partial(entries.changed, split=np.transpose, join=np.transpose)
_PERCEPTRON = "attention.self.continuous_position_bias_mlp"
_SWINV2_BLOCK = {
    **_BOTH_SWINS,
    "layernorm_before": "attention_output_norm",
    "layernorm_after": "feed_forward_output_norm",
    "attention.self.logit_scale": entries.changed(
        "attention.score.log_scale", lambda x: x, lambda x: x.reshape(-1, 1, 1)
    ),
    f"{_PERCEPTRON}.0.weight": _turned("attention.position.hidden"),
    f"{_PERCEPTRON}.0.bias": "attention.position.hidden_bias",
    f"{_PERCEPTRON}.2.weight": _turned("attention.position.output_kernel"),
}


def _unsaid(model):
    """The options that Swin models of 0.2.0 have otherwise, whose windows are of one grid."""
    if isinstance(model.blocks[0].attention, WindowAttention):
        return ()
    # They have the mean as a layer, too.
    return "tokens", "positions", "attention", "pattern", "position", "pooling", "transform"


def _layers(model):
    """The layers of a model, first to last; in files of 0.2.0 stages are models in a model."""
    for layer in model.embeddings.tokens.layers:
        yield from _layers(layer) if isinstance(layer, Encoder) else [layer]
    yield from [model.embeddings.positions, *model.blocks]


def _swin_tensors(name, model):
    """The tensors of all stages, and of what is before and between them."""
    first, stage, n, found = f"{name}embeddings.", 0, 0, []
    table = {
        keras.layers.Conv2D: {"patch_embeddings.projection": entries.convolution("")},
        keras.layers.LayerNormalization: {"norm": ""},
        LearnedGridEmbedding: {"position_embeddings": entries.axes("embeddings", 3)},
    }
    for layer in _layers(model):
        stage_name = f"{name}encoder.layers.{stage}."
        if isinstance(layer, PatchMerging):
            merging = {"norm": "norm", "reduction": "dense"}
            found += entries.of(merging, layer, f"{stage_name}downsample.")
            stage, n = stage + 1, 0
        elif isinstance(layer, TransformerBlock):
            blocks = _SWINV2_BLOCK if layer.residual == "sandwich" else _SWIN_BLOCK
            found += entries.of(blocks, layer, f"{stage_name}blocks.{n}.")
            n += 1
        else:
            found += entries.of(table.get(type(layer), {}), layer, first)
    return found


_like_swin = functools.partial(
    Architecture,
    tensors={"": _swin_tensors, "layernorm": "final_norm"},
    head={"classifier": "logits.dense"},
    unread={
        r"(.*\.)?relative_(position_index|coords_table)": "of offsets, which the sizes say",
        r"embeddings\.mask_token": "of training with hidden patches",
    },
    input_shape=input_shape,
)

# CLIP of both towers, each of which is read as a model of its own, with its projection or not
#
# Every token of a text has an output; that of the whole text is at its end-of-text token. It is
# causal: padding after the text needs no mask. The first output of an image is that of the whole.
# With a projection its final norm applies to every vector, and without one to none: then it is that
# of the pooled output, `model.final_norm.pooled(states)`.

PARTS = ("text", "vision")
_BOTH = fields.COMMON | {f"{name}_config": fields.read(None, dict | None) for name in PARTS}
FIELDS = {
    "clip": _BOTH
    | fields.defaults(projection_dim=512)
    # Unless null, replaces the whole configuration of a tower.
    | {f"{name}_config_dict": fields.read(None, dict | None) for name in PARTS}
    | fields.ignored("of the likeness of texts and images", "logit_scale_init_value"),
    "siglip": _BOTH,
}
# Fields of both towers, with the sizes that files may leave out.
_TOWER = (
    fields.COMMON
    | fields.defaults(num_hidden_layers=12, layer_norm_eps=1e-5, hidden_act="quick_gelu")
    | fields.ignored("a tower has no logits of tokens", "tie_word_embeddings")
)


def tower(values, where, name):
    """The fields of a tower, as `transformers` writes them for it alone, and where they are."""
    kind = values["model_type"]
    config, field = Config(values, FIELDS[kind], where), f"{name}_config"
    if config.get(f"{field}_dict") is not None:
        field = f"{field}_dict"
    cls, given = f"Siglip{name.title()}Model", config[field] or {}
    if kind == "clip":
        cls = f"CLIP{name.title()}ModelWithProjection"
        given = {**given, "projection_dim": config["projection_dim"]}
    own = {"model_type": f"{kind}_{name}_model", "architectures": [cls]}
    return {**given, **own}, f"{field} of {where}"


_PROJECTIONS = "self_attn. q_proj k_proj v_proj out_proj"
_BLOCKS = entries.block("layer_norm1 layer_norm2", _PROJECTIONS, "mlp. fc1 fc2")
_BOTH_TOWERS = {
    "embeddings.position_embedding.weight": "embeddings.positions.embeddings",
    "encoder.layers": entries.blocks(_BLOCKS),
}
_TEXT = {
    **_BOTH_TOWERS,
    "embeddings.token_embedding.weight": "embeddings.tokens.table",
    "final_layer_norm": "final_norm",
}
_VISION = {
    **_BOTH_TOWERS,
    "embeddings.patch_embedding": entries.convolution("embeddings.tokens.layers.0"),
}


def _clip(name, fields, tensors, **given):
    """The `Architecture` of a tower, whose class may have the projection to the space of both."""
    text = name == "Text"

    def make(config):
        logits, norm = None, stacks.norm(config, "final_norm")
        if text:
            table = stacks.positions(config["max_position_embeddings"])
            embedded = stacks.embeddings(config, positions=table)
        else:
            first = stacks.norm(config)
            embedded = embeddings(config, ["class_embedding"], use_bias=False, norm=first)
        if stacks.has_head(config, f"CLIP{name}", ["ModelWithProjection"]):
            logits = Logits(config["projection_dim"], tied=False, name="projection")
        elif not text:
            norm = PooledNorm(epsilon=stacks.epsilon(config), name="final_norm")
        blocks = stacks.blocks(config, lambda n: {"residual": "pre", "causal": text})
        return Encoder(blocks, embedded, norm, logits)

    pattern = r"(text|vision)_model\..*|(text|visual)_projection\.weight|logit_scale"
    return Architecture(
        _TOWER | fields,
        make,
        tensors,
        prefix=f"{name.lower()}_model.",
        head={f"{'text' if text else 'visual'}_projection": "logits.dense"},
        unread={pattern: "of the other tower, and of both"},
        **given,
    )


# SigLIP, whose towers end in a layer that projects a text, and one that pools an image
#
# Every token of a text has an output; that of the whole text is the last one, which may be padding:
# it was trained with texts of 64 tokens, and without a mask. An image has one output.

_SIGLIP = _TOWER | fields.defaults(hidden_size=768, intermediate_size=3072, num_attention_heads=12)
_SIGLIP |= fields.defaults(layer_norm_eps=1e-6, hidden_act="gelu_pytorch_tanh")


def _siglip(config):
    logits, norm, vision = None, stacks.norm(config, "final_norm"), "image_size" in config
    stacks.has_head(config, "SiglipVision" if vision else "SiglipText", [])
    if vision:
        embedded = embeddings(config, [])
        norm = _pooling(config) if config["vision_use_head"] else norm
    else:
        table = stacks.positions(config["max_position_embeddings"])
        embedded, size = stacks.embeddings(config, positions=table), config["projection_size"]
        size = size or config["hidden_size"]
        logits = Logits(size, tied=False, use_bias=True, name="projection")
    blocks = stacks.blocks(config, lambda n: {"residual": "pre"})
    return Encoder(blocks, embedded, norm, logits)


def _pooling(config):
    """A norm, attention from one learned query, and a network beside what it returns."""
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    states = keras.Input((None, dim), name="states")
    x = stacks.norm(config)(states)
    attention = MultiHeadAttention(heads, dim // heads, use_bias=True, name="attention")
    x = attention(LearnedQueries(1, name="query")(x), x)
    network = FeedForward(config["intermediate_size"], config["hidden_act"], name="network")
    x = keras.layers.Add(name="sum")([x, network(stacks.norm(config, "pooled_norm")(x))])
    return keras.Model(states, x, name="final_norm")


_POOLED = {
    "post_layernorm": "layers.1",
    "head.probe": entries.axes("layers.2.queries", 3),
    "head.attention.in_proj": tuple(f"layers.3.{role}_dense" for role in entries.ROLES[:3]),
    "head.attention.out_proj": "layers.3.output_dense",
    "head.layernorm": "layers.4",
    **entries.network("head.mlp. fc1 fc2", "layers.5"),
}


def _siglip_end(name, model):
    """The tensors of what follows the blocks."""
    pools = isinstance(model.final_norm, keras.Model)
    found = entries.of(_POOLED if pools else {"post_layernorm": ""}, model.final_norm, name)
    return [entry._replace(name=entry.name.replace("in_proj.", "in_proj_")) for entry in found]


ARCHITECTURES = {
    "vit": _like_vit("vit. ViT", _VIT, _BLOCK, unread=bert.POOLER),
    "deit": _like_vit("deit. DeiT", _VIT, _BLOCK, tokens=_TWO_TOKENS, unread=bert.POOLER),
    "dinov2": _like_vit(
        "dinov2. Dinov2",
        IMAGES
        | {name: x for name, x in fields.SIZES.items() if name != "intermediate_size"}
        | fields.defaults(mlp_ratio=4, layer_norm_eps=1e-6, patch_size=fields.read(14, int | list))
        | fields.fixed(use_swiglu_ffn=False)
        | fields.ignored("of feature maps", "apply_layernorm reshape_hidden_states")
        | _FEATURE_MAPS,
        entries.block("norm1 norm2", _ATTENTION, "mlp. fc1 fc2")
        | {
            "layer_scale1.lambda1": "attention_output_norm.scale",
            "layer_scale2.lambda1": "feed_forward_output_norm.scale",
        },
        # Branches have learned factors.
        lambda config: {
            "intermediate_dim": config["hidden_size"] * config["mlp_ratio"],
            "residual": "sandwich",
            "norm": {f"{x}_output": LayerScale() for x in ("attention", "feed_forward")},
        },
        heads=(),
        unread={r"embeddings\.mask_token": "of training with hidden patches"},
    ),
    "swin": _like_swin(_SWIN, _swin, prefix="swin.", unsaid=_unsaid),
    "swinv2": _like_swin(_SWINV2, functools.partial(_swin, second=True), prefix="swinv2."),
    "clip_text_model": _clip(
        "Text",
        fields.defaults(vocab_size=49408, hidden_size=512, intermediate_size=2048)
        | fields.defaults(num_attention_heads=8, max_position_embeddings=77)
        | fields.nullable(projection_dim=512),
        _TEXT,
    ),
    "siglip_text_model": Architecture(
        _SIGLIP
        | fields.defaults(vocab_size=32000, max_position_embeddings=64)
        | fields.nullable(projection_size=None),
        _siglip,
        {"head": "logits.dense", **_TEXT},
        prefix="text_model.",
    ),
    "siglip_vision_model": Architecture(
        _SIGLIP
        | fields.defaults(num_channels=3, image_size=224, patch_size=16, vision_use_head=True),
        _siglip,
        {**_VISION, "": _siglip_end},
        prefix="vision_model.",
        input_shape=input_shape,
    ),
    "clip_vision_model": _clip(
        "Vision",
        fields.defaults(projection_dim=512, hidden_size=768, intermediate_size=3072)
        | fields.defaults(num_attention_heads=12, num_channels=3, image_size=224, patch_size=32),
        {
            **_VISION,
            "embeddings.class_embedding": entries.axes("embeddings.tokens.layers.2.token", 1),
            "pre_layrnorm": "embeddings.norm",
            "post_layernorm": "final_norm",
        },
        # In files of 0.2.0 it applies to every vector.
        unsaid=("final_norm",),
        input_shape=input_shape,
    ),
}
