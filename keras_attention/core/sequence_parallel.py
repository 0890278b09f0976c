"""`distribution.SequenceParallel`: a `keras.distribution` whose devices share sequences."""

from typing import Literal, get_args

import keras

from keras_attention.core.hints import Tensor
from keras_attention.sequences import shapes

Method = Literal["ring", "heads"]
METHODS = get_args(Method)


class SequenceParallel(keras.distribution.ModelParallel):
    """A `keras.distribution.ModelParallel` that splits sequences over an axis of the mesh too.

    For JAX, on which Keras distributes models. Each device has part of the positions of every array
    between the layers, and attention of this package exchanges what it needs. Models, losses and
    `fit` stay as they are.

    - "ring": keys and values go from device to device (Liu et al. 2023, "Ring Attention with
      Blockwise Transformers"; see `ops.ring_attend`). Under a causal mask each device has an early
      and a late part of the queries, so that all have as much to do.
    - "heads": each device gets all positions of part of the heads, and gives them back (Jacobs et
      al. 2023, "DeepSpeed Ulysses"). Where the devices do not divide the key heads, "ring".

    Attention that the ring does not support is computed as under `ModelParallel`, right but with
    whole sequences on each device: with returned scores, normalizations other than softmax, scores
    with weights, masks or biases of pairs, positions that do not count from 0, and lengths that the
    devices do not divide. `ops.explain` returns which kernel runs.

    Args:
        layout_map, batch_dim_name, auto_shard_dataset: as of `keras.distribution.ModelParallel`; an
            empty map of a mesh, or one that splits weights over a third axis.
        sequence_dim_name: the axis of the mesh that splits sequences, the second axis of all data
            whose length it divides.
        method: "ring" or "heads".

    Raises:
        ValueError: the mesh has no such axis, or `method` is unknown.

    Example (Keras distributes models on JAX):

    >>> import keras
    >>> from keras_attention import distribution
    >>> mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "sequence"], ["cpu:0"])
    >>> by = distribution.SequenceParallel(layout_map=keras.distribution.LayoutMap(mesh))
    >>> by.get_data_layout((8, 1024)).axes
    ('batch', 'sequence')
    """

    def __init__(
        self,
        *,
        layout_map: keras.distribution.LayoutMap,
        batch_dim_name: str | None = None,
        sequence_dim_name: str = "sequence",
        method: Method = "ring",
        auto_shard_dataset: bool = True,
    ):
        options = {"batch_dim_name": batch_dim_name, "auto_shard_dataset": auto_shard_dataset}
        super().__init__(layout_map=layout_map, **options)
        names = self.device_mesh.axis_names
        if sequence_dim_name not in names:
            raise ValueError(
                f"`sequence_dim_name` must be one of the mesh's axes, {names}. "
                f"Received: sequence_dim_name={sequence_dim_name!r}"
            )
        self.sequence_dim_name = sequence_dim_name
        self.method = shapes.check_choice("method", method, METHODS)

    def devices(self, axis: str | None = None) -> int:
        """The number of devices along an axis of the mesh, that of sequences by default."""
        axes = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))
        return axes[axis or self.sequence_dim_name]

    def get_data_layout(self, data_shape):
        layout = super().get_data_layout(data_shape)
        if len(data_shape) < 2 or not data_shape[1] or data_shape[1] % self.devices():
            return layout
        axes = [self.batch_dim_name, self.sequence_dim_name, *layout.axes[2:]]
        return keras.distribution.TensorLayout(axes, self.device_mesh)

    def exchanges_heads(self, query: Tensor, key: Tensor) -> bool:
        """Whether "heads" is the method for a query (B, T, H, K) and a key (B, S, G, K)."""
        sizes = (query.shape[1], key.shape[1], key.shape[2])
        rows = self.devices(self.batch_dim_name)
        return (
            self.method == "heads"
            and all(size is not None and size % self.devices() == 0 for size in sizes)
            and query.shape[0] % rows == 0
        )

    def exchanged(self, array: Tensor, before: int, after: int) -> Tensor:
        """(B, T, H, K), shared by positions, axis 1, or by heads, axis 2, and then by the other."""
        # Both, since the gradient is exchanged the other way round.
        for axis in (before, after):
            axes = [self.batch_dim_name, None, None, None]
            axes[axis] = self.sequence_dim_name
            layout = keras.distribution.TensorLayout(axes, self.device_mesh)
            array = keras.distribution.distribute_tensor(array, layout)
        return array


def current() -> SequenceParallel | None:
    """The distribution that is set, if it splits sequences."""
    found = keras.distribution.distribution()
    return found if isinstance(found, SequenceParallel) else None
