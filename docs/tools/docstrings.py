"""Griffe extension: the package's docstrings as Markdown, for the pages of the API.

They are written for a terminal: sections "Args:", "Call arguments:", "Returns:", "Raises:" and
"Example:", and examples of the interpreter. Arguments become a list of definitions, examples
fenced code; everything else is Markdown as it stands.
"""

import re
import textwrap

import griffe

SECTION = re.compile(r"^(Args|Call arguments[^:]*|Returns|Raises|Example):$")
TITLES = {"Args": "Arguments"}
LISTS = ("Args", "Call arguments", "Raises")


class Docstrings(griffe.Extension):
    """Rewrites each docstring when it is loaded."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring):
    """The Markdown of a docstring without indentation."""
    lines, found = docstring.split("\n"), []
    while lines:
        line = lines.pop(0)
        section = SECTION.match(line)
        if section:
            name = section[1]
            found += ["", f"**{TITLES.get(name, name)}**", ""]
            body = _taken(lines, lambda line: not line or line.startswith(" "))
            body = textwrap.dedent("\n".join(body))
            found += _definitions(body) if name.startswith(LISTS) else [body, ""]
        elif line.startswith(">>>"):
            example = [line, *_taken(lines, lambda line: line.strip())]
            found += ["", "```pycon", *example, "```", ""]
        else:
            found.append(line)
    return "\n".join(found)


def _taken(lines, wanted):
    """The first of `lines` that are `wanted`, taken away from them."""
    taken = []
    while lines and wanted(lines[0]):
        taken.append(lines.pop(0))
    return taken


def _definitions(body):
    """A Markdown list of definitions of entries `name, other: text`, continued by indentation."""
    found = []
    for entry in re.split(r"\n(?=\S)", body.strip("\n")):
        names, _, text = " ".join(entry.split()).partition(": ")
        names = ", ".join(f"`{name.strip()}`" for name in names.split(","))
        found += [names, f":   {text}", ""]
    return found
