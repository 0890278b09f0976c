"""Attention along chosen axes of an array of any rank, folded to the (B, T, H, K) of every kernel.

The axes attended over become one axis of positions, in row-major order; the others join the batch.
"""

import math

from keras import ops

from keras_attention.sequences import shapes
from keras_attention.sequences.sizes import known


class Axes:
    """How inputs (B, axis 1, …, axis rank-2, features) fold: which axes are positions.

    Args:
        rank: rank of the inputs.
        attention_axes: the axes attended over, counted from the batch axis, negative ones from the
            features; None for all between batch and features.
    """

    def __init__(self, rank, attention_axes):
        middle = range(1, rank - 1)
        if attention_axes is None:
            attention_axes = tuple(middle)
        self.positions = tuple(axis if axis >= 0 else rank + axis for axis in attention_axes)
        once = len(set(self.positions)) == len(self.positions) > 0
        if not once or any(axis not in middle for axis in self.positions):
            raise ValueError(
                "`attention_axes` must lie between the batch axis and the features, each once. "
                f"Received: attention_axes={attention_axes}, for inputs with {rank} axes"
            )
        self.free = tuple(axis for axis in middle if axis not in self.positions)
        self._order = (0, *self.free, *self.positions)
        # Whether folding changes nothing: inputs (B, T, D).
        self.trivial = self._order == (0, 1)

    def check(self, query_shape, value_shape):
        """Raises if batch or free axes of query and value differ, as far as they are known.

        Folding multiplies them: 2 · 3 rows would attend to 3 · 2 rows of other examples.
        """
        for axis in (0, *self.free):
            sizes = {"query": query_shape[axis], "value": value_shape[axis]}
            shapes.check_same(f"Sizes of axis {axis}, which is not attended over,", **sizes)

    def matched(self, value, query):
        """`value`, checked at run time for sizes that `check` did not know."""
        shape, expected = list(ops.shape(value)), ops.shape(query)
        unknown = [axis for axis in (0, *self.free) if not known(shape[axis], expected[axis])]
        for axis in unknown:
            # No non-empty array has an axis of size 0: if two sizes differ, reshaping fails.
            shape[axis] = ops.where(ops.equal(shape[axis], expected[axis]), shape[axis], 0)
        return ops.reshape(value, shape) if unknown and value is not query else value

    def fold(self, heads):
        """(B, …, H, K) to (B · free, T, H, K)."""
        rank, shape = len(heads.shape), ops.shape(heads)
        heads = ops.transpose(heads, (*self._order, rank - 2, rank - 1))
        return ops.reshape(heads, (*self._rows(shape), *shape[-2:]))

    def _rows(self, shape):
        """The sizes (B · free, T) to which those of inputs (B, …) are folded."""
        sizes, lead = [shape[axis] for axis in self._order], 1 + len(self.free)
        return math.prod(sizes[:lead]), math.prod(sizes[lead:])

    def unfold(self, heads, like):
        """(B · free, T, H, K) to (B, …, H, K), with the axes of the input `like` (B, …, D)."""
        shape = ops.shape(like)
        heads = ops.reshape(heads, (*(shape[axis] for axis in self._order), *ops.shape(heads)[-2:]))
        rank = len(heads.shape)
        inverse = [self._order.index(axis) for axis in range(rank - 2)]
        return ops.transpose(heads, (*inverse, rank - 2, rank - 1))

    def unfold_rows(self, rows, like):
        """Values of positions, (B · free or 1, T or 1), to (B, …)."""
        rows = ops.broadcast_to(rows, self._rows(ops.shape(like)))
        return self.unfold(rows[..., None, None], like)[..., 0, 0]

    def unfold_scores(self, scores, query, value):
        """(B · free, H, T, S) to (B, free…, H, query positions…, key positions…)."""
        whole = self.scores_shape(scores.shape[1], ops.shape(query), ops.shape(value))
        return ops.reshape(scores, whole)

    def scores_shape(self, num_heads, query_shape, value_shape):
        """The shape that `unfold_scores` gives."""
        return (
            *(query_shape[axis] for axis in (0, *self.free)),
            num_heads,
            *(query_shape[axis] for axis in self.positions),
            *(value_shape[axis] for axis in self.positions),
        )

    def fold_padding(self, mask, like):
        """The padding mask (B or 1, …) of `like` (B, …, D) to (B · free, T)."""
        shape = ops.shape(like)[:-1]
        mask = ops.transpose(ops.broadcast_to(mask, shape), self._order)
        return ops.reshape(mask, self._rows(shape))

    def fold_mask(self, mask, query, value):
        """An attention mask (or bias) to (B · free, 1 or H, T, S).

        The mask's last axes are the query's and the key's positions; the axes before them are
        the batch, the free axes and the heads, counted from the left.
        """
        count, lead = len(self.positions), 1 + len(self.free)
        for _ in range(1 + lead + 2 * count - len(mask.shape)):
            mask = ops.expand_dims(mask, -2 * count - 1)
        whole = self.scores_shape(mask.shape[lead], ops.shape(query), ops.shape(value))
        sizes = whole[:lead], whole[lead : lead + 1], whole[-2 * count : -count], whole[-count:]
        return ops.reshape(ops.broadcast_to(mask, whole), tuple(map(math.prod, sizes)))

    def check_mask(self, name, mask, num_heads, query, value):
        """Raises unless an attention mask or a bias is one that `fold_mask` takes."""
        expected = self.scores_shape(num_heads, query.shape, value.shape)
        least, shape = 2 * len(self.positions), tuple(mask.shape)
        if not least <= len(shape) <= len(expected):
            raise ValueError(
                f"`{name}` must have {least} to {len(expected)} axes, the last {least} "
                f"being positions of query and key. Received: {name}.shape={shape}"
            )
        lead = len(shape) - least
        whole = (*shape[:lead], *expected[lead:-least], *shape[lead:])
        for size, wanted in zip(whole, expected, strict=True):
            if size not in (None, 1) and known(wanted) and size != wanted:
                raise ValueError(
                    f"`{name}` must broadcast to {expected}, with the axes that are attended over. "
                    f"Received: {name}.shape={shape}"
                )
