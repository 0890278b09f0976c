"""Attention whose sequences are split over the devices of a mesh: keys and values go round.

Each device has its own queries. In n steps every device computes attention over the keys that it
holds, merges it with what it has by log-sum-exp, and hands the keys to the next (Liu et al. 2023,
"Ring Attention with Blockwise Transformers"). With the whole output O and L = lse, a part (o, l)
has the gradient

    do = dO · exp(l − L)    dl = exp(l − L) · (dO · (o − O) + dL)

so the gradient goes round too, with the keys: a device never holds more than its share and another.

With a causal mask, the device of the last queries would do most of the work. In zig-zag order
(Grattafiori et al. 2024, "The Llama 3 Herd of Models", section 3.3.2) the sequence is 2n chunks, of
which device r has r and 2n − 1 − r: each then computes two of four pairs of chunks in every step.
"""

import copy
import typing

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels import blockwise
from keras_attention.kernels.semantics import HAS_KEYS, MASKED
from keras_attention.kernels.sparse import merge
from keras_attention.sequences import shapes
from keras_attention.spec import Positions, cut


def run(spec, query, key, value, axis, zigzag=False):
    """The `AttentionResult` of a device's queries, over an axis of a mesh: `backend.mesh_axis`."""
    output, lse = attend(spec, query, key, value, axis, zigzag)
    return blockwise.finish(spec, output, lse, keras.backend.standardize_dtype(value.dtype))


def attend(spec, query, key, value, axis, zigzag=False):
    """The output and lse, without the sink, as of `blockwise.attend`.

    `spec` has masks of queries, (B, 1, T, 1), and of keys, (B, 1, 1, S), a pattern, segments,
    biases of positions, embeddings of distances, dropout, a soft cap.
    """
    ring = _Ring(spec, query, key, value, axis, zigzag)
    # Arrays travel in their own dtype, and products are computed in `ring.wide`.
    arrays = (query, key, value, *keras.tree.flatten(spec.arrays))
    return backend.custom_vjp(ring.passes, arrays, ring.constants, saves=False)


class Chunk(typing.NamedTuple):
    """A run of consecutive positions: `size` elements from `first`, the first at `position`."""

    first: int
    size: int
    position: object


def chunks(device, devices, length, zigzag):
    """The chunks of a device's part of a sequence."""
    return [_chunk(n, device, devices, length, zigzag) for n in range(2 if zigzag else 1)]


def _chunk(n, device, devices, length, zigzag):
    if not zigzag:
        return Chunk(0, length, device * length)
    if length % 2:
        raise ValueError(
            "In zig-zag order each device has two chunks of a sequence: its length must be even. "
            f"Received: length {length}"
        )
    half = length // 2
    return Chunk(n * half, half, (device + n * (2 * devices - 1 - 2 * device)) * half)


def to_zigzag(array, axis, devices):
    """A device's part in zig-zag order, of an array that is split along `axis` in plain order.

    Device r has the chunks 2r and 2r + 1, and sends each to the device that needs it.
    """
    even, odd = (
        devices.send(half, [_holder(2 * r + n, devices.size) for r in range(devices.size)])
        for n, half in enumerate(ops.split(array, 2, axis=axis))
    )
    return ops.concatenate(_in_turn(even, odd, devices), axis=axis)


def from_zigzag(array, axis, devices):
    """The inverse of `to_zigzag`."""
    found = []
    for n, half in enumerate(_in_turn(*ops.split(array, 2, axis=axis), devices)):
        to = [_holder(2 * r + n, devices.size) for r in range(devices.size)]
        found.append(devices.send(half, [to.index(r) for r in range(devices.size)]))
    return ops.concatenate(found, axis=axis)


def _holder(chunk, count):
    """The device that has a chunk in zig-zag order."""
    return min(chunk, 2 * count - 1 - chunk)


def _in_turn(first, second, devices):
    """The two, in the other order on every other device: whose first chunk is odd."""
    even = devices.index % 2 == 0
    return [ops.where(even, first, second), ops.where(even, second, first)]


