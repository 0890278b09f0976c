"""What Keras's layers do with masks, seen by running each: the table of docs/masks.md.

`python -m tests.keras_masks` prints the table. Each layer gets a sequence (B, T, D) whose second
row is padded, twice, with other values in the padding.
"""

import keras
import numpy as np

from keras_attention.sequences import masks

layers, ops = keras.layers, keras.ops

B, T, D = 2, 6, 4
MASK = np.arange(T) < np.array([[T], [3]])


def sequence(padding=0.0):
    """(B, T, D) with MASK, and `padding` added where it is False."""
    x = np.random.default_rng(0).normal(size=(B, T, D)) + padding * ~MASK[..., None]
    return masks.carry(ops.convert_to_tensor(x.astype("float32")), ops.convert_to_tensor(MASK))


def plain(*shape):
    """A tensor without a mask."""
    x = np.random.default_rng(1).normal(size=shape or (B, T, D))
    return ops.convert_to_tensor(x.astype("float32"))


def one_input():
    """New layers, by the name that the table gives them: none has the name of another operation."""
    found = [
        layers.Activation("relu"), layers.ActivityRegularization(),
        layers.AdaptiveAveragePooling1D(3), layers.AdaptiveMaxPooling1D(3),
        layers.AlphaDropout(0.1), layers.AveragePooling1D(2), layers.BatchNormalization(),
        layers.Conv1D(D, 3, padding="same"), layers.Conv1DTranspose(D, 3, padding="same"),
        layers.Cropping1D(1), layers.Dense(3), layers.DepthwiseConv1D(3, padding="same"),
        layers.Dropout(0.1), layers.ELU(), layers.EinsumDense("btd,de->bte", (None, 3)),
        layers.Flatten(), layers.GaussianDropout(0.1), layers.GaussianNoise(0.1),
        layers.GlobalAveragePooling1D(), layers.GlobalMaxPooling1D(), layers.GroupNormalization(2),
        layers.Identity(), layers.Lambda(lambda x: -x), layers.LayerNormalization(),
        layers.LeakyReLU(), layers.MaxPooling1D(2), layers.Normalization(mean=0.0, variance=1.0),
        layers.PReLU(shared_axes=[1]), layers.Permute((2, 1)), layers.RMSNormalization(),
        layers.ReLU(), layers.Rescaling(2.0), layers.Reshape((T, 2, 2)),
        layers.SeparableConv1D(D, 3, padding="same"), layers.Softmax(),
        layers.SpatialDropout1D(0.1), layers.SpectralNormalization(layers.Dense(3)),
        layers.TimeDistributed(layers.Dense(3)), layers.UnitNormalization(), layers.UpSampling1D(2),
        layers.ZeroPadding1D(1),
    ]  # fmt: skip
    return {type(layer).__name__: layer for layer in found}


RECURRENT = {
    "GRU": lambda **kwargs: layers.GRU(3, **kwargs),
    "LSTM": lambda **kwargs: layers.LSTM(3, **kwargs),
    "RNN": lambda **kwargs: layers.RNN(layers.GRUCell(3), **kwargs),
    "SimpleRNN": lambda **kwargs: layers.SimpleRNN(3, **kwargs),
    "Bidirectional": lambda **kwargs: layers.Bidirectional(layers.GRU(3, **kwargs)),
}
MIXED = " of masked and unmasked"
MERGING = ("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract")
ATTENTION = {
    "AdditiveAttention": (),
    "Attention": (),
    "GroupQueryAttention": (3, 2, 1),
    "MultiHeadAttention": (2, 3),
}
OPERATIONS = {
    "x + y": lambda x: x + plain(),
    "x * 2": lambda x: x * 2,
    "x[:, 1:]": lambda x: x[:, 1:],
    "ops.concatenate": lambda x: ops.concatenate([x, x], -1),
    "ops.einsum": lambda x: ops.einsum("btd,de->bte", x, plain(D, 3)),
    "ops.matmul": lambda x: ops.matmul(x, plain(D, 3)),
    "ops.multiply": lambda x: ops.multiply(x, x),
    "ops.relu": ops.relu,
    "ops.reshape": lambda x: ops.reshape(x, (B, T, 2, 2)),
    "ops.where": lambda x: ops.where(x > 0, x, 0.0),
    "ops.max(x, axis=1)": lambda x: ops.max(x, axis=1),
    "ops.mean(x, axis=1)": lambda x: ops.mean(x, axis=1),
}
# Classes of keras.layers that take images, text, features, tables or other layers, no sequence.
OTHERS = """
    AugMix AutoContrast CategoryEncoding CenterCrop
    ContrastLimitedAdaptiveHistogramEqualization ConvLSTM1D CutMix Discretization Dot
    Embedding Equalization FlaxLayer GRUCell HashedCrossing Hashing InputLayer IntegerLookup
    JaxLayer LSTMCell Layer Masking MaxNumBoundingBoxes MelSpectrogram MixUp Pipeline
    RandAugment RepeatVector Resizing ReversibleEmbedding STFTSpectrogram SimpleRNNCell
    Solarization StackedRNNCells StringLookup TFSMLayer TextVectorization TorchModuleWrapper
    Wrapper
"""

