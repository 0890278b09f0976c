"""Type hints: all that is public has them, and a type checker finds wrong calls by them."""

import functools
import inspect
import re
import subprocess
import sys
import typing

import pytest
import typing_extensions

import keras_attention
from keras_attention.layers.options import AttentionOptions
from tests import api_snapshot
from tests.signatures import signature

pytestmark = pytest.mark.any_backend

PUBLIC = [api_snapshot.name_of(line) for line in api_snapshot.read(api_snapshot.NEXT)]
# What only type checkers import.
CHECKED = {"Colormap": typing.Any, "Figure": typing.Any, "Unpack": typing_extensions.Unpack}


def found(name):
    """What a public name stands for, such as "keras_attention.patterns.Pattern.span"."""
    return functools.reduce(inspect.getattr_static, name.split(".")[1:], keras_attention)


def without_hints(value):
    """The arguments without a hint of a function, a class or a property, and its "return"."""
    if isinstance(value, property):
        value = value.fget
    found = signature(value)
    parameters = [p for p in found.parameters.values() if p.name != "self"]
    missing = [p.name for p in parameters if p.annotation is p.empty]
    if not inspect.isclass(value) and found.return_annotation is found.empty:
        missing.append("return")
    return missing


CALLABLE = [name for name in PUBLIC if "[" not in name and "__version__" not in name]


def test_all_that_is_public_has_hints_which_name_what_there_is():
    for name in CALLABLE:
        value = found(name)
        assert not without_hints(value), name
        value = value.fget if isinstance(value, property) else value
        if inspect.isclass(value):
            value = value.__init__ if inspect.isfunction(value.__init__) else value
        typing.get_type_hints(value, localns=CHECKED)


def test_missing_hints_are_seen():
    class Some:
        def __init__(self, a: int, b=1, *c, **d: int):
            pass

        @property
        def e(self):
            pass

    assert without_hints(Some) == ["b", "c"]
    assert without_hints(vars(Some)["e"]) == ["return"]
    assert without_hints(lambda x: x) == ["x", "return"]
    for name in ("Attention", "Attention.call", "ops.attend", "patterns.Pattern.__call__"):
        assert f"keras_attention.{name}" in CALLABLE


def test_presets_list_what_they_pass_on():
    of_all = inspect.signature(keras_attention.Attention).parameters
    for name in keras_attention.__all__:
        preset = getattr(keras_attention, name)
        if inspect.isclass(preset) and issubclass(preset, keras_attention.Attention):
            parameters = inspect.signature(preset).parameters
            fixed = getattr(preset, "_fixed_arguments", ())
            assert set(of_all) - set(fixed) == set(of_all) & set(parameters), name

    class Mine(keras_attention.HardAttention):
        def __init__(self, depth: int, seed: int = 3, **kwargs: typing.Any):
            pass

    class Closed(Mine):
        def __init__(self, depth: int):
            pass

    parameters = inspect.signature(Mine).parameters
    assert list(parameters)[:3] == ["depth", "seed", "num_heads"]
    assert parameters["seed"].default == 3
    assert parameters["num_heads"].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["gradient"].default == "straight_through"
    assert "normalization" not in parameters
    assert list(inspect.signature(Closed).parameters) == ["depth"]


def test_what_presets_take_for_type_checkers_is_what_attention_takes():
    of_all = typing.get_type_hints(keras_attention.Attention.__init__)
    for name in ("num_heads", "key_dim", "value_dim", "kwargs"):
        del of_all[name]
    of_layers = {"name": str | None, "dtype": typing.Any, "trainable": bool}
    assert typing.get_type_hints(AttentionOptions) == of_all | of_layers


