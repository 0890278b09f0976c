"""Attention in float64, in loops over batch, heads, queries and keys, straight from the equations.

The tests compare with this. It is NumPy alone, and uses nothing of the package.
"""

import math

import numpy as np


def softmax(scores):
    """Over the last axis. Taking the largest away changes no quotient, and keeps all finite."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def perceptron(inputs, v):
    """vᵀ tanh(inputs)."""
    return sum(v[u] * math.tanh(inputs[u]) for u in range(len(v)))


def pair_score(query, key, score="scaled_dot", scale=None, weights=None, index=None):
    """The score of one query vector and one key vector, at position `index`, by named weights."""
    if score == "reduced_rank":
        return (query @ weights["query_kernel"]) @ (key @ weights["key_kernel"])
    if score == "additive":
        projected = query @ weights["query_kernel"] + key @ weights["key_kernel"]
        v = weights["v"]
        if "length" in weights:
            v = weights["length"] * v / math.sqrt(sum(x * x for x in v))
        return perceptron(projected + weights.get("bias", 0.0), v)
    if score == "concat":
        return perceptron(np.concatenate([query, key]) @ weights["kernel"], weights["v"])
    if score == "location":
        return query @ weights["kernel"][:, index]
    if score == "key_only":
        hidden = np.tanh(key @ weights["kernel"] + weights.get("bias", 0.0))
        return hidden @ weights["v"] if "v" in weights else hidden[0]
    if score == "general":
        return query @ weights["kernel"] @ key
    product = query @ key
    if score == "dot":
        return product
    if score == "scaled_dot":
        return product / math.sqrt(len(query)) if scale is None else product * scale
    if score == "cosine":
        lengths = math.sqrt(query @ query) * math.sqrt(key @ key)
        return 0.0 if lengths == 0 else product / lengths * (1.0 if scale is None else scale)
    raise ValueError(score)


def normalize(scores, normalization="softmax", k=2):
    """The weights of a list of scores, which are those of the keys that may be attended to."""
    if normalization == "sigmoid":
        return [1 / (1 + math.exp(-score)) for score in scores]
    if normalization == "softmax":
        return softmax(np.array(scores))
    if normalization == "hard":
        return [float(index == scores.index(max(scores))) for index in range(len(scores))]
    if normalization == "sparsemax":
        return sparsemax(scores)
    if normalization in ("entmax", "entmax15", "adaptive_entmax"):
        return entmax(scores, 1.5)
    if normalization == "top_k":
        kth = sorted(scores)[-min(k, len(scores))]
        return softmax(np.where(scores >= kth, scores, -np.inf))
    raise ValueError(normalization)


def threshold(scores, power):
    """τ with Σ max(score − τ, 0)^power = 1.

    The sum falls as τ rises, from at least one at the largest score less 1 to zero at the largest,
    so halving the interval finds it.
    """
    low, high = max(scores) - 1, max(scores)
    for _ in range(80):
        middle = (low + high) / 2
        above = sum(max(score - middle, 0) ** power for score in scores) > 1
        low, high = (middle, high) if above else (low, middle)
    return middle


def entmax(scores, alpha):
    """max(0, (α − 1) score − τ)^(1 / (α − 1))."""
    power = 1 / (alpha - 1)
    scaled = [(alpha - 1) * score for score in scores]
    least = threshold(scaled, power)
    return [max(score - least, 0) ** power for score in scaled]


def sparsemax(scores):
    """The nearest point to `scores` among those at least 0 with sum one: max(score − τ, 0)."""
    # Within rounding of τ; from its own support it is exact.
    least = threshold(scores, 1)
    support = [score for score in scores if score > least]
    least = (sum(support) - 1) / len(support)
    return [max(score - least, 0.0) for score in scores]


def attend(
    query,
    key,
    value,
    *,
    score="scaled_dot",
    scale=None,
    weights=None,
    bias=0.0,
    mask=True,
    normalization="softmax",
    soft_cap=None,
    sink=None,
    key_offsets=0.0,
    value_offsets=0.0,
):
    """The output (B, T, H, V) and the weights (B, H, T, S).

    Query is (B, T, H, K), key (B, S, H, K) and value (B, S, H, V); `bias` and `mask` broadcast to
    (B, H, T, S). `weights` are those of the score, by name, each with an axis of H heads in front.
    `sink` is (H,), a score of nothing. `key_offsets` and `value_offsets` are what keys and values
    are moved by for each pair, and broadcast to (B, H, T, S, K) and (B, H, T, S, V).
    """
    query, key, value = (np.asarray(array, "float64") for array in (query, key, value))
    batch, queries, heads, _ = query.shape
    keys, features = value.shape[1], value.shape[3]
    bias = np.broadcast_to(np.asarray(bias, "float64"), (batch, heads, queries, keys))
    mask = np.broadcast_to(mask, (batch, heads, queries, keys))
    pairs = (batch, heads, queries, keys)
    key_offsets = np.broadcast_to(key_offsets, (*pairs, key.shape[3]))
    value_offsets = np.broadcast_to(value_offsets, (*pairs, features))
    output = np.zeros((batch, queries, heads, features))
    found = np.zeros((batch, heads, queries, keys))
    for b, h, t in np.ndindex(batch, heads, queries):
        of_head = {name: array[h] for name, array in (weights or {}).items()}
        allowed = [s for s in range(keys) if mask[b, h, t, s]]
        if not allowed:
            continue
        scores = []
        for s in allowed:
            moved = key[b, s, h] + key_offsets[b, h, t, s]
            one = pair_score(query[b, t, h], moved, score, scale, of_head, s)
            if soft_cap is not None:
                one = soft_cap * math.tanh(one / soft_cap)
            scores.append(one + bias[b, h, t, s])
        # A sink is one more score, whose weight is nobody's.
        given = scores if sink is None else [*scores, sink[h]]
        for s, weight in zip(allowed, normalize(given, normalization), strict=False):
            found[b, h, t, s] = weight
            output[b, t, h] += weight * (value[b, s, h] + value_offsets[b, h, t, s])
    return output, found


def gradients(function, arrays, step=1e-5):
    """Central differences of a scalar function of float64 arrays, with respect to each of them."""
    arrays = [np.array(array, "float64") for array in arrays]
    found = [np.zeros_like(array) for array in arrays]
    for array, gradient in zip(arrays, found, strict=True):
        for index in np.ndindex(array.shape):
            here = array[index]
            array[index] = here + step
            above = function(*arrays)
            array[index] = here - step
            gradient[index] = (above - function(*arrays)) / (2 * step)
            array[index] = here
    return found


def slope(function, arrays, directions):
    """The derivative of a scalar function of float64 arrays along one direction, by differences.

    Of several steps the one whose two sides agree best: a longer one may cross a kink of ReLU,
    sparsemax or a clip.
    """

    def at(step):
        return function(*(a + step * d for a, d in zip(arrays, directions, strict=True)))

    middle = at(0.0)
    sides = [((at(h) - middle) / h, (middle - at(-h)) / h) for h in (1e-5, 1e-6, 1e-7)]
    return sum(min(sides, key=lambda pair: abs(pair[0] - pair[1]))) / 2


# Patterns: whether the query at i may attend to the key at j.

PATTERNS = {
    "Causal": lambda i, j: j <= i,
    "SlidingWindow": lambda i, j, left, right: i - left <= j <= i + right,
    "Dilated": lambda i, j, rate: (i - j) % rate == 0,
    "Strided": lambda i, j, rate: (i - j) % rate == 0 or abs(i - j) < rate,
    "Prefix": lambda i, j, length: j < length,
    "Block": lambda i, j, size, reach: abs(i // size - j // size) <= reach,
    "Global": lambda i, j, length, since: min(i, j) < length or max(i, j) >= (since or math.inf),
}


def in_box(a, b, pattern):
    axes = zip(a, b, pattern.size, pattern.shift, strict=True)
    return all((x - first) // size == (y - first) // size for x, y, size, first in axes)


def in_neighborhood(a, b, pattern):
    for x, y, n, most, rate in zip(a, b, pattern.size, pattern.grid, pattern.dilation, strict=True):
        # The cells that are a multiple of the rate away, of which n follow one another.
        apart = list(range(x % rate, most, rate))
        first = min(max(apart.index(x) - n // 2, 0), len(apart) - n)
        if y not in apart[first : first + n]:
            return False
    return True


def on_axis(a, b, pattern):
    differ = {axis for axis, (x, y) in enumerate(zip(a, b, strict=True)) if x != y}
    return len(differ) <= 1 if pattern.axis is None else differ <= {pattern.axis % len(a)}


# Of two cells of a grid, the tokens after a prefix that sees all and is seen by all.
GRIDS = {"GridWindow": in_box, "Neighborhood": in_neighborhood, "Axial": on_axis}


def attends(pattern, i, j):
    """Whether a pattern allows one pair, by its name and arguments."""
    name = type(pattern).__name__
    if name == "Not":
        return not attends(pattern.pattern, i, j)
    if name in ("And", "Or"):
        return {"And": all, "Or": any}[name](attends(part, i, j) for part in pattern.patterns)
    if name not in GRIDS:
        return PATTERNS[name](i, j, **pattern.get_config())
    (image, a), (other, b) = (divmod(x - pattern.prefix, math.prod(pattern.grid)) for x in (i, j))
    cells = (np.unravel_index(x, pattern.grid) for x in (a, b))
    return min(i, j) < pattern.prefix or (image == other and GRIDS[name](*cells, pattern))


# Positions


def slopes(heads, max_bias=8.0):
    """Those of ALiBi, by the authors' rule."""
    if heads & (heads - 1) == 0:
        return [2 ** (-max_bias * h / heads) for h in range(1, heads + 1)]
    fewer = 1
    while 2 * fewer < heads:
        fewer *= 2
    return slopes(fewer, max_bias) + slopes(2 * fewer, max_bias)[::2][: heads - fewer]


