"""Kernels of experts in int8, which Keras's quantization finds as it finds other layers."""

import keras
from keras import ops


class Int8Kernels(keras.layers.Layer):
    """The kernels of the layer around it in int8, once a model is quantized; before, none.

    Keras quantizes layers without parts, and a layer of experts has parts. `owner()` has attributes
    `name_kernel`, (E, D, D'), which become None; each output of an expert has a scale.
    """

    def __init__(self, owner, names, **kwargs):
        super().__init__(**kwargs)
        self._owner, self._names, self.built = owner, names, True

    quantization_mode = property(lambda self: "int8" if self.weights else None)

    def quantize(self, mode=None, type_check=True, config=None):
        if mode != "int8":
            super().quantize(mode)
        for name in self._names:
            kernel = ops.cast(getattr(self._owner(), f"{name}_kernel"), "float32")
            found = keras.quantizers.abs_max_quantize(kernel, axis=1, to_numpy=True)
            for path, array in zip((f"{name}_kernel", f"{name}_scale"), found, strict=True):
                options = {"dtype": array.dtype, "trainable": False, "autocast": False}
                weight = self.add_weight(array.shape, "zeros", name=path, **options)
                weight.assign(array)
                setattr(self, path, weight)
            delattr(self._owner(), f"{name}_kernel")
            setattr(self._owner(), f"{name}_kernel", None)

    def kernel(self, name, of_chosen):
        """The kernels that `of_chosen` takes of all, in the compute dtype."""
        wide = ops.cast(of_chosen(getattr(self, f"{name}_kernel")), "float32")
        return ops.cast(wide / of_chosen(getattr(self, f"{name}_scale")), self.compute_dtype)
