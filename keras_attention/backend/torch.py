"""PyTorch. Everything runs eagerly and all sizes are known; memory is freed when unreferenced."""

import functools
import math
import warnings

import keras
import torch
from keras import ops
from torch import _C
from torch._C import _functorch as functorch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from keras_attention.backend import torch_loops
from keras_attention.backend.interface import Backend
from keras_attention.core import keras_private

# Dtypes for whose products this CPU has no instructions: they take up to a hundred times as long.
_CHECKS = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
_SLOW = {x for x, name in _CHECKS.items() if not getattr(torch.ops.mkldnn, name, lambda: True)()}


class Torch(Backend):
    """`backend` on PyTorch."""

    # While `torch.jit.trace` runs, a size is a tensor, whose value is that of the traced call.
    TRACED_SIZES = (torch.Tensor,)
    FUSED_READS = ("masks",)
    # Training in bfloat16, two sequences of 8,192, on an H100.
    FUSED_GAIN = 64

    def shape(self, array):
        return tuple(array.shape)

    def known_size(self, size):
        return None if keras_private.infers_shapes() else size

    def is_eager(self, array):
        return not (torch.compiler.is_compiling() or _transforming())

    def on_accelerator(self, array):
        return isinstance(array, torch.Tensor) and array.device.type != "cpu"

    def instead_of(self, array):
        if not isinstance(array, torch.Tensor):
            return None
        if array.is_nested:
            return (
                "Pass a nested tensor as `torch.nested.to_padded_tensor(x, 0.0)`, and which of its "
                "positions are real, (B, T), as its mask"
            )
        if array.layout is not torch.strided and array.layout in _SPARSE:
            return "Pass a sparse tensor as `x.to_dense()`"
        return None

    records_lengths = True

    def warn_of_recorded_length(self, length):
        if _writing_onnx() and int(length) == 1:
            warnings.warn(
                "PyTorch records an attention to one key, as Keras makes of a length that is "
                "unknown. If the model is to take other lengths, give it a known one before "
                "`export(format='onnx')`: keras.Input((128, 64)), not keras.Input((None, 64)).",
                stacklevel=2,
            )

    def fori_loop(self, start, stop, body, carry):
        for i in range(start, stop):
            carry = body(i, carry)
        return carry

    def while_loop(self, cond, body, carry, constants=(), by_steps=False):
        return torch_loops.while_loop(cond, body, carry, constants)

    def cond(self, condition, true_fn, false_fn):
        if torch_loops.recording() or _is_mapped(condition):
            # No tensor has a value there, or one for each row: both are computed.
            found = true_fn(), false_fn()
            return keras.tree.map_structure(lambda *x: torch.where(condition, *x), *found)
        return true_fn() if condition else false_fn()

    def make_buffer(self, count, shape, dtype, zeros=True):
        given = {"dtype": getattr(torch, dtype), "device": keras_private.torch_device()}
        if _transforming():
            # A transform allows no writing of what it maps into what it does not.
            return [torch.zeros(shape, **given)] * count
        return (torch.zeros if zeros else torch.empty)((count, *shape), **given)

    def read_buffer(self, buffer, index):
        return buffer[index]

    def write_buffer(self, buffer, index, array):
        buffer[index] = array
        return buffer

    def stack_buffer(self, buffer):
        return torch.stack(buffer) if isinstance(buffer, list) else buffer

    def of_numpy(self, array):
        narrow = array.dtype.name == "bfloat16"
        tensor = torch.from_numpy(array.view("uint16") if narrow else array)
        tensor = tensor.to(keras_private.torch_device())
        return tensor.view(torch.bfloat16) if narrow else tensor

    def dynamic_slice(self, array, axis, start, size):
        return array.narrow(axis, start, size)

    def first(self, array, size):
        if keras_private.infers_shapes():
            return array[..., :1].expand(*array.shape[:-1], size)
        return array.narrow(-1, 0, size)

    def matmul(self, first, second, transpose_first=False, transpose_second=False):
        first = first.transpose(-1, -2) if transpose_first else first
        second = second.transpose(-1, -2) if transpose_second else second
        if min(first.itemsize, second.itemsize) != 2 or not self.has_wide_products(first):
            return torch.matmul(first, second)
        tracked = torch.is_grad_enabled() and (first.requires_grad or second.requires_grad)
        # The product with a dtype of its own has no gradient, and one axis of matrices.
        if tracked or first.dtype != second.dtype or first.shape[:-2] != second.shape[:-2]:
            return torch.matmul(first.float(), second.float())
        shape = *first.shape[:-1], second.shape[-1]
        first, second = (x.reshape(-1, *x.shape[-2:]) for x in (first, second))
        return torch.bmm(first, second, out_dtype=torch.float32).reshape(shape)

    def affine(self, array, features, kernel, bias, shape):
        # Keras's operations take three times as long for a small array, here and on TensorFlow.
        matrix, kernel = array.reshape(-1, features), kernel.reshape(features, -1)
        if array.dtype in _SLOW and not array.is_cuda:
            matrix, kernel = matrix.float(), kernel.float()
        if bias is None or array.itemsize < 4:
            # In two steps, each rounded, as in layers of Keras's.
            found = torch.matmul(matrix, kernel).to(array.dtype)
            return (found if bias is None else found + bias.reshape(-1)).reshape(shape)
        return torch.addmm(bias.reshape(-1), matrix, kernel).reshape(shape)

    def softmax(self, array):
        return torch.softmax(array, dim=-1)

    def layer_normalization(self, array, size, scale, offset, epsilon):
        # PyTorch's exporter to ONNX takes a number, and no size of an array that it traces.
        wide = torch.promote_types(array.dtype, torch.float32)
        given = [x if x is None else ops.convert_to_tensor(x).to(wide) for x in (scale, offset)]
        found = torch.nn.functional.layer_norm(array.to(wide), (size,), *given, epsilon)
        return found.to(array.dtype)

    def rms_normalization(self, array, scale, epsilon):
        scale = ops.convert_to_tensor(scale)
        if self.on_accelerator(array) and not _writing_onnx():
            return ops.rms_normalization(array, scale, axis=-1, epsilon=epsilon)
        # PyTorch's function makes four more arrays on a CPU, and its exporter does not know it.
        wide = torch.promote_types(array.dtype, torch.float32)
        size = array.shape[-1]

        def forward(array, scale):
            copy = array.to(wide)
            if _writing_onnx():
                # Its `addcmul` takes no value that depends on a size.
                factor = torch.rsqrt(copy.square().mean(-1, keepdim=True) + epsilon)
            else:
                norm = torch.linalg.vector_norm(copy, dim=-1, keepdim=True)
                least = torch.tensor(epsilon, dtype=wide, device=norm.device)
                factor = torch.rsqrt(torch.addcmul(least, norm, norm, value=1 / size))
            found = _product(_product(copy, factor, array), scale.to(wide))
            return (found.to(array.dtype),), (factor,)

        def backward(arrays, outputs, saved, upstream):
            (array, scale), (factor,), (upstream,) = arrays, saved, upstream
            normed = _product(array.to(wide), factor, array)
            upstream = upstream.to(wide)
            of_scale = (upstream * normed).reshape(-1, size).sum(0)
            upstream = upstream * scale.to(wide)
            mean = torch.linalg.vecdot(upstream, normed)[..., None] / size
            of_array = upstream.sub_(normed.mul_(mean)).mul_(factor)
            return of_array.to(array.dtype), of_scale.to(scale.dtype)

        return _with_gradient(forward, backward, array, scale)

    def rotate(self, array, cos, sin, axis):
        def swapped(array):
            # By `cat`: PyTorch's `flip`, `roll` and `stack` take several times as long.
            if axis == -2:
                return torch.cat(array.chunk(2, -1)[::-1], -1)
            return torch.cat([array[..., 1::2, None], array[..., ::2, None]], -1).flatten(-2)

        def rotated(array, sin):
            wide = array.to(cos.dtype)
            other = swapped(wide)
            product = _product(wide, cos, array)
            add = torch.addcmul if _is_kept() else torch.Tensor.addcmul_
            return add(product, other, sin).to(array.dtype)

        def forward(array):
            return (rotated(array, sin),), ()

        def backward(arrays, outputs, saved, upstream):
            return (rotated(upstream[0], -sin),)

        return _with_gradient(forward, backward, ops.convert_to_tensor(array))

    def masked_products(self, products, mask, masked):
        # `where` takes six times as long as a sum. Masks have one head, mostly one row or batch.
        terms = torch.zeros(mask.shape, dtype=products.dtype, device=products.device)
        if _transforming():
            return products + terms.masked_fill(~mask, masked)
        return products + terms.masked_fill_(~mask, masked)

    def masked(self, scores, mask, masked):
        return torch.where(mask, scores, torch.tensor(masked, dtype=scores.dtype))

    def exp(self, array, highest=None):
        if array.device.type != "cpu":
            return torch.exp(array if highest is None else torch.clamp(array, max=highest))
        # On CPUs an exponential below the smallest normal number takes ten times as long as others,
        # and a masked score has one. At the bound it is a little less than what is subtracted.
        low = math.ceil(math.log(torch.finfo(array.dtype).tiny))
        least = math.exp(low) * (1 + 1e-5)
        if _is_kept(array):
            return torch.relu(torch.exp(torch.clamp(array, low, highest)) - least)
        return array.clamp_(low, highest).exp_().sub_(least).relu_()

    def cumsum(self, array):
        # Keras computes it in float32 for float64 too.
        return torch.cumsum(array, dim=-1)

    def maximum(self, first, second):
        # So does Keras here: it may be less than its arguments.
        return torch.maximum(first, second)

    def tile_scores(self, array):
        # On an accelerator, enough that the operations of a tile take longer than Python does.
        return 2**26 if self.on_accelerator(array) else 2**21

    def prefers_whole_rows(self, scores):
        # With more scores, whole rows take twice the memory of blocks, and are not always faster.
        return scores is not None and scores <= 2**21

    def has_wide_products(self, array):
        seen = _tracing() or _C._are_functorch_transforms_active()
        return not seen and getattr(array, "is_cuda", False) and _bmm_gives_float32()

    def clip(self, array, limit):
        def within(array):
            # In the order of its memory, in which a pass is several times as fast.
            order = sorted(range(array.ndim), key=array.stride, reverse=True)
            array = array.detach().permute(order)
            if not array.is_contiguous():
                return False
            low, high = torch.aminmax(array)
            return torch.logical_and(low >= -limit, high <= limit)

        # To read a large array, and leave it as it is, is faster than to write another.
        if array.numel() >= 2**16 and _known(array, within):
            return array
        # The same values as of `clip`, whose gradient takes five times as long.
        return torch.nn.functional.hardtanh(array, -limit, limit)

    def clear(self, array, mask):
        array, mask = map(ops.convert_to_tensor, (array, mask))

        def is_clear(array):
            return mask.shape == array.shape[: mask.ndim] and not torch.any(array[~mask])

        # To read the padding is faster than to write all. `where` also clears the gradient.
        if array.numel() >= 2**16 and not self.needs_gradient(array) and _known(array, is_clear):
            return array
        mask = mask[(..., *[None] * (array.ndim - mask.ndim))]
        return torch.where(mask, array, 0)

    def multiply_fresh(self, array, factor):
        return array * factor if _is_kept(array, factor) else array.mul_(factor)

    def multiply_no_nan(self, array, factor):
        product = array * factor
        if _transforming():
            return torch.where(factor == 0, 0, product)
        # By rows: `masked_fill_` would pass over all elements.
        product[factor[..., 0] == 0] = 0
        return product

    def windows(self, array, rows, columns):
        if _writing_onnx():
            # The exporter's `unfold` reads a size of the array that it does not know.
            at = rows - 1 - torch.arange(rows)[:, None] + torch.arange(columns)
            return self.take(array, at, 1)
        return array.unfold(1, columns, 1).flip(1)

    def take(self, array, indices, axis):
        # Keras's `take` uses `ravel`, which PyTorch's exporter to ONNX does not know.
        array = ops.convert_to_tensor(array)
        found = torch.index_select(array, axis, indices.reshape(-1))
        return found.reshape(*array.shape[:axis], *indices.shape, *array.shape[axis + 1 :])

    def take_rows(self, array, indices):
        batch, length, size = array.shape
        first = torch.arange(batch, device=indices.device)[:, None] * length
        found = array.reshape(-1, size).index_select(0, (first + indices).reshape(-1))
        return found.reshape(*indices.shape, size)

    def write_rows(self, array, indices, rows):
        flat = array.reshape(-1, array.shape[-1])
        flat = flat.index_put((indices.long(),), rows.reshape(-1, array.shape[-1]))
        return flat.reshape(array.shape)

    def bucket_sums(self, weights, buckets, count):
        # Keras's segment_sum would sum in float32 for every dtype.
        sums = weights.new_zeros((*weights.shape[:3], count))
        return sums.scatter_add(-1, buckets.long(), weights)

    def take_last(self, array, index):
        return torch.take_along_dim(array, index.long(), dim=-1)

    def custom_vjp(self, make, arrays, constants=(), saves=True):
        both = make(constants)
        if _transforming() or any(map(_is_dual, arrays)):
            # PyTorch differentiates, maps and records the plain computation.
            return both[0](*arrays)[0]
        return _Custom.apply(*both, *arrays)

    def vjp(self, function, arrays):
        with torch.enable_grad():
            arrays = [array.detach().requires_grad_() for array in arrays]
            found = function(*arrays)

        def pull(upstream):
            if not found.requires_grad:
                return [torch.zeros_like(array) for array in arrays]
            return torch.autograd.grad(found, arrays, upstream, materialize_grads=True)

        return found.detach(), pull

    def dropout_key(self, seed):
        seeds = keras_private.draw_seed(seed)
        if seeds.is_meta:
            return 0
        first, second = seeds.tolist()
        return _mixed(_mixed(first) ^ second)

    def dropout_mask(self, key, index, shape, rate):
        device = keras_private.torch_device()
        if device == "meta":
            return torch.empty(shape, dtype=torch.bool, device=device)
        # PyTorch's CPU generator uses only 32 bits of a seed.
        generator = torch.Generator(device).manual_seed(_mixed(key ^ int(index)) % 2**32)
        # Four numbers of 16 bits at a time, from -2¹⁵ on.
        count = math.prod(shape)
        bits = torch.empty(-(-count // 4), dtype=torch.int64, device=device)
        bits = bits.random_(-(2**63), None, generator=generator).view(torch.int16)
        return bits[:count].view(shape) >= min(round(rate * 2**16), 2**16 - 1) - 2**15

    def fused_attention(self, query, key, value, mask, lengths, causal, left, scale):
        batch, queries, heads, size = query.shape
        groups = key.shape[2]
        # The mask has no heads: queries of a position that share keys are several of one key head.
        if queries == 1 and groups != heads and (mask is None or mask.shape[1] == 1) and not causal:
            query = query.reshape(batch, groups, -1, size).transpose(1, 2)
            found = self.fused_attention(query, key, value, mask, None, causal, left, scale)
            return found.transpose(1, 2).reshape(batch, 1, heads, -1)
        masked_or_wide = mask is not None or query.itemsize > 2
        if groups != heads and masked_or_wide and self.on_accelerator(query):
            # On a GPU, PyTorch groups heads in half precision without a mask alone.
            key, value = (x.repeat_interleave(heads // groups, 2) for x in (key, value))
            groups = heads
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        grouped = bool(groups != heads)
        found = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
        )
        return found.transpose(1, 2)

    def fused_with_lse(self, query, key, value, mask, causal, scale, sink, plain):
        aten, arrays = torch.ops.aten, (query, key, value)
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, torch.tensor(-math.inf, dtype=query.dtype))
        given = {"attn_mask": mask, "scale": scale}

        def by_heads(*arrays):
            rows = (array.transpose(1, 2) for array in arrays)
            return [array if array.stride(-1) == 1 else array.contiguous() for array in rows]

        def attend(*arrays):
            return aten._scaled_dot_product_flash_attention_for_cpu(
                *by_heads(*arrays), 0.0, causal, **given
            )

        def forward(*arrays):
            if torch.is_grad_enabled():
                # For second derivatives, which the kernel does not have.
                return plain(*arrays), ()
            output, lse = attend(*arrays[:3])
            both = torch.logaddexp(lse, arrays[3][:, None])
            share = torch.exp(lse - both)[..., None]
            return ((output * share).to(output.dtype).transpose(1, 2), both), ()

        def backward(arrays, outputs, saved, upstream):
            (output, *upstream), both = by_heads(outputs[0], upstream[0]), outputs[1]
            # As if these were all weights: they do not sum to 1, and the sink has the rest.
            found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *upstream, *by_heads(*arrays[:3]), output, both, 0.0, causal, **given
            )
            products = torch.linalg.vecdot(upstream[0].to(both.dtype), output.to(both.dtype))
            of_sink = -(torch.exp(arrays[3][:, None] - both) * products).sum((0, 2))
            return *(array.transpose(1, 2) for array in found), of_sink

        if sink is not None:
            return self.custom_vjp(lambda _: (forward, backward), (*arrays, sink))
        output, lse = attend(*arrays)
        return output.transpose(1, 2), lse

    def needs_gradient(self, array):
        return bool(getattr(array, "requires_grad", False)) and torch.is_grad_enabled()

    def known_true(self, array):
        return _known(array, torch.Tensor.all)

    def fused_unsupported_reason(self, query, key, value, by, causal, left, lse):
        if lse and self.on_accelerator(query):
            return "it gives the log-sum-exp on CPUs only"
        if lse and not _has_lse():
            return "this version of PyTorch does not give the log-sum-exp"
        if lse and _tracing():
            # The replacement that PyTorch records for its kernel returns something else.
            return "a program that is recorded has no log-sum-exp of it"
        if _C._are_functorch_transforms_active() or any(map(_is_dual, (query, key, value))):
            return "PyTorch's kernel has no rules for transforms"
        if torch.jit.is_tracing() and query.shape[2] != key.shape[2]:
            return "ONNX has no grouped heads"
        return None

    def where_fused(self, function, otherwise, arrays):
        return function(*arrays)

    def runs_at_once(self, arrays):
        seen = _tracing() or _transforming() or torch_loops.running() or torch.is_grad_enabled()
        duals = (_is_dual(x) for x in arrays if isinstance(x, torch.Tensor))
        return not (seen or keras_private.infers_shapes() or any(duals))

    def compile(self, function, layer):
        return torch_loops.Program(function, layer)


# Other layouts are a vendor's, of dense arrays.
_SPARSE = {getattr(torch, f"sparse_{kind}") for kind in ("coo", "csr", "csc", "bsr", "bsc")}


def _with_gradient(forward, backward, *arrays):
    """The only output of `forward`, with the gradient `backward`, as of `custom_vjp`."""
    if torch.compiler.is_compiling():
        # A custom gradient would end the compiled graph here. The compiler fuses by itself.
        return forward(*arrays)[0][0]
    return backend.custom_vjp(lambda _: (forward, backward), arrays)[0]


def _is_kept(*arrays):
    """Whether arrays must not be written again, since something records them."""
    return _tracing() or _transforming() or any(map(backend.needs_gradient, arrays))


def _product(array, factor, given=None):
    """A product, in the memory of `array` unless that is `given`."""
    return array * factor if array is given or _is_kept() else array.mul_(factor)


@functools.cache
def _bmm_gives_float32():
    # From PyTorch 2.8 on.
    one = torch.ones((1, 8, 8), dtype=torch.float16, device="cuda")
    try:
        return torch.bmm(one, one, out_dtype=torch.float32).dtype == torch.float32
    except (TypeError, RuntimeError):
        return False


class _Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, forward, backward, *arrays):
        outputs, saved = forward(*arrays)
        ctx.both, ctx.counts = (forward, backward), (len(arrays), len(outputs))
        # By PyTorch's own list: an output stored in a closure would keep itself alive.
        ctx.save_for_backward(*arrays, *outputs, *saved)
        return outputs

    @staticmethod
    def backward(ctx, *upstream):
        (inputs, outputs), (forward, backward) = ctx.counts, ctx.both
        kept = ctx.saved_tensors
        arrays, rest = kept[:inputs], kept[inputs:]
        if torch.is_grad_enabled() or any(map(_C._functorch.is_legacy_batchedtensor, upstream)):
            # A gradient to be differentiated, or several at once.
            return (None, None, *_plain_gradients(forward, arrays, upstream))
        return (None, None, *backward(arrays, rest[:outputs], rest[outputs:], upstream))


