"""Steps of layers and models as compiled programs, on JAX and on TensorFlow."""

import math

import keras

from benchmarks.gpu_programs import compiler

ops = keras.ops
BACKEND = keras.backend.backend()


def layer_step(layer, case, call):
    """The `Compiled` forward pass, or its gradients, of `call(layer, x, real)`.

    It is that of a model, since a layer alone would not cast its arrays.
    """
    x = keras.Input((case.length, case.features), dtype=case.dtype)
    real = keras.Input((case.length,), dtype="bool")
    model = keras.Model([x, real], call(layer, x, real if case.padding else None))
    arrays = [
        ((case.batch, case.length, case.features), case.dtype),
        ((case.batch, case.length), "bool"),
    ]
    return _ON[BACKEND][0](model, arrays, case.training)


def model_step(model, x, y):
    """The `Compiled` training step of a model that is compiled in Keras's sense.

    `x` and `y` are shapes and dtypes, or lists of them.
    """
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return _ON[BACKEND][1](model, x, y)


def search(model, function, arrays):
    """The `Compiled` function of arrays, with the model's weights."""
    return _ON[BACKEND][2](model, function, arrays)


def loss_of(output):
    return ops.mean(ops.square(ops.cast(output, "float32")))


def each(function, arrays):
    """A function of each (shape, dtype) in a list, or of one."""
    return [each(function, one) for one in arrays] if isinstance(arrays, list) else function(arrays)


# On JAX


def _whole(count=1):
    import jax

    axes = compiler.mesh((count,), ("device",))
    return jax.sharding.NamedSharding(axes, jax.sharding.PartitionSpec())


def _like(values, sharding):
    import jax

    return jax.tree.map(
        lambda value: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding), values
    )


def _given(arrays, sharding):
    import jax

    return each(lambda one: jax.ShapeDtypeStruct(*one, sharding=sharding), arrays)


def _layer_on_jax(model, arrays, training):
    import jax

    def loss(trained, x, rest, real):
        output, _ = model.stateless_call(trained, rest, [x, real], training=training)
        return loss_of(output)

    def forward(trained, x, rest, real):
        return model.stateless_call(trained, rest, [x, real], training=False)[0]

    whole = _whole()
    trained, rest = (
        _like([variable.value for variable in variables], whole)
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    x, real = _given(arrays, whole)
    function = jax.value_and_grad(loss, (0, 1)) if training else forward
    return compiler.of_jax(function, (trained, x, rest, real), whole)


def _model_on_jax(model, x, y):
    whole = _whole()
    # Metrics are made by the first batch; the loss is one without them.
    state = _like(
        [
            [variable.value for variable in variables]
            for variables in (
                model.trainable_variables,
                model.non_trainable_variables,
                model.optimizer.variables,
                model.metrics_variables,
            )
        ],
        whole,
    )
    data = _given(x, whole), _given(y, whole)
    return compiler.of_jax(lambda state, data: model.train_step(state, data), (state, data), whole)


def _search_on_jax(model, function, arrays):
    whole = _whole()
    values = _like([variable.value for variable in model.variables], whole)

    def run(values, *arrays):
        with keras.StatelessScope(state_mapping=zip(model.variables, values, strict=True)):
            return function(*arrays)

    return compiler.of_jax(run, (values, *_given(arrays, whole)), whole)


def mesh_step(block, case, sizes):
    """The `Compiled` gradients of a block on a mesh of (sequences, heads), laid out by
    `distribution.layout_map`.
    """
    import jax

    import keras_attention

    compiler.as_on_a_gpu(math.prod(sizes))
    names = "batch", "model"
    axes = compiler.mesh(sizes, names)
    layouts = keras_attention.distribution.layout_map(
        keras.distribution.DeviceMesh(sizes, names, ["gpu"] * math.prod(sizes)), block
    )

    def on(*spec):
        return jax.sharding.NamedSharding(axes, jax.sharding.PartitionSpec(*spec))

    def loss(trained, x, rest):
        output, _ = block.stateless_call(trained, rest, x)
        return loss_of(output)

    def given(variables):
        found = []
        for variable in variables:
            layout = layouts[variable.path]
            spec = () if layout is None else layout.axes
            found.append(jax.ShapeDtypeStruct(variable.shape, variable.dtype, sharding=on(*spec)))
        return found

    trained, rest = given(block.trainable_variables), given(block.non_trainable_variables)
    shape = case.batch, case.length, case.features
    x = jax.ShapeDtypeStruct(shape, case.dtype, sharding=on("batch"))
    by = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    asked, keras.distribution.distribution = keras.distribution.distribution, lambda: by
    try:
        return compiler.of_jax(jax.value_and_grad(loss, (0, 1)), (trained, x, rest))
    finally:
        keras.distribution.distribution = asked
        compiler.as_on_a_gpu()


# On TensorFlow


def _traced(function, arrays):
    import tensorflow as tf

    # TensorFlow gives the HLO of functions of tensors only, not of lists of them.
    def flat(*given):
        return function(*keras.tree.pack_sequence_as(like, list(given)))

    like = each(lambda one: 0, arrays)
    specs = keras.tree.flatten(each(lambda one: tf.TensorSpec(*one), arrays))
    compiled = tf.function(flat, jit_compile=True, autograph=False)
    hlo = compiled.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    return compiler.of_hlo(hlo)


def _layer_on_tensorflow(model, arrays, training):
    import tensorflow as tf

    def step(x, real):
        if not training:
            return model([x, real], training=False)
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = loss_of(model([x, real], training=True))
        return total, tape.gradient(total, [x, *model.trainable_variables])

    return _traced(step, arrays)


def _model_on_tensorflow(model, x, y):
    return _traced(lambda x, y: model.train_step((x, y)), [x, y])


def _search_on_tensorflow(model, function, arrays):
    return _traced(function, arrays)


_ON = {
    "jax": (_layer_on_jax, _model_on_jax, _search_on_jax),
    "tensorflow": (_layer_on_tensorflow, _model_on_tensorflow, _search_on_tensorflow),
}
