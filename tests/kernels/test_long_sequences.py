"""16,384 positions with every option: some rows, and the gradients that they alone have."""

import keras
import numpy as np
import pytest

from keras_attention import ops, patterns, positions
from tests.gradients import gradients
from tests.problems import random

pytestmark = pytest.mark.slow

T, SIZE = 16_384, 4
ROWS = np.array([0, 1, 5000, 8191, 8192, 16_000, T - 1])
KEYS = np.random.default_rng(0).random((1, 1, 1, T)) < 0.8
SEGMENTS = np.sort(np.random.default_rng(1).integers(0, 3, (1, T)), axis=1).astype("int32")
OPTIONS = {
    "window": {"pattern": patterns.SlidingWindow(100, 5)},
    "strided": {"pattern": patterns.Strided(64)},
    "rotary": {"position": positions.Rotary()},
    "relative bias": {"position": positions.RelativeBias(32, 128)},
    "shaw": {"position": positions.Shaw(16)},
    "all": {
        "mask": KEYS,
        "pattern": "causal",
        "bias": random(1, 1, 1, T),
        "logit_soft_cap": 3.0,
        "sink": np.array([0.3], "float32"),
        "segment_ids": (SEGMENTS, SEGMENTS),
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_long_sequences_are_the_reference(name):
    options = dict(OPTIONS[name])
    position = options.get("position")
    if position is not None:
        shape = (1, T, 1, SIZE)
        position.build_values(shape)
        position.build(shape, shape)
    query, key, value = (random(1, T, 1, SIZE) * scale for scale in (1.0, 0.5, 2.0))
    upstream = random(1, len(ROWS), 1, SIZE)

    def rows(query, key, value):
        output = ops.attend(query, key, value, **options)
        return keras.ops.multiply(keras.ops.take(output, ROWS, axis=1), upstream)

    few = dict(options, query_positions=ROWS.astype("int32"), kernel="reference")
    if "segment_ids" in few:
        few["segment_ids"] = (SEGMENTS[:, ROWS], SEGMENTS)

    def expected(query, key, value):
        query = keras.ops.take(query, ROWS, axis=1)
        return keras.ops.multiply(ops.attend(query, key, value, **few), upstream)

    arrays = (query, key, value)
    np.testing.assert_allclose(
        *(keras.ops.convert_to_numpy(f(*arrays)) for f in (rows, expected)), atol=2e-5
    )
    for one, other in zip(gradients(rows, arrays), gradients(expected, arrays), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
