"""Generation: tokens one at a time, from any model with a step function.

`greedy`, `sample` and `beam_search` drive a function `step(tokens, cache)` in one loop of
`keras.ops`; `stream` yields its tokens as they come, `compiled` makes one program of a function
that calls them, and `draw` is one step of sampling. `Constraints` and other rules change logits;
`select_rows` selects those of a cache.
"""

from keras_attention.generation.beam import beam_search
from keras_attention.generation.constraints import Constraints
from keras_attention.generation.generated import Generated
from keras_attention.generation.programs import compiled
from keras_attention.generation.rules import LengthDecay, Penalty, Rule
from keras_attention.generation.sampling import draw, greedy, sample
from keras_attention.generation.search import select_rows
from keras_attention.generation.speculation import DraftModel, PromptLookup
from keras_attention.generation.streams import Stream, stream

__all__ = [
    "Constraints",
    "DraftModel",
    "Generated",
    "LengthDecay",
    "Penalty",
    "PromptLookup",
    "Rule",
    "Stream",
    "beam_search",
    "compiled",
    "draw",
    "greedy",
    "sample",
    "select_rows",
    "stream",
]
