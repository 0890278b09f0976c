"""`AttentionCell` and `AttentionRNN`: recurrences of papers, in every loop, and what loops keep."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import Attention, AttentionCell, AttentionRNN, alignments, patterns, scores
from tests import definition
from tests.arrays import close, numpy, random, wide
from tests.compiled import JIT_MODES, compiled
from tests.definition import sigmoid, softmax
from tests.fuzz.configurations import defined_score
from tests.gradients import gradients
from tests.problems import on_tensorflow

layers, ops = keras.layers, keras.ops
# Keras 3.16 says so of its own `RNN`, whose outputs are compared here.
pytestmark = pytest.mark.filterwarnings("ignore:Layer 'rnn.*does not support masking:UserWarning")

# Batch, steps, length of the memory, features of the input, memory and states, all different.
B, T, S, D, M, H = 3, 4, 6, 5, 7, 8
X, MEMORY, STATE = random(B, T, D), random(B, S, M, seed=1), 0.5 * random(B, H, seed=2)
MASK = np.arange(S) < np.array([[6], [4], [1]])


def made(cell, **options):
    """An `AttentionRNN` of a cell, with weights that no zero hides, biases too."""
    rnn = AttentionRNN(cell, **{"return_sequences": True, **options})
    rnn.build(X.shape, MEMORY.shape)
    rng = np.random.default_rng(3)
    for weight in rnn.trainable_weights:
        weight.assign(rng.normal(size=weight.shape) / np.sqrt(weight.shape[0]))
    return rnn


# The papers, in float64: the steps of Keras's cells, weights of a step, and the loop.


def gru(cell, x, states):
    """Keras's GRU with `reset_after=True`."""
    kernel, recurrent, bias = map(wide, cell.weights)
    (h,) = states
    xz, xr, xh = np.split(x @ kernel + bias[0], 3, -1)
    hz, hr, hh = np.split(h @ recurrent + bias[1], 3, -1)
    z, r = sigmoid(xz + hz), sigmoid(xr + hr)
    h = z * h + (1 - z) * np.tanh(xh + r * hh)
    return h, [h]


def lstm(cell, x, states):
    kernel, recurrent, bias = map(wide, cell.weights)
    h, c = states
    i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return h, [h, c]


def stacked(cell, x, states):
    """A stack of GRUs."""
    after = []
    for part, state in zip(cell.cells, states, strict=True):
        x, (h,) = gru(part, x, [state])
        after.append(h)
    return x, after


STEPS = {
    gru: lambda: layers.GRUCell(H),
    lstm: lambda: layers.LSTMCell(H),
    stacked: lambda: layers.StackedRNNCells([layers.GRUCell(3), layers.GRUCell(H)]),
}


def attended(cell, query, memory, before):
    """The weights of one step of a row, over its real tokens, of whose steps before there are t."""
    attention, key = cell.attention, memory[None, :, None]
    near = np.ones(len(memory), bool)
    if attention.pattern is not None:
        near = np.abs(np.arange(len(memory)) - len(before) + 1) <= attention.pattern.left
    given = {**defined_score(attention.score, 1), "mask": near}
    return definition.attend(query[None, :, None], key, key, **given)[1][0, 0, 0]


def additive(cell, query, memory, more):
    """Weights by hidden units W q + W' k + b, and more of them."""
    w = {weight.name: wide(weight)[0] for weight in cell.attention.score.weights}
    units = query @ w["query_kernel"] + memory @ w["key_kernel"] + w["bias"]
    return softmax(np.tanh(units + more) @ w["v"])


def location_sensitive(cell, query, memory, before):
    history = {"previous": before[-1:], "cumulative": [sum(before)]}
    history["both"] = history["previous"] + history["cumulative"]
    filters = wide(cell.alignment.convolution)
    left, channels = (len(filters) - 1) // 2, np.stack(history[cell.alignment.history], -1)
    around = np.pad(channels, [(left, len(filters) - 1 - left), (0, 0)])
    found = sum(around[i : i + len(memory)] @ taps for i, taps in enumerate(filters))
    return additive(cell, query, memory, found @ wide(cell.alignment.kernel)[0])


def coverage(cell, query, memory, before):
    more = np.outer(sum(before), wide(cell.alignment.kernel)[0])
    return additive(cell, query, memory, more)


