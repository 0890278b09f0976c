"""`WindowAttention`: windows of a grid of any size, each of which is a row of the batch"""

from typing import Any, ClassVar

import keras
from keras import ops

from keras_attention import saving
from keras_attention.core.hints import Tensor
from keras_attention.layers.embeddings import patches
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.sequences import masks, shapes


class Padding(saving.ConfigurableLayer):
    """Adds zeros at the end of the rows and columns of a grid, up to multiples of `size`."""

    def __init__(self, size: int | tuple[int, int], **kwargs: Any):
        super().__init__(**kwargs)
        self.size = shapes.check_axes("size", size, (1, 1))

    def call(self, x: Tensor) -> Tensor:
        return padded(x, self.size)

    def compute_output_shape(self, x_shape):
        batch, *sides, features = x_shape
        pairs = zip(sides, self.size, strict=True)
        return (batch, *(n if n is None else n + -n % size for n, size in pairs), features)


def padded(x, sizes):
    """An array (B, height, width, …) with zeros up to multiples of `sizes`."""
    after = [-n % size for n, size in zip(ops.shape(x)[1:3], sizes, strict=True)]
    if all(isinstance(n, int) and n == 0 for n in after):
        return x
    return ops.pad(x, [(0, 0), *((0, n) for n in after), *[(0, 0)] * (len(x.shape) - 3)])


class WindowAttention(MultiHeadAttention):
    """Attention in windows of a grid (B, height, width, D) of any size, as of Swin Transformers.

    As `patterns.GridWindow` of one grid, with a `shift` that is 0 where a window is as long as a
    side of the grid, unless it is a `fixed_shift`. A grid of other sides is padded with zeros to
    whole windows, as in published models: cells attend to the zeros. `position` is of a window,
    such as `GridRelativeBias((size, size))`.
    """

    _masks = None  # type: ignore[assignment]
    own_traits: ClassVar = {"refusal": "takes a grid, its mask, and no other arguments"}
    _fixed_arguments = (
        *("pattern", "sliding_window", "attention_axes", "flash_attention", "reuse", "value_norm"),
    )

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        size: int,
        shift: int = 0,
        fixed_shift: bool = False,
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        super().__init__(num_heads, key_dim, **kwargs)
        self.size = shapes.check_count("size", size)
        self.shift = shapes.check_count("shift", shift, minimum=0)
        self.fixed_shift = shapes.check_flag("fixed_shift", fixed_shift)
        self._sizes = (self.size, self.size)

    def build(self, query_shape):  # type: ignore[override]
        super().build((query_shape[0], self.size**2, query_shape[-1]))

    def call(  # type: ignore[override]
        self, query, query_mask=None, return_attention_scores=False, training=None, **others
    ):
        self._refuse(others)
        mask, sides, sizes = masks.padding(query, query_mask), ops.shape(query)[1:3], self._sizes
        x, given, shift = padded(query, sizes), {}, self.shift
        whole = ops.shape(x)[1:3]
        if all(isinstance(side, int) for side in sides):
            shift = shift if self.fixed_shift or min(sides) > self.size else 0
        elif not self.fixed_shift:
            shift = shift and ops.where(ops.minimum(*sides) > self.size, shift, 0)
        if mask is not None:
            # As without a mask, cells attend to what is beyond the grid.
            real = ops.logical_not(padded(ops.logical_not(mask), sizes))
            given["query_mask"] = self._windows(real[..., None], shift)[..., 0]
        if self.shift:
            # The rotation brings those together that are not side by side.
            first, second = (ops.cast(ops.arange(n) < shift, "int32") for n in whole)
            parts = ops.broadcast_to(2 * first[:, None] + second, ops.shape(x)[:3])
            given["segment_ids"] = self._windows(parts[..., None], shift)[..., 0]
        given |= {"return_attention_scores": return_attention_scores, "training": training}
        found = super().call(self._windows(x, shift), **given)
        output, *scores = found if isinstance(found, tuple) else (found,)
        counts, features = [n // self.size for n in whole], query.shape[-1]
        output = ops.reshape(output, (-1, *counts, *sizes, features))
        output = ops.reshape(ops.transpose(output, (0, 1, 3, 2, 4, 5)), (-1, *whole, features))
        output = ops.roll(output, (shift, shift), (1, 2))[:, : sides[0], : sides[1]]
        output = masks.carry(output, mask)
        return (output, *scores) if scores else output

    def _windows(self, x, shift):
        """The windows (B · windows, size², n) of a rotated grid (B, height, width, n)."""
        x = ops.roll(x, (-shift, -shift), (1, 2))
        groups = patches.grouped(x, ops.shape(x)[1:3], self._sizes, True)
        return ops.reshape(groups, (-1, self.size**2, x.shape[-1]))

    def compute_output_shape(self, query_shape):  # type: ignore[override]
        return tuple(query_shape)

    def compute_output_spec(self, query, query_mask=None, return_attention_scores=False, **others):
        others.pop("training", None)
        self._refuse(others)
        masks.padding(query, query_mask)
        scores = (None, self.num_heads, self.size**2, self.size**2)
        found = [keras.KerasTensor(shape, self.compute_dtype) for shape in (query.shape, scores)]
        return tuple(found) if return_attention_scores else found[0]
