"""Draws the pictures of the pages on normalizations, patterns, heads and pooling.

`python docs/pictures/family.py` writes them beside this file; names of pictures as arguments draw
only those. Everything shown is computed by keras_attention.
"""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib
import numpy as np

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.colors import LinearSegmentedColormap

import keras_attention
from keras_attention import normalizations, ops, regularizers

HERE = pathlib.Path(__file__).parent
INK, WARM, GREEN, GREY = "#1f4e79", "#c8553d", "#5b8c5a", "#8a8a8a"
SHADES = LinearSegmentedColormap.from_list("shades", ["#f4f4f1", INK])

plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})


def array(tensor):
    """A tensor of any backend as a NumPy array."""
    return keras.ops.convert_to_numpy(tensor)


def grid(axis, weights, title, highest=1.0, aspect="equal"):
    """Weights or booleans (T, S): queries down, keys across."""
    axis.imshow(np.asarray(weights, "float32"), cmap=SHADES, vmin=0, vmax=highest, aspect=aspect)
    queries, keys = np.shape(weights)
    axis.set_xticks(np.arange(-0.5, keys), minor=True)
    axis.set_yticks(np.arange(-0.5, queries), minor=True)
    axis.grid(which="minor", color="white", linewidth=0.6)
    axis.tick_params(which="both", length=0, labelbottom=False, labelleft=False)
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.set_title(title, fontsize=9)


def save(figure, name):
    """Writes a figure beside this file."""
    figure.savefig(HERE / f"{name}.png", dpi=110, bbox_inches="tight", facecolor="white")
    plt.close(figure)


# Patterns


def draw_patterns_presets():
    """The pairs that the presets give any weight."""
    shown = {
        "SelfAttention(causal=True)": keras_attention.SelfAttention(causal=True),
        "LocalSelfAttention(\nneighbors=2, rate=2)": keras_attention.LocalSelfAttention(
            neighbors=2, rate=2
        ),
        "AtrousSelfAttention(rate=3)": keras_attention.AtrousSelfAttention(rate=3),
        "SparseSelfAttention(\nrate=4, causal=True)": keras_attention.SparseSelfAttention(
            rate=4, causal=True
        ),
    }
    x = keras.ops.ones((1, 16, 4))
    figure, axes = plt.subplots(1, 4, figsize=(9.2, 2.6))
    for axis, (title, layer) in zip(axes, shown.items(), strict=True):
        grid(axis, array(layer(x, return_attention_scores=True)[1])[0, 0] > 0, title)
    save(figure, "patterns_presets")


def draw_patterns_packed():
    """Three texts packed into one row."""
    texts = np.repeat([[0, 1, 2]], [5, 7, 4], axis=1)
    places = np.concatenate([np.arange(5), np.arange(7), np.arange(4)])[None]
    x = keras.ops.ones((1, 16, 8))
    figure, axes = plt.subplots(1, 3, figsize=(8.2, 3))
    causal = {"segment_ids": texts, "use_causal_mask": True}
    calls = {
        "segment_ids": {"segment_ids": texts},
        "segment_ids, causal": causal,
        "and ALiBi, by positions\nthat restart (shade: weight)": {**causal, "positions": places},
    }
    for axis, (title, arguments) in zip(axes, calls.items(), strict=True):
        position = "alibi" if "positions" in arguments else None
        layer = keras_attention.Attention(position=position)
        weights = array(layer(x, return_attention_scores=True, **arguments)[1])[0, 0]
        grid(axis, weights if position else weights > 0, title)
    save(figure, "patterns_packed")


