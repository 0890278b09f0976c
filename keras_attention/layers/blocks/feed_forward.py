"""Networks of each position by itself: one for all, or a few of many experts."""

import functools
import math
import warnings
from typing import Any, Literal, get_args

import keras
from keras import ops

from keras_attention import activations, saving
from keras_attention.backend import backend
from keras_attention.core import parts
from keras_attention.core.hints import Activation, Initializer, Tensor
from keras_attention.layers.blocks.int8_kernels import Int8Kernels
from keras_attention.layers.heads import projections
from keras_attention.layers.heads.projections import Dropout
from keras_attention.sequences import inputs, masks, shapes


class FeedForward(saving.ConfigurableLayer):
    r"""Two projections with an activation between, applied to each position.

    `act(x W_1 + b_1) W_2 + b_2` (Vaswani et al. 2017, equation 2), or gated,
    `(act(x W_g + b_g) ⊙ (x W_1 + b_1)) W_2 + b_2` (Shazeer 2020: GEGLU with "gelu", SwiGLU with
    "silu").

    Args:
        intermediate_dim: features between the projections.
        activation: a Keras activation, or "gelu_tanh", "quick_gelu", "relu_squared".
        gated: whether the activation is applied to a separate gate.
        dropout, seed: rate and seed of the dropout before the second projection.
        output_dim: features of the output; defaults to those of the input.
        use_bias: whether the projections have biases.
        kernel_initializer, bias_initializer: of the projections.
        wide_output: whether, in float16, whose numbers end at 65504, the second projection and the
            output are float32, as T5's are; without effect in other dtypes.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (..., D).
        training: whether to apply dropout.

    Returns:
        (..., output_dim), carrying the mask of `x`.

    Raises:
        ValueError: a size or the rate is not as described.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 16))
    >>> keras_attention.FeedForward(64, "silu", gated=True)(x).shape
    (2, 5, 16)
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: Activation = "relu",
        gated: bool = False,
        dropout: float = 0.0,
        output_dim: int | None = None,
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        seed: int | None = None,
        wide_output: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.wide_output = shapes.check_flag("wide_output", wide_output)
        self.intermediate_dim = shapes.check_count("intermediate_dim", intermediate_dim)
        self.output_dim = shapes.check_optional_count("output_dim", output_dim)
        self.gated = shapes.check_flag("gated", gated)
        self.use_bias = shapes.check_flag("use_bias", use_bias)
        self.activation = activations.get(activation)
        self.dropout = shapes.check_rate("dropout", dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = shapes.check_seed("seed", seed)

    def build(self, x_shape):
        size = self.intermediate_dim
        shapes.check_memory("intermediate", (x_shape[-1], size))
        shapes.check_memory("output", (size, self.output_dim))
        made = functools.partial(projections.dense, self, use_bias=self.use_bias)
        first, second = (None, self.activation) if self.gated else (self.activation, None)
        if self.gated:
            self._gate_dense = made("gate", size, x_shape, activation=second)
        self._intermediate_dense = made("intermediate", size, x_shape, activation=first)
        dim, policy = self.output_dim or x_shape[-1], shapes.wide_policy(self, self.wide_output)
        self._output_dense = made("output", dim, (*x_shape[:-1], size), dtype=policy)
        self._dropout_layer = Dropout(self.dropout, seed=self.seed, dtype=self.dtype_policy)

    gate_dense = parts.part("_gate_dense", "The projection of the gate, if `gated`.")
    intermediate_dense = parts.part("_intermediate_dense", "The projection to features between.")
    output_dense = parts.part("_output_dense", "The projection to the output.")

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        x = masks.clear(x, masks.implicit(x))
        if self.gated:
            hidden = projections.gated(self, self._intermediate_dense, self._gate_dense, x)
        else:
            hidden = projections.apply(self, self._intermediate_dense, x)
        hidden = self._dropout_layer.drop(hidden, training)
        return projections.apply(self, self._output_dense, hidden)

    compute_mask = masks.passed_on

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], self.output_dim or x_shape[-1])

    def compute_output_spec(self, x, training=None):
        dtype = shapes.wide_policy(self, self.wide_output).compute_dtype
        return keras.KerasTensor(self.compute_output_shape(x.shape), dtype)


def network(layer, intermediate_dim, name):
    """A `FeedForward` inside a layer, with the arguments that the layer has."""
    return FeedForward(
        intermediate_dim,
        layer.activation,
        layer.gated,
        use_bias=layer.use_bias in (True, "qvo"),
        kernel_initializer=layer.kernel_initializer,
        bias_initializer=layer.bias_initializer,
        wide_output=getattr(layer, "wide_residual", False),
        name=name,
        dtype=layer.dtype_policy,
    )


Scoring = Literal["softmax", "sigmoid"]


class MixtureOfExperts(saving.ConfigurableLayer):
    r"""The sum of the outputs of `top_k` of E feed-forward networks, which a router chooses.

    For each position, with r = x W_r + b_r and T the `top_k` largest of these numbers
    (Shazeer et al. 2017, "Outrageously large neural networks", equations 2, 3 and 5, without
    noise),

        y = Σ_{e ∈ T} p_e f_e(x),    p = softmax of r over T

    With `normalize_weights=False`, p is the softmax of r over all experts (Fedus et al. 2021,
    "Switch Transformers", equations 1 and 2): the weights of T are then as they are, and sum to
    less than 1. **With `top_k=1` train a router so**: over T, its only weight is 1 whatever r is,
    and the router has no gradient.

    The experts f are as in `FeedForward`. A gated one, with g and u for its two projections, is
    `(act(min(g, limit)) ⊙ (clip(u, −limit, limit) + offset)) W_2 + b_2`; gpt-oss has
    activation="quick_gelu", limit=7 and offset=1.

    Every position gets the experts that it chose: there is no capacity, and no loss that balances
    them. All experts are computed for all positions, unless the positions choose fewer experts
    than there are, as in generation, where only the weights of these are read.

    Args:
        num_experts, top_k: E, and how many of these each position uses.
        intermediate_dim, activation, gated: of each expert, as in `FeedForward`.
        use_bias: whether router and experts have biases.
        limit, offset: of gated experts: the bound of the projections, or None, and a number that
            is added to the projection that the gate multiplies.
        kernel_initializer, bias_initializer: of router and experts.
        normalize_weights: whether the weights of the chosen experts sum to 1.
        scoring: "softmax", or "sigmoid" for weights that are sigmoids of r (DeepSeek-V3, 2024,
            equations 13 to 15), divided by their sum with `normalize_weights`.
        use_correction_bias: whether experts are chosen by weight plus `correction_bias`, which has
            no gradient and no part in the weights. To balance experts, raise it where one is used
            too little (DeepSeek-V3, equation 16).
        num_groups, top_groups: experts are in `num_groups` equal groups of at least 2, one after
            another, and each position uses those of the `top_groups`, with at least `top_k`
            experts, whose two best experts have the largest sum.
        scale: multiplier of the weights.
        shared_dim: None, or the features inside one more network, without a router, which all
            positions use (DeepSeekMoE, Dai et al. 2024).
        use_shared_gate: whether the output of that network is multiplied by σ(x w) with learned
            w, a number for each position (Qwen1.5-MoE).
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments, results and errors are those of `FeedForward`; with `training=True`, a router
    that cannot learn is warned of.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 16))
    >>> experts = keras_attention.MixtureOfExperts(8, 2, 32, "silu", gated=True)
    >>> experts(x).shape
    (2, 5, 16)
    >>> block = keras_attention.TransformerBlock(None, 4, feed_forward=experts)
    >>> block(x).shape
    (2, 5, 16)
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        intermediate_dim: int,
        activation: Activation = "relu",
        gated: bool = False,
        use_bias: bool = True,
        limit: float | None = None,
        offset: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        normalize_weights: bool = True,
        scoring: Scoring = "softmax",
        use_correction_bias: bool = False,
        num_groups: int = 1,
        top_groups: int = 1,
        scale: float = 1.0,
        shared_dim: int | None = None,
        use_shared_gate: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_experts = shapes.check_count("num_experts", num_experts)
        self.top_k = shapes.check_count("top_k", top_k)
        self.intermediate_dim = shapes.check_count("intermediate_dim", intermediate_dim)
        self.num_groups = shapes.check_count("num_groups", num_groups)
        self.top_groups = shapes.check_count("top_groups", top_groups)
        self.shared_dim = shapes.check_optional_count("shared_dim", shared_dim)
        self.use_shared_gate = shapes.check_flag("use_shared_gate", use_shared_gate)
        self.gated = shapes.check_flag("gated", gated)
        self.use_bias = shapes.check_flag("use_bias", use_bias)
        self.normalize_weights = shapes.check_flag("normalize_weights", normalize_weights)
        self.use_correction_bias = shapes.check_flag("use_correction_bias", use_correction_bias)
        self.offset = shapes.check_number("offset", offset)
        self.scale = shapes.check_number("scale", scale)
        self.limit = shapes.check_optional_positive("limit", limit)
        self.activation = activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.scoring = shapes.check_choice("scoring", scoring, get_args(Scoring))
        size, rest = divmod(self.num_experts, self.num_groups)
        one = self.num_groups == self.top_groups == 1
        few = rest or size < 2 or not self.top_k / size <= self.top_groups <= self.num_groups
        if self.top_k > self.num_experts or (few and not one):
            raise ValueError(
                "`top_k` must be at most `num_experts`, and several `num_groups` divide these into "
                "groups of at least 2, of which `top_groups` have at least `top_k` experts. "
                f"Received: num_experts={num_experts}, top_k={top_k}, num_groups={num_groups}, "
                f"top_groups={top_groups}"
            )
        if not self.gated and not (self.limit is None and self.offset == 0):
            raise ValueError(
                "`limit` and `offset` are of gated experts. "
                f"Received: gated={gated}, limit={limit}, offset={offset}"
            )
        if self.use_shared_gate and self.shared_dim is None:
            raise ValueError(
                "`use_shared_gate` is of the network of `shared_dim` features. "
                "Received: use_shared_gate=True, shared_dim=None"
            )

    def build(self, x_shape):
        dim, inside = x_shape[-1], self.intermediate_dim
        self._router = projections.dense(self, "router", self.num_experts, x_shape, self.use_bias)
        self.gate_kernel, self.gate_bias = self._add("gate", dim, inside, wanted=self.gated)
        self.intermediate_kernel, self.intermediate_bias = self._add("intermediate", dim, inside)
        self.output_kernel, self.output_bias = self._add("output", inside, dim)
        self.correction_bias: Any = None
        if self.use_correction_bias:
            options = {"name": "correction_bias", "trainable": False, "autocast": False}
            self.correction_bias = self.add_weight((self.num_experts,), "zeros", **options)
        self.shared: Any = None
        if self.shared_dim is not None:
            self.shared = network(self, self.shared_dim, "shared")
            self.shared.build(x_shape)
        if self.use_shared_gate:
            self._shared_gate = projections.dense(self, "shared_gate", 1, x_shape, False)
        names = ("gate",) * self.gated + ("intermediate", "output")
        # The last of the parts, whose numbers files of released versions have.
        self._int8 = Int8Kernels(lambda: self, names, name="int8_kernels", dtype=self.dtype_policy)

    def _add(self, name, inputs, outputs, wanted=True):
        """The kernels and the biases, or None, of a projection of all experts."""
        if not wanted:
            return None, None
        shape, start = (self.num_experts, inputs, outputs), _of_each(self.kernel_initializer)
        shapes.check_memory(name, shape)
        kernel = self.add_weight(name=f"{name}_kernel", shape=shape, initializer=start)
        if not self.use_bias:
            return kernel, None
        start = saving.clone_initializer(self.bias_initializer)
        return kernel, self.add_weight(name=f"{name}_bias", shape=shape[::2], initializer=start)

    router = parts.part("_router", "The projection to the numbers by which experts are chosen.")
    shared_gate = parts.part("_shared_gate", "The projection to the gate of `shared`, if any.")

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        mask = masks.implicit(x)
        (x,) = inputs.floats((x,), self.compute_dtype)
        x = masks.clear(x, mask)
        rows = ops.reshape(x, (-1, x.shape[-1]))
        numbers = projections.apply(self, self._router, rows)
        # Probabilities have few digits in half precision.
        numbers = ops.cast(numbers, shapes.accumulation_dtype(numbers))
        chosen, weights = _route(self, numbers)
        if self.scale != 1:
            weights = weights * self.scale
        if self.normalize_weights and self.top_k == 1 < self.num_experts and training is True:
            warnings.warn(
                "The router of a MixtureOfExperts has no gradient where one expert is chosen and "
                "its weight is 1. Pass normalize_weights=False to train it. Received: top_k=1, "
                "normalize_weights=True",
                stacklevel=2,
            )
        count = backend.known_size(rows.shape[0])
        few = count is not None and count * self.top_k < self.num_experts
        output = (self._of_few if few else self._of_all)(rows, chosen, weights)
        output = ops.reshape(output, ops.shape(x))
        if self.shared is not None:
            shared = self.shared(x)
            if self.use_shared_gate:
                shared = shared * ops.sigmoid(projections.apply(self, self._shared_gate, x))
            output = output + shared
        return masks.carry(output, mask)

    def _of_all(self, rows, chosen, weights):
        """All experts, of which the chosen ones are added."""
        places = ops.one_hot(chosen, self.num_experts, dtype=weights.dtype)
        weights = ops.sum(places * ops.expand_dims(weights, -1), axis=-2)
        weights = ops.cast(weights, self.compute_dtype)
        hidden = self._activated(functools.partial(ops.einsum, "nd,edi->nei", rows))
        # As one product: a row of weighted features of all experts.
        size = self.num_experts * self.intermediate_dim
        hidden = ops.reshape(hidden * ops.expand_dims(weights, -1), (-1, size))
        output = projections.product(hidden, ops.reshape(self._kernel("output"), (size, -1)))
        if self.output_bias is None:
            return output
        return output + projections.product(weights, self.output_bias)

    def _of_few(self, rows, chosen, weights):
        """The chosen experts alone."""
        of_chosen = functools.partial(backend.take, indices=chosen, axis=0)
        weights = ops.cast(weights, self.compute_dtype)
        product = functools.partial(ops.einsum, "nd,nkdi->nki", rows)
        hidden = self._activated(product, of_chosen)
        hidden = hidden * ops.expand_dims(weights, -1)
        output = ops.einsum("nki,nkid->nd", hidden, self._kernel("output", of_chosen))
        if self.output_bias is None:
            return output
        return output + ops.einsum("nk,nkd->nd", weights, of_chosen(self.output_bias))

    def _kernel(self, name, of_chosen=lambda kernel: kernel):
        kernel = getattr(self, f"{name}_kernel")
        return self._int8.kernel(name, of_chosen) if kernel is None else of_chosen(kernel)

    def _activated(self, product, of_chosen=lambda array: array):
        """The features of experts, from products with kernels, and biases of the experts."""

        def project(name, bias):
            found = product(self._kernel(name, of_chosen))
            return found if bias is None else found + of_chosen(bias)

        linear = project("intermediate", self.intermediate_bias)
        if not self.gated:
            return self.activation(linear)
        gate = project("gate", self.gate_bias)
        if self.limit is not None:
            gate = ops.clip(gate, -math.inf, self.limit)
            linear = ops.clip(linear, -self.limit, self.limit)
        return self.activation(gate) * (linear + self.offset)

    compute_mask = masks.passed_on

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)


