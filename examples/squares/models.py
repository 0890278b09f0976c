"""An encoder and a decoder of corners, with attention between them or without."""

import keras

from keras_attention import Attention, AttentionCell, scores

CORNERS = 2


class Forecaster:
    """The layers of one model, and the two models made of them.

    A GRU reads the first two corners. Another starts from its last state and the second corner, and
    predicts the next corner at each step; it reads its prediction next, or the true corner where
    it is forced to.

    Args:
        hidden: units of both GRUs, and of the score.
        attention: whether the decoder attends to all that the encoder gave (Bahdanau et al. 2015).

    Attributes:
        training: the model from first corners (B, 2, 2), true last corners (B, 2, 2) and flags
            (B, 1, 1), 1 where the true third corner is read, to predicted corners (B, 2, 2).
        inference: the model from first corners to predicted ones and, with attention, to the
            alignments (B, 1, 2, 2). It has the weights of the other.
    """

    def __init__(self, hidden, attention):
        self.attention = attention
        self.encoder = keras.layers.GRU(
            hidden, return_sequences=True, return_state=True, unroll=True, name="encoder"
        )
        self.cell = keras.layers.GRUCell(hidden)
        if attention:
            self.cell = AttentionCell(
                self.cell,
                Attention(score=scores.Additive(hidden)),
                output_context=True,
                return_attention_scores=True,
            )
        self.decoder = keras.layers.RNN(self.cell, return_state=True, unroll=True, name="decoder")
        self.head = keras.layers.Dense(2, name="corner")
        first = keras.Input((CORNERS, 2), name="first")
        last = keras.Input((CORNERS, 2), name="last")
        forced = keras.Input((1, 1), name="forced")
        predicted, _ = self._decode(first, last, forced)
        self.training = keras.Model([first, last, forced], predicted)
        predicted, alignments = self._decode(first)
        outputs = {"corners": predicted}
        if attention:
            outputs["alignments"] = alignments
        self.inference = keras.Model(first, outputs)

    def _decode(self, first, last=None, forced=None):
        """Predicted corners, and alignments or None."""
        memory, state = self.encoder(first)
        states, read = [state], first[:, -1:]
        predicted, alignments = [], []
        for step in range(CORNERS):
            output, states = self._step(read, memory, states)
            if self.attention:
                output, alignment = self.cell.split_outputs(output)
                alignments.append(alignment[:, :, None])
            corner = self.head(output)[:, None]
            predicted.append(corner)
            read = corner
            if forced is not None:
                read = forced * last[:, step : step + 1] + (1 - forced) * corner
        predicted = keras.ops.concatenate(predicted, axis=1)
        return predicted, keras.ops.concatenate(alignments, axis=2) if alignments else None

    def _step(self, read, memory, states):
        if self.attention:
            states = self.cell.initial_state(memory, states)
        output, *states = self.decoder(read, initial_state=states)
        return output, states
