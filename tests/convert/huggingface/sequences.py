"""Tiny random models of `transformers`, encoders and encoder–decoders, and what they compute."""

import dataclasses
import json
from unittest import mock

import keras
import numpy as np
import pytest

from keras_attention import Logits, convert
from tests.arrays import numpy

VOCABULARY = 50
SIZES = {
    "vocab_size": VOCABULARY,
    **dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4),
    **dict(max_position_embeddings=40),
}
# Lengths differ; the real tokens of each row are on the left, or on the right.
LENGTHS = np.array([7, 4, 1])
RIGHT = np.arange(7) < LENGTHS[:, None]
LEFT = RIGHT[:, ::-1].copy()
TOLERANCE = 1e-4


def ids(seed, *shape, low=4):
    """Tokens, none of which is special."""
    return np.random.default_rng(seed).integers(low, VOCABULARY, shape).astype("int32")


def random_pairs(rows, length):
    """A mask of pairs: each token attends to itself at least."""
    allowed = np.random.default_rng(2).random((rows, length, length)) < 0.5
    return allowed | np.eye(length, dtype="bool")


def additive(allowed):
    """A mask of pairs as `transformers` takes it."""
    return np.where(allowed, 0.0, np.finfo("float32").min).astype("float32")[:, None]


@dataclasses.dataclass
class Pair:
    """A model of `transformers`, its folder, and ours of that folder."""

    original: object
    folder: object
    ours: object


def outputs(original, **inputs):
    """The outputs of a model of `transformers` for NumPy arrays."""
    import torch

    given = {name: tensor(x) for name, x in inputs.items()}
    with torch.no_grad():
        return original(**given)


def tensor(x):
    import torch

    if not isinstance(x, np.ndarray):
        return x
    return torch.tensor(x.astype("int64") if x.dtype.kind == "i" else x)


def states_and_logits(model, given, **masks):
    """The states that logits are made of, and these, or None, of one call of ours."""
    seen, call = [], Logits.call

    def watched(self, x, *table):
        seen.append(x)
        return call(self, x, *table)

    with mock.patch.object(Logits, "call", watched):
        found = model(given, **masks)
    logits = getattr(model, "decoder", model).logits
    return (found, None) if logits is None else (seen[0], found)


def randomized(model, std):
    """The model with all weights random, those of norms around 1, without dropout."""
    import torch

    torch.manual_seed(0)
    tensors = dict(model.named_parameters())
    # A buffer that has values in trained models.
    tensors |= {k: x for k, x in model.named_buffers() if k == "final_logits_bias"}
    with torch.no_grad():
        for name, parameter in tensors.items():
            if "embed_positions" in name and not parameter.requires_grad:
                continue  # Sines, which are computed.
            norm = "norm" in name.lower() and name.endswith("weight")
            parameter.normal_(1.0 if norm else 0.0, std)
    model.tie_weights()
    return model.eval()


def original(name, fields, std=0.3):
    """A random model of `transformers`, by the name of its class."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    cls = getattr(transformers, name)
    return randomized(cls(cls.config_class(**fields)), std)


def pair(folder, name, fields, restless=False):
    """The `Pair` of a class and the fields of its configuration.

    A `restless` decoder does not repeat a token: the scale of its last norm is negative.
    """
    model = original(name, fields)
    if restless:
        last_norm(model).data.neg_()
    model.save_pretrained(folder)
    return Pair(model, folder, convert.from_huggingface(folder))


def last_norm(model):
    """The weight of the last norm of a decoder."""
    decoder = model.get_decoder()
    for name in ("final_layer_norm", "layer_norm"):
        if hasattr(decoder, name):
            return getattr(decoder, name).weight
    return decoder.layers[-1].final_layer_norm.weight


def rewritten(folder, target, **fields):
    """A copy of a folder with other fields in its `config.json`; None takes one away."""
    target.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config = {k: v for k, v in {**config, **fields}.items() if v is not None}
    (target / "config.json").write_text(json.dumps(config))
    return target


def read_back(model, original, folder):
    """The model that `transformers` reads from what ours writes."""
    convert.to_huggingface(model, folder)
    return type(original).from_pretrained(folder).eval()


def through_a_file(model, folder):
    """The model as it is read from a `.keras` file."""
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def assert_close(found, expected, mask=None, tolerance=TOLERANCE):
    """Real tokens are equal, and not all alike."""
    found, expected = numpy(found), expected.detach().numpy()
    assert found.shape == expected.shape
    if mask is not None:
        found, expected = found[mask], expected[mask]
    assert expected.std() > 1e-2
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
    return float(np.abs(found - expected).max())