def draw_local():
    """Windows of local-m and local-p, and one query of local-p."""
    keras.utils.set_random_seed(3)
    queries, memory = keras.random.normal((1, 12, 6)), keras.ops.ones((1, 24, 6))
    figure, axes = plt.subplots(1, 3, figsize=(10, 3), width_ratios=[1.25, 1.25, 1])
    for axis, mode in zip(axes, ("monotonic", "predictive"), strict=False):
        layer = keras_attention.LocalAttention(4, mode, score="dot")
        weights = array(layer(queries, memory, return_attention_scores=True)[1])[0, 0]
        grid(axis, weights, f'LocalAttention(4, "{mode}")', highest=weights.max(), aspect="auto")
    keys = np.arange(24)
    row = 7
    memory = 0.4 * np.random.default_rng(2).normal(size=(1, 24, 6)).astype("float32")
    seen = array(layer(queries, memory, return_attention_scores=True)[1])[0, 0, row]
    hidden = np.tanh(array(queries)[0, row] @ array(layer.centre_kernel)[0])
    center = 24 / (1 + np.exp(-(hidden @ array(layer.centre_vector)[0, :, 0])))
    gauss = np.exp(-2 * ((keys - center) / 4) ** 2)
    softmax = np.where(seen > 0, seen / gauss, 0)
    axes[2].bar(keys, softmax, color="#cfd8e3", label="softmax")
    axes[2].bar(keys, seen, color=INK, label="weight")
    axes[2].plot(keys, gauss * softmax.max(), color=WARM, linewidth=1)
    axes[2].axvline(center, color=WARM, linewidth=1, linestyle=":", label="centre p")
    axes[2].set_title("one query of local-p", fontsize=9)
    axes[2].set_xlabel("keys")
    axes[2].set_yticks([])
    axes[2].legend(frameon=False, fontsize=8)
    save(figure, "local")


# Normalizations


def draw_normalizations():
    """Weights of the same scores under each normalization."""
    scores = np.array([2.2, 1.9, 0.8, 0.3, -0.4, -1.5], "float32")
    names = ["softmax", "sparsemax", "sigmoid", "hard"]
    figure, axes = plt.subplots(1, 5, figsize=(11, 2.3), width_ratios=[1, 1, 1, 1, 1.4])
    for axis, name in zip(axes, names, strict=False):
        weights = array(normalizations.get(name).normalize(keras.ops.array(scores), None))
        axis.bar(range(6), weights, color=INK)
        axis.set_ylim(0, 1.02)
        axis.set_xticks(range(6), [f"{score:g}" for score in scores], fontsize=7)
        axis.set_title(name, fontsize=9)
    axes[0].set_ylabel("weight")
    axes[0].set_xlabel("score")
    difference = np.linspace(-4, 4, 401, dtype="float32")
    pairs = keras.ops.array(np.stack([difference, np.zeros_like(difference)], axis=-1))
    for name, color in (("softmax", INK), ("sparsemax", WARM), ("hard", GREY)):
        weights = array(normalizations.get(name).normalize(pairs, None))[:, 0]
        # Of two keys, one of them at score 0, softmax and sigmoid are the same function.
        label = "softmax, sigmoid" if name == "softmax" else name
        axes[4].plot(difference, weights, color=color, label=label, linewidth=1.4)
    axes[4].set_title("first of two keys, the other's score 0", fontsize=9)
    axes[4].legend(frameon=False, fontsize=7, loc="upper left")
    figure.tight_layout()
    save(figure, "normalizations")


def draw_normalizations_losses():
    """Weights that each loss alone leads to."""
    losses = {
        "at the start": None,
        "DoublyStochastic(target=None)": regularizers.DoublyStochastic(target=None),
        "Entropy(1.0)": regularizers.Entropy(1.0),
        "Entropy(-1.0)": regularizers.Entropy(-1.0),
    }
    keras.utils.set_random_seed(1)
    start = 1.5 * np.random.default_rng(0).normal(size=(6, 8)).astype("float32")
    start[:, 2] += 2
    figure, axes = plt.subplots(1, 4, figsize=(10, 2.4))
    for axis, (title, loss) in zip(axes, losses.items(), strict=True):
        # The scores themselves are trained, by the loss alone: the bias of a layer without any
        # other scores.
        layer = _OnlyBias(start, loss)
        model = keras.Sequential([layer])
        x = np.zeros((64, 6, 1), "float32")
        model.build((None, 6, 1))
        if loss is not None:
            model.compile(keras.optimizers.Adam(0.05), "mse")
            model.fit(x, np.zeros((64, 6, 1)), batch_size=1, epochs=2, verbose=0)
        grid(axis, array(layer.weights_of(x[:1]))[0, 0], title)
    axes[0].set_ylabel("queries")
    axes[0].set_xlabel("keys")
    save(figure, "normalizations_losses")


