"""What the package needs from a framework beyond `keras.ops`, which is the first choice everywhere.

A member is here because Keras lacks it, computes it in another dtype or order on one backend, or is
measurably slower. What has a body here is for every framework that does not override it.

Sizes, counts, indices and starts are integers, or integer scalars of TensorFlow if a length is
unknown in a graph, or symbolic dimensions if a program of JAX is traced for all lengths.
"""

import functools
import pathlib
import typing
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_attention.core.hints import Seed, Tensor

# An integer, an integer scalar of TensorFlow, or a symbolic dimension of JAX.
Size: typing.TypeAlias = Any


class Backend(typing.Protocol):
    """The members of `keras_attention.backend`, of which there is a subclass for each framework."""

    # Sizes and devices

    # Types of sizes that are known like integers, and which a tracer records.
    TRACED_SIZES: tuple[type, ...] = ()

    def shape(self, array: Tensor) -> Sequence[Size]:
        """The shape, each size an integer where it is known."""
        return array.shape

    def known_size(self, size: Size | None) -> int | None:
        """A size of an array's `shape`, or None if it is not known.

        On PyTorch, Keras infers the shapes of a custom layer by calls with arrays in which unknown
        sizes are 83 and 89: these are not known either.
        """
        return size

    def least_size(self, first: Size, second: Size) -> Size:
        """The smaller of two sizes, or of two indices, that are not both integers."""
        return ops.minimum(first, second)

    def most_size(self, first: Size, second: Size) -> Size:
        """The larger of two sizes, or of two indices, that are not both integers."""
        return ops.maximum(first, second)

    def is_symbolic_size(self, size: Size | None) -> bool:
        """Whether a size is a symbolic dimension of JAX: no integer, and no array either."""
        return False

    def is_eager(self, array: Tensor) -> bool:
        """Whether operations on an array run at once, each by itself, and nothing records them."""

    def on_accelerator(self, array: Tensor) -> bool:
        """Whether a program on `array` will run on an accelerator, not on a CPU."""

    def instead_of(self, array: Any) -> str | None:
        """What to pass instead of a ragged or sparse tensor, or None for one that layers take."""

    # Whether a length that is unknown may be recorded as 1, where ONNX is written.
    records_lengths: bool = False

    def warn_of_recorded_length(self, length: Size) -> None:
        """Warns if a length is recorded as 1, with `records_lengths`."""
        return None

    def may_share_arrays(self) -> bool:
        """Whether several devices may each have a part of an array, as a program sees it."""
        return False

    def mesh_axis(self, name: str) -> Any:
        """The axis of a mesh over whose devices the code runs (`jax.shard_map`), or None.

        It has `size`; `index`, of this device; `send(array, to)`, by which each device n passes its
        array to device `to[n]`; and `fold(key, number)`, a key of dropout for each number.
        """
        return None

    def axis_map(self, mesh: keras.distribution.DeviceMesh, name: str, like: Tensor) -> Any:
        """What runs code on each device of an axis of a mesh, with its part of arrays, or None.

        It is `mapped(function, arrays, axes, outputs)`, where `axes` are those of the arrays that
        the devices share, or None, and `outputs` those of the results; for programs with `like`.
        """
        return None

    # Control flow

    def fori_loop(self, start, stop, body, carry):
        """`carry = body(i, carry)` for each i from `start` to `stop`, sequentially."""

    def while_loop(self, cond, body, carry, constants=(), by_steps=False):
        """`carry = body(constants, *carry)` while `cond(*carry)`.

        `constants` are all other arrays that the body reads and that are computed in the program.
        `by_steps` says that outside of programs, the body is fast as it is.
        """
        return ops.while_loop(cond, lambda *carry: body(constants, *carry), carry)

    def cond(self, condition, true_fn, false_fn):
        """`true_fn()` or `false_fn()`, and not the other, unless PyTorch records a step."""

    # Arrays that loops fill

    def make_buffer(self, count, shape, dtype, zeros=True):
        """A buffer for `count` arrays of one shape: zeros, or uninitialized if not `zeros`."""

    def read_buffer(self, buffer: Any, index: Size) -> Tensor:
        """The array at an index of a buffer."""

    def write_buffer(self, buffer: Any, index: Size, array: Tensor) -> Any:
        """The buffer with another array at an index; the old buffer must not be used again."""

    def stack_buffer(self, buffer: Any) -> Tensor:
        """A buffer as one array, indices first."""
        return buffer

    # Arrays

    def of_numpy(self, array: Any) -> Tensor:
        """A tensor that uses the memory of a NumPy array on a CPU, without a copy.

        The caller must not use the array again. It is aligned to 64 bytes, and may be of bfloat16.
        """

    def dynamic_slice(self, array: Tensor, axis: int, start: Size, size: Size) -> Tensor:
        """`size` elements along an axis from `start`. A subclass has this or `dynamic_slices`."""
        return self.dynamic_slices(array, {axis: (start, size)})

    def dynamic_slices(self, array: Tensor, cuts: dict[int, tuple[Size, Size]]) -> Tensor:
        """`array` cut along several axes at once: from `start`, `size` elements of each."""
        for axis, (start, size) in cuts.items():
            array = self.dynamic_slice(array, axis, start, size)
        return array

    def first(self, array: Tensor, size: Size) -> Tensor:
        """The first `size` elements along the last axis.

        If there are fewer, it fails; in a program of JAX for all sizes the missing ones are NaN.
        """
        return self.dynamic_slice(array, len(array.shape) - 1, 0, size)

    def matmul(self, first, second, transpose_first=False, transpose_second=False):
        """The matrix product of the last two axes, with either matrix transposed.

        Products of half precision are summed in float32 where the backend can.
        """

    def affine(self, array, features, kernel, bias, shape):
        """Rows of `features` times a kernel plus a bias, of one float dtype, in another `shape`."""

    def argmax(self, array: Tensor) -> Tensor:
        """The index of the first of the largest elements along the last axis."""
        return ops.argmax(array, axis=-1)

    def softmax(self, array: Tensor) -> Tensor:
        """The softmax over the last axis."""

    def layer_normalization(self, array, size, scale, offset, epsilon):
        """`keras.ops.layer_normalization` over the last axis, which has `size` elements."""
        return ops.layer_normalization(array, scale, offset, axis=-1, epsilon=epsilon)

    def rms_normalization(self, array: Tensor, scale: Tensor, epsilon: float) -> Tensor:
        """`keras.ops.rms_normalization` over the last axis."""
        return ops.rms_normalization(array, scale, axis=-1, epsilon=epsilon)

    def rotate(self, array: Tensor, cos: Tensor, sin: Tensor, axis: int) -> Tensor:
        """`array · cos + swapped(array) · sin`, in the dtype of the two, rounded to the array's.

        `swapped` exchanges the two features of each pair, (d/2, 2) for `axis` = −1 and (2, d/2) for
        −2. `cos` is the same for both, and `sin` of opposite signs; they have no gradient.
        """
        # LiteRT lacks `roll`; two slices have gradients that are padded with zeros and added.
        wide, sizes = ops.cast(array, cos.dtype), self.shape(array)
        pairs = (2, sizes[-1] // 2) if axis == -2 else (sizes[-1] // 2, 2)
        swapped = ops.flip(ops.reshape(wide, (*sizes[:-1], *pairs)), len(sizes) + 1 + axis)
        return ops.cast(wide * cos + ops.reshape(swapped, sizes) * sin, array.dtype)

    def masked_products(self, products: Tensor, mask: Tensor, masked: float) -> Tensor:
        """Products where `mask`, which broadcasts, is True, else about `masked`, far below them."""
        return self.masked(products, mask, masked)

    def masked(self, scores: Tensor, mask: Tensor, masked: float) -> Tensor:
        """As `masked_products`, for scores with added terms, and with exactly `masked`."""
        return ops.where(mask, scores, ops.cast(masked, scores.dtype))

    def exp(self, array: Tensor, highest: float | None = None) -> Tensor:
        """exp of floats, which are clipped to `highest`; 0 for those that are hugely negative.

        `array` is not read again, and its memory may be reused for the result.
        """
        return ops.exp(array if highest is None else ops.minimum(array, highest))

    def cumsum(self, array: Tensor) -> Tensor:
        """The cumulative sums over the last axis, in the array's dtype."""
        return ops.cumsum(array, axis=-1)

    def maximum(self, first: Tensor, second: Tensor) -> Tensor:
        """The larger of each two elements of arrays of one dtype, in that dtype."""
        return ops.maximum(first, second)

    def tile_scores(self, array: Tensor) -> int:
        """About how many scores a tile of blocks has: on CPUs, few enough to stay in the cache."""
        return 2**23 if self.on_accelerator(array) else 2**21

    def prefers_whole_rows(self, scores: int | None) -> bool:
        """Whether the `softmax` of whole rows of so many scores, or None if that is unknown, is
        faster than sums over blocks of keys.
        """
        return False

    def has_fast_bfloat16(self) -> bool:
        """Whether products of bfloat16, rounded to bfloat16, are faster than those of float32."""
        return False

    def has_wide_products(self, array: Tensor) -> bool:
        """Whether `matmul` of half precision gives float32, and is faster than that of float32."""

    def clip(self, array: Tensor, limit: float) -> Tensor:
        """`array` clipped to ±`limit`, beyond any useful value; the gradient may ignore that."""

    def clear(self, array: Tensor, mask: Tensor) -> Tensor:
        """`array` (B, T, …) with zeros where `mask` (B, T) is False."""
        for _ in range(len(array.shape) - len(mask.shape)):
            mask = ops.expand_dims(mask, -1)
        return ops.where(mask, array, ops.cast(0, array.dtype))

    def multiply_fresh(self, array: Tensor, factor: Tensor) -> Tensor:
        """The product of two arrays of one shape, for which the memory of `array` may be reused."""
        return array * factor

    def multiply_no_nan(self, array: Tensor, factor: Tensor) -> Tensor:
        """`array` (..., n) times a factor (..., 1), 0 where that is 0, even if NaN or infinite."""
        return ops.where(factor == 0, 0, array * factor)

    def windows(self, array: Tensor, rows: Size, columns: Size) -> Tensor:
        """(n, rows, columns) of (n, rows + columns − 1): row t starts at rows − 1 − t."""

    def take(self, array: Tensor, indices: Tensor, axis: int) -> Tensor:
        """`keras.ops.take` along an axis counted from the first, by indices that are in it."""
        return ops.take(array, indices, axis=axis)

    def take_rows(self, array: Tensor, indices: Tensor) -> Tensor:
        """(B, N, D) of (B, T, D): of each batch element the rows at its indices (B, N)."""

    def write_rows(self, array: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
        """A copy of `array` (…, D) with `rows` (…, D) at distinct indices (n,) of its vectors."""

    def bucket_sums(self, weights: Tensor, buckets: Tensor, count: Size) -> Tensor:
        """The sum of the weights in each bucket: (B, H, T, count) of (B, H, T, S)."""
        batch, heads, queries, _ = ops.shape(weights)
        rows = batch * heads * queries
        first = ops.reshape(ops.arange(rows, dtype="int32"), (batch, heads, queries, 1))
        flat, at = (ops.reshape(x, (-1,)) for x in (weights, buckets + count * first))
        summed = ops.segment_sum(flat, at, num_segments=rows * count)
        return ops.reshape(summed, (batch, heads, queries, count))

    def take_last(self, array: Tensor, index: Tensor) -> Tensor:
        """Elements of the last axis, (…, S) of (…, N) by integers (…, S) from 0 to N − 1."""
        return ops.take_along_axis(array, index, axis=-1)

    # Gradients written by hand

    def custom_vjp(self, make, arrays, constants=(), saves=True):
        """`forward(*arrays)`, with `backward` for its gradient; `make(constants)` gives the two.

        `constants` are all other arrays that they read, in tuples, lists and dictionaries: a
        function that is traced later than it was created cannot close over arrays. `forward`
        returns two tuples of arrays: the outputs, and what `backward` needs besides; `saves` says
        whether the second has any. `backward(arrays, outputs, saved, upstream)` returns gradients.
        """

    def cond_vjp(self, condition, true_fn, false_fn, arrays, constants=()):
        """`true_fn(constants, *arrays)` if the condition holds, else that of `false_fn`.

        The gradient keeps `arrays`, the result and what the gradient of `true_fn` needs besides,
        and computes `false_fn` again. The gradient of `cond` would keep what either branch needs.
        """
        functions = (lambda f=f: f(constants, *arrays) for f in (true_fn, false_fn))
        return self.cond(condition, *functions)

    def vjp(self, function, arrays):
        """`function(*arrays)`, and a function from its gradient to the gradients of `arrays`."""

    # Random numbers

    def uniform(self, shape: Sequence[Size], seed: Seed) -> Tensor:
        """Float32 numbers in [0, 1), of an integer or a `keras.random.SeedGenerator`."""
        return keras.random.uniform(shape, dtype="float32", seed=seed)

    def dropout_key(self, seed: Seed) -> Tensor:
        """The key for `dropout_mask`, of an integer, a `keras.random.SeedGenerator` or a key."""

    def dropout_mask(self, key: Tensor, index: Size, shape: Sequence[Size], rate: float) -> Tensor:
        """Which elements of a block dropout keeps: deterministic for a key and an index."""

    def dropout(self, array: Tensor, rate: float, seed: Seed) -> Tensor:
        """`keras.random.dropout`, equally fast with and without XLA."""
        return keras.random.dropout(array, rate, seed=seed)

    # The backend's own fused attention

    # The forms of its masks, the cheapest first: "lengths" for the number of keys in each row,
    # "masks" for boolean arrays. Empty if there is no such kernel.
    FUSED_READS: tuple[str, ...] = ()
    # On accelerators, how many times as fast as blocks it computes a pair.
    FUSED_GAIN: int = 1

    def fused_attention(self, query, key, value, mask, lengths, causal, left, scale):
        """The output (B, T, H, V).

        `mask` is (1 or B, 1 or H, 1 or T, S), boolean or added to scores, and `lengths` (B,) the
        number of keys of each row. A causal query sees `left` keys before it, or all if None.
        """
        return None

    def fused_with_lse(self, query, key, value, mask, causal, scale, sink, plain):
        """The output with a sink (H,) or None, and the log-sum-exp (B, H, T) of keys and sink.

        Only the output has a gradient, and only with a sink. `plain` is the same function of query,
        key, value and sink, for second derivatives.
        """
        return plain(query, key, value, sink)

    def needs_gradient(self, array: Tensor) -> bool:
        """Whether the gradient of an array may be needed."""
        return True

    def known_true(self, array: Tensor) -> bool:
        """Whether all elements are True; False where that cannot be read, or not at once."""
        return False

    def fused_unsupported_reason(self, query, key, value, by, causal, left, lse):
        """The reason `fused_attention` cannot compute a problem, or None.

        `by` is a form of `FUSED_READS`, and `lse` says whether the log-sum-exp is needed.
        """
        return "no fused kernel of this backend is used"

    def where_fused(self, function, otherwise, arrays):
        """`function(*arrays)` in programs for its device, `otherwise(*arrays)` in all others."""
        return otherwise(*arrays)

    # Programs

    def compile(self, function, layer):
        """`function` of arrays and of a layer's variables, compiled for each shape."""

    def runs_at_once(self, arrays: Sequence[Tensor]) -> bool:
        """Whether code on arrays runs as it is, and nothing records or differentiates it."""
        return all(map(self.is_eager, arrays))

    def trace_id(self) -> Any:
        """Identifies a program, or a loop within it, while it is traced."""
        return None


@functools.cache
def multiplies_bfloat16():
    """Whether the processor has instructions for products of bfloat16, as far as Linux says."""
    try:
        flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags)
