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
SHORT = 16


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


def layers(sizes):
    heads, key_dim = sizes["heads"], sizes["features"] // sizes["heads"]
    far = sizes["max_distance"]
    return {
        "plain attention": lambda: keras_attention.Attention(heads, key_dim),
        "RelativePositionAttention": lambda: keras_attention.RelativePositionAttention(
            heads, key_dim, far
        ),
        "table of all pairs": lambda: TableOfPairs(heads, key_dim, far),
    }


def mebibytes(name, step, sizes):
    """What this process grows by at the full length, once it has run at a short one."""
    symbol = keras.Input((None, sizes["features"]))
    model = keras.Model(symbol, layers(sizes)[name]()(symbol))
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")

    def run(length):
        shape = (sizes["batch"], length, sizes["features"])
        x = np.random.default_rng(0).normal(size=shape).astype("float32")
        return model.predict_on_batch(x) if step == "forward" else model.train_on_batch(x, x)

    grown, _ = runner.growth(lambda: run(SHORT), lambda: run(sizes["length"]))
    return round(grown, 1)


def rows(sizes):
    for name in layers(sizes):
        found = {
            step: runner.in_a_process("shaw_memory", "mebibytes", name, step, sizes)
            for step in ("forward", "training")
        }
        yield {"name": name, **found}


def main():
    options = runner.parsed(runner.parser(__doc__))
    sizes = SMALL if options.small else FULL

    def text(row):
        steps = (f"{step} {row[step]:7.1f} MiB" for step in ("forward", "training"))
        return f"{row['name']:26} {', '.join(steps)}"

    runner.report(rows(sizes), options, text, **sizes)


if __name__ == "__main__":
    main()
