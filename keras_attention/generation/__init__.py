"""Generation: tokens one at a time, from any model with a step function.

`greedy`, `sample` and `beam_search` drive a function `step(tokens, cache)` in one loop of
`keras.ops`; `compiled` makes one program of a function that calls them.
"""

from keras_attention.generation.beam import beam_search
from keras_attention.generation.constraints import Constraints
from keras_attention.generation.loop import Generated, compiled
from keras_attention.generation.sampling import greedy, sample

__all__ = ["Constraints", "Generated", "beam_search", "compiled", "greedy", "sample"]
