"""How much one must read to follow a call: it stays little."""

import keras
import pytest

from keras_attention.kernels.tiles import strategies
from tests import core_path

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


@pytest.fixture(autouse=True)
def few_scores_at_once():
    """As it is outside of tests."""
    with strategies.using(few=strategies.Strategy().few):
        yield


def test_the_road_of_a_call_is_short():
    for name, most in MOST.items():
        run = core_path.functions_run(core_path.CALLS[name]())
        found = core_path.count(run)
        assert all(n <= limit for n, limit in zip(found, most, strict=True)), (name, found, run)


def test_the_default_call_runs_what_it_says():
    run = core_path.functions_run(core_path.default_call())
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
