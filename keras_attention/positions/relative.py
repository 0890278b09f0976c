"""Vectors of distances, compared with queries and keys: learned, of sines, projected, counted."""

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_attention import saving, scores
from keras_attention.backend import backend
from keras_attention.core.hints import Constraint, Initializer, Regularizer, Tensor
from keras_attention.kernels import relative, semantics
from keras_attention.positions.base import Position, check_shared
from keras_attention.positions.biases import check_distance
from keras_attention.positions.rotary import angles
from keras_attention.sequences import masks, shapes
from keras_attention.spec import Positions


class Shaw(Position):
    r"""Relative position representations of Shaw et al. 2018, equations 3 and 4.

    `score[i, j] = q_i · (k_j + a^K[d]) · scale` and `output_i = Σ_j weight[i, j] (v_j + a^V[d])`,
    with `d = clip(j − i, −max_distance, max_distance)` and learned `a^K`, `a^V` of
    2 · max_distance + 1 rows. No table of all pairs, (T, S, key_dim), is materialized: see
    `kernels.relative`.

    Args:
        max_distance: k of the paper; larger distances are clipped to k. A pair (left, right) clips
            those of keys before and after the query apart, as in Wav2Vec2-BERT: j − i to −left and
            right, with left + right + 1 rows.
        use_values: whether the values have embeddings too. The paper found that those of the keys
            may be enough (table 3).
        per_head: whether each head has its own embeddings; the paper shares them.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of both.

    Raises:
        ValueError: `max_distance` is no integer of at least 1, nor a pair of which one is;
            the attention's score is not an inner product of the heads themselves, "dot" or
            "scaled_dot"; or layers of different sizes share one object.

    >>> import keras
    >>> from keras_attention import SelfAttention, positions
    >>> layer = SelfAttention(2, 4, position=positions.Shaw(3))
    >>> layer(keras.random.normal((2, 5, 8))).shape
    (2, 5, 8)
    >>> [tuple(weight.shape) for weight in layer.position.weights]
    [(1, 7, 4), (1, 7, 4)]
    """

    scores = (scores.Dot, scores.ScaledDot)
    encodes_alone = True
    _build_sizes = ("value_size",)

    def __init__(
        self,
        max_distance: int | Sequence[int],
        use_values: bool = True,
        per_head: bool = False,
        embeddings_initializer: Initializer = "glorot_uniform",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.max_distance = _sides(max_distance)
        self.use_values = shapes.check_flag("use_values", use_values)
        self.per_head = shapes.check_flag("per_head", per_head)
        options = embeddings_initializer, embeddings_regularizer, embeddings_constraint
        self._keep_options("embeddings", *options)
        self._value_size = None

    def build_values(self, value_shape):
        if self.use_values:
            if self.built:
                check_shared(self, self._value_size, value_dim=value_shape[-1])
            self._value_size = value_shape[-1]

    def build(self, query_shape, key_shape):
        rows = query_shape[2] if self.per_head else 1, len(set(self._rows()))
        shape = (*rows, query_shape[-1])
        self._of_keys = self._add_weight("embeddings", shape, name="key_embeddings")
        self._of_values = None
        if self.use_values:
            shape = (*rows, self._value_size)
            self._of_values = self._add_weight("embeddings", shape, name="value_embeddings")

    def _rows(self):
        """The row of each distance, from −k to k for the larger side k."""
        left, right = np.broadcast_to(self.max_distance, 2)
        k = max(left, right)
        return np.clip(np.arange(-k, k + 1), -left, right) + left

    def encode(self, query, key, query_positions, key_positions):
        check_shared(self, self._of_keys.shape[-1], key_dim=query.shape[-1])
        return query, key

    def into_spec(self, spec, query, key, key_mask=None, projected=()):
        if self.per_head:
            check_shared(self, self._of_keys.shape[0], num_heads=query.shape[2])
        named = {"relative_keys": self._of_keys, "relative_values": self._of_values}
        tables = {name: ops.convert_to_tensor(x) for name, x in named.items() if x is not None}
        if not isinstance(self.max_distance, int):
            # Kernels read equal sides: the last row of the shorter one again.
            tables = {name: ops.take(x, self._rows(), axis=1) for name, x in tables.items()}
        return spec.replace(**tables)


def _sides(max_distance):
    """The argument `max_distance` of `Shaw`: an integer, or one for each side."""
    if not isinstance(max_distance, (list, tuple)) or len(max_distance) != 2:
        return shapes.check_count("max_distance", max_distance)
    sides = tuple(shapes.check_count("max_distance", side, 0) for side in max_distance)
    shapes.check_count("max_distance", max(sides))
    return sides


class TransformerXL(Position):
    r"""Relative positions of Transformer-XL. Dai et al. 2019 (arXiv 1901.02860), section 3.3.

    `score(i, j) = ((q_i + u) · k_j + (q_i + v) · W r_{i − j}) / √K` with u, v and W learned by each
    head, and the sines and cosines of the distance, of `dim` features:

        r_d = [sin(d θ_n), …, cos(d θ_n), …],  θ_n = max_wavelength^(−2 n / dim)

    The second term is an inner product of two vectors that each depend on one position, since
    `sin(a − b)` is such a sum, so that positions of any kind, and caches, cost the same. Kernels
    get it as a bias of all pairs, (B, H, T, S).

    The memory of the segment before is a cache, of a layer whose pattern is a window.

    Args:
        dim: number of sines and cosines, even. None is that of a head's features; the paper has
            that of the model's.
        max_wavelength: the longest wavelength, divided by 2π.
        max_distance: None, or the distance from which on, to either side, all have one r, as with
            `clamp_len` in the authors' code and in XLNet.
        kernel_initializer: of W.
        bias_initializer: of u and v.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number is not as described, the score is not "scaled_dot" or has another
            scale, or layers of different sizes share it.

    >>> import keras
    >>> from keras_attention import MultiHeadAttention, patterns
    >>> window = patterns.SlidingWindow(3, 0)
    >>> layer = MultiHeadAttention(8, 4, position="transformer_xl", pattern=window)
    >>> segments = keras.random.normal((2, 10, 32))
    >>> whole = layer(segments, use_causal_mask=True)
    >>> memory = layer.make_cache(2, 4)
    >>> first, memory = layer(segments[:, :5], cache=memory)
    >>> second, memory = layer(segments[:, 5:], cache=memory)
    >>> bool(keras.ops.max(keras.ops.abs(second - whole[:, 5:])) < 1e-5)
    True
    """

    scores = (scores.ScaledDot,)
    divides = "both terms by √K"
    encodes_alone = True

    def __init__(
        self,
        dim: int | None = None,
        max_wavelength: float = 10000,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        max_distance: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.max_distance = check_distance(max_distance, 1, optional=True)
        self.dim = shapes.check_count("dim", dim, 2, optional=True)
        if dim is not None and dim % 2:
            raise ValueError(
                "TransformerXL has a sine and a cosine of each wavelength, so that `dim` must be "
                f"even. Received: dim={dim}"
            )
        self.max_wavelength = shapes.check_number("max_wavelength", max_wavelength, above=1)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, query_shape, key_shape):
        heads, size = query_shape[2:]
        dim = self.dim or size + size % 2
        self.kernel = self.add_weight((dim, heads, size), self.kernel_initializer, name="kernel")
        for name in ("content_bias", "position_bias"):
            initializer = saving.clone_initializer(self.bias_initializer)
            setattr(self, name, self.add_weight((heads, size), initializer, name=name))

    def _terms(self, spec, query, key, *projected):
        _, heads, size = self.kernel.shape
        check_shared(self, heads, num_heads=query.shape[2])
        check_shared(self, size, key_dim=query.shape[3])
        wide, (query, key) = query.dtype, map(semantics.finite, (query, key))
        weights = self.kernel, self.content_bias, self.position_bias
        kernel, u, v = (ops.cast(weight, wide) for weight in weights)
        scale = query.shape[-1] ** -0.5
        # Groups (G, H / G, K) of heads that share a key.
        u = ops.reshape(u * scale, (key.shape[2], -1, u.shape[-1]))
        of_keys = ops.einsum("grk,bsgk->bgrs", u, key)
        batch, length = ops.shape(key)[:2]
        of_keys = ops.reshape(of_keys, (batch, query.shape[2], 1, length))
        dim, query = kernel.shape[0], (query + v) * scale
        theta = float(self.max_wavelength) ** (-np.arange(0, dim, 2) / dim)
        at: Any = spec.positions
        if self.max_distance is not None:
            clipped = np.arange(self.max_distance, -self.max_distance - 1, -1)[:, None] * theta
            sines = np.concatenate([np.sin(clipped), np.cos(clipped)], axis=1)
            table = ops.einsum("rn,nhk->hrk", ops.cast(sines, wide), kernel)
            query = ops.transpose(query, (0, 2, 1, 3))
            return of_keys, relative.scores(query, table, length, at)
        sines, cosines = ops.split(ops.einsum("bthk,nhk->bhtn", query, kernel), 2, axis=-1)
        of_i, of_j = (angles(ops.cast(x, wide), theta) for x in (at.query, at.key))
        sin_i, cos_i, sin_j, cos_j = ops.sin(of_i), ops.cos(of_i), ops.sin(of_j), ops.cos(of_j)
        if len(at.query.shape) == 2:
            sin_i, cos_i = sin_i[:, None], cos_i[:, None]
        # sin(i − j) = sin i cos j − cos i sin j,  cos(i − j) = cos i cos j + sin i sin j
        of_queries = ops.concatenate(
            [sines * sin_i + cosines * cos_i, cosines * sin_i - sines * cos_i], axis=-1
        )
        of_positions = ops.concatenate([cos_j, sin_j], axis=-1)
        keys = "bsn" if len(at.key.shape) == 2 else "sn"
        pairs = ops.einsum(f"bhtn,{keys}->bhts", of_queries, of_positions)
        return of_keys, pairs


# By the names of DeBERTa's terms, content to position and position to content, the role that the
# table has in each.
_TERMS = {"c2p": "key", "p2c": "query"}


class Disentangled(Position):
    r"""Disentangled attention of DeBERTa: He et al. 2021 (arXiv 2006.03654), equation 4.

    `score(i, j) = (q_i · k_j + q_i · k^r_δ + k_j · q^r_δ) / √(3 K)`, where `k^r` and `q^r` are the
    rows of a learned table E, (2k, D), projected by the layer's own weights of keys and queries, as
    its inputs are; and, of distances i − j,

        δ = clip(k + bucket(i − j), 0, 2k − 1)

        bucket(d) = d                                                        for |d| ≤ e = k / 2
        bucket(d) = sign(d) (e + ⌈(e − 1) · ln(|d| / e) / ln((m − 1) / e)⌉)    otherwise

    with m = `max_distance`. The buckets are those of DeBERTa's versions 2 and 3, in float32 as in
    their code; the paper has none, which is `max_distance=None`: bucket(d) = d. In the third term
    the paper writes δ of j − i; trained weights are of the code, and of i − j.

    With one of the two terms the scores are divided by √(2 K).

    DeBERTa shares one table among its layers: pass one `Disentangled` to all. Kernels get the last
    two terms as a bias of all pairs, (B, H, T, S).

    Args:
        num_buckets: 2k, rows of the table, for both directions together.
        max_distance: the distance from which on all share a row, or None for a row per distance.
        norm: None, or a Keras layer that is applied to the table, such as
            `keras.layers.LayerNormalization` (versions 2 and 3).
        terms: which of the last two terms there are: `k^r` is of "c2p", `q^r` of "p2c".
        own_projections: whether each layer projects the table by weights apart from those of its
            inputs, `position_query` and `position_key`, as in version 1, and with
            `share_att_key=False` of the others. They have biases if the layer's have.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of the table.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number is too small, `num_buckets` no multiple of 4, or terms are not as
            described; the score is not
            "scaled_dot", or has another scale; queries and keys are projected from inputs of
            unequal sizes, or layers of different sizes share it; or it is used in a function, which
            projects nothing.
        TypeError: `norm` is not a layer.

    >>> import keras
    >>> from keras_attention import SelfAttention, positions
    >>> position = positions.Disentangled(16, 50)
    >>> layers = [SelfAttention(8, 4, position=position) for _ in range(2)]
    >>> layers[1](layers[0](keras.random.normal((2, 5, 32)))).shape
    (2, 5, 32)
    >>> position.embeddings.shape
    (16, 32)
    """

    scores = (scores.ScaledDot,)
    encodes_alone = True
    _build_sizes = ("features",)

    def __init__(
        self,
        num_buckets: int = 512,
        max_distance: int | None = 512,
        norm: keras.layers.Layer | None = None,
        embeddings_initializer: Initializer = "uniform",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        terms: Sequence[Literal["c2p", "p2c"]] = ("c2p", "p2c"),
        own_projections: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        listed = isinstance(terms, (list, tuple))
        if not listed or sorted(map(str, terms)) not in (["c2p"], ["p2c"], ["c2p", "p2c"]):
            raise ValueError(
                f"`terms` must be one or both of {tuple(_TERMS)}, each once. "
                f"Received: terms={terms!r}"
            )
        self.terms = tuple(terms)
        self.own_projections = shapes.check_flag("own_projections", own_projections)
        self.table_roles = tuple(_TERMS[term] for term in terms)
        # Of these, and of contents alone.
        self._count = 1 + len(terms)
        self.divides = f"all terms by √({self._count} K)"
        self.num_buckets = shapes.check_count("num_buckets", num_buckets, 4)
        if num_buckets % 4:
            raise ValueError(
                "Each of two directions has near and far buckets, as many of either, so "
                f"`num_buckets` must be a multiple of 4. Received: num_buckets={num_buckets}"
            )
        # With fewer the logarithm of (m − 1) / e would not be above 0.
        self.max_distance = check_distance(max_distance, num_buckets // 4 + 2, optional=True)
        self.norm = saving.check_layer("norm", norm, optional=True)
        options = embeddings_initializer, embeddings_regularizer, embeddings_constraint
        self._keep_options("embeddings", *options)
        self._features: int | None = None

    def build_inputs(self, query_shape, key_shape):
        name = "Numbers of features that Disentangled's table is projected from"
        shapes.check_same(name, query=query_shape[-1], key=key_shape[-1])
        if self.built:
            check_shared(self, self._features, features=query_shape[-1])
        self._features = query_shape[-1]

    def build(self, query_shape, key_shape):
        _check_of_a_layer(self._features is not None)
        self.embeddings = self._add_weight("embeddings", (self.num_buckets, self._features))
        if self.norm is not None and not self.norm.built:
            self.norm.build(self.embeddings.shape)

    def projected_table(self) -> Tensor:
        table = ops.convert_to_tensor(self.embeddings)
        return table if self.norm is None else self.norm(table)

    def rows(self) -> np.ndarray:
        """The row of each j − i, from −m to m for m = `max_distance`: a NumPy array of int32.

        Larger distances have the rows of ±m, which is k with `max_distance=None`.
        """
        return _rows(self.num_buckets, self.max_distance)

    def encode(self, query, key, query_positions, key_positions):
        return query * self._count**-0.5, key

    def _terms(self, spec, query, key, *projected):
        _check_of_a_layer(bool(projected))
        query, key, *tables = map(semantics.finite, (query, key, *projected))
        heads, size = query.shape[2:]
        found = []
        at: Positions = spec.positions
        # Positions with queries and keys exchanged.
        back = Positions(at.key, at.query, at.consecutive, -at.offset)
        for term, table in zip(self.terms, tables, strict=True):
            if term == "c2p":
                found.append(_products(query, table, self.rows(), heads, at))
                continue
            # `encode` has divided queries.
            table = table * self._count**-0.5
            products = _products(key, table, self.rows()[::-1].copy(), heads, back)
            found.append(ops.swapaxes(products, 2, 3))
        return (sum(found[1:], found[0]) * size**-0.5,)


def _check_of_a_layer(known):
    """Raises if nothing is known of a layer."""
    if not known:
        raise ValueError(
            "Disentangled has a table that a layer projects by its own weights: use an attention "
            "layer. Received: a call of a function"
        )


def _products(array, table, rows, heads, positions):
    """Products (B, H, T, S) of (B, T, H, K) and, by the row of each distance, of (N, H, K)."""
    array, table = (
        x if x.shape[axis] == heads else ops.repeat(x, heads // x.shape[axis], axis=axis)
        for x, axis in ((array, 2), (table, 1))
    )
    table = ops.transpose(backend.take(table, ops.convert_to_tensor(rows), axis=0), (1, 0, 2))
    length = ops.shape(positions.key)[-1]
    return relative.scores(ops.transpose(array, (0, 2, 1, 3)), table, length, positions)


@functools.lru_cache(maxsize=64)
def _rows(num_buckets, max_distance):
    k = num_buckets // 2
    last = k if max_distance is None else max_distance
    distance = np.arange(last + 1)
    bucket = distance
    if max_distance is not None:
        exact = k // 2
        # Every step in float32, as in DeBERTa's code: a distance may lie on the edge of two.
        ratio = np.maximum(distance, exact).astype("float32") / np.float32(exact)
        steps = np.log(ratio) / np.log(np.float32((last - 1) / exact)) * np.float32(exact - 1)
        far = np.ceil(steps).astype("int32") + exact
        bucket = np.where(distance <= exact, distance, far)
    # Keys before the query, at −last … −1, are at positive distances i − j.
    both = np.concatenate([np.flip(bucket[1:]), -bucket])
    found = np.clip(k + both, 0, num_buckets - 1).astype("int32")
    return np.broadcast_to(found, found.shape)  # which may not be written


class CoPE(Position):
    r"""Contextual position encoding. Golovneva et al. 2024 (arXiv 2405.18719), equations 3 to 5.

    The position of a key is the number of tokens, from it to the query, whose gate is open:

        g_ij = σ(q_i · k_j / √K)
        p_ij = min(Σ_{s = j … i} g_is, max_position)
        score(i, j) = q_i · k_j / √K + q_i · e[p_ij]

    with learned e[0] … e[max_position], interpolated between whole numbers. Gates of keys that are
    masked, or after the query, are 0, so that it is causal. The scale of the gates is that of the
    authors' code; the paper leaves out all scales.

    A position needs the gates of all keys between, so the term is computed for all pairs at once:
    a bias (B, H, T, S), and about three times the memory of the scores. Layers may share it.

    Args:
        max_position: the largest position; with the zeroth there is one more embedding.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of e,
            (max_position + 1, K).
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: `max_position` is no integer of at least 1, queries and keys have different
            numbers of features, or heads of unequal sizes share it.

    >>> import keras
    >>> from keras_attention import SelfAttention, positions
    >>> layer = SelfAttention(8, 4, causal=True, position=positions.CoPE(16))
    >>> layer(keras.random.normal((2, 5, 32))).shape
    (2, 5, 32)
    >>> layer.position.embeddings.shape
    (17, 4)
    """

    encodes_alone = True

    def __init__(
        self,
        max_position: int = 63,
        embeddings_initializer: Initializer = "zeros",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.max_position = shapes.check_count("max_position", max_position)
        options = embeddings_initializer, embeddings_regularizer, embeddings_constraint
        self._keep_options("embeddings", *options)

    def build(self, query_shape, key_shape):
        sizes = {"query": query_shape[-1], "key": key_shape[-1]}
        shapes.check_same("Features of query and key, of whose products CoPE has gates,", **sizes)
        self.embeddings = self._add_weight("embeddings", (self.max_position + 1, query_shape[-1]))

    def _terms(self, spec, query, key, *projected):
        check_shared(self, self.embeddings.shape[-1], key_dim=query.shape[-1])
        query, key = map(semantics.finite, (query, key))
        terms = ops.einsum("bthk,nk->bhtn", query, ops.cast(self.embeddings, query.dtype))
        # The last whole number but one, so that there is one above it.
        counts = ops.clip(self._counts(spec, query, key), -math.inf, self.max_position)
        below = ops.clip(ops.floor(counts), -math.inf, self.max_position - 1)
        share = counts - ops.stop_gradient(below)
        # TensorFlow takes no index that NaN has become.
        at = ops.maximum(ops.cast(below, "int32"), 0)
        low, high = (backend.take_last(terms, index) for index in (at, at + 1))
        return (low + share * (high - low),)

    def _counts(self, spec, query, key):
        """How many gates of each query are open from each key on, (B, H, T, S)."""
        if key.shape[2] != query.shape[2]:
            key = ops.repeat(key, query.shape[2] // key.shape[2], axis=2)
        gates = ops.einsum("bthk,bshk->bhts", query * query.shape[-1] ** -0.5, key)
        at: Any = spec.positions
        i, j = at.pairs
        allowed = masks.both(semantics.mask(spec), j <= i)
        gates = ops.where(allowed, ops.sigmoid(gates), ops.zeros_like(gates))
        if at.consecutive:
            return ops.flip(backend.cumsum(ops.flip(gates, axis=-1)), axis=-1)
        # A cache may store keys in another order than that of their positions.
        first = ops.argsort(-at.key, axis=-1)
        back = ops.argsort(first, axis=-1)
        return _ordered(backend.cumsum(_ordered(gates, first)), back)


def _ordered(pairs, order):
    """Pairs (B, H, T, S) with their keys in an order, (S,) or (B, S)."""
    order = order[None] if len(order.shape) == 1 else order
    # By a sum: XLA cannot compile TensorFlow's gradient of a broadcast inside a loop.
    order = order[:, None, None] + ops.cast(ops.zeros_like(pairs), order.dtype)
    return ops.take_along_axis(pairs, order, axis=-1)
