"""Folds stretches of a sequence into the batch, for kernels that compute each by itself."""

import functools

import keras
import numpy as np
from keras import ops

from keras_attention.backend import backend
from keras_attention.sequences import shapes
from keras_attention.spec import cut


def linear(function, pullback, array):
    """`function` of an array, whose gradient is a sum that `pullback` takes, and is rounded once.

    The gradients of frameworks scatter, or are slow otherwise.
    """
    if "float" not in keras.backend.standardize_dtype(array.dtype):
        return function(array)

    def forward(array):
        return (function(array),), ()

    def backward(arrays, outputs, saved, upstream):
        wide = ops.cast(upstream[0], shapes.accumulation_dtype(upstream[0]))
        return (ops.cast(pullback(wide), array.dtype),)

    return backend.custom_vjp(lambda _: (forward, backward), [array], saves=False)[0]


def reordered(x, order, inverse):
    """Tokens of `x` (B, T, …) in an order (B, T). The gradient uses the inverse, without a sum."""
    shape = backend.shape(x)

    def make(orders):
        def forward(x):
            return (backend.take_rows(x, orders[0]),), ()

        def backward(arrays, outputs, saved, upstream):
            return (backend.take_rows(upstream[0], orders[1]),)

        return forward, backward

    rows = x if len(shape) == 3 else ops.reshape(x, (*shape[:2], -1))
    found = backend.custom_vjp(make, [rows], (order, inverse), saves=False)[0]
    return found if len(shape) == 3 else ops.reshape(found, shape)


def real_first(mask):
    """The order (B, T) of tokens with those of a mask first, each kind as before; its inverse."""
    real = ops.cast(mask, "int32")
    before = ops.cumsum(real, axis=1)
    batch, length = backend.shape(mask)
    at = ops.arange(length, dtype="int32")
    inverse = ops.where(mask, before - 1, before[:, -1:] + at - before)
    # Indices are written to their positions, not sorted: exported programs of PyTorch cannot sort.
    rows = length * ops.arange(batch, dtype="int32")[:, None]
    places = ops.reshape(rows + inverse, (-1,))
    at = ops.reshape(ops.broadcast_to(at, (batch, length)), (-1, 1))
    order = backend.write_rows(ops.zeros_like(at), places, at)
    return ops.reshape(order, (batch, length)), inverse


class Fold:
    """Folds arrays with T or S, not both, into parts: stretches of a row, or elements `apart`.

    Args:
        batch: B.
        count: the number of parts of a row.
        queries, keys: (function, size) of each: `function(array, axis)` returns the elements of all
            parts, each of which has `size`.
    """

    def __init__(self, batch, count, queries, keys, apart=False):
        self.batch, self.count, self.apart = batch, count, apart
        self.parts = {"t": queries, "s": keys}

    def along(self, array, axis, letter):
        """(B · count, …, size, …) of an array whose axis has the queries, "t", or keys, "s"."""
        function, size = self.parts[letter]
        array, apart = function(array, axis), self.apart
        shape = list(ops.shape(array))
        sizes = (size, self.count) if apart else (self.count, size)
        split = ops.reshape(array, (*shape[:axis], *sizes, *shape[axis + 1 :]))
        split = ops.moveaxis(split, axis + apart, 1)
        shape[axis] = size
        return ops.reshape(split, (shape[0] * self.count, *shape[1:]))

    def __call__(self, array, axes="bhts"):
        """As `function` of `spec.mapped`."""
        if axes[0] != "b":
            return array
        for axis, (letter, size) in enumerate(zip(axes, array.shape, strict=True)):
            if letter in self.parts and size != 1:
                folded = self.along(array, axis, letter)
                if array.shape[0] != 1:
                    return folded
                return ops.tile(folded, (self.batch,) + (1,) * (len(axes) - 1))
        return array if array.shape[0] == 1 else ops.repeat(array, self.count, axis=0)

    def attend(self, attend, spec, query, key, value, needs_lse):
        """The output (B, T, H, V) and lse (B, H, T) by `attend` of a folded spec and the arrays."""
        query, key, value = (
            self.along(x, 1, letter) for x, letter in ((query, "t"), (key, "s"), (value, "s"))
        )
        output, lse = attend(spec, query, key, value, needs_lse)
        size, heads, features = output.shape[1:]
        length = self.count * size
        lse = ops.reshape(lse, (self.batch, self.count, heads, size))
        lse = ops.transpose(lse, (0, 2, 3, 1) if self.apart else (0, 2, 1, 3))
        if self.apart:
            output = ops.reshape(output, (self.batch, self.count, size, heads, features))
            output = ops.transpose(output, (0, 2, 1, 3, 4))
        output = ops.reshape(output, (self.batch, length, heads, features))
        return output, ops.reshape(lse, (self.batch, heads, length))


class Take:
    """Takes elements along an axis by an index (N, n). The gradient takes too, without a scatter.

    A negative index takes any element. Each of the N begins with the first `every` elements of the
    `length` that the axis has.
    """

    def __init__(self, index, length, every=0):
        self.shape, self.every = index.shape, every
        self.index = np.maximum(index, 0).astype("int32")
        flat = index.ravel()
        takers = np.argsort(flat, kind="stable")
        takers = takers[flat[takers] >= every]
        taken = flat[takers] - every
        counts = np.bincount(taken, minlength=length - every)
        number = np.arange(len(taken)) - (np.cumsum(counts) - counts)[taken]
        # Column k has, for each element, the k-th index that it was taken to.
        self.takers = np.full((length - every, max(1, counts.max(initial=0))), -1, "int32")
        self.takers[taken, number] = takers

    def __call__(self, array, axis):
        """(…, length, …) as (…, N · n, …)."""
        taken = functools.partial(_take, index=self.index.ravel(), axis=axis)
        return linear(taken, functools.partial(self._gradient, axis=axis), array)

    def _gradient(self, upstream, axis):
        total = None
        for takers in self.takers.T:
            part = _take(upstream, np.maximum(takers, 0), axis)
            if (takers < 0).any():
                real = (takers >= 0).reshape((-1,) + (1,) * (len(upstream.shape) - axis - 1))
                part = ops.where(ops.convert_to_tensor(real), part, ops.cast(0, part.dtype))
            total = part if total is None else total + part
        if not self.every:
            return total
        shape = list(ops.shape(upstream))
        each = ops.reshape(upstream, (*shape[:axis], *self.shape, *shape[axis + 1 :]))
        first = ops.sum(cut(each, axis + 1, 0, self.every), axis=axis)
        return ops.concatenate([first, total], axis=axis)


def _take(array, index, axis):
    return backend.take(array, ops.convert_to_tensor(index, dtype="int32"), axis)
