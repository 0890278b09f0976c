"""`--devices`: training on several devices, by Keras's own means on JAX and TensorFlow."""

import contextlib

from examples.errors import UsageError


def add_option(parser, parse):
    """Adds `--devices` to a parser; `parse` reads a number of at least 1."""
    parser.add_argument(
        "--devices",
        type=parse,
        default=1,
        metavar="N",
        help="share each batch among N devices, on JAX and TensorFlow; default: 1",
    )


def rows(count, devices):
    """The least number of rows, at least `count`, that devices can share."""
    return -(-count // devices) * devices


@contextlib.contextmanager
def scope(devices, make_layouts=None, model_parallel=1):
    """In this block models are made for, and train on, so many devices.

    Args:
        devices: how many.
        make_layouts: gives the `keras.distribution.LayoutMap` for a mesh, where the devices share
            weights too.
        model_parallel: how many devices share the weights; JAX only.
    """
    if devices == 1:
        yield
        return
    import keras

    backend = keras.backend.backend()
    if backend == "torch":
        raise UsageError(
            "--devices is for JAX and TensorFlow: Keras does not distribute models on PyTorch. "
            "docs/scaling.md shows DistributedDataParallel."
        )
    if devices % model_parallel or (model_parallel > 1 and backend != "jax"):
        raise UsageError(
            "--model-parallel is for JAX, and must divide --devices. Received: "
            f"--devices {devices} --model-parallel {model_parallel} on {backend}."
        )
    if backend == "tensorflow":
        with _mirrored(devices).scope():
            yield
        return
    names = _first(keras.distribution.list_devices(), devices)
    if model_parallel == 1:
        by = keras.distribution.DataParallel(devices=names)
    else:
        shape = devices // model_parallel, model_parallel
        mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"], names)
        by = keras.distribution.ModelParallel(layout_map=make_layouts(mesh), batch_dim_name="batch")
    with by.scope():
        yield


def _mirrored(devices):
    import tensorflow as tf

    names = [
        device.name
        for kind in ("GPU", "CPU")
        for device in tf.config.list_logical_devices(kind)
        if kind == "GPU" or not tf.config.list_logical_devices("GPU")
    ]
    return tf.distribute.MirroredStrategy(_first(names, devices))


def _first(names, devices):
    if len(names) < devices:
        raise UsageError(
            f"--devices {devices} needs as many devices. There are {len(names)}: "
            f"{', '.join(names)}. For virtual ones on a CPU see docs/scaling.md."
        )
    return names[:devices]
