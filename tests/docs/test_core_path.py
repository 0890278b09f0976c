"""How much one must read to follow a call: it stays little."""

import keras
import pytest

from keras_attention.kernels import strategies
from tests import core_path

# The functions that a call may run, and their lines. JAX and PyTorch have more of their own.
MOST = {
    "tensorflow": {"default": (59, 780), "cached": (97, 1090), "block": (78, 980)},
    "jax": {"default": (73, 850), "cached": (121, 1220), "block": (91, 1050)},
    "torch": {"default": (84, 955), "cached": (122, 1280), "block": (105, 1160)},
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
