"""Models of a configuration: stacks of blocks, and what stands before and after them."""

import keras

from keras_attention import activations, patterns, scores
from keras_attention.convert.huggingface import entries, rope
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.layers.blocks.norms import RMSNorm
from keras_attention.layers.blocks.transformer_block import TransformerBlock
from keras_attention.layers.embeddings.position_embedding import LearnedPositionEmbedding
from keras_attention.layers.embeddings.scaled_embedding import ScaledEmbedding
from keras_attention.models import Decoder, Embeddings, Encoder, Logits


def language_model(
    fields,
    names,
    tensors,
    block=lambda config, n: {},
    *,
    further=lambda config: {},
    others=(),
    head="lm_head",
    unread=(),
    **options,
):
    """The `Architecture` of a `Decoder`, or of an `Encoder` if its blocks are not causal.

    `names` are those of the prefix, the table of tokens, the blocks and the last norm; `tensors`
    and `others` are the tables of a block, and of what `names` does not have. `block` is from a
    `Config` and the number of a layer to options of its block, beside those that its fields say;
    `options` are of all blocks. `further` is from a `Config` to options of "embeddings" and of
    "logits", and the "final_norm": by default one as those of blocks are. `head` is the name of
    the projection to logits.
    """
    prefix, tokens, layers, norm = names.split()
    table = f"{tokens}.weight"
    usual = {table: "embeddings.tokens.table", layers: entries.blocks(tensors), norm: "final_norm"}
    options = {"causal": True, "residual": "pre", **options}
    # Names of the class that Llama shares with most, and of others.
    of_tokens = "token_score" if prefix == "model." else "token_classifier"

    def make(config):
        made, parts = blocks(config, lambda n: {**options, **block(config, n)}), further(config)
        return (Decoder if made[0].causal else Encoder)(
            made,
            embeddings(config, **parts.get("embeddings", {})),
            parts["final_norm"] if "final_norm" in parts else _final_norm(made[-1]),
            _language_logits(config, of_tokens, **parts.get("logits", {})),
        )

    return Architecture(
        fields,
        make,
        usual | dict(others),
        prefix=prefix,
        prefix_of=_ANSWERS,
        # The bias is of the logits themselves where they are tied.
        head={head: "logits.dense", f"{head}.bias": "logits.bias"},
        unread=dict(unread),
        same={table: [rf"{head}\.weight"]},
    )


# Classes whose tensors begin as those of GPT-2 do.
_ANSWERS = {
    f"{name}ForQuestionAnswering": "transformer."
    for name in ("Llama", "Qwen2", "Qwen3", "Qwen3Moe", "Qwen3Next", "Nemotron", "SmolLM3")
}


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
    """The embeddings of `size` features, or `tokens`, without a mask: that is the caller's."""
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


def norm(config, name="norm", **options):
    """A `LayerNormalization` with the epsilon of the configuration."""
    return layer_norm(epsilon(config), name, **options)


# Blocks


def blocks(config, options, count="num_hidden_layers"):
    """Blocks with the options of each, a function of its number, beside those of `block`.

    `count` is the field of the number of blocks.
    """
    return [
        TransformerBlock(**block(config, n, **options(n)), name=f"block_{n}")
        for n in range(config[count])
    ]


def block(config, n=0, rotary=None, **options):
    """The options of block `n` that its fields say, of which `options` win.

    `rotary` are options of its rotary positions. The epsilon is of norms that `norm` names: a layer
    has one of its own.
    """
    inner = first(config, "intermediate_size ffn_dim ffn_hidden_size hidden_dim d_ff n_inner")
    activated = "hidden_act activation_function hidden_activation activation"
    found = {
        "intermediate_dim": inner or 4 * (config.get("hidden_size") or 0),
        "num_heads": config.get("num_attention_heads"),
        "activation": first(config, activated),
        "norm": "rms" if "rms_norm_eps" in config else "layer",
        "layer_norm_epsilon": epsilon(config),
        "use_bias": _use_bias(config),
    }
    if "attention" not in options:
        if "head_dim" in config:
            found["key_dim"] = head_size(config)
        if "num_key_value_heads" in config:
            found["num_key_value_heads"] = first(config, "num_key_value_heads num_attention_heads")
        if "query_pre_attn_scalar" in config:
            found["score"] = scores.ScaledDot(config["query_pre_attn_scalar"] ** -0.5)
        if "pattern" not in options:
            found["pattern"] = _windows(config, n)
        if "position" not in options and "rope_parameters" in config:
            found["position"] = rope.rotary(config, head_size(config), **(rotary or {}))
        found["logit_soft_cap"] = config.get("attn_logit_softcapping")
    found = {name: value for name, value in found.items() if value is not None} | options
    if not isinstance(_first_norm(found["norm"]), str):
        found.pop("layer_norm_epsilon", None)
    return found


def epsilon(config):
    """The epsilon of norms; None if no field has it."""
    names = "layer_norm_eps layer_norm_epsilon rms_norm_eps norm_eps norm_epsilon"
    return first(config, names)


def first(config, names):
    """The value of the first of these fields that is not null."""
    values = (config.get(name) for name in names.split())
    return next((value for value in values if value is not None), None)


