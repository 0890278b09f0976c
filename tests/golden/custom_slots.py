"""Slots that a user might have written and registered."""

import keras

from keras_attention import normalizations, patterns, positions, regularizers, scores

ops = keras.ops


@keras.saving.register_keras_serializable(package="golden")
class Distance(scores.Score):
    """Minus the squared distance of query and key, times a learned number."""

    def __init__(self, start=0.5, **kwargs):
        super().__init__(**kwargs)
        self.start = start

    def build(self, query_shape, key_shape):
        start = keras.initializers.Constant(self.start)
        self.factor_of_heads = self.add_weight(
            name="factor", shape=(query_shape[2],), initializer=start
        )

    def call(self, query, key):
        squares = ops.sum(ops.square(query[:, :, None] - key[:, None]), axis=-1)
        return -ops.transpose(squares * self.factor_of_heads, (0, 3, 1, 2))


@keras.saving.register_keras_serializable(package="golden")
class SmoothReLU(normalizations.Normalization):
    def normalize(self, scores, mask):
        weights = ops.softplus(scores)
        return weights / (1e-3 + ops.sum(weights, axis=-1, keepdims=True))


@keras.saving.register_keras_serializable(package="golden")
class Near(patterns.Pattern):
    def __init__(self, distance):
        self.distance = distance

    def attends(self, i, j):
        return ops.abs(i - j) <= self.distance


@keras.saving.register_keras_serializable(package="golden")
class Nearer(positions.Position):
    def __init__(self, slope=0.3, **kwargs):
        super().__init__(**kwargs)
        self.slope = slope

    def bias(self, i, j, num_heads):
        return -self.slope * ops.cast(ops.abs(i - j), "float32")


@keras.saving.register_keras_serializable(package="golden")
class Peaked(regularizers.Regularizer):
    def __call__(self, weights, mask):
        return -0.01 * ops.mean(ops.max(weights, axis=-1))


def own_slots(**slots):
    return {
        "score": Distance(0.25),
        "normalization": SmoothReLU(),
        "pattern": Near(2) & ~Near(0),
        "position": Nearer(0.2),
        "scores_regularizer": Peaked(),
        **slots,
    }
