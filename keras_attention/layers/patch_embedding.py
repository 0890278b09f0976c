"""`PatchEmbedding`: an image as a sequence, one vector for each of its patches."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_attention import masks, parts, saving, shapes
from keras_attention.backend import backend
from keras_attention.hints import Initializer, Tensor
from keras_attention.kinds import Count, keep
from keras_attention.layers import cell_groups, position_wise, projections


@saving.register
class PatchEmbedding(saving.ConfigurableLayer):
    r"""Cuts images into patches, and projects each to a vector (Dosovitskiy et al. 2021, eq. 1).

    `x_n = vec(patch_n) W + b`, patch by patch and row by row: a convolution whose strides are the
    size of its kernel. Images may have any number of axes: one for series, three for films.

    Args:
        patch_size: pixels of a patch along each axis of the images: an integer for square patches
            of two-dimensional images, or a tuple with a size per axis.
        dim: features of a patch's vector.
        flatten: whether the output is a sequence; or else it keeps the axes of the images.
        use_bias: whether the projection has a bias.
        data_format: "channels_last" or "channels_first"; None is Keras's default,
            `keras.config.image_data_format()`. The output has its features last in both.
        kernel_initializer, bias_initializer: of the projection, a kernel (pixels · channels, D).
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        images: (B, height, width, channels), or (B, channels, height, width).
        mask: boolean (B, height, width), True = a pixel of the image, for images of several sizes
            that are padded in a batch; combined with the mask that `images` carry. A pixel that is
            padding counts as 0, whatever it has; a patch that has no other is masked.

    Returns:
        (B, N, D) for N patches, or (B, rows, columns, D) without `flatten`, carrying a mask of
        patches if there is one of pixels.

    Raises:
        ValueError: a size is not as described, images have other axes, or their sizes are no
            multiples of the patch's.
        TypeError: `mask` is not boolean.

    Example:

    >>> import keras, keras_attention
    >>> images = keras.random.uniform((2, 32, 24, 3))
    >>> keras_attention.PatchEmbedding(8, 64, data_format="channels_last")(images).shape
    (2, 12, 64)
    """

    _masks = "`mask` (B, height, width) for padding"

    def __init__(
        self,
        patch_size: int | tuple[int, ...],
        dim: Count,
        flatten: bool = True,
        use_bias: bool = True,
        data_format: str | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        keep(self, locals())
        one = patch_size if isinstance(patch_size, (tuple, list)) else (patch_size, patch_size)
        self.patch_size = shapes.check_sizes("patch_size", one, 1)
        self.data_format = shapes.check_choice(
            "data_format",
            keras.config.image_data_format() if data_format is None else data_format,
            ("channels_last", "channels_first"),
        )

    def build(self, images_shape, mask_shape=None):
        *_, channels = self._channels_last(images_shape)
        shape = (images_shape[0], None, math.prod(self.patch_size) * channels)
        self._dense = projections.dense(self, "dense", self.dim, shape, self.use_bias)

    dense = parts.part("_dense", "The projection of a patch.")

    def _channels_last(self, shape):
        """The shape of images with their channels last, checked as far as it is known."""
        first = self.data_format == "channels_first"
        found = (shape[0], *shape[2:], shape[1]) if first and len(shape) > 2 else tuple(shape)
        if len(found) != len(self.patch_size) + 2 or found[-1] is None:
            axes = ", ".join(["batch", *["size"] * len(self.patch_size)])
            raise ValueError(
                f"`images` must have the axes ({axes}) and a known number of channels, in the "
                f"format {self.data_format!r}, for patch_size={self.patch_size}. "
                f"Received: images.shape={tuple(shape)}"
            )
        for size, patch in zip(map(backend.known_size, found[1:-1]), self.patch_size, strict=True):
            if size is not None and size % patch:
                raise ValueError(
                    "Sizes of `images` must be multiples of those of `patch_size`: crop or pad "
                    f"the images, or choose other patches. Received: images.shape={tuple(shape)}, "
                    f"patch_size={self.patch_size}"
                )
        return found

    def call(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        self._channels_last(images.shape)
        if self.data_format == "channels_first":
            images = masks.carry(ops.moveaxis(images, 1, -1), masks.implicit(images))
        mask = masks.padding(images, mask, "images")
        images = ops.cast(images, self.compute_dtype)
        x = position_wise.apply(self, self._dense, self._patches(masks.clear(images, mask)))
        return masks.carry(x, cell_groups.of_mask(self._patches, mask))

    def _patches(self, x):
        """The values (B, N, n) of patches, or (B, rows, columns, n), of pixels with channels."""
        return cell_groups.grouped(x, ops.shape(x)[1:-1], self.patch_size, self.flatten)

    def compute_mask(self, images, previous_mask=None):
        if previous_mask is None:
            return None
        masks.check_axes(previous_mask, self._channels_last(images.shape)[:-1], "images")
        return cell_groups.GroupMask(self.patch_size, flatten=self.flatten)(previous_mask)

    def compute_output_shape(self, images_shape, mask_shape=None):
        batch, *sizes, _ = self._channels_last(images_shape)
        return (batch, *cell_groups.counts(sizes, self.patch_size, self.flatten), self.dim)
