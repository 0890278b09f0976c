"""`AttentionCell`: a recurrent cell that attends to a memory at each step."""

import threading
from typing import Any, Literal, get_args

import keras
from keras import ops

from keras_attention import alignments, saving
from keras_attention.backend import backend
from keras_attention.core import keras_private
from keras_attention.core.hints import Activation, Tensor, Tensors
from keras_attention.layers.attention import Attention
from keras_attention.layers.base import BaseAttention
from keras_attention.layers.heads import projections
from keras_attention.layers.recurrent import wrapped_cell
from keras_attention.scores import Score, ScoreLike
from keras_attention.sequences import masks, shapes
from keras_attention.spec import Positions

Mode = Literal["bahdanau", "luong"]

NO_MEMORY = (
    "An AttentionCell attends to a memory, which it gets with its initial state: pass "
    "`initial_state=cell.initial_state(memory)` to `keras.layers.RNN(cell)`, or call the cell by "
    "hand with the states of `cell.start_states(memory)`. Received: {}"
)


class AttentionCell(keras_private.DropoutRNNCell, saving.ConfigurableLayer):
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
        cell: the wrapped Keras cell, `StackedRNNCells` and custom ones too. The query is its
            output; in "bahdanau", the first state of its last cell.
        attention: an `Attention`, or the score, or its name, of one without projections.
        mode: "bahdanau" or "luong", as above.
        attention_dim, attention_activation: features of a_t, which is then the output in both
            modes, and the activation after W_c. None for no W_c: the output is h_t in "bahdanau",
            and a_t = [c_t; h_t] in "luong".
        input_feeding: whether "luong" feeds a_{t-1} to the cell; "bahdanau" always feeds c_t.
        output_context: whether the output is [c_t; h_t] instead of h_t.
        return_attention_scores: whether the alignments follow the features of the output;
            `split_outputs` separates them. The length of the memory must then be known.
        alignment: None, or an object or a string of `alignments`: how a step depends on the weights
            of earlier ones. Its states, (B, H · S) each, follow those of the wrapped cell.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments of `keras.layers.RNN(cell)`:
        sequences: (B, T, D), what the cell reads.
        initial_state: `cell.initial_state(memory, …)`.
        mask: boolean (B, T), True = a real token. Keras reads the mask that `sequences` carries
            only if no initial state is given: pass it.

    Returns:
        As `RNN`, with output features as above. With `return_state=True`, one list of states
        follows: the last output, those of the wrapped cell, and the number of steps. Keras rounds
        them in half precision: go on from those of `AttentionRNN`.

    Raises:
        ValueError, TypeError: an argument or a shape is not as described, or there is no memory.

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
        alignment: alignments.AlignmentLike | None = None,
        **kwargs: Any,
    ):
        # The wrapped cell and the attention cast their inputs, and prepared keys among the states
        # stay in float32.
        super().__init__(autocast=False, **kwargs)
        self.mode = shapes.check_choice("mode", mode, get_args(Mode))
        self.attention_dim = shapes.check_optional_count("attention_dim", attention_dim)
        self.input_feeding = shapes.check_flag("input_feeding", input_feeding)
        self.output_context = shapes.check_flag("output_context", output_context)
        self.return_attention_scores = shapes.check_flag(
            "return_attention_scores", return_attention_scores
        )
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
        self.cell = wrapped_cell.get(cell, AttentionCell)
        self.attention = attention_layer(attention, self.dtype_policy)
        # Whether prepared keys are the same for all steps.
        self._prepares_keys = self.attention.score.prepares_apart and not reads_keys(self.attention)
        self.attention_activation = keras.activations.get(attention_activation)
        self.alignment = alignments.get(alignment)
        if self.alignment is not None:
            check_alignment(self.alignment, self.attention)
        # The sizes of the states of the wrapped cell; how many the alignment has, and how many all.
        self._sizes = tuple(keras.tree.flatten(self.cell.state_size))
        self._own = len(self._sizes)
        self._aligned = 0 if self.alignment is None else self.alignment.num_states
        self._count = self._own + self._aligned + 2
        # The shape (B, S, D) of the memory that it is built for, or of the last initial state.
        self.memory_shape: Any = None
        self._loop = Loop()

    # Sizes

    @property
    def state_size(self) -> list[list[int | None]]:
        """One list, of the output, states of the wrapped cell and of the alignment, and steps."""
        # `RNN` copies it in its constructor. So what depends on the memory is None.
        output = None if self.return_attention_scores else self.output_features(_UNKNOWN)
        return [[output, *self._sizes, *[None] * self._aligned, 1]]

    @property
    def output_size(self) -> int:
        """Features of the output, with the alignments; those of the last memory, if it matters."""
        return self.loop_sizes(self.memory_shape or _UNKNOWN)[0]

    def loop_sizes(self, memory_shape):
        """As `state_size`, for a memory of this shape."""
        size, length = self.output_features(memory_shape), memory_shape[1]
        pairs = None if length is None else self.attention.num_heads * length
        if self.return_attention_scores and size is not None:
            size = None if pairs is None else size + pairs
        if size is None:
            raise ValueError(
                "The size of the output depends on a memory (batch, positions, features) whose "
                "positions are known, for `return_attention_scores=True`, and whose features are. "
                f"Received: memory.shape={memory_shape}"
            )
        return [size, *self._sizes, *[pairs] * self._aligned, 1]

    def output_features(self, memory_shape):
        """Features of the output without alignments; None where they depend on the memory."""
        if self.attention_dim is not None:
            return self.attention_dim
        hidden = wrapped_cell.output_size(self.cell)
        if self.mode == "bahdanau" and not self.output_context:
            return hidden
        context = self._context_size(memory_shape)
        return None if context is None else context + hidden

    def _query_shape(self, memory_shape):
        size = wrapped_cell.output_size(self.cell)
        if self.mode == "bahdanau":
            size = keras.tree.flatten(wrapped_cell.leaves(self.cell)[-1].state_size)[0]
        return (memory_shape[0], 1, size)

    def _context_size(self, memory_shape):
        query_shape = self._query_shape(memory_shape)
        return self.attention.compute_output_shape(query_shape, memory_shape)[-1]

    def state_dtypes(self):
        """The dtypes in which states of `state_size` are returned; steps are counted in int32."""
        # Sums over many steps, and their number, need the precision.
        wide = shapes.full_precision(self.compute_dtype)
        return [self.compute_dtype] * (1 + self._own) + [wide] * (self._aligned + 1)

    def _apart(self, states):
        """The output, states of the wrapped cell and of the alignment, and steps, of flat ones."""
        output, *states, time = states
        return output, states[: self._own], states[self._own :], time

    # Building

    def build(self, input_shape):
        if self.memory_shape is None:
            raise ValueError(NO_MEMORY.format("none"))
        self.build_attention(self.memory_shape)
        context = self._context_size(self.memory_shape)
        if self.attention_dim is not None:
            given = self.attention_dim, self.attention_activation, False
            self._attention_dense = keras.layers.Dense(
                *given, name="attentional", dtype=self.dtype_policy
            )
            self._attention_dense.build((None, context + wrapped_cell.output_size(self.cell)))
        # Features that the wrapped cell reads after those of its input, then of both together.
        self._fed_size = context
        if self.mode == "luong":
            features = self.output_features(self.memory_shape)
            self._fed_size = features if self.input_feeding else 0
        self._input_size = input_shape[-1] + self._fed_size
        if isinstance(self.cell, keras.layers.Layer) and not self.cell.built:
            self.cell.build((input_shape[0], self._input_size))
            self.cell.built = True

    def build_attention(self, memory_shape):
        """Creates the weights that a memory of shape (B, S, D) determines."""
        if self.memory_shape is None:
            self._keep_memory_shape(memory_shape)
        query_shape, heads = self._query_shape(memory_shape), self.attention.heads
        if not self.attention.built:
            self.attention.build(query_shape, memory_shape)
        if self.alignment is not None and not self.alignment.built:
            query, key = heads.shape("query", query_shape), heads.shape("key", memory_shape)
            prepared = self.attention.score.prepare_key(ops.zeros((1, 1, *key[2:])))
            self.alignment.build(query, key, (*key[:2], *prepared.shape[2:]))

    def _keep_memory_shape(self, shape):
        # Without symbolic dimensions of JAX, which no file could store.
        self.memory_shape = tuple(n if isinstance(n, int) else None for n in shape)

    def get_build_config(self):
        config = super().get_build_config()
        if self.memory_shape is not None:
            config = {**(config or {}), "memory_shape": list(self.memory_shape)}
        return config

    def build_from_config(self, config):
        config = dict(config)
        self.memory_shape = config.pop("memory_shape", self.memory_shape)
        super().build_from_config(config)

    # One step

    def call(
        self,
        inputs: Tensor,
        states: Tensors,
        training: bool = False,
        return_attention_scores: bool | None = None,
    ) -> tuple[Tensor, Tensors]:
        # Scores that the constructor did not ask for are no state.
        if return_attention_scores is None:
            return_attention_scores = self.return_attention_scores
        states, count = keras.tree.flatten(states), self._count
        memory = states[count:] or self._loop.memory
        if len(states) < count or not memory:
            raise ValueError(NO_MEMORY.format("states without one"))
        previous, cell_states, aligned, time = self._apart(states[:count])
        shapes.check_same("Batch sizes", sequences=inputs.shape[0], memory=memory[0].shape[0])
        inputs = ops.cast(inputs, self.compute_dtype)
        given = memory, time, aligned, training
        if self.mode == "bahdanau":
            last = wrapped_cell.leaves(self.cell)[-1]
            query = cell_states[-len(keras.tree.flatten(last.state_size))]
            with keras_private.cast_variables(self.attention.compute_dtype):
                context, weights, aligned = self._attend(query, *given)
            hidden, cell_states = self._step(inputs, context, cell_states, training)
        else:
            # The alignments, if any, follow a_{t-1}.
            fed = previous[:, : self._fed_size] if self.input_feeding else None
            hidden, cell_states = self._step(inputs, fed, cell_states, training)
            with keras_private.cast_variables(self.attention.compute_dtype):
                context, weights, aligned = self._attend(hidden, *given)
        output = hidden
        if self.attention_dim is not None or self.mode == "luong" or self.output_context:
            output = ops.concatenate([context, hidden], axis=-1)
        if self.attention_dim is not None:
            output = projections.apply_float64(self, self._attention_dense, output)
        last = output
        if return_attention_scores:
            known = previous.shape[-1] is not None and self.return_attention_scores
            size = previous.shape[-1] - output.shape[-1] if known else -1
            weights = ops.reshape(weights, (ops.shape(output)[0], size))
            output = ops.concatenate([output, ops.cast(weights, self.compute_dtype)], axis=-1)
        last = output if self.return_attention_scores else last
        return output, [[last, *cell_states, *aligned, time + 1, *states[count:]]]

    def _step(self, inputs, fed, states, training):
        """h_t and the flat states that follow, of the wrapped cell."""
        if fed is not None:
            inputs = ops.concatenate([inputs, fed], axis=-1)
        trains = "training" in getattr(self.cell, "call_signature_parameters", ())
        options = {"training": training} if trains else {}
        hidden, states = self.cell(inputs, wrapped_cell.pack(self.cell, states), **options)
        states = [ops.cast(state, self.compute_dtype) for state in keras.tree.flatten(states)]
        return ops.cast(hidden, self.compute_dtype), states

    def _attend(self, query, memory, time, aligned, training):
        """c_t (B, C), the weights (B, H, 1, S) or None, and the states of the alignment."""
        attention, alignment = self.attention, self.alignment
        count = 3 if alignment is None else 3 + alignment.num_prepared
        (key, value, mask, *prepared), drawn = memory[:count], memory[count:]
        query = ops.cast(query, attention.compute_dtype)
        heads = attention.normed(attention.heads.split_row(query, "query"), "query")
        value = drawn[0] if training and drawn and attention.dropout else value

        def attend(key, **given):
            return attention.attend(
                *(heads, key, value, Positions.of_heads(heads, key, time).of_padded(None, mask)),
                key_mask=mask,
                masks=masks.of_pairs(None, mask, None),
                pattern=attention.whole_pattern(),
                return_weights=self.return_attention_scores or alignment is not None,
                prepared=self._prepares_keys,
                **given,
            )

        if alignment is None:
            result = attend(key)
        else:
            more, numbers = [value, mask, *prepared], None
            if alignment.random and training and drawn:
                # Uniform numbers (B, H, S) for a step, from those of the loop, in which nothing can
                # be drawn. The fractional part of n u is uniform for every integer n, and for large
                # ones, without large common factors, nearly uncorrelated.
                numbers = drawn[-1] * ops.cast(64 + time, drawn[-1].dtype)[..., None]
                numbers = numbers - ops.floor(numbers)
            more += [numbers] if alignment.random else []
            batch, length = ops.shape(mask)
            states = [ops.reshape(x, (batch, attention.num_heads, length)) for x in aligned]
            with keras_private.uncast_variables():
                result, states = alignment.attend(attend, heads, key, states, more, training)
            pairs = zip(states, aligned, strict=True)
            aligned = [ops.cast(ops.reshape(x, ops.shape(old)), old.dtype) for x, old in pairs]
        query, weights = query[:, None], result.weights
        context = ops.cast(attention.heads.merge(result, query)[:, 0], self.compute_dtype)
        if weights is not None:
            weights = attention.heads.scores(weights, query, value)
        return context, weights, aligned

    def split_outputs(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Splits what `RNN` returned into outputs and alignments (`return_attention_scores=True`).

        (B, T, features) and (B, H, T, S); without `return_sequences`, (B, features) and (B, H, S).
        A masked step repeats output and alignment of the one before it.
        """
        if not self.return_attention_scores:
            raise ValueError(
                "`split_outputs` is for cells with `return_attention_scores=True`. "
                f"Received: return_attention_scores={self.return_attention_scores}"
            )
        return self.separated(outputs)

    def separated(self, outputs):
        """`split_outputs` of outputs that have alignments."""
        features = self.output_features(self.memory_shape)
        heads, size = self.attention.num_heads, backend.shape(outputs)[-1]
        length = (size - features) // heads
        shapes.check_same("Features of outputs", cell=features + heads * length, outputs=size)
        starts = [features + head * length for head in range(heads)]
        alignments = ops.stack([outputs[..., s : s + length] for s in starts], axis=1)
        return outputs[..., :features], alignments

    # Its name in 0.1.0.
    split = split_outputs

    # From a memory to the states of a loop

    def initial_state(
        self, memory: Tensor, states: Tensors | None = None, mask: Tensor | None = None
    ) -> Tensors:
        """The `initial_state` of `keras.layers.RNN(cell)`, a nested list of tensors or symbols.

        Args:
            memory: (B, S, D), the attended sequence, such as the outputs of an encoder.
            states: of the wrapped cell, as its own `RNN` would take them; or all states that an
                earlier call returned with `return_state=True`, to continue from, also with a
                memory of another length if there is no `alignment`. None for the cell's own.
            mask: boolean (B, S), True = a real token; combined with that of the memory.
        """
        memory, states, mask = self.checked(memory, states, mask)
        self._keep_memory_shape(memory.shape)
        mask = masks.whole(mask, memory)
        return [[memory, ops.cast(mask, memory.dtype), *states]]

    def start_states(
        self, memory: Tensor, states: Tensors | None = None, mask: Tensor | None = None
    ) -> Tensors:
        """States for calling the cell directly: `output, states = cell(x_t, states)`.

        They contain the prepared memory. Arguments are those of `initial_state`.
        """
        given = keras.tree.flatten((memory, states, mask))
        if any(isinstance(x, keras.KerasTensor) for x in given):
            return StartStates(self)(memory, states=states, mask=mask)
        memory, states, mask = self.checked(memory, states, mask)
        self.build_attention(memory.shape)
        return [[*self._first_states(memory, states), *self._prepared(memory, mask)]]

    # Its name in 0.1.0.
    start = start_states

    def get_initial_state(self, batch_size=None):
        raise ValueError(
            NO_MEMORY.format("no initial state")
            + ". It needs one in each call, and `stateful=True` keeps none: to go on, pass "
            "`cell.initial_state(memory, states)` with the states that the call before returned "
            "with `return_state=True`"
        )

    def checked(self, memory, states, mask):
        """Memory, flat states and mask or None, from the arguments of `initial_state`."""
        if not isinstance(memory, keras.KerasTensor):
            memory = masks.carry(ops.convert_to_tensor(memory), masks.implicit(memory))
        shapes.check_sequence(memory.shape, "memory")
        if self.attention.built:
            before = self.memory_shape and self.memory_shape[-1]
            shapes.check_same("Features of memories", before=before, now=memory.shape[-1])
        mask = masks.padding(memory, mask, "memory")
        states = [] if states is None else keras.tree.flatten(states)
        if len(states) not in (0, self._own, self._count):
            raise ValueError(
                f"`states` must be the {self._own} of the wrapped cell, or the {self._count} that "
                f"an earlier call returned. Received: {len(states)}"
            )
        for state in states:
            shapes.check_same("Batch sizes", memory=memory.shape[0], states=state.shape[0])
        return memory, states, mask

    def prepare(self, memory, states, mask, training=True):
        """What a loop closes over, and the states that it starts with."""
        # Key (B, S, H, K), value (B, S, H, V) and mask (B, S), and in training what is drawn: the
        # value with dropped positions, and numbers for the alignment.
        constants, attention = self._prepared(memory, mask), self.attention
        states = self._first_states(memory, states)
        if training and attention.dropout:
            # One mask for all steps: a step cannot sample, since JAX traces it only once.
            generator = attention._dropout_layer.seed_generator
            ones = ops.ones_like(constants[1][..., :1])
            constants.append(constants[1] * backend.dropout(ones, attention.dropout, generator))
        if training and self.alignment is not None and self.alignment.random:
            batch, length = ops.shape(constants[2])
            shape = (batch, attention.num_heads, length)
            constants.append(backend.uniform(shape, self.alignment.seed_generator))
        if training:
            inputs = ops.zeros((ops.shape(memory)[0], self._input_size), self.compute_dtype)
            own = wrapped_cell.pack(self.cell, self._apart(states)[1])
            wrapped_cell.draw_dropout(self.cell, inputs, own)
        return constants, states

    def _prepared(self, memory, mask):
        """Key, value and mask of the memory, prepared for all steps."""
        memory = masks.clear(ops.cast(memory, self.attention.compute_dtype), mask)
        key, value = (self.attention.split(memory, role) for role in ("key", "value"))
        prepared = []
        with keras_private.uncast_variables():
            if self.alignment is not None:
                prepared = self.alignment.prepare(key)
            if self._prepares_keys:
                wide = shapes.accumulation_dtype(key)
                key = self.attention.score.prepare_key(ops.cast(key, wide))
        return [key, value, masks.whole(mask, memory), *prepared]

    def _first_states(self, memory, states):
        """The states of a loop, `state_size` each, from those of `checked`."""
        batch, length = backend.shape(memory)[:2]
        heads, features = self.attention.num_heads, self.output_features(memory.shape)
        size = features + heads * length if self.return_attention_scores else features
        if not states and hasattr(self.cell, "get_initial_state"):
            states = keras.tree.flatten(self.cell.get_initial_state(batch_size=batch))
        elif not states:
            states = [ops.zeros((batch, n), self.compute_dtype) for n in self._sizes]
        aligned = self.alignment and self.alignment.first_states((batch, heads, length))
        first = [ops.reshape(state, (batch, heads * length)) for state in aligned or ()]
        if len(states) < self._count:
            output, time = ops.zeros((batch, size), self.compute_dtype), ops.zeros((batch, 1))
            states = [output, *states, *first, time]
        for given, expected in zip(self._apart(states)[2], first, strict=True):
            what = "Lengths of states of the alignment (heads times tokens of the memory)"
            shapes.check_same(what, memory=expected.shape[-1], states=given.shape[-1])
        dtypes = [*self.state_dtypes()[:-1], "int32"]
        output, *states, time = map(ops.cast, [*states[:-1], ops.round(states[-1])], dtypes)
        if self.return_attention_scores and isinstance(size, int) and output.shape[-1] != size:
            # The alignments after the output are those of a memory of another length.
            output = ops.pad(output[:, :features], ((0, 0), (0, size - features)))
        shapes.check_same("Features of the first state", cell=size, states=output.shape[-1])
        return [output, *states, time]

    # Around the loop of `keras.layers.RNN`, which passes a step no more than inputs and states, but
    # lets a `DropoutRNNCell` prepare and discard what the loop closes over, and gives it the states

    def get_dropout_mask(self, step_input):
        return None

    def get_recurrent_dropout_mask(self, states):
        # What a loop that failed has left behind.
        self._loop.memory = ()
        found = isinstance(states, list) and len(states) >= 2
        if not found or len(getattr(states[0], "shape", ())) != 3:
            raise ValueError(NO_MEMORY.format("an initial state that does not begin with one"))
        if self.attention.scores_regularizer is not None:
            raise ValueError(
                "`keras.layers.RNN` cannot add the loss of a `scores_regularizer`: use "
                f"`AttentionRNN(cell)`. Received: {self.attention.scores_regularizer!r}"
            )
        memory, mask, *rest = states
        self._loop.memory, states[:] = self.prepare(memory, rest, ops.cast(mask, "bool"))

    def reset_dropout_mask(self):
        self._loop.memory = ()
        wrapped_cell.reset_dropout(self.cell)

    def reset_recurrent_dropout_mask(self):
        pass


class Loop(threading.local):
    """The loop of `keras.layers.RNN` that a cell is in: one for each thread."""

    # What `AttentionCell.prepare` returned first.
    memory: Any = ()

    def __reduce__(self):
        # A copy of a cell is in no loop.
        return Loop, ()


def attention_layer(attention, dtype):
    """The attention layer, from the argument or its saved config."""
    attention = saving.deserialize(attention)
    if isinstance(attention, (str, Score)):
        attention = Attention(score=attention, dtype=dtype)
    if not isinstance(attention, BaseAttention):
        raise TypeError(
            "`attention` must be an Attention layer, a score, or the name of one. "
            f"Received: attention={attention!r} (of type {type(attention).__name__})"
        )
    if attention.normalization.random:
        raise ValueError(
            "An AttentionCell takes no normalization that draws random numbers: a step of a loop "
            f"cannot draw. Received: normalization={attention.normalization!r}"
        )
    reason = attention.traits.no_cell_reason or attention.traits.no_cache_reason
    if reason is not None:
        raise ValueError(
            f"An AttentionCell, which attends step by step, cannot take this layer: {reason}. "
            f"Received: attention={attention!r} (of type {type(attention).__name__})"
        )
    return attention


def reads_keys(attention):
    """Whether an attention has a position that encodes or reads keys."""
    return attention.position is not None and attention.position.reads_keys


def check_alignment(alignment, attention):
    """Raises if an alignment does not work with this attention layer."""
    grouped = attention.num_key_value_heads not in (None, attention.num_heads)
    several = attention.heads.count("query") != attention.num_heads
    if grouped or several or reads_keys(attention):
        raise ValueError(
            "An alignment needs one attention for each head, with a key head of its own, and no "
            "position that encodes keys or compares them with queries. Received: attention of type "
            f"{type(attention).__name__}, num_key_value_heads={attention.num_key_value_heads}, "
            f"num_heads={attention.num_heads}, position={attention.position!r}"
        )
    alignment.check(attention)


_UNKNOWN = (None, None, None)


class StartStates(saving.ConfigurableLayer):
    """The operation of a functional model that `cell.start_states(memory)` of symbols adds."""

    def __init__(self, cell: keras.layers.Layer, **kwargs: Any):
        super().__init__(**kwargs)
        self.cell = cell

    def compute_mask(self, memory, previous_mask=None):
        return None

    def build(self, memory_shape, states_shape=None, mask_shape=None):
        self.cell.build_attention(memory_shape)

    def call(
        self, memory: Tensor, states: Tensors | None = None, mask: Tensor | None = None
    ) -> Tensors:
        return self.cell.start_states(memory, states, mask)
