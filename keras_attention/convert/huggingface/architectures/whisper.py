"""Whisper: an encoder of spectrograms and a decoder of text.

Its input is (B, frames, mel bands), the frames before the bands: transposed beside `transformers`.
"""

import keras

from keras_attention.convert.huggingface import buffers, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.architectures import bart
from keras_attention.convert.huggingface.entries import convolution, without_bias
from keras_attention.convert.huggingface.fields import ignored, needs, only, same_as
from keras_attention.models import Embeddings, Logits

FIELDS = {
    **bart.SIDES,
    **needs("num_mel_bins max_source_positions max_target_positions"),
    "num_key_value_heads": same_as("encoder_attention_heads"),
    "scale_embedding": only(False),
    **ignored(
        "of training",
        """
        apply_spec_augment mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob
        mask_feature_length mask_feature_min_masks
        """,
    ),
    **ignored("of a classifier, which is not read", "classifier_proj_size use_weighted_layer_sum"),
    **ignored("of the times of words, and of texts that are longer", "median_filter_width"),
    **ignored("an older name of `max_target_positions`", "max_position_embeddings"),
}


def _make(config):
    has_head = stacks.has_head(config, ["WhisperModel"], "WhisperForConditionalGeneration")
    sound = Embeddings(
        _front(config["d_model"]),
        stacks.positions(config["max_source_positions"]),
        name="embeddings",
    )
    table = stacks.positions(config["max_target_positions"])
    text = stacks.embeddings(config, positions=table)
    logits = Logits(config["vocab_size"], name="logits") if has_head else None
    return bart.pair(config, logits, "pre", encoder=sound, decoder=text)


def _front(dim):
    """Two convolutions, of which the second halves the number of frames."""
    options = {"activation": "gelu", "data_format": "channels_last"}
    layers = [
        keras.layers.Conv1D(dim, 3, padding="same", name="conv1", **options),
        # Keras's own padding would be on the right alone.
        keras.layers.ZeroPadding1D(1, data_format="channels_last", name="padding"),
        keras.layers.Conv1D(dim, 3, strides=2, name="conv2", **options),
    ]
    return keras.Sequential(layers, name="tokens")


def _input_shape(config):
    """The shapes of the spectrogram and of the text."""
    return [(None, None, config["num_mel_bins"]), (None, None)]


ARCHITECTURES = {
    "whisper": Architecture(
        FIELDS,
        _make,
        {
            "encoder.conv1": convolution("encoder.embeddings.tokens.layers.0"),
            "encoder.conv2": convolution("encoder.embeddings.tokens.layers.2"),
            "decoder.embed_tokens.weight": "decoder.embeddings.tokens.table",
            # A bias of keys changes no weight of a softmax.
            **bart.names(0, key=without_bias),
        },
        prefix="model.",
        unread=buffers.VERSION,
        same={"decoder.embed_tokens.weight": [r"proj_out\.weight"]},
        input_shape=_input_shape,
    )
}
