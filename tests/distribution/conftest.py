"""Makes the devices, before the backend starts."""

import os
import pathlib

import keras
import pytest

DEVICES = int(os.environ.get("VIRTUAL_DEVICES", "0"))
BACKEND = keras.config.backend()
OF = {
    "jax": {"collectives", "keras_distribution", "ring", "sequence_parallel"},
    "tensorflow": {"mirrored"},
}

# Of one framework; the other files are of all.
others = [name for backend, names in OF.items() for name in names if backend != BACKEND]
collect_ignore_glob = [f"test_{name}.py" for name in others] if DEVICES else ["test_*.py"]


def pytest_collection_modifyitems(items):
    """A file that is named on the command line is collected all the same: it says what it needs."""
    here = pathlib.Path(__file__).parent
    for item in items:
        if item.path.parent == here and any(item.path.match(name) for name in collect_ignore_glob):
            reason = "It needs other devices or another backend: tests/test_devices.py runs it."
            item.add_marker(pytest.mark.skip(reason=reason))


if DEVICES and BACKEND == "tensorflow":
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(DEVICES)]
    )
