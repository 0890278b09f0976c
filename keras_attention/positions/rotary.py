"""Rotary positions: pairs of features are rotated by angles of positions, or of cells of a grid."""

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import keras
import numpy as np
from keras import ops

from keras_attention.backend import backend
from keras_attention.positions.base import Position, check_shared
from keras_attention.scores import Cosine, Dot, ScaledDot
from keras_attention.sequences import shapes
from keras_attention.sequences.grid import Grid

Layout = Literal["half_split", "interleaved"]
Scaling = Literal[None, "linear", "dynamic", "yarn", "llama3", "longrope", "proportional"]
# Scalings without a length: only these may bring positions nearer to each other, or further apart.
_FREE = ("linear", "proportional")

# Positions are split at this power of two: the remainder has 12 bits.
_APART = 4096


class Rotary(Position):
    r"""score(i, j) = (R_i q)ᵀ (R_j k), which depends on j − i alone. Su et al. 2021, eq. 15 and 16.

    `R_p` rotates the pair i of d features, i = 0 … d/2 − 1, by the angle `p · θ_i`, where
    `θ_i = max_wavelength^(−2i / d)`. A scaling changes θ, to extend a model to `factor` times
    the `original_max_length` that it was trained for:

    - "linear" (Chen et al. 2023, position interpolation): `θ_i / factor`.
    - "dynamic" ("Dynamic NTK" in Peng et al. 2023): `max_wavelength` is multiplied by
      `(1 + factor · (L − original_max_length) / original_max_length)^(d / (d − 2))` if L, the
      largest position of query and key in this call plus 1, exceeds `original_max_length`.
      The paper has `factor=1`; others come from common implementations. Each row has its own L,
      without padding: in layers that count positions from 0, from its first to its last real
      token. Keys rotated in an earlier call had the L of that call.
    - "yarn" (Peng et al. 2023): features that rotate more than `beta_fast` times within
      `original_max_length` keep θ, those that rotate less than `beta_slow` times have
      `θ_i / factor`, with a ramp between them; the result is also multiplied by
      `0.1 ln(factor) + 1`. The ramp is linear in i, as in the authors' code and models trained
      with it; in the paper's text it is linear in the number of rotations.
    - "llama3" (Llama 3.1): as "yarn", with a ramp that is linear in the number of rotations, and no
      multiplier. Its `beta_fast` and `beta_slow` are usually 4 and 1.
    - "longrope" (Ding et al. 2024, "LongRoPE"): `θ_i / long_factors[i]` where L exceeds
      `original_max_length`, and `θ_i / short_factors[i]` otherwise; the result is also multiplied
      by `√(1 + ln(factor) / ln(original_max_length))`. L and cached keys are as of "dynamic".

    - "proportional" (Gemma 4): `θ_i / factor`, of which all but the first `dim` / 2 are 0. The
      pairs, and their θ, are those of all features of a head, d = K.

    Computed in float32 for every dtype of query and key (in float64 for float64), and rounded once,
    to the dtype that they have. Angles are accurate to 1e-6 for every integer position below 2^24,
    since full rotations are subtracted before rounding; with "dynamic" they are off by up to
    `p · θ_i / 2^21`.

    Args:
        max_wavelength: the longest wavelength, divided by 2π; often called base or θ.
        dim: number of rotated features, the first ones of each head; None for all.
        layout: which features form a pair: "half_split" (i and i + d/2: Llama, GPT-NeoX, KerasHub)
            or "interleaved" (2i and 2i + 1: the paper, GPT-J). It must match trained weights.
        scaling: None, "linear", "dynamic", "yarn", "llama3", "longrope" or "proportional".
        factor: of the scaling, at least 1; above 0 with "linear" and "proportional".
        original_max_length: the length of training, for all scalings but these two.
        beta_fast, beta_slow: of "yarn" and "llama3".
        attention_factor: multiplier of "yarn" and "longrope"; None for the one above.
        truncate: whether the ends of the ramp of "yarn" are rounded to whole features.
        short_factors, long_factors: of "longrope", a number for each of the d/2 pairs.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number or a name is not as described, a scaling lacks its arguments, or the
            number of features to rotate is odd, exceeds the features, or differs between sides.

    >>> import keras
    >>> from keras_attention import SelfAttention, positions
    >>> rotary = positions.Rotary(layout="interleaved")
    >>> x = keras.ops.ones((1, 3, 1, 2))
    >>> rotated, _ = rotary.encode(x, x, keras.ops.arange(3), keras.ops.arange(3))
    >>> [round(float(value), 4) for value in rotated[0, 1, 0]]    # cos 1 − sin 1, sin 1 + cos 1
    [-0.3012, 1.3818]
    >>> longer = positions.Rotary(scaling="yarn", factor=4.0, original_max_length=2048)
    >>> layer = SelfAttention(4, 8, causal=True, position=longer)
    >>> layer(keras.random.normal((2, 5, 32))).shape
    (2, 5, 32)
    """

    # Rotating both vectors preserves their inner product.
    scores: tuple[type, ...] | None = (Dot, ScaledDot, Cosine)

    def __init__(
        self,
        max_wavelength: float = 10000,
        dim: int | None = None,
        layout: Layout = "half_split",
        scaling: Scaling = None,
        factor: float = 1.0,
        original_max_length: int | None = None,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        attention_factor: float | None = None,
        truncate: bool = True,
        short_factors: Sequence[float] | None = None,
        long_factors: Sequence[float] | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.max_wavelength = shapes.check_number("max_wavelength", max_wavelength, above=1)
        self.dim = shapes.check_count("dim", dim, 2, optional=True)
        rotated_size(dim, dim or 2, dim or 2)
        self.layout = shapes.check_choice("layout", layout, get_args(Layout))
        self.scaling = shapes.check_choice("scaling", scaling, get_args(Scaling))
        lowest = {"above": 0} if scaling in _FREE else {"minimum": 1}
        self.factor = shapes.check_number("factor", factor, **lowest)
        if scaling is None and factor != 1:
            raise ValueError(
                f"`factor` requires `scaling`, which must be one of {get_args(Scaling)[1:]}. "
                f"Received: scaling=None, factor={factor}"
            )
        self.original_max_length = shapes.check_count(
            "original_max_length", original_max_length, optional=scaling in (None, *_FREE)
        )
        # Whether the frequencies depend on L: a key is then rotated by more than its own position.
        self.needs_length = scaling in ("dynamic", "longrope")
        self.encodes_alone = not self.needs_length
        self.encodes_anew = (str(scaling), self.original_max_length) if self.needs_length else None
        self.beta_slow = shapes.check_positive("beta_slow", beta_slow)
        self.beta_fast = shapes.check_number("beta_fast", beta_fast, above=beta_slow)
        self.attention_factor = shapes.check_optional_positive("attention_factor", attention_factor)
        self.truncate = shapes.check_flag("truncate", truncate)
        self.short_factors = self._factors("short_factors", short_factors)
        self.long_factors = self._factors("long_factors", long_factors)
        if scaling == "longrope" and len(self.short_factors) != len(self.long_factors):
            raise ValueError(
                "`short_factors` and `long_factors` must be of one length. Received: "
                f"{len(self.short_factors)} and {len(self.long_factors)}"
            )

    def _factors(self, name, given):
        """Positive numbers, one for each pair, for "longrope"; None for the other scalings."""
        needed, listed = self.scaling == "longrope", isinstance(given, (list, tuple, np.ndarray))
        if needed and listed and all(shapes.is_number(x) and x > 0 for x in given):
            return tuple(float(factor) for factor in given)
        if needed or given is not None:
            raise ValueError(
                f"`{name}` must be {'positive numbers' if needed else 'None'} with "
                f"scaling={self.scaling!r}. Received: {name}={given!r}"
            )
        return None

    def build(self, query_shape, key_shape):
        self._size(query_shape[-1], key_shape[-1])

    def encode(self, query, key, query_positions, key_positions):
        size = self._size(query.shape[-1], key.shape[-1])
        wide = shapes.accumulation_dtype(query, key)
        # One array, as of self-attention without a cache, has one rotation.
        of_query = of_key = ops.cast(query_positions, wide)
        if key_positions is not query_positions:
            of_key = ops.cast(key_positions, wide)
        last = _last(of_query, of_key) if self.needs_length else None
        turn = of_keys = self._rotation(of_query, size, last)
        if of_key is not of_query:
            of_keys = self._rotation(of_key, size, last)
        return self._rotated(query, *turn), self._rotated(key, *of_keys)

    def frequencies(self, size: int) -> np.ndarray:
        """The θ of each pair of `size` features, in float64 (NumPy).

        For "dynamic" unscaled, for "longrope" those of short sequences.
        """
        return self._frequencies(size, self.short_factors).copy()

    def _frequencies(self, size, factors):
        """θ with the divisors of "longrope"."""
        scaling = self.scaling, self.factor, self.original_max_length, self.truncate
        found = _frequencies(size, self.max_wavelength, *scaling, self.beta_fast, self.beta_slow)
        if self.scaling == "proportional" and self.dim is not None:
            found = np.where(np.arange(size // 2) < self.dim // 2, found, 0.0)
        if factors is None:
            return found
        if len(factors) != size // 2:
            raise ValueError(
                f"`short_factors` and `long_factors` must be {size // 2} numbers each, one for a "
                f"pair of the {size} features to rotate. Received: {len(factors)}"
            )
        return found / np.asarray(factors)

    def _multiplier(self):
        """Of the rotated features of "yarn" and "longrope", beside the rotation."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.scaling == "yarn":
            return 0.1 * math.log(self.factor) + 1
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_length))

    def _size(self, query_size, key_size):
        """The number of features among which pairs are rotated."""
        size = rotated_size(self.dim, query_size, key_size)
        if self.scaling != "proportional":
            return size
        return rotated_size(None, query_size, key_size)

    def _stretch(self, last, size):
        """The multiplier of the frequencies in "dynamic", (d/2,) or (B, 1, d/2)."""
        beyond = ops.cast(ops.maximum(last + 1 - self.original_max_length, 0), last.dtype)
        growth = 1 + self.factor * beyond / self.original_max_length
        # The power of `growth` in the wavelength, d / (d − 2), times that of the wavelength in θ.
        powers = -2.0 * np.arange(size // 2) / max(size - 2, 1)
        return ops.power(growth[..., None], ops.cast(powers, growth.dtype))

    def _angles(self, positions, size, last):
        """The angles (…, T, d/2) of positions (…, T), in their dtype."""
        frequencies = self._frequencies(size, self.short_factors)
        if self.scaling == "longrope":
            long = angles(positions, self._frequencies(size, self.long_factors))
            is_long = (last + 1 > self.original_max_length)[..., None]
            return ops.where(is_long, long, angles(positions, frequencies))
        if self.scaling == "dynamic":
            stretch = self._stretch(last, size)
            return positions[..., None] * (ops.cast(frequencies, stretch.dtype) * stretch)
        return angles(positions, frequencies)

    def _rotation(self, positions, size, last):
        """The cosines and sines, (…, T, 1, d), of features and of swapped ones."""
        angles = ops.expand_dims(self._angles(positions, size, last), -2)
        cos, sin = ops.cos(angles), ops.sin(angles)
        if self.scaling in ("yarn", "longrope"):
            multiplier = self._multiplier()
            cos, sin = cos * multiplier, sin * multiplier
        return paired(cos, cos, self.layout), paired(-sin, sin, self.layout)

    def _rotated(self, x, cos, sin):
        """`x` (B, T, H, K) with its first features rotated."""
        size = cos.shape[-1]
        # The axis of a pair's two features, once the features are split into pairs.
        axis = -2 if self.layout == "half_split" else -1
        rotated = backend.rotate(x if size == x.shape[-1] else x[..., :size], cos, sin, axis)
        if size == x.shape[-1]:
            return rotated
        return ops.concatenate([rotated, x[..., size:]], axis=-1)


def rotated_size(dim, query_size, key_size):
    """The number of rotated features: `dim`, or if that is None those of a head."""
    shapes.check_same("Numbers of features that Rotary rotates", query=query_size, key=key_size)
    if dim is not None and dim > query_size:
        raise ValueError(
            "`dim` must be at most the number of features of a head. "
            f"Received: dim={dim}, features={query_size}"
        )
    size = dim or query_size
    if size % 2:
        raise ValueError(
            f"Rotary rotates features in pairs, so their number must be even. Received: {size}"
        )
    return size


def paired(first, second, layout):
    """Features (…, d) of the first and the second of each pair, (…, d/2)."""
    if layout == "half_split":
        return ops.concatenate([first, second], axis=-1)
    pairs = ops.stack([first, second], axis=-1)
    return ops.reshape(pairs, (*ops.shape(first)[:-1], 2 * first.shape[-1]))


def _last(*positions):
    """The largest of all positions of a row, (1,) or (B, 1)."""
    each = (ops.cast(at, positions[0].dtype) for at in positions)
    return backend.maximum(*(ops.max(at, axis=-1, keepdims=True, initial=0) for at in each))


def angles(positions, frequencies):
    """`positions · frequencies` modulo 2π, (…, T, N), of (…, T) and a NumPy array (N,).

    Positions are whole numbers in float32 or float64. In float32 the angles are accurate to 1e-6
    for all positions below 2^24, where the plain product is off by 5e-3 at 10^5.
    """
    dtype = keras.backend.standardize_dtype(positions.dtype)
    positions = positions[..., None]
    if dtype == "float64":
        return positions * ops.cast(frequencies, dtype)
    # In rotations, of which only the fractional part counts. A position is 4096 times a number of
    # 12 bits plus another; the rotations of each are a number of 12 bits, whose product with it is
    # exact, and a small remainder.
    high = ops.floor(positions / _APART)
    low = positions - high * _APART
    turns = np.stack([frequencies * _APART, frequencies]) / (2 * math.pi)
    turns -= np.round(turns)
    coarse = np.round(turns * _APART) / _APART
    units = ops.cast(np.stack([coarse, turns - coarse], axis=1), dtype)
    found = []
    for unit, part in enumerate((high, low)):
        exact = part * units[unit, 0]
        found.append(exact - ops.round(exact) + part * units[unit, 1])
    rotations = found[0] + found[1]
    return (rotations - ops.round(rotations)) * (2 * math.pi)


@functools.lru_cache(maxsize=64)
def _frequencies(size, max_wavelength, scaling, factor, length, truncate, beta_fast, beta_slow):
    """θ of each pair, divided by `factor` in some scalings: all, or those beyond a ramp."""
    pair = np.arange(size // 2)
    theta = float(max_wavelength) ** (-2.0 * pair / size)
    if scaling in (None, "dynamic", "longrope"):
        return theta
    kept = 0.0
    if scaling == "llama3":
        rotations = length * theta / (2 * math.pi)
        kept = np.clip((rotations - beta_slow) / (beta_fast - beta_slow), 0, 1)
    elif scaling == "yarn":
        # The pair, as a real number, that rotates this many times within the length.
        first, last = (
            size * math.log(length / (2 * math.pi * rotations)) / (2 * math.log(max_wavelength))
            for rotations in (beta_fast, beta_slow)
        )
        if truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        kept = 1 - np.clip((pair - first) / max(last - first, 1e-3), 0, 1)
    return theta * (kept + (1 - kept) / factor)


# The largest logarithm of a scale, so that products of scaled numbers are finite in float32.
_LARGEST = 30.0
# More than any position.
_FAR = 2**30


class XPos(Rotary):
    r"""Extrapolatable rotary positions. Sun et al. 2023 (arXiv 2212.10554), algorithm 1.

    `score(i, j) = (R_i q)ᵀ Ζ^((i − j) / scale_base) (R_j k)`, for keys before the query: R are the
    rotations of `Rotary`, and Ζ multiplies pair n of d features by

        ζ_n = (2 n / d + γ) / (1 + γ),  n = 0 … d/2 − 1

    Fast pairs, of which far keys have any angle, decay fastest. It is for causal attention: the
    scores of keys after the query would grow.

    Query and key are scaled by powers of ζ from the middle of the queries on, in float32 whatever
    their dtype, and a cache stores keys before that. So the distance to keys is not limited, but
    that between the queries of one call is, to less than `most_queries`: longer texts are computed
    in calls with a cache. The score is "dot" or "scaled_dot", as "cosine" would undo the scaling.

    Args:
        scale_base: positions in which a pair is multiplied by its ζ.
        gamma: γ; the larger, the less it decays.
        **kwargs: all arguments of `Rotary`.

    Raises:
        ValueError: a number is not above 0, a call has too many queries, or positions of queries
            that are too far apart, or as `Rotary`. Positions whose values are known only at run
            time cannot be checked: the scores of those too far apart are limited.

    >>> import keras
    >>> from keras_attention import SelfAttention, positions
    >>> layer = SelfAttention(4, 8, causal=True, position="xpos")
    >>> layer(keras.random.normal((2, 5, 32))).shape
    (2, 5, 32)
    >>> positions.XPos().scales(8).round(2)
    array([0.29, 0.46, 0.64, 0.82])
    >>> positions.XPos().most_queries
    24521
    """

    # A norm would undo the scaling.
    scores = (Dot, ScaledDot)

    def __init__(self, scale_base: float = 512.0, gamma: float = 0.4, **kwargs: Any):
        super().__init__(**kwargs)
        # The scale of a key is relative to the queries of a call.
        self.encodes_alone = False
        self.scale_base = shapes.check_positive("scale_base", scale_base)
        self.gamma = shapes.check_positive("gamma", gamma)

    @property
    def most_queries(self) -> int:
        """The number of consecutive queries in one call whose scores are accurate."""
        return int(2 * _LARGEST * self.scale_base / np.log(1 + 1 / self.gamma))

    def scales(self, size: int) -> np.ndarray:
        """The ζ of each pair of `size` features, in float64 (NumPy)."""
        pair = np.arange(size // 2)
        return (2 * pair / size + self.gamma) / (1 + self.gamma)

    def _check(self, queries, positions):
        """Raises if the positions of queries are too far apart, as far as they are known."""
        values = shapes.visible_values(positions) if backend.is_eager(positions) else None
        if values is not None and values.size:
            queries = int((values.max(axis=-1) - values.min(axis=-1)).max()) + 1
        if isinstance(queries, int) and queries > self.most_queries:
            raise ValueError(
                f"XPos(scale_base={self.scale_base}, gamma={self.gamma}) takes queries within "
                f"{self.most_queries} positions in one call: use a larger `scale_base`, or a cache "
                f"and several calls. Received: queries within {queries} positions"
            )

    def encode(self, query, key, query_positions, key_positions):
        self._check(query.shape[1], query_positions)
        wide = shapes.accumulation_dtype(query, key)
        query, key = (ops.cast(x, wide) for x in (query, key))
        query, key = super().encode(query, key, query_positions, key_positions)
        at = ops.cast(query_positions, wide)
        last = ops.max(at, axis=-1, keepdims=True, initial=0)
        first = ops.min(at, axis=-1, keepdims=True, initial=_FAR)
        # Any middle gives the same products; whole numbers keep differences exact.
        middle = ops.floor((first + last) / 2)
        size = self._size(query.shape[-1], key.shape[-1])
        logs = np.log(self.scales(size)) / self.scale_base
        scaled = []
        for x, distance in ((query, at - middle), (key, middle - ops.cast(key_positions, wide))):
            powers = ops.expand_dims(distance, (-1, -2)) * ops.cast(logs, wide)
            # Below it is 0 for keys so far before the queries that the product is.
            powers = ops.exp(ops.clip(powers, -np.inf, _LARGEST))
            powers = paired(powers, powers, self.layout)
            widths = [(0, 0)] * (len(powers.shape) - 1) + [(0, x.shape[-1] - size)]
            scaled.append(x * ops.pad(powers, widths, constant_values=1.0))
        return scaled[0], scaled[1]


class AxialRotary(Rotary):
    r"""score(i, j) = (R_i q)ᵀ (R_j k), which depends on the differences of rows and of columns.

    Axial rotary embedding (Fang et al. 2024, EVA-02; Heo et al. 2024): the rotary embedding of
    images. Of d features to rotate on a grid of n axes, each axis has d / n: by
    its coordinate c the pair i of them, i = 0 … d/(2n) − 1, is rotated by the angle
    `c · max_wavelength^(−2in / d)`. The first pairs are those of the first axis, the rows.
    Positions of the prefix are not rotated.

    With `axes`, the pair i of all, i = 0 … d/2 − 1, has `max_wavelength^(−2i / d)`, and an axis of
    its own. "alternating" is the split of Pixtral: of n axes the a-th has the pairs a, a + n,
    a + 2n …, and the pairs of the first axis come first. Numbers of axes, one for each pair, are
    the sections of Qwen2-VL's M-RoPE. There, texts have cells too: with `diagonal`, the first
    coordinate counts along all axes, and a token of text is the first cell of its own grid,
    p · height · width, as is that of an image, whose patches are the cells from there on.

    Args:
        grid, prefix: as of `patterns.GridWindow`.
        axes: None for as many pairs for each axis, each with all wavelengths; "alternating"; or the
            number of an axis for each of the d / 2 pairs, such as `[0] * 16 + [1] * 24 + [2] * 24`.
        diagonal: whether the first coordinate is added to each of the others.
        normalized: whether coordinates are those of the middles of cells in a grid from −1 to 1,
            whatever its size, as in DINOv3, with `scaling="linear"` and a `factor` of 1 / 2π.
        **kwargs: those of `Rotary`: `max_wavelength`, 100 in Heo et al. 2024 and DINOv3; `layout`,
            "interleaved" in EVA-02 alone; `dim`, a multiple of twice the number of axes; as in
            EVA-02, `scaling="linear"` with `factor`, the grid's size to that in training.

    Raises:
        ValueError: a number or a name is not as described, the scaling depends on the length
            ("dynamic", "longrope") or is "proportional", or the number of features to rotate is no
            multiple of twice the number of axes, is not twice that of `axes`, exceeds the features,
            or differs between sides.

    >>> import keras
    >>> from keras_attention import SelfAttention, positions
    >>> rotary = positions.AxialRotary((2, 3), layout="interleaved")
    >>> x = keras.ops.ones((1, 6, 1, 4))
    >>> rotated, _ = rotary.encode(x, x, keras.ops.arange(6), keras.ops.arange(6))
    >>> [round(float(value), 4) for value in rotated[0, 3, 0]]    # row 1, column 0
    [-0.3012, 1.3818, 1.0, 1.0]
    >>> layer = SelfAttention(4, 8, position=positions.AxialRotary((2, 3)))
    >>> layer(keras.random.normal((2, 6, 32))).shape
    (2, 6, 32)
    """

    counts = False

    def __init__(
        self,
        grid: Sequence[int],
        prefix: int = 0,
        axes: Literal["alternating"] | Sequence[int] | None = None,
        diagonal: bool = False,
        normalized: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.grid, self.prefix = Grid.of(grid, prefix)
        self.axes = _axes(axes, len(self.grid))
        self.diagonal = shapes.check_flag("diagonal", diagonal)
        self.normalized = shapes.check_flag("normalized", normalized)
        if self.needs_length or self.scaling == "proportional":
            raise ValueError(
                "`scaling` of AxialRotary must not depend on the length, nor be 'proportional'. "
                f"Received: scaling={self.scaling!r}"
            )

    def _size(self, query_size, key_size):
        size = super()._size(query_size, key_size)
        check_axes(self, size)
        return size

    def _angles(self, positions, size, last):
        count = len(self.grid)
        theta = self._frequencies(size if self.axes else size // count, None)
        # The pairs of each axis.
        chosen: list[Any] = [slice(None)] * count
        if self.axes == "alternating":
            chosen = [slice(axis, None, count) for axis in range(count)]
        elif self.axes:
            chosen = [np.flatnonzero(np.equal(self.axes, axis)) for axis in range(count)]
        first, *others = Grid(self.grid, self.prefix).numbers(positions, self.normalized)
        numbers = [first, *(first + along if self.diagonal else along for along in others)]
        found = []
        for along, pairs in zip(numbers, chosen, strict=True):
            if self.normalized:  # These are small, and not whole.
                found.append(along[..., None] * ops.cast(theta[pairs], along.dtype))
            else:
                found.append(angles(along, theta[pairs]))
        found = ops.concatenate(found, axis=-1)
        if not isinstance(self.axes, tuple):
            return found
        return ops.take(found, np.argsort(np.concatenate(chosen)), axis=-1)


def _axes(axes, count):
    """The argument `axes` of a grid of so many axes, checked."""
    if axes is None or (isinstance(axes, str) and axes == "alternating"):
        return axes
    listed = isinstance(axes, (list, tuple))
    if not listed or not all(shapes.is_number(n) and n in range(count) for n in axes):
        raise ValueError(
            f"`axes` must be None, 'alternating', or numbers below {count}, the number of axes of "
            f"the grid. Received: axes={axes!r}"
        )
    return tuple(map(int, axes))


def check_axes(position, size):
    """Raises unless the axes of a position's grid can share the `size` features."""
    listed = getattr(position, "axes", None)
    if isinstance(listed, tuple):
        if 2 * len(listed) != size:
            raise ValueError(
                f"`axes` must be {size // 2} numbers, one for each pair of the {size} features to "
                f"rotate. Received: {len(listed)}"
            )
    elif size % (2 * len(position.grid)):
        raise ValueError(
            f"{type(position).__name__} rotates features in pairs, as many for each axis of the "
            f"grid, so their number must be a multiple of {2 * len(position.grid)}. "
            f"Received: {size}"
        )


class MixedRotary(Position):
    r"""score(i, j) = (R_i q)ᵀ (R_j k), which depends on the differences of rows and of columns.

    RoPE-Mixed (Heo et al. 2024, section 3.2): `R_i` rotates the pair n of features of a head h by
    the angle `r_i · θ[h, 0, n] + c_i · θ[h, 1, n]`, for row r and column c, with learned θ. So a
    head can tell diagonals apart, which `AxialRotary` cannot. On a grid of more axes the angle is
    the sum over all. Positions of the prefix are not rotated.

    θ begins as `u · max_wavelength^(−2n / d)`, with a random unit vector u for each head and pair.
    The authors' code has two perpendicular directions for each head.

    Heads of queries that share a key share θ. Computed in float32 for every dtype of query and key
    (in float64 for float64), and rounded once.

    Args:
        grid, prefix: as of `patterns.GridWindow`.
        max_wavelength: the longest wavelength at the beginning, divided by 2π.
        dim: number d of rotated features, the first ones of each head, a multiple of twice the
            number of axes; None for all.
        layout: which features form a pair, "half_split" or "interleaved", as in `Rotary`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number or a name is not as described, the number of features to rotate is no
            multiple of twice the number of axes, exceeds the features, or differs between sides,
            or layers of different sizes share it.

    >>> import keras
    >>> from keras_attention import SelfAttention, positions
    >>> mixed = positions.MixedRotary((4, 6), prefix=1)
    >>> layer = SelfAttention(4, 8, position=mixed)
    >>> layer(keras.random.normal((2, 1 + 24, 32))).shape
    (2, 25, 32)
    >>> tuple(mixed.frequencies.shape)    # heads, axes, pairs
    (4, 2, 4)
    """

    # Rotating both vectors preserves their inner product.
    scores = (Dot, ScaledDot, Cosine)
    encodes_alone = True
    counts = False

    def __init__(
        self,
        grid: Sequence[int],
        prefix: int = 0,
        max_wavelength: float = 10.0,
        dim: int | None = None,
        layout: Layout = "half_split",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.grid, self.prefix = Grid.of(grid, prefix)
        self.max_wavelength = shapes.check_number("max_wavelength", max_wavelength, above=1)
        self.dim = shapes.check_count("dim", dim, 2, optional=True)
        self.layout = shapes.check_choice("layout", layout, get_args(Layout))

    def build(self, query_shape, key_shape):
        size = rotated_size(self.dim, query_shape[-1], key_shape[-1])
        check_axes(self, size)
        shape = (key_shape[2], len(self.grid), size // 2)
        self.frequencies = self.add_weight(shape, self._first_frequencies, name="frequencies")

    def _first_frequencies(self, shape, dtype=None):
        directions = keras.initializers.RandomNormal(stddev=1.0)(shape, dtype=dtype)
        directions = directions / ops.norm(directions, axis=1, keepdims=True)
        pair = np.arange(shape[-1])
        return directions * ops.cast(self.max_wavelength ** (-pair / shape[-1]), directions.dtype)

    def encode(self, query, key, query_positions, key_positions):
        wide = shapes.accumulation_dtype(query, key)
        heads, _, pairs = self.frequencies.shape
        check_shared(self, heads, num_heads=key.shape[2])
        size = rotated_size(self.dim, query.shape[-1], key.shape[-1])
        check_shared(self, 2 * pairs, features=size)
        of_keys = ops.cast(self.frequencies, wide)
        of_queries = ops.repeat(of_keys, query.shape[2] // heads, axis=0)
        query = self._rotated(query, query_positions, of_queries)
        return query, self._rotated(key, key_positions, of_keys)

    def _rotated(self, x, positions, frequencies):
        """`x` (B, T, H, K) at positions (T,) or (B, T), by frequencies (H, axes, d/2)."""
        axes = Grid(self.grid, self.prefix).numbers(ops.cast(positions, frequencies.dtype))
        angles = ops.einsum("...a,han->...hn", ops.stack(axes, axis=-1), frequencies)
        cos, sin = ops.cos(angles), ops.sin(angles)
        size, wide = 2 * cos.shape[-1], ops.cast(x, cos.dtype)
        if self.layout == "half_split":
            first, second = wide[..., : size // 2], wide[..., size // 2 : size]
        else:
            first, second = wide[..., :size:2], wide[..., 1:size:2]
        # Not the backend's `rotate`, which has no gradient of the angles.
        turned = paired(first * cos - second * sin, first * sin + second * cos, self.layout)
        turned = ops.cast(turned, x.dtype)
        if size == x.shape[-1]:
            return turned
        return ops.concatenate([turned, x[..., size:]], axis=-1)
