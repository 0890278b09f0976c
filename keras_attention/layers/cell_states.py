"""From a memory to the states of a recurrent loop, and what happens before and after the loop.

`prepare` projects the keys and values of a memory once, and returns them apart from the states that
change in the loop. `AttentionRNN` has a loop of its own, which closes over the prepared memory: it
is neither copied, masked nor returned with the states, and nothing is stored on the cell.

Keras's `RNN` passes a cell only its input and its states. So the memory comes first in the
initial state, and is removed before the loop: `open` takes it out, prepares it, and leaves the
states that change. The cell holds the prepared memory, for this thread, until `close`. `RNN` has no
public hook there, but lets every `DropoutRNNCell` prepare its masks outside the loop, and passes it
the states.
"""

from __future__ import annotations

from typing import Any

import keras

from keras_attention import keras_private, masks, shapes
from keras_attention.backend import backend
from keras_attention.hints import Tensor, Tensors
from keras_attention.layers import cell_parts
from keras_attention.layers.start_states import StartStates

ops = keras.ops

NO_MEMORY = (
    "An AttentionCell attends to a memory, which it gets with its initial state: pass "
    "`initial_state=cell.initial_state(memory)` to `keras.layers.RNN(cell)`, or call the cell by "
    "hand with the states of `cell.start_states(memory)`. Received: {}"
)


