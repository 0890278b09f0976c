"""Whether a configuration is that of a model: what it describes is made, and options compared.

Options are the arguments of constructors, those of all parts included.
"""

# Arguments that change nothing in what a trained model computes.
_FREE = ("name", "trainable", "dtype", "metadata", "seed", "module", "registered_name")
# What Keras adds once a layer is built.
_BUILT = ("build_config", "build_input_shape")
_FREE_ENDS = ("dropout", "initializer", "regularizer", "constraint")
_NONE = object()


def check(model, values, known, make, free=()):
    """Raises unless the configuration `values` describes `model`.

    Args:
        model: the model.
        values: fields of `config.json`.
        known: those that the model came with, or None.
        make: from such fields to a model.
        free: names of options that no field has.
    """
    options = _stripped(model.get_config(), free)
    # The names of those that are not as the model came with.
    names = sorted(values.keys() | (known or {}).keys())
    fields = [x for x in names if known is not None and values.get(x) != known.get(x)]
    try:
        made = make(values)
    except ValueError as error:
        raise ValueError(f"{_received(values, fields)}of which none is made: {error}") from error
    if not isinstance(model, type(made)):
        raise ValueError(
            f"`config` must describe `model`, which must be a {type(made).__name__}. "
            f"Received: {model!r}"
        )
    different = _difference(_stripped(made.get_config(), free), options)
    if different is None:
        return
    # The fields that make a difference by themselves, if any does.
    alone = [x for x in fields if _matters({**known, x: values.get(x)}, make, free, options)]
    path, wanted, has = different
    raise ValueError(
        f"{_received(values, alone or fields)}with which {path} would be {_shown(wanted)}, where "
        f"the model has {_shown(has)}"
    )


def _received(values, fields):
    given = "".join(f"{name}={values.get(name)!r}, " for name in fields)
    return f"`config` must be the configuration of `model`. Received: {given}"


def _matters(values, make, free, options):
    """Whether fields are of another model; null is as if a field were absent."""
    values = {name: value for name, value in values.items() if value is not None}
    try:
        return _difference(_stripped(make(values).get_config(), free), options) is not None
    except ValueError:
        return True


def _stripped(value, free):
    """A configuration without what is free, in which two of equal models are equal."""
    if isinstance(value, dict):
        return {
            name: _stripped(inner, free)
            for name, inner in value.items()
            if name not in (*_FREE, *_BUILT, *free) and not name.endswith(_FREE_ENDS)
        }
    if isinstance(value, (list, tuple)):
        # A `Sequential` begins with an input once it is built.
        return [
            _stripped(x, free)
            for x in value
            if not (isinstance(x, dict) and x.get("class_name") == "InputLayer")
        ]
    return value


def _difference(first, second, path=""):
    """Where two configurations differ first, and how; None if nowhere."""
    if isinstance(first, dict) and isinstance(second, dict):
        # The class first, since another has other options.
        names = sorted(first.keys() | second.keys(), key=lambda x: (x != "class_name", x))
        # Without the levels of serialized objects.
        paths = [path if x == "config" else f"{path}.{x}".lstrip(".") for x in names]
        values = [(first.get(x, _NONE), second.get(x, _NONE)) for x in names]
        pairs = [(at, *pair) for at, pair in zip(paths, values, strict=True)]
    elif isinstance(first, list) and isinstance(second, list):
        if len(first) != len(second):
            return f"the number of `{path}`", len(first), len(second)
        both = zip(first, second, strict=True)
        pairs = [(f"{path}[{n}]", *pair) for n, pair in enumerate(both)]
    elif isinstance(first, list) != isinstance(second, list):
        # A built norm has a list of its only axis.
        alike = first in ([second], second) or second == [first]
        return None if alike else (f"`{path}`", first, second)
    else:
        return None if first == second else (f"`{path}`", first, second)
    found = (_difference(one, other, at) for at, one, other in pairs)
    return next((x for x in found if x is not None), None)


def _shown(value):
    if value is _NONE:
        return "not there"
    return value.get("class_name", "an object") if isinstance(value, dict) else repr(value)
