"""What every test starts from."""

import gc
import inspect
import math
import os
import pathlib
import re

# XLA of TensorFlow would spend most of the time of a test on machine code that runs once. On JAX,
# where all is XLA, tests run as users do; on TensorFlow, CI runs some with `XLA_FLAGS=`.
if os.environ.get("KERAS_BACKEND") != "jax":
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    )

import keras
import numpy as np
import pytest

from keras_attention.kernels.tiles import strategies

pytest_plugins = ["tests.share", "tests.timing"]

OF_3_15 = "sliding_window" in inspect.signature(keras.layers.MultiHeadAttention).parameters
# Folders and files of code that no backend reaches: text, files, constructors, drawings. CI runs
# these on TensorFlow alone, and the examples themselves on each backend.
ANY_BACKEND = {
    "benchmarks",
    "docs/test_api",
    "docs/test_commands",
    "docs/test_docs",
    "docs/test_structure",
    "examples",
    "test_constructors",
    "test_names",
    "visualization/test_attention_page",
    "visualization/test_attention_page_in_browser",
    "visualization/test_plot",
}


# Arguments of Keras's own layers that came after the oldest Keras that setup.py allows.
LATER = re.compile(r"passed to (Multi|Grouped).*Attention: {'(use_gate|sliding_window)'")


def few_sizes(uniform):
    """`jax.random.uniform`, which takes a third of a second to compile, of some sizes alone."""

    def drawn(key, shape=(), *args, **kwargs):
        if isinstance(key, jax.core.Tracer):
            return uniform(key, shape, *args, **kwargs)
        size = math.prod(shape)
        numbers = uniform(key, (1 << max(size - 1, 255).bit_length(),), *args, **kwargs)
        return jax.numpy.asarray(np.asarray(numbers)[:size].reshape(shape))

    return drawn


# Tests run in as many processes as there are cores: threads of a small operation only wait for one
# another.
if keras.config.backend() == "jax":
    import jax

    jax.random.uniform = few_sizes(jax.random.uniform)
elif keras.config.backend() == "torch":
    import torch

    torch.set_num_threads(1)
else:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # It discards all kernels of eager operations, which takes half of the time of a test, for those
    # that draw by this seed, as none of Keras's do.
    tf.random.set_seed(0)
    tf.random.set_seed = lambda seed: None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skips a comparison with an argument that this Keras's own layer does not have yet."""
    try:
        return (yield)
    except ValueError as error:
        if LATER.search(str(error)) and not OF_3_15:
            pytest.skip(f"Keras {keras.__version__}: {error}")
        raise


pytest_runtest_setup = pytest_runtest_call


def pytest_collection_modifyitems(items):
    folder = pathlib.Path(__file__).parent
    for item in items:
        path = pathlib.Path(os.path.relpath(item.path, folder)).with_suffix("")
        if ANY_BACKEND & {parent.as_posix() for parent in (path, *path.parents)}:
            item.add_marker("any_backend")
        # A case of a layer that is left to CI.
        if hasattr(item, "callspec") and getattr(item.callspec.params.get("case"), "ci", False):
            item.add_marker("ci")
        if item.get_closest_marker("ci") and keras.config.backend() == "tensorflow":
            item.add_marker("slow")
    # The longest first, so that no worker waits for the one that has it.
    items.sort(key=lambda item: item.path.name != "test_devices.py")


@pytest.fixture(autouse=True)
def fixed_seed():
    """Weights and dropout are drawn alike in every run, whichever tests run before."""
    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def tiles_of_few_scores():
    """Tests are of few scores, outside of programs: `blockwise` would leave all to `reference`."""
    with strategies.using(few=0):
        yield


@pytest.fixture(scope="session")
def freeze():
    """Lets the collector of garbage look at what is there no more.

    Keras collects after each weight that it quantizes, which takes a second where a session has
    compiled much.
    """

    def run():
        gc.collect()
        gc.freeze()

    return run


def pytest_collection_finish():
    # What is imported stays.
    gc.collect()
    gc.freeze()
