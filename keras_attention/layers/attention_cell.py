"""`AttentionCell`: a recurrent cell that attends to a memory at each step.

How it gets the memory is in `cell_states`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import keras

from keras_attention import saving, shapes
from keras_attention.backend import backend
from keras_attention.hints import Activation, Tensor, Tensors
from keras_attention.layers import cell_parts
from keras_attention.layers.attention import Attention
from keras_attention.layers.cell_states import NO_MEMORY, MemoryStates
from keras_attention.scores import ScoreLike
from keras_attention.spec import AttentionSpec, Positions

ops = keras.ops

Mode = Literal["bahdanau", "luong"]
MODES = get_args(Mode)


@saving.register
class AttentionCell(MemoryStates, saving.ConfigurableLayer):
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
        self._scratch.memory_shape = shape

    def loop_sizes(self, memory_shape):
        """Features of each state of the loop: the output, the cell's own, the number of steps."""
        sizes = keras.tree.flatten(self.cell.state_size)
        return [self._whole_size(memory_shape), *sizes, 1]

    def _whole_size(self, shape, length=None):
        """Features of the output for a memory of this shape, with the alignments.

        `length` is the size of the memory in a graph, if `shape` has none.
        """
        size = self.output_features(shape)
        if self.return_attention_scores and size is not None:
            length = length if shape[1] is None else shape[1]
            size = None if length is None else size + self.attention.num_heads * length
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

    def build_attention(self, memory_shape):
        """Creates the weights that a memory of shape (B, S, D) determines."""
        self.expect_memory(memory_shape)
        self._build_attention()

    def _build_attention(self):
        if self._scratch.memory_shape is None:
            raise ValueError(NO_MEMORY.format("none"))
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
            self._scratch.memory_shape = memory_shape
        super().build_from_config(config)

    # One step

    def call(
        self, inputs: Tensor, states: Tensors, training: bool = False
    ) -> tuple[Tensor, Tensors]:
        loop = states[0] if len(states) == 1 and keras.tree.is_nested(states[0]) else ()
        count = self._state_count + 2
        memory = (
            cell_parts.Memory(*loop[count:]) if len(loop) > count else self._scratch.here.memory
        )
        if len(loop) < count or memory is None:
            raise ValueError(NO_MEMORY.format("states without one"))
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
            known = previous.shape[-1] is not None
            size = previous.shape[-1] - output.shape[-1] if known else -1
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
            *memory.arrays(training)[1:],
            prepared=self._keys_can_be_prepared(),
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
        features = self.output_features(self._scratch.memory_shape)
        heads, size = self.attention.num_heads, backend.shape(outputs)[-1]
        if self._scratch.memory_shape[1] is not None:
            shapes.check_same("Features of outputs", cell=self.output_size, outputs=size)
        length = (size - features) // heads
        starts = [features + head * length for head in range(heads)]
        alignments = ops.stack([outputs[..., s : s + length] for s in starts], axis=1)
        return outputs[..., :features], alignments

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The name of `split_outputs` in 0.1.0."""
        return self.split_outputs(outputs)


_UNKNOWN = (None, None, None)
