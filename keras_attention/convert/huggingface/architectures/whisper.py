"""Whisper: an encoder of spectrograms and a decoder of text.

Its input is (B, frames, mel bands), the frames before the bands: transposed beside `transformers`.
"""

import keras

from keras_attention.convert.huggingface import parts, sequences
from keras_attention.convert.huggingface.architectures import bart
from keras_attention.convert.huggingface.tensors import convolution
from keras_attention.layers.position_embedding import LearnedPositionEmbedding
from keras_attention.models import Decoder, Embeddings, Encoder, EncoderDecoder, Logits

MODEL_TYPES = ("whisper",)
PREFIX = "model."

unused = sequences.matching(r"proj_out\.weight")


def model(config, dtype):
    """The `EncoderDecoder` of a configuration."""
    has_head = sequences.has_head(config, ["WhisperModel"], "WhisperForConditionalGeneration")
    config.ignore("num_mel_bins")  # Of the input.
    config.require("scale_embedding", False, default=False)
    config.require("tie_word_embeddings", True, default=True)
    # The rest is of training, of classifiers, and of the times of words.
    config.ignore(
        *("is_encoder_decoder", "num_hidden_layers", "classifier_proj_size"),
        *("use_weighted_layer_sum", "apply_spec_augment", "mask_time_prob", "mask_time_length"),
        *("mask_time_min_masks", "mask_feature_prob", "mask_feature_length"),
        *("mask_feature_min_masks", "median_filter_width", "forced_decoder_ids"),
    )
    bart.ignore_dropout(config)
    dim, vocabulary = config["d_model"], config["vocab_size"]
    tokens = sequences.tokens(vocabulary, dim, dtype)
    encoder = Encoder(
        bart.blocks(config, "encoder", "pre", dtype),
        Embeddings(
            _front(dim, dtype),
            _positions(config["max_source_positions"], dtype),
            name="embeddings",
            dtype=dtype,
        ),
        sequences.layer_norm(1e-5, dtype, "final_norm"),
        name="encoder",
        dtype=dtype,
    )
    logits = Logits(vocabulary, name="logits", dtype=dtype) if has_head else None
    decoder = Decoder(
        bart.blocks(config, "decoder", "pre", dtype),
        Embeddings(
            tokens,
            _positions(config["max_target_positions"], dtype),
            name="embeddings",
            dtype=dtype,
        ),
        sequences.layer_norm(1e-5, dtype, "final_norm"),
        logits,
        name="decoder",
        dtype=dtype,
    )
    return EncoderDecoder(encoder, decoder, dtype=dtype)


def input_shape(config):
    """The shapes of the spectrogram and of the text."""
    return [(None, None, config["num_mel_bins"]), (None, None)]


def _front(dim, dtype):
    """Two convolutions, of which the second halves the number of frames."""
    options = {"activation": "gelu", "data_format": "channels_last", "dtype": dtype}
    layers = [
        keras.layers.Conv1D(dim, 3, padding="same", name="conv1", **options),
        # Keras's own padding would be on the right alone.
        keras.layers.ZeroPadding1D(1, data_format="channels_last", name="padding", dtype=dtype),
        keras.layers.Conv1D(dim, 3, strides=2, name="conv2", **options),
    ]
    return keras.Sequential(layers, name="tokens")


def _positions(length, dtype):
    return LearnedPositionEmbedding(length, name="positions", dtype=dtype)


def entries(model, prefix):
    """The tensors of a model."""
    tokens = model.decoder.embeddings.tokens
    found = [parts.plain(f"{prefix}decoder.embed_tokens.weight", tokens.table)]
    first, _, second = model.encoder.embeddings.tokens.layers
    found += convolution(f"{prefix}encoder.conv1", first)
    found += convolution(f"{prefix}encoder.conv2", second)
    for side in ("encoder", "decoder"):
        stack, name = getattr(model, side), f"{prefix}{side}"
        table = stack.embeddings.positions.embeddings
        found.append(parts.plain(f"{name}.embed_positions.weight", table))
        found += bart.block_entries(stack, name, key_bias=False)
        found += parts.norm(f"{name}.layer_norm", stack.final_norm)
    return found
