"""A model of a folder in Hugging Face's format as a classifier, and what its training changes."""

import zipfile
import zlib

import keras
import numpy as np

import keras_attention
from examples import pretrained
from examples.errors import UsageError
from examples.imdb import models
from examples.imdb.text import PADDING

ops = keras.ops

# For all folders; the warmup is a share of the steps.
WARMUP, WEIGHT_DECAY, CLIP_NORM, DROPOUT = 0.06, 0.01, 1.0, 0.1


def build(folder, encoder, lora=None):
    """A classifier of reviews: the model of a folder, and a new head on one of its vectors.

    The vector is that of the first token, which encoders are trained to sum a text up in, and of
    the last in a decoder, where it alone has seen all others.

    Args:
        folder: path of the folder.
        encoder: its `subwords.Encoder`.
        lora: None to train all weights, or the rank of adapters to train instead, with the head.

    Raises:
        UsageError: the folder cannot be read, or its model cannot read the texts of `encoder`.
    """
    model = pretrained.load(folder)
    is_stack = isinstance(model, (keras_attention.Encoder, keras_attention.Decoder))
    if not is_stack or not isinstance(model.embeddings.tokens, keras_attention.ScaledEmbedding):
        kind = model.metadata["huggingface"]["model_type"]
        raise UsageError(
            f"--pretrained {folder} must be an encoder or a decoder of texts: {kind!r} is not."
        )
    pretrained.check_sizes(model, folder, encoder.vocabulary_size, encoder.max_length, "max-length")
    # The same without logits, which are for another task.
    stack = type(model)(model.blocks, model.embeddings, model.final_norm, dtype=model.dtype_policy)
    stack.build((None, None))
    if lora:
        keras_attention.enable_lora(stack, lora)
    ids = keras.Input((None,), dtype="int32", name="ids")
    mask = ops.not_equal(ids, PADDING)
    states = stack(ops.maximum(ids - 1, 0), mask=mask)
    if isinstance(model, keras_attention.Encoder):
        summary = states[:, 0]
    else:
        last = ops.sum(ops.cast(mask, "int32"), axis=1) - 1
        summary = ops.take_along_axis(states, last[:, None, None], axis=1)[:, 0]
    summary = keras.layers.Dropout(DROPOUT, name="dropout")(summary)
    return keras.Model(ids, models.probability(summary), name="classifier")


def optimizer(learning_rate, steps):
    """Adam with decoupled weight decay and a linear warmup, followed by a cosine to 0."""
    warmup = max(1, round(WARMUP * steps))
    schedule = keras.optimizers.schedules.CosineDecay(
        learning_rate / warmup,
        max(1, steps - warmup),
        warmup_target=learning_rate,
        warmup_steps=warmup,
    )
    made = keras.optimizers.AdamW(schedule, weight_decay=WEIGHT_DECAY, global_clipnorm=CLIP_NORM)
    made.exclude_from_weight_decay(var_names=["bias", "gamma", "beta", "scale"])
    return made


class State:
    """The checkpoint of a classifier that `build` makes again: what training changes, and no more.

    A `.keras` file would not do: Keras adds adapters to the kernels that it saves.

    Args:
        classifier: a compiled model.
    """

    def __init__(self, classifier):
        optimizer = classifier.optimizer
        optimizer.build(classifier.trainable_variables)
        self.variables = [*classifier.trainable_variables, *optimizer.variables]

    def save(self, path):
        """Writes a file that `load` reads."""
        arrays = {str(n): ops.convert_to_numpy(x) for n, x in enumerate(self.variables)}
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    def load(self, path):
        """Assigns what a file holds."""
        try:
            with np.load(path, allow_pickle=False) as file:
                for n, variable in enumerate(self.variables):
                    variable.assign(file[str(n)])
        except (KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"it is damaged: {error}") from error
        return self
