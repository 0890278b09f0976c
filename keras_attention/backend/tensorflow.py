"""TensorFlow. Sizes may be unknown in graphs; control flow and custom gradients are special."""

import contextlib
import math

import keras
import tensorflow as tf
from keras import ops

from keras_attention.backend.interface import Backend, multiplies_bfloat16
from keras_attention.core import keras_private

# By default, random numbers differ under XLA, and take up to 100 times as long on CPUs.
_GENERATOR = "philox"
_HALF = {tf.bfloat16, tf.float16}

# TensorFlow has no public way to ask whether oneDNN is on, whether XLA is to compile a graph, nor
# whether a tape records.
try:
    from tensorflow.python.eager.record import could_possibly_record as _may_record
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext as _uses_xla
    from tensorflow.python.util._pywrap_util_port import IsMklEnabled as _uses_onednn
except ImportError:  # pragma: no cover

    def _uses_xla(graph):
        return True

    def _uses_onednn():
        return False

    def _may_record():
        return True


class TensorFlow(Backend):
    """`backend` on TensorFlow."""

    def shape(self, array):
        # Keras's `shape` runs an operation even if all sizes are known.
        known = tuple(getattr(array, "shape", (None,)))
        return ops.shape(array) if None in known else known

    def is_eager(self, array):
        return tf.executing_eagerly()

    def on_accelerator(self, array):
        return bool(tf.config.list_logical_devices("GPU"))

    def instead_of(self, array):
        # Sparse tensors are accepted: Keras's projections take them.
        symbolic = isinstance(array, keras.KerasTensor) and array.ragged
        if symbolic or type(array) is tf.RaggedTensor:
            return (
                "Pass a ragged tensor as `x.to_tensor()`, and which of its positions are real, "
                "`tf.sequence_mask(x.row_lengths())`, as its mask"
            )
        return None

    def fori_loop(self, start, stop, body, carry):
        def step(i, carry):
            return i + 1, tf.nest.map_structure(_like, body(i, carry), carry)

        # One step at a time: otherwise a graph runs several at once, and stores a block of each.
        first = tf.convert_to_tensor(start, "int32"), carry
        return tf.while_loop(lambda i, _: i < stop, step, first, parallel_iterations=1)[1]

    def cond(self, condition, true_fn, false_fn):
        return tf.cond(condition, true_fn, false_fn)

    def make_buffer(self, count, shape, dtype, zeros=True):
        static = tf.TensorShape([size if isinstance(size, int) else None for size in shape])
        buffer = tf.TensorArray(dtype, count, clear_after_read=False, element_shape=static)
        return buffer.unstack(tf.zeros((count, *shape), dtype)) if zeros else buffer

    def read_buffer(self, buffer, index):
        return buffer.read(index)

    def write_buffer(self, buffer, index, array):
        return buffer.write(index, array)

    def stack_buffer(self, buffer):
        return buffer.stack()

    def of_numpy(self, array):
        narrow = array.dtype.name == "bfloat16"
        shared = array.view("uint16") if narrow else array
        tensor = tf.experimental.dlpack.from_dlpack(shared.__dlpack__())
        return tf.bitcast(tensor, tf.bfloat16) if narrow else tensor

    def dynamic_slices(self, array, cuts):
        # All axes by one operation, since each operation copies.
        cuts = {
            axis: (start, size)
            for axis, (start, size) in cuts.items()
            if not (isinstance(size, int) and array.shape[axis] == size)
        }
        if not cuts:
            return array
        begin, sizes = [0] * len(array.shape), list(ops.shape(array))
        for axis, (start, size) in cuts.items():
            begin[axis], sizes[axis] = start, size
        last = max(cuts)
        if all(isinstance(size, int) and size == 1 for size in sizes[:last]):
            # One stretch of memory. A slice of the first axis does not copy, if it is aligned.
            first = 0
            for start, count in zip(begin, ops.shape(array)[: last + 1], strict=False):
                first = first * count + start
            after = sizes[last + 1 :]
            flat = tf.reshape(array, (-1, *after))
            found = tf.slice(flat, [first] + [0] * len(after), sizes[last:])
            found = tf.reshape(found, sizes)
        else:
            found = tf.slice(array, begin, sizes)
        found.set_shape([size if isinstance(size, int) else None for size in sizes])
        return found

    def matmul(self, first, second, transpose_first=False, transpose_second=False):
        options = {"transpose_a": transpose_first, "transpose_b": transpose_second}
        if {first.dtype, second.dtype} & _HALF and self.has_wide_products(first):
            if first.dtype != second.dtype:
                first, second = tf.cast(first, tf.float32), tf.cast(second, tf.float32)
            return tf.matmul(first, second, output_type=tf.float32, **options)
        if transpose_second and _is_wrong_in_bfloat16(first, second):
            return tf.matmul(first[0], second[0], **options)[None]
        return tf.matmul(first, second, **options)

    def affine(self, array, features, kernel, bias, shape):
        kernel = tf.reshape(kernel, (features, -1))
        if isinstance(array, tf.SparseTensor):
            product = ops.matmul(tf.sparse.reshape(array, (-1, features)), kernel)
        else:
            product = tf.matmul(tf.reshape(array, (-1, features)), kernel)
        if bias is not None:
            product = tf.nn.bias_add(product, tf.reshape(bias, (-1,)))
        return tf.reshape(product, shape)

    def argmax(self, array):
        # Keras's has operations that the exporters to ONNX and LiteRT do not know.
        return tf.argmax(array, axis=-1, output_type="int32")

    def softmax(self, array):
        # Keras's own keeps the scores alive as long as the weights.
        return tf.nn.softmax(array)

    def prefers_whole_rows(self, scores):
        # oneDNN's softmax, on CPUs, is one pass. XLA's takes several, and its sizes do not vary.
        graph = tf.compat.v1.get_default_graph()
        return _uses_onednn() and not self.on_accelerator(None) and not _uses_xla(graph)

    def has_fast_bfloat16(self):
        # Without instructions for it, oneDNN emulates bfloat16.
        return multiplies_bfloat16()

    def has_wide_products(self, array):
        # Only XLA has products with float32 results of half-precision inputs.
        return self.on_accelerator(array) and _uses_xla(tf.compat.v1.get_default_graph())

    def clip(self, array, limit):
        # TensorFlow's own gradient takes five passes over the array. The operation `ClipByValue`
        # would be one pass fewer, which is no faster, and LiteRT lacks it.
        @tf.custom_gradient
        def function(array):
            low, high = tf.constant(-limit, array.dtype), tf.constant(limit, array.dtype)
            return tf.minimum(tf.maximum(array, low), high), lambda upstream: upstream

        return function(array)

    def multiply_no_nan(self, array, factor):
        return tf.math.multiply_no_nan(array, factor)

    def windows(self, array, rows, columns):
        # Blocks of rows, then the rows of a block, to copy not much more than the result.
        some = 1
        if isinstance(rows, int):
            some = max(n for n in range(1, math.isqrt(rows) + 1) if rows % n == 0)
        blocks = _windows(array, rows // some, columns + some - 1, some)
        if some == 1:
            return blocks
        found = _windows(tf.reshape(blocks, (-1, columns + some - 1)), some, columns, 1)
        return tf.reshape(found, (-1, rows, columns))

    def take_rows(self, array, indices):
        return tf.gather(array, indices, batch_dims=1)

    def write_rows(self, array, indices, rows):
        size, shape_ = array.shape[-1], self.shape(array)
        flat, rows = tf.reshape(array, (-1, size)), tf.reshape(rows, (-1, size))
        flat = tf.tensor_scatter_nd_update(flat, tf.expand_dims(indices, 1), rows)
        return tf.reshape(flat, shape_)

    def take_last(self, array, index):
        # Keras's `take_along_axis` broadcasts, whose gradient XLA cannot compile inside a loop.
        return tf.gather(array, index, batch_dims=len(index.shape) - 1)

    def custom_vjp(self, make, arrays, constants=(), saves=True):
        forward, backward = make(constants)
        # A tape of eager code would keep all that `forward` computes, as if it had no custom
        # gradient. `init_scope` pauses it; what was saved must be on it for second derivatives.
        paused = tf.executing_eagerly() and not saves
        returned = []

        @tf.custom_gradient
        def function(*arrays):
            with tf.init_scope() if paused else contextlib.nullcontext():
                outputs, saved = forward(*arrays)

            def gradient(*upstream):
                # The returned outputs are on the tape.
                known = tuple(returned) if paused else outputs
                # Graphs forget the shape of an output's gradient.
                shaped = (_like(x, output) for x, output in zip(upstream, known, strict=True))
                return backward(arrays, known, saved, tuple(shaped))

            return outputs, gradient

        # Variables would be captured by the function; tensors are passed.
        found = function(*map(tf.convert_to_tensor, arrays))
        returned += found
        return found

    def cond_vjp(self, condition, true_fn, false_fn, arrays, constants=()):
        if tf.executing_eagerly():
            return (true_fn if condition else false_fn)(constants, *arrays)

        def make(given):
            condition, constants = given

            def forward(*arrays):
                functions = (lambda f=f: f(constants, *arrays) for f in (true_fn, false_fn))
                return (self.cond(condition, *functions),), ()

            def backward(arrays, outputs, saved, upstream):
                def pull(function):
                    found, pullback = self.vjp(lambda *arrays: function(constants, *arrays), arrays)
                    return pullback(_like(upstream[0], found))

                return self.cond(condition, lambda: pull(true_fn), lambda: pull(false_fn))

            return forward, backward

        (found,) = self.custom_vjp(make, arrays, (condition, constants), saves=False)
        return found

    def vjp(self, function, arrays):
        # Constants for this tape: an outer tape may watch them.
        arrays = [tf.identity(array) for array in arrays]
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            found = function(*arrays)
        return found, lambda upstream: tape.gradient(
            found, arrays, upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )

    def uniform(self, shape, seed):
        seed = tf.cast(tf.math.floormod(keras_private.draw_seed(seed), tf.int32.max - 1), "int32")
        return tf.random.stateless_uniform(shape, seed, alg=_GENERATOR)

    def dropout_key(self, seed):
        # Scrambled, since the next seed of a generator is this one plus 1, and so is the next key.
        seed = tf.cast(keras_private.draw_seed(seed), "int32")
        return tf.random.stateless_uniform((2,), seed, None, None, "int32", alg=_GENERATOR)

    def dropout_mask(self, key, index, shape, rate):
        *rest, count = shape
        half = (count + 1) // 2
        # Sixteen bits each: half the random numbers, and a rate accurate to 8e-6.
        words = tf.random.stateless_uniform(
            (*rest, half), key + tf.stack([0, index]), None, None, "uint32", alg=_GENERATOR
        )
        bits = tf.reshape(tf.bitcast(words, "uint16"), (*rest, 2 * half))[..., :count]
        return bits >= tf.constant(round(rate * 2**16), "uint16")

    def dropout(self, array, rate, seed):
        kept = self.dropout_mask(self.dropout_key(seed), 0, ops.shape(array), rate)
        return tf.where(kept, array, tf.zeros_like(array)) * (1 / (1 - rate))

    def compile(self, function, layer):
        # As on other backends, nothing is read from the function's source.
        traced = tf.function(function, jit_compile=True, autograph=False)
        programs = {}

        def run(*arrays):
            # One for each of their shapes, which is not too many: TensorFlow would warn of five,
            # and counts those of all layers together.
            specs = keras.tree.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), arrays)
            known = repr(specs)
            if known not in programs:
                programs[known] = traced.get_concrete_function(*specs)
            return programs[known](*arrays)

        return run

    def runs_at_once(self, arrays):
        return tf.executing_eagerly() and not _may_record()

    def trace_id(self):
        return tf.compat.v1.get_default_graph()


def _like(new, old):
    return new if isinstance(new, tf.TensorArray) else tf.ensure_shape(new, old.shape)


def _is_wrong_in_bfloat16(first, second):
    """Whether oneDNN may be wrong about the product of the first with the second transposed.

    oneDNN of TensorFlow 2.21 does so on processors with AMX, for four axes of which the first two
    have size 1 and 49 to 63 columns; not for three axes.
    """
    if first.dtype != tf.bfloat16 or len(first.shape) != 4:
        return False
    columns = second.shape[-2]
    few = columns is None or 48 < columns < 64
    return few and first.shape[0] == first.shape[1] == 1


def _windows(array, rows, columns, step):
    """(n, rows, columns) of (n, N): row t starts at (rows − 1 − t) · step."""
    length = columns + (rows - 1) * step
    # Repeated rows that are cut too short make the next one start `step` earlier.
    flat = tf.tile(tf.pad(array, [(0, 0), (0, step)]), (1, rows))
    flat = backend.dynamic_slice(flat, 1, (rows - 1) * step, rows * length)
    return backend.dynamic_slice(tf.reshape(flat, (-1, rows, length)), 2, 0, columns)


backend = TensorFlow()
