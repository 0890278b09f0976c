"""Alignments of `AttentionCell`: their recurrences in float64, masks, stepping, saving."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import Attention, AttentionCell, AttentionRNN, alignments, regularizers, scores
from tests.arrays import numpy, random
from tests.layers.small_cells import MASK, MEMORY, STATE, B, D, H, S, T, X, gru, weights_drawn

layers, ops = keras.layers, keras.ops

# Of the left and of the right side.
SIDES = {"right": MASK, "left": MASK[:, ::-1]}


def made(alignment, mode="bahdanau", score=None, **options):
    """A layer with an alignment, and drawn weights."""
    attention = Attention(score=score or scores.Additive(5), **options)
    cell = AttentionCell(
        layers.GRUCell(H),
        attention,
        mode=mode,
        output_context=mode == "bahdanau",
        return_attention_scores=True,
        alignment=alignment,
    )
    rnn = AttentionRNN(cell, return_sequences=True)
    rnn.build(X.shape, MEMORY.shape)
    weights_drawn(rnn)
    return rnn


def wide(weight):
    return numpy(weight).astype("float64")


def softmax(e):
    powers = np.exp(e - e.max())
    return powers / powers.sum()


def hidden_units(score, query, memory):
    """W q + W' k + b for each position of one row."""
    named = {w.name: wide(w)[0] for w in score.weights}
    return query @ named["query_kernel"] + memory @ named["key_kernel"] + named["bias"], named["v"]


def location_sensitive(layer, query, memory, states, units, v):
    """One step of one row: weights, and the weights of all steps before with this one."""
    history = {"previous": states[-1:], "cumulative": [sum(states)]}
    history["both"] = history["previous"] + history["cumulative"]
    filters, kernel = wide(layer.convolution), wide(layer.kernel)[0]
    channels = np.stack(history[layer.history], -1)
    left = (len(filters) - 1) // 2
    for s in range(len(memory)):
        for i, taps in enumerate(filters):
            if 0 <= s + i - left < len(memory):
                units[s] += channels[s + i - left] @ taps @ kernel
    return softmax(np.tanh(units) @ v)


def coverage(layer, query, memory, states, units, v):
    return softmax(np.tanh(units + np.outer(sum(states), wide(layer.kernel)[0])) @ v)


def by_the_papers(rnn, step, memory, mask):
    """Outputs [c_t; h_t] and weights of a Bahdanau decoder of GRUs, by loops over real tokens."""
    cell, outputs = rnn.cell, np.zeros((B, T, MEMORY.shape[-1] + H))
    alignment = np.zeros((B, T, S))
    for b in range(B):
        real, h = memory[b, mask[b]].astype("float64"), STATE[b : b + 1].astype("float64")
        states = [np.zeros(len(real))]
        for t in range(T):
            units, v = hidden_units(cell.attention.score, h[0], real)
            weights = step(cell.alignment, h[0], real, states, units, v)
            states.append(weights)
            context = weights @ real
            h, _ = gru(cell.cell, np.concatenate([X[b : b + 1, t], context[None]], -1), [h])
            outputs[b, t], alignment[b, t, mask[b]] = np.concatenate([context, h[0]]), weights
    return outputs, alignment


