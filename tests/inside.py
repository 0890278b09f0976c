"""A layer of ours inside a user's own."""

import inspect

import keras


@keras.saving.register_keras_serializable(package="inside")
class OwnLayer(keras.layers.Layer):
    """What a user writes around a layer: a `call` alone. Keras builds the layer by tracing it."""

    def __init__(self, inner, listed=False, **kwargs):
        super().__init__(**kwargs)
        self.inner, self.listed = inner, listed

    def call(self, query, value=None, key=None, training=None):
        given = [x for x in (query, value, key) if x is not None]
        kwargs = {}
        if "training" in inspect.signature(self.inner.call).parameters:
            kwargs["training"] = training
        return self.inner(given, **kwargs) if self.listed else self.inner(*given, **kwargs)

    def get_config(self):
        inner = keras.saving.serialize_keras_object(self.inner)
        return {**super().get_config(), "inner": inner, "listed": self.listed}

    @classmethod
    def from_config(cls, config):
        inner = keras.saving.deserialize_keras_object(config.pop("inner"))
        return cls(inner, **config)
