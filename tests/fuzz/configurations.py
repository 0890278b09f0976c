"""What is drawn: configurations as plain values, and the arrays, masks and slots of those.

Numbers come from a seed, so that a configuration is short to print, to keep and to shrink.
"""

import dataclasses

import keras
import numpy as np
from hypothesis import strategies as st

from keras_attention import patterns, scores
from tests import definition
from tests.arrays import wide

BACKEND = keras.backend.backend()
HEADS = [(1, 1), (2, 1), (2, 2), (4, 2), (3, 3)]
LENGTHS = [0, 1, 2, 5, 9]
LONGEST = max(LENGTHS)
# JAX has no float64 unless it is told to.
DTYPES = ["float32"] * 4 + ["float64"] * (BACKEND != "jax") + ["bfloat16", "float16"]

SCORES = {
    "scaled_dot": lambda: "scaled_dot",
    "dot": lambda: scores.Dot(),
    "half": lambda: scores.ScaledDot(0.5),
    "cosine": lambda: scores.Cosine(3.0),
    "general": lambda: scores.General(),
    "reduced_rank": lambda: scores.ReducedRank(3),
    "additive": lambda: scores.Additive(3),
    "unbiased": lambda: scores.Additive(3, use_bias=False),
    "normed": lambda: scores.Additive(3, normalize=True),
    "concat": lambda: scores.Concat(3),
    "location": lambda: scores.Location(LONGEST),
    "key_only": lambda: scores.KeyOnly(3),
    "one key": lambda: scores.KeyOnly(use_bias=False),
}
# Most kernels do no other.
LIKELY = ["scaled_dot"] * 8 + ["dot", "half", "cosine"]

NUMBERS = st.integers(1, 5)
OF_A_NUMBER = patterns.Dilated, patterns.Strided, patterns.Prefix, patterns.Block, patterns.Global
PATTERNS = st.recursive(
    st.one_of(
        st.just(patterns.Causal()),
        st.builds(patterns.SlidingWindow, st.integers(0, 6), st.integers(0, 6)),
        *(st.builds(cls, NUMBERS) for cls in OF_A_NUMBER),
    ),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=4,
)


def maybe(strategy):
    return st.one_of(st.none(), strategy)


class Random:
    """Arrays by the order in which they are requested."""

    def __init__(self, seed):
        self._draw = np.random.default_rng(seed)

    def normal(self, *shape):
        return self._draw.normal(size=shape).astype("float32")

    def some(self, rate, *shape):
        return self._draw.random(shape) < rate

    def integers(self, low, high, *shape):
        return self._draw.integers(low, high, shape).astype("int32")


def rounded(array, dtype):
    """An array as a dtype has it, in float64."""
    tensor = keras.ops.cast(keras.ops.convert_to_tensor(array), dtype)
    wide = "float64" if dtype == "float64" else "float32"
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, wide)), "float64")


def fill(layer, random):
    """Gives the weights of a built layer random values, small where they are many."""
    for variable in layer.trainable_variables:
        size = variable.shape[-2] if len(variable.shape) > 1 else 1
        variable.assign(random.normal(*variable.shape) / np.sqrt(size))


