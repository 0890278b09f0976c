"""Every `raise` of the package: a pattern in its message, and a call that reaches it.

The rows are in the other modules of this folder: a pattern belongs to calls that raise a
`ValueError`, or to another exception and calls that raise it. It has what tells a message from
others: the argument, and what came. Wrong values of single arguments of constructors are in
`tests/test_constructors.py`. One test parses the package, and fails when a `raise` has no row.
"""

import ast
import importlib
import pkgutil
import re
import traceback
from pathlib import Path

import pytest

import keras_attention as ka
from tests import errors
from tests.errors.calls import attend

PACKAGE = Path(ka.__file__).parent
NAMES = [module.name for module in pkgutil.iter_modules(errors.__path__)]
PARTS = [importlib.import_module(f"tests.errors.{name}") for name in NAMES]
# Messages of what a subclass must have, and of what is to be done first.
WITHOUT_VALUE = re.compile(r"must implement|pip install|has no|cannot have a cache|context|convert")


def row(message, calls):
    """The message, the exception, and its calls."""
    calls = calls if isinstance(calls, tuple) else (calls,)
    return message, *(calls if isinstance(calls[0], type) else (ValueError, *calls))


ROWS = [row(*item) for part in PARTS for item in getattr(part, "ROWS", {}).items()]


def passed(error):
    """The lines that an error passed, and those that came before it, as (path, line)."""
    while error is not None:
        for frame, line in traceback.walk_tb(error.__traceback__):
            yield frame.f_code.co_filename, line
        error = error.__context__


# Of each row that has run in this process: the lines that its errors passed.
RUN = {}


def errors_of(row):
    """What the calls of a row raise, or None."""
    found = []
    for call in row[2:]:
        try:
            call()
            found.append(None)
        except Exception as error:
            found.append(error)
    RUN[row] = {line for error in found for line in passed(error)}
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_message_says_what_was_expected_and_what_came(row):
    message, exception, *_ = row
    for error in errors_of(row):
        # Keras adds the arguments of a layer's call.
        said = str(error).split("\x1b[0m\n\nArguments received by")[0]
        assert isinstance(error, exception) and re.search(message, said, re.DOTALL), repr(error)
        assert "Received" in said or exception is KeyError or WITHOUT_VALUE.search(said)


def raises():
    """Path and lines of every `raise`, or of the `try` whose error it passes on."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            inner = [x for handler in getattr(node, "handlers", ()) for x in ast.walk(handler)]
            passes_on = any(isinstance(x, ast.Raise) and not x.exc for x in inner)
            if passes_on or (isinstance(node, ast.Raise) and node.exc):
                yield path, range(node.lineno, node.end_lineno + 1)


def unreached(lines):
    return [
        f"{path.relative_to(PACKAGE)}:{numbers[0]}"
        for path, numbers in raises()
        if not any((str(path), number) in lines for number in numbers)
    ]


@pytest.mark.any_backend
def test_every_raise_has_a_row():
    for row in ROWS:
        if row not in RUN:
            errors_of(row)
    assert not unreached(set().union(*RUN.values())), "add a row for each of these"


def test_a_raise_without_a_row_is_seen():
    with pytest.raises(ValueError) as caught:
        attend(kernel="quantum")
    assert len(unreached(set(passed(caught.value)))) == len(list(raises())) - 1 > 30
