"""Models of a configuration: stacks of blocks, and what stands before and after them."""

import keras

from keras_attention import activations, patterns
from keras_attention.layers.position_embedding import LearnedPositionEmbedding
from keras_attention.layers.rms_norm import RMSNorm
from keras_attention.layers.scaled_embedding import ScaledEmbedding
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder, Embeddings, Logits

# Models


def decoder(block, further=lambda config: {}):
    """What makes the `Decoder` of a configuration, for language modelling.

    Args:
        block: from the configuration and the number of a layer to options of its
            `TransformerBlock`, beside `causal=True` and `residual="pre"`.
        further: from the configuration to options of "embeddings" and of "logits", and the
            "final_norm": by default one as those of blocks are.
    """

    def make(config):
        options = {"embeddings": {}, "logits": {}, **further(config)}
        made = blocks(
            config["num_hidden_layers"],
            lambda n: {"causal": True, "residual": "pre", **block(config, n)},
        )
        return Decoder(
            made,
            embeddings(config, **options["embeddings"]),
            options["final_norm"] if "final_norm" in options else _final_norm(made[-1]),
            _language_logits(config, **options["logits"]),
        )

    return make


def blocks(count, options):
    """Blocks of the options of each, a function of its number."""
    return [TransformerBlock(**options(n), name=f"block_{n}") for n in range(count)]


def _final_norm(block):
    """A norm of the kind of those that a block has."""
    norm = block.norm.get("attention", "layer") if isinstance(block.norm, dict) else block.norm
    if norm == "layer":
        return layer_norm(block.layer_norm_epsilon, "final_norm")
    if norm == "rms":
        return RMSNorm(block.layer_norm_epsilon, name="final_norm")
    return type(norm).from_config({**norm.get_config(), "name": "final_norm"})


# Before blocks


def embeddings(config, size=None, scale=1, tokens=None, **options):
    """The embeddings of tokens, without a mask: padding is a mask of the caller's.

    `size` is their number of features, where it is not `hidden_size`; `tokens` is their layer,
    where several stacks share it.
    """
    return Embeddings(tokens or table(config, size, scale), name="embeddings", **options)


def table(config, size=None, scale=1):
    """The table of tokens."""
    size = size or config["hidden_size"]
    return ScaledEmbedding(config["vocab_size"], size, scale=scale, name="tokens")


def positions(length):
    """The table of positions."""
    return LearnedPositionEmbedding(length, name="positions")


def layer_norm(epsilon, name="norm", **options):
    """A `LayerNormalization`."""
    return keras.layers.LayerNormalization(epsilon=epsilon, name=name, **options)


# Inside blocks


def head_size(config):
    """The features of each head: `head_dim`, or those of all divided by the number of heads."""
    if config.get("head_dim"):
        return config["head_dim"]
    size, heads = (config.first(name) for name in ("hidden_size", "num_attention_heads"))
    if config[size] % config[heads]:
        raise ValueError(
            f"{size!r} of `{config.where}` must be a multiple of {heads!r}. Received: "
            f"{config[size]} and {config[heads]}"
        )
    return config[size] // config[heads]


def per_layer(config, name, default):
    """The values of a field for each layer, which may have more; `default` where it is null."""
    count = config["num_hidden_layers"]
    values = default if config[name] is None else config[name]
    if len(values) < count:
        raise ValueError(
            f"{name!r} of `{config.where}` must have a value for each of {count} layers. "
            f"Received: {values}"
        )
    return values


def layer_types(config, default):
    """The type of each layer, "sliding_attention" or "full_attention"."""
    count = config["num_hidden_layers"]
    types = default if config["layer_types"] is None else config["layer_types"]
    if len(types) != count or any(x not in ("sliding_attention", "full_attention") for x in types):
        raise ValueError(
            f"'layer_types' of `{config.where}` must be {count} of 'sliding_attention' and "
            f"'full_attention'. Received: {types}"
        )
    return types


def window_by_type(config, types, n, size):
    """The pattern of a layer of some type, beside the causal one: a sliding window or None."""
    if size is None and "sliding_attention" in types:
        raise ValueError(
            f"'sliding_window' of `{config.where}` must be a number, and in use, where layers are "
            f"of 'sliding_attention'. Received: {config['sliding_window']}, layer_types={types}"
        )
    return window(size) if types[n] == "sliding_attention" else None


def window(size):
    """The pattern of the last `size` tokens, beside the causal one; None for all of them."""
    return None if size is None else patterns.SlidingWindow(size - 1, 0)


# After blocks


def _language_logits(config, **options):
    """The logits of a causal language model; None for a model without them."""
    name = config.architecture or "Model"
    if "LM" in name or "Generation" in name:
        tied = config["tie_word_embeddings"]
        return Logits(config["vocab_size"], tied=tied, name="logits", **options)
    if not name.endswith("Model") or "Heads" in name:
        raise ValueError(
            f"'architectures' of `{config.where}` must be of a language model, or of a base model: "
            f"no other head is supported for model_type={config.model_type!r}. Received: {name!r}"
        )
    return None


def has_head(config, without, *heads):
    """Whether the class of a model has a head; an error if it is none of these classes."""
    name, supported = config.architecture, (*without, *heads)
    if name not in (None, *supported):
        raise ValueError(
            f"'architectures' of `{config.where}` must be one of {supported}: no other head is "
            f"supported for model_type={config.model_type!r}. Received: {name!r}"
        )
    return name in heads


def masked_logits(
    config, activation, norm, size=None, name="transform", dense_bias=True, **options
):
    """Tied logits of a masked language model, after a dense layer and a norm, together `name`."""
    dense = keras.layers.Dense(
        size or config["hidden_size"],
        activations.get(activation),
        use_bias=dense_bias,
        name="dense",
    )
    transform = keras.Sequential([dense, norm], name=name)
    options = {"use_bias": True, **options}
    return Logits(config["vocab_size"], transform=transform, name="logits", **options)


def labels(config):
    """The number of labels of a classifier."""
    # Where a file has both, the number wins.
    return config["num_labels"] or len(config["id2label"] or ("no", "yes"))


def classes(config, activation, count=None):
    """The logits of a classifier after a dense layer, for every token: the first is of the text.

    There are `count` of them, or as many as labels.
    """
    dense = keras.layers.Dense(config["hidden_size"], activations.get(activation), name="dense")
    count = labels(config) if count is None else count
    return Logits(count, tied=False, use_bias=True, transform=dense, name="classifier")


def masked_head(dense, norm, bias):
    """The names of `masked_logits`, as a table."""
    return {
        dense: "logits.transform.layers.0",
        norm: "logits.transform.layers.1",
        bias: "logits.bias",
    }


def either(masked, *classifier):
    """The table of a model with `masked_logits` or `classes`, of which the names are two."""
    of_classes = dict(zip(classifier, ("logits.transform", "logits.dense"), strict=True))

    def head(model):
        return masked if model.logits is None or model.logits.tied else of_classes

    return head
