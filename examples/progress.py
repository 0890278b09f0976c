"""How far training with `fit` is, on a terminal and elsewhere."""

import sys
import time

import keras
import numpy as np

# Seconds between two lines of progress where output is not a terminal.
LINE_EVERY = 60


class Progress(keras.callbacks.Callback):
    """How far an epoch is: a bar on a terminal, and elsewhere a line a minute.

    Args:
        batches: an object whose `tokens` lists how many each batch of an epoch has.

    Attributes:
        seconds: what the last finished epoch took.
    """

    def __init__(self, batches):
        super().__init__()
        self.batches = batches
        self.terminal = sys.stdout.isatty()

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch + 1
        self.start = self.shown = time.perf_counter()

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            self.tokens = np.cumsum(self.batches.tokens)

    def on_train_batch_end(self, batch, logs=None):
        if self.terminal or time.perf_counter() - self.shown >= LINE_EVERY:
            self.shown = time.perf_counter()
            self._show(batch + 1, len(self.tokens), logs["loss"], self.tokens[batch])

    def on_epoch_end(self, epoch, logs=None):
        self.seconds = time.perf_counter() - self.start
        if self.terminal:
            print()

    def _show(self, done, steps, loss, tokens):
        seconds = self.shown - self.start
        left = int(seconds / done * (steps - done))
        rest = (
            f"loss {loss:.3f}  {tokens / seconds:,.0f} tokens/s  {left // 60}:{left % 60:02} left"
        )
        if self.terminal:
            bar = "█" * (24 * done // steps)
            print(f"\repoch {self.epoch} [{bar:24}] {done}/{steps}  {rest}  ", end="", flush=True)
        else:
            print(f"epoch {self.epoch}, step {done}/{steps}  {rest}", flush=True)
