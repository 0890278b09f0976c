"""Where queries and keys stand: consecutive from an offset, or anywhere."""

import dataclasses

import keras

ops = keras.ops


@dataclasses.dataclass(frozen=True)
class Positions:
    """Absolute positions of queries and keys, as arrays and as what is known of them.

    `query` is an integer array (T,) or (B, T), `key` is (S,) or (B, S). `consecutive` says that
    queries stand at `offset`, `offset` + 1, …, the same in each row, and keys at 0, 1, ….
    """

    query: object
    key: object
    consecutive: bool
    offset: object = 0


def place(query_length, key_length, query_positions=None, key_positions=None, offset=0):
    """`Positions` from positions that may be None, which count from `offset` and from 0.

    `offset` is a number or an integer array without axes, or (B,) for one of each row.
    """
    rank = len(getattr(offset, "shape", ()))
    consecutive = query_positions is None and key_positions is None and rank == 0
    if query_positions is None:
        start = offset[:, None] if rank else offset
        query_positions = start + ops.arange(query_length, dtype="int32")
    if key_positions is None:
        key_positions = ops.arange(key_length, dtype="int32")
    return Positions(query_positions, key_positions, consecutive, offset)
