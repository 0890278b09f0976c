"""Sets: learned queries, induced points, and slots that compete for elements."""

from typing import Any, Literal, get_args

import keras
from keras import ops

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.core.hints import Activation, Initializer, Tensor, Tensors
from keras_attention.feature_maps import SumToOne
from keras_attention.layers.attention import Attention
from keras_attention.layers.blocks import norms
from keras_attention.layers.blocks.feed_forward import FeedForward
from keras_attention.layers.blocks.transformer_block import Residual, TransformerBlock
from keras_attention.sequences import inputs, masks, shapes


class LearnedQueries(saving.ConfigurableLayer):
    """A fixed number of learned vectors for each sequence: seeds, inducing points, or latents.

    With a `TransformerBlock(cross_attention=True, self_attention=False)` they summarize a sequence
    or a set of any length: the seeds and inducing points of a Set Transformer (Lee et al. 2019,
    sections 3.1 and 3.2), the latents of a Perceiver (Jaegle et al. 2021).

    Args:
        num_queries, dim: how many, and features of each; those of the input by default.
        initializer: of the vectors.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (B, S, D). Only its batch size, and D without `dim`, are used.

    Returns:
        (B, num_queries, dim), without a mask: queries are no padding, whatever x has.

    Raises:
        ValueError: a size or a shape is not as described.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 100, 16))
    >>> latents = keras_attention.LearnedQueries(4)(x)
    >>> block = keras_attention.TransformerBlock(32, 2, cross_attention=True, self_attention=False)
    >>> block(latents, x).shape
    (2, 4, 16)
    """

    def __init__(
        self,
        num_queries: int,
        dim: int | None = None,
        initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_queries = shapes.check_count("num_queries", num_queries)
        self.dim = shapes.check_optional_count("dim", dim)
        self.initializer = keras.initializers.get(initializer)

    def build(self, x_shape):
        shape = self.compute_output_shape(x_shape)
        self.queries = self.add_weight(shape[1:], self.initializer, name="queries")

    def call(self, x: Tensor) -> Tensor:
        queries = ops.cast(self.queries, self.compute_dtype)
        return ops.broadcast_to(queries, (ops.shape(x)[0], *queries.shape))

    def compute_mask(self, x, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        if len(x_shape) != 3 or (self.dim is None and x_shape[-1] is None):
            raise ValueError(
                "`x` must be (batch, positions, features), with a known number of features unless "
                f"`dim` is given. Received: x.shape={tuple(x_shape)}"
            )
        return (x_shape[0], self.num_queries, self.dim or x_shape[-1])


class InducedSetAttentionBlock(saving.ConfigurableLayer):
    r"""A block of a set in time O(S · m), through m inducing points (Lee et al. 2019, equation 9).

    `ISAB(X) = MAB(X, MAB(I, X))`: m learned points I attend to the set, and the set attends to
    what they found. `MAB(X, Y)`, equation 6, is a `TransformerBlock` with cross-attention alone.
    There are no positions, so that another order of the elements is another order of the outputs.

    Args:
        intermediate_dim, num_heads, dropout, activation, layer_norm_epsilon, norm, key_dim,
            residual, kernel_initializer: of both blocks, as in `TransformerBlock`.
        num_inducing_points, initializer: m, and the initializer of the points.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments, results and errors are those of `TransformerBlock`, for a set `x`, (B, S, D),
    `mask` and `training` alone. A masked element has output 0.

    >>> import keras, keras_attention
    >>> block = keras_attention.InducedSetAttentionBlock(32, num_heads=2, num_inducing_points=4)
    >>> block(keras.random.normal((2, 100, 16))).shape
    (2, 100, 16)
    """

    _masks = "`mask` (B, S) for padding"

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        num_inducing_points: int,
        dropout: float = 0.0,
        activation: Activation = "relu",
        layer_norm_epsilon: float = 1e-5,
        norm: norms.Norm = "layer",
        key_dim: int | None = None,
        residual: Residual | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_inducing_points = shapes.check_count("num_inducing_points", num_inducing_points)
        self.initializer = keras.initializers.get(initializer)
        self._points = LearnedQueries(
            num_inducing_points, initializer=initializer, dtype=self.dtype_policy, name="points"
        )
        sizes = "intermediate_dim", "num_heads", "dropout", "layer_norm_epsilon", "key_dim"
        names = (*sizes, "activation", "norm", "residual")
        given = locals()
        options: dict[str, Any] = {name: given[name] for name in names}
        options |= {"cross_attention": True, "self_attention": False, "dtype": self.dtype_policy}

        def block(name):
            start = saving.clone_initializer(kernel_initializer)
            return TransformerBlock(**options, name=name, kernel_initializer=start)

        self._to_points, self._to_elements = map(block, ("to_points", "to_elements"))
        self._keep_of(self._to_points, *names, "kernel_initializer")

    def build(self, x_shape, mask_shape=None):
        points = self._points.compute_output_shape(x_shape)
        self._points.build(x_shape)
        self._to_points.build(points, x_shape)
        self._to_elements.build(x_shape, points)

    def call(self, x: Tensor, mask: Tensor | None = None, training: bool | None = None) -> Tensor:
        mask = masks.padding(x, mask)
        points = self._to_points(self._points(x), x, context_mask=mask, training=training)
        return self._to_elements(x, points, mask=mask, training=training)

    def compute_mask(self, x, previous_mask=None):
        return masks.padding(x, previous_mask)

    def compute_output_shape(self, x_shape, mask_shape=None):
        self._points.compute_output_shape(x_shape)
        return tuple(x_shape)


Initial = Literal["gaussian", "learned"]


class CompetingAttention(Attention, saved=False):
    """Attention whose softmax is over the queries. Locatello et al. 2020, equations 1 and 2.

    With the weights a of the softmax, which a call returns, the output of a query is the mean of
    the values by `a + ε`, so that a query that won no key has one too.
    """

    def __init__(self, epsilon: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def attend(self, *heads, return_weights=False, **given):
        def over_queries(scores, mask):
            # Keras warns about a softmax over one element.
            return ops.ones_like(scores) if scores.shape[-2] == 1 else ops.softmax(scores, axis=-2)

        def normalize(scores, mask):
            return SumToOne().normalize(over_queries(scores, mask) + self.epsilon, mask)

        result = super().attend(*heads, normalization=normalize, **given)
        if not return_weights:
            return result
        given = {**given, "normalization": over_queries, "return_weights": True}
        return result.replace(weights=super().attend(*heads, **given).weights)


class SlotAttention(saving.ConfigurableLayer):
    r"""Groups the elements of a set into slots (Locatello et al. 2020, algorithm 1).

    The softmax is over the slots: they compete for each element, `num_iterations` times.

        a[k, s] = softmax_k(q(norm(slots))_k · k(norm(x))_s / √dim)
        u_k = Σ_s (a[k, s] + ε) v(norm(x))_s / Σ_s (a[k, s] + ε)
        slots = GRU(u, slots),    slots = slots + network(norm(slots))

    Args:
        num_slots, dim: K, and the features of a slot, and of queries, keys and values.
        intermediate_dim, activation: of the network, as in `FeedForward`.
        num_iterations: number of updates.
        initial, seed: the slots before them. "gaussian" draws them in each call, at inference too,
            from a normal distribution with a learned mean and deviation; "learned" are K vectors.
        epsilon, layer_norm_epsilon: ε, and what the norms add to variances.
        kernel_initializer: of the projections, the network, and the weights of `initial`.
        use_bias: whether q, k and v have biases; in the paper they have none.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (B, S, D), the elements, in any order.
        slots: (B, K, dim), instead of `initial`; then K may be another number.
        mask, slots_mask: boolean (B, S) and (B, K), True = a real element or slot; combined with
            the masks that the tensors carry. A masked slot has output 0.
        return_attention_scores: whether to return `(output, scores)`, scores (B, 1, K, S) being a
            of the last update: their sum over the slots is 1, or 0 for a masked element.

    Returns:
        (B, K, dim), carrying the mask of `slots`. In a row without elements, u is 0.

    Raises:
        ValueError, TypeError: an argument or a shape is not as described.

    >>> import keras, keras_attention
    >>> layer = keras_attention.SlotAttention(num_slots=4, dim=16, intermediate_dim=32)
    >>> layer(keras.random.normal((2, 100, 8))).shape
    (2, 4, 16)
    """

    _masks = "`mask` (B, S) and `slots_mask` (B, K) for padding"

    def __init__(
        self,
        num_slots: int,
        dim: int,
        intermediate_dim: int,
        num_iterations: int = 3,
        initial: Initial = "gaussian",
        epsilon: float = 1e-8,
        activation: Activation = "relu",
        layer_norm_epsilon: float = 1e-5,
        kernel_initializer: Initializer = "glorot_uniform",
        seed: int | None = None,
        use_bias: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_slots = shapes.check_count("num_slots", num_slots)
        self.dim = shapes.check_count("dim", dim)
        self.num_iterations = shapes.check_count("num_iterations", num_iterations)
        self.epsilon = shapes.check_positive("epsilon", epsilon)
        self.layer_norm_epsilon = shapes.check_positive("layer_norm_epsilon", layer_norm_epsilon)
        self.seed = shapes.check_seed("seed", seed)
        options = {"kernel_initializer": kernel_initializer, "dtype": self.dtype_policy}
        self._network = FeedForward(intermediate_dim, activation, name="network", **options)
        self._keep_of(self._network, "intermediate_dim", "activation", "kernel_initializer")
        options |= {"use_bias": use_bias, "name": "attention"}
        self._attention = CompetingAttention(epsilon, key_dim=dim, **options)
        self._keep_of(self._attention, "use_bias")
        self._cell = keras.layers.GRUCell(
            dim, recurrent_initializer=_Orthogonal(), name="cell", dtype=self.dtype_policy
        )
        self.initial = shapes.check_choice("initial", initial, get_args(Initial))
        start = saving.clone_initializer(self.kernel_initializer)
        given = {"initializer": start, "name": "initial", "dtype": self.dtype_policy}
        if initial == "learned":
            self._initial_slots = LearnedQueries(num_slots, dim, **given)
        else:
            self._initial_slots = GaussianQueries(num_slots, dim, seed=seed, **given)

    def build(self, x_shape, slots_shape=None):
        shape = self.compute_output_shape(x_shape, slots_shape)
        self._initial_slots.build(x_shape)
        self._attention.build(shape, x_shape)
        self._cell.build((None, self.dim))
        self._network.build(shape)
        for name, of in {"input_norm": x_shape, "slots_norm": shape, "network_norm": shape}.items():
            norm = norms.make("layer", name, of, self.dtype_policy, self.layer_norm_epsilon)
            setattr(self, f"_{name}", norm)

    def call(
        self,
        x: Tensor,
        slots: Tensor | None = None,
        mask: Tensor | None = None,
        slots_mask: Tensor | None = None,
        return_attention_scores: bool = False,
    ) -> Tensors:
        mask = masks.padding(x, mask)
        slots = self._initial_slots(x) if slots is None else slots
        self.compute_output_shape(x.shape, slots.shape)
        slots_mask = masks.padding(slots, slots_mask, "slots", "slots_mask")
        x, slots = (ops.cast(array, self.compute_dtype) for array in (x, slots))
        memory = self._attention.cache_context(self._input_norm(masks.clear(x, mask)), None, mask)
        given = {"query_mask": slots_mask, "return_attention_scores": return_attention_scores}
        slots = masks.clear(slots, slots_mask)
        for _ in range(self.num_iterations):
            updates, *scores, _ = self._attention(self._slots_norm(slots), cache=memory, **given)
            # A Keras cell takes two axes.
            rows, states = (ops.reshape(array, (-1, self.dim)) for array in (updates, slots))
            slots = ops.reshape(self._cell(rows, [states])[0], backend.shape(slots))
            slots = slots + self._network(self._network_norm(slots))
        output = masks.carry(masks.clear(slots, slots_mask), slots_mask)
        return (output, *scores) if return_attention_scores else output

    def compute_mask(self, x, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape, slots_shape=None):
        slots_shape = tuple(slots_shape or (x_shape[0], self.num_slots, self.dim))
        if len(x_shape) != 3 or x_shape[-1] is None or slots_shape[2:] != (self.dim,):
            raise ValueError(
                f"`x` must be (B, S, D) with a known D, and `slots` (B, K, {self.dim}). "
                f"Received: x.shape={tuple(x_shape)}, slots.shape={slots_shape}"
            )
        shapes.check_same("Batch sizes", x=x_shape[0], slots=slots_shape[0])
        return slots_shape

    def compute_output_spec(self, *args, **kwargs):
        given = inputs.arguments(self.call, *args, **kwargs)
        shape = self.compute_output_shape(given.x.shape, getattr(given.slots, "shape", None))
        scores = shape[0], 1, shape[1], given.x.shape[1]
        output, scores = (keras.KerasTensor(of, self.compute_dtype) for of in (shape, scores))
        masks.padding(given.x, given.mask)
        slots = output if given.slots is None else given.slots
        masks.carry(output, masks.padding(slots, given.slots_mask, "slots", "slots_mask"))
        return (output, scores) if given.return_attention_scores else output


class _Orthogonal(keras.initializers.Orthogonal):
    """Keras's, in every dtype: backends have no decomposition in half precision."""

    def __call__(self, shape, dtype=None):
        dtype = keras.backend.standardize_dtype(dtype)
        return ops.cast(super().__call__(shape, shapes.full_precision(dtype)), dtype)


class GaussianQueries(LearnedQueries, saved=False):
    """Vectors `mean + exp(log_deviation) · noise`, with new noise for each call, row and vector."""

    def __init__(self, *args: Any, seed: int | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.seed = seed

    def build(self, x_shape):
        shape = (1, self.compute_output_shape(x_shape)[-1])
        self.mean, self.log_deviation = (
            self.add_weight(shape, saving.clone_initializer(self.initializer), name=name)
            for name in ("mean", "log_deviation")
        )
        self._seed_generator = keras.random.SeedGenerator(self.seed)

    def call(self, x: Tensor) -> Tensor:
        shape = (ops.shape(x)[0], self.num_queries, self.mean.shape[-1])
        noise = keras.random.normal(shape, dtype=self.compute_dtype, seed=self._seed_generator)
        mean, deviation = (ops.cast(w, noise.dtype) for w in (self.mean, self.log_deviation))
        return mean + ops.exp(deviation) * noise