class MemoryStates(keras_private.DropoutRNNCell):
    """The methods of `AttentionCell` that prepare a memory, and the states of its loop."""

    def initial_state(
        self, memory: Tensor, states: Tensors | None = None, mask: Tensor | None = None
    ) -> Tensors:
        """The `initial_state` of `keras.layers.RNN(cell)`.

        Args:
            memory: (B, S, D), the attended sequence, such as the outputs of an encoder.
            states: of the wrapped cell, as its own `RNN` would take them; or all states that an
                earlier call returned with `return_state=True`, to continue from, also with a
                memory of another length. None for the cell's own.
            mask: boolean (B, S), True = a real token; combined with the mask that the memory
                carries.

        Returns:
            One nested list, of tensors or of symbols.
        """
        memory, states, mask = self._checked(memory, states, mask)
        if mask is None:
            mask = ops.ones_like(memory[:, :, 0])
        return [[memory, ops.cast(mask, memory.dtype), *states]]

    def start_states(
        self, memory: Tensor, states: Tensors | None = None, mask: Tensor | None = None
    ) -> Tensors:
        """States for calling the cell directly: `output, states = cell(x_t, states)`.

        They contain the prepared memory, and the batch is the first axis of every tensor.
        Arguments are those of `initial_state`.
        """
        given = keras.tree.flatten((memory, states, mask))
        if any(isinstance(x, keras.KerasTensor) for x in given):
            return StartStates(self)(memory, states=states, mask=mask)
        memory, states, mask = self._checked(memory, states, mask)
        self._build_attention()
        prepared = self._prepare(memory, mask)
        if prepared.mask is None:
            prepared.mask = ops.ones(ops.shape(memory)[:2], dtype="bool")
        loop = self._loop_states(states, memory)
        return [[*loop, prepared.key, prepared.value, prepared.mask]]

    def start(
        self, memory: Tensor, states: Tensors | None = None, mask: Tensor | None = None
    ) -> Tensors:
        """The name of `start_states` in 0.1.0."""
        return self.start_states(memory, states, mask)

    def get_initial_state(self, batch_size=None):
        raise ValueError(
            NO_MEMORY.format("no initial state")
            + ". It needs one in each call, and `stateful=True` keeps none: to go on, pass "
            "`cell.initial_state(memory, states)` with the states that the call before returned "
            "with `return_state=True`"
        )

    def _checked(self, memory, states, mask):
        """Memory, flat states and mask of one call, whose sizes are then known to the cell."""
        if not isinstance(memory, keras.KerasTensor):
            carried = masks.implicit(memory)
            memory = masks.carry(ops.convert_to_tensor(memory), carried)
        shapes.check_rank("memory", memory, 3, "(batch, positions, features)")
        if memory.shape[-1] is None:
            raise ValueError(
                "`memory` must have a known number of features. "
                f"Received: memory.shape={tuple(memory.shape)}"
            )
        known = self._scratch.memory_shape
        if known is not None and self.attention.built:
            shapes.check_same("Features of memories", before=known[-1], now=memory.shape[-1])
        mask = masks.both(
            masks.boolean("mask", masks.implicit(memory)), masks.boolean("mask", mask)
        )
        if mask is not None:
            shapes.check_rank("mask", mask, 2, "(batch, positions)")
            shapes.check_same(
                "Lengths of memory and mask", memory=memory.shape[1], mask=mask.shape[1]
            )
        states = [] if states is None else keras.tree.flatten(states)
        count = self._state_count
        if len(states) not in (0, count, count + 2):
            raise ValueError(
                f"`states` must be the {count} of the wrapped cell, or the {count + 2} that an "
                f"earlier call returned. Received: {len(states)}"
            )
        for state in states:
            shapes.check_same("Batch sizes", memory=memory.shape[0], states=state.shape[0])
        # Without symbolic dimensions of JAX, which no file could store.
        self.expect_memory(size if isinstance(size, int) else None for size in memory.shape)
        return memory, states, mask

    def _loop_states(self, states, memory):
        """What changes in the loop: the previous output, the wrapped cell's states, the time."""
        batch = ops.shape(memory)[0]
        if not states:
            states = keras.tree.flatten(self._cell_start(batch))
        states = [ops.cast(state, self.compute_dtype) for state in states]
        # Lengths unknown in a graph are those that the model was built with.
        known = zip(memory.shape, self._scratch.memory_shape, strict=True)
        shape = tuple(m if n is None else n for n, m in known)
        size = self._whole_size(shape, backend.shape(memory)[1])
        if len(states) == self._state_count + 2:
            output, *states, time = states
            grown = isinstance(size, int) and output.shape[-1] != size
            if self.return_attention_scores and grown:
                # The alignments after the output are those of a memory of another length.
                features = self.output_features(shape)
                output = ops.pad(output[:, :features], ((0, 0), (0, size - features)))
            shapes.check_same("Features of the first state", cell=size, states=output.shape[-1])
            return [output, *states, ops.cast(ops.round(time), "int32")]
        output = ops.zeros((batch, size), self.compute_dtype)
        return [output, *states, ops.zeros((batch, 1), "int32")]

    def _cell_start(self, batch):
        if hasattr(self.cell, "get_initial_state"):
            return self.cell.get_initial_state(batch_size=batch)
        sizes = keras.tree.flatten(self.cell.state_size)
        return [ops.zeros((batch, size), self.compute_dtype) for size in sizes]

    def _prepare(self, memory, mask):
        """Keys and values of the memory, prepared for all steps."""
        memory = masks.clear(ops.cast(memory, self.attention.compute_dtype), mask)
        key = self.attention.split(memory, "key")
        if self._keys_can_be_prepared():
            with keras_private.uncast_variables():
                wide = shapes.accumulation_dtype(key)
                key = self.attention.score.prepare_key(ops.cast(key, wide))
        return cell_parts.Memory(key, self.attention.split(memory, "value"), mask)

    def _keys_can_be_prepared(self):
        """Whether prepared keys are the same for all steps."""
        score, position = self.attention.score, self.attention.position
        reads_keys = position is not None and (position.encodes or position.has_query_bias)
        return score.prepares_apart and not reads_keys

    # Around the loop

    def open(self, states):
        """The states of the loop, from the list of `initial_state` without the memory.

        States from which it has been taken already are returned as they are.
        """
        found = isinstance(states, list) and len(states) >= 2
        if not found or len(getattr(states[0], "shape", ())) != 3:
            if self.is_open():
                return states
            raise ValueError(NO_MEMORY.format("an initial state that does not begin with one"))
        memory, mask, *rest = states
        self._scratch.here.memory, states = self.prepare(memory, rest, ops.cast(mask, "bool"))
        return states

    def prepare(self, memory, states, mask):
        """All that a loop closes over, but the states, and those that it starts with.

        Keys, values, and dropout masks, of the wrapped cell too.
        """
        prepared = self._prepare(memory, mask)
        if self.attention.dropout:
            # One mask for all steps: a step cannot sample, since JAX traces it only once.
            noise = backend.dropout(
                ops.ones_like(prepared.value[..., :1]),
                self.attention.dropout,
                self.attention._dropout_layer.seed_generator,
            )
            prepared.dropped = prepared.value * noise
        states = self._loop_states(states, memory)
        inputs = ops.zeros((ops.shape(memory)[0], self._scratch.input_size), self.compute_dtype)
        cell_parts.prepare_dropout(self.cell, inputs, self._packed(states[1:-1]))
        return prepared, states

    def is_open(self):
        """Whether a memory is prepared for a loop."""
        return self._scratch.here.memory is not None

    def close(self):
        """Discards what `open` prepared."""
        self._scratch.here.memory = None
        cell_parts.reset_dropout(self.cell)

    # Called by `RNN` before its loop, and after it

    def get_dropout_mask(self, step_input):
        self._scratch.here.batch = step_input.shape[0]

    def get_recurrent_dropout_mask(self, states):
        # What a loop that failed has left behind.
        self._scratch.here.memory = None
        memory: Any = states[0] if isinstance(states, list) and states else None
        if len(getattr(memory, "shape", ())) == 3:
            shapes.check_same(
                "Batch sizes", sequences=self._scratch.here.batch, memory=memory.shape[0]
            )
        states[:] = self.open(states)

    def reset_dropout_mask(self):
        self.close()

    def reset_recurrent_dropout_mask(self):
        self.close()
