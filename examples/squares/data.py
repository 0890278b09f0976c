"""Noisy squares as sequences of four corners."""

import numpy as np


def squares(count, rng, noise=0.05):
    """Corners in the order they are walked, (count, 4, 2), as float32.

    Centers lie round the origin and near it, half diagonals between 0.8 and 1.2. A square starts at
    any angle and goes round either way: which way is to be seen from the first two corners alone,
    because the origin is inside (in all but very few squares). Each corner is then moved by noise.

    Args:
        count: number of squares.
        rng: the NumPy random generator to draw from.
        noise: standard deviation of the noise in each coordinate.
    """
    start = rng.uniform(0, 2 * np.pi, (count, 1))
    angle = rng.choice([-1, 1], (count, 1)) * np.pi / 2
    angles = start + angle * np.arange(4)
    half_diagonal = rng.uniform(0.8, 1.2, (count, 1, 1))
    center = 0.15 * rng.normal(size=(count, 1, 2))
    corners = center + half_diagonal * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return (corners + noise * rng.normal(size=corners.shape)).astype("float32")


def by_rule(first):
    """The last two corners by geometry, (count, 2, 2), from the first two.

    The square continues toward the side of its first edge on which the origin lies.
    """
    a, b = first[:, 0], first[:, 1]
    edge = b - a
    left = np.stack([-edge[:, 1], edge[:, 0]], axis=-1)
    side = np.sign(np.sum(left * -(a + b), axis=-1, keepdims=True))
    return np.stack([b + side * left, a + side * left], axis=1)
