"""Steps outside of programs: one program for each of their shapes, which the model keeps."""

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.core import keras_private, tap
from keras_attention.models.generating import Kept
from keras_attention.sequences import masks

# So many steps of the same shapes run as they are, since a program takes as long as dozens to make.
PLAIN = 2


def run(model, function, arrays):
    """`function(**arrays)`, which are logits and a cache, by a program where nobody can tell."""
    arrays = {name: x for name, x in arrays.items() if x is not None}
    if not _may_be_program(model, arrays):
        return function(**arrays)
    programs = vars(model).setdefault("_programs", Kept()).of(model)
    key = "steps", repr(keras.tree.map_structure(lambda x: (*x.shape, x.dtype), arrays))
    program = programs.setdefault(key, 0)
    if program == PLAIN:
        program = programs[key] = backend.compile(lambda given: _noted(function(**given)), model)
    if callable(program):
        try:
            found = program(keras.tree.map_structure(ops.convert_to_tensor, arrays))
            if not found["lost"]:
                return masks.carry(found["logits"], found.get("mask")), found["cache"]
        # A layer of the user's, for one, reads values.
        except Exception:
            programs[key] = None
    # What is wrong raises here.
    found = function(**arrays)
    if isinstance(program, int):
        programs[key] = program + 1
    return found


def _may_be_program(model, arrays):
    """Whether a step changes nothing but what it returns, and nothing listens to it."""
    leaves = keras.tree.flatten(arrays)
    if not model.built or tap.state.listeners or keras_private.reads_other_values():
        return False
    # A mask that is carried would be lost. To read all tokens again, a program reads them always.
    if not all(hasattr(x, "dtype") and masks.implicit(x) is None for x in leaves):
        return False
    return "tokens" not in arrays["cache"][-1] and backend.runs_at_once(leaves)


def _noted(found):
    logits, cache = found
    # No program can raise: rows that have no room are NaN.
    noted = {"logits": logits, "cache": cache, "lost": ops.any(ops.isnan(logits[..., :1]))}
    mask = masks.implicit(logits)
    return noted if mask is None else noted | {"mask": mask}
