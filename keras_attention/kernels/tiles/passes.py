"""The forward and the backward pass over tiles, over `Blocks` of keys or over `WholeRows`.

Softmax needs the largest score of a query and the sum of its exponentials. Both can be updated
block by block over the keys (Milakov & Gimelshein 2018). With m the largest so far, l (`ell`)
the sum and o the weighted values, a tile of scores S updates

    m' = max(m, max S)
    l' = l · exp(m − m') + Σ exp(S − m')
    o' = o · exp(m − m') + exp(S − m') V

and the output is O = o / l. The gradient does not store the weights either (Dao et al. 2022,
appendix B): from lse = m + ln l it recomputes them as P = exp(S − lse), and with
delta = dO · O − dlse

    dV = Pᵀ dO    dS = P ∘ (dO Vᵀ − delta)    dQ = dS K    dK = dSᵀ Q

lse is an output with a gradient too: it merges results over different keys
(`kernels.merge`). Blocks of keys that no query sees are skipped. A single tile stores its weights.

Where the backend's own softmax is one pass over the scores, a tile has few queries and all keys
that they see, so that P = softmax(S) needs no l, and the gradient computes it again.
"""

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels import semantics
from keras_attention.kernels.semantics import HAS_KEYS, MASKED
from keras_attention.kernels.tiles import sums
from keras_attention.sequences import masks