class _Ring:
    """The passes over the ring, round which keys, values, their masks and their segments go."""

    def __init__(self, spec, query, key, value, axis, zigzag):
        self.spec = spec.replace(positions=None, sink=None, return_lse=True)
        self.axis, self.zigzag = axis, zigzag
        self.wide = shapes.accumulation_dtype(query, key, value)
        self.count = axis.size
        self.lengths = query.shape[1], key.shape[1]
        of_queries, of_keys = spec.segment_ids or (None, None)
        self.constants = {
            "device": axis.index,
            "seed": backend.dropout_key(spec.seed) if spec.dropout else None,
            "masks": tuple(mask for mask in spec.masks if mask.shape[2] > 1),
            "segments": of_queries,
            "travelling": (tuple(mask for mask in spec.masks if mask.shape[2] == 1), of_keys),
        }
        self.span = spec.pattern.span() if spec.pattern is not None else None
        kinds = [*spec.position_biases, *([self.span] if self.span is not None else [])]
        self.by_distance = all(kind.by_distance for kind in kinds)

    def passes(self, constants):
        """`forward` and `backward` for `backend.custom_vjp`."""
        ring = copy.copy(self)
        ring.constants = constants
        return ring.forward, ring.backward

    def forward(self, query, key, value, *own):
        """The output (B, T, H, V) and lse (B, H, T); `own` are the arrays of the spec."""
        batch, length, heads, _ = query.shape
        zeros = ops.zeros((batch, length, heads, value.shape[3]), self.wide)
        nothing = zeros, ops.full((batch, heads, length), MASKED, dtype=self.wide)

        def step(n, carry):
            found, moving = carry

            def add(pair, found):
                q, _, visible = pair
                so_far = _of_queries(found, q)

                def more():
                    part, arrays = self._part(pair, query, moving, own)
                    return tuple(merge.merge([so_far, part(*arrays)]))

                new = zip(found, backend.cond(visible, more, lambda: so_far), (1, 2), strict=True)
                return tuple(_replaced(array, q, part, axis) for array, part, axis in new)

            return self._over_pairs(n, add, found), self._moved(moving)

        start = (nothing, (key, value, self.constants["travelling"]))
        found, _ = backend.fori_loop(0, self.count, step, start)
        return found, ()

    def backward(self, arrays, outputs, saved, upstream):
        """The gradients of query, key, value and the arrays of the spec."""
        query, key, value, *own = arrays
        zeros = [ops.zeros_like(array, dtype=self.wide) for array in arrays]

        def step(n, carry):
            sums, moving = carry

            def add(pair, sums):
                return self._gradients(sums, pair, query, moving, own, outputs, upstream)

            of_query, of_columns, of_own = self._over_pairs(n, add, sums)
            # The gradients of keys and values travel with them, and arrive where they began.
            return (of_query, self._moved(of_columns), of_own), self._moved(moving)

        moving = key, value, self.constants["travelling"]
        start = (zeros[0], tuple(zeros[1:3]), tuple(zeros[3:])), moving
        (of_query, of_columns, of_own), _ = backend.fori_loop(0, self.count, step, start)
        found = zip((of_query, *of_columns, *of_own), arrays, strict=True)
        return [ops.cast(gradient, array.dtype) for gradient, array in found]

    def _gradients(self, sums, pair, query, moving, own, outputs, upstream):
        """The gradients so far, and those of a pair of chunks."""
        q, k, visible = pair
        part, arrays = self._part(pair, query, moving, own)
        (output, lse), (of_output, of_lse) = _of_queries(outputs, q), _of_queries(upstream, q)

        def more():
            (part_output, part_lse), pull = backend.vjp(part, arrays)
            # A query without keys here, and maybe without any: exp of a difference would be 1.
            share = ops.where(part_lse > HAS_KEYS, ops.exp(part_lse - lse), 0.0)
            of_share = ops.transpose(ops.sum(of_output * (part_output - output), -1), (0, 2, 1))
            of_part = of_output * ops.transpose(share, (0, 2, 1))[..., None]
            return tuple(pull((of_part, share * (of_share + of_lse))))

        nothing = tuple(map(ops.zeros_like, arrays))
        dq, dk, dv, *found = backend.cond(visible, more, lambda: nothing)
        of_query, (of_key, of_value), of_own = sums
        parts = (of_query, q, dq), (of_key, k, dk), (of_value, k, dv)
        of_query, *of_columns = (_replaced(x, at, _cut(x, at) + new) for x, at, new in parts)
        of_own = (so_far + new for so_far, new in zip(of_own, found, strict=True))
        return of_query, tuple(of_columns), tuple(of_own)

    def _part(self, pair, query, moving, own):
        """Attention of a chunk of queries over one of keys: a function, and its arrays."""
        q, k, _ = pair
        key, value, (masks, of_keys) = moving
        segments = None if of_keys is None else (self.constants["segments"], of_keys)
        spec = self.spec.replace(masks=self.constants["masks"] + masks, segment_ids=segments)
        spec = spec.rows(q.first, q.size).columns(k.first, k.size)
        spec = spec.replace(positions=self._positions(q, k))
        if spec.dropout:
            # Each pair of chunks has a number of its own, and by it random numbers of its own.
            chunks = 2 * self.count
            number = q.position // q.size * chunks + k.position // k.size
            spec = spec.replace(seed=self.axis.fold(self.constants["seed"], number))

        def part(query, key, value, *own):
            arrays = keras.tree.pack_sequence_as(self.spec.arrays, list(own))
            return blockwise.attend(spec.with_arrays(arrays), query, key, value, True)

        arrays = (_cut(query, q), _cut(key, k), _cut(value, k), *own)
        return part, [ops.cast(array, self.wide) for array in arrays]

    def _positions(self, q, k):
        if self.by_distance:
            return Positions.of(q.size, k.size, offset=q.position - k.position)
        both = (chunk.position + ops.arange(chunk.size, dtype="int32") for chunk in (q, k))
        return Positions.of(q.size, k.size, *both)

    def _over_pairs(self, n, body, carry):
        """`carry = body((q, k, visible), carry)` for the pairs of chunks of a device in step n."""
        device = self.constants["device"]
        source = (device - n) % self.count
        queries, keys = self.lengths

        def step(m, carry):
            q = _chunk(m // 2, device, self.count, queries, self.zigzag)
            k = _chunk(m % 2, source, self.count, keys, self.zigzag)
            return body((q, k, self._visible(q, k)), carry)

        return backend.fori_loop(0, 4, step, carry) if self.zigzag else step(0, carry)

    def _visible(self, q, k):
        """Whether a query of a chunk can see a key of another."""
        left, right = (None, None) if self.span is None else (self.span.left, self.span.right)
        visible = ops.ones((), "bool")
        if left is not None:
            visible = ops.logical_and(visible, k.position + k.size > q.position - left)
        if right is not None:
            visible = ops.logical_and(visible, k.position < q.position + q.size + right)
        return visible

    def _moved(self, arrays):
        """The arrays of the device before this one."""
        to = [(n + 1) % self.count for n in range(self.count)]
        return keras.tree.map_structure(lambda array: self.axis.send(array, to), arrays)


def _cut(array, chunk, axis=1):
    return cut(array, axis, chunk.first, chunk.size)


def _of_queries(result, chunk):
    """A chunk of an output (B, T, H, V) and lse (B, H, T)."""
    return _cut(result[0], chunk), _cut(result[1], chunk, 2)


def _replaced(array, chunk, found, axis=1):
    """The array with another chunk of it."""
    if array.shape[axis] == chunk.size:
        return found
    start = [0] * len(array.shape)
    start[axis] = chunk.first
    return ops.slice_update(array, tuple(start), found)
