"""What encoders and encoder–decoders share: heads by class, embeddings, and names of tensors."""

import keras

from keras_attention import activations
from keras_attention.convert.huggingface.tensors import dense, norm, plain
from keras_attention.layers.scaled_embedding import ScaledEmbedding
from keras_attention.models import Logits

# Options


def has_head(config, without, *heads):
    """Whether the class of a model has a head; an error if it is none of these classes."""
    name, supported = config.architecture, (*without, *heads)
    if name not in (None, *supported):
        raise ValueError(
            f"'architectures' of `{config.where}` must be one of {supported}: no other head is "
            f"supported for model_type={config.model_type!r}. Received: {name!r}"
        )
    return name in heads


def tokens(vocabulary, dim, dtype, scale=1):
    """The table of tokens, without a mask: padding is a mask of the caller's."""
    return ScaledEmbedding(vocabulary, dim, scale=scale, name="tokens", dtype=dtype)


def layer_norm(epsilon, dtype, name="norm", **options):
    """A LayerNormalization."""
    return keras.layers.LayerNormalization(epsilon=epsilon, name=name, dtype=dtype, **options)


def masked_logits(
    vocabulary, dim, activation, norm, dtype, dense_bias=True, use_bias=True, name="transform"
):
    """Tied logits of a masked language model, after a dense layer and a norm, together `name`."""
    layer = keras.layers.Dense(
        dim,
        activations.get(activation),
        use_bias=dense_bias,
        name="dense",
        dtype=dtype,
    )
    return Logits(
        vocabulary,
        use_bias=use_bias,
        transform=keras.Sequential([layer, norm], name=name),
        name="logits",
        dtype=dtype,
    )


def labels(config):
    """The number of labels of a classifier."""
    # Where a file has both, the number wins.
    return config["num_labels"] or len(config["id2label"] or ("no", "yes"))


def classes(config, dim, activation, dtype):
    """The logits of a classifier after a dense layer, for every token: the first is of the text."""
    layer = keras.layers.Dense(dim, activations.get(activation), name="dense", dtype=dtype)
    return Logits(
        labels(config),
        tied=False,
        use_bias=True,
        transform=layer,
        name="classifier",
        dtype=dtype,
    )


# Tensors


def projections(names, layer):
    """The projections of an attention layer, by the names of query, key, value and output."""
    query, key, value, output = names
    return [
        *dense(query, layer.query_dense),
        *dense(key, layer.key_dense),
        *dense(value, layer.value_dense),
        *dense(output, layer.output_dense, inputs=2),
    ]


def feed_forward(first, second, layer):
    """The two projections of a feed-forward network."""
    return [*dense(first, layer.intermediate_dense), *dense(second, layer.output_dense)]


def masked_head(names, model):
    """The tensors of `masked_logits`, by the names of the dense layer, the norm and the bias."""
    if model.logits is None:
        return []
    first, second = model.logits.transform.layers
    found = [*dense(names[0], first), *norm(names[1], second)]
    return [*found, plain(names[2], model.logits.bias)] if model.logits.use_bias else found


def head(masked, classifier, model):
    """The tensors of `masked_logits` or of `classes`; the names of the latter are two."""
    if model.logits is None or model.logits.tied:
        return masked_head(masked, model)
    return [
        *dense(classifier[0], model.logits.transform),
        *dense(classifier[1], model.logits.dense),
    ]
