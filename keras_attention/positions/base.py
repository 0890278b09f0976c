"""The base of all positions, and shared checks."""

from collections.abc import Sequence

import keras

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.core import keras_private
from keras_attention.core.hints import Tensor
from keras_attention.scores import ScaledDot
from keras_attention.sequences import shapes
from keras_attention.sequences.grid import Grid
from keras_attention.spec import AttentionSpec, PositionBias

# What a subclass may override.
_DEFINING = ("encode", "bias", "query_bias", "_terms", "into_spec")


class Position(saving.ConfigurableLayer, saved=False):
    """The base of all positions. It is a layer, so that it can own weights, and works in float32.

    Subclasses override `encode`, `bias` or `query_bias`, or several of them, and create weights in
    `build(query_shape, key_shape)`, where the shapes are (B, T, H, K) and (B, S, G, K).

    >>> import keras
    >>> from keras_attention import SelfAttention, positions
    >>> @keras.saving.register_keras_serializable(package="my_package")
    ... class Nearer(positions.Position):
    ...     def bias(self, i, j, num_heads):
    ...         return -0.1 * keras.ops.cast(keras.ops.abs(i - j), "float32")
    >>> SelfAttention(2, 4, position=Nearer())(keras.random.normal((2, 5, 8))).shape
    (2, 5, 8)
    """

    _has_own_dtype = True
    # Whether `bias` depends on the distance j − i alone, so that few distances cover all pairs.
    by_distance = False
    # The grid, if `bias` depends on the differences of coordinates on it alone, so that it is the
    # same in all of its windows; or None.
    on_grid: Grid | None = None
    # Whether `bias` is surely finite, and small enough to add up in float32: it is not clipped.
    bounded = False
    # Whether a stack may count real tokens alone: not if positions are cells of a grid.
    counts = True
    # Whether `encode` of a key depends only on its own position, so that a cache may store it.
    encodes_alone = False
    # Whether `encode` depends on the length of a row, the largest of its positions.
    needs_length = False
    # ("dynamic", L) if each token after the L-th changes how all earlier ones are encoded,
    # ("longrope", L) if only the first of them does; or None.
    encodes_anew: tuple[str, int] | None = None
    # Those of `_DEFINING` that a class overrides, and whether these give a bias that depends on the
    # contents of queries and keys, by `__init_subclass__`.
    overrides: frozenset[str] = frozenset()
    has_query_bias = False
    # The reason a layer with this position cannot be computed token by token, or None.
    no_decoding_reason: str | None = None
    # The supported classes of score; None for all.
    scores: tuple[type, ...] | None = None
    # As what layers project its table, and whether by projections apart from those of the inputs.
    table_roles: tuple[str, ...] = ("query", "key")
    own_projections = False
    # The terms that the position divides, in words, if the score must not have a scale; or None.
    divides: str | None = None

    def build(self, query_shape, key_shape):
        pass

    def build_values(self, value_shape):
        """Receives the shape of the values, (B, S, G, V), before `build`."""

    # The name of `build_values` in 0.1.0.
    expect_values = build_values

    def build_inputs(self, query_shape, key_shape):
        """Receives the shapes of the layer's inputs, (B, T, D) and (B, S, D'), before `build`."""

    def projected_table(self) -> Tensor | None:
        """Vectors (N, D) that each layer projects as it does its inputs, or None.

        `query_bias` then has an argument more for each of `table_roles`: their heads as queries,
        (N, H, K), and as keys, (N, G, K). So layers may share a table, and each has its
        own view of it.
        """
        return None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # A class that overrides either of the two names overrides both.
        names = "build_values", "expect_values"
        owned = [vars(owner).get(name) for owner in cls.__mro__ for name in names]
        for name in names:
            setattr(cls, name, next(filter(None, owned)))
        cls.overrides = frozenset(
            name for name in _DEFINING if getattr(cls, name) is not getattr(Position, name)
        )
        cls.has_query_bias = bool(cls.overrides & {"query_bias", "_terms"})

    @property
    def reads_keys(self) -> bool:
        """Whether it needs keys as they are before the score prepares them."""
        return self.has_query_bias or "encode" in self.overrides

    def encode(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query (B, T, H, K) and key (B, S, H, K) as they enter the score.

        Positions are integer arrays, (T,) or (B, T), and (S,) or (B, S).
        """
        return query, key

    def bias(self, i: Tensor, j: Tensor, num_heads: int) -> Tensor:
        """The bias added to the scores of queries at positions `i` and keys at positions `j`.

        `i` and `j` are integer arrays that broadcast to (T, S), or to (B, 1, T, S) if positions
        differ per row. Returns an array that broadcasts to (B, H, T, S).
        """
        raise TypeError(f"{type(self).__name__} has no bias.")

    def query_bias(self, query: Tensor, key: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """A bias that depends on the contents of queries and keys too.

        Unlike `bias`, it is computed for all pairs at once: an array that broadcasts to
        (B, H, T, S). `query` (B, T, H, K) and `key` (B, S, G, K) are those of the scores, after
        `encode`, in float32; `i` and `j` are as in `bias`.
        """
        raise TypeError(f"{type(self).__name__} has no bias of queries.")

    def into_spec(
        self,
        spec: AttentionSpec,
        query: Tensor,
        key: Tensor,
        key_mask: Tensor | None = None,
        projected: Sequence[Tensor] = (),
    ) -> AttentionSpec:
        """The `AttentionSpec` with the additions of this position, except those of `encode`.

        `key_mask` (B, S) is the padding of the keys, which is among the masks, or None;
        `projected` are the heads of `projected_table`, of a layer that projects it.
        """
        wide = shapes.accumulation_dtype(query, key)
        if "bias" in self.overrides:
            spec = spec.replace(position_biases=(self.bias_between(query.shape[2], wide),))
        if self.has_query_bias:
            arrays = (keras.ops.cast(x, wide) for x in (query, key, *projected))
            spec = spec.replace(biases=(*spec.biases, *self._terms(spec, *arrays)))
        return spec

    def _terms(self, spec, query, key, *projected):
        """What a position with a bias of queries adds, as arrays that sum to it."""
        return (self.query_bias(query, key, *spec.positions.pairs, *projected),)

    def check_score(self, score):
        """Raises if `score` is built in and not among `scores`; custom ones are not checked."""
        if self.scores is not None and score.built_in and not isinstance(score, self.scores):
            expected = " or ".join(cls.__name__ for cls in self.scores)
            raise ValueError(
                f"{type(self).__name__} supports only these scores: {expected}. "
                f"Received: score={type(score).__name__}"
            )
        if self.divides and isinstance(score, ScaledDot) and score.scale is not None:
            raise ValueError(
                f"{type(self).__name__} divides {self.divides}, so that the score can have no "
                f"other scale. Received: score=ScaledDot(scale={score.scale})"
            )

    def bias_between(self, num_heads, dtype="float32"):
        """`bias` as a `PositionBias` for scores of a dtype."""
        variables = self.variables

        def function(i, j, *values):
            # The kernel's own values, whose gradient it computes. The outer scope is that of the
            # dtype, to which the inner one casts them.
            mapping = list(zip(variables, values, strict=True))
            with keras_private.cast_variables(dtype), keras.StatelessScope(mapping):
                return self.bias(i, j, num_heads)

        values = tuple(keras.ops.convert_to_tensor(variable) for variable in variables)
        return PositionBias(function, values, self.by_distance, self.bounded, self.on_grid)


def check_shared(position, built, **received):
    """Raises unless a layer has the size that its position was built for by another."""
    ((name, size),) = received.items()
    if size != built:
        raise ValueError(
            f"Layers sharing a {type(position).__name__} need one {name}. It was built for "
            f"{name}={built}. Received: {name}={size}"
        )


def looked_up(table, rows):
    """The bias (…, H, T, S) of a table (N, H) and the rows of pairs, as `bias` returns it."""
    # A row for each head, so that one lookup gives (H, T, S).
    columns = keras.ops.transpose(table)
    if len(rows.shape) == 2:
        return backend.take(columns, rows, axis=1)
    return keras.ops.moveaxis(backend.take(columns, rows[:, 0], axis=1), 0, 1)