class Passes:
    """The two passes. `inputs` are the names of their arrays, in order.

    All is computed in the dtype `wide`, but products of the gradient of plain attention in
    `narrow`, which rounds each once, after its sum over the keys or queries of a tile. With
    `scale`, factors are of half precision, and products are multiplied by it, not queries.

    A subclass implements `_updated`, the state of a block of queries with a tile of scores, the
    first of which comes to None: (lse, output), or what `_finished` makes these of. `saved` gets
    what the gradient needs. `_weights` computes the weights of a tile by its scores and lse. It may
    override `_share`, a factor of the weights, and `_of_weights` and `_less_delta` of the gradient.
    """

    # Features of what is summed beside the output.
    _summed: tuple[int, ...] = ()

    def __init__(self, tiles, inputs, wide, narrow, needs_lse, scale=None):
        self.tiles, self.wide, self.narrow, self.needs_lse = tiles, wide, narrow, needs_lse
        self.scale = scale
        self.spec, self.plan = tiles.spec, tiles.plan
        self.structure = keras.tree.map_structure(lambda _: 0, inputs)
        self.adjusts = bool(semantics.adjustments(self.spec))
        # The factor of weights that dropout keeps: of outputs instead, which have fewer elements.
        self.grown = 1 / (1 - self.spec.dropout)

    def _named(self, flat):
        """The inputs by name, and those that belong to the spec."""
        inputs = keras.tree.pack_sequence_as(self.structure, list(flat))
        arrays = {k: x for k, x in inputs.items() if k not in ("query", "key", "value")}
        return inputs, arrays

    def forward(self, *flat):
        tiles, (x, arrays) = self.tiles, self._named(flat)
        saved, (scored_q, scored_k) = [], self._scored(x)
        size = x["value"].shape[-1]

        def row(chunk, i, carry):
            q = tiles.cut_rows(scored_q, tiles.tile(chunk, i, 0))

            def column(tile, state):
                spec = tiles.cut_spec(tiles.cut_arrays(arrays, tile), tile)
                k, v = (tiles.cut_columns(array, tile) for array in (scored_k, x["value"]))
                return self._updated(state, self._scores(spec, q, k), spec, v, tile, saved)

            def zeros():
                shape = backend.shape(q)[:3]
                lowest = ops.full((*shape, 1), MASKED, dtype=self.wide)
                sums = (*self._summed, size)
                return lowest, *(ops.zeros((*shape, n), dtype=self.wide) for n in sums)

            found = tiles.over_columns(chunk, i, column, None, zeros)
            o, lse = self._finished(*found, saved)
            return (o * self.grown if self.spec.dropout else o, lse), carry

        outputs, _ = tiles.over_rows(row, (size, 1), self.wide)
        return tuple(outputs), tuple(saved)

    def backward(self, flat, outputs, saved, upstream):
        tiles, (x, arrays) = self.tiles, self._named(flat)
        (output, lse), (of_output, of_lse) = outputs, upstream
        if self.spec.dropout:
            of_output = of_output * self.grown
        share = self._share(saved, lse)
        if share is not None:
            of_output, of_lse = of_output * share, of_lse * share
        do = self._narrow(of_output)
        # By dO as it is rounded for products: where values are alike, dO Vᵀ nearly cancels delta.
        delta = ops.sum(ops.cast(do, self.wide) * output, axis=-1, keepdims=True)
        delta = (delta / self.grown if self.spec.dropout else delta) - of_lse
        rows = {"q": self._factor(x["query"]), "do": do, "lse": lse}
        columns = {"k": self._factor(x["key"]), "v": self._factor(x["value"])}
        rows["scored_q"], columns["scored_k"] = self._scored(x)
        more_rows, more_columns = self._of_weights(of_output, columns["v"], delta)
        rows, columns = rows | more_rows, columns | more_columns
        total = sums.Sums(tiles, self.wide, x, arrays)

        def row(chunk, i, found):
            one = tiles.tile(chunk, i, 0)
            cut_rows = {name: tiles.cut_rows(array, one) for name, array in rows.items()}
            q = cut_rows["q"]

            def column(tile, state):
                dq, found = state
                cut = {name: tiles.cut_columns(array, tile) for name, array in columns.items()}
                t = {**cut, **cut_rows}
                own = tiles.cut_arrays(arrays, tile)
                spec = tiles.cut_spec(own, tile)
                if saved:
                    p, mask = saved[0], saved[-1] if self.spec.dropout else None
                    p = ops.cast(p, self.wide) if self.scale else p
                else:
                    # No name keeps the scores of the tile in memory.
                    p = self._weights(self._scores(spec, t["scored_q"], t["scored_k"]), t["lse"])
                    p = self._factor(p)
                    mask = self._dropout_mask(p, tile)
                more, new = self._gradients(tile, own, p, mask, t)
                return more if dq is None else dq + more, total.add(found, tile, new)

            start = (None, found), lambda: (ops.zeros_like(q, dtype=self.wide), found)
            dq, found = tiles.over_columns(chunk, i, column, *start)
            return (dq,), found

        size = x["query"].shape[-1]
        (of_query,), found = tiles.over_rows(row, (size,), self.wide, total.zeros())
        found = {"query": of_query, **total.together(found)}
        return [
            ops.cast(gradient, array.dtype)
            for gradient, array in zip(keras.tree.flatten(found), flat, strict=True)
        ]

    # Of one tile

    def _narrow(self, array):
        return ops.cast(array, self.narrow)

    def _factor(self, array):
        """An array that is cast as a whole, rather than for each product."""
        return array if self.scale else self._narrow(array)

    def _scaled(self, array):
        """Products of queries, or queries, scaled."""
        return ops.cast(array, self.wide) * self.scale if self.scale else array

    def _product(self, first, second, **transposed):
        """A product of `narrow` arrays, in `wide`."""
        return ops.cast(backend.matmul(first, second, **transposed), self.wide)

    def _scores(self, spec, q, k):
        """Scores (b, g, r·t, s), masked."""
        tiles = self.tiles
        s = self._scaled(backend.matmul(q, k, transpose_second=True))
        mask = semantics.mask(spec)
        if not self.adjusts and mask is None:
            return s
        s = tiles.by_heads(s)
        if self.adjusts:
            s = semantics.adjust(spec, s, tiles.by_heads(self._scaled(q)))
            s = semantics.masked(s, mask)
        else:
            s = backend.masked_products(s, mask, MASKED)
        return tiles.by_groups(s)

    def _output(self, spec, p, v, tile, saved, stored=lambda p: p):
        """Values summed by weights after dropout; `saved` gets these of a single tile, `stored`."""
        mask = self._dropout_mask(p, tile)
        if self.plan.single:
            # Below, the share of `Blocks` becomes the second of them, where `_share` reads it.
            saved.extend([stored(p)] if mask is None else [stored(p), mask])
        dropped = self._dropped(p, mask)
        output = backend.matmul(ops.cast(dropped, v.dtype), v)
        if spec.relative_values is None:
            return output
        more = semantics.relative_values(spec, self.tiles.by_heads(dropped))
        return output + self.tiles.by_groups(more)

    def _dropout_mask(self, p, tile):
        if not self.spec.dropout:
            return None
        return self.tiles.dropout_mask(backend.shape(p), tile)

    def _dropped(self, p, mask):
        """Weights but those that dropout drops; it would multiply the others by 1 / (1 − rate)."""
        if mask is None:
            return p
        if self.scale:
            # On JAX the zeros of `where` would be an array, read for each tile.
            return p * ops.cast(mask, p.dtype)
        return ops.where(mask, p, 0.0)

    def _scored(self, x):
        """Rows and columns whose products are the scores, apart from `semantics.adjust`."""
        return x["query"], x["key"]

    def _finished(self, lse, o, saved):
        return o, lse

    def _share(self, saved, lse):
        """By what the weights of a query must be multiplied, or None."""
        return None

    def _of_weights(self, do, v, delta):
        """Rows and columns whose products are dO Vᵀ, or that less delta, and `delta`."""
        return {"of_weights": self._narrow(do), "delta": delta}, {"of_weights_v": v}

    def _less_delta(self, dp, mask, delta):
        """By what weights are multiplied for the gradient of scores."""
        return self._dropped(dp, mask) - delta

    def _of_scores(self, p, dp, mask, delta):
        """The gradient of scores, of that of weights."""
        return p * self._less_delta(dp, mask, delta)

    def _gradients(self, tile, arrays, p, mask, t):
        """That of the query, and others by name: of key and value transposed, for fast products."""
        tiles, q, k, do = self.tiles, t["q"], t["k"], t["do"]
        dropped = self._dropped(p, mask)
        dp = backend.matmul(t["of_weights"], t["of_weights_v"], transpose_second=True)
        found = {"biases": (), "position_biases": ()}
        if "relative_values" in arrays:

            def of_values(dropped, table):
                spec = tiles.cut_spec({**arrays, "relative_values": table}, tile)
                return tiles.by_groups(semantics.relative_values(spec, tiles.by_heads(dropped)))

            _, pull = backend.vjp(of_values, (dropped, arrays["relative_values"]))
            more, found["relative_values"] = pull(ops.cast(do, self.wide))
            dp = dp + more
        ds = self._of_scores(p, dp, mask, t["delta"])
        found["value"] = self._product(do, self._narrow(dropped), transpose_first=True)
        if not self.adjusts:
            ds = self._narrow(self._scaled(ds))
            found["key"] = self._product(q, ds, transpose_first=True)
            return self._product(ds, k), found

        # From the scores back to the products, the query and the arrays.
        own = {name: array for name, array in arrays.items() if name != "relative_values"}

        def adjusted(products, q, *flat):
            given = keras.tree.pack_sequence_as(own, list(flat))
            spec = tiles.cut_spec({**arrays, **given}, tile)
            scores = semantics.adjust(spec, tiles.by_heads(products), tiles.by_heads(q))
            return tiles.by_groups(scores)

        # Without a cap `adjust` only adds to products, so that its gradient does not depend on
        # them: any array of their shape will do.
        capped = self.spec.logit_soft_cap is not None
        products = self._scaled(backend.matmul(q, k, transpose_second=True)) if capped else ds
        _, pull = backend.vjp(adjusted, (products, self._scaled(q), *keras.tree.flatten(own)))
        ds, dq, *flat = pull(ds)
        ds, dq = self._narrow(self._scaled(ds)), self._scaled(dq)
        found["key"] = self._product(q, ds, transpose_first=True)
        found |= keras.tree.pack_sequence_as(own, flat)
        return self._product(ds, k) + dq, found