def _first_norm(norm):
    """The norm before attention, or after it if that is None, of the `norm` of a block."""
    if isinstance(norm, dict):
        return norm.get("attention", "layer") or norm.get("attention_output", "layer")
    return norm


def _use_bias(config):
    """Whether projections have biases; if no field says it, those beside an RMSNorm have none."""
    biases = first(config, "attention_bias use_bias bias enable_bias")
    if biases is None:
        return False if "rms_norm_eps" in config else None
    return biases if config.get("mlp_bias") is None else config.require("mlp_bias", biases)


def head_size(config):
    """The features of each head: `head_dim`, or those of all divided by the number of heads."""
    if config.get("head_dim"):
        return config["head_dim"]
    size, heads = (config.first(name) for name in ("hidden_size", "num_attention_heads"))
    if config[size] % config[heads]:
        config.refuse(size, f"a multiple of {heads!r}", f"{config[size]} and {config[heads]}")
    return config[size] // config[heads]


def layer_types(config, slides=None, other="sliding_attention"):
    """The type of each layer: "full_attention" or an `other`, which has a window.

    `slides` says which layers are of the other type in files without types: by default all but the
    last of each period.
    """
    period = first(config, "sliding_window_pattern full_attention_interval") or 2
    slides = slides or (lambda n: (n + 1) % period)
    count, types = config["num_hidden_layers"], config["layer_types"]
    if types is None:
        types = [other if slides(n) else "full_attention" for n in range(count)]
    if len(types) != count or any(x not in (other, "full_attention") for x in types):
        config.refuse("layer_types", f"{count} of {other!r} and 'full_attention'", types)
    return types


def window_by_type(config, n, size, slides=None):
    """The pattern of a layer beside the causal one: None where it is of "full_attention"."""
    types = layer_types(config, slides)
    if size is None and "sliding_attention" in types:
        wanted = "a number, and in use, where layers are of 'sliding_attention'"
        config.refuse("sliding_window", wanted, f"{config['sliding_window']}, layer_types={types}")
    if config.get("use_bidirectional_attention") and types[n] == "sliding_attention":
        return patterns.SlidingWindow(size // 2, size // 2)
    return _window(size) if types[n] == "sliding_attention" else None


def _windows(config, n):
    """The pattern of a layer beside the causal one, by the fields of windows."""
    size = None if config.get("use_sliding_window") is False else config.get("sliding_window")
    if "layer_types" not in config:
        return _window(size)
    # The first layers see all, or the last of each period.
    first = config.get("max_window_layers")
    if first is None:
        return window_by_type(config, n, size)
    return window_by_type(config, n, size, lambda n: size is not None and n >= first)


def _window(size):
    """The pattern of the last `size` tokens, beside the causal one; None for all of them."""
    return None if size is None else patterns.SlidingWindow(size - 1, 0)


# After blocks


def _language_logits(config, of_tokens, **options):
    """The logits of a causal language model or of labels, or None; those of tokens by this name."""
    name = config.architecture or "Model"
    if name.endswith("ForSequenceClassification"):
        labels = {"name": "score", "use_bias": False, "pooling": "last"}
        return classifier(config, **{**options, **labels})
    if name.endswith("ForTokenClassification"):
        return classifier(config, **{**options, "name": of_tokens, "use_bias": True})
    if name.endswith("ForQuestionAnswering"):
        return token_classifier(config, **options)
    if name.endswith(("ForCausalLM", "LMHeadModel", "Generation")):
        scale, cap = (config.get(x) for x in ("logit_scale", "final_logit_softcapping"))
        options = {"scale": scale or 1.0, "soft_cap": cap, "name": "logits", **options}
        return Logits(config["vocab_size"], config["tie_word_embeddings"], **options)
    if not name.endswith("Model") or "Heads" in name:
        _refuse_head(config, "of a language model, or of a base model")
    return None


def has_head(config, names, heads, bases=("Model",)):
    """Whether the class of a model, one of `names` with an end, is of `heads` or of `bases`."""
    name = config.architecture
    supported = tuple(x + end for ends in (bases, heads) for x in names.split() for end in ends)
    if name not in (None, *supported):
        _refuse_head(config, f"one of {supported}")
    return name is not None and name.endswith(tuple(heads))


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


def classes(config, activation, count=None, pooling="first"):
    """The logits of `count` labels, or those of the configuration, after a dense layer."""
    dense = keras.layers.Dense(config["hidden_size"], activations.get(activation), name="dense")
    return classifier(config, count, transform=dense, pooling=pooling)


def classifier(config, count=None, **options):
    """The logits of labels."""
    # Where a file has both, the number wins.
    count = count or config["num_labels"] or len(config["id2label"] or ("no", "yes"))
    options = {"use_bias": True, "name": "classifier", **options}
    return Logits(count, tied=False, **options)


def token_classifier(config, **options):
    """The logits of labels of each token, of a class with this end; None for other classes."""
    name = config.architecture or ""
    if name.endswith("ForTokenClassification"):
        return classifier(config, name="token_classifier", **options)
    if name.endswith("ForQuestionAnswering"):
        # Of a token as the first and as the last of the answer.
        return classifier(config, 2, name="answers", **options)
    return None
