"""Encoder–decoders of BART's kind: BART, mBART, Marian and Pegasus, and Whisper's.

They have norms and positions in other places. Whisper's encoder is of spectrograms: its input is
(B, frames, mel bands), the frames before the bands: transposed beside `transformers`.
"""

import functools

import keras

from keras_attention.convert.huggingface import buffers, entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.layers.embeddings.position_embedding import SinCosPositionEmbedding
from keras_attention.models import Decoder, Embeddings, Encoder, EncoderDecoder, Logits

# The first rows of a table of positions, which no position uses.
_FIRST = 2
# Fields of encoder and decoder.
_SIDES = {
    **fields.COMMON,
    **fields.needs("vocab_size encoder_ffn_dim"),
    **fields.needs("decoder_layers decoder_attention_heads decoder_ffn_dim"),
    **fields.renamed(
        hidden_size="d_model",
        num_hidden_layers="encoder_layers",
        num_attention_heads="encoder_attention_heads",
    ),
    "activation_function": fields.activation("gelu"),
    **fields.fixed(tie_word_embeddings=True),
}
_BART = {
    **_SIDES,
    **fields.needs("max_position_embeddings"),
    **fields.defaults(scale_embedding=False),
    # These follow from the architecture: `transformers` does not read them.
    "normalize_embedding": fields.only(True, None),
    "extra_pos_embeddings": fields.only(_FIRST, None),
    **fields.off("normalize_before add_final_layer_norm static_position_embeddings"),
    **fields.off("add_bias_logits do_blenderbot_90_layernorm"),
}
_PRE = fields.each("normalize_before add_final_layer_norm", fields.only(True, None))
_SINES = {
    "normalize_embedding": fields.only(False, None),
    "static_position_embeddings": fields.only(True, None),
    **fields.ignored("positions are computed", "max_position_embeddings extra_pos_embeddings"),
}


def _pair(config, logits, residual, encoder, decoder):
    """The `EncoderDecoder` of both embeddings; sides end with a norm if the residual needs one."""

    def stack(side, embeddings, **of_decoder):
        options = stacks.block(
            config,
            intermediate_dim=config[f"{side}_ffn_dim"],
            num_heads=config[f"{side}_attention_heads"],
            residual=residual,
            **of_decoder,
        )
        norm = None if residual == "post" else stacks.layer_norm(1e-5, "final_norm")
        blocks = stacks.blocks(config, lambda n: options, f"{side}_layers")
        return {"blocks": blocks, "embeddings": embeddings, "final_norm": norm, "name": side}

    given = stack("decoder", decoder, causal=True, cross_attention=True)
    return EncoderDecoder(Encoder(**stack("encoder", encoder)), Decoder(**given, logits=logits))


def _text(config, residual="post", sines=False):
    heads = ["ForConditionalGeneration", "MTModel"]
    has_head = stacks.has_head(config, "Bart MBart Marian Pegasus", heads)
    if config.get("decoder_vocab_size") is not None:
        config.require("decoder_vocab_size", config["vocab_size"], None)
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
    return _pair(config, logits, residual, embeddings(), embeddings())


def _whisper(config):
    has_head = stacks.has_head(config, "Whisper", ["ForConditionalGeneration"])
    dim, options = config["d_model"], {"activation": "gelu", "data_format": "channels_last"}
    # Of both convolutions the second halves the number of frames.
    layers = [
        keras.layers.Conv1D(dim, 3, padding="same", name="conv1", **options),
        # Keras's own padding would be on the right alone.
        keras.layers.ZeroPadding1D(1, data_format="channels_last", name="padding"),
        keras.layers.Conv1D(dim, 3, strides=2, name="conv2", **options),
    ]
    sound = Embeddings(
        keras.Sequential(layers, name="tokens"),
        stacks.positions(config["max_source_positions"]),
        name="embeddings",
    )
    table = stacks.positions(config["max_target_positions"])
    text = stacks.embeddings(config, positions=table)
    logits = Logits(config["vocab_size"], name="logits") if has_head else None
    return _pair(config, logits, "pre", sound, text)


def _names(first, key=lambda path: path):
    """The tensors of both sides, whose first position has the row `first`.

    `key` is from the path of the projection of keys to what it has in files.
    """

    def attention(name, layer):
        table = entries.attention(f"{name}. q_proj k_proj v_proj out_proj", layer)
        return {**table, f"{name}.k_proj": key(f"{layer}.key_dense")}

    block = {
        **entries.norms("self_attn_layer_norm final_layer_norm"),
        **attention("self_attn", "attention"),
        **entries.network("fc1 fc2"),
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


def _like_bart(fields, **options):
    """The `Architecture` of a pair of texts; `options` are as of `_text`."""
    return Architecture(
        fields,
        functools.partial(_text, **options),
        {"shared.weight": "encoder.embeddings.tokens.table", **_names(_FIRST)},
        prefix="model.",
        head={"final_logits_bias": entries.axes("decoder.logits.bias", 2)},
        unread={
            **buffers.VERSION,
            # Others have them among the tensors of the model.
            r"(encoder|decoder)\.embed_positions\.weight": "of models where they are computed",
        },
        same={"shared.weight": [r"(encoder|decoder)\.embed_tokens\.weight", r"lm_head\.weight"]},
        optional=("final_logits_bias",),
        input_shape=lambda config: [(None, None), (None, None)],
    )


_MARIAN = {
    **_BART,
    **_SINES,
    **fields.fixed(share_encoder_decoder_embeddings=True),
    **fields.nullable(decoder_vocab_size=None),
}
_WHISPER = {
    **_SIDES,
    **fields.needs("num_mel_bins max_source_positions max_target_positions"),
    "num_key_value_heads": fields.same_as("encoder_attention_heads"),
    **fields.fixed(scale_embedding=False),
    **fields.ignored("of a classifier", "classifier_proj_size use_weighted_layer_sum"),
    **fields.ignored("of the times of words, and of texts that are longer", "median_filter_width"),
    **fields.ignored("an older name of `max_target_positions`", "max_position_embeddings"),
}
ARCHITECTURES = {
    "bart": _like_bart(_BART),
    "mbart": _like_bart({**_BART, **_PRE}, residual="pre"),
    "marian": _like_bart(_MARIAN, sines=True),
    "pegasus": _like_bart({**_BART, **_PRE, **_SINES}, residual="pre", sines=True),
    "whisper": Architecture(
        _WHISPER,
        _whisper,
        {
            "encoder.conv1": entries.convolution("encoder.embeddings.tokens.layers.0"),
            "encoder.conv2": entries.convolution("encoder.embeddings.tokens.layers.2"),
            "decoder.embed_tokens.weight": "decoder.embeddings.tokens.table",
            # A bias of keys changes no weight of a softmax.
            **_names(0, key=entries.without_bias),
        },
        prefix="model.",
        unread=buffers.VERSION,
        same={"decoder.embed_tokens.weight": [r"proj_out\.weight"]},
        input_shape=lambda config: [(None, None, config["num_mel_bins"]), (None, None)],
    ),
}
