"""What a trained model predicts for new texts, and which of their words it attended to most."""

import dataclasses
import itertools

import keras
import numpy as np

import keras_attention  # noqa: F401, the saved model is made of its layers
from examples import model_files, startup
from examples.errors import UsageError
from examples.imdb import subwords
from examples.imdb.text import UNKNOWN, is_word, pad, padded_length, tokens


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The probability that a text is positive, and (word, weight, known) from most weight to least.

    The weights sum to one. Of a text without any known word a model knows nothing: its probability
    is None. `attended` is None for a pretrained model.
    """

    text: str
    probability: float | None
    attended: list | None

    @property
    def label(self):
        if self.probability is None:
            return None
        return "positive" if self.probability >= 0.5 else "negative"


def load(path, encoder):
    """From texts to predictions, by a model file and its encoder of texts.

    Raises:
        UsageError: the file is no model of this program.
    """
    classifier = model_files.load(path)
    # Keras may import TensorFlow for the first time where it clones a model.
    with startup.quiet():
        try:
            kind = SubwordPredictor if isinstance(encoder, subwords.Encoder) else Predictor
            return kind(classifier, encoder)
        except (ValueError, AttributeError) as error:
            raise UsageError(f"{path} is not a model of this program: {error}") from None


class Predictor:
    """From texts to predictions, by a classifier and the encoder that it was trained with."""

    def __init__(self, classifier, encoder):
        self._classifier = with_weights(classifier)
        self._encoder = encoder

    def __call__(self, texts):
        """A `Prediction` for each text."""
        return [self._predict(text) for text in texts]

    def _predict(self, text):
        words = self._encoder.tokens(text)
        known = self._encoder.numbers(words) != UNKNOWN
        # The model may know punctuation marks too, which alone say nothing.
        if not any(map(is_word, itertools.compress(words, known))):
            return Prediction(text, None, [(word, 0.0, False) for word in words if is_word(word)])
        row = self._encoder(text)
        # The lengths that training has had, so that there are few programs to compile.
        length = padded_length(len(row), self._encoder.max_length)
        probability, scores = self._classifier.predict_on_batch(pad([row], length))
        totals = {}
        for word, weight in zip(words, place_weights(scores)[0], strict=False):
            totals[word] = totals.get(word, 0.0) + float(weight)
        is_known = dict(zip(words, known.tolist(), strict=True))
        ranking = sorted(totals, key=totals.get, reverse=True)
        return Prediction(
            text,
            float(probability[0, 0]),
            [(word, totals[word], is_known[word]) for word in ranking],
        )


class SubwordPredictor:
    """The same by a classifier that `pretrained` made, without attended words."""

    def __init__(self, classifier, encoder):
        classifier.get_layer("probability")
        self._classifier = classifier
        self._encoder = encoder

    def __call__(self, texts):
        """A `Prediction` for each text."""
        return [Prediction(text, self._probability(text), None) for text in texts]

    def _probability(self, text):
        if not any(map(is_word, tokens(text))):
            return None
        row = self._encoder(text)
        length = padded_length(len(row), self._encoder.max_length)
        return float(self._classifier.predict_on_batch(pad([row], length))[0, 0])


def with_weights(classifier):
    """From numbers to the probability and the scores (B, H, T, S) of the attention layer."""
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


def place_weights(scores):
    """The share of all heads and queries together that each position gets, (B, S)."""
    # Queries that are padding have weights of 0.
    weights = np.asarray(scores, "float32").sum(axis=(1, 2))
    return weights / weights.sum(axis=1, keepdims=True)


def report(prediction, count=8):
    """The prediction in two lines, whose percentages sum to 100."""
    excerpt = " ".join(prediction.text.split())
    excerpt = excerpt if len(excerpt) <= 60 else excerpt[:59] + "…"
    if prediction.label is None:
        reason = "the model knows none of its words" if prediction.attended else "it has no words"
        return f'no label  "{excerpt}"\n    {reason}'
    label = f'{prediction.label} {prediction.probability:.3f}  "{excerpt}"'
    if prediction.attended is None:
        return label
    words = [
        f"{word}{'' if known else ' (unknown)'} {weight:.1%}"
        for word, weight, known in prediction.attended[:count]
    ]
    others = [weight for _, weight, _ in prediction.attended[count:]]
    if others:
        words.append(f"{len(others)} other{'s' if len(others) > 1 else ''} {sum(others):.1%}")
    return f"{label}\n    attended most: {', '.join(words)}"
