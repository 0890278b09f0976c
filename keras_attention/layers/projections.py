"""Projections to heads and back as one matrix product, with weights of several layers.

Self-attention projects one sequence three times. Here the weights, which stay separate variables,
are concatenated, and one product computes all three.
"""

import keras

ops = keras.ops


def plain(layer, *denses):
    """Whether all of `denses` only multiply by a kernel and add a bias, in one dtype.

    False if one was quantized, replaced, or given an activation or a loss.
    """
    return all(
        type(dense) in (keras.layers.Dense, keras.layers.EinsumDense)
        and dense.quantization_mode is None
        and dense.activation in (None, keras.activations.linear)
        and dense.activity_regularizer is None
        and dense.compute_dtype == layer.compute_dtype
        for dense in denses
    )


def to_heads(x, denses, sizes):
    """Heads (B, T, H, K) of `x` (B, T, D) by each of `denses`; `sizes` are their (H, K)."""
    batch, length = ops.shape(x)[:2]
    kernels = [ops.reshape(dense.kernel, (x.shape[-1], -1)) for dense in denses]
    biases = [ops.reshape(dense.bias, (-1,)) for dense in denses if dense.bias is not None]
    # As a matrix: TensorFlow would multiply a batch of matrices, one sequence at a time.
    projected = ops.matmul(ops.reshape(x, (-1, x.shape[-1])), _beside(kernels))
    if biases:
        projected = ops.add(projected, _beside(biases))
    if len(denses) == 1:
        return [ops.reshape(projected, (batch, length, *sizes[0]))]
    ends = [sum(heads * size for heads, size in sizes[:n]) for n in range(1, len(sizes))]
    return [
        ops.reshape(part, (batch, length, *size))
        for part, size in zip(ops.split(projected, ends, axis=-1), sizes, strict=True)
    ]


def from_heads(heads, dense, output_shape):
    """(B, T, *output_shape) of heads (B, T, H, V) by `dense`."""
    batch, length, *features = ops.shape(heads)
    size = features[0] * features[1]
    kernel = ops.reshape(dense.kernel, (size, -1))
    output = ops.matmul(ops.reshape(heads, (-1, size)), kernel)
    if dense.bias is not None:
        output = ops.add(output, ops.reshape(dense.bias, (-1,)))
    return ops.reshape(output, (batch, length, *output_shape))


def _beside(arrays):
    return arrays[0] if len(arrays) == 1 else ops.concatenate(arrays, axis=-1)
