"""Problems for kernels, each by the kernel that is meant to compute it.

A case has, by name, arrays to differentiate by (`LEARNED`), sizes that are not the usual (`SIZES`;
`length` is that of queries and keys), and all other arguments of `tests.problems.attend`. `fixed`
is a bias without a gradient.
"""

import keras
import numpy as np
import pytest

from keras_attention import normalizations, positions
from keras_attention.backend import backend
from keras_attention.kernels.tiles import strategies
from keras_attention.patterns import (
    Axial,
    BigBird,
    Block,
    Causal,
    Dilated,
    Global,
    GridWindow,
    Neighborhood,
    Prefix,
    RandomBlocks,
    SlidingWindow,
    Strided,
)
from keras_attention.spec import AttentionSpec, PositionBias
from tests.problems import (
    B,
    H,
    K,
    S,
    T,
    V,
    inputs,
    integers,
    random,
    relative_bias,
    some,
)

LEARNED = {"bias", "more_bias", "sink", "table", "relative_keys", "relative_values"}
SIZES = {"length", "queries", "keys", "groups", "size", "features"}
# The length of bands, and of grids, which need enough scores for a kernel of many.
L, GRID, N = 50, (8, 12), 96


def short_sequences():
    """A context in which short sequences take the ways of long ones."""
    return strategies.using(window=5, shortest=20)


def segments(batch=B, queries=L, keys=L):
    """Numbers of a few runs, for all rows of queries and for one of keys."""
    runs = np.arange(max(queries, keys)) // 9 % 2
    return tuple(
        keras.ops.convert_to_tensor(np.tile(runs[:n], (rows, 1)).astype("int32"))
        for rows, n in ((batch, queries), (1, keys))
    )


def with_empty_rows(queries=T, keys=S):
    mask = some(B, H, queries, keys, rate=0.1)
    mask[0, 0, 3] = False
    mask[0, :, 5] = False
    mask[1] = False
    return mask


def lengths(*numbers, of=S):
    """A mask of so many keys of each row."""
    return np.arange(of) < np.array(numbers)[:, None, None, None]


RIGHT = lengths(S, 20)
LEFT = RIGHT[..., ::-1].copy()
CAUSAL, WINDOW, NEAR = Causal(), SlidingWindow(3, 5), SlidingWindow(4, 3)
CAUSAL_WINDOW = WINDOW & CAUSAL
SPARSEMAX, ENTMAX, ENTMAX_1_2, TOP_K, SIGMOID = (
    x.into_spec(AttentionSpec()).normalization
    for x in (
        normalizations.Sparsemax(),
        normalizations.Entmax(),
        normalizations.Entmax(1.2),
        normalizations.TopK(3),
        normalizations.Sigmoid(),
    )
)


def alibi():
    return positions.ALiBi().bias_between(H)


def distance(slopes=0.1):
    """A bias by distance, of one slope or of one for each head."""
    return PositionBias(
        lambda i, j: keras.ops.cast(-keras.ops.abs(i - j), "float32") * slopes, by_distance=True
    )


def by_product():
    return PositionBias(lambda i, j: 0.1 * keras.ops.cast(keras.ops.mod(i * j, 7), "float32"))


def grid_bias(grid=GRID, prefix=0):
    position = positions.GridRelativeBias(grid, 4, prefix)
    position.build((B, N, H, K), (B, N, H, K))
    return position.bias_between(H)


def fold_masks():
    return [some(B, 1, 1, L), some(1, 1, L, 1, rate=0.8), some(1, H, 1, L, rate=0.8)]


def tables(heads=H, count=7, features=V):
    return {
        "relative_keys": random(heads, count, K),
        "relative_values": random(heads, count, features),
    }


