"""Prompts: the beginnings of texts that a decoder goes on from, checked before any work."""

from collections.abc import Sized

import keras
import numpy as np

from keras_attention.sequences import masks, shapes


def tokens(name, rows):
    """Integers (B, T), T ≥ 1, of any form of them.

    Raises:
        ValueError: rows are of several lengths, or there are not two axes, or no tokens.
        TypeError: they are not integers.
    """
    if not shapes.is_array(rows):
        try:
            rows = np.asarray(rows)
        except ValueError as error:
            lengths = [len(row) if isinstance(row, Sized) else 1 for row in rows]
            raise ValueError(
                f"`{name}` must have rows of one length: pad shorter ones on the left, and say "
                f"so in a mask. Received: rows of lengths {lengths}"
            ) from error
        except (NotImplementedError, TypeError, RuntimeError):
            # Rows of tensors that are being traced.
            rows = keras.ops.convert_to_tensor(rows)
    dtype = str(rows.dtype)
    if "int" not in dtype and 0 not in rows.shape:
        raise TypeError(f"`{name}` must be integers (batch, positions). Received dtype {dtype}")
    shapes.check_rank(name, rows, 2, "(batch, positions)")
    if rows.shape[1] == 0:
        raise ValueError(f"`{name}` must have a token. Received: {name}.shape={tuple(rows.shape)}")
    return keras.ops.cast(rows, "int32")


def mask(given, prompt):
    """The mask (B, T) of a prompt, of any form of it; None stays None.

    Raises:
        ValueError: it does not have the shape of the prompt, or is not of 0 and 1.
    """
    given = masks.boolean("mask", given)
    if given is not None:
        # One row for all of a batch is not taken: it is stored in the cache.
        shapes.check_rank("mask", given, 2, "(batch, positions)")
        what = "Batch sizes of `prompt` and its mask"
        shapes.check_same(what, prompt=prompt.shape[0], mask=given.shape[0])
    return masks.padding(prompt, given, "prompt", features=False)


def check(prompt, mask, max_tokens, positions):
    """Raises where it can be seen that steps after a prompt would go wrong.

    Args:
        prompt: (B, T).
        mask: boolean (B, T), or None for real tokens alone.
        max_tokens: how many may follow.
        positions: the layer of absolute positions, or None.
    """
    values, longest = None, prompt.shape[1]
    if mask is not None:
        values = shapes.visible_values(mask)
        longest = None if values is None else int(np.max(np.sum(values, axis=1), initial=1))
    # A prompt of one token is a start token, which may equal the padding token, as in T5.
    if values is not None and values.shape[1] > 1 and not values[:, -1].all():
        row = int(np.argmin(values[:, -1]))
        raise ValueError(
            "The last token of each prompt is what the first step reads, and must be real: pad on "
            f"the left. Received: mask[{row}]={values[row].tolist()}"
        )
    most = getattr(positions, "max_length", None)
    # The last of the tokens that follow is never read.
    if None not in (most, longest) and longest + max_tokens - 1 > most:
        raise ValueError(
            f"A prompt and `max_tokens` must fit into the {most} positions of the model. Received: "
            f"a prompt of {longest} tokens and max_tokens={max_tokens}"
        )
