"""JAX. A traced function reads arrays only from its arguments.

Sizes are integers, except in what Keras traces for the shapes of a custom layer, and in what is
exported for all lengths. There they are symbolic dimensions, such as `2*b + 1`.
"""

import functools
import threading
import types
from typing import ClassVar

import jax
import jax.export
import keras
from jax import lax
from jax import numpy as jnp
from jax.experimental.sparse import JAXSparse
from jax.extend.core import Primitive, get_opaque_trace_state
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec as P
from keras import ops

from keras_attention.backend.interface import Backend, multiplies_bfloat16
from keras_attention.core import keras_private


class JAX(Backend):
    """`backend` on JAX."""

    FUSED_READS = ("lengths", "masks")
    # Training in bfloat16, two sequences of 8,192, on an H100.
    FUSED_GAIN = 8
    # cuDNN's kernel. Tests replace it with one that runs on CPUs.
    FUSED: ClassVar[dict[str, str]] = {"platform": "cuda", "implementation": "cudnn"}

    def known_size(self, size):
        return size if isinstance(size, int) else None

    def least_size(self, first, second):
        return (jax.core.min_dim if _are_sizes(first, second) else ops.minimum)(first, second)

    def most_size(self, first, second):
        return (jax.core.max_dim if _are_sizes(first, second) else ops.maximum)(first, second)

    def is_symbolic_size(self, size):
        return jax.export.is_symbolic_dim(size)

    def is_eager(self, array):
        return not isinstance(array, jax.core.Tracer)

    def on_accelerator(self, array):
        return jax.default_backend() != "cpu"

    def instead_of(self, array):
        return "Pass a sparse array as `x.todense()`" if isinstance(array, JAXSparse) else None

    def may_share_arrays(self):
        return jax.device_count() > 1

    def fori_loop(self, start, stop, body, carry):
        before = None
        # As different between devices as a step makes it: zeros are the same.
        while _mapped() and jax.tree.map(jax.typeof, carry) != before:
            before = jax.tree.map(jax.typeof, carry)
            carry = _like(carry, jax.eval_shape(body, start, carry))
        return lax.fori_loop(start, stop, body, carry)

    def mesh_axis(self, name):
        if name not in jax.sharding.get_abstract_mesh().manual_axes:
            return None

        def send(array, to):
            return lax.ppermute(array, name, list(enumerate(to)))

        def fold(key, number):
            return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(key), number))

        own = {"size": lax.axis_size(name), "index": lax.axis_index(name)}
        return types.SimpleNamespace(**own, send=send, fold=fold)

    def axis_map(self, mesh, name, like):
        # Eager code would compile it at each call.
        if not isinstance(like, jax.core.Tracer):
            return None

        def spec(axis):
            return P() if axis is None else P(*[None] * axis, name)

        def mapped(function, arrays, axes, outputs):
            return jax.shard_map(
                function,
                mesh=mesh.backend_mesh,
                in_specs=tuple(map(spec, axes)),
                out_specs=tuple(map(spec, outputs)),
                # Other axes of the mesh stay as the rest of the program uses them.
                axis_names={name},
            )(*arrays)

        return mapped

    def cond(self, condition, true_fn, false_fn):
        # A known predicate needs no two compiled branches.
        if isinstance(condition, jax.core.Tracer):
            found = [jax.eval_shape(f) for f in (true_fn, false_fn)] if _mapped() else []
            functions = (lambda f=f: _like(f(), *found) for f in (true_fn, false_fn))
            return lax.cond(condition, *functions)
        return true_fn() if condition else false_fn()

    def while_loop(self, cond, body, carry, constants=(), by_steps=False):
        if not by_steps or not self.runs_at_once(jax.tree.leaves((carry, constants))):
            # Outside of programs, it is compiled in each call.
            return super().while_loop(cond, body, carry, constants)
        while cond(*carry):
            carry = body(constants, *carry)
        return carry

    def make_buffer(self, count, shape, dtype, zeros=True):
        return jnp.zeros((count, *shape), dtype)

    def read_buffer(self, buffer, index):
        return lax.dynamic_index_in_dim(buffer, index, keepdims=False)

    def write_buffer(self, buffer, index, array):
        return lax.dynamic_update_index_in_dim(buffer, array, index, 0)

    def of_numpy(self, array):
        return jax.device_put(array)

    def dynamic_slice(self, array, axis, start, size):
        if array.shape[axis] == size:
            return array
        return lax.dynamic_slice_in_dim(array, start, size, axis)

    def first(self, array, size):
        if self.is_symbolic_size(size):
            return jnp.take(array, jnp.arange(size), axis=-1, mode="fill")
        return self.dynamic_slice(array, array.ndim - 1, 0, size)

    def matmul(self, first, second, transpose_first=False, transpose_second=False):
        first = jnp.swapaxes(first, -1, -2) if transpose_first else first
        second = jnp.swapaxes(second, -1, -2) if transpose_second else second
        wide = "float64" if first.dtype == "float64" else "float32"
        return jnp.matmul(first, second, preferred_element_type=wide)

    def affine(self, array, features, kernel, bias, shape):
        matrix, kernel = array.reshape(-1, features), kernel.reshape(features, -1)
        both = {jnp.dtype(x.dtype) for x in (matrix, kernel)}
        is_slow = both == {jnp.dtype("bfloat16")} and not self.on_accelerator(array)
        product = _bfloat16_product(matrix, kernel) if is_slow else jnp.matmul(matrix, kernel)
        return (product if bias is None else product + bias.reshape(-1)).reshape(shape)

    def softmax(self, array):
        return jax.nn.softmax(array)

    def rms_normalization(self, array, scale, epsilon):
        if array.dtype == "float64":
            # Keras would compute it in float32.
            mean = jnp.mean(jnp.square(array), axis=-1, keepdims=True)
            return array * lax.rsqrt(mean + epsilon) * ops.convert_to_tensor(scale, array.dtype)
        return ops.rms_normalization(array, scale, axis=-1, epsilon=epsilon)

    def masked(self, scores, mask, masked):
        # A number computed from the scores: of a constant, JAX makes an array outside of a loop.
        filler = jnp.isnan(scores).astype(scores.dtype) * 0 + masked
        return jnp.where(mask, scores, filler)

    def has_wide_products(self, array):
        on_processor = array.dtype == "bfloat16" and multiplies_bfloat16()
        return self.on_accelerator(array) or on_processor

    def clip(self, array, limit):
        # A gradient of zero beyond the limits would need a mask of all numbers, kept for it.
        @jax.custom_jvp
        def function(array):
            return jnp.clip(array, -limit, limit)

        function.defjvp(lambda given, tangents: (function(*given), *tangents))
        return function(array)

    def windows(self, array, rows, columns):
        # By slices: the gradient of reshapes that shift is slower.
        def window(start):
            return lax.dynamic_slice_in_dim(array, start, columns, 1)

        return jax.vmap(window, out_axes=1)(jnp.arange(rows - 1, -1, -1))

    def take_rows(self, array, indices):
        return jnp.take_along_axis(array, indices[..., None], axis=1, mode="promise_in_bounds")

    def write_rows(self, array, indices, rows):
        flat, rows = (jnp.reshape(x, (-1, array.shape[-1])) for x in (array, rows))
        return jnp.reshape(_write_rows(flat, indices, rows), array.shape)

    def custom_vjp(self, make, arrays, constants=(), saves=True):
        # Not `jax.custom_vjp`, of which there are no forward derivatives.
        @jax.custom_jvp
        def function(arrays, constants):
            return tuple(make(constants)[0](*arrays)[0])

        def tangent(kept, tangents):
            arrays, constants, *_ = kept
            return jax.jvp(lambda *x: make(constants)[0](*x)[0], arrays, tangents)[1]

        def gradient(kept, upstream):
            arrays, constants, outputs, saved = kept
            return tuple(make(constants)[1](arrays, outputs, saved, upstream))

        @function.defjvp
        def derivative(primals, tangents):
            outputs, saved = make(primals[1])[0](*primals[0])
            kept = (*primals, tuple(outputs), tuple(saved))
            return tuple(outputs), _linear(tangent, gradient, kept, tangents[0], outputs)

        if _mapped():
            # A gradient differs between devices if any array does; the gradient of this sums it.
            arrays = [_like(array, *map(jax.typeof, arrays)) for array in arrays]
        return function(tuple(arrays), constants)

    def cond_vjp(self, condition, true_fn, false_fn, arrays, constants=()):
        if not isinstance(condition, jax.core.Tracer):
            return (true_fn if condition else false_fn)(constants, *arrays)

        def make(given):
            condition, constants = given

            def differentiated(*arrays):
                """The result, and of its pullback the arrays, structure, and which are known."""
                output, pull = jax.vjp(lambda *x: true_fn(constants, *x), *arrays)
                leaves, structure = jax.tree.flatten(pull)
                every = (*arrays, output)
                known = [next((n for n, x in enumerate(every) if x is y), None) for y in leaves]
                return output, leaves, structure, known

            def forward(*arrays):
                def true():
                    output, leaves, _, known = differentiated(*arrays)
                    return output, [x for x, n in zip(leaves, known, strict=True) if n is None]

                def false():
                    empty = [jnp.zeros(x.shape, x.dtype) for x in jax.eval_shape(true)[1]]
                    return false_fn(constants, *arrays), empty

                output, saved = self.cond(condition, true, false)
                return (output,), tuple(saved)

            def backward(arrays, outputs, saved, upstream):
                def true():
                    # Traced, not computed, for the structure alone.
                    found = []
                    jax.eval_shape(lambda *x: found.extend(differentiated(*x)[2:]), *arrays)
                    structure, known = found
                    rest, every = iter(saved), (*arrays, *outputs)
                    leaves = [next(rest) if n is None else every[n] for n in known]
                    return jax.tree.unflatten(structure, leaves)(*upstream)

                def false():
                    return jax.vjp(lambda *x: false_fn(constants, *x), *arrays)[1](*upstream)

                return self.cond(condition, true, false)

            return forward, backward

        return self.custom_vjp(make, arrays, (condition, constants))[0]

    def vjp(self, function, arrays):
        return jax.vjp(function, *arrays)

    def dropout_key(self, seed):
        if isinstance(seed, jax.Array):
            return seed
        return jnp.asarray(keras_private.draw_seed(seed), "uint32")

    def dropout_mask(self, key, index, shape, rate):
        key = jax.random.fold_in(jax.random.wrap_key_data(key), index)
        bits = jax.random.bits(key, shape, "uint16")
        return bits >= round(rate * 2**16)

    def fused_attention(self, query, key, value, mask, lengths, causal, left, scale):
        if mask is not None:
            mask = jnp.broadcast_to(mask, (*mask.shape[:2], query.shape[1], key.shape[1]))
        added = mask is not None and mask.dtype != bool
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            bias=mask if added else None,
            mask=None if added else mask,
            scale=scale,
            is_causal=causal,
            key_value_seq_lengths=lengths,
            local_window_size=None if left is None else (left, 0),
            implementation=self.FUSED["implementation"],
        )

    def fused_unsupported_reason(self, query, key, value, by, causal, left, lse):
        if query.shape[1] == 1:
            return "there is one query"
        if lse:
            return "it has no sink and does not return the log-sum-exp"
        if jax.default_backend() == "cpu":
            return "cuDNN's kernel needs a GPU"
        if _split_apart(query, key):
            return "devices share query heads, but not key heads"
        alike = [
            jax.ShapeDtypeStruct(x.shape, keras.backend.standardize_dtype(x.dtype))
            for x in (query, key, value)
        ]
        return _refusal(by, causal, left, *alike)

    def where_fused(self, function, otherwise, arrays):
        if not any(isinstance(array, jax.core.Tracer) for array in arrays):
            # Eager code, and the device is known: a branch would be compiled at each call.
            (device, *_) = arrays[0].devices()
            platform = "cuda" if device.platform == "gpu" else device.platform
            return (function if platform == self.FUSED["platform"] else otherwise)(*arrays)
        on_it = {self.FUSED["platform"]: function}
        return lax.platform_dependent(*arrays, **on_it, default=otherwise)

    def compile(self, function, layer):
        return _Program(function, layer)

    def runs_at_once(self, arrays):
        return super().runs_at_once(arrays) and self.trace_id() == _EAGER

    def trace_id(self):
        return get_opaque_trace_state(convention="keras_attention")