HEADS_SLOPES = random(H, 1, 1)
EMPTY = with_empty_rows()
# Those of the backend's own attention, whose keys and values have one size.
FUSED = {
    "all keys": dict(groups=H),
    "a sink": dict(sink=random(H) + 2),
    "causal, a sink": dict(pattern=CAUSAL, sink=random(H)),
    "causal, from 5 on": dict(pattern=CAUSAL, offset=5),
    "causal, one group": dict(pattern=CAUSAL, groups=1, queries=S),
    "padding of one group": dict(mask=some(B, 1, 1, S), groups=1),
    "padded queries": dict(mask=[some(B, 1, T, 1), RIGHT, lengths(30)], sink=random(H)),
    "causal, padded queries": dict(mask=some(B, 1, T, 1), pattern=CAUSAL, groups=H),
    "causal, padded keys": dict(mask=some(B, 1, 1, S), pattern=CAUSAL, queries=S),
    "causal by other positions": dict(
        pattern=CAUSAL, key_positions=np.arange(S, dtype="int32")[::-1].copy()
    ),
    "rows without keys": dict(mask=[EMPTY, some(1, 1, T, 1)], sink=random(H)),
    "segments": dict(segment_ids=segments(B, T, S), pattern=~CAUSAL),
    "masks of heads": dict(mask=[some(1, H, 1, S), some(1, H, 1, 1, rate=0.7)]),
    "a bias": dict(fixed=random(1, H, T, S), groups=H),
    "a bias of keys, causal": dict(fixed=random(B, 1, 1, S), pattern=CAUSAL),
    "a bias of queries": dict(fixed=random(B, H, T, 1), mask=LEFT, sink=random(H)),
    "a huge bias, padding": dict(
        fixed=np.where(some(1, H, T, S), random(1, H, T, S), -np.inf), mask=RIGHT
    ),
    "a bias of positions, causal, from 5 on": dict(fixed=distance(), pattern=CAUSAL, offset=5),
    "a bias of other positions": dict(
        fixed=distance(), key_positions=random(B, S).argsort(axis=1).astype("int32")
    ),
    "a bias of positions by heads, and another": dict(
        fixed=[distance(HEADS_SLOPES), random(B, 1, T, S)], mask=[EMPTY, some(1, 1, T, 1)]
    ),
    # By the number of keys of each row, on JAX.
    "padded alike": dict(mask=lengths(9)),
    "padded whole": dict(mask=lengths(0, 3)),
    "padded at the start": dict(mask=LEFT),
    "a window": dict(pattern=CAUSAL_WINDOW, queries=S),
    "a window of both sides": dict(pattern=WINDOW, queries=S, mask=lengths(9, 0)),
    "causal, padded at the end": dict(mask=lengths(9, 0), pattern=CAUSAL, queries=S),
    "causal, padded at both ends": dict(
        mask=lengths(9, 12) & ~lengths(2, 0), pattern=CAUSAL, queries=S
    ),
    "causal, few keys": dict(pattern=CAUSAL, offset=3, queries=S, keys=T, sink=random(H)),
    "one key": dict(mask=some(B, H, T, 1), keys=1),
    "one of each": dict(sink=random(H), queries=1, keys=1),
}

SINGLE_QUERY = {
    "all heads apart": dict(groups=H),
    "one key head": dict(groups=1, mask=some(B, 1, 1, S)),
    "cache": dict(pattern=SlidingWindow(9, 0), offset=integers(11, 30, B)),
    "no keys": dict(bias=random(1, H, 1, S), mask=EMPTY[:, :, :1]),
    "capped, with a sink": dict(bias=random(H, 1, S), sink=random(H), logit_soft_cap=2.0),
    "shaw": dict(**tables(), pattern=NEAR, offset=3, groups=H, features=V),
    "shaw anywhere": dict(**tables(1), offset=integers(3, 40, B), groups=H, features=V),
    "segments": dict(segment_ids=segments(B, 1, S), fixed=distance()),
}

