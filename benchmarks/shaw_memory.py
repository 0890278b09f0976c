"""What relative positions cost in memory: `python -m benchmarks.shaw_memory`.

`RelativePositionAttention` against plain attention, and against a layer that looks up the embedding
of every pair, (T, T, key_dim), for keys and for values, which is how equations 3 and 4 of Shaw et
al. 2018 are often written down. Each is measured in a separate process: how much further its
largest resident memory grows in a forward pass, or in a training step, than after imports and the
same on a short sequence. Compiling counts where the backend compiles anew for a new length (JAX).
"""

import keras

import keras_attention
from benchmarks import runner
from benchmarks.backends import trained

ops = keras.ops

FULL = {"batch": 1, "length": 1024, "features": 256, "heads": 4, "max_distance": 16}
SMALL = {**FULL, "length": 128, "features": 32}


class TableOfPairs(keras.layers.Layer):
    """The same attention, by a table of the embeddings of all pairs."""

    def __init__(self, num_heads, key_dim, max_distance):
        super().__init__()
        self.num_heads, self.key_dim, self.max_distance = num_heads, key_dim, max_distance
        size, rows = num_heads * key_dim, 2 * max_distance + 1
        self.projections = [keras.layers.Dense(size, use_bias=False) for _ in range(3)]
        self.tables = [keras.layers.Embedding(rows, key_dim) for _ in range(2)]

    def call(self, x):
        batch, length = ops.shape(x)[:2]
        query, key, value = (
            ops.reshape(projection(x), (batch, length, self.num_heads, self.key_dim))
            for projection in self.projections
        )
        at, far = ops.arange(length), self.max_distance
        row = ops.clip(at[None, :] - at[:, None], -far, far) + far
        of_keys, of_values = (table(row) for table in self.tables)
        query = query * self.key_dim**-0.5
        scores = ops.einsum("bthk,bshk->bhts", query, key)
        weights = ops.softmax(scores + ops.einsum("bthk,tsk->bhts", query, of_keys))
        output = ops.einsum("bhts,bshv->bthv", weights, value)
        output = output + ops.einsum("bhts,tsv->bthv", weights, of_values)
        return ops.reshape(output, (batch, length, self.num_heads * self.key_dim))

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.num_heads * self.key_dim)


LAYERS = {
    "plain attention": lambda heads, size, far: keras_attention.Attention(heads, size),
    "RelativePositionAttention": keras_attention.RelativePositionAttention,
    "table of all pairs": TableOfPairs,
}


def run(name, step, sizes, length):
    """A function that does a step of a layer at one length."""
    batch, features, heads = sizes["batch"], sizes["features"], sizes["heads"]
    layer = LAYERS[name](heads, features // heads, sizes["max_distance"])
    shape, jit = (batch, length, features), keras.backend.backend() == "jax"
    return trained(layer, shape, jit, step == "training")


def row(name, sizes):
    found = {"name": name}
    for step in ("forward", "training"):
        lengths = [name, step, sizes, 16], [name, step, sizes, sizes["length"]]
        found[step] = round(runner.growth("shaw_memory", "run", *lengths)["MiB"], 1)
    return found


def main():
    options = runner.parsed(__doc__)
    sizes = SMALL if options.small else FULL
    runner.report((row(name, sizes) for name in LAYERS), options, **sizes)


if __name__ == "__main__":
    main()
