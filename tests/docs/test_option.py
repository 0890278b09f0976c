"""option.diff is all that an option of all attention layers takes, as ARCHITECTURE.md says."""

import re
import shutil
import subprocess
import sys

import pytest

from tests.api_snapshot import ROOT

pytestmark = pytest.mark.any_backend

# The layers as the patch leaves them: biases scaled by the option are biases scaled by hand.
PROGRAM = """
import inspect

import keras
import numpy as np

import keras_attention

assert keras_attention.__file__.startswith({folder!r}), keras_attention.__file__
LAYERS = {{
    "Attention": {{}},
    "MultiHeadAttention": {{"num_heads": 2, "key_dim": 4}},
    "SelfAttention": {{"num_heads": 2, "key_dim": 4}},
    "LocalSelfAttention": {{"num_heads": 2, "key_dim": 4, "neighbors": 3}},
}}
for name, arguments in LAYERS.items():
    cls = getattr(keras_attention, name)
    assert "logit_bias_scale" in inspect.signature(cls).parameters, name
    for length in (1, 6, 300):  # one query; few; tiles
        x, bias = keras.random.normal((2, length, 8)), keras.random.normal((2, 1, length, length))
        scaled, plain = cls(logit_bias_scale=3.0, **arguments), cls(**arguments)
        scaled.build(*[(2, length, 8)] * (1 if name.endswith("SelfAttention") else 2))
        weights, outputs = scaled.get_weights(), []
        for layer, given in ((scaled, bias), (plain, 3.0 * bias)):
            inputs = keras.Input((length, 8)), keras.Input((1, length, length))
            model = keras.Model(inputs, layer(inputs[0], attention_bias=inputs[1]))
            layer.set_weights(weights)
            model.compile(keras.optimizers.SGD(1.0), "mse")
            model.train_on_batch([x, given], x)  # which uses gradients
            outputs.append(model.predict([x, given], verbose=0))
        np.testing.assert_allclose(*outputs, atol=1e-5)
        loaded = cls.from_config(scaled.get_config())
        assert loaded.logit_bias_scale == 3.0
"""


@pytest.fixture
def patched(tmp_path):
    """A folder with the package, the patch applied."""
    patch = (ROOT / "tests/docs/option.diff").read_text(encoding="utf-8")
    assert len(set(re.findall(r"^\+\+\+ (.*)$", patch, re.MULTILINE))) == 4
    assert len(re.findall(r"^[+-](?![+-])", patch, re.MULTILINE)) <= 40
    shutil.copytree(ROOT / "keras_attention", tmp_path / "keras_attention")
    process = subprocess.run(
        ["git", "apply", "-"], input=patch, cwd=tmp_path, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return tmp_path


def test_the_patch_applies(patched):
    assert (patched / "keras_attention").is_dir()


@pytest.mark.slow
def test_the_patch_adds_an_option(patched):
    program = PROGRAM.format(folder=str(patched))
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=patched, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
