"""Positions: what a layer with each gives is its equation, pair by pair in float64."""

import math

import keras
import numpy as np
import pytest

from keras_attention import Attention, patterns, positions
from tests import definition
from tests.arrays import numpy, random
from tests.compiled import compiled
from tests.definition import turned

B, T, H, G, K, V, D = 2, 7, 4, 2, 8, 5, 8
GRID = {"grid": (2, 3), "prefix": 1}


def cells(position):
    """The row and the column of a position, of which those of images below go on."""
    return divmod(position - 1, 3) if position else (0, 0)


def theta(size, wavelength):
    return np.array([definition.theta(n, size, 0, wavelength) for n in range(size // 2)])


def t5(rule):
    return lambda w, q, k, i, j, h: q @ k + w[0][definition.bucket(j - i, *rule), h]


def fire(w, q, k, i, j, h):
    c, factor, kernel, bias, out = w
    share = np.log(1 + abs(c) * abs(i - j)) / np.log(1 + abs(c) * max(i, 2.5 * abs(factor)))
    return q @ k + np.maximum(kernel * share + bias, 0) @ out[:, h]


def xpos(w, q, k, i, j, h):
    # One pair of features is rotated and decays, the others stay as they are.
    q, k = turned(q, [i]), turned(k, [j])
    return q[:2] @ k[:2] * (0.2 / 1.2) ** ((i - j) / 3.0) + q[2:] @ k[2:]


def transformer_xl(most):
    def equation(w, q, k, i, j, h):
        (kernel, u, v), root, distance = w, K**-0.5, np.clip(i - j, -most, most)
        r = np.concatenate([f(distance * theta(6, 50.0)) for f in (np.sin, np.cos)])
        return (q + root * u[h]) @ k + (q + root * v[h]) @ (r @ kernel[:, h])

    return equation


def disentangled(c2p=1, p2c=1):
    def equation(w, q, k, i, j, h):
        n = deberta(i - j, 8, 6)
        # The products are divided by √(3 K), of which q has √K already.
        terms = q @ k + c2p * q @ w[1][n, h] + p2c * k @ w[0][n, h] * K**-0.5
        return terms / math.sqrt(1 + c2p + p2c)

    return equation


def deberta(distance, num_buckets, max_distance):
    """The row of a distance i − j, by the equations of DeBERTa."""
    k = num_buckets // 2
    e, far = k // 2, abs(distance)
    if max_distance is not None and far > e:
        steps = (e - 1) * math.log(far / e) / math.log((max_distance - 1) / e)
        # Whole but for rounding where the distance is that of the last bucket.
        steps = round(steps) if abs(steps - round(steps)) < 1e-9 else math.ceil(steps)
        distance = int(math.copysign(e + steps, distance))
    return min(max(k + distance, 0), 2 * k - 1)


def shaw(per_head, left=3, right=3):
    def row(i, j):
        return np.clip(j - i, -left, right) + left

    return lambda w, q, k, i, j, h: q @ (k + w[0][h * per_head, row(i, j)])


def offsets(sizes):
    """As Swin and BEiT number the rows of a table."""

    def equation(w, q, k, i, j, h):
        row = 0
        for size, a, b in zip(sizes, cells(i), cells(j), strict=True):
            row = row * (2 * size - 1) + min(max(a - b, 1 - size), size - 1) + size - 1
        if 0 in (i, j):
            row = np.prod([2 * n - 1 for n in sizes]) + (0 if j else 2 if i == j else 1)
        return q @ k + w[0][row, h]

    return equation


def continuous(w, q, k, i, j, h):
    """Of windows of 2 by 3 cells, in training 3 by 5 cells; nothing where it is of the prefix."""
    away = np.clip(np.subtract(cells(i), cells(j)), [-1, -2], [1, 2])
    share = np.sign(away) * np.log2(1 + 8 * np.abs(away) / [2, 4]) / np.log2(8)
    found = 16 / (1 + np.exp(-np.maximum(share @ w[0] + w[1], 0) @ w[2][:, h]))
    return q @ k + found * (0 not in (i, j))


def decomposed(w, q, k, i, j, h):
    """Tables of three differences of rows, and of five of columns; nothing for the prefix."""
    down, right = np.clip(np.subtract(cells(i), cells(j)), [-1, -2], [1, 2])
    tables = w[0][down + 1] + w[1][right + 2]
    return q @ k + K**0.5 * q @ tables * (0 not in (i, j))


def sections(w, q, k, i, j, h):
    """Of pairs with the column, the row and twice the column; columns count from the row on."""
    both = [np.take((r, r + c), [1, 0, 1, 1]) * theta(K, 10000) for r, c in map(cells, (i, j))]
    return turned(q, both[0]) @ turned(k, both[1])


def axial(dim, wavelength, factor=1, **layout):
    def equation(w, q, k, i, j, h):
        angles = [
            [c / factor * x for c in cells(at) for x in theta(dim // 2, wavelength)]
            for at in (i, j)
        ]
        return turned(q, angles[0], **layout) @ turned(k, angles[1], **layout)

    return equation


def mixed(**layout):
    def equation(w, q, k, i, j, h):
        angles = [np.asarray(cells(at)) @ w[0][h // (H // G)] for at in (i, j)]
        return turned(q, angles[0], **layout) @ turned(k, angles[1], **layout)

    return equation


def rotary(w, q, k, i, j, h):
    return turned(q, i * theta(K, 30.0)) @ turned(k, j * theta(K, 30.0))


def kerple(w, q, k, i, j, h):
    rates = np.exp([w[0][h], w[1][h]])
    return q @ k - rates[0] * np.log(1 + rates[1] * abs(i - j))


def kerple_power(w, q, k, i, j, h):
    rate, power = np.exp(w[0][h]), 2 / (1 + np.exp(-w[1][h]))
    return q @ k - rate * abs(i - j) ** power


def alibi(w, q, k, i, j, h):
    return q @ k - definition.slopes(H, 4)[h] * abs(i - j)


def cope(w, q, keys, i, at, h, visible, s):
    """Of a query q √K, and all keys."""
    gates = [1 / (1 + np.exp(-q @ k)) for k, j in zip(keys, at, strict=True)]
    between = visible & (at >= at[s]) & (at <= i)
    count = min(np.sum(np.asarray(gates)[between]), 2)
    low = min(int(count), 1)
    term = (1 - count + low) * w[0][low] + (count - low) * w[0][low + 1]
    return q @ keys[s] + q @ term * K**0.5


# How each is made, and its score of a query that is divided by √K, a key, their positions, a head.
EQUATIONS = {
    "alibi": (lambda: positions.ALiBi(4), alibi),
    "relative_bias": (lambda: positions.RelativeBias(8, 6), t5((8, 6, True))),
    "relative_bias-past": (lambda: positions.RelativeBias(5, 9, False), t5((5, 9, False))),
    "kerple": (positions.Kerple, kerple),
    "kerple-power": (lambda: positions.Kerple("power"), kerple_power),
    "fire": (lambda: positions.FIRE(3, threshold=2.5, scale=0.5), fire),
    "xpos": (lambda: positions.XPos(3.0, gamma=0.2, dim=2), xpos),
    "transformer_xl": (lambda: positions.TransformerXL(6, 50), transformer_xl(99)),
    "clipped_xl": (lambda: positions.TransformerXL(6, 50, max_distance=2), transformer_xl(2)),
    "cope": (lambda: positions.CoPE(2), cope),
    "disentangled": (lambda: positions.Disentangled(8, 6), disentangled()),
    "c2p": (lambda: positions.Disentangled(8, 6, terms=["c2p"]), disentangled(p2c=0)),
    "disentangled-p2c": (
        lambda: positions.Disentangled(8, 6, terms=["p2c"], own_projections=True),
        disentangled(c2p=0),
    ),
    "shaw": (lambda: positions.Shaw(3, use_values=False), shaw(False)),
    "shaw-values": (lambda: positions.Shaw(3), shaw(False)),
    "shaw-heads": (lambda: positions.Shaw(3, per_head=True), shaw(True)),
    "shaw-sides": (lambda: positions.Shaw((1, 3)), shaw(False, 1, 3)),
    "shaw-past": (lambda: positions.Shaw([2, 0], per_head=True), shaw(True, 2, 0)),
    "grid": (lambda: positions.GridRelativeBias(**GRID), offsets((2, 3))),
    "grid-sizes": (lambda: positions.GridRelativeBias(**GRID, size=(1, 2)), offsets((1, 2))),
    "grid-decomposed": (
        lambda: positions.GridRelativeBias(**GRID, decomposed=True),
        decomposed,
    ),
    "grid-continuous": (
        lambda: positions.ContinuousGridBias(**GRID, trained_size=(3, 5), units=4),
        continuous,
    ),
    "axial": (lambda: positions.AxialRotary(**GRID, max_wavelength=100), axial(K, 100)),
    "axial-interleaved": (
        lambda: positions.AxialRotary(
            **GRID, layout="interleaved", dim=4, scaling="linear", factor=2.0
        ),
        axial(4, 10000, 2, layout="interleaved"),
    ),
    "axial-sections": (
        lambda: positions.AxialRotary(**GRID, axes=[1, 0, 1, 1], diagonal=True),
        sections,
    ),
    "mixed": (lambda: positions.MixedRotary(**GRID), mixed()),
    "mixed-interleaved": (
        lambda: positions.MixedRotary(**GRID, layout="interleaved", dim=4),
        mixed(layout="interleaved"),
    ),
    "rotary": (lambda: positions.Rotary(30.0), rotary),
}
# Padding at the end of one row. Rows count from anywhere, in any order, and may skip places.
REAL = np.arange(T) < np.array([[T], [4]])
ROWS = np.array([[3, 1, 0, 8, 2, 5, 30], [12, 13, 11, 15, 16, 40, 9]])


def expected_of(layer, equation, x, at, window):
    """The output and the weights by the equation, of keys that are not after nor far before."""
    query, key, value = (
        numpy(a).astype("float64") for a in layer.heads.split_all(*map(keras.ops.array, [x] * 3))
    )
    key, value = (np.repeat(a, H // G, axis=2) for a in (key, value))
    back = at[:, :, None] - at[:, None]
    mask = (back >= 0) & (back <= window) & REAL[:, None]
    w = [numpy(weight).astype("float64") for weight in layer.position.weights]
    if isinstance(layer.position, positions.Disentangled):
        prefix = "_position_" * layer.position.own_projections or "_"
        kernels = [getattr(layer, f"{prefix}{role}_dense", None) for role in ("query", "key")]
        kernels = [np.zeros((D, G * K)) if d is None else numpy(d.kernel) for d in kernels]
        w = [np.einsum("nd,dhk->nhk", w[0], kernel.reshape(D, -1, K)) for kernel in kernels]
        w = [np.repeat(table, H // table.shape[1], axis=1) for table in w]
    scores = np.zeros((B, H, T, T))
    for b, h, t, s in zip(*np.nonzero(np.repeat(mask[:, None], H, axis=1)), strict=True):
        q, keys = query[b, t, h] * K**-0.5, key[b, :, h]
        if equation is cope:
            scores[b, h, t, s] = cope(w, q, keys, at[b, t], at[b], h, mask[b, t], s)
        else:
            scores[b, h, t, s] = equation(w, q, keys[s], int(at[b, t]), int(at[b, s]), h)
    moved = 0.0
    if isinstance(layer.position, positions.Shaw) and layer.position.use_values:
        # Of pairs, with an axis of heads, of which there may be one.
        left, right = np.broadcast_to(layer.position.max_distance, 2)
        moved = np.moveaxis(w[1][:, np.clip(-back, -left, right) + left], 0, 1)
    mask = mask[:, None]
    return definition.attend(0 * query, key, value, bias=scores, mask=mask, value_offsets=moved)


@pytest.mark.parametrize("kind", EQUATIONS)
def test_a_layer_is_the_equation(kind):
    make, equation = EQUATIONS[kind]
    x, in_order = random(B, T, D), np.tile(np.arange(T), (B, 1))
    given = {"value_mask": REAL, "return_attention_scores": True}
    for window in (3, None):
        pattern = None if window is None else patterns.SlidingWindow(window, 0)
        options = {"num_key_value_heads": G, "value_dim": V, "pattern": pattern}
        layer = Attention(H, K, position=make(), use_bias=False, **options)
        layer.build((B, T, D), (B, T, D))
        layer.set_weights([random(*w.shape, seed=n) / 2 for n, w in enumerate(layer.weights)])
        at = ROWS if window is None else in_order
        expected, weights = expected_of(layer, equation, x, at, window or T * T)
        calls = [{"positions": at}] + [{}] * (at is in_order)

        def outputs(x, layer=layer, calls=calls):
            return [layer(x, use_causal_mask=True, **given, **call) for call in calls]

        for output, found in compiled(outputs, x):
            np.testing.assert_allclose(numpy(found), weights, rtol=1e-4, atol=1e-5)
            expected = expected.reshape(B, T, H * V)
            np.testing.assert_allclose(numpy(output), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("start", [0, 10**6])
def test_xpos_neither_overflows_nor_depends_on_where_a_text_begins(start):
    position, size = positions.XPos(), 4
    query, key = random(1, 3, 1, size, seed=1), random(1, 4, 1, size, seed=2)
    at, key_at = start + 50000 + np.arange(3), start + 50000 - np.array([0, 10, 900, 50000])
    encoded = position.encode(*map(keras.ops.array, (query, key)), at, key_at)
    found = np.einsum("bthk,bshk->ts", *(numpy(x).astype("float64") for x in encoded))
    scales = (np.arange(2) / 2 + 0.4) / 1.4
    for t, s in np.ndindex(found.shape):
        apart = at[t] - key_at[s]
        q = turned(query[0, t, 0].astype("float64"), np.array([1.0, 0.01]) * apart)
        product = q * key[0, s, 0].astype("float64") * np.tile(scales ** (apart / 512), 2)
        np.testing.assert_allclose(found[t, s], product.sum(), rtol=1e-4, atol=1e-5)
