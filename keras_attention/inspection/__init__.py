"""Inspection of attention: where weights lead, what they change, and models without some heads."""

from keras_attention.inspection.gradients import attention_gradients
from keras_attention.inspection.heads import ablate_heads, prune_heads
from keras_attention.inspection.measures import (
    attention_distance,
    attention_entropy,
    attention_flow,
    attention_rollout,
    head_importance,
)

__all__ = [
    "ablate_heads",
    "attention_distance",
    "attention_entropy",
    "attention_flow",
    "attention_gradients",
    "attention_rollout",
    "head_importance",
    "prune_heads",
]
