"""Attention over sequences that `distribution.SequenceParallel` splits: a ring over its devices.

The arrays are those of all devices. Inside `axis_map` each has its part of the positions, and
`ring` does the rest. A causal mask would leave the last device most of the work, so each then
trades halves of its part with others, for the zig-zag order of `ring`.
"""

import keras

from keras_attention.backend import backend
from keras_attention.core import sequence_parallel
from keras_attention.kernels import blockwise
from keras_attention.kernels.devices import ring
from keras_attention.spec import mapped


def unsupported_reason(spec, query, key, value):
    """The reason the ring cannot compute a problem, or None."""
    by = sequence_parallel.current()
    if by is None or by.exchanges_heads(query, key):
        return "no ring of devices shares the sequence"
    name, count = by.sequence_dim_name, by.devices()
    if backend.mesh_axis(name) is not None or backend.axis_map(by.device_mesh, name, query) is None:
        return "the program is not one of all devices"
    lengths = query.shape[1], key.shape[1]
    if any(length is None or length % count or length < 2 * count for length in lengths):
        return "the devices do not divide the sequence"
    at = spec.positions
    if not at.counted or at.offset:
        return "positions do not count from 0"
    if spec.biases or any(mask.shape[2] > 1 and mask.shape[3] > 1 for mask in spec.masks):
        return "a mask or bias is one of pairs"
    return blockwise.softmax_unsupported_reason(spec, query, key, value)


def run(spec, query, key, value):
    """The `AttentionResult`."""
    by = sequence_parallel.current()
    given = {
        "heads": (query, key, value),
        "constants": spec.constants,
        "own": spec.arrays,
        # Drawn outside of the map, since it changes a variable.
        "seed": (backend.dropout_key(spec.seed),) if spec.dropout else (),
    }
    # The axis of each that is split.
    splits = {
        "heads": (1, 1, 1),
        "constants": mapped(spec.constants, _split),
        "own": keras.tree.map_structure(lambda _: None, given["own"]),
        "seed": (None,) * len(given["seed"]),
    }
    splits = keras.tree.flatten(splits)
    span = spec.pattern.span() if spec.pattern is not None else None
    parts = query.shape[1] // by.devices(), key.shape[1] // by.devices()
    one_sided = span is not None and (span.left is None) != (span.right is None)
    zigzag = one_sided and not any(part % 2 for part in parts)
    plain = spec.replace(positions=None, sink=None)

    def attend(*arrays):
        axis = backend.mesh_axis(by.sequence_dim_name)
        if zigzag:
            arrays = [
                array if split is None else ring.to_zigzag(array, split, axis)
                for array, split in zip(arrays, splits, strict=True)
            ]
        x = keras.tree.pack_sequence_as(given, list(arrays))
        seed = x["seed"][0] if x["seed"] else None
        part = plain.with_arrays(x["own"]).replace(**x["constants"], seed=seed)
        output, lse = ring.attend(part, *x["heads"], axis, zigzag)
        if zigzag:
            output, lse = (ring.from_zigzag(x, n, axis) for x, n in ((output, 1), (lse, 2)))
        return output, lse

    over_devices = backend.axis_map(by.device_mesh, by.sequence_dim_name, query)
    output, lse = over_devices(attend, keras.tree.flatten(given), splits, (1, 2))
    return blockwise.finish(spec, output, lse, keras.backend.standardize_dtype(value.dtype))


def _split(array, axes):
    """The axis of queries or keys of an array that has one of them."""
    return 2 if len(axes) == 4 and array.shape[2] > 1 else len(axes) - 1
