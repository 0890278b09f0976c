"""What a trained model goes on with after a prompt, token by token."""

from pathlib import Path

import keras
import numpy as np

import keras_attention
from examples import model_files
from examples.errors import UsageError
from examples.language_model import text
from keras_attention import generation

MODEL = "model.keras"


def load(folder, program):
    """The model, the tokens and the context of a finished run.

    Raises:
        UsageError: the folder holds no finished run of `program`, or a file cannot be loaded.
    """
    settings = model_files.finished_run(folder, program)["settings"]
    file = Path(folder) / MODEL
    model = model_files.load(file)
    if not isinstance(model, keras_attention.Decoder):
        raise UsageError(f"{file} is not a model of this program: it is a {type(model).__name__}.")
    tokens = text.load(text.KINDS[settings["tokens"]], folder)
    return model, tokens, settings["context"]


class Generate:
    """From prompts to the tokens after them, one at a time.

    A step reads one token, with caches of those before. When they are full, the later half of what
    is in them is read into empty ones, so that a token sees from half of `context` to all of it.

    Args:
        model: a `keras_attention.Decoder`, built.
        context: the most tokens that the model looks back to, at least 2.
        temperature: below 1 for likelier tokens; 0 for the likeliest alone.
        top_k: None, or how many tokens to draw from.
        seed: of what is drawn.
    """

    def __init__(self, model, context, temperature=1.0, top_k=None, seed=0):
        self.model = model
        self.temperature = temperature
        self.top_k = top_k
        self.seed = seed
        self._read = context // 2
        self._room = context - self._read + 1
        # Two programs, whatever the prompt: it is padded on the left, or cut there.
        self._start = generation.compiled(
            lambda tokens, mask: model.start(tokens, self._room, mask=mask), model
        )
        self._step = generation.compiled(model.step, model)

    def __call__(self, prompt, count):
        """Yields `count` token numbers.

        Args:
            prompt: token numbers, at least one. The last half of `context` is read.
            count: how many.
        """
        rng = np.random.default_rng(self.seed)
        known, place = list(prompt), self._room
        for _ in range(count):
            if place == self._room:
                known, place = known[-self._read :], 0
                padding = self._read - len(known)
                tokens = np.array([[0] * padding + known], "int32")
                _, cache = self._start(tokens, np.arange(self._read)[None] >= padding)
            logits, cache = self._step(np.array(known[-1:], "int32"), cache)
            known.append(self._chosen(keras.ops.convert_to_numpy(logits)[0], rng))
            place += 1
            yield known[-1]

    def _chosen(self, logits, rng):
        """A token by its logits."""
        logits = logits.astype("float64")
        if self.top_k is not None and self.top_k < len(logits):
            logits[logits < np.partition(logits, -self.top_k)[-self.top_k]] = -np.inf
        if not self.temperature:
            return int(np.argmax(logits))
        masses = np.exp((logits - logits.max()) / max(self.temperature, 1e-30))
        return int(rng.choice(len(masses), p=masses / masses.sum()))