class Blocks(Passes):
    """Blocks of keys, by the largest score m so far and the sum l (`ell`) so far."""

    _summed = (1,)

    def _updated(self, state, s, spec, v, tile, saved):
        m = ops.max(s, axis=-1, keepdims=True)
        if state is not None:
            m = backend.maximum(m, state[0])
        # The sum is of the weights as they are multiplied, so that rounding changes both and
        # values that are alike keep their mean.
        p = ops.cast(backend.exp(s - m), v.dtype)
        ell = ops.sum(ops.cast(p, self.wide), axis=-1, keepdims=True)
        o = self._output(spec, p, v, tile, saved)
        if state is None:
            return m, ell, o
        shrink = backend.exp(state[0] - m)
        return m, state[1] * shrink + ell, state[2] * shrink + o

    def _finished(self, m, ell, o, saved):
        # The output is divided by the sum, and not the weights, which have more elements.
        share, lse = 1.0 / ell, m + ops.log(ell)
        if self.tiles.restricted:
            share = ops.where(m > HAS_KEYS, share, 0.0)
            lse = ops.where(m > HAS_KEYS, lse, MASKED)
        if self.plan.single:
            saved.insert(1, share)
        return o * share, lse

    def _weights(self, s, lse):
        """The weights of a tile, again; 0 for queries without keys and padding of the last tile."""
        lse = ops.where(lse > HAS_KEYS, lse, -MASKED)
        # Never above 0, except by rounding of huge scores: exp would be infinite.
        return backend.exp(s - lse, highest=0.0)

    def _share(self, saved, lse):
        # Those stored are not divided by their sums.
        return saved[1][None] if saved else None


