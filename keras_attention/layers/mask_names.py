"""Calls that name a mask as other libraries do: an error with the right name."""

import keras


class MaskNames(keras.layers.Layer):
    """The base of layers that take masks as arguments. `_masks` describes them, for the message."""

    _masks = "`mask` (B, S) for padding"

    def __call__(self, *args, **kwargs):
        for name, mask in kwargs.items():
            if name.endswith("mask") and name not in self.call_signature_parameters:
                raise TypeError(
                    f"{type(self).__name__} takes no `{name}`. Its masks are {self._masks}, "
                    f"boolean, True = attend. Received: {name} of type {type(mask).__name__}"
                )
        return super().__call__(*args, **kwargs)
