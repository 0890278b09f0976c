"""The models: what each makes of a sentence, and how it says the next subword of another.

All are `Translator`s: Keras models with the tokenizer inside, which are saved to one `.keras` file
that loads on every backend.
Training calls them with whole sentences. Decoding calls `start` once and `step` for each subword.
"""

import keras

import keras_attention
from examples.translation import text

ops = keras.ops

register = keras.saving.register_keras_serializable(package="examples.translation")

# What a saved file says of itself, for those who load it elsewhere.
NEEDS = "the packages keras_attention and sentencepiece, and `import examples.translation.models`"


class Translator(keras.Model):
    """The base of all models.

    Args:
        vocabulary_size: how many subwords there are.
        tokenizer: a SentencePiece model, as bytes; None in a model that is about to be loaded.
        **sizes: what a subclass needs to know, ready for JSON.
    """

    def __init__(self, vocabulary_size, tokenizer=None, name=None, **sizes):
        super().__init__(name=name)
        self.vocabulary_size = vocabulary_size
        self.sizes = sizes
        self.tokenizer = text.SentencePieceTokenizer(tokenizer)
        self.make(vocabulary_size, **sizes)

    def make(self, vocabulary_size, **sizes):
        """Makes the layers."""
        raise NotImplementedError

    def start(self, source, length):
        """`cache, memory` for up to `length` calls of `step`."""
        raise NotImplementedError

    def step(self, tokens, cache, memory):
        """`logits, cache`: (R, V) for the tokens after `tokens`, (R,)."""
        raise NotImplementedError

    def alignments(self, source, target):
        """How much each token of `target` looked at each of `source`, (B, T, S)."""
        raise NotImplementedError

    def build(self, input_shape=None):
        if not self.built:
            tokens = [keras.KerasTensor((None, None), "int32") for _ in range(2)]
            self.call(tokens)
            self.built = True

    def get_config(self):
        return {
            "name": self.name,
            "vocabulary_size": self.vocabulary_size,
            **self.sizes,
            "needs": NEEDS,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**{name: value for name, value in config.items() if name != "needs"})

    def make_train_function(self, force=False):
        """As `keras.Model`, with a program for each shape on TensorFlow too.

        Keras's own is one program of unknown lengths there. Measured with 1,000 tokens of 20 each
        way, one core, TensorFlow 2.21: gradients of the default Transformer take 589 ms of
        CPU time that way, and 412 ms with the lengths known.
        """
        if keras.backend.backend() != "tensorflow" or self.run_eagerly or self._replicas > 1:
            super().make_train_function(force)
        elif self.train_function is None or force:
            import tensorflow as tf

            step = tf.function(self.train_step, autograph=False, jit_compile=self.jit_compile)
            self.train_function = lambda iterator: step(next(iterator))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """What `fit` and `evaluate` show.

        While training, the loss that the model was compiled with. Otherwise −log p of a target
        sentence, without smoothing, a mean over the sentences of the batch: `evaluate` weighs
        batches by their sentences, so its result is the exact mean over all of them.
        """
        if training:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        total = keras_attention.losses.SmoothedCrossentropy(0.0, reduction="sum")(y, y_pred)
        # TensorFlow sums over its replicas what Keras multiplies by their number.
        return total / ops.cast(ops.shape(y)[0] * self._replicas, total.dtype)

    @property
    def _replicas(self):
        """How many devices have the model, each with part of a batch, on TensorFlow."""
        strategy = getattr(self, "distribute_strategy", None)
        return 1 if strategy is None else strategy.num_replicas_in_sync


# Where a position comes from that is not added to the embeddings: what the blocks make of it.
IN_BLOCKS = {
    "shaw": lambda: keras_attention.positions.Shaw(max_distance=16),
    "rotary": keras_attention.positions.Rotary,
}


@register
class Transformer(Translator):
    """An encoder and a decoder of pre-norm blocks with one table of subwords for all (2017).

    Positions are "sin-cos", added to the embeddings, or one of `IN_BLOCKS`.
    """

    def make(
        self,
        vocabulary_size,
        layers,
        dim,
        intermediate_dim,
        num_heads,
        dropout,
        positions="sin-cos",
    ):
        in_blocks = IN_BLOCKS.get(positions)
        embeddings = keras_attention.Embeddings(
            keras_attention.ScaledEmbedding(vocabulary_size, dim, mask_zero=True),
            positions=None if in_blocks else keras_attention.SinCosPositionEmbedding(),
            dropout=dropout,
        )

        def blocks(name, **options):
            return [
                keras_attention.TransformerBlock(
                    intermediate_dim,
                    num_heads,
                    dropout=dropout,
                    normalize_first=True,
                    position=in_blocks and in_blocks(),
                    name=f"{name}_{n}",
                    **options,
                )
                for n in range(layers)
            ]

        def norm(name):
            return keras.layers.LayerNormalization(name=name)

        encoder = keras_attention.Encoder(blocks("encoder"), embeddings, norm("encoder_norm"))
        decoder = keras_attention.Decoder(
            blocks("decoder", causal=True, cross_attention=True),
            embeddings,
            norm("decoder_norm"),
            # Tied to the table: another initializer would only draw a seed, and change all others.
            keras_attention.Logits(vocabulary_size, kernel_initializer="zeros"),
        )
        # The parts by the names that the files of 0.1.0 have, and in its order of weights.
        self.embedding = embeddings.tokens
        self.positions = embeddings.positions
        self.dropout = embeddings.dropout_layer
        self.encoder, self.decoder = encoder.blocks, decoder.blocks
        self.encoder_norm, self.decoder_norm = encoder.final_norm, decoder.final_norm
        self.stacks = keras_attention.EncoderDecoder(encoder, decoder)

    def call(self, inputs, training=False):
        return self.stacks(inputs, training=training)

    def start(self, source, length):
        decoder = self.stacks.decoder
        memory = decoder.cache_context(self.stacks.encoder(source))
        return decoder.make_cache(ops.shape(source)[0], length), memory

    def step(self, tokens, cache, memory):
        return self.stacks.step(tokens, cache, memory)

    def alignments(self, source, target):
        context = self.stacks.encoder(source)
        x, weights = self.stacks.decoder.embeddings(target), []
        for block in self.decoder:
            x, scores = block(x, context, return_attention_scores=True)
            weights.append(ops.mean(scores["cross_attention"], axis=1))
        return ops.mean(ops.stack(weights), axis=0)


