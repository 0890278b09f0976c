"""Stacks of Transformer blocks with their embeddings and logits."""

from keras_attention.models.decoder import Decoder
from keras_attention.models.embeddings import Embeddings, Logits
from keras_attention.models.encoder import Encoder
from keras_attention.models.encoder_decoder import EncoderDecoder

__all__ = ["Decoder", "Embeddings", "Encoder", "EncoderDecoder", "Logits"]
