"""Kinds of arguments: what a constructor checks and stores of them, by its signature alone.

    def __init__(self, units: Count = 32, scale: Positive = 0.1, **kwargs: Any):
        super().__init__(**kwargs)
        keep(self, locals())

checks that `units` is an integer of at least 1, and `scale` a number above 0, and stores them as
attributes. For readers, editors and type checkers they are an `int` and a `float`.
"""

import types
import typing
from functools import cache, partial
from typing import Annotated, TypeAlias

import keras

from keras_attention import saving, shapes

# Beside the type there is a partial function of the name and the value of an argument, or the `get`
# of Keras or of a slot, a function of the value alone.
Count: TypeAlias = Annotated[int, partial(shapes.check_count)]
# From 0.
Natural: TypeAlias = Annotated[int, partial(shapes.check_count, minimum=0)]
Number: TypeAlias = Annotated[float, partial(shapes.check_number)]
Positive: TypeAlias = Annotated[float, partial(shapes.check_number, above=0)]
# In [0, 1).
Rate: TypeAlias = Annotated[float, partial(shapes.check_rate)]
# Of random numbers; None for any.
RandomSeed: TypeAlias = Annotated[int | None, partial(shapes.check_integer, unsigned=True)]


def keep(layer, given):
    """Stores the arguments that an `__init__` adds to those of its bases, checked by their kinds.

    Beside those above, and the types of slots and of Keras's objects, `bool`, a `Literal` and a
    class of layers are kinds, and with `| None` each of them. Others are left to the `__init__`.

    Args:
        layer: its `self`.
        given: its `locals()`, after the call of `super().__init__`.
    """
    for name, check in _checks(given["__class__"]):
        setattr(layer, name, check(name, given[name]))


@cache
def _checks(cls):
    """The names of the arguments that a class adds, with functions of a name and a value."""
    bases = (getattr(base.__init__, "__annotations__", ()) for base in cls.__mro__[1:])
    known = set().union(*bases)
    # `Unpack` is for type checkers alone.
    hints = typing.get_type_hints(cls.__init__, localns={"Unpack": list}, include_extras=True)
    found = {name: _check(hint) for name, hint in hints.items() if name not in known}
    return [(name, check) for name, check in found.items() if check is not None]


def _check(hint):
    """The check of a hint, or None if it is no kind."""
    optional = {}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = typing.get_args(hint)
        hints = [x for x in members if x is not types.NoneType]
        if len(hints) > 1:
            return None
        hint, optional = hints[0], {"optional": True}
    if typing.get_origin(hint) is Annotated:
        [kind] = hint.__metadata__
        if not isinstance(kind, partial):
            return lambda name, value: kind(value)
        return partial(kind, **optional)
    if typing.get_origin(hint) is typing.Literal:
        choices = (*[None] * bool(optional), *typing.get_args(hint))
        return partial(shapes.check_choice, choices=choices)
    if hint is bool:
        return partial(shapes.check_flag, **optional)
    if isinstance(hint, type) and issubclass(hint, keras.layers.Layer):
        return partial(saving.check_layer, kind=hint, **optional)
    return None
