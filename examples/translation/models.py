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

    def encode(self, source, training=False):
        """What `decode` and `start` need to know of source tokens (B, S): a nested structure."""
        raise NotImplementedError

    def decode(self, target, memory, training=False):
        """Logits (B, T, V) of the tokens that follow each of `target`, (B, T)."""
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

    def call(self, inputs, training=False):
        source, target = inputs
        return self.decode(target, self.encode(source, training), training)

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
        self.embedding = keras_attention.ScaledEmbedding(vocabulary_size, dim, mask_zero=True)
        in_blocks = IN_BLOCKS.get(positions)
        self.positions = None if in_blocks else keras_attention.SinCosPositionEmbedding()
        self.dropout = keras.layers.Dropout(dropout, name="dropout")
        options = {
            "intermediate_dim": intermediate_dim,
            "num_heads": num_heads,
            "dropout": dropout,
            "normalize_first": True,
        }
        self.encoder = [
            keras_attention.TransformerBlock(
                **options, position=in_blocks and in_blocks(), name=f"encoder_{n}"
            )
            for n in range(layers)
        ]
        self.decoder = [
            keras_attention.TransformerBlock(
                **options,
                position=in_blocks and in_blocks(),
                causal=True,
                cross_attention=True,
                name=f"decoder_{n}",
            )
            for n in range(layers)
        ]
        self.encoder_norm = keras.layers.LayerNormalization(name="encoder_norm")
        self.decoder_norm = keras.layers.LayerNormalization(name="decoder_norm")

    def embed(self, tokens, training=False, start_index=0):
        """Vectors (B, T, D) of tokens (B, T), the first of which stands at `start_index`."""
        x = self.embedding(tokens)
        if self.positions:
            x = self.positions(x, start_index=start_index)
        return self.dropout(x, training=training)

    def encode(self, source, training=False):
        x = self.embed(source, training)
        for block in self.encoder:
            x = block(x, training=training)
        return self.encoder_norm(x)

    def decode(self, target, memory, training=False):
        x = self.embed(target, training)
        for block in self.decoder:
            x = block(x, memory, training=training)
        return self.embedding(self.decoder_norm(x), reverse=True)

    def start(self, source, length):
        encoded = self.encode(source)
        memory = [block.cache_context(encoded) for block in self.decoder]
        rows = ops.shape(source)[0]
        caches = [block.make_cache(rows, length) for block in self.decoder]
        return {"blocks": caches, "index": ops.zeros((rows,), "int32")}, memory

    def alignments(self, source, target):
        memory = self.encode(source)
        x, weights = self.embed(target), []
        for block in self.decoder:
            x, scores = block(x, memory, return_attention_scores=True)
            weights.append(ops.mean(scores["cross_attention"], axis=1))
        return ops.mean(ops.stack(weights), axis=0)

    def step(self, tokens, cache, memory):
        x = self.embed(tokens[:, None], start_index=cache["index"])
        caches = []
        for block, context, block_cache in zip(self.decoder, memory, cache["blocks"], strict=True):
            x, block_cache = block(x, context, cache=block_cache)
            caches.append(block_cache)
        logits = self.embedding(self.decoder_norm(x), reverse=True)[:, 0]
        return logits, {"blocks": caches, "index": cache["index"] + 1}


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
        self.decoder = keras.layers.RNN(
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
        x = self.embed(source, training)
        mask = ops.not_equal(source, text.PADDING)
        encoded, forward, backward = self.encoder(x, mask=mask)
        state = self.bridge(ops.concatenate([forward, backward], axis=-1))
        return self.dropout(encoded, training=training), state, mask

    def decode(self, target, memory, training=False):
        encoded, state, mask = memory
        outputs = self.decoder(
            self.embed(target, training),
            initial_state=self.decoder.cell.initial_state(encoded, [state], mask),
            mask=ops.not_equal(target, text.PADDING),
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
        decoder = keras.layers.RNN(cell, return_sequences=True)
        encoded, state, mask = self.encode(source)
        x = self.embed(target)
        decoder(x, initial_state=cell.initial_state(encoded, [state], mask))
        decoder.set_weights(self.decoder.get_weights())
        outputs = decoder(x, initial_state=cell.initial_state(encoded, [state], mask))
        return cell.split_outputs(outputs)[1][:, 0]


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
