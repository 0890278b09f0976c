"""Whisper: an encoder of spectrograms and a decoder of text.

Its input is (B, frames, mel bands), the frames before the bands: transposed beside `transformers`.
"""

import keras

from keras_attention.convert.huggingface import buffers, parts, sequences
from keras_attention.convert.huggingface.architectures import bart
from keras_attention.convert.huggingface.fields import ignored, needed, only, same_as
from keras_attention.convert.huggingface.tensors import convolution
from keras_attention.layers.position_embedding import LearnedPositionEmbedding
from keras_attention.models import Decoder, Embeddings, Encoder, EncoderDecoder, Logits

PREFIX = "model."
FIELDS = {
    "whisper": {
        **bart.SIDES,
        "num_mel_bins": needed(),
        "max_source_positions": needed(),
        "max_target_positions": needed(),
        "num_key_value_heads": same_as("encoder_attention_heads"),
        "scale_embedding": only(False),
        **ignored(
            "of training",
            """
            apply_spec_augment mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob
            mask_feature_length mask_feature_min_masks
            """,
        ),
        **ignored("of a classifier, which is not read", "classifier_proj_size"),
        **ignored("of a classifier, which is not read", "use_weighted_layer_sum"),
        **ignored("of the times of words, and of texts that are longer", "median_filter_width"),
        **ignored("an older name of `max_target_positions`", "max_position_embeddings"),
    }
}

UNREAD = buffers.VERSION
SAME = {"decoder.embed_tokens.weight": [r"proj_out\.weight"]}


def model(config, dtype):
    """The `EncoderDecoder` of a configuration."""
    has_head = sequences.has_head(config, ["WhisperModel"], "WhisperForConditionalGeneration")
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
