"""Presets: layers that set slots of `Attention`, and the loss that trains choices of one."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal, get_args

import keras
from keras import ops

from keras_attention import normalizations, patterns, positions, saving, scores
from keras_attention.core.hints import Constraint, Initializer, Regularizer, Tensor, Unpack
from keras_attention.layers.attention import Attention
from keras_attention.layers.options import AttentionOptions, ProjectionOptions
from keras_attention.sequences import shapes


class SelfAttention(Attention):
    """Attention of a sequence over itself: `Attention` with one input.

    `SelfAttention(8, 16)(x)` is `Attention(8, 16)([x, x, x])`, and with `causal=True` each position
    sees only itself and those before it. There is no output projection: `docs/heads.md#widths`
    compares it with `MultiHeadAttention`.

    Args:
        causal: whether position t sees only positions up to t.
        **kwargs: all other arguments of `Attention`.

    Call arguments, results and errors are those of `Attention`, without `value` and `key`.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 128))
    >>> keras_attention.SelfAttention(8, 16, causal=True)(x).shape
    (2, 5, 128)
    """

    own_traits: ClassVar = {"one_sequence": True}

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        causal: bool = False,
        **kwargs: Unpack[AttentionOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        self.causal = shapes.check_flag("causal", causal)
        self.preset_pattern = patterns.Causal() if self.causal else None


class LocalSelfAttention(SelfAttention):
    """Self-attention to `neighbors` keys on each side, `rate` positions apart.

    `SelfAttention` with the pattern `SlidingWindow(n · r, n · r) & Dilated(r)`: query i sees key j
    if |i − j| ≤ n · r and (i − j) mod r = 0.

    Args:
        neighbors, rate: n, the number of keys on each side, and r, the distance between them.
        **kwargs: all other arguments of `SelfAttention`. A `pattern` is combined with the layer's.

    Call arguments, results and errors are those of `SelfAttention`.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 12, 8))
    >>> layer = keras_attention.LocalSelfAttention(2, 4, neighbors=1, rate=3)
    >>> scores = layer(x, return_attention_scores=True)[1]
    >>> [s for s in range(12) if scores[0, 0, 6, s] > 0]
    [3, 6, 9]
    """

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        *,
        neighbors: int,
        rate: int = 1,
        causal: bool = False,
        **kwargs: Unpack[AttentionOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, causal, **kwargs)
        self.neighbors = shapes.check_count("neighbors", neighbors)
        self.rate = shapes.check_count("rate", rate)
        reach = self.neighbors * self.rate
        near = patterns.SlidingWindow(reach, reach) & patterns.Dilated(self.rate)
        self.preset_pattern = patterns.every(self.preset_pattern, near)


class _ByRate(SelfAttention, saved=False):
    """The base of both: a pattern of one rate."""

    _near: Callable[[int], patterns.Pattern]

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        *,
        rate: int,
        causal: bool = False,
        **kwargs: Unpack[AttentionOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, causal, **kwargs)
        self.rate = shapes.check_count("rate", rate)
        self.preset_pattern = patterns.every(self.preset_pattern, self._near(self.rate))


class AtrousSelfAttention(_ByRate):
    """Self-attention to every `rate`-th key, counted from the query.

    `SelfAttention` with the pattern `Dilated(r)`: query i sees key j if (i − j) mod r = 0.

    Args:
        rate: r, the distance between keys, a positive integer.
        **kwargs: all other arguments of `SelfAttention`. A `pattern` is combined with the layer's.

    Call arguments, results and errors are those of `SelfAttention`.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 12, 8))
    >>> layer = keras_attention.AtrousSelfAttention(2, 4, rate=4)
    >>> scores = layer(x, return_attention_scores=True)[1]
    >>> [s for s in range(12) if scores[0, 0, 6, s] > 0]
    [2, 6, 10]
    """

    _near = patterns.Dilated


class SparseSelfAttention(_ByRate):
    """Self-attention to every `rate`-th key and to the near ones (Child et al. 2019, section 4.3).

    `SelfAttention` with the pattern `Strided(r)`: query i sees key j if (i − j) mod r = 0 or
    |i − j| < r. With r near √T, two layers connect any two positions, and each sees O(√T) keys.

    Args:
        rate: r, the stride, a positive integer.
        **kwargs: all other arguments of `SelfAttention`. A `pattern` is combined with the layer's.

    Call arguments, results and errors are those of `SelfAttention`.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 12, 8))
    >>> layer = keras_attention.SparseSelfAttention(2, 4, rate=3, causal=True)
    >>> scores = layer(x, return_attention_scores=True)[1]
    >>> [s for s in range(12) if scores[0, 0, 8, s] > 0]
    [2, 5, 6, 7, 8]
    """

    _near = patterns.Strided


class RelativePositionAttention(Attention):
    """Attention with the relative positions of Shaw et al. 2018, equations 3 and 4.

    `Attention` with the position `Shaw(max_distance)`: keys and values have learned embeddings of
    the distance between the two positions, clipped at ±max_distance.

    Args:
        max_distance: k of the paper: 2k + 1 embeddings; distances beyond k are clipped to k.
        use_values: whether the values have embeddings too.
        per_head: whether each head has its own embeddings; the paper shares them.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of the embeddings.
        **kwargs: all other arguments of `Attention` but `position`.

    Call arguments, results and errors are those of `Attention` and `positions.Shaw`.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 12, 8))
    >>> layer = keras_attention.RelativePositionAttention(2, 4, max_distance=3)
    >>> layer(x).shape, layer(x, keras.random.normal((2, 5, 8))).shape
    ((2, 12, 8), (2, 12, 8))
    """

    _fixed_arguments = ("position",)

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        max_distance: int,
        value_dim: int | None = None,
        use_values: bool = True,
        per_head: bool = False,
        embeddings_initializer: Initializer = "glorot_uniform",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        **kwargs: Unpack[AttentionOptions],
    ):
        saving.check_free(type(self), kwargs)
        given = embeddings_initializer, embeddings_regularizer, embeddings_constraint
        position = positions.Shaw(max_distance, use_values, per_head, *given, name="shaw")
        kwargs["position"] = position
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        weights = "embeddings_initializer", "embeddings_regularizer", "embeddings_constraint"
        self._keep_of(position, "max_distance", "use_values", "per_head", *weights)


Mode = Literal["monotonic", "predictive"]


@saving.renamed(centre_initializer="center_initializer")
class LocalAttention(Attention):
    r"""Local attention of Luong et al. 2015, section 3.2: a window of 2D + 1 keys around a center.

    "monotonic" (local-m): the center of query t is t itself. "predictive" (local-p): the query
    predicts it, `p_t = S · sigmoid(v_pᵀ tanh(W_p q_t))` (equation 9), and near keys weigh more,
    `weight[t, s] = softmax(score)[t, s] · exp(−(s − p_t)² / (2σ²))` with σ = D / 2 (equation 10),
    the softmax being over the keys of the window. Weights then sum to less than one. The center
    gets its gradient from the Gaussian.

    Args:
        window: D, the number of keys on each side of the center.
        mode: "monotonic" or "predictive".
        units: rows of W_p; defaults to the features of a query head.
        center_initializer: of W_p and v_p.
        **kwargs: all other arguments of `Attention`. Each head has its own center.

    Call arguments, results and errors are those of `Attention`. S counts the real keys of each row,
    and s is the index of a key among them, so that padding on either side changes nothing;
    monotonic windows use `positions`. Predicted ones take no `segment_ids`.

    >>> import keras, keras_attention
    >>> queries, memory = keras.random.normal((2, 3, 8)), keras.random.normal((2, 20, 8))
    >>> layer = keras_attention.LocalAttention(window=2, mode="predictive")
    >>> output, scores = layer(queries, memory, return_attention_scores=True)
    >>> output.shape, int(keras.ops.max(keras.ops.sum(scores > 0, axis=-1))) <= 5
    ((2, 3, 8), True)
    """

    def __init__(
        self,
        window: int,
        mode: Mode = "monotonic",
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        score: scores.ScoreLike = "general",
        units: int | None = None,
        center_initializer: Initializer = "glorot_uniform",
        **kwargs: Unpack[ProjectionOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, score, **kwargs)
        self.window = shapes.check_count("window", window)
        self.mode = shapes.check_choice("mode", mode, get_args(Mode))
        self.units = shapes.check_optional_count("units", units)
        self.center_initializer = keras.initializers.get(center_initializer)
        if self.mode == "monotonic":
            self.preset_pattern = patterns.SlidingWindow(self.window, self.window)
        else:
            self.preset_position = PredictedCenter(self)

    @functools.cached_property
    def traits(self):
        if self.mode == "monotonic":
            return super().traits
        refusal = "with mode='predictive' has centers anywhere in a row: give each text its own"
        return super().traits._replace(refused=("segment_ids",), refusal=refusal)


class PredictedCenter:
    """The window of Luong et al.'s local-p: a center per query, and a Gaussian around it.

    It has what `Attention` uses of a `Position`, but is no layer of its own: the weights are
    attributes of the `LocalAttention`, where saved files expect them.
    """

    no_decoding_reason = "mode='predictive' depends on the number of keys"

    def __init__(self, layer):
        self.layer = layer

    def weights(self, query_shape):
        """The weights of the center of queries (B, T, H, K), by their attributes of the layer."""
        heads, size = query_shape[2:]
        units, found = self.layer.units or size, {}
        # British, as in 0.1.0: saved files find the weights by these names.
        sizes = {"centre_kernel": (heads, size, units), "centre_vector": (heads, units, 1)}
        for name, shape in sizes.items():
            start = saving.clone_initializer(self.layer.center_initializer)
            # The center is computed in float32, like scores: half precision cannot count to 4096.
            found[name] = self.layer.add_weight(shape, start, name=name, autocast=False)
        return found

    def into_spec(self, spec, query, key, key_mask=None):
        """The `AttentionSpec` with the window and the Gaussian around the centers."""
        layer, wide = self.layer, shapes.accumulation_dtype(query)
        given = query, layer.centre_kernel, layer.centre_vector
        query, kernel, vector = (ops.cast(array, wide) for array in given)
        hidden = ops.tanh(ops.einsum("bthk,hku->bhtu", query, kernel))
        share = ops.sigmoid(ops.einsum("bhtu,huo->bhto", hidden, vector))
        if key_mask is None:
            length = ops.shape(key)[1]
            at, length = ops.arange(length)[None, None, None], ops.cast(length, wide)
        else:
            real = ops.cast(key_mask, wide)
            # The position among the real keys. Padding shares one, but is masked.
            at = (ops.cumsum(real, axis=-1) - 1.0)[:, None, None]
            length = ops.sum(real, axis=-1)[:, None, None, None]
        # The offset of each key from the center, (B, H, T, S).
        distance = ops.cast(at, wide) - share * length
        near = ops.less_equal(ops.abs(distance), float(layer.window))
        multiplier = ops.exp(-2.0 * ops.square(distance / layer.window))
        if spec.multiplier is not None:
            multiplier = multiplier * spec.multiplier
        return spec.replace(masks=(*spec.masks, near), multiplier=multiplier)


class HardAttention(Attention):
    r"""Hard attention of Xu et al. 2015, section 4.1: all weight on one key.

    In training key s is sampled with probability `softmax(score)[s]`; at inference the key with
    the largest score is selected. `Attention` with the normalization `Hard(gradient, temperature)`.

    Args:
        gradient: "straight_through" (Gumbel-softmax, Jang et al. 2017): the layer trains with any
            loss. "reinforce" (Williams 1992, as in Xu et al.): the layer also returns the
            log-probability of its choices, for a `ReinforceLoss`.
        temperature: of the straight-through gradient.
        **kwargs: all other arguments of `Attention` but `normalization` and `use_sink`. `seed`
            makes the choices reproducible.

    Call arguments, results and errors are those of `Attention` and `normalizations.Hard`; scores
    are ones and zeros. With `gradient="reinforce"` the log-probability, (B, H, T), comes last:
    `(output, log_probability)` or `(output, scores, log_probability)`. It is 0 for a query with no
    key.

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
        self._keep_of(self.normalization, "gradient", "temperature")


