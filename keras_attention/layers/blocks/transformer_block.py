"""`TransformerBlock`: attention and a feed-forward network, each with a residual and a norm."""

import functools
from typing import Any, Literal

import keras

from keras_attention import activations, normalizations, patterns, regularizers, saving, scores
from keras_attention import positions as position_slots
from keras_attention.core import parts
from keras_attention.core.hints import Activation, Cache, Dtype, Initializer, Tensor, Tensors
from keras_attention.layers import kv_cache, traits
from keras_attention.layers.base import BaseAttention, QkNorm, Reuse, UseBias, ValueNorm
from keras_attention.layers.blocks import norms
from keras_attention.layers.blocks.feed_forward import network
from keras_attention.layers.heads.projections import Dropout
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.sequences import inputs, masks, sequence, shapes

Residual = Literal["post", "pre", "sandwich", "parallel"]

# Options of both attentions.
OF_BOTH = (
    *("dropout", "use_bias", "num_key_value_heads", "qk_norm", "logit_soft_cap", "use_sink"),
    *("clip_qkv", "value_norm", "scores_regularizer", "kernel_initializer", "bias_initializer"),
)


class TransformerBlock(saving.ConfigurableLayer):
    r"""A block of Vaswani et al. 2017, section 3.1: encoder, decoder, or decoder-only.

    With branches f, attention and then the feed-forward network, `residual` is one of

        "post"       x = norm(x + f(x))                  Vaswani et al. 2017; the default
        "pre"        x = x + f(norm(x))                  Xiong et al. 2020; `normalize_first=True`
        "sandwich"   x = x + norm'(f(norm(x)))           Ding et al. 2021; Gemma 2
        "parallel"   x = x + Σ f(norm_f(x))              Wang & Komatsuzaki 2021

    A stack of any but the first needs one more norm at its end. A decoder (`causal=True,
    cross_attention=True`) attends to a second sequence in a branch between the two. With
    `self_attention=False` that branch takes the place of the first, as in a Set Transformer (Lee et
    al. 2019, equation 6) or a Perceiver (Jaegle et al. 2021). The branches of Swin v2 (Liu et al.
    2022, section 3.2) are those of a sandwich without the first norm, x + norm'(f(x)):
    `residual="sandwich", norm={"attention": None, "feed_forward": None}`.

    Args:
        intermediate_dim: features inside the feed-forward network; None with a `feed_forward`.
        num_heads: number of attention heads; must divide the features of the input, unless
            `key_dim` is given.
        dropout: rate on the attention weights and on all branches before they are added.
        activation, gated: of the feed-forward network, as in `FeedForward`.
        layer_norm_epsilon: added to variances by named norms.
        normalize_first: whether the norms come before the branches: `residual="pre"`.
        causal: whether position t sees only positions up to t.
        cross_attention: whether the block attends to a `context` too.
        score, normalization, scores_regularizer, num_key_value_heads, qk_norm, logit_soft_cap,
            use_sink, clip_qkv, value_norm: of both attentions, as in `MultiHeadAttention`. A score
            with weights has separate ones for the context.
        pattern, position: of the self-attention, as in `Attention`.
        kernel_initializer, bias_initializer, seed: of all projections, and of the dropouts.
        norm: "layer" for LayerNorm, "rms" for RMSNorm (Zhang & Sennrich 2019), or a Keras layer,
            copied for each norm. Or a dictionary of these, of which "layer" is the default, by
            branches: "attention", "cross_attention", "feed_forward", and in a sandwich
            "attention_output" and so on for the norms after them. There None is no norm, and
            "shared", in "parallel", the norm of the attention. "context" is a norm of the context,
            before its keys and values are projected, as in a Perceiver: None is the default.
        key_dim: features of each head; defaults to those of the input divided by `num_heads`.
        residual: as above; None for "pre" with `normalize_first`, otherwise "post".
        use_bias: whether projections have biases: True, False, "qkv" for those of queries, keys
            and values alone, or "qvo" for all but those of keys.
        attention: None, or a layer that is called as `MultiHeadAttention` is, for the
            self-attention; the slots are then those of the cross-attention.
        feed_forward: None, or any layer from (..., D) to (..., D), such as a mixture of experts.
        self_attention: whether positions of x see each other; False only with `cross_attention`.
        wide_residual: whether, in float16, the sums of branches are float32, and with them norms,
            the last projection of the feed-forward network and the output: some models, such as
            T5 1.1, have sums beyond 65504. Without effect in other dtypes.
        value_dim: features of each value head; defaults to those of a key.
        query_residual: whether x is added to what it found in the context. False, in a block with
            `cross_attention` whose residual is not "parallel", is for queries that are not of the
            kind of the output, such as positions (Perceiver IO: Jaegle et al. 2022).
        reuse: of the self-attention, as in `MultiHeadAttention`: see `sources` of stacks.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (B, T, D).
        context: (B, S, D'), attended to with `cross_attention`; or the result of `cache_context`.
        mask, context_mask: boolean (B, T) and (B, S), True = a real token. They are combined with
            the masks that `x` and `context` carry.
        attention_mask: boolean (T, T), (B, T, T) or (B, H, T, T), True = attend.
        attention_bias, positions, segment_ids: as in `Attention`, for self-attention. The words
            "tokens" and "places" say how tokens of the context are counted, too.
        return_attention_scores: whether to return `(output, scores)`, scores (B, H, T, T); with
            `cross_attention` a dict of these as "attention", if there are any, and those of the
            context, (B, H, T, S), as "cross_attention".
        training: whether to apply dropout.
        cache: of `make_cache`, for decoding: the tokens of x are appended to it, as in `Attention`.
        global_mask: boolean (B, T), of an `attention` that takes it, such as `LongformerAttention`.
        key_value, return_key_value: of the self-attention, as in `Attention`.

    Returns:
        (B, T, D), carrying the mask. With a `cache`, that of the next call comes last:
        `(output, cache)`.

    Once built, its parts are the attributes `attention`, `cross_attention_layer` and
    `feed_forward`, and `attention_norm`, `cross_attention_norm`, `context_norm` and
    `feed_forward_norm`, in a sandwich also `attention_output_norm` and so on. Paths of weights have
    `context_attention`.

    Raises:
        ValueError, TypeError: `num_heads` does not divide D, a context is given without
            `cross_attention` or missing with it, arguments contradict one another, or as
            `MultiHeadAttention` and `FeedForward`.

    >>> import keras, keras_attention
    >>> ids = keras.ops.convert_to_tensor([[3, 5, 2, 0, 0]])
    >>> x = keras_attention.ScaledEmbedding(10, 32, mask_zero=True)(ids)
    >>> x = keras_attention.SinCosPositionEmbedding()(x)
    >>> encoded = keras_attention.TransformerBlock(intermediate_dim=64, num_heads=4)(x)
    >>> encoded.shape
    (1, 5, 32)
    >>> decoder = keras_attention.TransformerBlock(64, 4, causal=True, cross_attention=True)
    >>> y = keras.random.normal((1, 3, 32))
    >>> expected = decoder(y, encoded)
    >>> cache, memory = decoder.make_cache(1, length=3), decoder.cache_context(encoded)
    >>> first, cache = decoder(y[:, :1], memory, cache=cache)
    >>> bool(keras.ops.max(keras.ops.abs(first - expected[:, :1])) < 1e-4)
    True
    """

    _masks = (
        "`mask` (B, T) and `context_mask` (B, S) for padding, and `attention_mask`, (T, S), "
        "(B, T, S) or (B, H, T, S), for pairs"
    )
    _unrounded: tuple[str, ...] = ("attention_bias", "cache")

    def __init__(
        self,
        intermediate_dim: int | None,
        num_heads: int,
        dropout: float = 0.0,
        activation: Activation = "relu",
        layer_norm_epsilon: float = 1e-5,
        normalize_first: bool = False,
        causal: bool = False,
        cross_attention: bool = False,
        gated: bool = False,
        score: scores.ScoreLike = "scaled_dot",
        normalization: normalizations.NormalizationLike = "softmax",
        pattern: patterns.PatternLike | None = None,
        position: position_slots.PositionLike | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        seed: int | None = None,
        num_key_value_heads: int | None = None,
        qk_norm: QkNorm = False,
        logit_soft_cap: float | None = None,
        use_sink: bool = False,
        scores_regularizer: regularizers.RegularizerLike | None = None,
        norm: norms.Norm = "layer",
        key_dim: int | None = None,
        residual: Residual | None = None,
        use_bias: UseBias = True,
        attention: keras.layers.Layer | None = None,
        feed_forward: keras.layers.Layer | None = None,
        clip_qkv: float | None = None,
        self_attention: bool = True,
        wide_residual: bool = False,
        value_dim: int | None = None,
        query_residual: bool = True,
        reuse: Reuse = None,
        value_norm: ValueNorm = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.wide_residual = shapes.check_flag("wide_residual", wide_residual)
        if self.wide_residual:
            self._unrounded = ("x", *self._unrounded)
        check = shapes.check_count if feed_forward is None else shapes.check_optional_count
        self.intermediate_dim = check("intermediate_dim", intermediate_dim)
        self.num_heads = shapes.check_count("num_heads", num_heads)
        self.num_key_value_heads = shapes.check_optional_count(
            "num_key_value_heads", num_key_value_heads
        )
        self.key_dim = shapes.check_optional_count("key_dim", key_dim)
        self.value_dim = shapes.check_optional_count("value_dim", value_dim)
        self.query_residual = shapes.check_flag("query_residual", query_residual)
        self.normalize_first = shapes.check_flag("normalize_first", normalize_first)
        self.causal = shapes.check_flag("causal", causal)
        self.gated = shapes.check_flag("gated", gated)
        self.cross_attention = shapes.check_flag("cross_attention", cross_attention)
        self.use_sink = shapes.check_flag("use_sink", use_sink)
        self.self_attention = shapes.check_flag("self_attention", self_attention)
        self.layer_norm_epsilon = shapes.check_positive("layer_norm_epsilon", layer_norm_epsilon)
        self.logit_soft_cap = shapes.check_optional_positive("logit_soft_cap", logit_soft_cap)
        self.clip_qkv = shapes.check_optional_positive("clip_qkv", clip_qkv)
        self.dropout = shapes.check_rate("dropout", dropout)
        self.activation = activations.get(activation)
        self.score = scores.get(score)
        self.normalization = normalizations.get(normalization)
        self.pattern = patterns.get(pattern)
        self.position = position_slots.get(position)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = shapes.check_seed("seed", seed)
        self.qk_norm = qk_norm
        self.reuse = reuse
        self.value_norm = value_norm
        self.scores_regularizer = regularizers.get(scores_regularizer)
        self.residual = shapes.check_choice("residual", residual, (None, *norms.RESIDUALS))
        self.use_bias = shapes.check_flag("use_bias", use_bias, names=("qkv", "qvo"))
        self.attention = saving.check_layer("attention", attention, optional=True)
        self.feed_forward = saving.check_layer("feed_forward", feed_forward, optional=True)
        # Parts that the block makes itself are not in its configuration.
        self._made = {name for name in ("attention", "feed_forward") if getattr(self, name) is None}
        self.norm = norms.check_branches(norm, self.residual)
        self._check_arguments()
        if not self.self_attention:
            self._made.discard("attention")
        if "attention" in self._made:
            # Made here, because it checks its arguments; `build` sets the features of its heads.
            self.attention = self._make_attention("attention", self.key_dim or 1)

    def _check_arguments(self):
        """Rejects arguments that contradict one another."""
        if self.normalize_first and self.residual not in (None, "pre"):
            raise ValueError(
                "`normalize_first=True` is residual='pre'. "
                f"Received: normalize_first=True, residual={self.residual!r}"
            )
        if not self.self_attention:
            of_self = "attention", "pattern", "position", "causal", "reuse"
            given = [name for name in of_self if getattr(self, name) not in (None, False)]
            if given or not self.cross_attention:
                raise ValueError(
                    "A block with self_attention=False has cross_attention=True, and no `causal`, "
                    "`attention`, `pattern`, `position` or `reuse`, of the self-attention. "
                    f"Received: cross_attention={self.cross_attention}, and {given}"
                )
        if not self.query_residual and (not self.cross_attention or self.residual == "parallel"):
            raise ValueError(
                "A block with query_residual=False has cross_attention=True, and a residual other "
                "than 'parallel', whose branches share one. Received: "
                f"cross_attention={self.cross_attention}, residual={self.residual!r}"
            )
        if "attention" not in self._made and {self.pattern, self.position, self.reuse} != {None}:
            raise ValueError(
                "`pattern`, `position` and `reuse` are those of the self-attention that the block "
                "makes: give them to the layer that replaces it. Received: "
                f"attention={self.attention!r}, pattern={self.pattern!r}, "
                f"position={self.position!r}, reuse={self.reuse!r}"
            )
        if "feed_forward" not in self._made and self.intermediate_dim is not None:
            raise ValueError(
                "`intermediate_dim` is of the feed-forward network that the block makes, and must "
                f"be None with another. Received: intermediate_dim={self.intermediate_dim}, "
                f"feed_forward={self.feed_forward!r}"
            )

    def get_config(self):
        return {**super().get_config(), **dict.fromkeys(self._made)}

    def _make_attention(self, name, key_dim):
        slots: dict[str, Any] = {"score": self.score, "normalization": self.normalization}
        if name == "attention":
            slots |= {"pattern": self.pattern, "position": self.position, "reuse": self.reuse}
        else:
            # With separate weights for the context. Plain normalizations need no copy.
            layers = {n: x for n, x in slots.items() if isinstance(x, keras.layers.Layer)}
            slots |= {n: type(x).from_config(x.get_config()) for n, x in layers.items()}
        slots |= {option: getattr(self, option) for option in OF_BOTH}
        if self.seed is not None:
            # Separate seeds, or weights and branches would be dropped by the same numbers.
            slots["seed"] = self.seed + (1 if name == "attention" else 2)
        return MultiHeadAttention(
            *(self.num_heads, key_dim, self.value_dim), name=name, dtype=self.dtype_policy, **slots
        )

    # Building

    def build(self, x_shape, context_shape=None):
        *_, dim = self.compute_output_shape(x_shape)
        own: dict[str, Any] = {}
        key_dim = self.key_dim or max(1, dim // self.num_heads)
        if "attention" in self._made:
            self.attention.key_dim = key_dim
            self.attention.value_dim = self.value_dim or key_dim
        if self.self_attention:
            if not self.attention.built:
                self.attention.build(x_shape)
            own |= norms.make_branch(self, "attention", x_shape)
        if self.cross_attention:
            if isinstance(context_shape, dict):
                self._check_built()
            # The attribute and the names are those of 0.1.0, by which files find the weights.
            self.context_attention = self._make_attention("context_attention", key_dim)
            self.context_attention.build(x_shape, context_shape)
            own |= norms.make_branch(self, "cross_attention", x_shape)
            norm = self.norm.get("context") if isinstance(self.norm, dict) else None
            given = self.dtype_policy, self.layer_norm_epsilon
            self.context_norm = norms.make(norm, "context_norm", context_shape, *given)
        if "feed_forward" in self._made:
            self.feed_forward = network(self, self.intermediate_dim, "feed_forward")
        if not self.feed_forward.built:
            self.feed_forward.build(x_shape)
        own |= norms.make_branch(self, "feed_forward", x_shape)
        residual = self.residual or ("pre" if self.normalize_first else "post")
        # Not as a dictionary, which Keras would write to files a second time.
        alone = () if self.query_residual else ("cross_attention",)
        self._add_branches = functools.partial(norms.RESIDUALS[residual], norms=own, alone=alone)
        policy = shapes.wide_policy(self, self.wide_residual)
        self._dropout_layer = Dropout(self.dropout, seed=self.seed, dtype=policy)
        # They have no weights if the block makes no attention. Keras quantizes only built layers.
        self.score.built = self.normalization.built = True

    cross_attention_layer = parts.part("context_attention", "The attention to the context, if any.")
    cross_attention_norm = parts.part("context_attention_norm", "The norm of the cross-attention.")

    # Computing

    def call(
        self,
        x: Tensor,
        context: Tensor | Cache | None = None,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        attention_bias: Tensor | None = None,
        positions: Tensors | None = None,
        segment_ids: Tensors | None = None,
        cache: Cache | None = None,
        global_mask: Tensor | None = None,
        key_value: dict[str, Tensor] | None = None,
        return_key_value: bool = False,
    ) -> Tensors:
        word = sequence.word(positions)
        pairs = {"attention_mask": attention_mask, "attention_bias": attention_bias}
        pairs |= {"positions": positions, "segment_ids": segment_ids}
        # Not every layer takes them.
        pairs |= {} if global_mask is None else self._further("global_mask", global_mask)
        pairs |= {} if key_value is None else {"key_value": key_value}
        pairs |= {"return_key_value": True} if return_key_value else {}
        memory = self._memory(context, context_mask, cache, pairs)
        mask = masks.padding(x, mask)
        if word is not None and not isinstance(self.attention, BaseAttention):
            # A layer that is not of this package knows arrays alone.
            counted = word == "tokens" and positions is not sequence.COMPACTED
            pairs["positions"] = sequence.ranks(mask, segment_ids) if counted else None
        # A norm of integers would round its results.
        (x,) = inputs.floats((x,), self.compute_dtype)
        if self.wide_residual:
            x = keras.ops.cast(x, shapes.wide_policy(self, True).compute_dtype)
        # Gradients of norms and of the feed-forward network sum over all rows: padding is cleared.
        x = masks.clear(x, mask)
        scores, caches = {}, {}
        options = {"return_attention_scores": return_attention_scores, "training": training}

        def attend(name, layer, x, **given):
            returned = layer(x, query_mask=mask, **options, **given)
            output, *rest = returned if isinstance(returned, tuple) else (returned,)
            if return_attention_scores:
                scores[name], *rest = rest
            if given.get("return_key_value"):
                caches["key_value"], *rest = rest
            caches[name] = rest[0] if rest else None
            return output

        branches = {}

        def branch(name, layer, **given):
            branches[name] = functools.partial(attend, name, layer, **given)

        if self.self_attention:
            branch("attention", self.attention, use_causal_mask=self.causal, cache=cache, **pairs)
        if self.cross_attention:
            memory = self._normalized(memory)
            # Rows may be compacted; those of the context are not.
            memory["positions"] = None if word is None else str(word)
            branch("cross_attention", self.context_attention, **memory)
        branches["feed_forward"] = self.feed_forward
        keep = functools.partial(self._dropout_layer.drop, training=training)
        x = self._add_branches(x, branches, keep=keep)
        # A norm multiplies the gradient of a row of zeros by 1 / √ε; three overflow float16.
        x = masks.clear(x, mask)
        given = scores, caches.get("key_value"), caches.get("attention")
        return self._returned(masks.carry(x, mask), *given)

    # Decoding with a cache

    def make_cache(
        self, batch_size: int | Tensor, length: int, dtype: Dtype | None = None, spare: int = 0
    ) -> Cache:
        """As `Attention.make_cache`, of the self-attention, for a built and causal block."""
        self._check_built()
        self._check_causal()
        return self.attention.make_cache(batch_size, length, dtype, spare)

    def cut_cache(self, cache: Cache, length: int | Tensor) -> Cache:
        """As `Attention.cut_cache`, of the self-attention."""
        return self.attention.cut_cache(cache, length)

    def grow_cache(self, cache: Cache, length: int, spare: int = 0) -> Cache:
        """As `Attention.grow_cache`, of the self-attention."""
        return self.attention.grow_cache(cache, length, spare)

    def repeat_cache(self, cache: Cache, rows: int | Tensor) -> Cache:
        """As `Attention.repeat_cache`, of the self-attention."""
        return self.attention.repeat_cache(cache, rows)

    def cache_context(self, context: Tensor, context_mask: Tensor | None = None) -> Cache:
        """The keys and values of `context`, projected once for all steps of a decoder.

        `block(x, memory)` is `block(x, context, context_mask=context_mask)`, for the result
        `{"key": (B, G, S, K), "value": (B, G, S, V), "mask": (B, S)}` of a block that is built and
        has a cross-attention.
        """
        self._check_built()
        given = {"value": context, "value_mask": context_mask}
        given = self._normalized({**given, **self._memory(context, context_mask)})
        layer = self.cross_attention_layer
        return layer.cache_context(given["value"], key_mask=given["value_mask"])

    def _check_built(self):
        if not self.built:
            raise ValueError(
                "The block has no weights yet: call it once with a tensor, or "
                "`block.build(x_shape, context_shape)`, for what `make_cache` and `cache_context` "
                "make. Received: an unbuilt block"
            )

    def _check_causal(self):
        if self.causal:
            return
        if not self.self_attention:
            raise ValueError(
                "A block with self_attention=False has no cache of its own tokens, which see the "
                "context alone: call it for any part of them. `cache_context` has its keys and "
                "values. Received: a block with self_attention=False"
            )
        pattern = self.attention.whole_pattern()
        right = None if pattern is None else pattern.span().right
        if right is None or right > 0:
            raise ValueError(
                "A block that is not causal cannot have a cache: a token would see tokens after "
                f"it. Pass causal=True. Received: causal={self.causal}, pattern={self.pattern!r}"
            )

    def _further(self, name, given):
        """An argument that some attention layers take, by its name, of a block that has one."""
        if name not in traits.of(self.attention).takes:
            raise ValueError(
                f"`{name}` is of an `attention` that takes it, such as LongformerAttention. "
                f"Received: {name}, attention={self.attention!r}"
            )
        return {name: given}

    def _memory(self, context, context_mask, cache=None, pairs=()):
        """The arguments of the cross-attention, checked as those of the self-attention are."""
        given = [name for name in pairs if not isinstance(pairs[name], str | None)]
        if given and not self.self_attention:
            raise ValueError(
                "Masks and biases of pairs, `positions`, `segment_ids` and `key_value` are of the "
                "self-attention, and this block has self_attention=False. Padding of the context "
                f"is `context_mask`. Received: {given}"
            )
        if cache is not None:
            self._check_causal()
        if isinstance(cache, dict) and kv_cache.is_context(cache):
            raise ValueError(
                "`cache` must be what `make_cache` or a call gave. Received what `cache_context` "
                "gave, which is passed as `context`"
            )
        if self.cross_attention == (context is None):
            raise ValueError(
                "A block takes a `context` if, and only if, it was made with cross_attention=True. "
                f"Received: cross_attention={self.cross_attention}, and "
                + ("no `context`" if context is None else "a `context`")
            )
        if context is not None and not isinstance(context, dict):
            mask = masks.padding(context, context_mask, "context", "context_mask")
            return {"value": context, "value_mask": mask}
        # Keras passes the masks that the parts of a dict carry, a dict of None.
        if context_mask is not None and not isinstance(context_mask, dict):
            raise ValueError(
                "`context_mask` is of a `context` that is a tensor; one from `cache_context` "
                f"contains its mask. Received it with a context of type {type(context).__name__}"
            )
        if context is not None and not kv_cache.is_context(context):
            raise ValueError(
                "`context` must be a tensor, or what `cache_context` gave. Received a dict of "
                f"{sorted(context)}"
            )
        return {} if context is None else {"cache": context}

    def _normalized(self, memory):
        """The result of `_memory` with its context normalized."""
        context = memory.get("value")
        if self.context_norm is None or context is None or isinstance(context, dict):
            return memory
        # As x is: floats, and without padding.
        (context,) = inputs.floats((context,), self.compute_dtype)
        context = masks.clear(context, memory["value_mask"])
        return {**memory, "value": self.context_norm(context)}

    def _returned(self, output, scores, handed, cache):
        """The result of `call`; `scores` are the returned ones, by attention."""
        returned = [scores if self.cross_attention else scores["attention"]] if scores else []
        returned += [x for x in (handed, cache) if x is not None]
        return (output, *returned) if returned else output

    # Shapes and masks, symbolically

    def compute_output_shape(self, x_shape, context_shape=None):
        makes = "attention" in self._made or not self.self_attention
        divides = self.key_dim is None and makes
        # A layer that replaces the self-attention may attend over a grid.
        axes = len(x_shape) == 3 or (len(x_shape) > 3 and not makes)
        if not axes or x_shape[-1] is None or (divides and x_shape[-1] % self.num_heads):
            raise ValueError(
                "`x` must be (batch, positions, features), with features that "
                f"`num_heads` divides unless `key_dim` is given. Received: "
                f"x.shape={tuple(x_shape)}, num_heads={self.num_heads}"
            )
        return tuple(x_shape)

    def compute_output_spec(self, *args, **kwargs):
        given = inputs.arguments(self.call, *args, **kwargs)
        x, cache, scores, handed = given.x, given.cache, {}, None
        names = "attention_mask", "attention_bias", "positions", "segment_ids"
        pairs = {name: getattr(given, name) for name in names}
        if given.global_mask is not None:
            pairs |= self._further("global_mask", given.global_mask)
        pairs |= {} if given.key_value is None else {"key_value": given.key_value}
        pairs |= {"return_key_value": True} if given.return_key_value else {}
        memory = self._memory(given.context, given.context_mask, cache, pairs)
        returns = given.return_attention_scores
        masks.padding(x, given.mask)
        if isinstance(self.attention, BaseAttention):
            of_call = {"return_attention_scores": returns, "use_causal_mask": self.causal}
            found = self.attention.compute_output_spec(x, cache=cache, **of_call, **pairs)
            found = found[1:] if isinstance(found, tuple) else ()
            handed = found[int(returns)] if given.return_key_value else None
            cache = None if cache is None else found[-1]
        elif self.self_attention:
            masks.boolean("attention_mask", given.attention_mask)
            if sequence.word(given.positions) is None:
                inputs.pair("positions", given.positions, x, x)
            inputs.pair("segment_ids", given.segment_ids, x, x)
            heads = getattr(self.attention, "num_heads", self.num_heads)
            shape = (x.shape[0], heads, x.shape[1], x.shape[1])
            found = [keras.KerasTensor(shape, self.compute_dtype)]
        if returns and self.self_attention:
            scores["attention"] = found[0]
        if self.cross_attention and self.built:
            layer = self.cross_attention_layer
            found = layer.compute_output_spec(x, return_attention_scores=returns, **memory)
            if returns:
                scores["cross_attention"] = found[1]
        dtype = shapes.wide_policy(self, self.wide_residual).compute_dtype
        output = keras.KerasTensor(self.compute_output_shape(x.shape), dtype)
        return self._returned(output, scores, handed, cache)
