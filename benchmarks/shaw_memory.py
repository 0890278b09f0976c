"""What relative positions cost in memory: `python -m benchmarks.shaw_memory`.

`RelativePositionAttention` against plain attention, and against a layer that looks up the embedding
of every pair, (T, T, key_dim), for keys and for values, which is how equations 3 and 4 of Shaw et
al. 2018 are often written down. Each is measured in a separate process: how much further its
largest resident memory grows in a forward pass, or in a training step, than after imports and the
same on a short sequence. Compiling counts where the backend compiles anew for a new length (JAX).
"""

import keras
import numpy as np

import keras_attention
from benchmarks import runner

ops = keras.ops

FULL = {"batch": 1, "length": 1024, "features": 256, "heads": 4, "max_distance": 16}
SMALL = {**FULL, "length": 128, "features": 32}


@keras.saving.register_keras_serializable(package="benchmarks")
class TableOfPairs(keras.layers.Layer):
    """The same attention, by a table of the embeddings of all pairs."""

    def __init__(self, num_heads, key_dim, max_distance, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.key_dim, self.max_distance = num_heads, key_dim, max_distance

    def build(self, shape):
        size = self.num_heads * self.key_dim
        self.projections = [keras.layers.Dense(size, use_bias=False) for _ in range(3)]
        for projection in self.projections:
            projection.build(shape)
        rows = 2 * self.max_distance + 1
        self.tables = [self.add_weight(shape=(rows, self.key_dim)) for _ in range(2)]

    def call(self, x):
        batch, length = ops.shape(x)[:2]
        query, key, value = (
            ops.reshape(projection(x), (batch, length, self.num_heads, self.key_dim))
            for projection in self.projections
        )
        at = ops.arange(length)
        far = self.max_distance
        row = ops.clip(at[None, :] - at[:, None], -far, far) + far
        of_keys, of_values = (ops.take(table, row, axis=0) for table in self.tables)
        query = query * self.key_dim**-0.5
        scores = ops.einsum("bthk,bshk->bhts", query, key)
        scores = scores + ops.einsum("bthk,tsk->bhts", query, of_keys)
        weights = ops.softmax(scores)
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
    symbol = keras.Input((None, sizes["features"]))
    key_dim = sizes["features"] // sizes["heads"]
    layer = LAYERS[name](sizes["heads"], key_dim, sizes["max_distance"])
    model = keras.Model(symbol, layer(symbol))
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    shape = (sizes["batch"], length, sizes["features"])
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    if step == "forward":
        return lambda: model.predict_on_batch(x)
    return lambda: model.train_on_batch(x, x)


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
