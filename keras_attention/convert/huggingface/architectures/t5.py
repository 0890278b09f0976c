"""T5, its version 1.1, and mT5: biases of distances that all layers share."""

import functools

from keras_attention import positions
from keras_attention.convert.huggingface import entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.fields import ACTIVATIONS, count, ignored, needs, read
from keras_attention.convert.huggingface.tensors import Checkpoint
from keras_attention.layers.rms_norm import RMSNorm
from keras_attention.models import Decoder, Encoder, EncoderDecoder, Logits

_STACK = {
    **fields.COMMON,
    **fields.renamed(
        hidden_size="d_model",
        head_dim="d_kv",
        num_hidden_layers="num_layers",
        num_attention_heads="num_heads",
    ),
    **needs("vocab_size d_ff"),
    "num_decoder_layers": count(None, int | None),
    "relative_attention_num_buckets": count(32),
    "relative_attention_max_distance": count(128),
    "layer_norm_epsilon": read(1e-6),
    # If missing, both follow from `feed_forward_proj`.
    "dense_act_fn": fields.activation(None),
    "is_gated_act": read(None, bool),
    **ignored("distances have no end", "n_positions"),
}
_ENCODERS = ("T5EncoderModel", "MT5EncoderModel")
_MODELS = ("T5Model", "MT5Model")
_HEADS = ("T5ForConditionalGeneration", "MT5ForConditionalGeneration")


def _make(config):
    has_head = stacks.has_head(config, _ENCODERS + _MODELS, *_HEADS)
    options, tokens = _options(config), stacks.table(config)

    def parts(count, decoder=False):
        table = positions.RelativeBias(
            config["relative_attention_num_buckets"],
            config["relative_attention_max_distance"],
            bidirectional=not decoder,
            name="relative_bias",
        )
        given = {**options, "causal": decoder, "cross_attention": decoder, "position": table}
        norm = RMSNorm(config["layer_norm_epsilon"], name="final_norm")
        blocks = stacks.blocks(count, lambda n: given)
        embeddings = stacks.embeddings(config, tokens=tokens)
        return {"blocks": blocks, "embeddings": embeddings, "final_norm": norm}

    encoder = Encoder(**parts(config["num_layers"]), name="encoder")
    if config.architecture in _ENCODERS:
        return encoder
    layers = config["num_decoder_layers"] or config["num_layers"]
    logits = _logits(config) if has_head else None
    return EncoderDecoder(encoder, Decoder(**parts(layers, True), logits=logits, name="decoder"))


def _options(config):
    """What all blocks have."""
    given = config["feed_forward_proj"]
    gate, _, name = given.rpartition("-")
    # In T5 1.1 "gelu" is its approximation.
    name = ACTIVATIONS.get("gelu_new" if given == "gated-gelu" else name)
    name = config["dense_act_fn"] or name
    if name is None or gate not in ("", "gated"):
        raise ValueError(
            f"'feed_forward_proj' of `{config.where}` must be an activation among "
            f"{sorted(ACTIVATIONS)}, or 'gated-' and one of these. Received: {given!r}"
        )
    gated = config["is_gated_act"]
    return {
        "intermediate_dim": config["d_ff"],
        "num_heads": config["num_heads"],
        "key_dim": config["d_kv"],
        "activation": name,
        "gated": gate == "gated" if gated is None else gated,
        "score": "dot",
        "norm": "rms",
        "layer_norm_epsilon": config["layer_norm_epsilon"],
        "residual": "pre",
        "use_bias": False,
    }


def _logits(config):
    # Version 1.1 is said to be untied. transformers 5 ties it all the same, unless its files have
    # a matrix of their own, and writes in another field that its output is not scaled.
    scaled = False
    if config.model_type == "t5":
        scaled = config["scale_decoder_outputs"]
        scaled = config["tie_word_embeddings"] is not False if scaled is None else scaled
    tied = config.folder is None or "lm_head.weight" not in Checkpoint(config.folder).names
    scale = config["d_model"] ** -0.5 if scaled else 1.0
    return Logits(config["vocab_size"], tied, scale=scale, name="logits")


def _input_shape(config):
    """The shape of the inputs: of one sequence for an encoder alone."""
    one = (None, None)
    return one if config.architecture in _ENCODERS else [one, one]


def _hidden(name, block):
    names = {"wi": "feed_forward.intermediate_dense"}
    if block.gated:
        names = {"wi_0": "feed_forward.gate_dense", "wi_1": "feed_forward.intermediate_dense"}
    return entries.of(names, block, name)


def _stack(last):
    """The tensors of a stack, the branch `last` of whose blocks is the feed-forward network."""
    block = {
        **entries.attention("layer.0.SelfAttention.", "q k v o"),
        "layer.0.layer_norm": "attention_norm",
        f"layer.{last}.layer_norm": "feed_forward_norm",
        f"layer.{last}.DenseReluDense.": _hidden,
        f"layer.{last}.DenseReluDense.wo": "feed_forward.output_dense",
    }
    if last == 2:
        names = "q k v o"
        block |= entries.attention("layer.1.EncDecAttention.", names, "cross_attention_layer")
        block |= {"layer.1.layer_norm": "cross_attention_norm"}
    distances = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return {
        "block": entries.blocks(block),
        distances: "blocks.0.attention.position.embeddings",
        "final_layer_norm": "final_norm",
    }


def _of_encoder(table):
    """The tensors of the encoder, which may be the whole model."""
    return lambda name, model: entries.of(table, getattr(model, "encoder", model), name)


_T5 = functools.partial(
    Architecture,
    make=_make,
    tensors={
        "shared": _of_encoder({".weight": "embeddings.tokens.table"}),
        "encoder.": _of_encoder(_stack(last=1)),
        "decoder": entries.within("decoder", _stack(last=2)),
        "lm_head": "decoder.logits.dense",
    },
    # A model is tied if its file has no matrix of the output.
    unsaid=("tied",),
    unread={
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight": (
            "of a cross-attention, which no code has read since 2020"
        ),
    },
    unread_of={kind: {r"decoder\..*": "of models with a decoder"} for kind in _ENCODERS},
    same={"shared.weight": [r"(encoder|decoder)\.embed_tokens\.weight"]},
    input_shape=_input_shape,
)
ARCHITECTURES = {
    "t5": _T5(
        {
            **_STACK,
            "feed_forward_proj": read("relu"),
            "tie_word_embeddings": read(None, bool | None),
            "scale_decoder_outputs": read(None, bool),
        }
    ),
    "mt5": _T5(
        {
            **_STACK,
            "feed_forward_proj": read("gated-gelu"),
            **ignored("as it is of T5 1.1, whatever they say", "tie_word_embeddings"),
            **ignored("not read for this model", "scale_decoder_outputs"),
        }
    ),
}
