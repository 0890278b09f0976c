"""The members that every backend file has.

`keras.ops` is the first choice everywhere. A member is here because Keras lacks it, computes it in
another dtype or order on one backend, or is measurably slower.

Sizes, counts, indices and starts are integers, or integer scalars of TensorFlow if a length is
unknown in a graph.
"""

import typing


class Backend(typing.Protocol):
    """The members of `keras_attention.backend`, one file for each framework."""

    # Sizes and devices

    def shape(self, array):
        """The shape, each size an integer where it is known."""

    def on_accelerator(self, array):
        """Whether a program on `array` will run on an accelerator, not on a CPU."""

    # Control flow

    def fori_loop(self, start, stop, body, carry):
        """`carry = body(i, carry)` for each i from `start` to `stop`, sequentially."""

    def cond(self, condition, true_fn, false_fn):
        """`true_fn()` or `false_fn()`, and not the other."""

    def sum_over(self, function, start, arrays):
        """`start` and `function` of each slice of `arrays` along their first axis, summed."""

    def map_over(self, function, arrays):
        """`function` of each slice of `arrays`, each result an array of the slice's shape."""

    # Arrays that loops fill

    def make_buffer(self, count, shape, dtype, zeros=True):
        """A buffer for `count` arrays of one shape: zeros, or uninitialized if not `zeros`."""

    def read_buffer(self, buffer, index):
        """The array at an index of a buffer."""

    def write_buffer(self, buffer, index, array):
        """The buffer with another array at an index; the old buffer must not be used again."""

    def stack_buffer(self, buffer):
        """A buffer as one array, indices first."""

    # Arrays

    def dynamic_slice(self, array, axis, start, size):
        """`size` elements along an axis from `start`."""

    def matmul(self, first, second, transpose_first=False, transpose_second=False):
        """The matrix product of the last two axes, with either matrix transposed.

        Products of half precision are summed in float32 where the backend can.
        """

    def clip(self, array, limit):
        """`array` clipped to ±`limit`, beyond any useful value: the gradient may pass."""

    def bucket_sums(self, weights, buckets, count):
        """The sum of the weights in each bucket: (B, H, T, count) of (B, H, T, S)."""

    # Gradients written by hand

    def custom_vjp(self, make, arrays, constants=()):
        """`forward(*arrays)`, with `backward` for its gradient; `make(constants)` gives the two.

        `constants` are all other arrays that they read, in tuples, lists and dictionaries: a
        function that is traced later than it was created cannot close over arrays. `forward`
        returns two tuples of arrays: the outputs, and what `backward` needs besides.
        `backward(arrays, outputs, saved, upstream)` returns a gradient for each of `arrays`.
        """

    def vjp(self, function, arrays):
        """`function(*arrays)`, and a function from its gradient to the gradients of `arrays`."""

    # Random numbers

    def uniform(self, shape, seed):
        """Float32 numbers in [0, 1), of an integer or a `keras.random.SeedGenerator`."""

    def dropout_key(self, seed):
        """The key for `dropout_mask`, from an integer or a `keras.random.SeedGenerator`."""

    def dropout_mask(self, key, index, shape, rate):
        """Which elements of a block dropout keeps: deterministic for a key and an index."""

    def dropout(self, array, rate, seed):
        """`keras.random.dropout`, equally fast with and without XLA."""

    # The backend's own fused attention

    # The form of its masks: None if there is no such kernel, "masks" for boolean arrays, "lengths"
    # for the number of keys in each row.
    FUSED_READS: str | None

    def fused_attention(self, query, key, value, mask, causal, scale):
        """The output (B, T, H, V); `mask` is a mask, or lengths, or None."""

    def why_not_fused(self, query, key, value, causal):
        """Why the fused kernel cannot compute this, or None."""

    def where_fused(self, function, otherwise, arrays):
        """`function(*arrays)` in programs for its device, `otherwise(*arrays)` in all others."""

    # Programs

    def compile(self, function, layer):
        """`function` of arrays and of a layer's variables, compiled for each shape."""

    def trace_id(self):
        """Identifies a program, or a loop within it, while it is traced."""
