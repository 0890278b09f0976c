"""Attention for Keras 3: every mechanism one pipeline of slots, on TensorFlow, JAX and PyTorch."""

from keras_attention import normalizations, ops, patterns, positions, scores
from keras_attention.layers.attention import Attention
from keras_attention.layers.attention_pooling import AttentionPooling
from keras_attention.layers.feed_forward import FeedForward
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.layers.position_embedding import (
    LearnedPositionEmbedding,
    SinCosPositionEmbedding,
)
from keras_attention.layers.scaled_embedding import ScaledEmbedding
from keras_attention.layers.self_attention import SelfAttention
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.version import __version__

__all__ = [
    "Attention",
    "AttentionPooling",
    "FeedForward",
    "LearnedPositionEmbedding",
    "MultiHeadAttention",
    "ScaledEmbedding",
    "SelfAttention",
    "SinCosPositionEmbedding",
    "TransformerBlock",
    "__version__",
    "normalizations",
    "ops",
    "patterns",
    "positions",
    "scores",
]
