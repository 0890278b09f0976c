"""Functional API: attention on arrays, without weights or a layer."""

import functools
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from keras_attention import kernels, normalizations, patterns, positions, scores
from keras_attention.backend import backend
from keras_attention.core.hints import Seed, Tensor, Tensors
from keras_attention.sequences import inputs, masks, shapes
from keras_attention.sequences.arguments import problem

__all__ = ["attend", "explain", "mask", "merge", "ring_attend", "ring_order", "ring_positions"]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    pattern: patterns.PatternLike | None = None,
    score: scores.ScoreLike = "scaled_dot",
    normalization: normalizations.NormalizationLike = "softmax",
    offset: int | Tensor = 0,
    dropout: float = 0.0,
    seed: Seed = None,
    return_attention_scores: bool = False,
    kernel: str = "auto",
    logit_soft_cap: float | None = None,
    sink: Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    segment_ids: Sequence[Tensor] | None = None,
    return_lse: bool = False,
    position: positions.PositionLike | None = None,
) -> Tensors:
    r"""Attention of `query` over `key` and `value`, already split into heads.

    `softmax(score(query, key) + bias) · value`, over the keys that `mask` and `pattern` allow.
    Scores and softmax are computed in float32 (float64 for float64), for every dtype.

    Args:
        query, key, value: (B, T, H, K), (B, S, G, K), (B, S, G, V). G divides H: `H / G` adjacent
            query heads share a key and value head. Integers are converted to floats.
        mask: boolean, True = attend: (T, S), (B, T, S), or anything with four axes that broadcasts
            to (B, H, T, S).
        bias: numbers added to the scores: (T, S), or anything with four axes that broadcasts to
            (B, H, T, S), such as ALiBi or relative positions.
        pattern: None, "causal" or a `patterns.Pattern`.
        score: "scaled_dot", "dot", "cosine", or a `scores.Score` without weights or already built.
        normalization: "softmax", "sigmoid", or a `normalizations.Normalization`.
        offset: position of the first query, a number or one per row, (B,); keys start at 0. With a
            cache of 5 keys, a single query at `offset=4` is the newest of them.
        dropout, seed: rate at which weights are dropped, 0 at inference, and an integer or
            `keras.random.SeedGenerator` for it.
        return_attention_scores: whether to return `(output, scores)`, scores (B, H, T, S) being
            the weights before dropout.
        kernel: "auto", or the name of one; see `explain`.
        logit_soft_cap: None, or c to replace scores by `c · tanh(score / c)`, before the bias.
        sink: None, or (H,), the score of one more key of each head, whose value is zero.
        query_positions, key_positions: integers, (T,) or (B, T) and (S,) or (B, S), if positions do
            not count from `offset` and 0.
        segment_ids: None, or a pair of integer arrays (B, T) and (B, S): a query sees only keys of
            the same number.
        return_lse: whether to return the log-sum-exp too, (B, H, T), last, for `merge`: the
            logarithm of each softmax's denominator, in float32 (float64 for float64), −1.5e38 for a
            query with no key.
        position: None, "rotary", "alibi", or a `positions.Position` without weights or already
            built.

    Returns:
        (B, T, H, V) in the dtype of `value`. A query with no key to attend to has zeros, in output,
        scores and gradients.

    Raises:
        ValueError, TypeError: shapes, mask, slots or kernel are not as described.

    >>> import keras
    >>> from keras_attention import ops
    >>> query, key = keras.random.normal((1, 2, 4, 8)), keras.random.normal((1, 6, 4, 8))
    >>> ops.attend(query, key, key, pattern="causal", offset=4).shape
    (1, 2, 4, 8)
    """
    given = inputs.Given(**locals())
    result = kernels.run(*problem(given), kernel=kernel)
    returned = [result.weights] if return_attention_scores else []
    returned += [result.lse] if return_lse else []
    return (result.output, *returned) if returned else result.output


def explain(query: Tensor, key: Tensor, value: Tensor, **arguments: Any) -> str:
    """Which kernel `attend` would run with these arguments, and why.

    Then its cost, what `mask` combines, the tiles, and why kernels that come before it cannot run.

    >>> import keras
    >>> from keras_attention import ops
    >>> x = keras.random.normal((1, 6, 4, 8))
    >>> why = ops.explain(x, x, x, pattern="causal", return_attention_scores=True)
    >>> for part in why.split("; ")[:3]:
    ...     print(part)
    few_scores: there are few scores, and an operation costs more than its numbers do
    time and memory O(T · S)
    mask: pattern Causal()
    """
    given = _given(query, key, value, **arguments)
    name, reason = kernels.explain(*problem(given), kernel=given.kernel)
    return f"{name}: {reason}"


