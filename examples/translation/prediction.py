"""What a trained model makes of new sentences."""

from pathlib import Path

import keras
import numpy as np

from examples import model_files
from examples.errors import UsageError
from examples.translation import text
from keras_attention import generation

ROWS = 64


def load(folder, program):
    """The model of a finished run.

    Raises:
        UsageError: the folder holds no finished run of `program`, or its model cannot be loaded.
    """
    from examples.translation import models

    model_files.finished_run(folder, program)
    file = Path(folder) / model_files.MODEL
    model = model_files.load(file)
    if not isinstance(model, models.Translator):
        raise UsageError(f"{file} is not a model of this program: it is a {type(model).__name__}.")
    return model


class Translate:
    """From sentences to translations, by beam search.

    Args:
        model: a `Translator`.
        beams: how many hypotheses to keep; 1 for the most likely token in each step.
        rows: how many sentences to translate at once.
    """

    def __init__(self, model, beams, rows=ROWS):
        self.model = model
        self.beams = beams
        self.rows = rows
        self._search = generation.compiled(self._found, model)

    def __call__(self, sentences):
        """The translation of each sentence."""
        tokens = text.encode(self.model.tokenizer, sentences)
        lengths = np.array([_length(len(row) + 1) for row in tokens])
        found = [""] * len(sentences)
        for length in np.unique(lengths).tolist():
            indices = np.flatnonzero(lengths == length)
            for start in range(0, len(indices), self.rows):
                part = indices[start : start + self.rows]
                source = text.padded([tokens[index] for index in part], length, after=[text.STOP])
                # Empty rows, so that there is one program for each length, and each ends at once.
                empty = text.padded([[]] * (self.rows - len(part)), length)
                rows = keras.ops.convert_to_numpy(self._search(np.concatenate([source, empty])))
                for index, sentence in zip(
                    part, text.decode(self.model.tokenizer, rows), strict=False
                ):
                    found[index] = sentence
        return found

    def _found(self, source):
        most = _most(source.shape[1])
        cache, memory = self.model.start(source, most)
        tokens = keras.ops.full((source.shape[0],), text.START, dtype="int32")
        found = generation.beam_search(
            self.model.step,
            tokens,
            cache,
            memory,
            num_beams=self.beams,
            max_tokens=most,
            stop_tokens=(text.STOP,),
        )
        return found.tokens[:, 0]

    def align(self, sentence, translation):
        """Subwords of both, and how much those of the translation looked at those of the sentence.

        Returns:
            S subwords, T subwords, and an array (T, S) whose rows sum to 1.
        """
        tokenizer = self.model.tokenizer
        source, target = text.encode(tokenizer, [sentence, translation])
        given = [text.START, *target]
        source = [*source, text.STOP]
        weights = self.model.alignments(np.array([source], "int32"), np.array([given], "int32"))
        names = [
            [str(tokenizer.id_to_token(token)) for token in (*row, text.STOP)]
            for row in (source[:-1], target)
        ]
        return *names, keras.ops.convert_to_numpy(weights)[0].astype("float32")


def _most(length):
    """How many tokens the translation of so many may have."""
    return length * 3 // 2 + 8


def _length(tokens):
    """The length that so many tokens are padded to."""
    longest = text.SEARCH_LENGTHS[-1]
    fitting = [length for length in text.SEARCH_LENGTHS if length >= tokens]
    return fitting[0] if fitting else -(-tokens // longest) * longest