def _are_sizes(*sizes):
    return all(isinstance(size, int) or backend.is_symbolic_size(size) for size in sizes)


def _mapped():
    """Whether this is traced inside a `shard_map`, which checks what differs between devices."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def _like(arrays, *others):
    """Arrays as different between devices as others of the same structure."""

    def axes(array):
        # Its name before JAX 0.10 was `vma`.
        kind = getattr(array, "manual_axis_type", None)
        return array.vma if kind is None else kind.varying

    def like(array, *others):
        more = frozenset().union(*map(axes, others)) - axes(jax.typeof(array))
        return lax.pcast(array, tuple(more), to="varying") if more else array

    return jax.tree.map(like, arrays, *others)


def _bfloat16_product(first, second):
    """The product of two matrices: on a CPU, XLA has a fast one for results in float32 alone."""

    def product(first, second, axes):
        found = lax.dot_general(first, second, (axes, ((), ())), preferred_element_type="float32")
        return found.astype(first.dtype)

    def forward(first, second):
        return (product(first, second, ((1,), (0,))),), ()

    def backward(arrays, outputs, saved, upstream):
        (first, second), (upstream,) = arrays, upstream
        # XLA has no such product of a transposed matrix.
        return product(upstream, second, ((1,), (1,))), jnp.matmul(first.T, upstream)

    return backend.custom_vjp(lambda _: (forward, backward), (first, second))[0]


@jax.custom_jvp
def _write_rows(array, indices, rows):
    if array.dtype not in ("bfloat16", "float16"):
        return array.at[indices].set(rows, unique_indices=True)
    # XLA would convert the whole array to float32 and back on a CPU, to write some rows.
    bits = array.view("uint16").at[indices].set(rows.view("uint16"), unique_indices=True)
    return bits.view(array.dtype)


@_write_rows.defjvp
def _written_rows(primals, tangents):
    (_, indices, _), (of_array, _, of_rows) = primals, tangents
    return _write_rows(*primals), of_array.at[indices].set(of_rows, unique_indices=True)


# A linear function whose transpose is given: `jax.custom_derivatives.linear_call` is one too, which
# cannot be mapped, nor differentiated by what it keeps.
_LINEAR = Primitive("keras_attention_linear")
_LINEAR.multiple_results = True
_LINEAR.def_abstract_eval(lambda *_, avals, **__: avals)


def _linear(function, transpose, kept, given, like):
    """`function(kept, given)`, linear in `given`, whose gradient is `transpose(kept, upstream)`.

    `given` is a tuple of arrays, and `like` is a tuple of arrays as those of the result.
    """
    flat, structure = jax.tree.flatten(kept)
    count = len(flat)

    def of_flat(function):
        def apply(*arrays):
            return tuple(function(jax.tree.unflatten(structure, arrays[:count]), arrays[count:]))

        return apply

    both = {"function": of_flat(function), "transpose": of_flat(transpose)}
    avals = tuple(map(jax.typeof, like))
    return tuple(_LINEAR.bind(*flat, *given, **both, count=count, avals=avals))


@_LINEAR.def_impl
def _linear_result(*arrays, function, **_):
    return function(*arrays)


def _linear_jvp(arrays, tangents, *, function, **_):
    # For second derivatives, JAX differentiates the function itself.
    moving = [n for n, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def of_moving(*moved):
        given = dict(zip(moving, moved, strict=True))
        return function(*(given.get(n, array) for n, array in enumerate(arrays)))

    return jax.jvp(of_moving, *([x[n] for n in moving] for x in (arrays, tangents)))


def _linear_transpose(upstream, *arrays, transpose, count, **_):
    found = transpose(*arrays[:count], *map(ad.instantiate_zeros, upstream))
    unknown = map(ad.is_undefined_primal, arrays[count:])
    given = zip(found, unknown, strict=True)
    return [None] * count + [array if asked else None for array, asked in given]


def _linear_batched(arrays, axes, *, function, transpose, count, avals):
    (size,) = {x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None}
    given = zip(arrays, axes, strict=True)
    arrays = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in given]
    kept = [None if axis is None else 0 for axis in axes[:count]]
    # Arguments that the function is linear in get the new axis, so that their gradients have it.
    for n in range(count, len(arrays)):
        if axes[n] is None:
            arrays[n] = jnp.broadcast_to(arrays[n], (size, *arrays[n].shape))
    found = _LINEAR.bind(
        *arrays,
        function=jax.vmap(function, (*kept, *[0] * (len(arrays) - count))),
        transpose=jax.vmap(transpose, (*kept, *[0] * len(avals))),
        count=count,
        avals=tuple(aval.update(shape=(size, *aval.shape)) for aval in avals),
    )
    return found, [0] * len(found)


mlir.register_lowering(_LINEAR, mlir.lower_fun(_linear_result, multiple_results=True))
ad.primitive_jvps[_LINEAR] = _linear_jvp
ad.primitive_transposes[_LINEAR] = _linear_transpose
batching.primitive_batchers[_LINEAR] = _linear_batched


def _split_apart(query, key):
    """Whether a distribution splits the query heads over devices that do not divide key heads."""
    by = keras.distribution.distribution()
    heads, groups = query.shape[2], key.shape[2]
    if heads == groups or not isinstance(by, keras.distribution.ModelParallel):
        return False
    mesh = by.device_mesh
    named = zip(mesh.axis_names, mesh.shape, strict=True)
    sizes = [size for name, size in named if name != by.batch_dim_name]
    return any(heads % size == 0 and groups % size for size in sizes)


@functools.cache
def _refusal(by, causal, left, *arrays):
    # JAX checks sizes, dtypes and the GPU while tracing, more strictly with a gradient.
    (batch, queries, *_), (_, keys, *_), _ = (array.shape for array in arrays)
    lengths = jax.ShapeDtypeStruct((batch,), "int32")
    mask = jax.ShapeDtypeStruct((batch, 1, queries, keys), "bool")

    def trained(mask, lengths, *arrays):
        # Windows and lengths exclude each other.
        given = (None, None if left is not None else lengths, causal, left)
        given = (mask, None, False, None) if by == "masks" else given
        return jax.vjp(lambda *x: backend.fused_attention(*x, *given, 1.0), *arrays)[0]

    try:
        jax.eval_shape(trained, mask, lengths, *arrays)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        return f"JAX refuses: {error}".rstrip(".")
    return None


class _Program:
    """Variables are arguments and results, since JAX programs have no other state."""

    def __init__(self, function, layer):
        self.function = function
        self.variables = list(layer.variables)
        self.program = jax.jit(self._pure)
        self.tracing = threading.RLock()

    def __call__(self, *arrays):
        # Another thread's call may list more variables meanwhile.
        with self.tracing:
            known, values = -1, ()
            # Tracing may find more. JAX caches traces, so none of this is done twice.
            while known < len(self.variables):
                known, values = len(self.variables), [x.value for x in self.variables]
                self.program.trace(values, arrays)
        outputs, changed = self.program(values, arrays)
        for index, value in changed.items():
            self.variables[index].assign(value)
        return outputs

    def _pure(self, values, arrays):
        variables = self.variables[: len(values)]
        with _Scope(zip(variables, values, strict=True)) as scope:
            outputs = self.function(*arrays)
        # This program has unlisted variables as constants, so it is discarded.
        self.variables += scope.unlisted.values()
        changed = {
            index: scope.get_current_value(variable)
            for index, variable in enumerate(variables + list(scope.unlisted.values()))
            if id(variable) in scope.changed
        }
        return outputs, changed


class _Scope(keras.StatelessScope):
    """Records which variables are changed, and which are read without a value passed for them."""

    def __init__(self, state_mapping):
        super().__init__(state_mapping)
        self.changed, self.unlisted = set(), {}

    def get_current_value(self, variable):
        value = super().get_current_value(variable)
        if value is None:
            self.unlisted[id(variable)] = variable
        return value

    def add_update(self, update):
        self.get_current_value(update[0])
        self.changed.add(id(update[0]))
        super().add_update(update)


backend = JAX()
_EAGER = backend.trace_id()
