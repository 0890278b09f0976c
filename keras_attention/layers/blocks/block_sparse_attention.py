"""`BlockSparseAttention`: the attention of published BigBirds, in use."""

import math
from typing import Any, ClassVar

from keras import ops

from keras_attention import patterns, saving
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.sequences import shapes
from keras_attention.spec import PositionBias


class BlockSparseAttention(MultiHeadAttention):
    """Attention of BigBird as `transformers` computes it in use, of rows of any length.

    Rows of up to (5 + 2 · count) · size places attend to all. In longer ones each block of `size`
    queries sees itself, the blocks before and after it, and the first and the last block, which
    see all. The `count` random blocks of training are the first one in use: in the softmax of all
    but both ends it counts 1 + count times.
    """

    own_traits: ClassVar = {
        "needs_positions": True,
        "refused": ("use_causal_mask",),
        "refusal": "has blocks that attend to later ones",
        **dict.fromkeys(("no_decoding_reason", "no_cache_reason"), "all attend to its last block"),
    }
    _fixed_arguments = (
        *("pattern", "position", "sliding_window", "attention_axes", "flash_attention", "reuse"),
        "value_norm",
    )

    def __init__(self, num_heads: int, key_dim: int, size: int, count: int, **kwargs: Any):
        saving.check_free(type(self), kwargs)
        super().__init__(num_heads, key_dim, **kwargs)
        self.size = shapes.check_count("size", size)
        self.count = shapes.check_count("count", count)

    def attend(self, query, key, value, positions, training=None, **given):
        length, size = key.shape[1], self.size
        if length is None:
            raise ValueError(
                "Blocks at both ends need a length that is known when a program is made: give the "
                f"inputs one. Received: key.shape={tuple(key.shape)}"
            )
        if length > (5 + 2 * self.count) * size:
            last = (-(-length // size) - 1) * size
            given["pattern"] = patterns.Block(size, reach=1) | patterns.Global(size, last)

            def counted(i, j):
                inner = (i >= size) & (i < last) & (j < size)
                return math.log(1 + self.count) * ops.cast(inner, "float32")

            given["position_biases"] = (PositionBias(counted, bounded=True),)
        return super().attend(query, key, value, positions, training, **given)
