"""The models in files that 0.1.0's program wrote: they load, and train on, as models of the layers.

It is imported before a file is loaded. The subwords are in the file, which is an archive:
`assets/layers/sentence_piece_tokenizer/vocabulary.spm`.
"""

import keras

from examples import translation


class Saved(keras.Model):
    """A model with its parts in the order of such a file, of the sizes that `make` takes.

    `needs` is what 0.1.0 needed to load it.
    """

    def __init__(self, name=None, needs=None, **sizes):
        super().__init__(name=name)
        self.sizes = sizes
        self.made = self.make(**sizes)

    def build(self, input_shape=None):
        self.built = True

    def call(self, inputs, training=False):
        return self.made(inputs, training=training)

    def get_config(self):
        return {"name": self.name, **self.sizes}


@keras.saving.register_keras_serializable(package="examples.translation")
class Transformer(Saved):
    """`translation.transformer`."""

    def make(self, vocabulary_size, layers, dim, positions="sin-cos", **sizes):
        made = translation.transformer(vocabulary_size, layers, dim, positions=positions, **sizes)
        embeddings = made.decoder.embeddings
        self.embedding, self.positions = embeddings.tokens, embeddings.positions
        self.dropout = embeddings.dropout_layer
        self.encoder, self.decoder = made.encoder.blocks, made.decoder.blocks
        self.encoder_norm, self.decoder_norm = made.encoder.final_norm, made.decoder.final_norm
        return made


@keras.saving.register_keras_serializable(package="examples.translation")
class Recurrent(Saved):
    """`translation.recurrent`."""

    def make(self, vocabulary_size, **sizes):
        made = translation.recurrent(vocabulary_size, **sizes)
        self.embedding, self.dropout, self.encoder, self.bridge, self.decoder, self.output_dense = (
            map(made.get_layer, ("embedding", "dropout", "encoder", "bridge", "decoder", "output"))
        )
        return made