# Those in which tiles, or rows of them, differ most.
BLOCKWISE = {
    "biases": dict(
        bias=random(H, 1, S),
        more_bias=random(B, 1, T, 1),
        logit_soft_cap=2.0,
        pattern=WINDOW,
        offset=4,
    ),
    "all masks": dict(bias=random(B, H, T, S), mask=[RIGHT, EMPTY, some(T, S)], groups=H),
    "wide window": dict(pattern=SlidingWindow(99, 99), scale=0.3),
    "one feature": dict(pattern=CAUSAL, size=1, features=1),
    "positions": dict(
        pattern=CAUSAL, query_positions=integers(0, 50, B, T), key_positions=integers(0, 50, S)
    ),
    "offset of rows": dict(pattern=CAUSAL_WINDOW, offset=integers(-3, 20, B)),
    "shaw anywhere": dict(
        relative_keys=random(H, 7, K),
        relative_values=random(1, 7, V),
        query_positions=integers(0, 50, B, T),
        groups=H,
    ),
    "shaw of keys": dict(
        relative_keys=random(H, 5, K), bias=random(B, 1, 1, S), logit_soft_cap=4.0, offset=-4
    ),
    "relative bias of rows": dict(
        table=random(8, H),
        bias=random(1, 1, T, S),
        between=relative_bias(),
        offset=integers(0, 20, B),
        logit_soft_cap=3.0,
    ),
    "sparsemax": dict(normalization=SPARSEMAX, mask=EMPTY),
    "sparsemax of all else": dict(
        normalization=SPARSEMAX,
        between=alibi(),
        segment_ids=segments(B, T, S),
        pattern=CAUSAL,
        bias=random(1, H, T, S),
    ),
    "entmax15": dict(normalization=ENTMAX, pattern=CAUSAL, bias=random(B, 1, T, 1)),
    "entmax, keys": dict(normalization=ENTMAX_1_2, mask=LEFT),
    "top_k of a union": dict(normalization=TOP_K, pattern=NEAR | Prefix(2)),
    "sigmoid": dict(normalization=SIGMOID, mask=EMPTY, bias=random(1, H, T, S)),
    "sigmoid of global tokens": dict(normalization=SIGMOID, pattern=NEAR | Global(3), queries=S),
}

BANDED = {
    "window of itself": dict(pattern=SlidingWindow(0, 0)),
    "causal window": dict(
        bias=random(B, H, 1, L), sink=random(H), pattern=CAUSAL_WINDOW, mask=fold_masks()
    ),
    "few queries": dict(
        pattern=SlidingWindow(2, 9), offset=13, segment_ids=segments(B, 43, L), queries=43
    ),
    "few keys": dict(bias=random(1, 1, L, 1), pattern=SlidingWindow(2, 9), offset=-5, keys=39),
    "many keys": dict(pattern=SlidingWindow(2, 3), offset=70, keys=90),
    "nothing beyond the keys": dict(sink=random(H), pattern=SlidingWindow(2, 3), offset=100),
    "nothing before the keys": dict(sink=random(H), pattern=SlidingWindow(2, 3), offset=-100),
    "nothing allowed": dict(pattern=SlidingWindow(2, 3), mask=np.zeros((B, 1, 1, 1), bool)),
    "few queries of many keys": dict(
        bias=random(B, H, 1, 90),
        pattern=SlidingWindow(20, 0),
        offset=80,
        mask=some(B, 1, 1, 90),
        queries=2,
        keys=90,
    ),
    "biases of heads": dict(
        bias=random(B, H, 1, 1),
        more_bias=random(1, H, L, 1),
        pattern=SlidingWindow(6, 1),
        logit_soft_cap=2.0,
        mask=some(B, H, 1, 1),
    ),
    "block with a table": dict(
        table=random(8, H), pattern=Block(7) & CAUSAL, between=relative_bias()
    ),
    "not by distance": dict(pattern=SlidingWindow(4, 2), between=by_product()),
    "dilated causal": dict(
        table=random(8, H),
        bias=random(1, 1, 1, L),
        sink=random(H),
        pattern=Dilated(4) & CAUSAL,
        between=relative_bias(),
        segment_ids=segments(),
    ),
    "dilated window": dict(
        pattern=Dilated(3) & SlidingWindow(6, 3), mask=fold_masks(), segment_ids=segments()
    ),
    "strided causal": dict(sink=random(H), pattern=Strided(5) & CAUSAL, mask=some(B, 1, 1, L)),
    "grid window": dict(
        table=random(49, H),
        bias=random(1, H, 1, N),
        pattern=GridWindow(GRID, (3, 5), (1, 2)),
        between=grid_bias(),
        mask=some(B, 1, 1, N),
        length=N,
    ),
    "neighborhood": dict(
        table=random(52, H),
        bias=random(1, H, N + 1, 1),
        pattern=Neighborhood((24, 4), 3, prefix=1),
        between=grid_bias((24, 4), 1),
        mask=[some(B, 1, 1, N + 1), some(1, 1, N + 1, 1, rate=0.8)],
        segment_ids=segments(B, N + 1, N + 1),
        length=N + 1,
        groups=H,
    ),
    "axial": dict(
        table=random(8, H),
        sink=random(H),
        pattern=Axial(GRID, prefix=2),
        between=relative_bias(),
        length=N + 2,
    ),
    "shaw prefix": dict(**tables(), sink=random(H), pattern=Prefix(10) | CAUSAL, keys=41, groups=H),
    "shaw in a window": dict(**tables(), pattern=SlidingWindow(9, 2), offset=5),
    "random blocks": dict(pattern=RandomBlocks(L, 5, 2, seed=3)),
    "sigmoid in a window": dict(normalization=SIGMOID, pattern=NEAR),
    "entmax in a neighborhood": dict(
        normalization=ENTMAX, pattern=Neighborhood((24, 4), 3), length=N
    ),
}

