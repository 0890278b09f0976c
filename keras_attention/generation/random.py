"""Random numbers by row: of a seed, a row and a step, whatever else is drawn beside them."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_attention.backend import backend
from keras_attention.core.hints import Seed, Tensor
from keras_attention.sequences import shapes

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def streams(seed: Seed, rows: int) -> tuple[Tensor, Tensor]:
    """What identifies the numbers of each row: two words (B, 2) of its seed, and an index (B,).

    Args:
        seed: an integer, with which row n has the n-th stream of that seed; integers (B,), with
            which each row has the first stream of its own; a `keras.random.SeedGenerator`, which
            advances; or None for Keras's own.
        rows: B.
    """
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        words = ops.convert_to_tensor([_signed(seed), _signed(seed >> 32)], "int32")
    elif shapes.is_array(seed) or isinstance(seed, (list, tuple)):
        words = ops.convert_to_tensor(seed)
        if len(words.shape) != 1 or "int" not in str(words.dtype):
            raise ValueError(
                "`seed` must be an integer, a generator, or integers (B,), one for each row. "
                f"Received: {seed!r}"
            )
        shapes.check_same("Rows of `tokens` and of `seed`", tokens=rows, seed=words.shape[0])
        words = ops.cast(words, "int32")
        # The second word of a Python integer is its sign.
        return ops.stack([words, ops.right_shift(words, 31)], axis=1), ops.zeros_like(words)
    else:
        words = ops.cast(backend.uniform((2,), seed) * 2.0**24, "int32")
    return ops.tile(words[None], (rows, 1)), ops.arange(rows, dtype="int32")


def uniform(words: Tensor, rows: Tensor, count: int) -> Tensor:
    """Float32 numbers in [0, 1), two for each of `count` steps and each row: (B, count, 2).

    They are of Threefry-2x32 with 20 rounds (Salmon et al. 2011), whose numbers depend on a key
    and a counter alone: the key on a row's stream, the counter on the step.
    """
    zeros = ops.zeros_like(rows)
    key = [word[:, None] for word in _threefry((words[:, 0], words[:, 1]), (rows, zeros))]
    step = ops.arange(count, dtype="int32") + zeros[:, None]
    bits = ops.stack(_threefry(key, (step, ops.zeros_like(step))), axis=2)
    return ops.cast(_shifted(bits, 8), "float32") * 2.0**-24


def _signed(word):
    """The lowest 32 bits of an integer, as an int32."""
    return (int(word) + 2**31) % 2**32 - 2**31


def _shifted(bits, count):
    """To the right, with zeros from the left: PyTorch has no arithmetic of unsigned integers."""
    return ops.bitwise_and(ops.right_shift(bits, count), 2 ** (32 - count) - 1)


def _threefry(key, counter):
    """Two words for two words of a key and two of a counter, all of int32, whose sums wrap."""
    last = ops.bitwise_xor(ops.bitwise_xor(key[0], key[1]), PARITY)
    keys = (*key, last)
    first, second = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            first = first + second
            high = ops.left_shift(second, rotation)
            second = ops.bitwise_or(high, _shifted(second, 32 - rotation))
            second = ops.bitwise_xor(second, first)
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + (group + 1)
    return first, second
