"""What is raised by generation."""

import keras
import numpy as np

from keras_attention import generation
from keras_attention.generation import Constraints
from tests.errors.calls import B, beam_search, greedy, sample, step_giving, zeros

ROWS = {
    # generation
    r"`step` must be a function \(tokens, cache\) -> \(logits, cache\)\. Received: 'step'": (
        TypeError,
        lambda: greedy(step="step"),
    ),
    r"argument `max_tokens`, expected an integer of at least 1\. Received: max_tokens=0": lambda: (
        greedy(max_tokens=0)
    ),
    r"`pad_token` must be integers\. Received: 0\.0": (TypeError, lambda: greedy(pad_token=0.0)),
    r"`stop_tokens` must be a tuple of integers\. Received: stop_tokens=2": (
        TypeError,
        lambda: greedy(stop_tokens=2),
    ),
    r"`stop_tokens` must be integers\. Received: True": (
        TypeError,
        lambda: greedy(stop_tokens=(1, True)),
    ),
    r"`stop_tokens` must be tokens of the vocabulary, 0 to 3\. Received: \[4\]": lambda: greedy(
        stop_tokens=(1, 4)
    ),
    r"`tokens` must be integers\. Received: dtype float": (
        TypeError,
        lambda: greedy(tokens=(0.0, 1.0)),
    ),
    r"`tokens` must be \(B,\), the last given token.* Received: tokens\.shape=\(2, 2\)": lambda: (
        greedy(tokens=((0, 1), (0, 1)))
    ),
    r"Every tensor of `cache` must have rows on axis 0\. Received a scalar": lambda: greedy(
        cache={"index": zeros()}
    ),
    r"Rows of `tokens` and of every tensor of `memory` must be equal\. "
    r"Received: tokens=2, memory=3": lambda: greedy(memory=[zeros(3, 4)]),
    r"`step` must return \(logits, cache\)\. Received: \w+(\n|$)": lambda: greedy(
        step=lambda tokens, cache: zeros(B, 4)
    ),
    r"`step` must return logits \(R, V\).*here \(2, V\)\. Received: shape=\(2, 1, 4\)": lambda: (
        greedy(step=step_giving(zeros(B, 1, 4)))
    ),
    r"`step` must return logits \(R, V\), floats.* dtype=int32": lambda: greedy(
        step=step_giving(zeros(B, 4, dtype="int32"))
    ),
    r"`step` must return a cache of the structure that it was given\. "
    r"Received another: ": lambda: greedy(
        step=step_giving(zeros(B, 4), {"b": zeros(B)}), cache={"a": zeros(B)}
    ),
    r"`step` must return a cache of the shapes and dtypes.*"
    r"\(\(2, 1\), 'float32'\)\. Received: \(\(2, 2\), 'float32'\)": lambda: greedy(
        step=step_giving(zeros(B, 4), zeros(B, 2)), cache=zeros(B, 1)
    ),
    r"`temperature` must be a finite number above 0\. Received: temperature=0": lambda: sample(
        temperature=0
    ),
    r"`repetition_penalty` must be a finite number above 0\. ": lambda: sample(
        repetition_penalty=0.0
    ),
    r"`top_p` must be None or a number in \(0, 1\]\. Received: top_p=1\.1": lambda: sample(
        top_p=1.1
    ),
    r"`step` must return logits without NaN and \+inf\. Received such logits: a cache": lambda: (
        greedy(step=step_giving(zeros(B, 4) + np.nan, zeros(B, 1)), cache=zeros(B, 1))
    ),
    r"`num_return` must be at most `num_beams`\. Received: num_return=3, num_beams=2": lambda: (
        beam_search(num_return=3)
    ),
    r"`length_penalty` must be a finite number of at least 0\. "
    r"Received: length_penalty=-0\.5": lambda: beam_search(length_penalty=-0.5),
    r"`length_penalty` must be a number whose .* "
    r"Received: length_penalty=1000000\.0, max_tok": lambda: beam_search(length_penalty=1e6),
    r"`length_rule` must be one of \('wu', 'power'\)\. Received: length_rule='mean'": lambda: (
        beam_search(length_rule="mean")
    ),
    r"`stopping` must be one of \('exact', 'first', 'estimate'\)\. "
    r"Received: stopping=True": lambda: beam_search(stopping=True),
    r"`constraints` must be None or a `generation\.Constraints`\. Received: {'min_tokens': 2}": (
        TypeError,
        lambda: greedy(constraints={"min_tokens": 2}),
    ),
    r"`prompt` must be the text \(B, T\).* for `sequence_bias` or `bad_words` of several "
    r"tokens, `no_repeat_ngram_size`\. Received: prompt=None": lambda: greedy(
        constraints=Constraints(no_repeat_ngram_size=2, bad_words=[(1, 2)])
    ),
    r"`prompt` must be \(B, T\), the tokens before .* Received: prompt\.shape=\(2,\)": lambda: (
        greedy(constraints=Constraints(no_repeat_ngram_size=2), prompt=[1, 0])
    ),
    r"Rows of `tokens` and of .* `prompt` must be equal\. Received: tokens=2, prompt=1": lambda: (
        greedy(constraints=Constraints(no_repeat_ngram_size=2), prompt=[[1, 0]])
    ),
    r"`constraints` must have tokens of the vocabulary, 0 to 3\. Received: \[4, 9\]": lambda: (
        greedy(constraints=Constraints(suppress_tokens=[1, 4], forced_last_token=9))
    ),
    r"`suppress_tokens` must be a tuple of tokens\. Received: 3": (
        TypeError,
        lambda: Constraints(suppress_tokens=3),
    ),
    r"`bad_words` must be a tuple of tokens\. Received: 3": (
        TypeError,
        lambda: Constraints(bad_words=[3]),
    ),
    r"`bad_words` must have sequences of at least one token\. "
    r"Received: \[\(1, 2\), \(\)\]": lambda: Constraints(bad_words=[(1, 2), ()]),
    r"`forced_first_token` must have tokens, which are integers\. Received: 'de'": (
        TypeError,
        lambda: Constraints(forced_first_token="de"),
    ),
    r"`begin_suppress_tokens` must have tokens of at least 0\. Received: -1": lambda: Constraints(
        begin_suppress_tokens=(1, -1)
    ),
    r"`sequence_bias` must be a dictionary from tuples of tokens to numbers\. Received: \[\(": (
        TypeError,
        lambda: Constraints(sequence_bias=[((1, 2), 0.5)]),
    ),
    r"`sequence_bias` must be a finite number\. Received: sequence_bias=nan": lambda: Constraints(
        sequence_bias={(1, 2): float("nan")}
    ),
    r"`repetition_penalty` must be a finite number above 0\. "
    r"Received: repetition_penalty=0": lambda: Constraints(repetition_penalty=0),
    r"`function` must be a function of arrays\. Received: None": (
        TypeError,
        lambda: generation.compiled(None, keras.layers.Dense(1)),
    ),
    r"`layer` must be a Keras layer or model\. Received: 'dense'": (
        TypeError,
        lambda: generation.compiled(print, "dense"),
    ),
    r"`layer` must be built, so that its variables exist\. .*, not built": lambda: (
        generation.compiled(print, keras.layers.Dense(1))
    ),
}