GLOBAL = {
    "a window": dict(pattern=NEAR | Global(3)),
    "padding, a sink, a bias": dict(
        pattern=NEAR | Global(3),
        mask=~lengths(0, 20, of=L),
        sink=random(H),
        bias=random(1, H, L, 1),
    ),
    "bigbird": dict(
        pattern=RandomBlocks(L, 5, 2, seed=3) | NEAR | Global(2), mask=~lengths(0, 20, of=L)
    ),
    "both ends": dict(pattern=BigBird(L - 1, 4, 2, seed=3), sink=random(H)),
    "strided, texts": dict(
        pattern=Strided(6) | Prefix(2), segment_ids=segments(), logit_soft_cap=2.0
    ),
}

CASES = {
    "fused": FUSED,
    "single_query": SINGLE_QUERY,
    "blockwise": BLOCKWISE,
    "banded": BANDED,
    "global": GLOBAL,
}
# Sizes that the cases of a kernel share.
OF_KERNEL = {
    "fused": {"features": K},
    "single_query": {"queries": 1, "features": K},
    "blockwise": {},
    "banded": {"length": L},
    "global": {"length": L},
}


def fused_on_cpus(patch):
    """On JAX, its own attention of whole scores in place of cuDNN's, which needs a GPU.

    Returns a list, to which each call adds its arguments.
    """
    calls = []
    if "lengths" not in backend.FUSED_READS:
        return calls
    attend = backend.fused_attention

    def reason(query, key, value, by, causal, left, lse):
        return "there is one query, or a sink" if query.shape[1] == 1 or lse else None

    patch.setattr(backend, "FUSED", {"platform": "cpu", "implementation": "xla"})
    patch.setattr(backend, "fused_unsupported_reason", reason)
    patch.setattr(
        backend, "fused_attention", lambda *x, **given: calls.append(x) or attend(*x, **given)
    )
    return calls


def as_on_a_gpu(patch):
    """What JAX needs to know of a GPU, which is not here."""
    jax, checks = map(pytest.importorskip, ("jax", "jax._src.cudnn.fused_attention_stablehlo"))
    patch.setattr(checks, "check_cudnn_version", lambda: 91000)
    patch.setattr(checks, "check_compute_capability", lambda _: True)
    patch.setattr(checks, "is_cuda_compute_capability_equal", lambda _: False)
    patch.setattr(jax, "default_backend", lambda: "gpu")


def problem(kernel, name):
    """Arrays to differentiate by, and all other arguments of `attend`."""
    case = CASES[kernel][name]
    sizes = OF_KERNEL[kernel] | {n: x for n, x in case.items() if n in SIZES}
    if "length" in sizes:
        sizes = dict.fromkeys(("queries", "keys"), sizes.pop("length")) | sizes
    arrays = inputs(**sizes) | {n: x for n, x in case.items() if n in LEARNED}
    return arrays, {n: x for n, x in case.items() if n not in SIZES | LEARNED}
