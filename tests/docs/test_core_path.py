"""How much one must read to follow a call: it stays little."""

import keras
import pytest

from keras_attention.kernels import strategies
from tests import core_path

# The functions that a call may run, and their lines. JAX and PyTorch have more of their own.
MOST = {
    "tensorflow": {
        "default": (56, 770),
        "cached": (80, 1030),
        "block": (74, 970),
        "encoder": (116, 1430),
    },
    "jax": {
        "default": (69, 850),
        "cached": (105, 1170),
        "block": (87, 1050),
        "encoder": (134, 1500),
    },
    "torch": {
        "default": (79, 950),
        "cached": (106, 1230),
        "block": (99, 1150),
        "encoder": (153, 1640),
    },
}[keras.config.backend()]


@pytest.fixture(autouse=True)
def few_scores_at_once():
    """As it is outside of tests."""
    with strategies.using(few=strategies.Strategy().few):
        yield


def test_the_road_of_a_call_is_short():
    for name, (most, lines) in MOST.items():
        run = core_path.functions_run(core_path.CALLS[name]())
        functions, _, read = core_path.count(run)
        assert functions <= most and read <= lines, (name, run)


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
    assert "layers/axes.py" not in run
