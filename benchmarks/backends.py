"""How layers are compiled on each backend, and what is known of the device."""

import keras
import numpy as np

BACKEND = keras.backend.backend()


def _on_tensorflow(call, layer, inputs, training, xla):
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # or it warns of as many functions as there are rows
    weights = [weight.value for weight in layer.trainable_variables]

    @tf.function(jit_compile=xla, autograph=False)
    def run(*inputs):
        if not training:
            return (call(*inputs),)
        with tf.GradientTape() as tape:
            tape.watch(inputs[0])
            total = tf.reduce_sum(tf.square(tf.cast(call(*inputs), "float32")))
        return tape.gradient(total, [inputs[0], *weights])

    def wait():
        outcome = run(*inputs)
        tf.test.experimental.sync_devices()
        return outcome

    return wait


def _on_jax(call, layer, inputs, training, xla):
    import jax

    weights = [weight.value for weight in layer.trainable_variables]
    state = [variable.value for variable in layer.non_trainable_variables]

    def forward(x, weights, state, *others):
        pairs = zip(layer.trainable_variables, weights, strict=True)
        states = zip(layer.non_trainable_variables, state, strict=True)
        with keras.StatelessScope(state_mapping=[*pairs, *states]):
            return call(x, *others)

    def total(*arguments):
        return (forward(*arguments).astype("float32") ** 2).sum()

    run = jax.jit(jax.grad(total, (0, 1)) if training else lambda *given: (forward(*given),))
    return lambda: jax.block_until_ready(run(inputs[0], weights, state, *inputs[1:]))


def on_torch(call, weights, inputs, training):
    import torch

    def run():
        if not training:
            with torch.no_grad():
                return (call(*inputs),)
        x = inputs[0].detach().requires_grad_()
        total = call(x, *inputs[1:]).float().square().sum()
        return torch.autograd.grad(total, [x, *weights])

    def wait():
        outcome = run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return outcome

    return wait


def compiled(call, inputs, layer=None, training=False, xla=False):
    """A function that runs `call` of the inputs once, or in training its gradients, and waits.

    `layer` has the weights of `call`, if it has any.
    """
    layer = layer or keras.layers.Identity()
    if BACKEND == "torch":
        return on_torch(call, [w.value for w in layer.trainable_variables], inputs, training)
    on = _on_jax if BACKEND == "jax" else _on_tensorflow
    return on(call, layer, inputs, training, xla)


def seeded(layer):
    """Gives a built layer or model the weights that any other of its shapes gets."""
    rng = np.random.default_rng(1)
    for weight in layer.trainable_variables:
        if len(weight.shape) > 1:  # those with one axis start equal, at 0 or 1
            weight.assign(0.05 * rng.standard_normal(weight.shape, dtype="float32"))
    return layer


def trained(layer, shape, jit, training=True):
    """A function that makes a step of a model of one layer, on a sequence (B, T, D).

    Without `training` it predicts.
    """
    symbol = keras.Input(shape[1:])
    model = seeded(keras.Model(symbol, layer(symbol)))
    model.compile("sgd", "mse", jit_compile=jit)
    x = np.random.default_rng(0).standard_normal(shape, dtype="float32")
    return lambda: model.train_on_batch(x, x) if training else model.predict_on_batch(x)


def gpu():
    """The GPU's name, and the most bytes that this process has had in use there; or None."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        found = tf.config.list_physical_devices("GPU")
        if found:
            name = tf.config.experimental.get_device_details(found[0]).get("device_name", "GPU")
            return name, tf.config.experimental.get_memory_info("GPU:0")["peak"]
    elif BACKEND == "jax":
        import jax

        device = jax.local_devices()[0]
        if device.platform == "gpu":
            return device.device_kind, device.memory_stats()["peak_bytes_in_use"]
    elif BACKEND == "torch":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()
    return None
