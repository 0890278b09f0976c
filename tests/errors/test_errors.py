"""Every `raise` of the package: a call that reaches it, the exception's type, and its message.

The rows are in the other modules of this folder. The last test parses the package, and fails when
a `raise` has no row that reaches it.
"""

import ast
import functools
import re
import sys
from pathlib import Path

import pytest

import keras_attention as ka
from keras_attention import patterns, shapes
from tests.errors import (
    alignments,
    attention,
    caches,
    cells,
    distribution,
    generation,
    generation_settings,
    huggingface,
    huggingface_sequences,
    inputs,
    inspection,
    lora,
    models,
    positions,
    slots,
    visualization,
)
from tests.errors.calls import beam_search, greedy, sample

PACKAGE = Path(ka.__file__).parent
PARTS = (
    inputs.ROWS,
    lora.ROWS,
    slots.ROWS,
    alignments.ROWS,
    attention.ROWS,
    caches.ROWS,
    positions.ROWS,
    cells.ROWS,
    distribution.ROWS,
    models.ROWS,
    generation.ROWS,
    generation_settings.ROWS,
    huggingface.ROWS,
    huggingface_sequences.ROWS,
    inspection.ROWS,
    visualization.ROWS,
)
ROWS = {name: row for part in PARTS for name, row in part.items()}
assert len(ROWS) == sum(map(len, PARTS)), "two rows have one name"


@pytest.mark.parametrize("row", ROWS)
def test_the_message_says_what_was_expected_and_what_came(row):
    call, exception, message = ROWS[row]
    with pytest.raises(exception, match=re.compile(message, re.DOTALL)):
        call()


def raises():
    """Path and lines of every `raise` statement of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise):
                yield str(path), node.lineno, node.end_lineno


def lines_run_by(calls):
    """The lines that the calls execute of the package's functions that raise, as (path, line)."""
    lines, raising = set(), {(path, number) for path, number, _ in raises()}

    @functools.cache
    def is_of_interest(code):
        return any((code.co_filename, number) in raising for *_, number in code.co_lines())

    def enter(frame, event, argument):
        return line if is_of_interest(frame.f_code) else None

    def line(frame, event, argument):
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        for call, exception, _ in calls:
            try:
                call()
            except exception:
                continue
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.any_backend
def test_every_raise_has_a_row():
    statements = list(raises())
    assert len(statements) > 30
    lines = lines_run_by(ROWS.values())
    unreached = [
        f"{Path(path).relative_to(PACKAGE)}:{first}"
        for path, first, last in statements
        if not any((path, number) in lines for number in range(first, last + 1))
    ]
    assert not unreached, f"add a row for each of these: {unreached}"


def test_a_raise_without_a_row_is_seen():
    few = [ROWS["an unknown kernel"]]
    lines = lines_run_by(few)
    reached = {Path(path).name for path, first, last in raises() if (path, first) in lines}
    # Whether a layer has an attribute is asked often.
    assert reached - {"saving.py"} == {"__init__.py"}


def test_counts_name_the_argument_that_is_wrong():
    layers = {
        "num_heads": lambda n: ka.TransformerBlock(8, n),
        "key_dim": lambda n: ka.Attention(2, n),
        "value_dim": lambda n: ka.Attention(2, 4, n),
        "intermediate_dim": lambda n: ka.TransformerBlock(n, 2),
        "output_dim": lambda n: ka.FeedForward(8, output_dim=n),
        "num_queries": lambda n: ka.AttentionPooling(n),
        "vocabulary_size": lambda n: ka.ScaledEmbedding(n, 4),
        "dim": lambda n: ka.SinCosPositionEmbedding(n),
        "max_length": lambda n: ka.LearnedPositionEmbedding(n),
        "sliding_window": lambda n: ka.MultiHeadAttention(2, 4, sliding_window=n),
        "rate": patterns.Dilated,
        "length": patterns.Prefix,
        "size": patterns.Block,
        "max_tokens": lambda n: greedy(max_tokens=n),
        "num_beams": lambda n: beam_search(num_beams=n),
        "num_return": lambda n: beam_search(num_return=n),
        "top_k": lambda n: sample(top_k=n),
        "right": lambda n: patterns.SlidingWindow(0, n),
    }
    for name, make in layers.items():
        with pytest.raises(ValueError, match=f"argument `{name}`.*Received: {name}=-1"):
            make(-1)
    with pytest.raises(ValueError, match="Received: rate=0"):
        patterns.Strided(0)


def test_sizes_that_are_not_known_agree_with_any():
    shapes.check_same("Lengths", query=None, key=3, value=3)
    with pytest.raises(ValueError, match=r"Lengths must be equal\. Received: key=3, value=4"):
        shapes.check_same("Lengths", query=None, key=3, value=4)
