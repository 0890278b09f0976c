"""Makes the devices, before the backend starts."""

import os

import keras

DEVICES = int(os.environ.get("VIRTUAL_DEVICES", "0"))
BACKEND = keras.config.backend()
OF = {
    "jax": {"collectives", "keras_distribution", "ring", "shard_map"},
    "tensorflow": {"mirrored"},
    "torch": {"data_parallel"},
}

# Each file is of one framework.
collect_ignore_glob = [
    f"test_{name}.py"
    for backend, names in OF.items()
    for name in names
    if not DEVICES or backend != BACKEND
]

if DEVICES and BACKEND == "tensorflow":
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(DEVICES)]
    )