def by_the_papers(cell, step, weights_of, states):
    """The outputs (B, T, …) and alignments (B, T, S), in loops over rows and steps."""
    outputs, found = [], np.zeros((B, T, S))

    def attentional(context, h):
        both = np.concatenate([context, h], -1)
        return both if dense is None else np.tanh(both @ wide(dense.kernel))

    dense = None if cell.attention_dim is None else cell._attention_dense
    bare = cell.mode == "bahdanau" and dense is None and not cell.output_context
    for b in range(B):
        memory, of_row = MEMORY[b, MASK[b]].astype("float64"), [s[b : b + 1] for s in states]
        before, fed = [np.zeros(len(memory))], np.zeros((1, cell.attention_dim or M + H))
        for t in range(T):
            x, h = X[b : b + 1, t], of_row[-1 if step is stacked else 0]
            if cell.mode == "luong":
                x = np.concatenate([x, fed], -1) if cell.input_feeding else x
                h, of_row = step(cell.cell, x, of_row)
            before.append(weights_of(cell, h, memory, before))
            context = before[-1][None] @ memory
            if cell.mode == "bahdanau":
                h, of_row = step(cell.cell, np.concatenate([x, context], -1), of_row)
            fed = h if bare else attentional(context, h)
            outputs.append(fed)
            found[b, t, MASK[b]] = before[-1]
    return np.reshape(outputs, (B, T, -1)), found


NEAR = patterns.SlidingWindow(1, 1)
LUONG = {"mode": "luong", "attention_dim": 6}
LOCATIONS = {
    "previous": lambda: alignments.LocationSensitive(3, 3),
    "cumulative": lambda: alignments.LocationSensitive(3, 4, history="cumulative"),
    "both": lambda: alignments.LocationSensitive(2, 3, history="both"),
}
# The step, the weights by a paper, the attention, and options of the cell.
WAYS = {
    "bahdanau": (gru, attended, {"score": "additive"}, {}),
    "context": (gru, attended, {"score": "general"}, {"output_context": True}),
    "dense": (gru, attended, {"score": "general"}, {"attention_dim": 6}),
    "near": (gru, attended, {"score": "general", "pattern": NEAR}, {"output_context": True}),
    "luong": (lstm, attended, {"score": "general"}, LUONG),
    "luong, near": (lstm, attended, {"score": "general", "pattern": NEAR}, LUONG),
    "luong, additive": (gru, attended, {"score": "additive"}, {"mode": "luong"}),
    "not fed": (gru, attended, {"score": "general"}, {**LUONG, "input_feeding": False}),
    "lstm": (lstm, attended, {"score": "additive"}, {}),
    "stack": (stacked, attended, {"score": "general"}, {}),
    "luong, stack": (stacked, attended, {"score": "general"}, LUONG),
    "heads": (stacked, None, {"num_heads": 2, "key_dim": 3, "pattern": NEAR}, {}),
    **{
        name: (gru, location_sensitive, {"score": "additive"}, {"alignment": of})
        for name, of in LOCATIONS.items()
    },
    "coverage": (gru, coverage, {"score": "additive"}, {"alignment": "coverage"}),
    **{
        name: (gru, None, {"score": "additive"}, {"mode": "luong", "alignment": name})
        for name in ("monotonic", "mocha")
    },
}


def cell_of(name):
    step, _, attention, options = WAYS[name]
    options = {n: x() if callable(x) else x for n, x in options.items()}
    return AttentionCell(STEPS[step](), Attention(**attention), **options)


@pytest.mark.parametrize("name", WAYS)
def test_it_is_what_the_papers_say_in_every_loop(name):
    """In this package's layer, in Keras's, and by hand."""
    cell = cell_of(name)
    cell.return_attention_scores = True
    rnn = made(cell)
    sizes = keras.tree.flatten(cell.cell.state_size)
    states = [0.5 * random(B, size, seed=10 + i) for i, size in enumerate(sizes)]
    outputs, weights = rnn(X, MEMORY, initial_state=states, memory_mask=MASK)
    by_keras = layers.RNN(cell, return_sequences=True, return_state=True)
    found, *after = by_keras(X, initial_state=cell.initial_state(MEMORY, states, MASK))
    if cell.alignment is None:
        assert numpy(keras.tree.flatten(after)[-1]).tolist() == [[T]] * B
    for one, other in zip(cell.split_outputs(found), (outputs, weights), strict=True):
        close(one, other)

    def by_hand(x, memory, *states):
        now, outputs = cell.start_states(memory, states, MASK), []
        assert all(state.shape[0] == B for state in keras.tree.flatten(now))
        for t in range(T):
            output, now = cell(x[:, t], now)
            outputs.append(output)
        return ops.stack(outputs, 1)

    close(compiled(by_hand, X, MEMORY, *states), found)
    symbols = rnn(*(keras.Input((None, array.shape[-1])) for array in (X, MEMORY)))
    assert symbols[0].shape == (None, None, outputs.shape[-1])
    assert symbols[1].shape == (None, weights.shape[1], None, None)
    step, weights_of, *_ = WAYS[name]
    if weights_of is not None:
        expected, of_pairs = by_the_papers(cell, step, weights_of, states)
        close(outputs, expected, 2e-5)
        close(numpy(weights)[:, 0], of_pairs, 2e-5)
        assert (numpy(weights)[:, 0][of_pairs == 0] == 0).all()


