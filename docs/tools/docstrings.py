"""Griffe extension: what the pages of the API show of the package's docstrings and signatures.

They are written for a terminal: sections "Args:", "Call arguments:", "Returns:" and "Raises:", and
examples of the interpreter. Arguments become a list of definitions, examples fenced code, with a
title after sections; everything else is Markdown, unchanged. The signature of a preset lists what
it passes on to its base class.
"""

import re
import textwrap

import griffe

SECTION = re.compile(r"^(Args|Call arguments[^:]*|Returns|Raises|Example):$")
# A page that a docstring names, as the pages in docs/api/ link to it.
PAGE = re.compile(r"`docs/(\w+)\.md(#[\w-]+)?`")
TITLES = {"Args": "Arguments"}
LISTS = ("Args", "Call arguments", "Raises")


class Docstrings(griffe.Extension):
    """Rewrites each docstring and constructor when it is loaded."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_package(self, *, pkg, **kwargs):
        options = pkg["layers.options"].classes.values()
        for module in pkg["layers"].modules.values():
            for cls in module.classes.values():
                if "__init__" in cls.members:
                    list_inherited(cls, {option.name for option in options})


def list_inherited(cls, options):
    """Puts the parameters of the base class where `**kwargs` are one of the `options`."""
    parameters = cls["__init__"].parameters
    last = list(parameters)[-1]
    if not options & set(re.findall(r"\w+", str(last.annotation))):
        return
    base = next(base for base in cls.mro() if "__init__" in base.members)
    list_inherited(base, options)
    fixed = cls.members.get("_fixed_arguments")
    left_out = re.findall(r"\w+", str(fixed.value)) if fixed else []
    del parameters[last.name]
    for parameter in base["__init__"].parameters:
        if parameter.name not in parameters and parameter.name not in left_out:
            kind = last.kind if parameter.kind is last.kind else griffe.ParameterKind.keyword_only
            found = {"annotation": parameter.annotation, "default": parameter.default}
            parameters.add(griffe.Parameter(parameter.name, kind=kind, **found))


def markdown(docstring):
    """The Markdown of a docstring without indentation."""
    lines, found, titled = docstring.split("\n"), [], False
    while lines:
        line = lines.pop(0)
        section = SECTION.match(line)
        if section:
            name, titled = section[1], True
            found += ["", f"**{TITLES.get(name, name)}**", ""]
            body = _taken(lines, lambda line: not line or line.startswith(" "))
            body = textwrap.dedent("\n".join(body))
            found += _definitions(body) if name.startswith(LISTS) else [body, ""]
        elif line.startswith(">>>"):
            example = [line, *_taken(lines, lambda line: line.strip())]
            title = ["**Example**"] if titled and "**Example**" not in found else []
            found += ["", *title, "", "```pycon", *example, "```", ""]
        else:
            found.append(line)
    return PAGE.sub(r"[`\1.md\2`](../\1.md\2)", "\n".join(found))


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
