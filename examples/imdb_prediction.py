"""What a trained model says of new texts, and which of their words it attended to most."""

import dataclasses
from pathlib import Path

import keras
import numpy as np

import keras_attention  # noqa: F401, the saved model is made of its layers
from examples import imdb_models, imdb_text, imdb_training, run_directory
from examples.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The probability that a text is positive, and (word, weight, known) from most weight to least.

    The weights of all words, with those of padding, sum to one.
    """

    text: str
    probability: float
    attended: list

    @property
    def label(self):
        return "positive" if self.probability >= 0.5 else "negative"


class Predictor:
    """The model of a finished run.

    Raises:
        UsageError: the folder holds no finished run of `program`, or its model cannot be loaded.
    """

    def __init__(self, folder, program):
        figures = run_directory.read_figures(folder, program)
        if not figures["finished"]:
            raise UsageError(
                f"The run in {folder} is not finished ({len(figures['epochs'])} epochs so far): "
                "start it again with the same settings."
            )
        file = Path(folder) / imdb_training.MODEL
        try:
            model = keras.models.load_model(file)
            self._preprocessor = model.get_layer("preprocessor")
            self._classifier = _with_weights(model.get_layer("classifier"))
        except (OSError, ValueError, TypeError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UsageError(f"{file} is not a model of this program: {reason}") from None
        self._window = imdb_models.RECIPES[figures["settings"]["model"]].window

    def __call__(self, texts):
        """A `Prediction` for each text."""
        ids = imdb_text.encode(self._preprocessor, texts)
        probabilities, scores = self._classifier.predict(ids, verbose=0)
        # Over heads and queries: for pooling, what a place counts for in the sum; for
        # self-attention, how much all places together look at it.
        weights = scores.astype("float32").mean(axis=(1, 2))
        ids = ids if ids.ndim == 2 else ids[..., 0]  # Without the n-grams beside each word.
        return [
            Prediction(text, float(probability[0]), self._attended(text, *places))
            for text, probability, *places in zip(texts, probabilities, ids, weights, strict=True)
        ]

    def _attended(self, text, ids, weights):
        """(word, weight, known) from most weight to least, a word's places taken together."""
        words = imdb_text.words(text)
        totals, known = {}, {}
        for place, index in enumerate(self._kept(len(words), len(ids))):
            if index >= 0:
                word = words[index]
                totals[word] = totals.get(word, 0.0) + float(weights[place])
                known[word] = ids[place] != imdb_text.UNKNOWN
        ranking = sorted(totals, key=totals.get, reverse=True)
        return [(word, totals[word], known[word]) for word in ranking]

    def _kept(self, length, places):
        """For each place of the model's input the index of the word there, or a number below 0."""
        first = imdb_text.FIRST_WORD
        indices = first + np.arange(length, dtype="int32")[None]
        kept = self._window(indices, np.array([[length]], "int32"), places)
        return keras.ops.convert_to_numpy(kept)[0] - first


def _with_weights(classifier):
    """From word numbers to the probability and the scores (B, H, T, S) of the attention layer."""
    attention = []

    def call(layer, *args, **kwargs):
        if layer.name != "attention":
            return layer(*args, **kwargs)
        output, scores = layer(*args, return_attention_scores=True, **kwargs)
        # The scores as they are: an operation here could take the name of one in the loaded model.
        attention.append(scores)
        return output

    copy = keras.models.clone_model(classifier, call_function=call)
    copy.set_weights(classifier.get_weights())
    if not attention:
        raise ValueError('it has no layer named "attention"')
    return keras.Model(copy.input, [copy.output, *attention])


def report(prediction, count=8):
    """The prediction in two lines."""
    excerpt = " ".join(prediction.text.split())
    excerpt = excerpt if len(excerpt) <= 60 else excerpt[:59] + "…"
    words = ", ".join(
        f"{word}{'' if known else ' (unknown)'} {weight:.1%}"
        for word, weight, known in prediction.attended[:count]
    )
    return (
        f'{prediction.label} {prediction.probability:.3f}  "{excerpt}"\n'
        f"    attended most: {words or 'nothing, the text has no words'}"
    )
