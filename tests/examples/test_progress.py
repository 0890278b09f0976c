"""What is shown while an example trains."""

import sys
import types

import pytest

from examples import progress


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(terminal, monkeypatch, capsys):
    now = [0.0]
    clock = types.SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    batches = types.SimpleNamespace(tokens=[600, 600, 1200, 600])
    shown = progress.Progress(batches)
    shown.on_epoch_begin(1)
    for step in range(4):
        shown.on_train_batch_begin(step)
        now[0] += 40
        shown.on_train_batch_end(step, {"loss": 4.0 - step})
    shown.on_epoch_end(1)
    out = capsys.readouterr().out
    # Steps end after 40, 80, 120 and 160 s: one line in a minute, that of 80 s.
    line = "step 2/4  loss 3.000  15 tokens/s  1:20 left\n"
    if terminal:
        assert out.count("\r") == 4 and "2/4  loss 3.000  15 tokens/s  1:20 left" in out
    else:
        assert out == f"epoch 2, {line}epoch 2, step 4/4  loss 1.000  19 tokens/s  0:00 left\n"
    assert shown.seconds == 160