STEPPED = np.arange(T) < np.array([[4], [3], [1]])


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_masked_steps_forth_and_back(unroll, zeros):
    """Backwards it reads the last step first, with its mask, which outputs carry in their order."""
    options = {"unroll": unroll, "zero_output_for_mask": zeros}
    forth = made(cell_of("luong"), **options)
    back = made(cell_of("luong"), go_backwards=True, **options)
    found = back(X, MEMORY, mask=STEPPED, memory_mask=MASK)
    x, mask = X[:, ::-1].copy(), STEPPED[:, ::-1].copy()
    expected = forth(x, MEMORY, mask=mask, memory_mask=MASK)
    close(found, expected, 1e-6)
    np.testing.assert_array_equal(numpy(found._keras_mask), mask)
    np.testing.assert_array_equal(numpy(back.compute_mask(X, ops.convert_to_tensor(STEPPED))), mask)
    for sequences in (True, False):
        by_keras = layers.RNN(forth.cell, return_sequences=sequences, **options)
        start = forth.cell.initial_state(MEMORY, mask=MASK)
        other = by_keras(x, initial_state=start, mask=ops.convert_to_tensor(mask))
        close(other, expected if sequences else numpy(expected)[:, -1], 1e-6)


@pytest.mark.ci
def test_location_refuses_a_longer_memory_in_a_program():
    rnn = made(AttentionCell(layers.GRUCell(H), Attention(2, 3, score=scores.Location(S))))
    inputs = [keras.Input(X.shape[1:]), keras.Input((None, M))]
    model = keras.Model(inputs, rnn(*inputs))
    assert np.isfinite(model.predict([X, MEMORY], verbose=0)).all()
    longer = np.repeat(MEMORY, 2, axis=1)
    try:
        found = model.predict([X, longer], verbose=0)
    except Exception as error:
        assert "at most max_length" in str(error) or "Location" in str(error)
    else:
        assert np.isnan(found).any()


def test_continued_with_a_memory_of_another_length():
    found = []
    for asked in (True, False):
        cell = AttentionCell(
            layers.GRUCell(H), "general", mode="luong", return_attention_scores=asked
        )
        rnn = made(cell, return_state=True)
        _, *rest = rnn(X, MEMORY)
        longer = random(B, S + 3, M, seed=4)
        found.append(rnn(X, longer, initial_state=rest[1:] if asked else rest))
    assert found[0][1].shape == (B, 1, T, S + 3)
    close(numpy(found[0][1]).sum(-1), np.ones((B, 1, T)))
    close(found[0][0], found[1][0])


def test_states_that_are_given_have_gradients():
    rnn = made(AttentionCell(layers.LSTMCell(H), "general"))
    found = gradients(lambda *h: rnn(X, MEMORY, initial_state=h), [STATE] * 2)
    assert all(np.abs(gradient).max() > 1e-4 for gradient in found)


def test_keys_are_projected_once(monkeypatch):
    score = scores.Additive(4)
    rnn = made(AttentionCell(layers.GRUCell(H), Attention(score=score)), unroll=True)
    prepared = []
    for name in ("prepare_key", "prepare_query"):
        method = getattr(score, name)
        monkeypatch.setattr(score, name, lambda x, f=method, n=name: prepared.append(n) or f(x))
    rnn(X, MEMORY)
    assert sorted(prepared) == ["prepare_key"] + ["prepare_query"] * T


def test_a_stack_may_attend_below():
    cell = AttentionCell(layers.GRUCell(H), "general")
    rnn = layers.RNN([cell, layers.GRUCell(2)], return_sequences=True)
    start = [cell.initial_state(MEMORY, STATE), np.zeros((B, 2), "float32")]
    below = AttentionRNN(cell, return_sequences=True)
    found = rnn(X, initial_state=start)
    above = layers.RNN(rnn.cell.cells[1], return_sequences=True)
    close(found, above(below(X, MEMORY, initial_state=STATE)))


# Dropout