def _of_each(initializer):
    """An initializer of matrices, for a stack of them, each drawn by itself."""

    def numbered(n):
        # A copy whose seed, if there is one, is that of the matrix `n`.
        if not isinstance(initializer, keras.initializers.Initializer):
            return initializer
        config = initializer.get_config()
        if isinstance(config.get("seed"), int):
            config["seed"] += n
        return type(initializer).from_config(config)

    def stack(shape, dtype=None):
        return ops.stack([numbered(n)(tuple(shape[1:]), dtype) for n in range(shape[0])])

    return stack


def _route(layer, numbers):
    """The experts (N, top_k) of a layer, by its router's numbers (N, E), and their weights."""
    plain = layer.scoring == "softmax" and layer.num_groups == 1 and not layer.use_correction_bias
    if plain:
        best, chosen = ops.top_k(numbers, layer.top_k)
        if layer.normalize_weights and layer.top_k > 1:
            return chosen, ops.softmax(best, axis=-1)
        over = best if layer.normalize_weights else numbers
        return chosen, ops.exp(best - ops.logsumexp(over, axis=-1, keepdims=True))
    scores = ops.sigmoid(numbers) if layer.scoring == "sigmoid" else ops.softmax(numbers, axis=-1)
    preferred = scores
    if layer.use_correction_bias:
        preferred = preferred + ops.cast(layer.correction_bias, scores.dtype)
    if layer.num_groups > 1:
        # Of the groups whose two best experts have the largest sums.
        size = layer.num_experts // layer.num_groups
        groups = ops.reshape(preferred, (-1, layer.num_groups, size))
        best = ops.top_k(ops.sum(ops.top_k(groups, 2)[0], axis=-1), layer.top_groups)[1]
        allowed = ops.any(ops.one_hot(best, layer.num_groups, dtype="bool"), axis=-2)
        lowest = ops.cast(float("-inf"), groups.dtype)
        preferred = ops.reshape(ops.where(allowed[..., None], groups, lowest), ops.shape(scores))
    chosen = ops.top_k(preferred, layer.top_k)[1]
    weights = ops.take_along_axis(scores, chosen, axis=-1)
    if layer.normalize_weights:
        weights = weights / (ops.sum(weights, axis=-1, keepdims=True) + 1e-20)
    return chosen, weights
