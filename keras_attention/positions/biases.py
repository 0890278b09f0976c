"""Biases per head: penalties by distance, tables of distances and of offsets, and a perceptron."""

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import keras
import numpy as np
from keras import ops

from keras_attention.backend import backend
from keras_attention.core.hints import Constraint, Initializer, Regularizer, Tensor
from keras_attention.kernels import semantics
from keras_attention.positions.base import Position, check_shared, looked_up
from keras_attention.sequences import shapes
from keras_attention.sequences.grid import Grid, resizing


class ALiBi(Position):
    r"""score(i, j) = qᵀ k − m_h |i − j|, without weights. Press et al. 2022, section 3.

    The slopes of n heads are `m_h = 2^(−8 h / n)` for h = 1 … n if n is a power of two. For any
    other n they are those of the largest power of two p below n, and then every second one of 2p
    heads, from the first on, until there are n (the authors' rule, from their code).

    With a causal mask this equals the paper's bias, as softmax is invariant to the difference.
    Without one it is symmetric: keys before and after the query are treated alike.

    Args:
        max_bias: the 8 in the slopes: the slope of the last head is `2^(−max_bias)`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: `max_bias` is not a finite number above 0.

    >>> import keras
    >>> from keras_attention import SelfAttention, positions
    >>> [float(slope) for slope in positions.ALiBi().slopes(8)[:4]]
    [0.5, 0.25, 0.125, 0.0625]
    >>> layer = SelfAttention(8, 4, causal=True, position="alibi")
    >>> layer(keras.random.normal((2, 5, 32))).shape
    (2, 5, 32)
    """

    by_distance = bounded = True

    def __init__(self, max_bias: float = 8.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.max_bias = shapes.check_positive("max_bias", max_bias)

    def slopes(self, num_heads: int) -> np.ndarray:
        """The slope of each head, a NumPy array (H,) in float64."""
        power = 2 ** math.floor(math.log2(num_heads))
        slopes = 2.0 ** (-self.max_bias * np.arange(1, power + 1) / power)
        between = 2.0 ** (-self.max_bias * np.arange(1, 2 * power + 1, 2) / (2 * power))
        return np.concatenate([slopes, between[: num_heads - power]])

    def bias(self, i: Tensor, j: Tensor, num_heads: int) -> Tensor:
        slopes = ops.cast(self.slopes(num_heads)[:, None, None], self.compute_dtype)
        return -slopes * ops.cast(ops.abs(i - j), self.compute_dtype)


Variant = Literal["logarithmic", "power"]


class Kerple(Position):
    r"""Kernelized relative positions of Chi et al. 2022 (arXiv 2205.09921), section 4.

    With r₁ and r₂ learned by each head:

        logarithmic    score(i, j) = qᵀ k − r₁ · ln(1 + r₂ |i − j|),    r₁, r₂ > 0
        power          score(i, j) = qᵀ k − r₁ · |i − j|^r₂,            r₁ > 0, 0 < r₂ ≤ 2

    The weights are unbounded: r₁ and r₂ are their exponentials, and the r₂ of "power" is
    2 · sigmoid. The paper clips r₁ and r₂ themselves. ALiBi is "power" with r₂ = 1 and fixed r₁.

    Args:
        variant: "logarithmic", which was the better one for longer texts in the paper, or "power".
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: `variant` is another, or layers with different numbers of heads share it.

    >>> import keras
    >>> from keras_attention import SelfAttention
    >>> layer = SelfAttention(8, 4, causal=True, position="kerple")
    >>> layer(keras.random.normal((2, 5, 32))).shape
    (2, 5, 32)
    >>> tuple(layer.position.rates()[0].shape)
    (8,)
    """

    by_distance = True

    def __init__(self, variant: Variant = "logarithmic", **kwargs: Any):
        super().__init__(**kwargs)
        self.variant = shapes.check_choice("variant", variant, get_args(Variant))

    def build(self, query_shape, key_shape):
        # Heads begin with different rates, around 1.
        for name in ("first", "second"):
            initializer = keras.initializers.RandomUniform(-1.0, 1.0)
            shape = (query_shape[2],)
            setattr(self, name, self.add_weight(name=name, shape=shape, initializer=initializer))

    def rates(self) -> tuple[Tensor, Tensor]:
        """The r₁ and r₂ of each head, (H,) each."""
        first = ops.exp(self.first)
        if self.variant == "power":
            return first, 2.0 * ops.sigmoid(self.second)
        return first, ops.exp(self.second)

    def bias(self, i: Tensor, j: Tensor, num_heads: int) -> Tensor:
        check_shared(self, self.first.shape[0], num_heads=num_heads)
        first, second = (rate[:, None, None] for rate in self.rates())
        distance = ops.cast(ops.abs(i - j), first.dtype)
        if self.variant == "logarithmic":
            return -first * ops.log1p(second * distance)
        # By a logarithm of at least 0: the gradient of a power of 0 is none.
        power = ops.exp(second * ops.log(ops.clip(distance, 1.0, math.inf)))
        return -first * ops.where(distance > 0, power, ops.zeros_like(power))


_FARTHEST = 2**20


class RelativeBias(Position):
    r"""score(i, j) = qᵀ k + E[bucket(j − i), h]. Raffel et al. 2020 (T5), section 2.1.

    Half of the buckets of a direction have one distance each, 0, 1, 2 …; the other half have
    distances up to `max_distance` in logarithmic steps. All larger distances
    share the last one. With n buckets in a direction, e = ⌊n / 2⌋ and m = `max_distance`:

        bucket(d) = d                                               for d < e
        bucket(d) = min(n − 1, e + ⌊(n − e) · ln(d / e) / ln(m / e)⌋)    otherwise

    in float32, as in T5's code, so that its tables load. With `bidirectional`, keys before the
    query, and at it, have the first half of the buckets and keys after it the second; otherwise all
    keys after the query have bucket 0. T5 does not divide scores by √K: for its weights, use the
    score "dot". T5 shares one table among its layers: pass one `RelativeBias` to all.

    Args:
        num_buckets: rows of the table, for both directions together.
        max_distance: the distance from which on all share a bucket.
        bidirectional: whether to distinguish keys before and after the query (an encoder), or only
            those before it (a decoder).
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of the table E,
            (num_buckets, H).
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number is too small, `num_buckets` is odd with two directions, or layers with
            different numbers of heads share it.

    >>> import keras
    >>> from keras_attention import SelfAttention, positions
    >>> layer = SelfAttention(8, 4, position=positions.RelativeBias(16, 50))
    >>> layer(keras.random.normal((2, 5, 32))).shape
    (2, 5, 32)
    >>> layer.position.embeddings.shape
    (16, 8)
    """

    by_distance = True

    def __init__(
        self,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        embeddings_initializer: Initializer = "uniform",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.bidirectional = shapes.check_flag("bidirectional", bidirectional)
        least = 4 if bidirectional else 2
        self.num_buckets = shapes.check_count("num_buckets", num_buckets, least)
        if bidirectional and num_buckets % 2:
            raise ValueError(
                "With two directions, `num_buckets` must be even. "
                f"Received: num_buckets={num_buckets}"
            )
        # One more than the distances with a bucket each: below it the logarithm would not grow.
        self.max_distance = check_distance(max_distance, num_buckets // least + 1)
        options = embeddings_initializer, embeddings_regularizer, embeddings_constraint
        self._keep_options("embeddings", *options)

    def build(self, query_shape, key_shape):
        self.embeddings = self._add_weight("embeddings", (self.num_buckets, query_shape[2]))

    def buckets(self) -> np.ndarray:
        """The bucket of each j − i from −max_distance to max_distance, a NumPy array of int32."""
        return _buckets(self.num_buckets, self.max_distance, self.bidirectional)

    def bias(self, i: Tensor, j: Tensor, num_heads: int) -> Tensor:
        check_shared(self, self.embeddings.shape[1], num_heads=num_heads)
        at = ops.clip(j - i, -self.max_distance, self.max_distance) + self.max_distance
        return looked_up(ops.take(self.embeddings, self.buckets(), axis=0), at)


def check_distance(max_distance, least, optional=False):
    """`max_distance`, an integer of at least `least`."""
    max_distance = shapes.check_count("max_distance", max_distance, least, optional=optional)
    if max_distance is not None and max_distance > _FARTHEST:
        raise ValueError(
            f"`max_distance` must be at most {_FARTHEST}: each distance has an entry in a "
            f"table. Received: max_distance={max_distance}"
        )
    return max_distance


@functools.lru_cache(maxsize=64)
def _buckets(num_buckets, max_distance, bidirectional):
    size = num_buckets // 2 if bidirectional else num_buckets
    exact = size // 2
    distance = np.arange(max_distance + 1)
    # Every step in float32, as in T5: a distance may lie on the edge of two buckets.
    ratio = np.maximum(distance, 1).astype("float32") / np.float32(exact)
    steps = np.log(ratio) / np.float32(np.log(max_distance / exact)) * np.float32(size - exact)
    far = np.minimum(exact + steps.astype("int32"), size - 1)
    bucket = np.where(distance < exact, distance, far)
    after = bucket[1:] + size if bidirectional else np.zeros(max_distance)
    found = np.concatenate([bucket[::-1], after]).astype("int32")
    return np.broadcast_to(found, found.shape)  # which may not be written


class _GridBias(Position, saved=False):
    """A bias for each offset on `grid`: a row of a table, and three for pairs with a prefix."""

    counts = False
    on_grid: Grid

    def __init__(self, grid, size, prefix, **kwargs):
        super().__init__(**kwargs)
        self.on_grid = Grid.of(grid, prefix)
        self.grid, self.prefix = self.on_grid
        self.size = shapes.check_axes("size", self.grid if size is None else size, self.grid)

    def _offsets(self):
        return math.prod([2 * n - 1 for n in self.size])

    def rows(self, i: Tensor, j: Tensor) -> Tensor:
        """The row of the table for queries at positions `i` and keys at positions `j`."""
        of_queries, of_keys = map(self.on_grid.coordinates, (i, j))
        row: Any = 0
        for n, at, key in zip(self.size, of_queries, of_keys, strict=True):
            row = row * (2 * n - 1) + ops.clip(at - key, 1 - n, n - 1) + (n - 1)
        if not self.prefix:
            return row
        row = ops.where(i < self.prefix, self._offsets(), row)
        of_prefix = ops.where(i < self.prefix, self._offsets() + 2, self._offsets() + 1)
        return ops.where(j < self.prefix, of_prefix, row)


class GridRelativeBias(_GridBias):
    r"""score(i, j) = qᵀ k + E[r_i − r_j, c_i − c_j, h], for rows r and columns c. Liu et al. 2021
    (Swin), equation 4.

    The table has a row for each offset, from −(size − 1) to size − 1 along each axis, in row-major
    order of r_i − r_j and c_i − c_j: that of Swin's `relative_position_bias_table`. Offsets beyond
    share the last row of their axis. With a `prefix` there are three more rows, as in BEiT (Bao et
    al. 2022): for queries of the prefix, for keys of it, and for both.

    In the windows of `patterns.GridWindow`, and in the neighborhoods of `patterns.Neighborhood`, on
    the same grid and with the same prefix, the bias is computed once for all of them.

    If `decomposed`, as in MViTv2 (Li et al. 2022, section 4.1), ViTDet and SAM, queries choose:

        score(i, j) = qᵀ k / √K + qᵀ (E₀[r_i − r_j] + E₁[c_i − c_j])

    with a table (2 size − 1, K) for each axis, interpolated to the grid, and none for the prefix:
    a bias of all pairs, (B, H, T, S).

    Args:
        grid, prefix: as of `patterns.GridWindow`.
        size: the number of different distances along an axis, 0 included: an integer, or one for
            each axis; the size of a window for `patterns.GridWindow`. None is that of the grid.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of the table E,
            (rows, H).
        decomposed: whether the bias is that of queries, by the sum of a table for each axis.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number is not as described, or layers with different numbers of heads, or of
            features if `decomposed`, share it.

    >>> import keras
    >>> from keras_attention import SelfAttention, patterns, positions
    >>> near, bias = patterns.GridWindow((6, 9), 3), positions.GridRelativeBias((6, 9), 3)
    >>> layer = SelfAttention(4, 8, pattern=near, position=bias)
    >>> layer(keras.random.normal((2, 54, 32))).shape
    (2, 54, 32)
    >>> layer.position.embeddings.shape
    (25, 4)
    """

    def __init__(
        self,
        grid: Sequence[int],
        size: int | Sequence[int] | None = None,
        prefix: int = 0,
        embeddings_initializer: Initializer = "uniform",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        decomposed: bool = False,
        **kwargs: Any,
    ):
        super().__init__(grid, size, prefix, **kwargs)
        self.decomposed = shapes.check_flag("decomposed", decomposed)
        self.overrides = frozenset({"query_bias" if decomposed else "bias"})
        self.has_query_bias = decomposed
        options = embeddings_initializer, embeddings_regularizer, embeddings_constraint
        self._keep_options("embeddings", *options)

    def build(self, query_shape, key_shape):
        if self.decomposed:
            shape = query_shape[-1:]
            self.tables = [
                self._add_weight("embeddings", (2 * n - 1, *shape), name=f"embeddings_{axis}")
                for axis, n in enumerate(self.size)
            ]
            return
        rows = self._offsets() + 3 * bool(self.prefix)
        self.embeddings = self._add_weight("embeddings", (rows, query_shape[2]))

    def bias(self, i: Tensor, j: Tensor, num_heads: int) -> Tensor:
        check_shared(self, self.embeddings.shape[1], num_heads=num_heads)
        return looked_up(self.embeddings, self.rows(i, j))

    def query_bias(self, query: Tensor, key: Tensor, i: Tensor, j: Tensor) -> Tensor:
        check_shared(self, self.tables[0].shape[1], key_dim=query.shape[-1])
        found: Any = 0.0
        axes = self.size, self.grid, self.tables, *map(self.on_grid.coordinates, (i, j))
        for size, most, table, at, other in zip(*axes, strict=True):
            table = ops.cast(table, query.dtype)
            if size != most:
                weights = resizing(2 * size - 1, 2 * most - 1, "linear")
                table = backend.matmul(ops.cast(weights, query.dtype), table)
            products = ops.einsum("bthk,nk->bhtn", semantics.finite(query), table)
            rows = ops.clip(at - other, 1 - most, most - 1) + (most - 1)
            # By a sum: XLA cannot compile TensorFlow's gradient of a broadcast inside a loop.
            rows = rows + ops.cast(ops.zeros_like(products[..., :1]), "int32")
            found = found + backend.take_last(products, rows)
        if not self.prefix:
            return found
        outside = ops.logical_or(i < self.prefix, j < self.prefix)
        return ops.where(outside, ops.zeros_like(found), found)


class ContinuousGridBias(_GridBias):
    r"""score(i, j) = qᵀ k + c · σ(f(x(r_i − r_j), x(c_i − c_j)))_h, for rows r and columns c. Liu
    et al. 2022 (Swin v2), section 3.3.

    f is a perceptron with `units` hidden units (ReLU) and an output for each head, without a bias.
    Offsets d enter it on a logarithmic scale, on which that to the last cell of a window of n cells
    is about 1:

        x(d) = sign(d) · log₂(1 + 8 |d| / (n − 1)) / 3

    The 8, the 3 and c σ are of the authors' code. So a model may go on with larger windows than it
    was trained with: n is then the former `trained_size`.

    As that of `GridRelativeBias`, the bias is one of a table of offsets, here computed of few
    weights, in each call: O(units · H) time for each of (2 size − 1)² offsets.

    Args:
        grid, size: as of `GridRelativeBias`; offsets beyond are as the last of their axis.
        prefix: the number of positions before the grid, without a bias.
        trained_size: n, an integer, or one for each axis; None is `size`.
        units, max_bias: hidden units of f, and c.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number is not as described, or layers with different numbers of heads share
            it.

    >>> import keras
    >>> from keras_attention import SelfAttention, patterns, positions
    >>> near, bias = patterns.GridWindow((6, 9), 3), positions.ContinuousGridBias((6, 9), 3)
    >>> layer = SelfAttention(4, 8, pattern=near, position=bias)
    >>> layer(keras.random.normal((2, 54, 32))).shape
    (2, 54, 32)
    >>> [tuple(weight.shape) for weight in layer.position.weights]
    [(2, 512), (512,), (512, 4)]
    """

    def __init__(
        self,
        grid: Sequence[int],
        size: int | Sequence[int] | None = None,
        prefix: int = 0,
        trained_size: int | Sequence[int] | None = None,
        units: int = 512,
        max_bias: float = 16.0,
        **kwargs: Any,
    ):
        super().__init__(grid, size, prefix, **kwargs)
        given = self.size if trained_size is None else trained_size
        given = shapes.check_axes("trained_size", given, self.grid)
        self.trained_size = None if trained_size is None else given
        self.units = shapes.check_count("units", units)
        self.max_bias = shapes.check_positive("max_bias", max_bias)

    def build(self, query_shape, key_shape):
        shape, uniform = (len(self.grid), self.units), "glorot_uniform"
        self.hidden = self.add_weight(shape, uniform, name="hidden")
        self.hidden_bias = self.add_weight((self.units,), "zeros", name="hidden_bias")
        shape = (self.units, query_shape[2])
        self.output_kernel = self.add_weight(shape, uniform, name="output")

    def _shares(self):
        """x of the offsets of each row of the table, a NumPy array (rows, axes)."""
        axes = []
        for size, n in zip(self.size, self.trained_size or self.size, strict=True):
            share = np.arange(1 - size, size) * (8 / max(n - 1, 1))
            axes.append(np.sign(share) * np.log2(1 + np.abs(share)) / 3)
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))

    def bias(self, i: Tensor, j: Tensor, num_heads: int) -> Tensor:
        check_shared(self, self.output_kernel.shape[1], num_heads=num_heads)
        weights = self.hidden, self.hidden_bias, self.output_kernel
        kernel, bias, output = map(ops.convert_to_tensor, weights)
        hidden = ops.einsum("ra,au->ru", ops.cast(self._shares(), kernel.dtype), kernel)
        logits = ops.einsum("ru,uh->rh", ops.relu(hidden + bias), output)
        table = self.max_bias * ops.sigmoid(logits)
        table = ops.pad(table, [(0, 3 * bool(self.prefix)), (0, 0)])
        return looked_up(table, self.rows(i, j))


class FIRE(Position):
    r"""Functional interpolation for relative positions. Li et al. 2024 (arXiv 2310.04418), eq. 5.

    `score(i, j) = qᵀ k + f(ψ(|i − j|) / ψ(max(i, L)))` with `ψ(x) = ln(1 + c x)`, learned c and L,
    and f a perceptron of one input, `units` hidden units (ReLU) and an output for each head.
    For keys up to the query, the input of f lies between 0 and 1 in texts of any length, so that
    longer texts are interpolated; keys after it may be above 1. The last layer of f has no bias,
    which softmax is invariant to.

    The distance is relative, and the i in the divisor absolute: it counts from the first position
    of a row. Pass `positions` for rows that are padded on the left, as stacks of blocks do.
    Without a causal mask it is symmetric in the distance.

    Kernels compute it for a tile of pairs, with `units` numbers for each, which all heads share,
    and an output per head: O(T · S · units · H) time.

    Args:
        units: hidden units of f, 32 in the paper.
        threshold: the first value of L.
        scale: the first value of c.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number is not above 0, or layers with different numbers of heads share it.

    >>> import keras
    >>> from keras_attention import SelfAttention
    >>> layer = SelfAttention(8, 4, causal=True, position="fire")
    >>> layer(keras.random.normal((2, 5, 32))).shape
    (2, 5, 32)
    >>> [tuple(weight.shape) for weight in layer.position.weights]
    [(), (), (32,), (32,), (32, 8)]
    """

    def __init__(
        self, units: int = 32, threshold: float = 512.0, scale: float = 0.1, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.units = shapes.check_count("units", units)
        self.threshold = shapes.check_positive("threshold", threshold)
        self.scale = shapes.check_positive("scale", scale)

    def build(self, query_shape, key_shape):
        self.c = self.add_weight((), keras.initializers.Constant(self.scale), name="c")
        # Of L: a factor learns at the rate of other weights.
        self.factor = self.add_weight((), "ones", name="factor")
        # As a layer of one input, whose numbers of inputs and outputs differ.
        uniform = keras.initializers.RandomUniform(-1.0, 1.0)
        self.hidden = self.add_weight((self.units,), uniform, name="hidden")
        self.hidden_bias = self.add_weight((self.units,), "zeros", name="hidden_bias")
        shape = (self.units, query_shape[2])
        self.output_kernel = self.add_weight(shape, "glorot_uniform", name="output")

    def bias(self, i: Tensor, j: Tensor, num_heads: int) -> Tensor:
        check_shared(self, self.output_kernel.shape[1], num_heads=num_heads)
        c = ops.abs(ops.convert_to_tensor(self.c))
        limit = self.threshold * ops.abs(ops.convert_to_tensor(self.factor))
        distance = ops.log1p(c * ops.cast(ops.abs(i - j), c.dtype))
        # Above 0, whatever c and L become.
        longest = ops.log1p(c * backend.maximum(ops.cast(i, c.dtype), limit)) + 1e-6
        share = distance / longest
        share = share if len(share.shape) == 4 else share[None, None]
        kernel, bias = map(ops.convert_to_tensor, (self.hidden, self.hidden_bias))
        hidden = ops.relu(kernel[:, None, None] * share + bias[:, None, None])
        found = ops.einsum("uh,buts->bhts", ops.convert_to_tensor(self.output_kernel), hidden)
        return found if len(i.shape) == 4 or len(j.shape) == 4 else found[0]
