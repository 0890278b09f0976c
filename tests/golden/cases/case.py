"""What a case is, and what makes one of a layer and its arguments."""

import dataclasses

import keras
import numpy as np

B, T, S, WIDTH, VOCABULARY = 2, 4, 5, 8, 11


def outputs(model, inputs):
    """What the model gives, and its losses where it has some."""
    # A `Sequential` has no `input`, and takes one.
    inputs = inputs if isinstance(getattr(model, "input", None), list) else inputs[0]
    found = keras.tree.flatten(model(inputs))
    return found + ([sum(model.losses)] if model.losses else [])


@dataclasses.dataclass(frozen=True)
class Case:
    # Makes the model, and what it is called with.
    make: object
    inputs: tuple
    # What is stored beside the model, and compared when it is loaded.
    run: object = outputs
    # Changes the model once it has its weights, as LoRA and quantization do.
    change: object = None
    # Beside the largest output, where that of the dtype is too strict.
    tolerance: float | None = None
    since: str = "0.1.0"


CASES = {}


def vectors(*features, lengths=(T, S, S)):
    """Random sequences of these features. All but the first row end in zeros, to be masked."""
    rng = np.random.default_rng(len(features))
    arrays = []
    for size, length in zip(features, lengths, strict=False):
        array = rng.normal(size=(B, length, size)).astype("float32")
        array[1:, length - 2 :] = 0
        arrays.append(array)
    return tuple(arrays)


def symbols(*features):
    return [keras.Input((None, size)) for size in features]


def of_layer(name, make, *features, listed=False, since="0.1.0", **call):
    """A case of one layer, made by `make()`, over sequences of these features."""
    features = features or (WIDTH,)

    def model():
        inputs = symbols(*features)
        masked = [keras.layers.Masking()(x) for x in inputs]
        return keras.Model(inputs, make()(*([masked] if listed else masked), **call))

    CASES[name] = Case(model, vectors(*features), since=since)


SCORES = {"return_attention_scores": True}
PROJECTIONS = {
    "kernel_initializer": "he_normal",
    "bias_initializer": "ones",
    "kernel_regularizer": keras.regularizers.L2(0.01),
    "bias_regularizer": keras.regularizers.L1(0.01),
    "activity_regularizer": keras.regularizers.L2(0.02),
    "kernel_constraint": keras.constraints.NonNeg(),
    "bias_constraint": keras.constraints.MaxNorm(3),
}
TABLE = {
    "embeddings_initializer": "ones",
    "embeddings_regularizer": keras.regularizers.L2(0.01),
    "embeddings_constraint": keras.constraints.NonNeg(),
}
KERNEL = {
    "kernel_initializer": "he_normal",
    "kernel_regularizer": keras.regularizers.L2(0.01),
    "kernel_constraint": keras.constraints.NonNeg(),
}
BIAS = {
    "bias_initializer": "ones",
    "bias_regularizer": keras.regularizers.L1(0.01),
    "bias_constraint": keras.constraints.MaxNorm(3),
}
HEADS = {
    "num_key_value_heads": 1,
    "qk_norm": "rms",
    "logit_soft_cap": 5.0,
    "use_sink": True,
    "scores_regularizer": "entropy",
}
# Every argument of `Attention` but the slots.
ALL = {"use_bias": True, "value_dim": 3, "dropout": 0.4, "seed": 3, **PROJECTIONS, **HEADS}
