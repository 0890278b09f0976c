"""`AttentionRNN`: a recurrent layer that takes the memory it attends to in its call."""

from typing import Any

import keras
from keras import ops

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.core import keras_private
from keras_attention.core.hints import Tensor, Tensors
from keras_attention.layers.recurrent import wrapped_cell
from keras_attention.layers.recurrent.attention_cell import AttentionCell
from keras_attention.sequences import inputs, masks, shapes


class AttentionRNN(saving.ConfigurableLayer, keras.layers.RNN):
    r"""`keras.layers.RNN` of an `AttentionCell`, which takes the memory in its call.

    It computes what `keras.layers.RNN(cell)` does with `cell.initial_state(memory)`: the keys and
    values of the memory are projected once, before the first step. Masks that the sequence and the
    memory carry are applied.

    Args:
        cell: an `AttentionCell`.
        return_sequences, return_state, go_backwards, unroll, zero_output_for_mask: as in
            `keras.layers.RNN`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        sequences: (B, T, D), what the cell reads.
        memory: (B, S, D'), what it attends to, such as the outputs of an encoder.
        initial_state: `states` of `AttentionCell.initial_state`.
        mask: boolean (B, T), True = a real token; combined with that of `sequences`. A masked step
            repeats output and states, and does not count as a position.
        memory_mask: boolean (B, S); combined with that of `memory`.
        training: whether to apply dropout.

    Returns:
        (B, T, features), or (B, features) of the last step, carrying the mask of the sequence.
        If the cell has `return_attention_scores=True`, then the weights, (B, H, T, S) or (B, H, S);
        a masked step repeats those before it. With `return_state=True`, then a list of the states,
        of which the step number and those of an alignment are never in half precision. The loss of
        a `scores_regularizer` of the attention is added, the steps being the queries.

    Raises:
        ValueError, TypeError: `cell` is no `AttentionCell`, `stateful` is True, or batch sizes
            differ.

    >>> import keras
    >>> from keras_attention import AttentionCell, AttentionRNN
    >>> memory, x = keras.random.normal((2, 7, 16)), keras.random.normal((2, 5, 8))
    >>> cell = AttentionCell(keras.layers.GRUCell(16), "dot", mode="luong", attention_dim=12)
    >>> AttentionRNN(cell, return_sequences=True)(x, memory, initial_state=memory[:, -1]).shape
    (2, 5, 12)
    """

    _unrounded = ("initial_state",)
    _read_by_keras = ("dtype", "cell")
    _masks = "`mask` (B, T) and `memory_mask` (B, S) for padding"

    def __init__(
        self,
        cell: AttentionCell,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        unroll: bool = False,
        zero_output_for_mask: bool = False,
        **kwargs: Any,
    ):
        cell = saving.deserialize(cell)
        if not isinstance(cell, AttentionCell):
            raise TypeError(
                "`cell` must be an AttentionCell. "
                f"Received: cell={cell!r} (of type {type(cell).__name__})"
            )
        if kwargs.pop("stateful", False):
            raise ValueError(
                "An AttentionRNN keeps no states between calls: pass those that a call with "
                "`return_state=True` returned as `initial_state`. Received: stateful=True"
            )
        names = "return_sequences", "return_state", "go_backwards", "unroll", "zero_output_for_mask"
        given = locals()
        flags = {name: shapes.check_flag(name, given[name]) for name in names}
        super().__init__(cell=cell, **flags, **kwargs)

    def get_config(self):
        config = super().get_config()
        # An argument of `RNN` that is refused here.
        del config["stateful"]
        return config

    def build(self, sequences_shape, memory_shape=None, initial_state_shape=None):
        if memory_shape is None:
            raise ValueError(
                "An AttentionRNN attends to a memory: call `rnn(sequences, memory)`. Layers around "
                "it pass none: give `keras.layers.Bidirectional` a `keras.layers.RNN(cell)`, whose "
                "memory is part of its initial state. Received: "
                f"sequences.shape={tuple(sequences_shape)}, no memory"
            )
        self.cell.build_attention(memory_shape)
        super().build(sequences_shape)

    def call(
        self,
        sequences: Tensor,
        memory: Tensor,
        initial_state: Tensors | None = None,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        training: bool = False,
    ) -> Tensors:
        mask = masks.padding(sequences, mask, "sequences")
        sequences = masks.clear(sequences, mask)
        if self.go_backwards:
            # Here, not in Keras's loop, which on PyTorch turns no mask when unrolled.
            sequences, mask = ops.flip(sequences, axis=1), self._turned(mask)
        cell, regularizer = self.cell, self.cell.attention.scores_regularizer
        with_scores = cell.return_attention_scores or regularizer is not None
        given = cell.checked(memory, initial_state, memory_mask)
        constants, states = cell.prepare(*given, training=training)
        count, start, features = len(states), states[-1], states[0].shape[-1]
        if with_scores and not cell.return_attention_scores:
            # A masked step repeats its output, for which the loop of JAX reads the first state.
            batch, length = ops.shape(constants[2])
            zeros = ops.zeros((batch, cell.attention.num_heads * length), states[0].dtype)
            states = [ops.concatenate([states[0], zeros], axis=-1), *states[1:]]

        options = {"training": training, "return_attention_scores": with_scores}

        def step(inputs, states):
            # The constants are no states of the loop, which would copy, mask and return them.
            [(before, *states)] = states
            states = [[before[:, :features], *states, *constants]]
            output, [states] = cell(inputs, states, **options)
            return output, [[output, *states[1:count]]]

        # Keras's loop would read the first step.
        no_steps = backend.known_size(sequences.shape[1]) == 0
        try:
            if no_steps:
                last, outputs, states = states[0], ops.expand_dims(states[0], 1)[:, :0], [states]
            else:
                last, outputs, states = keras_private.recurrent_loop(
                    step,
                    sequences,
                    [states],
                    mask=mask,
                    unroll=self.unroll,
                    input_length=sequences.shape[1],
                    zero_output_for_mask=self.zero_output_for_mask,
                    return_all_outputs=self.return_sequences or regularizer is not None,
                )
        finally:
            wrapped_cell.reset_dropout(cell.cell)
        if regularizer is not None and not no_steps:
            self._add_loss(regularizer, outputs, start, mask, constants[2])
        [(before, *states)] = states
        states = list(map(ops.cast, [before[:, :features], *states], cell.state_dtypes()))
        output, scores = outputs if self.return_sequences else last, []
        output = ops.cast(output, self.compute_dtype)
        if with_scores:
            output, *scores = cell.separated(output)
            scores = scores if cell.return_attention_scores else []
        if self.return_sequences:
            output = masks.carry(output, mask)
        found = (output, *scores, *[states] * self.return_state)
        return found if len(found) > 1 else output

    def _add_loss(self, regularizer, outputs, start, mask, memory_mask):
        """Adds the loss of the alignments after the outputs (B, T, …), whose queries are steps."""
        _, weights = self.cell.separated(outputs)
        weights = ops.cast(weights, shapes.accumulation_dtype(weights))
        if mask is None:
            mask = ops.ones_like(outputs[:, :, 0], dtype="bool")
        seen = mask[:, None, :, None] & memory_mask[:, None, None]
        pattern = self.cell.attention.whole_pattern()
        if pattern is not None:
            # Masked steps have no position of their own.
            steps = start + ops.cumsum(ops.cast(mask, "int32"), axis=1) - 1
            keys = ops.arange(ops.shape(memory_mask)[1], dtype="int32")
            seen = seen & pattern(steps, keys)[:, None]
        weights = ops.where(mask[:, None, :, None], weights, ops.zeros_like(weights))
        self.add_loss(regularizer(weights, seen))

    def _turned(self, mask):
        """The mask of outputs, which are in the order of steps."""
        return ops.flip(mask, axis=1) if self.go_backwards and mask is not None else mask

    def compute_mask(self, sequences, previous_mask=None):
        return self._turned(previous_mask) if self.return_sequences else None

    def compute_output_shape(self, sequences_shape, memory_shape, initial_state_shape=None):
        batch, steps = sequences_shape[:2]
        steps = (steps,) if self.return_sequences else ()
        found: list = [(batch, *steps, self.cell.output_features(memory_shape))]
        if self.cell.return_attention_scores:
            found.append((batch, self.cell.attention.num_heads, *steps, memory_shape[1]))
        if self.return_state:
            found.append([(batch, size) for size in self.cell.loop_sizes(memory_shape)])
        return tuple(found) if len(found) > 1 else found[0]

    def compute_output_spec(self, *args, **kwargs):
        given = inputs.arguments(self.call, *args, **kwargs)
        masks.padding(given.sequences, given.mask, "sequences")
        masks.padding(given.memory, given.memory_mask, "memory", "memory_mask")
        found = self.compute_output_shape(given.sequences.shape, given.memory.shape)

        def specs(sizes):
            if isinstance(sizes, list):
                return list(map(keras.KerasTensor, sizes, self.cell.state_dtypes()))
            return keras.KerasTensor(sizes, self.compute_dtype)

        one = not (self.return_state or self.cell.return_attention_scores)
        return specs(found) if one else tuple(map(specs, found))