@register
class Recurrent(Translator):
    """Gated recurrent units with attention: Bahdanau et al. 2015 or Luong et al. 2015."""

    def make(self, vocabulary_size, mode, dim, units, dropout):
        self.embedding = keras_attention.ScaledEmbedding(vocabulary_size, dim, mask_zero=True)
        self.dropout = keras.layers.Dropout(dropout, name="dropout")
        self.encoder = keras.layers.Bidirectional(
            keras.layers.GRU(units // 2, return_sequences=True, return_state=True), name="encoder"
        )
        self.bridge = keras.layers.Dense(units, activation="tanh", name="bridge")
        score = keras_attention.scores.Additive(units) if mode == "bahdanau" else "general"
        self.decoder = keras_attention.AttentionRNN(
            keras_attention.AttentionCell(
                keras.layers.GRUCell(units), score, mode=mode, attention_dim=units
            ),
            return_sequences=True,
            name="decoder",
        )
        self.output_dense = keras.layers.Dense(dim, name="output")

    def embed(self, tokens, training=False):
        """Vectors (B, T, D) of tokens (B, T)."""
        return self.dropout(self.embedding(tokens), training=training)

    def encode(self, source, training=False):
        """Vectors (B, S, U) of source tokens (B, S), the decoder's first state, and the mask."""
        x = self.embed(source, training)
        mask = ops.not_equal(source, text.PADDING)
        encoded, forward, backward = self.encoder(x, mask=mask)
        state = self.bridge(ops.concatenate([forward, backward], axis=-1))
        return self.dropout(encoded, training=training), state, mask

    def call(self, inputs, training=False):
        source, target = inputs
        encoded, state, mask = self.encode(source, training)
        outputs = self.decoder(
            self.embed(target, training),
            encoded,
            initial_state=[state],
            mask=ops.not_equal(target, text.PADDING),
            memory_mask=mask,
        )
        return self.embedding(
            self.output_dense(self.dropout(outputs, training=training)), reverse=True
        )

    def start(self, source, length):
        encoded, state, mask = self.encode(source)
        states = keras.tree.flatten(self.decoder.cell.start_states(encoded, [state], mask))
        # Keys, values and mask of what is attended to never change.
        return states[:-3], states[-3:]

    def step(self, tokens, cache, memory):
        x = self.embed(tokens[:, None])[:, 0]
        output, states = self.decoder.cell(x, [[*cache, *memory]])
        return self.embedding(self.output_dense(output), reverse=True), keras.tree.flatten(states)[
            :-3
        ]

    def alignments(self, source, target):
        # The same decoder with the weights behind its outputs, which training has no use for.
        cell = self.decoder.cell
        cell = type(cell).from_config({**cell.get_config(), "return_attention_scores": True})
        decoder = keras_attention.AttentionRNN(cell, return_sequences=True)
        encoded, state, mask = self.encode(source)
        x = self.embed(target)
        decoder.build(x.shape, encoded.shape)
        decoder.set_weights(self.decoder.get_weights())
        _, alignments = decoder(x, encoded, initial_state=[state], memory_mask=mask)
        return alignments[:, 0]


# The moving mean of the weights is over about as many steps.
AVERAGED_STEPS = 500


def build(recipe, tokenizer, dropout, small, positions=None):
    """The model of a `Recipe` for a SentencePiece model, as bytes."""
    sizes = {**recipe.sizes, **(recipe.small if small else {}), "dropout": dropout}
    if positions:
        sizes["positions"] = positions
    size = text.SentencePieceTokenizer(tokenizer).vocabulary_size()
    model = {"Transformer": Transformer, "Recurrent": Recurrent}[recipe.model](
        size, tokenizer, **sizes
    )
    model.build()
    return model


def optimizer(rate, warmup_steps, schedule, steps):
    """Adam, with a moving mean of the weights.

    Args:
        rate: the highest learning rate.
        warmup_steps: the step that has it.
        schedule: what comes after: "inverse-sqrt", or "cosine", which ends at 0.
        steps: of the whole training.
    """
    # Where all is short, so are the warmup and what the mean is over.
    warmup_steps = min(warmup_steps, max(1, steps // 4))
    if schedule == "cosine":
        schedule = keras.optimizers.schedules.CosineDecay(
            rate / warmup_steps,
            max(1, steps - warmup_steps),
            warmup_target=rate,
            warmup_steps=warmup_steps,
        )
    else:
        schedule = keras_attention.schedules.InverseSquareRoot(
            1, warmup_steps, scale=rate * warmup_steps**0.5
        )
    return keras.optimizers.Adam(
        schedule,
        beta_2=0.98,
        epsilon=1e-9,
        global_clipnorm=1.0,
        use_ema=True,
        ema_momentum=1 - 1 / min(AVERAGED_STEPS, max(2, steps // 10)),
    )
