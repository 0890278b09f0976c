"""A way to make and call a layer, and a value other than the default of every argument.

`layers/conformance_cases.py` has one of these for each public layer.
"""

import dataclasses
import inspect

import keras
import numpy as np

import keras_attention as ka
from keras_attention import normalizations, patterns, positions, regularizers, scores
from tests.signatures import signature

BATCH = 3


@keras.saving.register_keras_serializable(package="conformance")
class Nearer(positions.Position):
    def bias(self, i, j, num_heads):
        return -0.3 * keras.ops.cast(keras.ops.abs(i - j), "float32")


@keras.saving.register_keras_serializable(package="conformance")
class Squares(scores.Score):
    def features(self, size):
        return size

    def prepare_query(self, query):
        return keras.ops.square(query)

    prepare_key = prepare_query


# A value of each argument that is not its default, if that is no flag; `Case` says others.
VALUES = {
    "value_dim": 3,
    "dropout": 0.4,
    "seed": 3,
    "kernel_initializer": "he_normal",
    "bias_initializer": "ones",
    "kernel_regularizer": keras.regularizers.L2(0.01),
    "bias_regularizer": keras.regularizers.L1(0.01),
    "activity_regularizer": keras.regularizers.L2(0.02),
    "kernel_constraint": keras.constraints.NonNeg(),
    "bias_constraint": keras.constraints.MaxNorm(3),
    "score": scores.General(),
    "normalization": normalizations.Sigmoid(),
    "pattern": patterns.Causal() & patterns.SlidingWindow(2, 0),
    "position": Nearer(),
    "scores_regularizer": regularizers.Entropy(0.1),
    "num_key_value_heads": 1,
    "qk_norm": "rms",
    "logit_soft_cap": 5.0,
    "clip_qkv": 1.5,
    "output_shape": (2, 5),
    "attention_axes": (1,),
    "sliding_window": 2,
    "flash_attention": False,
    "query_latent_dim": 6,
    "scale": 0.3,
    "depth": 3,
    "norm_epsilon": 0.1,
    "num_global": 2,
    "rate": 2,
    "mode": "predictive",
    "units": 3,
    "center_initializer": "ones",
    "embeddings_initializer": "ones",
    "embeddings_regularizer": keras.regularizers.L2(0.01),
    "embeddings_constraint": keras.constraints.NonNeg(),
    "feature_map": Squares(),
    "sharing": "key_value",
    "num_iterations": 4,
    "conv_kernel_size": 3,
    "decays": (0.5,),
    "head_norm": "layer",
    "decay_rank": 3,
    "decay_temperature": 2.0,
    "gradient": "reinforce",
    "temperature": 0.5,
    "activation": "gelu",
    "layer_norm_epsilon": 0.001,
    "norm": "rms",
    "key_dim": 3,
    "residual": "pre",
    "attention": ka.MultiHeadAttention(2, 4),
    "feed_forward": ka.FeedForward(6),
    "query_initializer": "ones",
    "initializer": "ones",
    "num_tokens": 3,
    "dim": 8,
    "epsilon": 0.1,
    "output_dim": 5,
    "offset": 1.0,
    "value": 0.5,
    "limit": 2.0,
    "scoring": "sigmoid",
    "num_groups": 2,
    "top_groups": 2,
    "shared_dim": 4,
    "merge_mode": "concat",
    "max_wavelength": 100,
    "layout": "half_split",
    "interpolation": "linear",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to make a layer, and what to call it with."""

    layer: type
    # Arguments the layer is tested with throughout.
    arguments: dict
    # Values of other arguments that are not those of `VALUES`.
    other: dict = dataclasses.field(default_factory=dict)
    # Whether it is the first of its layer, of which one is enough for what is of a class.
    first: bool = True
    # One (positions, features) an input; features None for token ids, drawn below `vocabulary`.
    inputs: tuple = ((5, 8),)
    vocabulary: int = 10
    # Whether the inputs are one list, as in `Attention()([query, value])`.
    listed: bool = False
    # Whether sequences may have any number of positions.
    any_length: bool = True
    # What other arguments must be beside a value of one, by its name.
    beside: dict = dataclasses.field(default_factory=dict)
    id: str = ""

    def __str__(self):
        return self.id or self.layer.__name__

    @property
    def other_arguments(self):
        """A value other than the default of every argument that is not among `arguments`."""
        found = {}
        for name, parameter in signature(self.layer).parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD or name in self.arguments:
                continue
            value = self.other.get(name, VALUES.get(name, parameter.default))
            # Of a flag, the other.
            found[name] = not value if name not in VALUES and isinstance(value, bool) else value
        return found

    def make(self, **kwargs):
        return self.layer(**{**self.arguments, **kwargs})

    def arrays(self, seed=0):
        """Input arrays, one for each of `inputs`."""
        rng = np.random.default_rng(seed)
        arrays = []
        for length, features in self.inputs:
            if features is None:
                arrays.append(rng.integers(1, self.vocabulary, (BATCH, length)).astype("int32"))
            else:
                arrays.append(rng.normal(size=(BATCH, length, features)).astype("float32"))
        return arrays

    def call(self, layer, arrays, **kwargs):
        return layer(list(arrays), **kwargs) if self.listed else layer(*arrays, **kwargs)

    def symbols(self, batch=None, lengths=True):
        """Symbolic inputs; with `lengths=False` the numbers of positions are unknown."""
        return [
            keras.Input(
                batch_shape=(batch, p if lengths else None) + (() if f is None else (f,)),
                dtype="int32" if f is None else "float32",
            )
            for p, f in self.inputs
        ]

    def model(self):
        symbols = self.symbols(lengths=False)
        return keras.Model(alone(symbols), self.call(self.make(), symbols))

    @property
    def float_inputs(self):
        return all(features is not None for _, features in self.inputs)


def alone(inputs):
    """What a model of these inputs takes: the list, or the only one of it."""
    return inputs if len(inputs) > 1 else inputs[0]


def outputs_of(result):
    return keras.tree.flatten(result)
