"""`LinearAttention`: feature maps of query and key in place of the softmax."""

import functools
from typing import ClassVar

from keras import ops

from keras_attention import feature_maps, kernels, patterns, scores
from keras_attention.backend import backend
from keras_attention.core import keras_private, slots
from keras_attention.core.hints import Unpack
from keras_attention.kernels.linear_time import recurrence
from keras_attention.layers import kv_cache
from keras_attention.layers.linear_time.state_attention import StateAttention
from keras_attention.layers.options import StateOptions
from keras_attention.sequences import shapes
from keras_attention.sequences.sizes import known


class LinearAttention(StateAttention):
    r"""Multi-head attention in time and memory linear in the length (Katharopoulos et al. 2020).

    `output_t = Σ_s φ(q_t) · φ(k_s) v_s / Σ_s φ(q_t) · φ(k_s)`, equation 4: the sums
    `Σ_s φ(k_s) v_sᵀ` and `Σ_s φ(k_s)` are those of all queries, and with a cache those of all
    earlier tokens.

    Args:
        feature_map: φ, applied to each head: "elu" for `elu(x) + 1`, "favor", "relu", or an object
            of `feature_maps`.
        causal: whether position t sees only positions up to t.
        **kwargs: all other arguments of `MultiHeadAttention` but those of weights: `score`,
            `normalization`, `pattern`, `position`, `dropout`, `sliding_window`, `flash_attention`,
            `logit_soft_cap`, `use_sink` and `scores_regularizer`.

    Call arguments, results and errors are those of `MultiHeadAttention`. Masks of padding and
    `use_causal_mask` keep the cost linear. `attention_mask`, `attention_bias`, `positions`,
    `segment_ids` and `return_attention_scores` are computed from all pairs, in quadratic time.
    `make_cache` makes a state of constant size.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 32))
    >>> layer = keras_attention.LinearAttention(num_heads=4, key_dim=8, causal=True)
    >>> first, cache = layer(x[:, :4], cache=layer.make_cache(batch_size=2))
    >>> last, cache = layer(x[:, 4:], cache=cache)
    >>> bool(keras.ops.max(keras.ops.abs(last - layer(x)[:, 4:])) < 1e-5)
    True
    """

    own_traits: ClassVar = {
        "has_weights": True,
        "one_sequence": False,
        "layouts": (kv_cache.CONTEXT, kv_cache.STATE),
        "refused": (),
        "tokens_reason": None,
    }

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        feature_map: scores.ScoreLike = "elu",
        causal: bool = False,
        use_gate: bool = False,
        **kwargs: Unpack[StateOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, use_gate=use_gate, **kwargs)
        self.score = feature_maps.get(feature_map)
        self.normalization = feature_maps.SumToOne()
        self.causal = shapes.check_flag("causal", causal)
        self.preset_pattern = patterns.Causal() if self.causal else None
        self._sums_exponentials = isinstance(self.score, feature_maps.RandomFeatures)

    @functools.cached_property
    def traits(self):
        found = super().traits
        if not self._sums_exponentials:
            return found
        return found._replace(layouts=(*found.layouts, kv_cache.STATE_OF_EXPONENTS))

    @property
    def feature_map(self) -> scores.Score:
        """The feature map."""
        return self.score

    @property
    def state_shape(self) -> tuple[int, int]:
        return self.feature_map.features(self.key_dim), self.value_dim + 1

    @property
    def _cached_shapes(self) -> dict[str, tuple[int, ...]]:
        found = super()._cached_shapes
        return {**found, "largest": found["state"][:2]} if self._sums_exponentials else found

    def attend(self, query, key, value, positions, training=None, state=None, gates=(), **given):
        if state is not None and given["return_weights"]:
            raise ValueError(
                "A state has sums of tokens, and no weights of them. Received with a cache of "
                "`make_cache`: return_attention_scores"
            )
        if training and state is None and isinstance(self.score, feature_maps.DrawnFeatures):
            with keras_private.uncast_variables():
                self.score.count_call()
        if state is None and (key.shape[1] == 0 or _of_pairs(positions, **given)):
            with keras_private.uncast_variables():
                return kernels.run(*slots.problem(self, query, key, value, positions, **given))
        as_many = known(query.shape[1]) and query.shape[1] == key.shape[1]
        if state is None and given["pattern"] is not None and not as_many:
            key, value, given["key_mask"] = _cut(query, key, value, given["key_mask"])
        return super().attend(query, key, value, positions, training, state, gates, **given)

    def prepared(self, query, key, value):
        with keras_private.uncast_variables():
            return *self.score.prepare(query, key), _and_one(value)

    def recurrence(self, query, key, value, *, causal, state):
        if causal:
            sums, state = recurrence.run(query, key, value, state=state)
        else:
            sums, state = recurrence.at_once(query, key, value)
        return feature_maps.divided(sums[..., :-1], sums[..., -1:]), state

    def recur(self, heads, mask, causal, cache):
        if not self._sums_exponentials:
            return super().recur(heads, mask, causal, cache)
        query, key, value = heads
        with keras_private.uncast_variables():
            query, key = self.score.exponents(query), self.score.exponents(key)
        before = None
        if cache:
            # A cache of 0.2.0 has sums of features that were not divided.
            largest = cache.get("largest")
            largest = ops.zeros_like(cache["state"][..., 0]) if largest is None else largest
            before = cache["state"], largest
        given = query, key, _and_one(value), mask, causal, before
        sums, (state, largest) = recurrence.of_exponents(*given)
        after = {"state": state, "largest": largest}
        if cache and "largest" not in cache:
            after = {"state": state * ops.exp(ops.minimum(largest, 80.0))[..., None]}
        return feature_maps.divided(sums[..., :-1], sums[..., -1:]), after


def _and_one(value):
    """Values and a feature of 1, whose sums are those of the features of keys."""
    return ops.concatenate([value, ops.ones_like(value[..., :1])], axis=-1)


def _of_pairs(positions, *, key_mask, masks, biases, segment_ids, return_weights, **others):
    """Whether a call has arguments that need all pairs of queries and keys."""
    padding = (positions.query_mask is not None) + (key_mask is not None)
    pairs = segment_ids is not None or len(masks) > padding
    return pairs or positions.given or bool(biases) or return_weights


def _cut(query, key, value, key_mask):
    """Keys, values and their mask (B, S) as many as queries: later ones are seen by none."""
    length, given = backend.shape(query)[1], backend.shape(key)[1]
    if key_mask is None:
        key_mask = ops.ones((1, given), "bool")
    missing = backend.most_size(length - given, 0)
    widths = [(0, 0), (0, missing), (0, 0), (0, 0)]
    found = ops.pad(key, widths), ops.pad(value, widths), ops.pad(key_mask, widths[:2])
    return tuple(array[:, :length] for array in found)
