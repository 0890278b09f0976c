"""Types of options of command lines: each a function from the text of one to its value."""

import argparse


def at_least(minimum):
    """The type of integers from `minimum` on."""

    def parse(text):
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}, received {value}")
        return value

    parse.__name__ = "integer"
    return parse


def fraction(text):
    """A number of at least 0 and below 1."""
    value = float(text)
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"must be at least 0 and below 1, received {value}")
    return value


def positive(text):
    """A finite number above 0."""
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, received {value}")
    return value


def not_negative(text):
    """A finite number of at least 0."""
    value = float(text)
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be at least 0, received {value}")
    return value
