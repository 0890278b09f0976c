"""What a kernel is asked to do: all arguments of an attention, in one value."""

import dataclasses
import functools
import operator

import keras

from keras_attention.kernels import places

ops = keras.ops


@dataclasses.dataclass(frozen=True)
class Between:
    """A bias that is a function of two positions, and what it may be known by.

    Args:
        function: of two integer arrays that broadcast against each other and of `arrays`. Positions
            (T, 1) and (1, S) give an array that broadcasts to (H, T, S), positions (B, 1, T, 1) and
            (B, 1, 1, S) one that broadcasts to (B, H, T, S).
        arrays: what gradients are wanted of, such as a table of embeddings.
        by_distance: whether the positions matter by their distance j − i alone.
    """

    function: object
    arrays: tuple = ()
    by_distance: bool = False

    def __call__(self, query, key):
        """The bias of all pairs of positions (T,) or (B, T), and (S,) or (B, S)."""
        return self.function(*pairs(query, key), *self.arrays)


@dataclasses.dataclass(frozen=True)
class Task:
    """The arguments of `kernels.attend`, which says what each of them is.

    `masks`, `biases` and `between` are tuples: boolean arrays and arrays to add, with four axes
    that broadcast to (B, H, T, S), and `Between`s. `near` says that the pattern leaves only keys at
    distances below those that embeddings are clipped at.
    """

    query: object
    key: object
    value: object
    scale: float = 1.0
    score: object = None
    relative_keys: object = None
    relative_values: object = None
    near: bool = False
    soft_cap: float | None = None
    masks: tuple = ()
    biases: tuple = ()
    between: tuple = ()
    pattern: object = None
    segments: tuple | None = None
    positions: places.Positions | None = None
    sink: object = None
    normalization: object = None
    gain: object = None
    dropout: float = 0.0
    seed: object = None
    return_scores: bool = False

    def but(self, **changes):
        """The same with other arguments."""
        return dataclasses.replace(self, **changes)

    @property
    def restricted(self):
        """Whether anything keeps a query from a key."""
        return bool(self.masks) or self.pattern is not None or self.segments is not None

    def whole_mask(self):
        """All that keeps queries from keys as one array, which broadcasts to (B, H, T, S)."""
        parts = list(self.masks)
        if self.pattern is not None:
            allowed = self.pattern(self.positions.query, self.positions.key)
            # (T, S) or (B, T, S), to stand over the heads.
            allowed = ops.expand_dims(allowed, -3)
            parts.append(allowed if len(allowed.shape) == 4 else allowed[None])
        if self.segments is not None:
            queries, keys = self.segments
            parts.append(ops.equal(ops.expand_dims(queries, (1, 3)), ops.expand_dims(keys, (1, 2))))
        return functools.reduce(ops.logical_and, parts) if parts else None

    def whole_bias(self):
        """All that is added to scores as one array, which broadcasts to (B, H, T, S)."""
        parts = list(self.biases)
        parts += [part(self.positions.query, self.positions.key) for part in self.between]
        # By the operator: Keras's `add` takes a bias with one long axis for one of the features.
        return functools.reduce(operator.add, parts) if parts else None


def pairs(query, key):
    """Positions (T,) or (B, T), and (S,) or (B, S), as a function of pairs takes them."""
    i, j = ops.expand_dims(query, -1), ops.expand_dims(key, -2)
    if len(i.shape) == 3 or len(j.shape) == 3:
        i, j = (x[:, None] if len(x.shape) == 3 else x for x in (i, j))
    return i, j
