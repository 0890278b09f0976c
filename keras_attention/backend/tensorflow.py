"""TensorFlow. Sizes may be unknown in graphs; control flow and custom gradients are special."""

import contextlib
import math

import keras
import tensorflow as tf

from keras_attention import keras_private
from keras_attention.backend import processor

ops = keras.ops

TRACED_SIZES = ()
FUSED_READS = ()
FUSED_GAIN = 1

# By default, random numbers differ under XLA, and take up to 100 times as long on CPUs.
_GENERATOR = "philox"


# TensorFlow has no public way to ask whether oneDNN is on, nor whether XLA is to compile a graph.
try:
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext as _uses_xla
    from tensorflow.python.util._pywrap_util_port import IsMklEnabled as _uses_onednn
except ImportError:  # pragma: no cover

    def _uses_xla(graph):
        return True

    def _uses_onednn():
        return False


def shape(array):
    # Keras's `shape` runs an operation even if all sizes are known.
    known = tuple(getattr(array, "shape", (None,)))
    return ops.shape(array) if None in known else known


def known_size(size):
    return size


def least_size(first, second):
    return ops.minimum(first, second)


def most_size(first, second):
    return ops.maximum(first, second)


def same_size(first, second):
    return first is second


def is_symbolic_size(size):
    return False


def is_eager(array):
    return tf.executing_eagerly()


def on_accelerator(array):
    return bool(tf.config.list_logical_devices("GPU"))


def instead_of(array):
    # Sparse tensors are accepted: Keras's projections take them.
    if type(array) is tf.RaggedTensor or (isinstance(array, keras.KerasTensor) and array.ragged):
        return (
            "Pass a ragged tensor as `x.to_tensor()`, and which of its positions are real, "
            "`tf.sequence_mask(x.row_lengths())`, as its mask"
        )
    return None


def warn_of_recorded_length(length):
    pass


def may_share_arrays():
    return False


def fori_loop(start, stop, body, carry):
    def step(i, carry):
        return i + 1, tf.nest.map_structure(_like, body(i, carry), carry)

    # One step at a time: otherwise a graph runs several at once, and stores a block of each.
    return tf.while_loop(
        lambda i, _: i < stop,
        step,
        (tf.convert_to_tensor(start, "int32"), carry),
        parallel_iterations=1,
    )[1]


def _like(new, old):
    return new if isinstance(new, tf.TensorArray) else tf.ensure_shape(new, old.shape)


def while_loop(cond, body, carry, constants=()):
    return ops.while_loop(cond, lambda *carry: body(constants, *carry), carry)


def mesh_axis(name):
    return None


def axis_map(mesh, name, like):
    return None


def cond(condition, true_fn, false_fn):
    return tf.cond(condition, true_fn, false_fn)


def sum_over(function, start, arrays):
    # A graph runs up to ten steps of a loop at once, and would store ten slices.
    return tf.foldl(
        lambda total, part: total + function(part), arrays, start, parallel_iterations=1
    )


def map_over(function, arrays):
    return tf.map_fn(function, arrays, parallel_iterations=1)


def make_buffer(count, shape, dtype, zeros=True):
    static = tf.TensorShape([size if isinstance(size, int) else None for size in shape])
    buffer = tf.TensorArray(dtype, count, clear_after_read=False, element_shape=static)
    return buffer.unstack(tf.zeros((count, *shape), dtype)) if zeros else buffer


def read_buffer(buffer, index):
    return buffer.read(index)


def write_buffer(buffer, index, array):
    return buffer.write(index, array)


def stack_buffer(buffer):
    return buffer.stack()


def of_numpy(array):
    narrow = array.dtype.name == "bfloat16"
    shared = array.view("uint16") if narrow else array
    tensor = tf.experimental.dlpack.from_dlpack(shared.__dlpack__())
    return tf.bitcast(tensor, tf.bfloat16) if narrow else tensor


def dynamic_slice(array, axis, start, size):
    return dynamic_slices(array, {axis: (start, size)})


def dynamic_slices(array, cuts):
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


def first(array, size):
    # Not by `[:size]`, which is silently shorter if there are fewer.
    return dynamic_slice(array, len(array.shape) - 1, 0, size)


def matmul(first, second, transpose_first=False, transpose_second=False):
    options = {"transpose_a": transpose_first, "transpose_b": transpose_second}
    if {first.dtype, second.dtype} & _HALF and has_wide_products(first):
        if first.dtype != second.dtype:
            first, second = tf.cast(first, tf.float32), tf.cast(second, tf.float32)
        return tf.matmul(first, second, output_type=tf.float32, **options)
    if transpose_second and _is_wrong_in_bfloat16(first, second):
        return tf.matmul(first[0], second[0], **options)[None]
    return tf.matmul(first, second, **options)