class Elementwise(Passes):
    """Weights that depend on their own scores alone. In place of lse is the largest score."""

    def _updated(self, state, s, spec, v, tile, saved):
        p = ops.cast(self._weights(s, None), v.dtype)
        m, o = ops.max(s, axis=-1, keepdims=True), self._output(spec, p, v, tile, saved)
        return (m, o) if state is None else (backend.maximum(state[0], m), state[1] + o)

    def _of_scores(self, p, dp, mask, delta):
        return self.spec.normalization.derivative(p) * self._dropped(dp, mask)

    def _weights(self, s, lse):
        return self.spec.normalization.function(s)


class WholeRows(Passes):
    """All keys that queries see in one tile, by the backend's softmax."""

    def _updated(self, state, s, spec, v, tile, saved):
        tiles, p = self.tiles, self._weights(s, None)
        o = self._output(spec, p, v, tile, saved, self._narrow)
        if self.needs_lse:
            # The largest weight is 1 / l.
            lse = ops.max(s, axis=-1, keepdims=True) - ops.log(ops.max(p, axis=-1, keepdims=True))
        else:
            lse = ops.zeros_like(o[..., :1])
        if not self.spec.restricted:
            return lse, o
        lse = tiles.by_groups(ops.where(self._has_keys(spec, tile), tiles.by_heads(lse), MASKED))
        return lse, o * self._share((), lse)

    def _weights(self, s, lse):
        normalization = self.spec.normalization
        return backend.softmax(s) if normalization is None else normalization(s, None)

    def _has_keys(self, spec, tile):
        """Whether queries have keys, as an array that broadcasts to (b, h, t, 1)."""
        mask, terms = semantics.mask(spec), self.tiles.constants["key_terms"]
        if terms is not None:
            terms = self.tiles.cut_columns(terms, tile)[:, :1, None, :, 0]
            mask = masks.both(mask, terms > HAS_KEYS)
        return ops.any(mask, axis=-1, keepdims=True)

    def _share(self, saved, lse):
        return ops.cast(lse > HAS_KEYS, self.wide) if self.spec.restricted else None

    # A term of each key, or of each query, is one more feature of a product.

    def _scored(self, x):
        terms = self.tiles.constants["key_terms"]
        if terms is None:
            return x["query"], x["key"]
        terms = ops.cast(terms, self.wide)
        return _beside(x["query"], _ones(x["query"])), _beside(x["key"], terms)

    def _of_weights(self, do, v, delta):
        # In two parts if it is rounded, since it may nearly cancel dO Vᵀ.
        parts = [self._narrow(delta)]
        if self.narrow != self.wide:
            parts.append(self._narrow(delta - ops.cast(parts[0], self.wide)))
        rows, columns = self._narrow(do), v
        for part in parts:
            rows, columns = _beside(rows, -part), _beside(columns, _ones(v))
        return {"of_weights": rows, "delta": delta}, {"of_weights_v": columns}

    def _less_delta(self, dp, mask, delta):
        return dp if mask is None else ops.where(mask, dp, ops.cast(-delta, dp.dtype))


class NormalizedRows(WholeRows):
    """All keys that queries see in one tile, by a `RowNormalization`."""

    _of_weights = Passes._of_weights

    def _of_scores(self, p, dp, mask, delta):
        slope, dp = self.spec.normalization.slope(p), self._dropped(dp, mask)
        total = ops.sum(slope, axis=-1, keepdims=True)
        mean = ops.sum(slope * dp, axis=-1, keepdims=True) / total
        return slope * (dp - mean)


def _ones(array):
    """A feature for `array`: (…, 1)."""
    return ops.ones_like(array[..., :1])


def _beside(array, feature):
    return ops.concatenate([array, feature], axis=-1)
