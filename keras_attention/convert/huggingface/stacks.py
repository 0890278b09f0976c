"""Models of a configuration: stacks of blocks, and what stands before and after them."""

import keras

from keras_attention import activations, patterns
from keras_attention.layers.blocks.norms import RMSNorm
from keras_attention.layers.blocks.transformer_block import TransformerBlock
from keras_attention.layers.embeddings.position_embedding import LearnedPositionEmbedding
from keras_attention.layers.embeddings.scaled_embedding import ScaledEmbedding
from keras_attention.models import Decoder, Embeddings, Logits


def decoder(config, block, further):
    """The `Decoder` of a configuration: see `language_model`."""
    options = {"embeddings": {}, "logits": {}, **further(config)}
    made = blocks(config, lambda n: {"causal": True, "residual": "pre", **block(config, n)})
    return Decoder(
        made,
        embeddings(config, **options["embeddings"]),
        options["final_norm"] if "final_norm" in options else _final_norm(made[-1]),
        _language_logits(config, **options["logits"]),
    )


def blocks(config, options, count="num_hidden_layers"):
    """Blocks of the options of each, a function of its number; `count` is the field of how many."""
    return [TransformerBlock(**options(n), name=f"block_{n}") for n in range(config[count])]


def _final_norm(block):
    """A norm of the kind of those that a block has."""
    norm = _first_norm(block.norm)
    if norm == "layer":
        return layer_norm(block.layer_norm_epsilon, "final_norm")
    if norm == "rms":
        return RMSNorm(block.layer_norm_epsilon, name="final_norm")
    return type(norm).from_config({**norm.get_config(), "name": "final_norm"})


# Before blocks


def embeddings(config, size=None, scale=1, tokens=None, **options):
    """The embeddings of tokens, without a mask: padding is a mask of the caller's.

    `size` is their number of features, if not `hidden_size`, and `tokens` a layer that is shared.
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

# The names of the fields of an activation, and of the epsilon of norms: a table reads one of each.
_ACTIVATION = ("hidden_act", "activation_function", "hidden_activation", "activation")
_EPSILON = ("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "norm_eps", "norm_epsilon")


def block(config, norm="layer", **options):
    """The options of a block, whose usual fields are found by their names; `options` win.

    The epsilon is of norms that `norm` names: a layer has one of its own.
    """
    found = {
        "intermediate_dim": config.get("intermediate_size"),
        "num_heads": config.get("num_attention_heads"),
        "activation": _first(config, _ACTIVATION),
        "layer_norm_epsilon": epsilon(config) if isinstance(_first_norm(norm), str) else None,
    }
    found = {name: value for name, value in found.items() if value is not None}
    return {**found, "norm": norm, **options}


def epsilon(config):
    """The epsilon of norms; None if no field has it."""
    return _first(config, _EPSILON)


def _first(config, names):
    return next((config.get(name) for name in names if config.get(name) is not None), None)


def _first_norm(norm):
    """The norm before attention, of the `norm` of a block."""
    return norm.get("attention", "layer") if isinstance(norm, dict) else norm


def head_size(config):
    """The features of each head: `head_dim`, or those of all divided by the number of heads."""
    if config.get("head_dim"):
        return config["head_dim"]
    size, heads = (config.first(name) for name in ("hidden_size", "num_attention_heads"))
    if config[size] % config[heads]:
        config.refuse(size, f"a multiple of {heads!r}", f"{config[size]} and {config[heads]}")
    return config[size] // config[heads]


def layer_types(config, slides):
    """The type of each layer, "sliding_attention" or "full_attention".

    `slides` is from the number of a layer to whether it is the former in files without types.
    """
    count, types = config["num_hidden_layers"], config["layer_types"]
    if types is None:
        types = ["sliding_attention" if slides(n) else "full_attention" for n in range(count)]
    if len(types) != count or any(x not in ("sliding_attention", "full_attention") for x in types):
        config.refuse("layer_types", f"{count} of 'sliding_attention' and 'full_attention'", types)
    return types


def window_by_type(config, n, size, slides):
    """The pattern of a layer beside the causal one: None where it is of "full_attention"."""
    types = layer_types(config, slides)
    if size is None and "sliding_attention" in types:
        wanted = "a number, and in use, where layers are of 'sliding_attention'"
        config.refuse("sliding_window", wanted, f"{config['sliding_window']}, layer_types={types}")
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
        _refuse_head(config, "of a language model, or of a base model")
    return None


def has_head(config, names, heads, bases=("Model",)):
    """Whether the class of a model has a head; an error if it is of none of these names and ends.

    `names` are what classes begin with: one or several, separated by spaces. `heads` are ends of
    classes with a head, and `bases` of others.
    """
    bases, heads = ([x + end for x in names.split() for end in ends] for ends in (bases, heads))
    name, supported = config.architecture, (*bases, *heads)
    if name not in (None, *supported):
        _refuse_head(config, f"one of {supported}")
    return name in heads


def _refuse_head(config, wanted):
    wanted += f": no other head is supported for model_type={config.model_type!r}"
    config.refuse("architectures", wanted, repr(config.architecture))


def masked_logits(config, activation, norm, size, name="transform", dense_bias=True, **options):
    """Tied logits of a masked language model, after a dense layer and a norm, together `name`."""
    function = activations.get(activation)
    dense = keras.layers.Dense(size, function, use_bias=dense_bias, name="dense")
    transform = keras.Sequential([dense, norm], name=name)
    options = {"use_bias": True, **options}
    return Logits(config["vocab_size"], transform=transform, name="logits", **options)


def classes(config, activation, count=None):
    """The logits of `count` labels, or those of the configuration, after a dense layer."""
    dense = keras.layers.Dense(config["hidden_size"], activations.get(activation), name="dense")
    return classifier(config, count, transform=dense)


def classifier(config, count=None, **options):
    """The logits of labels."""
    # Where a file has both, the number wins.
    count = count or config["num_labels"] or len(config["id2label"] or ("no", "yes"))
    return Logits(count, tied=False, use_bias=True, name="classifier", **options)
