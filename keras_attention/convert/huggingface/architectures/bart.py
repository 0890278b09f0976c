"""BART, mBART, Marian and Pegasus: encoder–decoders with norms and positions in other places."""

import functools

from keras_attention.convert.huggingface import buffers, entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.fields import (
    count,
    ignored,
    needed,
    needs,
    off,
    only,
    read,
)
from keras_attention.layers.position_embedding import SinCosPositionEmbedding
from keras_attention.models import Decoder, Encoder, EncoderDecoder, Logits

# The first rows of a table of positions, which no position uses.
_FIRST = 2
# Fields of encoder and decoder, which Whisper shares.
SIDES = {
    **fields.COMMON,
    "vocab_size": needed(),
    **needs("encoder_ffn_dim decoder_layers decoder_attention_heads decoder_ffn_dim"),
    **fields.renamed(
        hidden_size="d_model",
        num_hidden_layers="encoder_layers",
        num_attention_heads="encoder_attention_heads",
    ),
    "activation_function": fields.activation("gelu"),
    "tie_word_embeddings": only(True),
}
_STACK = {
    **SIDES,
    "max_position_embeddings": needed(),
    "scale_embedding": read(False),
    # These follow from the architecture: `transformers` does not read them.
    "normalize_embedding": only(True, None),
    "extra_pos_embeddings": only(_FIRST, None),
    **off("normalize_before add_final_layer_norm add_bias_logits static_position_embeddings"),
    **off("do_blenderbot_90_layernorm"),
    **ignored(
        "of training",
        "save_step replacing_rate student_encoder_layers student_decoder_layers kobart_version",
    ),
}
_PRE = dict.fromkeys(("normalize_before", "add_final_layer_norm"), only(True, None))
_SINES = {
    "normalize_embedding": only(False, None),
    "static_position_embeddings": only(True, None),
    **ignored("positions are computed", "max_position_embeddings extra_pos_embeddings"),
}


def pair(config, logits, residual="post", **sides):
    """The `EncoderDecoder`; `sides` are the embeddings of each, and `logits` those of the decoder.

    With a residual that needs one, each side ends with a norm.
    """

    def stack(side):
        decoder = side == "decoder"
        options = {
            "intermediate_dim": config[f"{side}_ffn_dim"],
            "num_heads": config[f"{side}_attention_heads"],
            "activation": config["activation_function"],
            "residual": residual,
            "causal": decoder,
            "cross_attention": decoder,
        }
        norm = None if residual == "post" else stacks.layer_norm(1e-5, "final_norm")
        blocks = stacks.blocks(config[f"{side}_layers"], lambda n: options)
        return {"blocks": blocks, "embeddings": sides[side], "final_norm": norm}

    encoder = Encoder(**stack("encoder"), name="encoder")
    return EncoderDecoder(encoder, Decoder(**stack("decoder"), logits=logits, name="decoder"))


_MODELS = ("BartModel", "MBartModel", "MarianModel", "PegasusModel")
_HEADS = (
    "BartForConditionalGeneration",
    "MBartForConditionalGeneration",
    "MarianMTModel",
    "PegasusForConditionalGeneration",
)


def _make(config, residual, sines):
    has_head = stacks.has_head(config, _MODELS, *_HEADS)
    scale = config["d_model"] ** 0.5 if config["scale_embedding"] else 1
    tokens = stacks.table(config, scale=scale)

    def embeddings():
        if sines:
            positions, norm = SinCosPositionEmbedding(layout="half_split", name="positions"), None
        else:
            positions = stacks.positions(config["max_position_embeddings"])
            norm = stacks.layer_norm(1e-5)
        return stacks.embeddings(config, tokens=tokens, positions=positions, norm=norm)

    logits = Logits(config["vocab_size"], use_bias=True, name="logits") if has_head else None
    return pair(config, logits, residual, encoder=embeddings(), decoder=embeddings())


def _marian(config):
    config.require("decoder_vocab_size", config["vocab_size"], None)
    return _make(config, "post", sines=True)


def names(first, key=lambda path: path):
    """The tensors of both sides, whose first position has the row `first`.

    `key` makes of a path what there is of the projection of keys.
    """

    def attention(name, layer):
        return {
            f"{name}.q_proj": f"{layer}.query_dense",
            f"{name}.k_proj": key(f"{layer}.key_dense"),
            f"{name}.v_proj": f"{layer}.value_dense",
            f"{name}.out_proj": f"{layer}.output_dense",
        }

    block = {
        **attention("self_attn", "attention"),
        "self_attn_layer_norm": "attention_norm",
        "fc1": "feed_forward.intermediate_dense",
        "fc2": "feed_forward.output_dense",
        "final_layer_norm": "feed_forward_norm",
    }
    across = {
        **attention("encoder_attn", "cross_attention_layer"),
        "encoder_attn_layer_norm": "cross_attention_norm",
    }
    side = {
        "embed_positions.weight": entries.rows("embeddings.positions.embeddings", first),
        "layernorm_embedding": "embeddings.norm",
        "layer_norm": "final_norm",
    }
    return {
        "encoder": entries.within("encoder", {**side, "layers": entries.blocks(block)}),
        "decoder": entries.within("decoder", {**side, "layers": entries.blocks(block | across)}),
    }


def two_texts(config):
    """The shapes of the source and the target."""
    return [(None, None), (None, None)]


_BART = functools.partial(
    Architecture,
    tensors={"shared.weight": "encoder.embeddings.tokens.table", **names(_FIRST)},
    prefix="model.",
    head={"final_logits_bias": entries.axes("decoder.logits.bias", 2)},
    unread={
        **buffers.VERSION,
        # Others have them among the tensors of the model.
        r"(encoder|decoder)\.embed_positions\.weight": "of models where they are computed",
    },
    same={"shared.weight": [r"(encoder|decoder)\.embed_tokens\.weight", r"lm_head\.weight"]},
    optional=("final_logits_bias",),
    input_shape=two_texts,
)
ARCHITECTURES = {
    "bart": _BART(_STACK, functools.partial(_make, residual="post", sines=False)),
    "mbart": _BART({**_STACK, **_PRE}, functools.partial(_make, residual="pre", sines=False)),
    "marian": _BART(
        {
            **_STACK,
            **_SINES,
            "share_encoder_decoder_embeddings": only(True),
            "decoder_vocab_size": count(None, int | None),
        },
        _marian,
    ),
    "pegasus": _BART(
        {**_STACK, **_PRE, **_SINES}, functools.partial(_make, residual="pre", sines=True)
    ),
}