def mask(query: Tensor, key: Tensor, value: Tensor, **arguments: Any) -> Tensor | None:
    """The mask that `attend` would apply with these arguments, for problems that are small.

    Masks, pattern and segments combined: a boolean array that broadcasts to (B, H, T, S), or None.

    >>> import keras
    >>> from keras_attention import ops
    >>> x = keras.random.normal((1, 3, 2, 8))
    >>> keras.ops.convert_to_numpy(ops.mask(x, x, x, pattern="causal"))[0, 0].astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]])
    """
    spec, *_ = problem(_given(query, key, value, **arguments))
    return kernels.semantics.mask(spec)


def merge(results: Iterable[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
    """Merges attention over different keys, `[(output, lse), …]`, exactly.

    Each is a result of `attend(…, return_lse=True)`, (B, T, H, V) and (B, H, T), for the same
    queries and a part of the keys, such as a shared prefix or those of a device. With
    `lse' = ln Σ exp(lse)` the result is `(Σ output · exp(lse − lse'), lse')`, the output in the
    dtype of the first. Pass a `sink` to one part only.

    >>> import keras
    >>> from keras_attention import ops
    >>> query, key = keras.random.normal((1, 2, 4, 8)), keras.random.normal((1, 6, 4, 8))
    >>> parts = [
    ...     ops.attend(query, piece, piece, return_lse=True)
    ...     for piece in (key[:, :2], key[:, 2:])
    ... ]
    >>> output, lse = ops.merge(parts)
    >>> bool(keras.ops.max(keras.ops.abs(output - ops.attend(query, key, key))) < 1e-5)
    True
    """
    results = list(results)
    pairs = [part for part in results if isinstance(part, (list, tuple)) and len(part) == 2]
    if not pairs or len(pairs) < len(results):
        raise ValueError(
            "`results` must be pairs of output (B, T, H, V) and lse (B, H, T), of at least one "
            f"attention. Received: {results!r}"
        )
    results = [tuple(map(keras.ops.convert_to_tensor, part)) for part in results]
    for output, lse in results:
        shapes.check_rank("output", output, 4, "(B, T, H, V)")
        shapes.check_rank("lse", lse, 3, "(B, H, T)")
        for axis, what in enumerate(("Batch sizes", "Numbers of heads", "Lengths")):
            sizes = {"first": results[0][1].shape[axis], "lse": lse.shape[axis]}
            shapes.check_same(f"{what} of all results", **sizes)
            sizes = {"lse": lse.shape[axis], "output": output.shape[(0, 2, 1)[axis]]}
            shapes.check_same(f"{what} of an output and its lse", **sizes)
    dtype, wide = (array.dtype for array in results[0])
    output, lse = kernels.merge.merge([(keras.ops.cast(o, wide), lse) for o, lse in results])
    return keras.ops.cast(output, dtype), lse


def ring_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    axis_name: str,
    mask: Tensor | None = None,
    pattern: patterns.PatternLike | None = None,
    score: scores.ScoreLike = "scaled_dot",
    dropout: float = 0.0,
    seed: Seed = None,
    logit_soft_cap: float | None = None,
    sink: Tensor | None = None,
    segment_ids: Sequence[Tensor] | None = None,
    zigzag: bool = False,
    return_lse: bool = False,
    position: positions.PositionLike | None = None,
) -> Tensors:
    """`attend` over a sequence that is split over the devices of a mesh: ring attention (JAX).

    Called inside `jax.shard_map`, on a device's part of the sequence. Keys and values go from
    device to device, and results are merged by log-sum-exp (Liu et al. 2023, "Ring Attention with
    Blockwise Transformers"); so does the gradient. A device stores O(T / n) of T positions, and
    skips parts that a pattern masks.

    Args:
        query, key, value: as of `attend`, the positions of this device; every device has as many.
        axis_name: the name of the mesh's axis.
        mask: None or boolean (B, S), which of this device's keys are real.
        pattern, score, dropout, seed, logit_soft_cap, sink, segment_ids, return_lse, position: as
            of `attend`, of positions in the whole sequence, and segments of this device.
        zigzag: whether the sequence is in the order of `ring_order`, in which all devices have as
            much to do under a causal mask.

    Returns:
        (B, T, H, V), of this device, as of `attend`; or `(output, lse)`.

    Raises:
        ValueError: the code does not run over such an axis, inside `jax.shard_map`; lengths are odd
            in zig-zag order; the position needs the last of all positions; or as `attend`.

    >>> from keras_attention import ops
    >>> def attend(query, key, value):  # jax.shard_map(…, in_specs=P(None, "sequence"))
    ...     return ops.ring_attend(query, key, value, "sequence", pattern="causal")
    """
    given = locals()
    if mask is not None:
        mask = masks.boolean("mask", mask)
        shapes.check_rank("mask", mask, 2, "(B, S)")
        mask = mask[:, None, None]
    position = positions.get(position)
    if position is not None and (
        position.has_query_bias or ("encode" in position.overrides and not position.encodes_alone)
    ):
        raise ValueError(
            "In a ring a position must encode each element by its own position alone, and have no "
            f"bias that sees the queries. Received: position={position!r}"
        )
    axis = _mesh_axis(axis_name)
    own = {name: given[name] for name in inspect.signature(attend).parameters if name in given}
    own |= {"mask": mask, "position": position}
    own["query_positions"] = ring_positions(axis_name, query.shape[1], zigzag)
    own["key_positions"] = ring_positions(axis_name, key.shape[1], zigzag)
    spec, query, key, value = problem(_given(**own))
    result = kernels.ring.run(spec, query, key, value, axis, zigzag)
    return (result.output, result.lse) if return_lse else result.output


def ring_positions(axis_name: str, length: int, zigzag: bool = False) -> Tensor:
    """The positions in the whole sequence of a device's `length` positions, (T,).

    For `positions.Rotary` and embeddings inside `jax.shard_map`; see `ring_attend`.

    >>> from keras_attention import ops
    >>> def positions():  # inside jax.shard_map
    ...     return ops.ring_positions("sequence", 1024)
    """
    axis = _mesh_axis(axis_name)
    chunks = kernels.ring.chunks(axis.index, axis.size, length, zigzag)
    return keras.ops.concatenate(
        [chunk.position + keras.ops.arange(chunk.size, dtype="int32") for chunk in chunks]
    )


def ring_order(array: Tensor, devices: int, axis: int = 1, inverse: bool = False) -> Tensor:
    """A sequence in zig-zag order, or back: what `ring_attend(…, zigzag=True)` expects.

    The sequence is cut into 2n chunks for n devices, of which device r gets r and 2n − 1 − r
    (Grattafiori et al. 2024, section 3.3.2). Its length must be a multiple of 2n.

    >>> import keras
    >>> from keras_attention import ops
    >>> ordered = ops.ring_order(keras.ops.arange(8), devices=2, axis=0)
    >>> print(keras.ops.convert_to_numpy(ordered))
    [0 1 6 7 2 3 4 5]
    >>> print(keras.ops.convert_to_numpy(ops.ring_order(ordered, 2, axis=0, inverse=True)))
    [0 1 2 3 4 5 6 7]
    """
    shapes.check_count("devices", devices)
    array = keras.ops.convert_to_tensor(array)
    chunks = 2 * devices
    if array.shape[axis] is None or array.shape[axis] % chunks:
        raise ValueError(
            f"The length of the sequence must be a multiple of 2 · devices = {chunks}. "
            f"Received: array.shape={tuple(array.shape)}, axis={axis}"
        )
    order = [chunk for r in range(devices) for chunk in (r, chunks - 1 - r)]
    if inverse:
        order = [order.index(chunk) for chunk in range(chunks)]
    pieces = keras.ops.split(array, chunks, axis=axis)
    return keras.ops.concatenate([pieces[chunk] for chunk in order], axis=axis)


def _mesh_axis(name):
    axis = backend.mesh_axis(name)
    if axis is None:
        raise ValueError(
            "A ring of devices needs JAX, and code inside `jax.shard_map` over an axis of a mesh "
            f"with that name. Received: axis_name={name!r}"
        )
    return axis


_given = functools.partial(inputs.arguments, attend)