KEPT, KEPT_READS, DROPPED, FILLED, USED, POOLED, ERROR = (
    "kept",
    "kept, but padding changes the real elements",
    "**dropped**",
    "**made True everywhere**",
    "used up: padding does not count in the result",
    "**ignored**: padding counts in the result, a vector",
    "an error, unless the input is (B, T)",
)


def calls():
    """Functions of a masked sequence, by the name that the table gives them."""
    found = one_input()
    for name, make in RECURRENT.items():
        found[name] = make()
        found[f"{name}(return_sequences=True)"] = make(return_sequences=True)
    for name in MERGING:
        layer = getattr(layers, name)()
        found[f"{name} of masked"] = lambda x, layer=layer: layer([x, x])
        found[f"{name}{MIXED}"] = lambda x, layer=layer: layer([x, plain()])
    for name, arguments in ATTENTION.items():
        layer = getattr(layers, name)(*arguments)
        found[name] = lambda x, layer=layer: layer(*_query_and_value(layer, x, x))
        found[f"{name} with unmasked query"] = lambda x, layer=layer: layer(
            *_query_and_value(layer, plain(B, 3, D), x)
        )
    return found | OPERATIONS


def _query_and_value(layer, query, value):
    one_list = isinstance(layer, (layers.Attention, layers.AdditiveAttention))
    return ([query, value],) if one_list else (query, value)


def outcome(call):
    """What becomes of a mask, one of the names above."""
    try:
        outputs = [call(sequence(padding)) for padding in (0.0, 5.0)]
    except ValueError:
        return ERROR
    mask = masks.implicit(outputs[0])
    a, b = (ops.convert_to_numpy(output) for output in outputs)
    if a.ndim < 3:
        return USED if np.allclose(a, b, atol=1e-5) else POOLED
    if mask is None:
        return USED if a.shape[1] != T and np.allclose(a, b, atol=1e-5) else DROPPED
    if not np.array_equal(mask, MASK):
        return FILLED
    return KEPT if np.allclose(a[MASK], b[MASK], atol=1e-5) else KEPT_READS


def outcomes():
    """What becomes of a mask, by the name of the call."""
    keras.utils.set_random_seed(0)
    return {name: outcome(call) for name, call in calls().items()}


def table(found):
    """Outcomes in Markdown, a row for each but those by which padding is never read."""
    lines = ["| the mask is | by |", "| --- | --- |"]
    for title in (KEPT_READS, DROPPED, FILLED, POOLED, ERROR):
        names = [name for name, outcome in found.items() if outcome == title]
        merging = [name.removesuffix(MIXED) for name in names if name.endswith(MIXED)]
        cells = [", ".join(f"`{name}`" for name in names if not name.endswith(MIXED))]
        cells.append(", ".join(f"`{name}`" for name in merging) + MIXED if merging else "")
        lines.append(f"| {title} | {'; '.join(filter(None, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(outcomes()))
