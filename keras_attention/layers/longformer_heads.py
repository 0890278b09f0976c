"""Heads of `LongformerAttention`, whose global tokens have projections of their own."""

import keras

from keras_attention.layers.heads import ROLES, EinsumHeads

ops = keras.ops


class LongformerHeads(EinsumHeads):
    """Queries (B, T, H, K), the first of which are global, and keys and values (B, 2S, G, K).

    Of these the first S are those of the window, and the others those of global tokens.
    """

    def build(self, query_shape, value_shape, key_shape):
        made = super().build(query_shape, value_shape, key_shape)
        given = zip(ROLES, (query_shape, key_shape, value_shape), strict=True)
        for role, shape in given:
            size = self.count(role), self.size(role, shape)
            made[f"global_{role}"] = self._einsum(f"global_{role}", shape, 1, size)
        return made

    def _has_bias(self, name):
        return super()._has_bias(name.removeprefix("global_"))

    def split_all(self, query, key, value):
        heads, count = super().split_all(query, key, value), self.layer.num_global
        given = zip(ROLES, (query[:, :count], key, value), strict=True)
        of_global = [
            self.project(f"global_{role}", x, self.count(role), self.size(role, None))
            for role, x in given
        ]
        return [
            ops.concatenate([of_global[0], heads[0][:, count:]], axis=1),
            *(ops.concatenate(pair, axis=1) for pair in zip(heads[1:], of_global[1:], strict=True)),
        ]