_HALF = {tf.bfloat16, tf.float16}


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


def affine(array, features, kernel, bias, shape):
    if isinstance(array, tf.SparseTensor):
        rows = tf.sparse.reshape(array, (-1, features))
        product = ops.matmul(rows, tf.reshape(kernel, (features, -1)))
    else:
        product = tf.matmul(tf.reshape(array, (-1, features)), tf.reshape(kernel, (features, -1)))
    if bias is not None:
        product = tf.nn.bias_add(product, tf.reshape(bias, (-1,)))
    return tf.reshape(product, shape)


def argmax(array):
    # Keras's has operations that the exporters to ONNX and LiteRT do not know.
    return tf.argmax(array, axis=-1, output_type="int32")


def softmax(array):
    # Keras's own keeps the scores alive as long as the weights.
    return tf.nn.softmax(array)


def layer_normalization(array, size, scale, offset, epsilon):
    return ops.layer_normalization(array, scale, offset, axis=-1, epsilon=epsilon)


def rms_normalization(array, scale, epsilon):
    return ops.rms_normalization(array, scale, axis=-1, epsilon=epsilon)


def rotate(array, cos, sin, axis):
    # LiteRT lacks `roll`; two slices have gradients that are padded with zeros and added.
    wide, sizes = tf.cast(array, cos.dtype), shape(array)
    pairs = (2, -1) if axis == -2 else (-1, 2)
    swapped = tf.reverse(tf.reshape(wide, (*sizes[:-1], *pairs)), [len(sizes) + 1 + axis])
    return tf.cast(wide * cos + tf.reshape(swapped, sizes) * sin, array.dtype)


def masked_products(products, mask, masked):
    return tf.where(mask, products, tf.cast(masked, products.dtype))


def masked(scores, mask, masked):
    return masked_products(scores, mask, masked)


def exp(array, highest=None):
    return tf.exp(array if highest is None else tf.minimum(array, highest))


def cumsum(array):
    return tf.cumsum(array, axis=-1)


def maximum(first, second):
    return tf.maximum(first, second)


def tile_scores(array):
    return 2**23 if on_accelerator(array) else 2**21


def prefers_whole_rows(scores):
    # oneDNN's softmax, on CPUs, is one pass. XLA's takes several, and its sizes do not vary.
    graph = tf.compat.v1.get_default_graph()
    return _uses_onednn() and not on_accelerator(None) and not _uses_xla(graph)


def has_fast_bfloat16():
    # Without instructions for it, oneDNN emulates bfloat16.
    return processor.multiplies_bfloat16()


def has_wide_products(array):
    # Only XLA has products with float32 results of half-precision inputs.
    return on_accelerator(array) and _uses_xla(tf.compat.v1.get_default_graph())


def clip(array, limit):
    # TensorFlow's own gradient takes five passes over the array. The operation `ClipByValue` would
    # be one pass fewer, which is no faster, and LiteRT lacks it.
    @tf.custom_gradient
    def function(array):
        low, high = tf.constant(-limit, array.dtype), tf.constant(limit, array.dtype)
        return tf.minimum(tf.maximum(array, low), high), lambda upstream: upstream

    return function(array)


def clear(array, mask):
    for _ in range(len(array.shape) - len(mask.shape)):
        mask = ops.expand_dims(mask, -1)
    return ops.where(mask, array, ops.cast(0, array.dtype))


def multiply_fresh(array, factor):
    return array * factor


def multiply_no_nan(array, factor):
    return tf.math.multiply_no_nan(array, factor)


