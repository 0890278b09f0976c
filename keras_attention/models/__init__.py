"""Stacks of Transformer blocks with their embeddings and logits."""

from keras_attention.models.decoder import Decoder
from keras_attention.models.embeddings import Embeddings
from keras_attention.models.encoder import Encoder
from keras_attention.models.encoder_decoder import EncoderDecoder
from keras_attention.models.logits import Logits

__all__ = ["Decoder", "Embeddings", "Encoder", "EncoderDecoder", "Logits"]