RIGHT = """
import keras
import numpy as np

import keras_attention
from keras_attention import generation, losses, normalizations, ops, patterns, positions
from keras_attention import regularizers, schedules, scores, visualization

pattern = patterns.Causal() & ~patterns.SlidingWindow(2, 0) | patterns.Prefix(3)
layer = keras_attention.Attention(
    num_heads=8,
    key_dim=16,
    score=scores.Additive(units=None, kernel_initializer=keras.initializers.Zeros()),
    normalization="sparsemax",
    pattern=pattern,
    position={"class_name": "Rotary", "config": {}},
    dropout=0,
    kernel_regularizer="l2",
    activity_regularizer=lambda x: x,
    qk_norm="rms",
    scores_regularizer=regularizers.Entropy(-0.5),
    name="attention",
)
layer = keras_attention.SelfAttention(2, 8, pattern=pattern, position=None, score="dot")
x = keras.ops.zeros((2, 5, 8))
output, weights = layer(x, return_attention_scores=True)
cache = layer.make_cache(2, length=5, dtype="float32")
output, cache = layer(x, cache=cache)
reach: int | None = pattern.span().left
text: str = ops.explain(x, x, x, pattern=pattern)
both, lse = ops.merge([ops.attend(x, x, x, return_lse=True)])


def step(tokens, cache):
    return tokens, cache


found: generation.Generated = generation.sample(step, [0], (), max_tokens=3, stop_tokens=[1])
written = generation.compiled(
    lambda tokens: generation.greedy(step, tokens, (), max_tokens=3), layer
)
lengths = written([0]).lengths
loss = losses.SmoothedCrossentropy(0.1, ignore_class=None, reduction=None)
rate = schedules.InverseSquareRoot(512, warmup_steps=4000)(3)
array: np.ndarray = visualization.collect_attention(layer, x)["attention"]
page: str = visualization.attention_html(weights, ["a", None], path=None)


@keras.saving.register_keras_serializable(package="mine")
class Even(patterns.Pattern):
    def attends(self, i, j):
        return j % 2 == 0


class Recency(positions.Position):
    def bias(self, i, j, num_heads):
        return i - j


keras_attention.TransformerBlock(64, 4, pattern=Even(), position=Recency(), norm="rms")
keras_attention.HardAttention(gradient="reinforce").normalization.temperature
"""

# Each line is wrong.
WRONG = """
keras_attention.Attention(num_heads="8")
keras_attention.Attention(score=3)
keras_attention.Attention(pattern=patterns.Causal)
keras_attention.Attention(kernel_initializer=0)
keras_attention.Attention(use_sink="rsm")
keras_attention.Attention().make_cache(2)
keras_attention.Attention().call([1], use_causal_mask=None)
keras_attention.MultiHeadAttention(4)
keras_attention.MultiHeadAttention(4, None)
keras_attention.SelfAttention(casual="yes", causal="yes")
keras_attention.LocalAttention(3, mode="predicted")
keras_attention.AttentionRNN(3)
keras_attention.TransformerBlock(64, 4, dropout="none")
keras_attention.check_masks([], length="64")
keras_attention.nothing
patterns.SlidingWindow("a", 0)
patterns.Causal(3)
patterns.Causal() & 3
patterns.get(3)
positions.Rotary(layout="split")
scores.Location()
normalizations.Hard(temperature="low")
regularizers.Entropy(factor=None)
losses.SmoothedCrossentropy(ignore_class="padding")
schedules.InverseSquareRoot(512)
ops.attend(1, 2, 3, casual=True)
ops.explain(1, 2)
generation.greedy(print, [0], ())
generation.beam_search(3, [0], (), num_beams=2, max_tokens=3)
visualization.attention_html([], ["a"], path=3)
convert.from_torch(None, causal="no")
"""


@pytest.mark.slow
def test_mypy_finds_wrong_calls_and_no_others(tmp_path):
    imports = "import keras_attention\nfrom keras_attention import *"
    (tmp_path / "right.py").write_text(RIGHT, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(imports + WRONG, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", api_snapshot.ROOT / "pyproject.toml"]
    process = subprocess.run(
        [*command, "--cache-dir", tmp_path / "cache", "right.py", "wrong.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    errors = re.findall(r"^(\S+):(\d+): error: ", process.stdout, re.MULTILINE)
    assert [error for error in errors if error[0] != "wrong.py"] == [], process.stdout
    first = imports.count("\n") + 2
    expected = set(range(first, first + len(WRONG.split("\n")) - 2))
    assert {int(line) for _, line in errors} == expected, process.stdout + process.stderr
