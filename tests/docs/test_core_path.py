"""How much one must read to follow a call: it stays little.

What one reads of `MultiHeadAttention(8, 16)(x, x)` up to its output, and of other calls, are the
functions that it runs, with their docstrings.
"""

import inspect
import pathlib
import sys

import keras
import pytest

import keras_attention
from keras_attention.kernels.tiles import strategies

PACKAGE = pathlib.Path(keras_attention.__file__).parent


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


# How many functions a call may run, in how many files, of how many lines. JAX and PyTorch have more
# of their own.
MOST = {
    default_call: {"tensorflow": (52, 17, 755), "jax": (61, 20, 825), "torch": (72, 20, 935)},
    cached_call: {"tensorflow": (80, 22, 1045), "jax": (98, 25, 1185), "torch": (102, 24, 1245)},
    block_call: {"tensorflow": (68, 21, 935), "jax": (77, 23, 1015), "torch": (88, 23, 1130)},
    encoder_call: {"tensorflow": (112, 25, 1415), "jax": (123, 27, 1485), "torch": (140, 27, 1635)},
}


def functions_run(call):
    """The functions of the package that a call runs: {module: {code}}."""
    found = {}

    def watch(frame, event, _):
        path = pathlib.Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            found.setdefault(path.relative_to(PACKAGE).as_posix(), set()).add(frame.f_code)

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def count(run):
    """How many named functions there are, in how many files, and the lines of all."""
    # Comprehensions are functions in some versions of Python.
    named = [code for code in set().union(*run.values()) if not code.co_name.startswith("<")]
    return len(named), len(run), sum(len(inspect.getsourcelines(code)[0]) for code in named)


@pytest.fixture(autouse=True)
def few_scores_at_once():
    """As it is outside of tests."""
    with strategies.using(few=strategies.Strategy().few):
        yield


def test_the_road_of_a_call_is_short():
    for call, most in MOST.items():
        run = functions_run(call())
        found, most = count(run), most[keras.config.backend()]
        assert all(n <= limit for n, limit in zip(found, most, strict=True)), (call, found, run)


def test_the_default_call_runs_what_it_says():
    run = functions_run(default_call())
    for module, function in (
        ("sequences/sequence.py", "read"),
        ("layers/attention.py", "attend"),
        ("core/slots.py", "problem"),
        ("kernels/__init__.py", "choose"),
    ):
        assert function in {code.co_name for code in run[module]}
    # Neither a mask, a pattern nor folded axes: nothing of theirs runs.
    assert not {name for name in run if name.startswith(("patterns/", "positions/"))}
    assert "layers/heads/axes.py" not in run