def _plain_gradients(forward, arrays, upstream):
    """The gradients of arrays as PyTorch differentiates `forward`."""
    with torch.enable_grad():
        # Views, so that each array has its own gradient even if it was computed from another.
        arrays = [array.view_as(array) for array in arrays]
        asked = [array for array in arrays if array.requires_grad]
        pairs = zip(forward(*arrays)[0], upstream, strict=True)
        outputs, upstream = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
        options = {"create_graph": True, "materialize_grads": True}
        found = iter(torch.autograd.grad(outputs, asked, upstream, **options))
    return [next(found) if array.requires_grad else None for array in arrays]


def _transforming():
    """Whether this runs inside `torch.vmap`, another transform of `torch.func`, or a tracer."""
    return _C._are_functorch_transforms_active() or torch.jit.is_tracing()


def _tracing():
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or get_proxy_mode()


def _writing_onnx():
    return torch.jit.is_tracing() and torch.onnx.is_in_onnx_export()


def _is_mapped(array):
    """Whether `torch.vmap` runs over rows of an array."""
    while functorch.is_functorch_wrapped_tensor(array):
        if functorch.is_batchedtensor(array):
            return True
        array = functorch.get_unwrapped(array)
    return False


def _is_dual(array):
    """Whether PyTorch computes a derivative of an array forward, beside it."""
    return forward_ad.unpack_dual(array).tangent is not None


def _mixed(number):
    """A number of 64 bits that depends on all bits of another (splitmix64, Steele 2014)."""
    number = (number + 0x9E3779B97F4A7C15) % 2**64
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB % 2**64
    return number ^ (number >> 31)


def _known(array, condition):
    """Whether `condition` holds, False where that cannot be read at once."""
    # A GPU would have to finish its work first, and what is traced must not depend on values.
    if _tracing() or array.device.type != "cpu":
        return False
    try:
        return bool(condition(array))
    except RuntimeError:  # of tensors without values, or mapped over by `vmap`
        return False


def _has_lse():
    name = "_scaled_dot_product_flash_attention_for_cpu"
    return all(hasattr(torch.ops.aten, f"{name}{end}") for end in ("", "_backward"))


backend = Torch()
