"""Makes the devices, before the backend starts."""

import os

import keras

DEVICES = int(os.environ.get("VIRTUAL_DEVICES", "0"))
BACKEND = keras.config.backend()
OF = {
    "jax": {"collectives", "keras_distribution", "plan", "ring", "sequence_parallel", "shard_map"},
    "tensorflow": {"mirrored", "multi_worker"},
    "torch": {"data_parallel"},
}

# Each file is of one framework, but those of the page and the examples.
others = [name for backend, names in OF.items() for name in names if backend != BACKEND]
collect_ignore_glob = [f"test_{name}.py" for name in others] if DEVICES else ["test_*.py"]

if DEVICES and BACKEND == "tensorflow":
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(DEVICES)]
    )
