"""Signatures of classes, alike in every version of Python."""

import inspect


def signature(value):
    """As `inspect.signature`, which in some versions returns that of the `__new__` of Keras."""
    if not inspect.isclass(value) or value.__init__ is object.__init__:
        return inspect.signature(value)
    own = inspect.signature(value.__init__)
    _, *parameters = own.parameters.values()
    return own.replace(parameters=parameters, return_annotation=own.empty)