def bucket(offset, num_buckets, max_distance, bidirectional):
    """T5's rule for one key at `offset` = j − i, each step rounded to float32 as T5 rounds it."""
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if offset > 0 else 0
        distance = abs(offset)
    else:
        distance = max(-offset, 0)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    single = np.float32
    share = single(math.log(single(single(distance) / single(exact))))
    share = single(share / single(math.log(max_distance / exact)))
    more = int(single(share * single(num_buckets - exact)))
    return first + min(exact + more, num_buckets - 1)


def theta(pair, size, last, wavelength=10000, scaling=None, factor=1.0, **kwargs):
    """θ of one pair of features, when `last` is the largest position of the row."""
    length = kwargs.get("original_max_length")
    if scaling == "dynamic" and last + 1 > length:
        wavelength *= (factor * (last + 1) / length - (factor - 1)) ** (size / (size - 2))
    angle = wavelength ** (-2 * pair / size)
    if scaling == "linear":
        return angle / factor
    if scaling != "yarn":
        return angle
    # The pair that rotates `times` times within the length: length · w^(−2i/d) = 2π · times.
    ends = [
        size / 2 * math.log(length / 2 / math.pi / times, wavelength)
        for times in (kwargs["beta_fast"], kwargs["beta_slow"])
    ]
    if kwargs.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(0, ends[0]), min(size - 1, ends[1])
    if pair <= low:
        return angle
    if pair >= high:
        return angle / factor
    share = (pair - low) / (high - low)
    return angle * (1 - share) + angle / factor * share


