"""`AttentionCell.start_states` in functional models."""

from __future__ import annotations

from typing import Any

import keras

from keras_attention import saving
from keras_attention.hints import Tensor, Tensors


@saving.register
class StartStates(saving.ConfigurableLayer):
    """The operation of a functional model that `cell.start_states(memory)` of symbols adds.

    It has no weights but those of the cell, which the model has once, in its file too.
    """

    def __init__(self, cell: keras.layers.Layer, **kwargs: Any):
        super().__init__(**kwargs)
        self.cell = cell
        # It reads the memory's mask, and puts it among the states.
        self.supports_masking = True

    def compute_mask(self, memory, previous_mask=None):
        return None

    def build(self, memory_shape, states_shape=None, mask_shape=None):
        self.cell.build_attention(memory_shape)

    def call(
        self, memory: Tensor, states: Tensors | None = None, mask: Tensor | None = None
    ) -> Tensors:
        return self.cell.start_states(memory, states, mask)