def defined_score(score, heads, weights=None):
    """What the definition is told of a score: its name, scale and weights for each of H heads.

    `weights` are other ones than its own, by name.
    """
    if isinstance(score, str):
        return {"score": score}
    name = next(name for name, cls in scores.BUILTIN.items() if cls is type(score))
    found = {"score": name}
    if name in ("scaled_dot", "cosine"):
        found["scale"] = score.scale
    weights = weights or {variable.name: variable for variable in score.trainable_variables}
    # Those of grouped key heads serve the query heads in a row.
    weights = {
        n: np.repeat(wide(array), heads // array.shape[0], axis=0) for n, array in weights.items()
    }
    return {**found, "weights": weights}


def defined_pattern(pattern, query_positions, key_positions):
    """(B, 1, T, S), or True without a pattern, of positions (B, T) and (B, S)."""
    if pattern is None:
        return True
    batch, queries = query_positions.shape
    allowed = np.zeros((batch, 1, queries, key_positions.shape[1]), bool)
    for b, _, t, s in np.ndindex(allowed.shape):
        i, j = int(query_positions[b, t]), int(key_positions[b, s])
        allowed[b, 0, t, s] = definition.attends(pattern, i, j)
    return allowed


def close(found, expected, tolerance, name, scale=1.0):
    """Equal within a tolerance of the largest number, or of `scale` where that is larger."""
    found = np.asarray(found, "float64")
    assert found.shape == expected.shape, (name, found.shape, expected.shape)
    bound = tolerance * max(scale, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound, err_msg=name)


def check_slope(loss, values, gradients, random, tolerance):
    """Gradients are those of a loss in float64: each along a direction of its own, all together."""
    directions = [random.normal(*x.shape).astype("float64") for x in values]
    parts = [np.asarray(g, "float64") * d for g, d in zip(gradients, directions, strict=True)]
    error = abs(sum(part.sum() for part in parts) - definition.slope(loss, values, directions))
    size = 1.0 + sum(np.abs(part).sum() for part in parts)
    assert error <= tolerance * size, f"gradients: {error} of {size}"


# How far from float64, relative to the largest number, if above 1.
ROUNDING = {"float64": 1e-12, "float32": 5e-5, "bfloat16": 2**-6, "float16": 2**-9}


def drawn(default, strategy):
    """A field of a configuration: what it is in a row that does not give it, and by chance."""
    return dataclasses.field(default=default, metadata={"strategy": strategy})


def choice(default, *others):
    """A field that is one of these, each as likely as it is often here."""
    return drawn(default, st.sampled_from([default, *others]))


class Configuration:
    """A dataclass that shows what is not its default, so that a failure is a line to keep."""

    def __repr__(self):
        given = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    @classmethod
    def by_chance(cls):
        fields = dataclasses.fields(cls)
        return st.builds(cls, **{field.name: field.metadata["strategy"] for field in fields})


PAIRS = ["TS", "BHTS", "B1TS", "1HTS", "B11S", "BH1S", "B1T1", "111S", "11T1", "1H11", "1111"]
MODES = {
    # Compiling costs hundreds of times what a call does.
    "tensorflow": ["eager"] * 24 + ["graph"] * 3 + ["xla"],
    "jax": ["xla"],
    "torch": ["eager"],
}[BACKEND]


@dataclasses.dataclass(frozen=True, repr=False)
class Problem(Configuration):
    """A call of `ops.attend`. `mask` and `bias` are their axes, "1" where they broadcast."""

    batch: int = choice(2, 2, 2, 1, 0)
    queries: int = choice(5, 9, 2, 1, 0)
    keys: int = choice(9, 5, 2, 1, 0)
    heads: tuple = drawn((2, 2), st.sampled_from(HEADS))
    key_dim: int = choice(4, 1, 6)
    value_dim: int = choice(3, 4, 1)
    size: float = choice(1.0, 1.0, 0.1, 3.0)
    score: str = choice(*LIKELY, *SCORES)
    normalization: str = choice(*["softmax"] * 5, "sigmoid", "sparsemax", "hard")
    pattern: object = drawn(None, maybe(PATTERNS))
    mask: str | None = drawn(None, maybe(st.sampled_from(["BTS", *PAIRS])))
    allowed: float = choice(0.7, 0.3, 1.0, 0.0)
    bias: str | None = drawn(None, maybe(st.sampled_from(PAIRS)))
    segments: bool = choice(False, True)
    offset: int | str = drawn(0, st.one_of(st.just(0), st.integers(-4, 12), st.just("B")))
    query_positions: str | None = choice(None, None, "T", "BT")
    key_positions: str | None = choice(None, None, "S", "BS")
    soft_cap: float | None = choice(None, None, 2.0, 30.0)
    sink: bool = choice(False, True)
    dtype: str = choice(*DTYPES)
    mode: str = choice(*MODES)
    kernel: str = choice("auto", "auto", "reference", "blockwise", "banded", "one_query", "fused")
    blocks: tuple | None = drawn(None, maybe(st.tuples(st.integers(1, 4), st.integers(1, 5))))
    with_scores: bool = choice(False, False, False, True)
    garbage: float | None = choice(None, np.nan, np.inf)
    seed: int = drawn(0, st.integers(0, 2**16))

    def sizes(self, axes):
        heads, groups = self.heads
        of = {"B": self.batch, "T": self.queries, "S": self.keys, "H": heads, "G": groups,
              "K": self.key_dim, "V": self.value_dim, "1": 1}  # fmt: skip
        return tuple(of[axis] for axis in axes)


# Where rounding decides nothing: capped at 2, many scores are 2 in float32.
PROBLEMS = Problem.by_chance().filter(lambda p: p.normalization != "hard" or p.soft_cap != 2.0)