def draw_normalizations_hard():
    """The two gradients of hard attention, on the task of docs/normalizations.md."""
    figure, axis = plt.subplots(figsize=(4.6, 2.4))
    steps, seeds = 80, 5
    for gradient, color in (("straight_through", INK), ("reinforce", WARM)):
        curves = np.array([_accuracies(gradient, steps, seed) for seed in range(seeds)])
        at = np.arange(0, steps + 1, 5)
        axis.plot(at, curves.mean(axis=0), color=color, label=gradient)
        axis.fill_between(at, curves.min(axis=0), curves.max(axis=0), color=color, alpha=0.15)
    axis.axhline(1 / 3, color=GREY, linewidth=1, linestyle=":")
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("steps of training")
    axis.set_ylabel("accuracy")
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    save(figure, "normalizations_hard")


def _accuracies(gradient, steps, seed):
    """Accuracy on new examples at every fifth step."""
    generator = np.random.default_rng(seed)
    keras.utils.set_random_seed(seed)
    x, label = keras.Input((8, 4)), keras.Input((1,), dtype="int32")
    query = keras.layers.GlobalAveragePooling1D(keepdims=True)(x)
    layer = keras_attention.HardAttention(1, 8, gradient=gradient, use_bias=True)
    seen = layer(query, x)
    outputs, losses, log_probability = [], ["sparse_categorical_crossentropy"], None
    if gradient == "reinforce":
        seen, log_probability = seen
    guess = keras.layers.Dense(3, activation="softmax")(keras.layers.Flatten()(seen))
    outputs.append(guess)
    if gradient == "reinforce":
        reward = -keras.losses.sparse_categorical_crossentropy(label[:, 0], guess)
        outputs.append(keras_attention.ReinforceLoss()(log_probability, reward))
        losses.append(None)
    model, training = keras.Model(x, guess), keras.Model([x, label], outputs)
    training.compile(keras.optimizers.Adam(0.01), losses)
    found = []
    new, answers = _examples(generator, 500)
    for step in range(steps + 1):
        if step % 5 == 0:
            found.append((array(model(new)).argmax(axis=-1) == answers[:, 0]).mean())
        some, labels = _examples(generator, 64)
        training.train_on_batch([some, labels], labels)
    return found


def _examples(generator, count):
    """Eight classes, one of them marked; the label is the class that is."""
    what, marked = generator.integers(0, 3, (count, 8)), generator.integers(0, 8, count)
    x = np.concatenate([np.eye(3)[what], np.eye(8)[marked][..., None]], axis=-1)
    return x.astype("float32"), what[np.arange(count), marked][:, None]


class _OnlyBias(keras.layers.Layer):
    def __init__(self, start, loss):
        super().__init__()
        self.start = start
        self.attention = keras_attention.Attention(score="dot", scores_regularizer=loss)

    def build(self, shape):
        self.bias = self.add_weight(
            shape=self.start.shape, initializer=lambda shape, dtype: keras.ops.array(self.start)
        )

    def weights_of(self, x):
        memory = keras.ops.zeros((len(x), self.start.shape[1], 1))
        return self.attention(x, memory, attention_bias=self.bias, return_attention_scores=True)[1]

    def call(self, x):
        memory = keras.ops.zeros((keras.ops.shape(x)[0], self.start.shape[1], 1))
        return self.attention(x, memory, attention_bias=self.bias)


# Heads