class ReinforceLoss(saving.ConfigurableLayer):
    r"""Adds the loss whose gradient is that of REINFORCE (Williams 1992; Xu et al. 2015).

    `loss = −factor · mean_b (r_b − baseline) · l_b`, where `l_b = Σ log_probability_b`, and
    `r_b = reward_b − entropy_factor · l_b` is treated as a constant. In training the baseline
    is a moving mean, `baseline ← momentum · baseline + (1 − momentum) · mean(r)`, as in section
    4.1 of Xu et al.; it makes the gradient less noisy and does not bias it.

    Args:
        factor: λ_r of the paper, the weight of this loss relative to others.
        momentum: of the baseline, in [0, 1).
        entropy_factor: weight of the entropy of the choices, λ_e of the paper, relative to the
            reward. It keeps choices from settling too early.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        log_probability: (B, …), of the choices of each row, as `HardAttention` returns it.
        reward: (B,) or (B, 1), higher is better, such as the log-likelihood of the targets.
        training: whether to update the baseline.

    Returns:
        `log_probability`, unchanged. Let an output of the model depend on it, or call the layer in
        a subclassed model: a functional model drops layers that lead to no output.

    Raises:
        ValueError: a number is not as described, or the reward is not one number per row.

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
        self.factor = shapes.check_positive("factor", factor)
        self.momentum = shapes.check_rate("momentum", momentum)
        self.entropy_factor = shapes.check_number("entropy_factor", entropy_factor)

    def build(self, log_probability_shape, reward_shape=None):
        options = {"name": "baseline", "trainable": False, "autocast": False}
        self.baseline = self.add_weight((), "zeros", **options)

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
        self.add_loss(-self.factor * _mean(advantage * of_choices))
        if training:
            moved = baseline + (1 - self.momentum) * _mean(advantage)
            self.baseline.assign(ops.cast(moved, self.baseline.dtype))
        return log_probability

    def _check(self, log_probability_shape, reward_shape):
        if len(reward_shape) not in (1, 2) or tuple(reward_shape[1:]) not in ((), (1,)):
            raise ValueError(
                "`reward` must be one number a row, (B,) or (B, 1). "
                f"Received: reward.shape={tuple(reward_shape)}"
            )
        sizes = {"log_probability": log_probability_shape[0], "reward": reward_shape[0]}
        shapes.check_same("Batch sizes", **sizes)

    def compute_output_spec(self, log_probability, reward, training=None):
        self._check(log_probability.shape, reward.shape)
        return keras.KerasTensor(log_probability.shape, dtype=log_probability.dtype)


def _mean(numbers):
    """The mean of numbers (B,), 0 of no rows."""
    return ops.sum(numbers) / ops.maximum(ops.sum(ops.ones_like(numbers)), 1)
