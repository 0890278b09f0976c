"""T5, its version 1.1, and mT5: biases of distances that all layers share."""

from keras_attention import positions
from keras_attention.convert.huggingface import parts, sequences
from keras_attention.convert.huggingface.fields import (
    ACTIVATIONS,
    COMMON,
    activation,
    count,
    ignored,
    needed,
    read,
    same_as,
)
from keras_attention.convert.huggingface.tensors import Checkpoint
from keras_attention.layers.rms_norm import RMSNorm
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder, Embeddings, Encoder, EncoderDecoder, Logits

PREFIX = ""
_STACK = {
    **COMMON,
    "vocab_size": needed(),
    "d_model": needed(),
    "d_kv": needed(),
    "d_ff": needed(),
    "num_layers": needed(),
    "num_heads": needed(),
    "num_decoder_layers": count(None, int | None),
    "hidden_size": same_as("d_model"),
    "head_dim": same_as("d_kv"),
    "num_hidden_layers": same_as("num_layers"),
    "num_attention_heads": same_as("num_heads"),
    "relative_attention_num_buckets": count(32),
    "relative_attention_max_distance": count(128),
    "layer_norm_epsilon": read(1e-6),
    # Both are those of `feed_forward_proj` unless they are there.
    "dense_act_fn": activation(None),
    "is_gated_act": read(None, bool),
    **ignored("distances have no end", "n_positions"),
}
FIELDS = {
    "t5": {
        **_STACK,
        "feed_forward_proj": read("relu"),
        "tie_word_embeddings": read(None, bool | None),
        "scale_decoder_outputs": read(None, bool),
    },
    "mt5": {
        **_STACK,
        "feed_forward_proj": read("gated-gelu"),
        **ignored("as it is of T5 1.1, whatever they say", "tie_word_embeddings"),
        **ignored("not read for this model", "scale_decoder_outputs"),
    },
}
_ENCODERS = ("T5EncoderModel", "MT5EncoderModel")
_MODELS = ("T5Model", "MT5Model")
_HEADS = ("T5ForConditionalGeneration", "MT5ForConditionalGeneration")
_HEAD = "lm_head.weight"

# Files say it by having a matrix or not.
UNSAID = ("tied",)
UNREAD = {
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight": (
        "of a cross-attention, which no code has read since 2020"
    ),
}
UNREAD_OF = {kind: {r"decoder\..*": "of models with a decoder"} for kind in _ENCODERS}
SAME = {"shared.weight": [r"(encoder|decoder)\.embed_tokens\.weight"]}


def model(config, dtype):
    """The `EncoderDecoder` of a configuration, or the `Encoder` alone."""
    has_head = sequences.has_head(config, _ENCODERS + _MODELS, *_HEADS)
    options = _options(config)
    tokens = sequences.tokens(config["vocab_size"], config["d_model"], dtype)
    encoder = Encoder(
        _blocks(config, config["num_layers"], options, dtype),
        Embeddings(tokens, name="embeddings", dtype=dtype),
        _norm(config, dtype),
        name="encoder",
        dtype=dtype,
    )
    if config.architecture in _ENCODERS:
        return encoder
    layers = config["num_decoder_layers"] or config["num_layers"]
    decoder = Decoder(
        _blocks(config, layers, options, dtype, decoder=True),
        Embeddings(tokens, name="embeddings", dtype=dtype),
        _norm(config, dtype),
        _logits(config, dtype) if has_head else None,
        name="decoder",
        dtype=dtype,
    )
    return EncoderDecoder(encoder, decoder, dtype=dtype)


def input_shape(config):
    """The shape of the inputs: of one sequence for an encoder alone."""
    one = (None, None)
    return one if config.architecture in _ENCODERS else [one, one]


def _norm(config, dtype):
    return RMSNorm(config["layer_norm_epsilon"], name="final_norm", dtype=dtype)


def _logits(config, dtype):
    # Version 1.1 is said to be untied. transformers 5 ties it all the same, unless its files have
    # a matrix of their own, and writes in another field that its output is not scaled.
    scaled = False
    if config.model_type == "t5":
        scaled = config["scale_decoder_outputs"]
        scaled = config["tie_word_embeddings"] is not False if scaled is None else scaled
    tied = config.folder is None or _HEAD not in Checkpoint(config.folder).names
    dim = config["d_model"]
    scale = dim**-0.5 if scaled else 1.0
    return Logits(config["vocab_size"], tied, scale=scale, name="logits", dtype=dtype)


def _options(config):
    """What all blocks have."""
    given = config["feed_forward_proj"]
    gate, _, name = given.rpartition("-")
    # In T5 1.1 "gelu" is its approximation.
    name = config["dense_act_fn"] or ("gelu_new" if given == "gated-gelu" else name)
    if name not in ACTIVATIONS or gate not in ("", "gated"):
        raise ValueError(
            f"'feed_forward_proj' of `{config.where}` must be an activation among "
            f"{sorted(ACTIVATIONS)}, or 'gated-' and one of these. Received: {given!r}"
        )
    gated = config["is_gated_act"]
    return {
        "num_heads": config["num_heads"],
        "key_dim": config["d_kv"],
        "activation": ACTIVATIONS[name],
        "gated": gate == "gated" if gated is None else gated,
        "score": "dot",
        "norm": "rms",
        "layer_norm_epsilon": config["layer_norm_epsilon"],
        "residual": "pre",
        "use_bias": False,
    }


def _blocks(config, count, options, dtype, decoder=False):
    table = positions.RelativeBias(
        config["relative_attention_num_buckets"],
        config["relative_attention_max_distance"],
        bidirectional=not decoder,
        name="relative_bias",
    )
    return [
        TransformerBlock(
            config["d_ff"],
            causal=decoder,
            cross_attention=decoder,
            position=table,
            name=f"block_{n}",
            dtype=dtype,
            **options,
        )
        for n in range(count)
    ]


def entries(model, prefix):
    """The tensors of a model."""
    if isinstance(model, Encoder):
        stacks = {"encoder": model}
    else:
        stacks = {"encoder": model.encoder, "decoder": model.decoder}
    found = [parts.plain("shared.weight", stacks["encoder"].embeddings.tokens.table)]
    for name, stack in stacks.items():
        for n, block in enumerate(stack.blocks):
            found += _block(f"{name}.block.{n}.layer", block)
        bias = f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found.append(parts.plain(bias, stack.blocks[0].attention.position.embeddings))
        found += parts.norm(f"{name}.final_layer_norm", stack.final_norm)
    return found + (parts.head("lm_head", model.decoder) if "decoder" in stacks else [])


def _block(name, block):
    found = _attention(f"{name}.0.SelfAttention", block.attention)
    found += parts.norm(f"{name}.0.layer_norm", block.attention_norm)
    last = 1
    if block.cross_attention:
        found += _attention(f"{name}.1.EncDecAttention", block.cross_attention_layer)
        found += parts.norm(f"{name}.1.layer_norm", block.cross_attention_norm)
        last = 2
    found += parts.norm(f"{name}.{last}.layer_norm", block.feed_forward_norm)
    name = f"{name}.{last}.DenseReluDense"
    if block.gated:
        return found + parts.gated(name, block.feed_forward, ("wi_0", "wi_1", "wo"))
    return found + sequences.feed_forward(f"{name}.wi", f"{name}.wo", block.feed_forward)


def _attention(name, layer):
    return sequences.projections([f"{name}.{x}" for x in ("q", "k", "v", "o")], layer)