WAYS = {
    "previous": (lambda: alignments.LocationSensitive(3, 3), location_sensitive),
    "cumulative": (
        lambda: alignments.LocationSensitive(3, 4, history="cumulative"),
        location_sensitive,
    ),
    "both": (lambda: alignments.LocationSensitive(2, 3, history="both"), location_sensitive),
    "coverage": (alignments.Coverage, coverage),
}
NAMES = list(alignments.BUILTIN)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("way", WAYS)
def test_is_the_recurrence_of_its_paper(way, side):
    make, step = WAYS[way]
    rnn, mask = made(make()), SIDES[side]
    garbage = np.where(mask[..., None], MEMORY, np.nan).astype("float32")
    found = rnn(X, garbage, initial_state=STATE, memory_mask=mask)
    for one, expected in zip(found, by_the_papers(rnn, step, MEMORY, mask), strict=True):
        one = numpy(one)[:, 0] if one.shape[1] == 1 else numpy(one)
        np.testing.assert_allclose(one, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_in_keras_layers_and_by_hand_it_is_the_same_loop(name):
    rnn = made(name, mode="luong")
    cell = rnn.cell
    expected, weights = rnn(X, MEMORY, initial_state=STATE, memory_mask=MASK)
    start = cell.initial_state(MEMORY, STATE, MASK)
    outputs = layers.RNN(cell, return_sequences=True)(X, initial_state=start)
    for one, other in zip(cell.split_outputs(outputs), (expected, weights), strict=True):
        np.testing.assert_allclose(numpy(one), numpy(other), rtol=1e-5, atol=1e-5)
    states, stepped = cell.start_states(MEMORY, STATE, MASK), []
    assert all(state.shape[0] == B for state in keras.tree.flatten(states))
    for t in range(T):
        output, states = cell(X[:, t], states)
        stepped.append(numpy(output))
    np.testing.assert_allclose(np.stack(stepped, 1), numpy(outputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_masked_step_changes_no_state_and_a_call_goes_on(name):
    rnn = made(name)
    rnn.return_state = True
    kept = np.array([[True, True, False, True]] * B)
    expected, weights, _ = rnn(X[:, [0, 1, 3]], MEMORY)
    found, aligned, _ = rnn(X, MEMORY, mask=kept)
    np.testing.assert_allclose(numpy(found)[:, [0, 1, 3]], numpy(expected), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(numpy(aligned)[:, :, 3], numpy(weights)[:, :, 2], atol=1e-5)
    whole, _, _ = rnn(X, MEMORY)
    _, _, states = rnn(X[:, :2], MEMORY)
    rest, _, _ = rnn(X[:, 2:], MEMORY, initial_state=states)
    np.testing.assert_allclose(numpy(rest), numpy(whole)[:, 2:], rtol=1e-5, atol=1e-5)
    with pytest.raises(
        ValueError, match=r"Lengths of states of the alignment .*memory=4, states=6"
    ):
        rnn(X, MEMORY[:, :4], initial_state=[states[0][:, :-2], *states[1:]])


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_unknown_lengths_trains_and_loads(name, tmp_path):
    x, memory = keras.Input((None, D)), keras.Input((None, MEMORY.shape[-1]))
    attention = Attention(2, 4, score="additive")
    cell = AttentionCell(layers.GRUCell(H), attention, mode="luong", alignment=name)
    output = AttentionRNN(cell, return_sequences=True)(x, layers.Masking()(memory))
    model = keras.Model([x, memory], output)
    target = numpy(output_of := model([X, MEMORY])) * 0
    model.compile("adam", "mse")
    before = [numpy(w) for w in cell.alignment.trainable_weights]
    model.fit([X, MEMORY], target, epochs=1, verbose=0)
    assert all(np.isfinite(numpy(w)).all() for w in model.weights)
    for weight, old in zip(cell.alignment.trainable_weights, before, strict=True):
        assert np.abs(numpy(weight) - old).max() > 0
    assert output_of.shape == (B, T, H + 8)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    expected = model.predict([X, MEMORY], verbose=0)
    np.testing.assert_allclose(loaded.predict([X, MEMORY], verbose=0), expected, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_in_mixed_precision_sums_stay_in_float32(name):
    with_policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    attention = Attention(score=scores.Additive(5), dtype=with_policy)
    cell = AttentionCell(
        layers.GRUCell(H, dtype=with_policy), attention, alignment=name, dtype=with_policy
    )
    rnn = AttentionRNN(cell, return_sequences=True, dtype=with_policy)
    output = rnn(X, MEMORY)
    assert output.dtype == ops.cast(X, "bfloat16").dtype
    assert np.isfinite(numpy(ops.cast(output, "float32"))).all()
    states = keras.tree.flatten(cell.start_states(ops.cast(MEMORY, "bfloat16")))
    assert keras.backend.standardize_dtype(states[2].dtype) == "float32"


# Losses of the weights


@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("name", ["coverage", "guided", "doubly_stochastic"])
def test_a_recurrent_layer_adds_the_loss_of_its_weights(name, return_sequences):
    attention = Attention(score="additive", scores_regularizer=name)
    cell = AttentionCell(layers.GRUCell(H), attention)
    rnn = AttentionRNN(cell, return_sequences=return_sequences)
    kept = np.array([[True] * T, [False, True, True, True], [True, True, False, False]])
    output = rnn(X, MEMORY, mask=kept, memory_mask=MASK)
    (loss,) = rnn.losses
    cell.return_attention_scores = True
    expected, weights = AttentionRNN(cell, return_sequences=True)(
        X, MEMORY, mask=kept, memory_mask=MASK
    )
    expected = expected if return_sequences else expected[:, -1]
    np.testing.assert_allclose(numpy(output), numpy(expected), rtol=1e-5, atol=1e-6)
    weights = numpy(weights) * kept[:, None, :, None]
    mask = kept[:, None, :, None] & MASK[:, None, None]
    expected = regularizers.get(name)(ops.convert_to_tensor(weights), ops.convert_to_tensor(mask))
    np.testing.assert_allclose(numpy(loss), numpy(expected), rtol=1e-5)


def test_the_loss_reads_positions_of_real_steps_backwards_too():
    pattern = ka.patterns.SlidingWindow(1, 1)
    attention = Attention(score="dot", pattern=pattern, scores_regularizer="doubly_stochastic")
    rnn = AttentionRNN(AttentionCell(layers.GRUCell(7), attention), go_backwards=True)
    mask = np.array([[False, True, True, True]] * B)
    rnn(X, MEMORY, mask=mask)
    (loss,) = rnn.losses
    again = AttentionRNN(rnn.cell)
    again(X[:, :0:-1], MEMORY)
    np.testing.assert_allclose(numpy(loss), numpy(again.losses[0]), rtol=1e-5)


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: alignments.get("nowhere"), r"Unknown alignment 'nowhere'\. Expected one of"),
        (
            lambda: AttentionCell(layers.GRUCell(8), "dot", alignment="coverage"),
            r"inside the tanh of a score, which must be `Additive` or `Concat`.*Received: score=<D",
        ),
        (
            lambda: AttentionCell(
                layers.GRUCell(8),
                Attention(4, 8, score="additive", num_key_value_heads=2),
                alignment="coverage",
            ),
            r"as many key heads as heads.*Received: num_key_value_heads=2, num_heads=4",
        ),
        (
            lambda: alignments.LocationSensitive(history="none"),
            r"`history` must be one of .*Received: history='none'",
        ),
        (
            lambda: layers.RNN(
                cell := AttentionCell(
                    layers.GRUCell(8), Attention(score="additive", scores_regularizer="coverage")
                )
            )(X, initial_state=cell.initial_state(MEMORY)),
            r"`keras.layers.RNN` cannot add the loss of a `scores_regularizer`.*CoverageLoss",
        ),
    ],
)
def test_what_does_not_work_is_an_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_alignment_must_implement_its_methods():
    with pytest.raises(TypeError, match="Alignment must implement `attend`"):
        alignments.Alignment().attend(None, None, None, [], [], False)
    with pytest.raises(TypeError, match="must implement `term"):
        alignments.base.OfAdditive().term([random(B, 1, S)])
