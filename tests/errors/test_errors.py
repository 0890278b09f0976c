"""Every `raise` of the package: a pattern in its message, and a call that reaches it.

The rows are in the other modules of this folder: a pattern belongs to a call that raises a
`ValueError`, or to an exception and calls that raise it. It has what tells a message from others:
the argument, and what came. Wrong values of single arguments of constructors are in
`tests/test_constructors.py`. One test parses the package, and fails when a `raise` has no row.
"""

import ast
import contextlib
import functools
import importlib
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import keras_attention as ka
from keras_attention.sequences import shapes
from tests import errors
from tests.errors.calls import attend

PACKAGE = Path(ka.__file__).parent
MODULES = [module.name for module in pkgutil.iter_modules(errors.__path__)]
PARTS = [
    importlib.import_module(f"tests.errors.{name}")
    for name in MODULES
    if name not in ("calls", "test_errors")
]
ROWS = [
    (message, *row) if isinstance(row, tuple) else (message, ValueError, row)
    for part in PARTS
    for message, row in part.ROWS.items()
]


# Of each row that has run in this process: the lines of the package that its calls executed.
RUN = {}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_message_says_what_was_expected_and_what_came(row):
    message, exception, *calls = row
    with lines_run() as lines:
        for call in calls:
            with pytest.raises(exception) as caught:
                call()
            # Keras adds the arguments of a layer's call.
            said = str(caught.value).split("\x1b[0m\n\nArguments received by")[0]
            assert re.search(message, said, re.DOTALL), said
    RUN[row] = lines


@functools.cache
def raises():
    """Path and lines of every `raise` statement of the package."""
    return [
        (str(path), node.lineno, node.end_lineno)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise)
    ]


@functools.cache
def is_of_interest(code):
    """Whether a function raises."""
    numbers = {number for path, number, _ in raises() if path == code.co_filename}
    return any(number in numbers for *_, number in code.co_lines())


@contextlib.contextmanager
def lines_run():
    """A set of the lines that are executed of functions that raise, as (path, line)."""
    lines, package = set(), str(PACKAGE)

    def enter(frame, event, argument):
        code = frame.f_code
        return line if code.co_filename.startswith(package) and is_of_interest(code) else None

    def line(frame, event, argument):
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield lines
    finally:
        sys.settrace(before)


@pytest.mark.any_backend
def test_every_raise_has_a_row():
    assert len(raises()) > 30
    lines = set()
    for row in ROWS:
        if row not in RUN:
            with lines_run() as RUN[row]:
                for call in row[2:]:
                    with contextlib.suppress(Exception):
                        call()
        lines |= RUN[row]
    unreached = [
        f"{Path(path).relative_to(PACKAGE)}:{first}"
        for path, first, last in raises()
        if not any((path, number) in lines for number in range(first, last + 1))
    ]
    assert not unreached, f"add a row for each of these: {unreached}"


def test_a_raise_without_a_row_is_seen():
    with lines_run() as lines, contextlib.suppress(ValueError):
        attend(kernel="quantum")
    reached = {Path(path).name for path, first, last in raises() if (path, first) in lines}
    # Whether a layer has an attribute is asked often.
    assert reached - {"saving.py"} == {"__init__.py"}


def test_sizes_that_are_not_known_agree_with_any():
    shapes.check_same("Lengths", query=None, key=3, value=3)
    with pytest.raises(ValueError, match=r"Lengths must be equal\. Received: key=3, value=4"):
        shapes.check_same("Lengths", query=None, key=3, value=4)
