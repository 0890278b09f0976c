"""`AttentionCell`: a recurrent cell that attends to a memory at each step.

Keras's `RNN` passes a cell only its input and its states. So the memory comes first in the
initial state, and is removed before the loop: `open` takes it out, projects its
keys and values once, and leaves the states that change. The loop then closes over the prepared
memory, which is neither copied, masked nor returned with the states, until `close`.

`AttentionRNN` calls the two around its loop. `keras.layers.RNN` itself has no public hook there,
but lets every `DropoutRNNCell` prepare its masks outside the loop, and passes it the states.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import keras

from keras_attention import keras_private, masks, saving, shapes
from keras_attention.backend import backend
from keras_attention.hints import Activation, Tensor, Tensors
from keras_attention.layers import cell_parts
from keras_attention.layers.attention import Attention
from keras_attention.scores import ScoreLike
from keras_attention.spec import AttentionSpec, Positions

ops = keras.ops

Mode = Literal["bahdanau", "luong"]
MODES = get_args(Mode)


@saving.register
class AttentionCell(saving.ConfigurableLayer, keras_private.DropoutRNNCell):
    r"""A recurrent cell, for `keras.layers.RNN`, that attends to a memory at each step.

    "bahdanau" attends before the step, with the previous state (Bahdanau et al. 2015,
    section 3.1 and appendix A.1.2):

        c_t = Σ_s softmax(score(h_{t-1}, m_s)) m_s,    h_t = cell([x_t; c_t], h_{t-1})

    "luong" attends after the step, with the new state, and feeds the result to the
    next step (Luong et al. 2015, equation 5 and section 3.3):

        h_t = cell([x_t; a_{t-1}], h_{t-1}),    c_t = Σ_s softmax(score(h_t, m_s)) m_s,
        a_t = tanh(W_c [c_t; h_t])

    The query of step t is at position t, counted from 0 without masked steps, so that
    `patterns.SlidingWindow(D, D)` is Luong's local-m. Dropout of the attention drops a position of
    the memory for a whole sequence, as Keras's cells drop a feature.

    Args:
        cell: the wrapped Keras cell: `SimpleRNNCell`, `GRUCell`, `LSTMCell`,
            `StackedRNNCells` of them, or a custom one. The query is its output; in "bahdanau",
            the first state of its last cell.
        attention: an `Attention`, or the score, or its name, of one without projections.
        mode: "bahdanau" or "luong".
        attention_dim: features of a_t, which is then the output in both modes; None for no W_c: the
            output is h_t in "bahdanau", and a_t = [c_t; h_t] in "luong".
        attention_activation: activation after W_c.
        input_feeding: whether "luong" feeds a_{t-1} to the cell; "bahdanau" always feeds c_t.
        output_context: whether the output is [c_t; h_t] instead of h_t.
        return_attention_scores: whether the alignments follow the features of the output;
            `split_outputs` separates them. The length of the memory must then be known.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments of `keras.layers.RNN(cell)`:
        sequences: (B, T, D), what the cell reads.
        initial_state: `cell.initial_state(memory, …)`.
        mask: boolean (B, T), True = a real token. Keras reads the mask that `sequences` carries
            only if no initial state is given: pass it.

    Returns:
        As `RNN`, with output features as above. With `return_state=True`, one
        list of states follows: the output of the last step, those of the wrapped cell, and the
        number of steps.

    Raises:
        ValueError, TypeError: an argument or a shape is not as described, or there is no memory.

    Example:

    >>> import keras
    >>> from keras_attention import AttentionCell
    >>> memory, x = keras.random.normal((2, 7, 16)), keras.random.normal((2, 5, 8))
    >>> cell = AttentionCell(keras.layers.GRUCell(16), "dot", mode="luong", attention_dim=12)
    >>> rnn = keras.layers.RNN(cell, return_sequences=True)
    >>> rnn(x, initial_state=cell.initial_state(memory, states=[memory[:, -1]])).shape
    (2, 5, 12)
    """

    def __init__(
        self,
        cell: Any,
        attention: Attention | ScoreLike,
        mode: Mode = "bahdanau",
        attention_dim: int | None = None,
        attention_activation: Activation = "tanh",
        input_feeding: bool = True,
        output_context: bool = False,
        return_attention_scores: bool = False,
        **kwargs: Any,
    ):
        shapes.check_choice("mode", mode, MODES)
        attention_dim = shapes.check_count("attention_dim", attention_dim, optional=True)
        input_feeding = shapes.check_flag("input_feeding", input_feeding)
        output_context = shapes.check_flag("output_context", output_context)
        if attention_dim is not None and output_context:
            raise ValueError(
                "`output_context` is for outputs h_t, and with `attention_dim` the output is "
                f"a_t. Received: output_context={output_context}, attention_dim={attention_dim}"
            )
        if mode == "bahdanau" and not input_feeding:
            raise ValueError(
                "`input_feeding=False` is for mode='luong': mode='bahdanau' feeds the context to "
                f"the cell. Received: input_feeding={input_feeding}"
            )
        # The wrapped cell and the attention cast their inputs, and prepared keys among the states
        # stay in float32.
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.cell = cell_parts.wrapped_cell(cell, AttentionCell)
        self.attention = cell_parts.attention_layer(attention, self.dtype_policy)
        self.mode = mode
        self.attention_dim = attention_dim
        self.attention_activation = keras.activations.get(attention_activation)
        self.input_feeding = input_feeding
        self.output_context = output_context
        self.return_attention_scores = shapes.check_flag(
            "return_attention_scores", return_attention_scores
        )
        # Required by `RNN` of a `DropoutRNNCell`; the parts have their own rates.
        self.dropout = self.recurrent_dropout = 0.0
        self._scratch = cell_parts.Scratch()

    # Sizes

    @property
    def state_size(self) -> list[list[int | None]]:
        """One list: the previous output, the states of the wrapped cell, the number of steps.

        `RNN` copies it in its constructor. So the first is None if it depends on the memory.
        """
        output = None if self.return_attention_scores else self.output_features(_UNKNOWN)
        return [[output, *keras.tree.flatten(self.cell.state_size), 1]]

    @property
    def output_size(self) -> int:
        """Features of the output, with the alignments; those of the last memory, if it matters."""
        return self._whole_size(self._scratch.memory_shape or _UNKNOWN)

    def expect_memory(self, shape):
        """Receives the shape (B, S, D) of the memory, before weights are created."""
        self._scratch.memory_shape = tuple(shape)

    def loop_sizes(self, memory_shape):
        """Features of each state of the loop: the output, the cell's own, the number of steps."""
        sizes = keras.tree.flatten(self.cell.state_size)
        return [self._whole_size(memory_shape), *sizes, 1]

    def _whole_size(self, shape):
        """Features of the output for a memory of this shape, with the alignments."""
        size = self.output_features(shape)
        if self.return_attention_scores and size is not None:
            size = None if shape[1] is None else size + self.attention.num_heads * shape[1]
        if size is None:
            raise ValueError(
                "The size of the output depends on a memory (batch, positions, features) whose "
                "positions are known, for `return_attention_scores=True`, and whose features are. "
                f"Received: memory.shape={shape}"
            )
        return size

    def output_features(self, memory_shape):
        """Features of the output without alignments; None where they depend on the memory."""
        if self.attention_dim is not None:
            return self.attention_dim
        if self.mode == "bahdanau" and not self.output_context:
            return self._hidden_size()
        context = self._context_size(memory_shape)
        return None if context is None else context + self._hidden_size()

    def _hidden_size(self):
        """Features of h_t, the output of the wrapped cell."""
        size = getattr(self.cell, "output_size", None)
        return keras.tree.flatten(self.cell.state_size)[0] if size is None else size

    def _query_size(self):
        if self.mode == "luong":
            return self._hidden_size()
        return keras.tree.flatten(cell_parts.leaves(self.cell)[-1].state_size)[0]

    def _context_size(self, memory_shape):
        query_shape = (memory_shape[0], 1, self._query_size())
        return self.attention.compute_output_shape(query_shape, memory_shape)[-1]

    @property
    def _state_count(self):
        """The number of states of the wrapped cell, flattened."""
        return len(keras.tree.flatten(self.cell.state_size))

    # Building

    def build(self, input_shape):
        self._build_attention()
        shape = self._scratch.memory_shape
        context, hidden = self._context_size(shape), self._hidden_size()
        if self.attention_dim is not None:
            self._attention_dense = keras.layers.Dense(
                self.attention_dim,
                activation=self.attention_activation,
                use_bias=False,
                name="attentional",
                dtype=self.dtype_policy,
            )
            self._attention_dense.build((None, context + hidden))
        fed = 0
        if self.mode == "bahdanau":
            fed = context
        elif self.input_feeding:
            fed = self.output_features(shape)
        self._scratch.fed_size = fed
        self._scratch.input_size = input_shape[-1] + fed
        if isinstance(self.cell, keras.layers.Layer) and not self.cell.built:
            self.cell.build((input_shape[0], self._scratch.input_size))
            self.cell.built = True

    def _build_attention(self):
        if self._scratch.memory_shape is None:
            raise ValueError(_NO_MEMORY.format("none"))
        if not self.attention.built:
            shape = self._scratch.memory_shape
            self.attention.build((shape[0], 1, self._query_size()), shape)

    def get_build_config(self):
        config = super().get_build_config()
        if self._scratch.memory_shape is not None:
            config = {**(config or {}), "memory_shape": list(self._scratch.memory_shape)}
        return config

    def build_from_config(self, config):
        config = dict(config)
        memory_shape = config.pop("memory_shape", None)
        if memory_shape is not None:
            self._scratch.memory_shape = tuple(memory_shape)
        super().build_from_config(config)

    # From a memory to states

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
            _NO_MEMORY.format("no initial state")
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
        self.expect_memory(memory.shape)
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
        size = self._whole_size(shape)
        if len(states) == self._state_count + 2:
            output, *states, time = states
            if self.return_attention_scores and output.shape[-1] != size:
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

        Prepares all that the loop closes over: keys, values, and dropout masks.
        """
        found = isinstance(states, list) and len(states) >= 2
        if not found or len(getattr(states[0], "shape", ())) != 3:
            if self.is_open():
                return states
            raise ValueError(_NO_MEMORY.format("an initial state that does not begin with one"))
        memory, mask, *rest = states
        prepared = self._prepare(memory, ops.cast(mask, "bool"))
        if self.attention.dropout:
            # One mask for all steps: a step cannot sample, since JAX traces it only once.
            noise = backend.dropout(
                ops.ones_like(prepared.value[..., :1]),
                self.attention.dropout,
                self.attention._dropout_layer.seed_generator,
            )
            prepared.dropped = prepared.value * noise
        self._scratch.memory = prepared
        states = self._loop_states(rest, memory)
        inputs = ops.zeros((ops.shape(memory)[0], self._scratch.input_size), self.compute_dtype)
        cell_parts.prepare_dropout(self.cell, inputs, self._packed(states[1:-1]))
        return states

    def is_open(self):
        """Whether a memory is prepared for a loop."""
        return self._scratch.memory is not None

    def close(self):
        """Discards what `open` prepared."""
        self._scratch.memory = None
        for leaf in cell_parts.leaves(self.cell):
            if isinstance(leaf, keras_private.DropoutRNNCell):
                leaf.reset_dropout_mask()
                leaf.reset_recurrent_dropout_mask()

    # Called by `RNN` before its loop, and after it

    def get_dropout_mask(self, step_input):
        self._scratch.batch = step_input.shape[0]

    def get_recurrent_dropout_mask(self, states):
        # What a loop that failed has left behind.
        self._scratch.memory = None
        memory: Any = states[0] if isinstance(states, list) and states else None
        if len(getattr(memory, "shape", ())) == 3:
            shapes.check_same("Batch sizes", sequences=self._scratch.batch, memory=memory.shape[0])
        states[:] = self.open(states)

    def reset_dropout_mask(self):
        self.close()

    def reset_recurrent_dropout_mask(self):
        self.close()

    # One step

    def call(
        self, inputs: Tensor, states: Tensors, training: bool = False
    ) -> tuple[Tensor, Tensors]:
        loop = states[0] if len(states) == 1 and keras.tree.is_nested(states[0]) else ()
        count = self._state_count + 2
        memory = cell_parts.Memory(*loop[count:]) if len(loop) > count else self._scratch.memory
        if len(loop) < count or memory is None:
            raise ValueError(_NO_MEMORY.format("states without one"))
        previous, *cell_states, time = loop[:count]
        inputs = ops.cast(inputs, self.compute_dtype)
        if self.mode == "bahdanau":
            last = cell_parts.leaves(self.cell)[-1]
            query = cell_states[-len(keras.tree.flatten(last.state_size))]
            context, weights = self._attend(query, memory, time, training)
            hidden, cell_states = self._step(inputs, context, cell_states, training)
        else:
            # The alignments, if any, follow a_{t-1}.
            features = self._scratch.fed_size
            fed = previous[:, :features] if self.input_feeding else None
            hidden, cell_states = self._step(inputs, fed, cell_states, training)
            context, weights = self._attend(hidden, memory, time, training)
        output = self._output(context, hidden)
        if self.return_attention_scores:
            size = previous.shape[-1] - output.shape[-1]
            weights = ops.reshape(weights, (ops.shape(output)[0], size))
            output = ops.concatenate([output, ops.cast(weights, self.compute_dtype)], axis=-1)
        return output, [[output, *cell_states, time + 1, *loop[count:]]]

    def _step(self, inputs, fed, states, training):
        """h_t and the flat states that follow, of the wrapped cell."""
        if fed is not None:
            inputs = ops.concatenate([inputs, fed], axis=-1)
        kwargs = {}
        if "training" in getattr(self.cell, "call_signature_parameters", ()):
            kwargs["training"] = training
        hidden, states = self.cell(inputs, self._packed(states), **kwargs)
        states = [ops.cast(state, self.compute_dtype) for state in keras.tree.flatten(states)]
        return ops.cast(hidden, self.compute_dtype), states

    def _attend(self, query, memory, time, training):
        """c_t (B, C), and the weights (B, H, 1, S) or None."""
        attention = self.attention
        query = ops.cast(query, attention.compute_dtype)
        heads = attention.normed(attention.heads.split_row(query, "query"), "query")
        spec = AttentionSpec(
            masks=() if memory.mask is None else (ops.expand_dims(memory.mask, (1, 2)),),
            pattern=attention.whole_pattern(),
            positions=Positions.of_heads(heads, memory.key, time),
            return_weights=self.return_attention_scores,
        )
        result = attention.attend(
            spec,
            heads,
            memory.key,
            memory.dropped if memory.dropped is not None and training else memory.value,
            memory.mask,
            key_is_prepared=self._keys_can_be_prepared(),
        )
        context = attention.heads.join(result, query[:, None])[:, 0]
        return ops.cast(context, self.compute_dtype), result.weights

    def _output(self, context, hidden):
        if self.mode == "bahdanau" and self.attention_dim is None and not self.output_context:
            return hidden
        both = ops.concatenate([context, hidden], axis=-1)
        return both if self.attention_dim is None else self._attention_dense(both)

    def _packed(self, states):
        """Flat states in the structure of the wrapped cell."""
        size = self.cell.state_size
        if not keras.tree.is_nested(size):
            return list(states)
        return keras.tree.pack_sequence_as(list(size), list(states))

    def split_outputs(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Splits what `RNN` returned into outputs and alignments (`return_attention_scores=True`).

        (B, T, features) and (B, H, T, S); without `return_sequences`, (B, features) and (B, H, S).
        A masked step repeats the alignment before it, as it repeats the output.
        """
        if not self.return_attention_scores:
            raise ValueError(
                "`split_outputs` is for cells with `return_attention_scores=True`. "
                f"Received: return_attention_scores={self.return_attention_scores}"
            )
        shapes.check_same("Features of outputs", cell=self.output_size, outputs=outputs.shape[-1])
        features = self.output_features(self._scratch.memory_shape)
        heads = self.attention.num_heads
        length = (self.output_size - features) // heads
        starts = range(features, self.output_size, length)
        alignments = ops.stack([outputs[..., s : s + length] for s in starts], axis=1)
        return outputs[..., :features], alignments

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The name of `split_outputs` in 0.1.0."""
        return self.split_outputs(outputs)


_UNKNOWN = (None, None, None)

_NO_MEMORY = (
    "An AttentionCell attends to a memory, which it gets with its initial state: pass "
    "`initial_state=cell.initial_state(memory)` to `keras.layers.RNN(cell)`, or call the cell by "
    "hand with the states of `cell.start_states(memory)`. Received: {}"
)
