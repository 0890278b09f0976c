"""`AttentionCell`: the recurrences of the two papers, inside `keras.layers.RNN` and by hand."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, AttentionCell, patterns, scores
from tests.arrays import numpy, random
from tests.gradients import gradients
from tests.layers.small_cells import (
    CELLS,
    MASK,
    MEMORY,
    STATE,
    B,
    H,
    M,
    S,
    T,
    X,
    by_the_papers,
    gru,
    lstm,
    made,
    simple,
    stacked,
)

layers, ops = keras.layers, keras.ops


ADDITIVE = scores.Additive(9)
WAYS = [
    (gru, ADDITIVE, {}),
    (gru, "general", {"output_context": True}),
    (gru, "general", {"attention_dim": 6}),
    (lstm, "general", {"mode": "luong", "attention_dim": 6}),
    (gru, ADDITIVE, {"mode": "luong"}),
    (gru, "general", {"mode": "luong", "attention_dim": 6, "input_feeding": False}),
    (lstm, "additive", {}),
    (simple, "general", {}),
    (stacked, "general", {}),
    (stacked, "general", {"mode": "luong", "attention_dim": 6}),
]


@pytest.mark.parametrize(
    ("step", "score", "arguments", "window"),
    [*((*way, None) for way in WAYS), (*WAYS[1], 1), (*WAYS[3], 1)],
    ids=lambda v: getattr(v, "__name__", None) or getattr(v, "name", None) or str(v),
)
def test_is_what_the_papers_say(step, score, arguments, window):
    pattern = None if window is None else patterns.SlidingWindow(window, window)
    if isinstance(score, scores.Score):
        score = type(score).from_config(score.get_config())
    attention = Attention(score=score, pattern=pattern)
    cell = AttentionCell(CELLS[step](), attention, return_attention_scores=True, **arguments)
    rnn = made(cell, return_state=True)
    sizes = keras.tree.flatten(cell.cell.state_size)
    states = [0.5 * random(B, size, seed=10 + i) for i, size in enumerate(sizes)]
    outputs, after = rnn(X, initial_state=cell.initial_state(MEMORY, states, MASK))
    outputs, alignments = cell.split_outputs(outputs)
    expected, weights = by_the_papers(cell, step, X, MEMORY, states, MASK, window)
    np.testing.assert_allclose(numpy(outputs), expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(numpy(alignments)[:, 0], weights, rtol=2e-5, atol=2e-5)
    has_keys = (weights > 0).any(-1)
    np.testing.assert_allclose(numpy(alignments).sum(-1)[:, 0], has_keys, atol=1e-5)
    assert (numpy(alignments)[:, 0][weights == 0] == 0).all()
    assert numpy(after[-1]).tolist() == [[T]] * B


def test_dot_compares_states_with_a_memory_of_their_size():
    cell = AttentionCell(layers.GRUCell(M), "dot", mode="luong", attention_dim=4)
    rnn = layers.RNN(cell)
    start = cell.initial_state(MEMORY, MEMORY[:, -1])
    last = rnn(X, initial_state=start)
    expected, _ = by_the_papers(cell, gru, X, MEMORY, [MEMORY[:, -1]], MASK | True)
    np.testing.assert_allclose(numpy(last), expected[:, -1], rtol=1e-5, atol=1e-5)


def test_location_refuses_a_longer_memory_in_a_program():
    cell = AttentionCell(layers.GRUCell(H), Attention(2, 3, score=scores.Location(S)))
    rnn = made(cell)
    x, memory = keras.Input(X.shape[1:]), keras.Input((None, MEMORY.shape[-1]))
    model = keras.Model([x, memory], rnn(x, initial_state=cell.initial_state(memory)))
    assert np.isfinite(model.predict([X, MEMORY], verbose=0)).all()
    longer = np.repeat(MEMORY, 2, axis=1)
    try:
        found = model.predict([X, longer], verbose=0)
    except Exception as error:
        assert "at most max_length" in str(error) or "Location" in str(error)
    else:
        assert np.isnan(found).any()


# Masks


@pytest.mark.parametrize("attention_dim", [None, 3])
def test_continued_with_a_memory_of_another_length(attention_dim):
    def outputs(**arguments):
        cell = AttentionCell(
            layers.GRUCell(H), "general", mode="luong", attention_dim=attention_dim, **arguments
        )
        rnn = made(cell, return_state=True)
        _, states = rnn(X, initial_state=cell.initial_state(MEMORY))
        start = cell.initial_state(random(B, S + 3, M, seed=4), states)
        return cell, rnn(X, initial_state=start)[0]

    cell, found = outputs(return_attention_scores=True)
    features, alignments = cell.split_outputs(found)
    assert alignments.shape == (B, 1, T, S + 3)
    np.testing.assert_allclose(numpy(alignments).sum(-1), 1, rtol=1e-5)
    _, expected = outputs()
    np.testing.assert_allclose(numpy(features), numpy(expected), rtol=1e-5, atol=1e-6)


# Gradients


def test_a_state_of_the_right_structure_has_a_gradient():
    cell = AttentionCell(layers.LSTMCell(H), "general")
    rnn = made(cell)

    def total(h, c):
        return rnn(X, initial_state=cell.initial_state(MEMORY, [h, c]))

    for gradient in gradients(total, [STATE, STATE]):
        assert np.abs(gradient).max() > 1e-4


def test_keys_are_projected_once(monkeypatch):
    score = scores.Additive(4)
    cell = AttentionCell(layers.GRUCell(H), Attention(score=score))
    rnn = made(cell, unroll=True)
    prepared = []
    for name in ("prepare_key", "prepare_query"):
        method = getattr(score, name)
        monkeypatch.setattr(score, name, lambda x, f=method, n=name: prepared.append(n) or f(x))
    rnn(X, initial_state=cell.initial_state(MEMORY))
    assert sorted(prepared) == ["prepare_key"] + ["prepare_query"] * T