@pytest.mark.parametrize("alignment", [None, "monotonic", "mocha"])
def test_dropout_draws_once_a_call_in_training_alone(alignment):
    inner = layers.GRUCell(H, dropout=0.3, recurrent_dropout=0.3, seed=1)
    stack = layers.StackedRNNCells([inner, layers.LSTMCell(H, dropout=0.3, seed=2)])
    attention = Attention(score="additive", dropout=0.5, seed=3)
    layer = AttentionRNN(AttentionCell(stack, attention, alignment=alignment))
    expected = numpy(layer(X, MEMORY))
    before = [numpy(variable) for variable in layer.variables]
    np.testing.assert_array_equal(numpy(layer(X, MEMORY)), expected)
    assert all(map(np.array_equal, map(numpy, layer.variables), before))
    drawn = [numpy(layer(X, MEMORY, training=True)) for _ in range(2)]
    for one, other in (drawn, (drawn[0], expected)):
        assert np.abs(one - other).max() > 1e-3
    assert not all(map(np.array_equal, map(numpy, layer.variables), before))
    assert inner._dropout_mask is None and not layer.cell._loop.memory


# A memory of unit vectors, of which the context is the dropped weights themselves.
UNITS = np.stack([np.eye(S, dtype="float32")] * B)


def dropping():
    attention = Attention(score=scores.Dot(), dropout=0.5, seed=3)
    return AttentionCell(layers.GRUCell(S), attention, output_context=True)


def test_dropout_of_the_attention_drops_positions_for_a_whole_sequence():
    rnn = AttentionRNN(dropping(), return_sequences=True)
    context, whole = (numpy(rnn(X, UNITS, training=t))[..., :S] for t in (True, False))
    dropped = context == 0
    assert dropped.any() and not dropped.all()
    assert (dropped == dropped[:, :1]).all() and (dropped[0] != dropped[1]).any()
    kept = ~dropped[:, 0]
    np.testing.assert_allclose(context[:, 0][kept], 2 * whole[:, 0][kept], rtol=1e-6)


@pytest.mark.ci
@pytest.mark.parametrize("jit_compile", JIT_MODES)
def test_dropout_of_the_attention_in_a_compiled_loop(jit_compile):
    """The loss is what is looked at: how often a dropped position comes back, and how many drop."""
    x, memory = keras.Input((None, D)), keras.Input((None, S))
    outputs = AttentionRNN(dropping(), return_sequences=True)(x, memory)
    model = keras.Model([x, memory], outputs)

    def seen(_, output):
        dropped = ops.cast(ops.equal(output[..., :S], 0.0), "float32")
        powers = ops.convert_to_tensor(2.0 ** np.arange(S, dtype="float32"))
        changes = ops.sum(ops.abs(dropped - dropped[:, :1]), axis=(1, 2))
        # Which positions of the first row, as one number, and 1000 for each change.
        return ops.sum(dropped[:1, 0] * powers) + 1000.0 * changes + 0.0 * ops.sum(output)

    model.compile(keras.optimizers.SGD(0.0), seen, jit_compile=jit_compile)
    drawn = []
    for _ in range(6):
        drawn.append(model.train_on_batch([X, UNITS], np.zeros((B, T, 1))))
        model.reset_metrics()  # an older Keras returns means over batches
    assert max(drawn) < 2**S and len({round(float(d)) for d in drawn}) > 1, drawn
    assert model.test_on_batch([X, UNITS], np.zeros((B, T, 1))) == 0.0


# What a loop keeps


@pytest.fixture(name="no_hook")
def _no_hook(monkeypatch):
    """Keras's private hooks of loops do nothing."""
    for hook in ("_maybe_config_dropout_masks", "_maybe_reset_dropout_masks"):
        monkeypatch.setattr(layers.RNN, hook, lambda *_: None)


def test_keras_s_private_hook_is_not_needed(no_hook, monkeypatch):
    layer = made(cell_of("heads"))
    without = numpy(layer(X, MEMORY, mask=STEPPED, memory_mask=MASK))
    monkeypatch.undo()
    np.testing.assert_array_equal(numpy(layer(X, MEMORY, mask=STEPPED, memory_mask=MASK)), without)


def test_dropout_without_the_hook_is_one_draw_for_a_sequence(no_hook):
    cell = AttentionCell(
        layers.GRUCell(H, dropout=0.5), Attention(dropout=0.5), output_context=True
    )
    # Without positions, and each step alike: what differs between steps is drawn for each.
    layer, memory = AttentionRNN(cell, return_sequences=True), np.ones((B, S, H), "float32")
    found, again = (numpy(layer(0 * X, memory, training=True))[..., :H] for _ in range(2))
    assert np.abs(found - found[:, :1]).max() < 1e-6
    assert len(np.unique(found.round(4))) > 1
    assert np.abs(found - again).max() > 0.1


