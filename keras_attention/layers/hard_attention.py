"""`HardAttention`: each query attends to one key; and `ReinforceLoss`, which trains choices."""

from __future__ import annotations

from typing import Any

import keras

from keras_attention import normalizations, saving, shapes
from keras_attention.hints import Tensor, Unpack
from keras_attention.layers.attention import Attention
from keras_attention.layers.options import AttentionOptions

ops = keras.ops


@saving.register
class HardAttention(Attention):
    r"""Hard attention of Xu et al. 2015, section 4.1: all weight on one key.

    In training key s is sampled with probability `softmax(score)[s]`; at inference the key with
    the largest score is selected. `Attention` with the normalization `Hard(gradient, temperature)`.

    Args:
        num_heads, key_dim, value_dim: as in `Attention`.
        gradient: "straight_through" (Gumbel-softmax, Jang et al. 2017): the layer trains with any
            loss. "reinforce" (Williams 1992, as in Xu et al.): the layer also returns the
            log-probability of its choices, for a `ReinforceLoss`.
        temperature: of the straight-through gradient.
        **kwargs: all other arguments of `Attention` but `normalization` and `use_sink`. `seed`
            makes the choices reproducible.

    Call arguments are those of `Attention`.

    Returns:
        As `Attention`, scores being ones and zeros. With `gradient="reinforce"` the
        log-probability, (B, H, T), comes last: `(output, log_probability)` or
        `(output, scores, log_probability)`. It is 0 for a query with no key.

    Raises:
        ValueError, TypeError: as `Attention` and `normalizations.Hard`.

    Example:

    >>> import keras, keras_attention
    >>> queries, memory = keras.random.normal((2, 3, 8)), keras.random.normal((2, 5, 8))
    >>> layer = keras_attention.HardAttention(seed=1)
    >>> output, scores = layer(queries, memory, return_attention_scores=True, training=True)
    >>> bool(keras.ops.all(keras.ops.sum(scores == 1, axis=-1) == 1))
    True
    """

    _fixed_arguments = ("normalization", "use_sink")

    returns_log_probability = True
    normalization: normalizations.Hard

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        gradient: normalizations.Gradient = "straight_through",
        temperature: float = 1.0,
        **kwargs: Unpack[AttentionOptions],
    ):
        saving.check_free(type(self), kwargs)
        kwargs["normalization"] = normalizations.Hard(gradient, temperature)
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        self.gradient = self.normalization.gradient
        self.temperature = self.normalization.temperature


@saving.register
class ReinforceLoss(saving.ConfigurableLayer):
    r"""Adds the loss whose gradient is that of REINFORCE (Williams 1992; Xu et al. 2015).

    `loss = −factor · mean_b (r_b − baseline) · l_b`, where `l_b = Σ log_probability_b`, and
    `r_b = reward_b − entropy_factor · l_b` is treated as a constant. In training the baseline
    is a moving mean, `baseline ← momentum · baseline + (1 − momentum) · mean(r)`, as in section
    4.1 of Xu et al.; it makes the gradient less noisy and does not bias it.

    Args:
        factor: λ_r of the paper, the weight of this loss relative to others.
        momentum: of the baseline, in [0, 1).
        entropy_factor: weight of the entropy of the choices relative to the reward (λ_e of the
            paper, whose second term −l_b estimates). It keeps choices from settling too early.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        log_probability: (B, …), of the choices of each row, as `HardAttention` returns it.
        reward: (B,) or (B, 1), higher is better, such as the log-likelihood of the targets.
        training: whether to update the baseline.

    Returns:
        `log_probability`, unchanged. Let an output of the model depend on it, or call the layer in
        a subclassed model: a functional model drops layers that lead to no output.

    Raises:
        ValueError: `factor` is not positive, `momentum` is not in [0, 1), or the reward is not one
            number per row.

    Example: a classifier that attends to one position of its input.

    >>> import keras, keras_attention
    >>> x, label = keras.Input((9, 8)), keras.Input((1,), dtype="int32")
    >>> query = keras.layers.GlobalAveragePooling1D(keepdims=True)(x)
    >>> attention = keras_attention.HardAttention(2, 4, gradient="reinforce")
    >>> seen, log_probability = attention(query, x)
    >>> guess = keras.layers.Dense(3, activation="softmax")(keras.layers.Flatten()(seen))
    >>> reward = -keras.losses.sparse_categorical_crossentropy(label[:, 0], guess)
    >>> choice = keras_attention.ReinforceLoss(0.5)(log_probability, reward)
    >>> training_model = keras.Model([x, label], [guess, choice])
    >>> training_model.compile("adam", ["sparse_categorical_crossentropy", None])
    >>> model = keras.Model(x, guess)            # the same weights, for use
    """

    def __init__(
        self, factor: float = 1.0, momentum: float = 0.9, entropy_factor: float = 0.0, **kwargs: Any
    ):
        # In half precision a reward would be rounded, and a large one infinite.
        super().__init__(autocast=False, **kwargs)
        self.factor = shapes.check_number("factor", factor, above=0)
        self.momentum = shapes.check_rate("momentum", momentum)
        self.entropy_factor = shapes.check_number("entropy_factor", entropy_factor)

    def build(self, log_probability_shape, reward_shape=None):
        self.baseline = self.add_weight(
            name="baseline", shape=(), initializer="zeros", trainable=False, autocast=False
        )

    def call(self, log_probability: Tensor, reward: Tensor, training: bool | None = None) -> Tensor:
        self._check(log_probability.shape, reward.shape)
        wide = shapes.accumulation_dtype(log_probability, reward)
        of_choices = ops.cast(log_probability, wide)
        for _ in range(len(log_probability.shape) - 1):
            of_choices = ops.sum(of_choices, axis=-1)
        reward = ops.cast(ops.reshape(reward, (-1,)), wide)
        reward = ops.stop_gradient(reward - self.entropy_factor * of_choices)
        baseline = ops.cast(self.baseline, wide)
        advantage = reward - baseline
        self.add_loss(-self.factor * ops.mean(advantage * of_choices))
        if training:
            moved = self.momentum * baseline + (1 - self.momentum) * ops.mean(reward)
            self.baseline.assign(ops.cast(moved, self.baseline.dtype))
        return log_probability

    def _check(self, log_probability_shape, reward_shape):
        if len(reward_shape) not in (1, 2) or tuple(reward_shape[1:]) not in ((), (1,)):
            raise ValueError(
                "`reward` must be one number a row, (B,) or (B, 1). "
                f"Received: reward.shape={tuple(reward_shape)}"
            )
        shapes.check_same(
            "Batch sizes", log_probability=log_probability_shape[0], reward=reward_shape[0]
        )

    def compute_output_spec(self, log_probability, reward, training=None):
        self._check(log_probability.shape, reward.shape)
        return keras.KerasTensor(log_probability.shape, dtype=log_probability.dtype)
