"""A layer that gets its arguments as they are: biases unrounded, one sequence as one."""

import keras

from keras_attention import masks, saving


class ExactInputs(saving.ConfigurableLayer):
    """The base of layers that take an additive bias, or one sequence in several roles.

    Keras casts every float argument of a call to the compute dtype. A bias in bfloat16 has three
    digits, and a cache has a dtype of its own, so those named in `_unrounded` are left alone. And
    Keras casts an array once for each role that it is given in; here it stays one tensor, so that
    a layer knows self-attention.
    """

    _unrounded = ("attention_bias", "cache")
    # What the masks of a call are, for a message.
    _masks = ""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._convert_input_args = False

    def __call__(self, *args, **kwargs):
        self._check_mask_names(kwargs)
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

    def _check_mask_names(self, given):
        """Refuses masks by the names of other libraries, and says what they are called here."""
        for name in given:
            if name.endswith("mask") and name not in self.call_signature_parameters:
                raise TypeError(
                    f"{type(self).__name__} takes no `{name}`. Its masks are {self._masks}, "
                    f"boolean, True = attend. Received: {name} of type {type(given[name]).__name__}"
                )
