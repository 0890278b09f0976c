"""Patches: groups of neighboring cells of a grid, as vectors, and as cells of a smaller grid."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.core import parts
from keras_attention.core.hints import Initializer, Tensor
from keras_attention.layers.blocks import norms
from keras_attention.layers.heads import projections
from keras_attention.sequences import masks, shapes


def grouped(x, sizes, groups, flatten, first_fastest=False):
    """The features (B, N, n) of groups of cells, or (B, rows, columns, n), of `x` (B, ..., D)."""
    # `sizes` are those of the grid and `groups` those of a group, whose last axis changes fastest
    # unless `first_fastest`. With `flatten` the groups are a sequence, row by row.
    batch, features = ops.shape(x)[0], x.shape[-1]
    pairs = [n for pair in zip(counts(sizes, groups), groups, strict=True) for n in pair]
    axes = list(range(1, len(pairs), 2))
    inside = [axis + 1 for axis in axes]
    x = ops.reshape(x, (batch, *pairs, features))
    x = ops.transpose(x, (0, *axes, *inside[:: -1 if first_fastest else 1], len(pairs) + 1))
    shape = (*counts(sizes, groups, flatten), math.prod(groups) * features)
    return ops.reshape(x, (batch, *shape))


def counts(sizes, groups, flatten=False):
    """The shape of the groups, as far as it is known."""
    found = [None if n is None else n // group for n, group in zip(sizes, groups, strict=True)]
    return [None if None in found else math.prod(found)] if flatten else found


def of_mask(group, mask):
    """The mask of groups that have a real cell, of one of cells; `group` groups arrays."""
    return None if mask is None else ops.any(group(mask[..., None]), axis=-1)


class GroupMask(saving.ConfigurableLayer):
    """The operation of a functional model that makes the mask of groups, of one of cells.

    Arguments are those of `grouped`; `grid` has the sizes of that of a sequence.
    """

    def __init__(self, groups: Any, grid: Any = None, flatten: bool = True, **kwargs: Any):
        super().__init__(**kwargs)
        self.groups, self.grid, self.flatten = groups, grid, flatten

    def call(self, mask: Tensor) -> Tensor:
        sizes = ops.shape(mask)[1:] if self.grid is None else self.grid
        return of_mask(lambda x: grouped(x, sizes, self.groups, self.flatten), mask)

    def compute_output_spec(self, mask):
        sizes = mask.shape[1:] if self.grid is None else self.grid
        shape = (mask.shape[0], *counts(sizes, self.groups, self.flatten))
        return keras.KerasTensor(shape, "bool")


class PatchEmbedding(saving.ConfigurableLayer):
    r"""Cuts images into patches, and projects each to a vector (Dosovitskiy et al. 2021, eq. 1).

    `x_n = vec(patch_n) W + b`, patch by patch and row by row: a convolution whose strides are the
    size of its kernel. Images may have any number of axes: one for series, three for films.

    Args:
        patch_size: pixels of a patch along each axis of the images: an integer for square patches
            of two-dimensional images, or a tuple with a size per axis.
        dim, use_bias: features of a patch's vector, and whether the projection has a bias.
        flatten: whether the output is a sequence; or else it keeps the axes of the images.
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
        ValueError, TypeError: an argument is not as described, images have other axes, or their
            sizes are no multiples of the patch's.

    >>> import keras, keras_attention
    >>> images = keras.random.uniform((2, 32, 24, 3))
    >>> keras_attention.PatchEmbedding(8, 64, data_format="channels_last")(images).shape
    (2, 12, 64)
    """

    _masks = "`mask` (B, height, width) for padding"

    def __init__(
        self,
        patch_size: int | tuple[int, ...],
        dim: int,
        flatten: bool = True,
        use_bias: bool = True,
        data_format: str | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        one = patch_size if isinstance(patch_size, (tuple, list)) else (patch_size, patch_size)
        self.patch_size = shapes.check_sizes("patch_size", one, 1)
        self.dim = shapes.check_count("dim", dim)
        self.flatten = shapes.check_flag("flatten", flatten)
        self.use_bias = shapes.check_flag("use_bias", use_bias)
        data_format = keras.config.image_data_format() if data_format is None else data_format
        formats = "channels_last", "channels_first"
        self.data_format = shapes.check_choice("data_format", data_format, formats)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

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
        x = projections.apply(self, self._dense, self._patches(masks.clear(images, mask)))
        return masks.carry(x, of_mask(self._patches, mask))

    def grid_of(self, images):
        """The sizes of the grid of the patches of images."""
        _, *sizes = ops.shape(images)
        sizes = sizes[1:] if self.data_format == "channels_first" else sizes[:-1]
        return tuple(counts(sizes, self.patch_size))

    def _patches(self, x):
        """The values (B, N, n) of patches, or (B, rows, columns, n), of pixels with channels."""
        return grouped(x, ops.shape(x)[1:-1], self.patch_size, self.flatten)

    def compute_mask(self, images, previous_mask=None):
        if previous_mask is None:
            return None
        masks.check_axes(previous_mask, self._channels_last(images.shape)[:-1], "images")
        return GroupMask(self.patch_size, flatten=self.flatten)(previous_mask)

    def compute_output_shape(self, images_shape, mask_shape=None):
        batch, *sizes, _ = self._channels_last(images_shape)
        return (batch, *counts(sizes, self.patch_size, self.flatten), self.dim)


class PatchMerging(saving.ConfigurableLayer):
    r"""Merges groups of 2 by 2 cells of a grid (Liu et al. 2021, Swin, section 3.1).

    `y_rc = W norm([x_(2r,2c), x_(2r+1,2c), x_(2r,2c+1), x_(2r+1,2c+1)])`, with a layer norm of
    the 4D features, and 2D outputs by default: between stages of a model, the grid gets smaller
    and vectors get longer, as in a convolutional network.

    Args:
        grid: (height, width) of the grid that a sequence is made of, row by row, or the sizes of
            more or fewer axes: (depth, height, width) of a video; None for inputs that are a grid.
        dim: features of the output; None is twice those of the input.
        size: cells along an axis that become one: an integer, or one for each axis.
        layer_norm_epsilon, kernel_initializer: what the norm adds to variances; of W.
        norm_after: whether the norm comes after W: y = norm(W x) (Liu et al. 2022, Swin v2).
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: a sequence (B, height · width, D), or a grid (B, height, width, D).
        mask: boolean, as `x` without features, True = a real cell; combined with the mask that `x`
            carries. Other cells count as 0, whatever they have; a group of no real one is masked.

    Returns:
        (B, height / 2 · width / 2, dim), or (B, height / 2, width / 2, dim), carrying the mask of
        groups.

    Raises:
        ValueError, TypeError: an argument is not as described, `x` is not of the grid, or the sizes
            of the grid are no multiples of `size`.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 4 * 6, 16))
    >>> keras_attention.PatchMerging((4, 6))(x).shape
    (2, 6, 32)
    """

    _masks = "`mask` (B, height · width) for padding"

    def __init__(
        self,
        grid: Sequence[int] | None = None,
        dim: int | None = None,
        size: int | Sequence[int] = 2,
        layer_norm_epsilon: float = 1e-5,
        kernel_initializer: Initializer = "glorot_uniform",
        norm_after: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.norm_after = shapes.check_flag("norm_after", norm_after)
        self.grid = None if grid is None else shapes.check_grid("grid", grid)
        self.dim = shapes.check_optional_count("dim", dim)
        several = isinstance(size, (tuple, list))
        self.size: Any = (shapes.check_sizes if several else shapes.check_count)("size", size, 1)
        self.layer_norm_epsilon = shapes.check_positive("layer_norm_epsilon", layer_norm_epsilon)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, x_shape, mask_shape=None):
        # `call` checks sizes: those that Keras makes up on PyTorch are saved, and built from again.
        _, groups = self._groups(x_shape, known_size=lambda size: None)
        shape = (x_shape[0], None, math.prod(groups) * x_shape[-1])
        dim = self.dim or 2 * x_shape[-1]
        of_norm = (*shape[:2], dim) if self.norm_after else shape
        given = self.dtype_policy, self.layer_norm_epsilon
        self._norm = norms.make("layer", "norm", of_norm, *given)
        self._dense = projections.dense(self, "dense", dim, shape, use_bias=False)

    norm = parts.part("_norm", "The norm of the features of a group.")
    dense = parts.part("_dense", "The projection of a group.")

    def _groups(self, x_shape, known_size=backend.known_size):
        """The sizes of the grid and of a group; the shape is checked as far as it is known."""
        sequence = self.grid is not None
        sizes = list(x_shape[1:-1] if self.grid is None else self.grid)
        groups = [self.size] * len(sizes) if isinstance(self.size, int) else list(self.size)
        known = known_size(x_shape[1]) if sequence and len(x_shape) == 3 else None
        if (
            not sizes
            or len(groups) != len(sizes)
            or x_shape[-1] is None
            or (sequence and (len(x_shape) != 3 or known not in (None, math.prod(sizes))))
        ):
            raise ValueError(
                "`x` must be the sequence of a `grid`, (batch, height · width, features), or "
                "without one a grid, (batch, height, width, features), with as many axes as `size` "
                f"has. Received: x.shape={tuple(x_shape)}, grid={self.grid}, size={self.size}"
            )
        for cells, group in zip(map(known_size, sizes), groups, strict=True):
            if cells is not None and cells % group:
                raise ValueError(
                    "Sizes of the grid must be multiples of `size`: pad or crop it. Received: "
                    f"x.shape={tuple(x_shape)}, grid={self.grid}, size={self.size}"
                )
        return sizes, groups

    def call(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = masks.padding(x, mask)
        x = masks.clear(ops.cast(x, self.compute_dtype), mask)
        merged = self._grouped(x) if self.norm_after else self._norm(self._grouped(x))
        merged = projections.apply(self, self._dense, merged)
        merged = self._norm(merged) if self.norm_after else merged
        return masks.carry(merged, of_mask(self._grouped, mask))

    def _grouped(self, x):
        """The features (B, N, n) of groups, or (B, rows, columns, n), the first axis fastest."""
        sizes = ops.shape(x)[1:-1] if self.grid is None else self.grid
        _, groups = self._groups(x.shape)
        made_up = isinstance(x.shape[1], int) and backend.known_size(x.shape[1]) is None
        if self.grid is not None and made_up:
            # On PyTorch, Keras infers shapes from arrays of lengths that it makes up.
            x = ops.swapaxes(backend.first(ops.swapaxes(x, 1, 2), math.prod(sizes)), 1, 2)
        return grouped(x, sizes, groups, self.grid is not None, first_fastest=True)

    def compute_mask(self, x, previous_mask=None):
        masks.padding(x, previous_mask)
        if previous_mask is None:
            return None
        _, groups = self._groups(x.shape)
        return GroupMask(groups, self.grid, self.grid is not None)(previous_mask)

    def compute_output_shape(self, x_shape, mask_shape=None):
        sizes, groups = self._groups(x_shape)
        found = counts(sizes, groups, self.grid is not None)
        return (x_shape[0], *found, self.dim or 2 * x_shape[-1])