def test_steps_are_counted_beyond_what_bfloat16_can_count():
    first, length = 299, 303
    cell = AttentionCell(
        layers.SimpleRNNCell(8, recurrent_initializer="zeros", dtype="bfloat16"),
        Attention(pattern=patterns.SlidingWindow(0, 0), dtype="bfloat16"),
        output_context=True,
        dtype="bfloat16",
    )
    layer = AttentionRNN(cell, return_sequences=True, return_state=True, dtype="bfloat16")
    memory = np.random.default_rng(0).integers(0, 2, (1, length, 8)).astype("float32")
    x = np.zeros((1, length - first, 2), "float32")
    # The last state is the number of steps.
    *states, count = keras.tree.flatten(layer(x[:, :1], memory)[1:])
    output, *_ = layer(x, memory, initial_state=[*states, count + (first - 1)])
    np.testing.assert_array_equal(numpy(output)[..., :8], memory[:, first:])


class Failing(layers.GRUCell):
    failing = True

    def call(self, inputs, states, training=False):
        if self.failing:
            raise RuntimeError("a step failed")
        return super().call(inputs, states, training=training)


@pytest.mark.parametrize("by_keras", [False, True])
def test_an_error_in_a_step_leaves_no_memory_behind(by_keras):
    inner = Failing(H)
    cell = AttentionCell(inner, "general")
    layer, rnn = AttentionRNN(cell), layers.RNN(cell)
    if by_keras:
        layer = lambda x, memory: rnn(x, initial_state=cell.initial_state(memory))  # noqa: E731
    with pytest.raises(RuntimeError, match="a step failed"):
        layer(X, MEMORY)
    inner.failing = False
    found = numpy(layer(X, MEMORY[:, :2]))
    np.testing.assert_array_equal(found, numpy(layer(X, MEMORY[:, :2])))
    with pytest.raises(ValueError, match="attends to a memory"):
        layers.RNN(cell)(X, initial_state=[[STATE, STATE[:, :1]]])


# Sizes that a graph does not know

ATTENTIONS = {
    "dot": lambda: Attention(2, 4),
    "grouped": lambda: ka.MultiHeadAttention(4, 4, num_key_value_heads=2, position="rotary"),
    "Shaw": lambda: Attention(2, 4, position=ka.positions.Shaw(2)),
    "biased": lambda: Attention(2, 4, position="relative_bias", use_sink=True),
    "additive": lambda: Attention(2, 4, score="additive"),
}


@pytest.mark.ci
@on_tensorflow
@pytest.mark.parametrize("name", ATTENTIONS)
def test_xla_compiles_its_gradient_where_the_batch_is_unknown(name):
    """A step changes the weights as it does without XLA; of every other, lengths are unknown."""
    lengths = (S, T) if list(ATTENTIONS).index(name) % 2 else (None, None)
    source, x = keras.Input((lengths[0], M)), keras.Input((lengths[1], D))
    rnn = AttentionRNN(AttentionCell(layers.GRUCell(H), ATTENTIONS[name]()), return_sequences=True)
    model = keras.Model([source, x], rnn(x, source))
    start, found = [wide(weight) for weight in model.weights], []
    for jit in (True, False):
        for weight, value in zip(model.weights, start, strict=True):
            weight.assign(value)
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit)
        # Without `batch_size`, TensorFlow's graph is one of any batch.
        model.fit([MEMORY, X], random(B, T, H, seed=5), verbose=0)
        found.append([wide(weight) for weight in model.weights])
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs)


@pytest.mark.ci
@on_tensorflow
@pytest.mark.parametrize("name", [None, *alignments.BUILTIN])
def test_memories_of_a_length_that_a_graph_does_not_know(name):
    import tensorflow as tf

    cell = AttentionCell(layers.GRUCell(H), "additive", mode="luong", alignment=name)
    rnn = made(cell)
    sizes = [tf.TensorSpec((None, None, array.shape[-1])) for array in (X, MEMORY)]

    @tf.function(autograph=False, input_signature=sizes)
    def step(*arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            outputs = rnn(*arrays)
        return outputs, tape.gradient(outputs, arrays)

    for length in (S, S - 2):
        given = X, MEMORY[:, :length]
        outputs, slopes = step(*given)
        close(outputs, rnn(*given))
        for found, array in zip(slopes, given, strict=True):
            assert found.shape == array.shape and np.isfinite(found).all()