def turned(x, angles, layout="half_split", length=1.0):
    """A vector with pairs of its first features rotated as complex numbers."""
    count, out = len(angles), x.copy()
    first = np.arange(count) if layout == "half_split" else np.arange(0, 2 * count, 2)
    second = first + (count if layout == "half_split" else 1)
    pairs = (x[first] + 1j * x[second]) * length * np.exp(1j * np.asarray(angles))
    out[first], out[second] = pairs.real, pairs.imag
    return out


def rotated(x, at, last, layout="half_split", dim=None, **kwargs):
    """`x` (B, T, H, K) with each vector rotated by its position."""
    x = np.asarray(x, "float64")
    out, size, length = x.copy(), dim or x.shape[-1], 1.0
    if kwargs.get("scaling") == "yarn":
        length = kwargs.get("attention_factor") or 0.1 * math.log(kwargs["factor"]) + 1
    at, last = np.broadcast_to(at, x.shape[:2]), np.broadcast_to(last, x.shape[:1])
    for b, t in np.ndindex(x.shape[:2]):
        angles = [
            int(at[b, t]) * theta(pair, size, int(last[b]), **kwargs) for pair in range(size // 2)
        ]
        for h in range(x.shape[2]):
            out[b, t, h] = turned(x[b, t, h], angles, layout, length)
    return out
