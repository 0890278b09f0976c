"""How much one must read to follow a call: it stays little.

What one reads of `MultiHeadAttention(8, 16)(x, x)` up to its output, and of other calls, are the
functions that it runs, with their docstrings.
"""

import ast
import pathlib
import sys

import keras
import pytest

import keras_attention
from keras_attention.kernels.tiles import strategies

PACKAGE = pathlib.Path(keras_attention.__file__).parent
# How many functions a call may run, in how many files, of how many lines. JAX and PyTorch have more
# of their own.
MOST = {
    "tensorflow": {
        "default": (52, 16, 760),
        "cached": (76, 21, 1020),
        "block": (70, 21, 960),
        "encoder": (111, 25, 1420),
    },
    "jax": {
        "default": (65, 19, 840),
        "cached": (101, 24, 1160),
        "block": (83, 23, 1040),
        "encoder": (129, 27, 1490),
    },
    "torch": {
        "default": (76, 19, 940),
        "cached": (103, 23, 1220),
        "block": (96, 23, 1150),
        "encoder": (149, 27, 1630),
    },
}[keras.config.backend()]


def default_call():
    """A call of a built layer, without arguments: the default."""
    layer, x = keras_attention.MultiHeadAttention(8, 16), keras.random.normal((1, 16, 64))
    layer(x, x)
    return lambda: layer(x, x)


def cached_call():
    """The call of one token with a cache."""
    layer, x = keras_attention.MultiHeadAttention(8, 16), keras.random.normal((1, 1, 64))
    layer(x)
    cache = layer.make_cache(1, 32)
    layer(x, cache=cache)
    return lambda: layer(x, cache=cache)


def block_call():
    """A call of a block in training."""
    block, x = keras_attention.TransformerBlock(128, 8), keras.random.normal((1, 16, 64))
    block(x)
    return lambda: block(x, training=True)


def encoder_call():
    """A call of an encoder of one rotary block, of rows with padding on the left."""
    encoder = keras_attention.Encoder([keras_attention.TransformerBlock(64, 4, position="rotary")])
    x = keras.random.normal((2, 9, 32))
    mask = keras.ops.greater_equal(keras.ops.arange(9), [[3], [0]])
    encoder(x, mask=mask)
    return lambda: encoder(x, mask=mask)


CALLS = {
    "default": default_call,
    "cached": cached_call,
    "block": block_call,
    "encoder": encoder_call,
}


def functions_run(call):
    """The functions of the package that a call runs: {module: {(first line, name)}}."""
    found = {}

    def watch(frame, event, _):
        code = frame.f_code
        path = pathlib.Path(code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            name = path.relative_to(PACKAGE).as_posix()
            found.setdefault(name, set()).add((code.co_firstlineno, code.co_name))

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def count(run):
    """How many functions there are, in how many files, and the lines of all."""
    read = sum(lines_of_functions(*item) for item in run.items())
    return sum(map(len, run.values())), len(run), read


def lines_of_functions(name, functions):
    """The lines of functions of a module, their docstrings included."""
    tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
    definitions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return sum(
        node.end_lineno - node.lineno + 1
        for node in definitions
        if (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.name) in functions
    )


@pytest.fixture(autouse=True)
def few_scores_at_once():
    """As it is outside of tests."""
    with strategies.using(few=strategies.Strategy().few):
        yield


def test_the_road_of_a_call_is_short():
    for name, most in MOST.items():
        run = functions_run(CALLS[name]())
        found = count(run)
        assert all(n <= limit for n, limit in zip(found, most, strict=True)), (name, found, run)


def test_the_default_call_runs_what_it_says():
    run = functions_run(default_call())
    for module, function in (
        ("sequence.py", "read"),
        ("layers/attention.py", "attend"),
        ("slots.py", "problem"),
        ("kernels/__init__.py", "choose"),
    ):
        assert function in {name for _, name in run[module]}
    # Neither a mask, a pattern nor folded axes: nothing of theirs runs.
    assert not {name for name in run if name.startswith(("patterns/", "positions/"))}
    assert "layers/heads/axes.py" not in run
