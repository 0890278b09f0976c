"""A layer with uncast arguments: unrounded biases, one tensor per sequence."""

import keras
import numpy as np

from keras_attention import inputs, keras_private, masks, saving
from keras_attention.layers.mask_names import MaskNames


class UncastInputs(MaskNames, saving.ConfigurableLayer):
    """The base of layers that take an additive bias, or one sequence in several roles.

    Keras casts every float argument of a call to the compute dtype. A bias in bfloat16 has three
    digits, and a cache has its own dtype, so those named in `_unrounded` are not cast. And
    Keras casts an array once per role; here it stays one tensor, so that a layer can detect
    self-attention.
    """

    _unrounded = ("attention_bias", "cache")

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        keras_private.keep_inputs_as_they_are(self)

    def __call__(self, *args, **kwargs):
        for name in ("positions", "segment_ids"):
            for array in keras.tree.flatten(kwargs.get(name)):
                if isinstance(array, np.ndarray):
                    # JAX would store int64 as int32, with other values.
                    inputs.check_within(name, array)
        converted = {}

        def convert(x, autocast):
            known = (id(x), autocast)
            if known not in converted:
                y = self.dtype_policy.convert_input(x, autocast, self.input_dtype)
                converted[known] = y if y is x else masks.carry(y, masks.implicit(x))
            return converted[known]

        def each(structure, autocast):
            return keras.tree.map_structure(lambda x: convert(x, autocast), structure)

        args = each(args, self.autocast)
        kwargs = {
            name: each(value, self.autocast and name not in self._unrounded)
            for name, value in kwargs.items()
        }
        return super().__call__(*args, **kwargs)