def windows(array, rows, columns):
    # Blocks of rows, then the rows of a block, to copy not much more than the result.
    some = 1
    if isinstance(rows, int):
        some = max(n for n in range(1, math.isqrt(rows) + 1) if rows % n == 0)
    blocks = _windows(array, rows // some, columns + some - 1, some)
    if some == 1:
        return blocks
    found = _windows(tf.reshape(blocks, (-1, columns + some - 1)), some, columns, 1)
    return tf.reshape(found, (-1, rows, columns))


def _windows(array, rows, columns, step):
    """(n, rows, columns) of (n, N): row t starts at (rows − 1 − t) · step."""
    length = columns + (rows - 1) * step
    # Repeated rows that are cut too short make the next one start `step` earlier.
    flat = tf.tile(tf.pad(array, [(0, 0), (0, step)]), (1, rows))
    flat = dynamic_slice(flat, 1, (rows - 1) * step, rows * length)
    return dynamic_slice(tf.reshape(flat, (-1, rows, length)), 2, 0, columns)


def take(array, indices, axis):
    return ops.take(array, indices, axis=axis)


def take_rows(array, indices):
    return tf.gather(array, indices, batch_dims=1)


def write_rows(array, indices, rows):
    size, shape_ = array.shape[-1], shape(array)
    flat, rows = tf.reshape(array, (-1, size)), tf.reshape(rows, (-1, size))
    flat = tf.tensor_scatter_nd_update(flat, tf.expand_dims(indices, 1), rows)
    return tf.reshape(flat, shape_)


def bucket_sums(weights, buckets, count):
    batch, heads, queries, _ = ops.shape(weights)
    rows = batch * heads * queries
    first = ops.reshape(ops.arange(rows, dtype="int32"), (batch, heads, queries, 1))
    summed = ops.segment_sum(
        ops.reshape(weights, (-1,)),
        ops.reshape(buckets + count * first, (-1,)),
        num_segments=rows * count,
    )
    return ops.reshape(summed, (batch, heads, queries, count))


def take_last(array, index):
    # Keras's `take_along_axis` broadcasts, whose gradient XLA cannot compile inside a loop.
    return tf.gather(array, index, batch_dims=len(index.shape) - 1)


def custom_vjp(make, arrays, constants=(), saves=True):
    forward, backward = make(constants)
    # A tape of eager code would keep all that `forward` computes, as if it had no custom gradient.
    # `init_scope` pauses the tape; what was saved must be on it for second derivatives.
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


def cond_vjp(condition, true_fn, false_fn, arrays, constants=()):
    if tf.executing_eagerly():
        return (true_fn if condition else false_fn)(constants, *arrays)

    def make(given):
        condition, constants = given

        def forward(*arrays):
            functions = (lambda f=f: f(constants, *arrays) for f in (true_fn, false_fn))
            return (cond(condition, *functions),), ()

        def backward(arrays, outputs, saved, upstream):
            def pull(function):
                found, pullback = vjp(lambda *arrays: function(constants, *arrays), arrays)
                return pullback(_like(upstream[0], found))

            return cond(condition, lambda: pull(true_fn), lambda: pull(false_fn))

        return forward, backward

    (found,) = custom_vjp(make, arrays, (condition, constants), saves=False)
    return found


def vjp(function, arrays):
    # Constants for this tape: an outer tape may watch them.
    arrays = [tf.identity(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(arrays)
        found = function(*arrays)
    return found, lambda upstream: tape.gradient(
        found, arrays, upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )


def uniform(shape, seed):
    seed = tf.cast(tf.math.floormod(keras_private.draw_seed(seed), tf.int32.max - 1), "int32")
    return tf.random.stateless_uniform(shape, seed, alg=_GENERATOR)


def dropout_key(seed):
    # Scrambled, since the next seed of a generator is this one plus 1, and so is the next key.
    seed = tf.cast(keras_private.draw_seed(seed), "int32")
    return tf.random.stateless_uniform((2,), seed, None, None, "int32", alg=_GENERATOR)


def dropout_mask(key, index, shape, rate):
    *rest, count = shape
    half = (count + 1) // 2
    # Sixteen bits each: half the random numbers, and a rate accurate to 8e-6.
    words = tf.random.stateless_uniform(
        (*rest, half), key + tf.stack([0, index]), None, None, "uint32", alg=_GENERATOR
    )
    bits = tf.reshape(tf.bitcast(words, "uint16"), (*rest, 2 * half))[..., :count]
    return bits >= tf.constant(round(rate * 2**16), "uint16")


def dropout(array, rate, seed):
    kept = dropout_mask(dropout_key(seed), 0, ops.shape(array), rate)
    return tf.where(kept, array, tf.zeros_like(array)) * (1 / (1 - rate))


# The functions of fused attention are never called, since FUSED_READS is empty.


def fused_attention(query, key, value, mask, lengths, causal, left, scale):
    return None


def fused_with_lse(query, key, value, mask, causal, scale, sink, plain):
    return None


def needs_gradient(array):
    return True


def known_true(array):
    return False


def fused_unsupported_reason(query, key, value, by, causal, left, lse):
    return "no fused kernel of this backend is used"


def where_fused(function, otherwise, arrays):
    return otherwise(*arrays)


def compile(function, layer):
    # As on other backends, nothing is read from the function's source.
    traced = tf.function(function, jit_compile=True, autograph=False)
    programs = {}

    def run(*arrays):
        # One for each of their shapes, which is not too many: TensorFlow would warn of five, and
        # counts those of all layers together.
        specs = keras.tree.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), arrays)
        known = repr(specs)
        if known not in programs:
            programs[known] = traced.get_concrete_function(*specs)
        return programs[known](*arrays)

    return run


def trace_id():
    return tf.compat.v1.get_default_graph()
