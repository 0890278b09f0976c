"""Layers of ours inside layers and models of a user's own.

`python -m tests.inside FOLDER` calls the model that a test has saved there, in a process that has
not seen it before.
"""

import inspect
import itertools
import sys

import keras
import numpy as np

from tests.arrays import numpy
from tests.compiled import compiled

register = keras.saving.register_keras_serializable(package="inside")


class Around:
    """What a user writes around a layer: a `call` alone. Keras builds the layer by tracing it."""

    def __init__(self, inner, listed=False, **kwargs):
        super().__init__(**kwargs)
        self.inner, self.listed = inner, listed

    def call(self, query, value=None, key=None, training=None):
        given = [x for x in (query, value, key) if x is not None]
        kwargs = {}
        if "training" in inspect.signature(self.inner.call).parameters:
            kwargs["training"] = training
        return self.inner(given, **kwargs) if self.listed else self.inner(*given, **kwargs)

    def get_config(self):
        inner = keras.saving.serialize_keras_object(self.inner)
        return {**super().get_config(), "inner": inner, "listed": self.listed}

    @classmethod
    def from_config(cls, config):
        inner = keras.saving.deserialize_keras_object(config.pop("inner"))
        return cls(inner, **config)


@register
class OwnLayer(Around, keras.layers.Layer):
    pass


@register
class OwnModel(Around, keras.Model):
    pass


def sequential(inner, listed):
    return keras.Sequential([inner])


def distributed(inner, listed):
    """The sequences are the rows of a batch of more axes."""
    return keras.layers.TimeDistributed(inner)


def twice(inner, listed):
    return OwnModel(OwnLayer(inner, listed))


WAYS = {
    "layer": OwnLayer,
    "model": OwnModel,
    "twice": twice,
    "sequential": sequential,
    "distributed": distributed,
}
# Whether the batch size and the lengths are known.
SIZES = list(itertools.product((False, True), repeat=2))


def way_of(case, number):
    """The name of a way that suits a case; a number picks one of several."""
    several = len(case.inputs) > 1 or case.listed
    names = [name for name in WAYS if not (several and name in ("sequential", "distributed"))]
    return names[number % len(names)]


def symbols(case, way, batch, lengths):
    """Symbolic inputs for a case in a way; `distributed` has 2 sequences a row."""
    found = case.symbols(3 if batch else None, lengths)
    if way != "distributed":
        return found
    return [keras.Input(batch_shape=(x.shape[0], 2, *x.shape[1:]), dtype=x.dtype) for x in found]


def arrays(case, way):
    """Arrays for them, of 3 rows."""
    found = case.arrays()
    return [np.stack([x, x[::-1]], axis=1) for x in found] if way == "distributed" else found


def called(model, given):
    """The outputs of a model of several inputs and outputs."""
    return [numpy(x) for x in compiled(lambda *arrays: model(list(arrays)), *given)]


def main(folder):
    from tests.layers import conformance_cases  # noqa: F401

    model = keras.saving.load_model(f"{folder}/model.keras", compile=False)
    with np.load(f"{folder}/given.npz") as file:
        given = [file[name] for name in file.files]
    np.savez(f"{folder}/found.npz", *called(model, given))


if __name__ == "__main__":
    # Under the name by which the file's classes are registered.
    from tests import inside

    inside.main(sys.argv[1])
