"""What a layer is called with: dense tensors, and neither ragged or sparse ones nor a dict."""

from keras_attention.backend import backend


def check(layer, args, kwargs):
    """Raises unless the tensors of a call of `layer` are dense, and the first argument no dict.

    What comes of others, most of which fail within a framework, after a layer is built, depends on
    the layer's arguments. A dict may be a keyword argument, such as a cache.
    """
    for n, given in enumerate(args):
        _check(layer, given, first=n == 0)
    if kwargs:
        first = None if args else layer.call_signature_parameters[0]
        for name, given in kwargs.items():
            _check(layer, given, first=name == first)


def _check(layer, given, first):
    if given is None or type(given) is bool:
        return
    if type(given) in (list, tuple):
        for element in given:
            _check(layer, element, first)
        return
    advice = None
    if isinstance(given, dict):
        # A class of a user's own may have a `call` that takes one.
        if first and type(layer).call.__module__.startswith(f"{__package__}."):
            advice = "Pass each tensor of a dict as an argument, or as an element of a list"
    elif not layer._takes_any_layout:
        advice = backend.instead_of(given)
    if advice is not None:
        raise TypeError(
            f"{type(layer).__name__} takes dense tensors. {advice}. "
            f"Received: a {type(given).__name__}"
        )
