"""Losses for training models of sequences."""

import keras
from keras import ops

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.core.hints import Tensor
from keras_attention.sequences import masks, shapes

__all__ = ["SmoothedCrossentropy"]


@saving.register
@saving.renamed(ignore="ignore_class")
class SmoothedCrossentropy(keras.losses.Loss):
    r"""Cross-entropy of the next token with smoothed labels, averaged over real tokens.

    For a token with logits z (V,) and target y, with ε = `label_smoothing` (Szegedy et al. 2016,
    section 7, with the uniform distribution; Vaswani et al. 2017, section 5.4):

        −Σ_k q_k log softmax(z)_k,  q_k = (1 − ε) [k = y] + ε / V
        = logsumexp(z) − (1 − ε) z_y − ε mean(z)

    The second line is computed, in float32 for every dtype of logits, without one-hot targets.

    Args:
        label_smoothing: ε, at least 0 and below 1.
        ignore_class: the target of ignored positions, usually that of padding; None
            for no such target. Any integer, such as -1 or -100.
        reduction: how token losses are reduced. "sum_over_batch_size", or "mean" for
            short: their sum divided by the number of real tokens. "sum": their sum.
            "mean_with_sample_weight": their sum divided by the sum of the weights of real tokens.
            None or "none": no reduction, (B, T), with zeros where a token is not real.
        name: of the loss.

    Call arguments:
        y_true: integer targets, (B, T) or of any shape.
        y_pred: logits, (B, T, V): the shape of the targets, and the vocabulary.
        sample_weight: None or an array that broadcasts to the leading axes of `y_true`: each
            token's loss is multiplied by its weight. As everywhere in Keras, "mean" does not
            divide by the weights, and NaN times a weight of 0 is NaN.

    Real tokens are those whose target is not `ignore_class`, and which are not masked by the mask
    that `y_pred` carries, if any. The logits of others may be NaN or infinite. Without any real
    token the loss is 0.

    Returns:
        A float32 number, or (B, T) without reduction. A real token whose target is below 0 or not
        below V makes it NaN. So does a logit of -∞, unless ε is 0: an impossible token
        cannot get a share of ε.

    Raises:
        ValueError, TypeError: an argument is not as described, or the shapes of targets, logits and
            weights do not match.

    Keras's progress bar shows the mean of the losses of the batches, weighted by their numbers of
    rows.

    >>> import keras, keras_attention
    >>> loss = keras_attention.losses.SmoothedCrossentropy(label_smoothing=0.1)
    >>> logits = keras.ops.zeros((2, 3, 4))
    >>> round(float(loss(keras.ops.convert_to_tensor([[3, 1, 0], [2, 0, 0]]), logits)), 4)
    1.3863
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        ignore_class: int | None = 0,
        reduction: str | None = "sum_over_batch_size",
        name: str = "smoothed_crossentropy",
    ):
        # Keras casts targets and logits to the loss's dtype: float32 is exact for tokens below 2²⁴.
        super().__init__(name=name, reduction=reduction, dtype="float32")
        self.label_smoothing = shapes.check_rate("label_smoothing", label_smoothing)
        self.ignore_class = shapes.check_integer("ignore_class", ignore_class)

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        if sample_weight is not None:
            arrays = map(ops.convert_to_tensor, (y_true, sample_weight))
            sample_weight = _for_each_token(*arrays)
        # Keras casts the logits, and the mask that they carry is lost before `call`.
        mask = masks.implicit(y_pred)
        if mask is not None:
            y_pred = masks.carry(ops.convert_to_tensor(y_pred, dtype=self.dtype), mask)
        loss = super().__call__(y_true, y_pred, sample_weight)
        # Keras does not reduce arrays with one axis and no elements.
        reduced = self.reduction not in (None, "none")
        return ops.sum(loss) if reduced and 0 in loss.shape else loss

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        logits, targets = map(_sizes, (y_pred, y_true))
        if not logits or not shapes.may_equal(targets, logits[:-1]):
            raise ValueError(
                "`y_pred` must be logits with the axes of the integer targets `y_true` and one "
                "more, the vocabulary. Received: "
                f"y_true.shape={targets}, y_pred.shape={logits}"
            )
        if 0 in y_true.shape:
            # There is no largest logit to subtract.
            return ops.sum(y_pred, axis=-1)
        targets = ops.cast(y_true, "int32")
        real = None if self.ignore_class is None else ops.not_equal(targets, self.ignore_class)
        # Keras multiplies by the mask: NaN at a masked position would stay NaN.
        real = masks.both(real, masks.boolean("mask", masks.implicit(y_pred)))
        size = ops.shape(y_pred)[-1]
        inside = ops.logical_and(targets >= 0, targets < size)
        losses = _token_losses(y_pred, ops.where(inside, targets, 0), self.label_smoothing)
        losses = ops.where(inside, losses, float("nan"))
        if real is None:
            return losses
        # Keras divides by the number of unmasked tokens.
        return masks.carry(ops.where(real, losses, 0.0), real)

    def get_config(self):
        return {name: getattr(self, name) for name in saving.constructor_arguments(type(self))}


def _token_losses(logits, targets, smoothing):
    """The loss of each token, with a custom gradient, softmax(z) − q."""
    # The backends' own gradients pass over all logits about three times as often.
    size = ops.shape(logits)[-1]

    def make(targets):
        indices = targets[..., None]

        def forward(logits):
            # The largest is subtracted first, or large logits would cost digits.
            logits = logits - ops.max(logits, axis=-1, keepdims=True)
            powers = ops.exp(logits)
            total = ops.sum(powers, axis=-1, keepdims=True)
            of_target = ops.take_along_axis(logits, indices, axis=-1)
            losses = ops.log(total) - (1 - smoothing) * of_target
            if smoothing:
                losses = losses - smoothing * ops.mean(logits, axis=-1, keepdims=True)
            return (losses[..., 0],), (powers, total)

        def backward(arrays, outputs, saved, upstream):
            powers, total = saved
            upstream = upstream[0][..., None]
            # Logits of tokens that are not real may be NaN.
            factor = ops.where(upstream == 0, 0.0, upstream / total)
            gradient = backend.multiply_no_nan(powers, factor)
            if smoothing:
                gradient = gradient - upstream * (smoothing / ops.cast(size, "float32"))
            of_target = ops.take_along_axis(gradient, indices, axis=-1)
            of_target = ops.reshape(of_target - (1 - smoothing) * upstream, (-1,))
            rows = ops.arange(ops.shape(of_target)[0], dtype="int32")
            places = ops.stack([rows, ops.reshape(indices, (-1,))], axis=-1)
            flat = ops.scatter_update(ops.reshape(gradient, (-1, size)), places, of_target)
            return (ops.reshape(flat, ops.shape(gradient)),)

        return forward, backward

    return backend.custom_vjp(make, [logits], targets)[0]


def _sizes(array):
    return tuple(map(backend.known_size, array.shape))


def _for_each_token(y_true, sample_weight):
    """Weights of the shape of the targets; Keras would line rows up with the last axis."""
    targets, weights = map(_sizes, (y_true, sample_weight))
    expected = [1 if own == 1 else n for n, own in zip(targets, weights, strict=False)]
    if not shapes.may_equal(weights, expected):
        raise ValueError(
            "`sample_weight` must broadcast to the leading axes of `y_true`. Received: "
            f"y_true.shape={targets}, sample_weight.shape={weights}"
        )
    axes = (1,) * (len(targets) - len(weights))
    column = ops.reshape(sample_weight, (*ops.shape(sample_weight), *axes))
    # A product, since Keras multiplies its argument by the mask in place on PyTorch.
    return ops.cast(column, "float32") * ops.ones_like(y_true, dtype="float32")
