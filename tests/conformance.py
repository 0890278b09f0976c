"""A way to make and call a layer: `layers/conformance_cases.py` has one of each public layer."""

import dataclasses

import keras
import numpy as np

from tests.contract import registry

BATCH = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to make a layer, and what to call it with."""

    layer: type
    # Arguments other than those of the registry of relations.
    arguments: dict = dataclasses.field(default_factory=dict)
    # One (positions, features) an input; features None for token ids, drawn below `vocabulary`.
    inputs: tuple = ((5, 8),)
    vocabulary: int = 10
    # Whether the inputs are one list, as in `Attention()([query, value])`.
    listed: bool = False
    # Whether sequences may have any number of positions.
    any_length: bool = True
    # What is added to the name of its layer, of which another case is the first.
    form: str = ""

    def __str__(self):
        return f"{self.layer.__name__}-{self.form}" if self.form else self.layer.__name__

    def make(self, **kwargs):
        return registry.made(self.layer, **{**self.arguments, **kwargs})

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