def draw_heads():
    """Grouped heads, QK-norm, soft cap and sink."""
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.6), width_ratios=[1.5, 1, 1, 1])
    # Which key head each of 8 query heads reads: every value head holds its own number's column.
    shown = np.zeros((8, 14))
    start = 0
    for groups in (8, 4, 1):
        value = keras.ops.repeat(keras.ops.eye(groups)[None, None], 2, axis=1)
        reads = ops.attend(keras.ops.ones((1, 1, 8, 2)), keras.ops.ones((1, 2, groups, 2)), value)
        shown[:, start : start + groups] = array(reads)[0, 0]
        start += groups
    shown = np.insert(shown[:, :13], [8, 12], np.nan, axis=1)
    grid(axes[0], shown, "num_key_value_heads = 8 | 4 | 1")
    axes[0].set_ylabel("query heads")
    axes[0].set_xlabel("key and value heads")

    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(8, 32, 64)).astype("float32")
    scales = 2.0 ** np.arange(-2, 7)
    for norm, color in ((False, GREY), ("rms", INK)):
        layer = keras_attention.SelfAttention(4, 16, qk_norm=norm)
        largest = [
            array(layer(scale * x, return_attention_scores=True)[1]).max(axis=-1).mean()
            for scale in scales
        ]
        axes[1].plot(scales, largest, color=color, label=f"qk_norm={norm!r}")
    axes[1].set_xscale("log", base=2)
    axes[1].set_title("largest weight, mean over queries", fontsize=9)
    axes[1].set_xlabel("inputs multiplied by")
    axes[1].set_ylim(0, 1.02)
    axes[1].legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.15))

    scores = np.linspace(-30, 30, 121, dtype="float32")
    for cap, color in ((None, GREY), (10.0, INK)):
        # A key whose score is this, beside one of score 0: the logarithm of the weights' ratio
        # is the score after the cap.
        key = keras.ops.array([1.0, 0.0])[None, :, None, None]
        query = keras.ops.array(scores.astype("float64"))[None, :, None, None]
        _, weights = ops.attend(
            query, keras.ops.cast(key, "float64"), keras.ops.cast(key, "float64"), score="dot",
            logit_soft_cap=cap, return_attention_scores=True,
        )  # fmt: skip
        weights = array(weights)[0, 0]
        axes[2].plot(
            scores, np.log(weights[:, 0] / weights[:, 1]), color=color,
            label=f"logit_soft_cap={cap}",
        )  # fmt: skip
    axes[2].set_title("score after the cap", fontsize=9)
    axes[2].set_xlabel("score before")
    axes[2].legend(frameon=False, fontsize=8)

    sinks = np.linspace(-4, 6, 51, dtype="float32")
    query, key = keras.ops.ones((1, 1, 51, 1)), keras.ops.zeros((1, 4, 51, 1))
    _, weights = ops.attend(query, key, key, sink=sinks, return_attention_scores=True)
    axes[3].plot(sinks, array(weights)[0, :, 0].sum(axis=-1), color=INK)
    axes[3].set_title("what a sink leaves to four keys of score 0", fontsize=9)
    axes[3].set_xlabel("score of the sink")
    axes[3].set_ylim(0, 1.02)
    figure.tight_layout()
    save(figure, "heads")


# Pooling


def draw_pooling():
    """Weights of two trained poolings of one padded text."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(3, 20, size=(2000, 14))
    place, label = generator.integers(0, 14, 2000), generator.integers(0, 2, 2000)
    tokens[np.arange(2000), place] = 1 + label  # 1 or 2 says the label, all others say nothing
    tokens[np.arange(14) >= generator.integers(8, 15, size=2000)[:, None]] = 0
    tokens[np.arange(2000), place % 8] = 1 + label
    keras.utils.set_random_seed(0)
    figure, axes = plt.subplots(2, 1, figsize=(7, 2.6), sharex=True)
    layers = (keras_attention.AttentionPooling(), keras_attention.FeedForwardAttention())
    for axis, pooling in zip(axes, layers, strict=True):
        inputs = keras.Input((14,), dtype="int32")
        x = keras.layers.Embedding(20, 8, mask_zero=True)(inputs)
        pooled, weights = pooling(x, return_attention_scores=True)
        model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(pooled))
        model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
        model.fit(tokens, label, epochs=6, batch_size=64, verbose=0)
        looking = keras.Model(inputs, weights)
        text = 5
        shown = array(looking(tokens[text : text + 1]))[0, 0, 0]
        axis.bar(range(14), shown, color=INK)
        axis.set_ylim(0, 1.02)
        axis.set_ylabel("weight")
        axis.set_title(type(pooling).__name__, fontsize=9)
    names = ["pad" if token == 0 else "key" if token < 3 else "·" for token in tokens[text]]
    axes[1].set_xticks(range(14), names)
    figure.tight_layout()
    save(figure, "pooling")


DRAWINGS = {
    name.removeprefix("draw_"): function
    for name, function in list(globals().items())
    if name.startswith("draw_")
}


if __name__ == "__main__":
    for name in sys.argv[1:] or DRAWINGS:
        DRAWINGS[name]()
        print(f"{name}.png")
