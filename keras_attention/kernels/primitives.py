"""What kernels need and `keras.ops` lacks: loops over blocks, and gradients written by hand.

Sizes, counts and starts are integers, or integer scalars of TensorFlow where a graph does not know
a length yet.
"""

import contextlib
import functools

import keras

ops = keras.ops


def known(*sizes):
    """Whether all sizes are plain integers."""
    return all(isinstance(size, int) for size in sizes)


def least(first, second):
    """The smaller of two sizes."""
    return min(first, second) if known(first, second) else ops.minimum(first, second)


def most(first, second):
    """The larger of two sizes."""
    return max(first, second) if known(first, second) else ops.maximum(first, second)


def blocks(length, size):
    """How many blocks of at most `size` a length needs, and how long each is: as even as can be."""
    if known(length, size):
        for count in range(max(1, -(-length // size)), 2 * -(-length // size)):
            if length % count == 0:
                return count, length // count
    # Lengths that a graph does not know may turn out to be 0.
    size = most(1, size)
    count = most(1, -(-length // size))
    return count, most(1, -(-length // count))


if keras.config.backend() == "tensorflow":
    import tensorflow as tf

    def shape(array):
        """The shape, each size an integer where it is known."""
        return ops.shape(array)

    def on_accelerator(array):
        """Whether the kernel will run on an accelerator rather than on processor cores."""
        return bool(tf.config.list_logical_devices("GPU"))

    def loop(start, stop, body, carry):
        """`carry = body(i, carry)` for each i from `start` to `stop`, one after the other."""

        def step(i, carry):
            return i + 1, tf.nest.map_structure(_like, body(i, carry), carry)

        # One step at a time: a graph would else run several at once, and hold a block of each.
        return tf.while_loop(
            lambda i, _: i < stop,
            step,
            (tf.convert_to_tensor(start, "int32"), carry),
            parallel_iterations=1,
        )[1]

    def _like(new, old):
        return new if isinstance(new, tf.TensorArray) else tf.ensure_shape(new, old.shape)

    def buffer(count, shape, dtype, filled=True):
        """Room for `count` arrays of one shape: zeros, or nothing yet where not `filled`."""
        static = tf.TensorShape([size if known(size) else None for size in shape])
        room = tf.TensorArray(dtype, count, clear_after_read=False, element_shape=static)
        return room.unstack(tf.zeros((count, *shape), dtype)) if filled else room

    def read(buffer, place):
        """The array at a place of a buffer."""
        return buffer.read(place)

    def write(buffer, place, array):
        """The buffer with another array at a place; the old buffer is not to be used again."""
        return buffer.write(place, array)

    def stack(buffer):
        """A buffer as one array, places first."""
        return buffer.stack()

    def piece(array, axis, start, size):
        """`size` elements along an axis from `start`."""
        if known(size) and array.shape[axis] == size:
            return array
        begin, sizes = [0] * len(array.shape), list(ops.shape(array))
        begin[axis], sizes[axis] = start, size
        found = tf.slice(array, begin, sizes)
        found.set_shape([size if known(size) else None for size in sizes])
        return found

    def cond(truth, yes, no):
        """`yes()` or `no()`, and not the other."""
        return tf.cond(truth, yes, no)

    def product(first, second, flip_first=False, flip_second=False):
        """The matrix product of the last two axes, with either matrix transposed."""
        return tf.matmul(first, second, transpose_a=flip_first, transpose_b=flip_second)

    def custom(make, arrays, held=(), saves=True):
        """`forward(*arrays)`, with `backward` for its gradient; `make(held)` gives the two.

        `held` are what else they read, in tuples, lists and dictionaries: a function that is traced
        later than it was made cannot have arrays of its own. `forward` returns two tuples of
        arrays: what is returned, and what else `backward` needs; `saves` says that there is any.
        `backward(arrays, outputs, saved, upstream)` returns a gradient for each of `arrays`.
        """

        forward, backward = make(held)
        # A tape of eager code would keep all that `forward` computes, as if it had no gradient of
        # its own. `init_scope` pauses it; what was saved must be on it for second derivatives.
        paused = tf.executing_eagerly() and not saves
        returned = []

        @tf.custom_gradient
        def function(*arrays):
            with tf.init_scope() if paused else contextlib.nullcontext():
                outputs, saved = forward(*arrays)

            def gradient(*upstream):
                # Those that were returned are on the tape.
                known = tuple(returned) if paused else outputs
                # Graphs forget the shape of an output's gradient.
                shaped = (_like(x, output) for x, output in zip(upstream, known, strict=True))
                return backward(arrays, known, saved, tuple(shaped))

            return outputs, gradient

        # Variables would be captured by the function; tensors are passed.
        found = function(*map(tf.convert_to_tensor, arrays))
        returned += found
        return found

    def pullback(function, arrays):
        """`function(*arrays)`, and a function from its gradient to those of `arrays`."""
        # Constants of the tape's own: what an outer one watches is not its concern.
        arrays = [tf.identity(array) for array in arrays]
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            found = function(*arrays)
        return found, lambda upstream: tape.gradient(
            found, arrays, upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )

    FUSED_READS = None

    # By default, numbers are others under XLA, and on processor cores take up to 100 times as long.
    _GENERATOR = "philox"

    def uniform(shape, seed):
        """Float32 numbers in [0, 1), of an integer or a `keras.random.SeedGenerator`."""
        seed = keras.src.random.seed_generator.draw_seed(seed)
        seed = tf.cast(tf.math.floormod(seed, tf.int32.max - 1), "int32")
        return tf.random.stateless_uniform(shape, seed, alg=_GENERATOR)

    def key(seed):
        """What `kept` draws from, of an integer or a `keras.random.SeedGenerator`."""
        # Scrambled: the next seed of a generator is this one plus 1, as the next block's key is.
        seed = tf.cast(keras.src.random.seed_generator.draw_seed(seed), "int32")
        return tf.random.stateless_uniform((2,), seed, None, None, "int32", alg=_GENERATOR)

    def kept(key, place, shape, rate):
        """Which of the elements of a block dropout keeps: always the same for a key and a place."""
        count, *rest = shape[-1], *shape[:-1]
        half = (count + 1) // 2
        # Sixteen bits for each: half the random numbers, and a rate right to 8e-6.
        words = tf.random.stateless_uniform(
            (*rest, half), key + tf.stack([0, place]), None, None, "uint32", alg=_GENERATOR
        )
        bits = tf.reshape(tf.bitcast(words, "uint16"), (*rest, 2 * half))[..., :count]
        return bits >= tf.constant(round(rate * 2**16), "uint16")

    def dropout(x, rate, seed):
        """`keras.random.dropout`, as fast under XLA as without."""
        found = tf.where(kept(key(seed), 0, shape(x), rate), x, tf.zeros_like(x))
        return found * (1 / (1 - rate))

elif keras.config.backend() == "jax":
    import jax
    from jax import lax
    from jax import numpy as jnp

    def shape(array):
        return array.shape

    def on_accelerator(array):
        return jax.default_backend() != "cpu"

    def loop(start, stop, body, carry):
        return lax.fori_loop(start, stop, body, carry)

    def buffer(count, shape, dtype, filled=True):
        return jnp.zeros((count, *shape), dtype)

    def read(buffer, place):
        return lax.dynamic_index_in_dim(buffer, place, keepdims=False)

    def write(buffer, place, array):
        return lax.dynamic_update_index_in_dim(buffer, array, place, 0)

    def stack(buffer):
        return buffer

    def piece(array, axis, start, size):
        if array.shape[axis] == size:
            return array
        return lax.dynamic_slice_in_dim(array, start, size, axis)

    def cond(truth, yes, no):
        # What is known is not worth compiling two branches for.
        if isinstance(truth, jax.core.Tracer):
            return lax.cond(truth, yes, no)
        return yes() if truth else no()

    def product(first, second, flip_first=False, flip_second=False):
        first = jnp.swapaxes(first, -1, -2) if flip_first else first
        second = jnp.swapaxes(second, -1, -2) if flip_second else second
        return jnp.matmul(first, second, preferred_element_type=_wide(first))

    def _wide(array):
        return "float64" if array.dtype == "float64" else "float32"

    def custom(make, arrays, held=(), saves=True):
        def first(arrays, held):
            outputs, saved = make(held)[0](*arrays)
            return outputs, (arrays, held, outputs, saved)

        def second(kept, upstream):
            arrays, held, outputs, saved = kept
            found = make(held)[1](arrays, outputs, saved, upstream)
            return tuple(found), jax.tree.map(lambda _: None, held)

        function = jax.custom_vjp(lambda arrays, held: first(arrays, held)[0])
        function.defvjp(first, second)
        return function(tuple(arrays), held)

    def pullback(function, arrays):
        return jax.vjp(function, *arrays)

    FUSED_READS = "lengths"
    # Tests put others here, which every processor has.
    FUSED = {"platform": "cuda", "implementation": "cudnn"}

    def fused(query, key, value, lengths, causal, scale):
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            scale=scale,
            is_causal=causal,
            key_value_seq_lengths=lengths,
            implementation=FUSED["implementation"],
        )

    def fused_refuses(query, key, value, causal):
        if jax.default_backend() == "cpu":
            return "cuDNN's kernel needs a GPU"
        alike = [
            jax.ShapeDtypeStruct(x.shape, keras.backend.standardize_dtype(x.dtype))
            for x in (query, key, value)
        ]
        return _refusal(causal, *alike)

    @functools.cache
    def _refusal(causal, *arrays):
        # JAX checks sizes, dtypes and the GPU while tracing, more strictly with a gradient.
        lengths = jax.ShapeDtypeStruct(arrays[0].shape[:1], "int32")

        def trained(lengths, *arrays):
            return jax.vjp(lambda *x: fused(*x, lengths, causal, 1.0), *arrays)[0]

        try:
            jax.eval_shape(trained, lengths, *arrays)
        except (NotImplementedError, RuntimeError, ValueError) as error:
            return f"JAX refuses: {error}".rstrip(".")
        return None

    def where_fused(function, otherwise, arrays):
        """`function(*arrays)` in programs for a GPU, `otherwise(*arrays)` in those for others."""
        if not any(isinstance(array, jax.core.Tracer) for array in arrays):
            # No program, and the place is known: one of two would be compiled at each call.
            (device, *_) = arrays[0].devices()
            platform = "cuda" if device.platform == "gpu" else device.platform
            return (function if platform == FUSED["platform"] else otherwise)(*arrays)
        on_it = {FUSED["platform"]: function}
        return lax.platform_dependent(*arrays, **on_it, default=otherwise)

    def uniform(shape, seed):
        return keras.random.uniform(shape, dtype="float32", seed=seed)

    def key(seed):
        return jnp.asarray(keras.src.random.seed_generator.draw_seed(seed), "uint32")

    def kept(key, place, shape, rate):
        key = jax.random.fold_in(jax.random.wrap_key_data(key), place)
        bits = jax.random.bits(key, shape, "uint16")
        return bits >= round(rate * 2**16)

    def dropout(x, rate, seed):
        return keras.random.dropout(x, rate, seed=seed)

else:
    import torch

    def shape(array):
        return tuple(array.shape)

    def on_accelerator(array):
        return array.device.type != "cpu"

    def loop(start, stop, body, carry):
        for i in range(start, stop):
            carry = body(i, carry)
        return carry

    def buffer(count, shape, dtype, filled=True):
        make = torch.zeros if filled else torch.empty
        device = keras.src.backend.torch.core.get_device()
        return make((count, *shape), dtype=getattr(torch, dtype), device=device)

    def read(buffer, place):
        return buffer[place]

    def write(buffer, place, array):
        buffer[place] = array
        return buffer

    def stack(buffer):
        return buffer

    def piece(array, axis, start, size):
        return array.narrow(axis, start, size)

    def cond(truth, yes, no):
        return yes() if truth else no()

    def product(first, second, flip_first=False, flip_second=False):
        return torch.matmul(first.mT if flip_first else first, second.mT if flip_second else second)

    class _Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, forward, backward, *arrays):
            outputs, saved = forward(*arrays)
            ctx.backward_of_it, ctx.counts = backward, (len(arrays), len(outputs))
            # By PyTorch's own list: an output kept in a closure would keep itself alive.
            ctx.save_for_backward(*arrays, *outputs, *saved)
            return outputs

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, *upstream):
            inputs, outputs = ctx.counts
            kept = ctx.saved_tensors
            arrays, rest = kept[:inputs], kept[inputs:]
            found = ctx.backward_of_it(arrays, rest[:outputs], rest[outputs:], upstream)
            return (None, None, *found)

    def custom(make, arrays, held=(), saves=True):
        return _Custom.apply(*make(held), *arrays)

    def pullback(function, arrays):
        with torch.enable_grad():
            arrays = [array.detach().requires_grad_() for array in arrays]
            found = function(*arrays)

        def pull(upstream):
            if not found.requires_grad:
                return [torch.zeros_like(array) for array in arrays]
            return torch.autograd.grad(found, arrays, upstream, materialize_grads=True)

        return found.detach(), pull

    FUSED_READS = "masks"

    def fused(query, key, value, mask, causal, scale):
        found = torch.nn.functional.scaled_dot_product_attention(
            *(array.transpose(1, 2) for array in (query, key, value)),
            attn_mask=mask,
            is_causal=causal,
            scale=scale,
            enable_gqa=query.shape[2] != key.shape[2],
        )
        return found.transpose(1, 2)

    def uniform(shape, seed):
        return keras.random.uniform(shape, dtype="float32", seed=seed)

    def key(seed):
        first, second = keras.src.random.seed_generator.draw_seed(seed).tolist()
        return _mixed(_mixed(first) ^ second)

    def _mixed(number):
        """A number of 64 bits that depends on all bits of another (splitmix64, Steele 2014)."""
        number = (number + 0x9E3779B97F4A7C15) % 2**64
        number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        number = (number ^ (number >> 27)) * 0x94D049BB133111EB % 2**64
        return number ^ (number >> 31)

    def kept(key, place, shape, rate):
        device = keras.src.backend.torch.core.get_device()
        # PyTorch's generator on processor cores heeds 32 bits of a seed.
        generator = torch.Generator(device).manual_seed(_mixed(key ^ int(place)) % 2**32)
        bits = torch.randint(2**16, shape, generator=generator, device=device, dtype=torch.int32)
        return bits >= round(rate * 2**16)

    def dropout(x, rate, seed):
        return keras.random.dropout(x, rate, seed=seed)
