"""Every command that README.md and the pages show is one that its program understands.

CI runs the programs themselves, small. Here their command lines are read by their own parsers, with
nothing run, so an option that is renamed or gone is found on every page.
"""

import argparse
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
SHELL = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:\.venv/bin/)?python -m (?:examples|benchmarks)\.[^`]*)`")
# Shell lines that run no program of ours, and why nothing tests them here.
NOT_OURS = {
    r"(?:\.venv/bin/)?pip install": "installs from the network; CI installs the same extras",
    r"python3 -m venv": "makes an environment; CI runs the README's two commands as they stand",
    r"\.venv/bin/python -m pytest": "the tests, which this is one of",
    r"export MALLOC_": "settings of the C library; benchmarks.linear measured what they do",
    r"for \w+ in [\w ]+; do|done": "a loop, whose lines are read with its first value",
}


def commands():
    """(page, command) of all that a reader could paste, one part of each `&&`."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in SHELL.findall(text):
            lines = block.replace("\\\n", " ").splitlines()
            for line in lines:
                yield from ((page, part.strip()) for part in line.split("&&") if part.strip())
        yield from ((page, command) for command in INLINE.findall(text))


COMMANDS = sorted({(page.relative_to(ROOT).as_posix(), command) for page, command in commands()})
# Names in capitals stand for those of a program.
OURS = re.compile(r"(?:\.venv/bin/)?python -m ((?:examples|benchmarks)\.[a-z_.]+)(.*)")


class Parsed(Exception):
    """A parser has read a whole command line."""


def test_every_shell_line_is_a_command_of_ours_or_has_a_reason():
    unknown = [
        (page, command)
        for page, command in COMMANDS
        if not OURS.match(command)
        and not re.fullmatch(r"python -m \w+\.NAME", command)
        and not any(re.match(reason, command) for reason in NOT_OURS)
    ]
    assert not unknown
    lines = [command for _, command in COMMANDS]
    assert all(any(re.match(reason, line) for line in lines) for reason in NOT_OURS)


@pytest.mark.parametrize(
    ("page", "command"),
    [found for found in COMMANDS if OURS.match(found[1])],
    ids=lambda value: value[:60],
)
def test_a_program_understands_what_the_pages_show(page, command, monkeypatch):
    name, rest = OURS.match(command).groups()
    arguments = shlex.split(rest.replace("$seed", "0").replace("$hidden", "8"), comments=True)
    if {"…", "..."} & set(arguments):
        pytest.skip("an abbreviated command")
    read = argparse.ArgumentParser.parse_args

    def parse(parser, *given):
        read(parser, *given)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(Parsed):
        importlib.import_module(name).main()
