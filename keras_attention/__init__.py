"""Attention for Keras 3: one pipeline of slots for every mechanism, on TensorFlow, JAX, PyTorch."""

from keras_attention import (
    activations,
    alignments,
    convert,
    distribution,
    feature_maps,
    generation,
    inspection,
    losses,
    normalizations,
    ops,
    patterns,
    positions,
    regularizers,
    schedules,
    scores,
    visualization,
)
from keras_attention.core import former_modules as _former_modules  # noqa: F401
from keras_attention.layers.attention import Attention
from keras_attention.layers.blocks.feed_forward import FeedForward, MixtureOfExperts
from keras_attention.layers.blocks.norms import HeadNorm, LayerScale, RMSNorm
from keras_attention.layers.blocks.transformer_block import TransformerBlock
from keras_attention.layers.differential_attention import DifferentialAttention
from keras_attention.layers.embeddings.grid_embedding import (
    LearnedGridEmbedding,
    SinCosGridEmbedding,
)
from keras_attention.layers.embeddings.patches import PatchEmbedding, PatchMerging
from keras_attention.layers.embeddings.position_embedding import (
    LearnedPositionEmbedding,
    SinCosPositionEmbedding,
)
from keras_attention.layers.embeddings.scaled_embedding import ScaledEmbedding
from keras_attention.layers.latent_attention import MultiHeadLatentAttention
from keras_attention.layers.linear_time.gated_states import (
    GatedDeltaNet,
    GatedLinearAttention,
    Retention,
)
from keras_attention.layers.linear_time.linear_attention import LinearAttention
from keras_attention.layers.low_rank_attention import LinformerAttention, NystromAttention
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.layers.pooling import AttentionPooling, ClassToken, FeedForwardAttention
from keras_attention.layers.presets import (
    AtrousSelfAttention,
    HardAttention,
    LocalAttention,
    LocalSelfAttention,
    ReinforceLoss,
    RelativePositionAttention,
    SelfAttention,
    SparseSelfAttention,
)
from keras_attention.layers.recurrent.attention_cell import AttentionCell
from keras_attention.layers.recurrent.attention_rnn import AttentionRNN
from keras_attention.layers.recurrent.pointers import PointerGenerator, PointerHead
from keras_attention.layers.sets import InducedSetAttentionBlock, LearnedQueries, SlotAttention
from keras_attention.layers.sparse.longformer_attention import LongformerAttention
from keras_attention.layers.sparse.native_sparse_attention import NativeSparseAttention
from keras_attention.lora import enable_lora
from keras_attention.mask_flow import check_masks
from keras_attention.models import Decoder, Embeddings, Encoder, EncoderDecoder, Logits
from keras_attention.version import __version__

__all__ = [
    "AtrousSelfAttention",
    "Attention",
    "AttentionCell",
    "AttentionPooling",
    "AttentionRNN",
    "ClassToken",
    "Decoder",
    "DifferentialAttention",
    "Embeddings",
    "Encoder",
    "EncoderDecoder",
    "FeedForward",
    "FeedForwardAttention",
    "GatedDeltaNet",
    "GatedLinearAttention",
    "HardAttention",
    "HeadNorm",
    "InducedSetAttentionBlock",
    "LayerScale",
    "LearnedGridEmbedding",
    "LearnedPositionEmbedding",
    "LearnedQueries",
    "LinearAttention",
    "LinformerAttention",
    "LocalAttention",
    "LocalSelfAttention",
    "Logits",
    "LongformerAttention",
    "MixtureOfExperts",
    "MultiHeadAttention",
    "MultiHeadLatentAttention",
    "NativeSparseAttention",
    "NystromAttention",
    "PatchEmbedding",
    "PatchMerging",
    "PointerGenerator",
    "PointerHead",
    "RMSNorm",
    "ReinforceLoss",
    "RelativePositionAttention",
    "Retention",
    "ScaledEmbedding",
    "SelfAttention",
    "SinCosGridEmbedding",
    "SinCosPositionEmbedding",
    "SlotAttention",
    "SparseSelfAttention",
    "TransformerBlock",
    "__version__",
    "activations",
    "alignments",
    "check_masks",
    "convert",
    "distribution",
    "enable_lora",
    "feature_maps",
    "generation",
    "inspection",
    "losses",
    "normalizations",
    "ops",
    "patterns",
    "positions",
    "regularizers",
    "schedules",
    "scores",
    "visualization",
]
