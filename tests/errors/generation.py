"""What is raised by generation."""

import keras
import numpy as np

from keras_attention import generation
from keras_attention.generation import Constraints
from tests.errors.calls import B, beam_search, greedy, sample, step_giving, zeros

# A call, the type of its exception, and a pattern in the message: what was expected and what came.
ROWS = {
    # generation
    "a step that is none": (
        lambda: greedy(step="step"),
        TypeError,
        r"`step` must be a function \(tokens, cache\) -> \(logits, cache\)\. Received: 'step'",
    ),
    "no tokens at most": (
        lambda: greedy(max_tokens=0),
        ValueError,
        r"argument `max_tokens`, expected an integer of at least 1\. Received: max_tokens=0",
    ),
    "a padding that is a float": (
        lambda: greedy(pad_token=0.0),
        TypeError,
        r"`pad_token` must be integers\. Received: 0\.0",
    ),
    "a stop token by itself": (
        lambda: greedy(stop_tokens=2),
        TypeError,
        r"`stop_tokens` must be a tuple of integers\. Received: stop_tokens=2",
    ),
    "a stop token that is a bool": (
        lambda: greedy(stop_tokens=(1, True)),
        TypeError,
        r"`stop_tokens` must be integers\. Received: True",
    ),
    "a stop token beyond the vocabulary": (
        lambda: greedy(stop_tokens=(1, 4)),
        ValueError,
        r"`stop_tokens` must be tokens of the vocabulary, 0 to 3\. Received: \[4\]",
    ),
    "first tokens that are floats": (
        lambda: greedy(tokens=(0.0, 1.0)),
        TypeError,
        r"`tokens` must be integers\. Received: dtype float",
    ),
    "first tokens of a whole prompt": (
        lambda: greedy(tokens=((0, 1), (0, 1))),
        ValueError,
        r"`tokens` must be \(B,\), the last given token.* Received: tokens\.shape=\(2, 2\)",
    ),
    "a scalar in a cache": (
        lambda: greedy(cache={"index": zeros()}),
        ValueError,
        r"Every tensor of `cache` must have rows on axis 0\. Received a scalar",
    ),
    "a memory of other rows": (
        lambda: greedy(memory=[zeros(3, 4)]),
        ValueError,
        r"Rows of `tokens` and of every tensor of `memory` must be equal\. "
        r"Received: tokens=2, memory=3",
    ),
    "a step that returns logits alone": (
        lambda: greedy(step=lambda tokens, cache: zeros(B, 4)),
        ValueError,
        # JAX adds lines of its own.
        r"`step` must return \(logits, cache\)\. Received: \w+(\n|$)",
    ),
    "a step that returns a sequence": (
        lambda: greedy(step=step_giving(zeros(B, 1, 4))),
        ValueError,
        r"`step` must return logits \(R, V\).*here \(2, V\)\. Received: shape=\(2, 1, 4\)",
    ),
    "a step that returns tokens": (
        lambda: greedy(step=step_giving(zeros(B, 4, dtype="int32"))),
        ValueError,
        r"`step` must return logits \(R, V\), floats.* dtype=int32",
    ),
    "a step that returns another cache": (
        lambda: greedy(step=step_giving(zeros(B, 4), {"b": zeros(B)}), cache={"a": zeros(B)}),
        ValueError,
        r"`step` must return a cache of the structure that it was given\. Received another: ",
    ),
    "a step that returns a longer cache": (
        lambda: greedy(step=step_giving(zeros(B, 4), zeros(B, 2)), cache=zeros(B, 1)),
        ValueError,
        r"`step` must return a cache of the shapes and dtypes.*"
        r"\(\(2, 1\), 'float32'\)\. Received: \(\(2, 2\), 'float32'\)",
    ),
    "a temperature of sampling that is zero": (
        lambda: sample(temperature=0),
        ValueError,
        r"`temperature` must be a finite number above 0\. Received: temperature=0",
    ),
    "a repetition penalty of zero": (
        lambda: sample(repetition_penalty=0.0),
        ValueError,
        r"`repetition_penalty` must be a finite number above 0\. ",
    ),
    "a nucleus of more than all": (
        lambda: sample(top_p=1.1),
        ValueError,
        r"`top_p` must be None or a number in \(0, 1\]\. Received: top_p=1\.1",
    ),
    "logits that are no numbers": (
        lambda: greedy(step=step_giving(zeros(B, 4) + np.nan, zeros(B, 1)), cache=zeros(B, 1)),
        ValueError,
        r"`step` must return logits without NaN and \+inf\. Received such logits: a cache",
    ),
    "more hypotheses than beams": (
        lambda: beam_search(num_return=3),
        ValueError,
        r"`num_return` must be at most `num_beams`\. Received: num_return=3, num_beams=2",
    ),
    "a negative length penalty": (
        lambda: beam_search(length_penalty=-0.5),
        ValueError,
        r"`length_penalty` must be a finite number of at least 0\. Received: length_penalty=-0\.5",
    ),
    "a length penalty beyond float32": (
        lambda: beam_search(length_penalty=1e6),
        ValueError,
        r"`length_penalty` must be a number whose .* Received: length_penalty=1000000\.0, max_tok",
    ),
    "a rule of lengths that is none": (
        lambda: beam_search(length_rule="mean"),
        ValueError,
        r"`length_rule` must be one of \('wu', 'power'\)\. Received: length_rule='mean'",
    ),
    "a way to stop that is none": (
        lambda: beam_search(stopping=True),
        ValueError,
        r"`stopping` must be one of \('exact', 'first', 'estimate'\)\. Received: stopping=True",
    ),
    "constraints in a dictionary": (
        lambda: greedy(constraints={"min_tokens": 2}),
        TypeError,
        r"`constraints` must be None or a `generation\.Constraints`\. Received: {'min_tokens': 2}",
    ),
    "constraints of a text that is not given": (
        lambda: greedy(constraints=Constraints(no_repeat_ngram_size=2, bad_words=[(1, 2)])),
        ValueError,
        r"`prompt` must be the text \(B, T\).* for `sequence_bias` or `bad_words` of several "
        r"tokens, `no_repeat_ngram_size`\. Received: prompt=None",
    ),
    "a prompt of one row": (
        lambda: greedy(constraints=Constraints(no_repeat_ngram_size=2), prompt=[1, 0]),
        ValueError,
        r"`prompt` must be integers \(B, T\),.* Received: prompt\.shape=\(2,\), dtype int",
    ),
    "a prompt of other rows": (
        lambda: greedy(constraints=Constraints(no_repeat_ngram_size=2), prompt=[[1, 0]]),
        ValueError,
        r"Rows of `tokens` and of .* `prompt` must be equal\. Received: tokens=2, prompt=1",
    ),
    "a forbidden token beyond the vocabulary": (
        lambda: greedy(constraints=Constraints(suppress_tokens=[1, 4], forced_last_token=9)),
        ValueError,
        r"`constraints` must have tokens of the vocabulary, 0 to 3\. Received: \[4, 9\]",
    ),
    "a forbidden token by itself": (
        lambda: Constraints(suppress_tokens=3),
        TypeError,
        r"`suppress_tokens` must be a tuple of tokens\. Received: 3",
    ),
    "a bad word that is a token": (
        lambda: Constraints(bad_words=[3]),
        TypeError,
        r"`bad_words` must be a tuple of tokens\. Received: 3",
    ),
    "a bad word without tokens": (
        lambda: Constraints(bad_words=[(1, 2), ()]),
        ValueError,
        r"`bad_words` must have sequences of at least one token\. Received: \[\(1, 2\), \(\)\]",
    ),
    "a forced token that is a word": (
        lambda: Constraints(forced_first_token="de"),
        TypeError,
        r"`forced_first_token` must have tokens, which are integers\. Received: 'de'",
    ),
    "a forbidden token below 0": (
        lambda: Constraints(begin_suppress_tokens=(1, -1)),
        ValueError,
        r"`begin_suppress_tokens` must have tokens of at least 0\. Received: -1",
    ),
    "biases in a list": (
        lambda: Constraints(sequence_bias=[((1, 2), 0.5)]),
        TypeError,
        r"`sequence_bias` must be a dictionary from tuples of tokens to numbers\. Received: \[\(",
    ),
    "a bias that is NaN": (
        lambda: Constraints(sequence_bias={(1, 2): float("nan")}),
        ValueError,
        r"`sequence_bias` must be a finite number\. Received: sequence_bias=nan",
    ),
    "a penalty of repetition that is 0": (
        lambda: Constraints(repetition_penalty=0),
        ValueError,
        r"`repetition_penalty` must be a finite number above 0\. Received: repetition_penalty=0",
    ),
    "a compiled function that is none": (
        lambda: generation.compiled(None, keras.layers.Dense(1)),
        TypeError,
        r"`function` must be a function of arrays\. Received: None",
    ),
    "a compiled function of no layer": (
        lambda: generation.compiled(print, "dense"),
        TypeError,
        r"`layer` must be a Keras layer or model\. Received: 'dense'",
    ),
    "a compiled function of a layer that is not built": (
        lambda: generation.compiled(print, keras.layers.Dense(1)),
        ValueError,
        r"`layer` must be built, so that its variables exist\. .*, not built",
    ),
}
