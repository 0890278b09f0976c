"""What tests of converters share: inputs, weights, and comparisons of old and new."""

import keras
import numpy as np
import pytest

from tests.arrays import numpy, random

keras_hub = pytest.importorskip("keras_hub")

ops = keras.ops

B, T, S, D, E = 2, 5, 7, 8, 6


def randomize(layer):
    """Gives every weight a random value: biases start as zeros, and would not be compared."""
    for seed, variable in enumerate(layer.weights):
        if "seed" not in variable.path:
            variable.assign(random(*variable.shape, seed=seed) / 2)


X, MEMORY, KEY = random(B, T, D), random(B, S, E, seed=1), random(B, S, D, seed=2)
PADDING = np.array([[True] * 4 + [False], [True] * 2 + [False] * 3])
MEMORY_PADDING = np.arange(S) < np.array([[S], [3]])
PAIRS = np.random.default_rng(3).random((B, T, S)) < 0.5
PAIRS[..., 0] = True


def close(ours, theirs, tolerance=2e-5):
    np.testing.assert_allclose(numpy(ours), numpy(theirs), rtol=tolerance, atol=tolerance)


def reloaded(layer, tmp_path, *shapes):
    """The layer as it is read from the file of a model."""
    symbols = [keras.Input(shape[1:]) for shape in shapes]
    model = keras.Model(symbols, layer(*symbols))
    model.save(tmp_path / "model.keras")
    return keras.saving.load_model(tmp_path / "model.keras").get_layer(layer.name)


def built(layer, *arrays):
    layer(arrays[0], arrays[-1])
    randomize(layer)
    return layer


def torch_block(torch, name="Encoder", **kwargs):
    cls = getattr(torch.nn, f"Transformer{name}Layer")
    return cls(D, 2, 12, batch_first=True, device="cpu", **kwargs).eval()


def torch_random(module, torch):
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.tensor(random(*parameter.shape, seed=seed) / 2))
    return module.eval()


def in_torch(torch, module, *arrays, **kwargs):
    """What a module gives, as NumPy arrays, on the CPU whatever Keras's device is."""

    def tensor(x):
        return torch.tensor(x) if isinstance(x, np.ndarray) else x

    with torch.no_grad():
        outputs = module(
            *map(tensor, arrays), **{name: tensor(value) for name, value in kwargs.items()}
        )
    if isinstance(outputs, tuple):
        return [None if output is None else output.numpy() for output in outputs]
    return outputs.numpy()
